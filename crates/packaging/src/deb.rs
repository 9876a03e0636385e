//! A package for Debian and its kin, with a hardened systemd unit and a user of its own.

use crate::Effort;
use crate::files::{Files, gzip};
use crate::program::Program;

const UNIT: &str = include_str!("../../../packages/debian/quorate.service");
const USER: &str = include_str!("../../../packages/debian/quorate.sysusers");
const SETTINGS: &str = include_str!("../../../packages/debian/quorate.toml");
const COPYRIGHT: &str = include_str!("../../../packages/debian/copyright");
const SCRIPTS: [(&str, &str); 3] = [
    ("postinst", include_str!("../../../packages/debian/postinst")),
    ("prerm", include_str!("../../../packages/debian/prerm")),
    ("postrm", include_str!("../../../packages/debian/postrm")),
];
const SETTINGS_PATH: &str = "etc/quorate/quorate.toml";

/// What a program that is not static takes from the system.
const LIBRARIES: &str = "Depends: libc6 (>= 2.34), libgcc-s1\n";

pub(crate) fn name(program: &Program) -> String {
    format!("quorate_{}_{}.deb", program.version, program.machine.names().1)
}

pub(crate) fn make(program: &Program, effort: Effort) -> Vec<u8> {
    let mut files = program.installed();
    files.text("usr/lib/systemd/system/quorate.service", UNIT);
    files.text("usr/lib/sysusers.d/quorate.conf", USER);
    files.text(SETTINGS_PATH, SETTINGS);
    files.text("usr/share/doc/quorate/copyright", COPYRIGHT);
    let changes = include_str!("../../../CHANGELOG.md");
    files.text("usr/share/doc/quorate/changelog.gz", gzip(changes.as_bytes(), effort));
    let mut control = Files::default();
    control.text("control", control_file(program, files.size()));
    control.text("conffiles", format!("/{SETTINGS_PATH}\n"));
    for (script, text) in SCRIPTS {
        control.program(script, text);
    }
    let mut package = b"!<arch>\n".to_vec();
    part(&mut package, "debian-binary", b"2.0\n");
    part(&mut package, "control.tar.gz", &gzip(&control.tar("./"), effort));
    part(&mut package, "data.tar.gz", &gzip(&files.tar("./"), effort));
    package
}

fn control_file(program: &Program, size: usize) -> String {
    let depends = if program.is_static() { "" } else { LIBRARIES };
    format!(
        "Package: quorate\nVersion: {}\nArchitecture: {}\n\
         Maintainer: The Quorate authors <authors@quorate.invalid>\n{depends}Installed-Size: {}\n\
         Section: database\nPriority: optional\n\
         Description: finds, watches, explains and runs replica sets\n \
         Quorate runs MongoDB-compatible replica sets, and helps with those of others. The service is\n \
         installed and not started: systemctl enable --now quorate.\n",
        program.version,
        program.machine.names().1,
        size.div_ceil(1024),
    )
}

/// One file of an `ar` archive.
fn part(package: &mut Vec<u8>, name: &str, bytes: &[u8]) {
    let header = format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 100_644, bytes.len());
    package.extend(header.as_bytes());
    package.extend(bytes);
    if bytes.len() % 2 == 1 {
        package.push(b'\n');
    }
}
