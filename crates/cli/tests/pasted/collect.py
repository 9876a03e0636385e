"""Collects the errors of real clients into texts.jsonl, by provoking them on real servers.

    python3 collect.py QUORATE FOLDER > texts.jsonl

QUORATE is the program. FOLDER holds what registries and compilers give: `npm` (node_modules with
mongodb, mongodb-4 and mongoose), `mongosh` (its node_modules), `python` (an interpreter with pymongo), and
the built programs `c`, `go`, `rust` (the example `pasted` of quorate-driver-tests) and `Java.class`;
`mongodump` too. Debian has php-mongodb, ruby-mongo,
libmongodb-perl, libmongodb-java, libmongoc-dev and golang-mongodb-mongo-driver-dev. A client that is
missing is left out.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
CLIENTS = os.path.join(HERE, "clients")
QUORATE, FOLDER = (os.path.abspath(path) for path in sys.argv[1:3])
LIMIT = 60


def version(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def package(name):
    found = version("dpkg-query", "--show", "--showformat", "${Version}", name)
    return found.split("+")[0].split("-")[0]


def npm(name):
    path = os.path.join(FOLDER, "npm", "node_modules", name, "package.json")
    return json.load(open(path))["version"] if os.path.exists(path) else ""


def crate(name):
    lock = open(os.path.join(HERE, "..", "..", "..", "..", "Cargo.lock")).read()
    return lock.split(f'name = "{name}"\nversion = "')[1].split('"')[0]


def clients():
    """Name, version, and the command that takes a connection string and an operation."""
    at = lambda *parts: os.path.join(FOLDER, *parts)
    program = lambda name: os.path.join(CLIENTS, name)
    python = at("python", "bin", "python")
    mongosh = at("mongosh", "node_modules", ".bin", "mongosh")
    dump = at("mongodump")
    rust = at("rust")
    shell = {"insert": "db.getSiblingDB('shop').orders.insertOne({x: 1})",
             "find": "db.getSiblingDB('shop').orders.find().toArray()"}
    modules = at("npm", "node_modules")
    yield "pymongo", version(python, "-c", "import pymongo; print(pymongo.version)"), \
        lambda uri, op: [python, program("python.py"), uri, op]
    for name, folder in [("Node.js driver", "mongodb"), ("Node.js driver", "mongodb-4"),
                         ("Mongoose", "mongoose")]:
        yield name, npm(folder), lambda uri, op, folder=folder: [
            "node", program("node.js"), os.path.join(modules, folder), uri, op]
    yield "mongosh", version(mongosh, "--version").splitlines()[0:1], \
        lambda uri, op: [mongosh, "--quiet", uri, "--eval", shell[op]]
    yield "PHP extension", package("php-mongodb"), \
        lambda uri, op: ["php", program("php.php"), uri, op]
    yield "Ruby driver", package("ruby-mongo"), lambda uri, op: ["ruby", program("ruby.rb"), uri, op]
    yield "Perl driver", package("libmongodb-perl"), \
        lambda uri, op: ["perl", program("perl.pl"), uri, op]
    yield "C driver", package("libmongoc-dev"), lambda uri, op: [at("c"), uri, op]
    yield "Go driver", package("golang-mongodb-mongo-driver-dev"), \
        lambda uri, op: [at("go"), uri, op]
    yield "Rust crate", crate("mongodb") if os.path.exists(rust) else "", \
        lambda uri, op: [rust, uri, op]
    jars = "/usr/share/java/mongo-java-driver.jar:" + FOLDER
    yield "Java driver", package("libmongodb-java"), \
        lambda uri, op: ["java", "-cp", jars, "Java", uri, op]
    yield "mongodump", "100.8.0" if os.path.exists(dump) else "", \
        lambda uri, op: [dump, "--uri", uri, "--out", "/tmp/never"] if op == "find" else None


def start(*arguments):
    """A process of ours, and its first events up to the one that carries a connection string."""
    process = subprocess.Popen([QUORATE, *arguments, "--json"], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    for line in process.stdout:
        event = json.loads(line)
        if event.get("uri"):
            return process, event["uri"].split("://")[1].split("/")[0]
    sys.exit(f"{arguments} did not start")


def run(*arguments):
    subprocess.run([QUORATE, *arguments], check=True, stdout=subprocess.DEVNULL)


def situations(folder):
    """Name, what clients dial, and what they do."""
    quick = "serverSelectionTimeoutMS=3000&connectTimeoutMS=3000"
    yield "nothing_listens", f"mongodb://127.0.0.1:34999/?{quick}", "find"
    yield "unknown_name", f"mongodb://db-1.internal.invalid:27017/?{quick}", "find"

    silent = socket.create_server(("127.0.0.1", 0))
    kept = []
    accept = lambda: [kept.append(silent.accept()) for _ in range(10_000)]
    threading.Thread(target=accept, daemon=True).start()
    port = silent.getsockname()[1]
    yield "silent", f"mongodb://127.0.0.1:{port}/?{quick}&socketTimeoutMS=3000", "find"

    up, hosts = start("up", "--port", "0")
    first = hosts.split(",")[0]
    hello = json.loads(version(QUORATE, "run", f"mongodb://{hosts}/?replicaSet=rs0", "{hello: 1}"))
    other = [host for host in hello["hosts"] if host != hello["primary"]]
    yield "wrong_set_name", f"mongodb://{hosts}/?replicaSet=other&{quick}", "find"
    yield "write_to_secondary", f"mongodb://{other[0]}/?directConnection=true&{quick}", "insert"
    yield "tls_against_plain", f"mongodb://{first}/?tls=true&{quick}", "find"
    yield "too_many_acknowledgements", f"mongodb://{hosts}/?replicaSet=rs0&w=5&{quick}", "insert"
    for host in [hello["primary"], other[0]]:
        run("stop", host)
    yield "no_primary", f"mongodb://{other[1]}/?replicaSet=rs0&{quick}", "insert"
    up.terminate()
    up.wait()

    guarded, host = start("serve", "--memory", "--port", "0", "--auth")
    run("run", f"mongodb://{host}/", "{createUser: 'ada', pwd: 'right', roles: ['root']}")
    yield "wrong_password", f"mongodb://ada:wrong@{host}/?{quick}", "find"
    yield "no_login", f"mongodb://{host}/?{quick}", "find"
    guarded.terminate()

    key, certificate = (os.path.join(folder, name) for name in ["key.pem", "cert.pem"])
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30",
                    "-keyout", key, "-out", certificate, "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    encrypted, host = start("serve", "--memory", "--port", "0", "--tls-cert", certificate,
                            "--tls-key", key)
    host = host.split("?")[0]
    yield "plain_against_tls", f"mongodb://{host}/?{quick}", "find"
    yield "unknown_authority", f"mongodb://{host}/?tls=true&{quick}", "find"
    encrypted.terminate()


def main():
    with tempfile.TemporaryDirectory() as folder:
        known = [(name, found[0] if isinstance(found, list) and found else found, command)
                 for name, found, command in clients() if found]
        for situation, uri, operation in situations(folder):
            for name, found, command in known:
                line = command(uri, operation)
                if line is None:
                    continue
                try:
                    ended = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT)
                    text = (ended.stdout.strip() or ended.stderr.strip())
                except subprocess.TimeoutExpired:
                    continue
                # A driver that is older than its language fails before it dials.
                if text and text != "no error" and "NoMethodError" not in text:
                    print(json.dumps({"client": name, "version": found, "situation": situation,
                                      "text": text}, ensure_ascii=False), flush=True)


main()
