"""Builds the wheel with nothing but Python's own library.

The wheel carries the program `quorate` if it lies in `quorate_testing/bin`, and then fits this platform only.
"""

import base64
import hashlib
import os
import sysconfig
import zipfile

NAME = "quorate_testing"
VERSION = "0.1.0"
INFO = f"{NAME}-{VERSION}.dist-info"
HERE = os.path.dirname(os.path.abspath(__file__))
# The earliest time that a zip archive can hold: the same sources give the same wheel.
TIME = (1980, 1, 1, 0, 0, 0)


def get_requires_for_build_wheel(config_settings=None):
    return []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    files = []
    for folder, _, names in sorted(os.walk(os.path.join(HERE, NAME))):
        for name in sorted(names):
            if name.endswith(".pyc"):
                continue
            path = os.path.join(folder, name)
            with open(path, "rb") as source:
                mode = 0o755 if os.path.basename(folder) == "bin" else 0o644
                files.append((os.path.relpath(path, HERE).replace(os.sep, "/"), source.read(), mode))
    carries = any(name.startswith(f"{NAME}/bin/quorate") for name, _, _ in files)
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_") if carries else "any"
    tag = f"py3-none-{platform}"
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as readme:
        description = readme.read()
    metadata = (
        f"Metadata-Version: 2.1\nName: quorate-testing\nVersion: {VERSION}\n"
        "Summary: A real replica set for tests\nLicense: Apache-2.0\nRequires-Python: >=3.9\n"
        f"Description-Content-Type: text/markdown\n\n{description}"
    )
    pure = "false" if carries else "true"
    wheel = f"Wheel-Version: 1.0\nGenerator: quorate\nRoot-Is-Purelib: {pure}\nTag: {tag}\n"
    entry_points = "[pytest11]\nquorate = quorate_testing.plugin\n"
    for name, text in (("METADATA", metadata), ("WHEEL", wheel), ("entry_points.txt", entry_points)):
        files.append((f"{INFO}/{name}", text.encode(), 0o644))
    record = ""
    for name, content, _ in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files.append((f"{INFO}/RECORD", f"{record}{INFO}/RECORD,,\n".encode(), 0o644))
    file_name = f"{NAME}-{VERSION}-{tag}.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, file_name), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, mode in files:
            entry = zipfile.ZipInfo(name, TIME)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return file_name
