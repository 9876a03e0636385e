//! The program that is packed, and what it says of itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{Files, gzip};
use crate::{Effort, PackageError};

/// Where the type of the machine is in the header of an ELF file.
const ELF_MACHINE: usize = 18;

/// A program with its completions and manual pages.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    pub(crate) version: String,
    pub(crate) machine: Machine,
    pub(crate) bytes: Vec<u8>,
    /// By shell.
    completions: Vec<(&'static str, Vec<u8>)>,
    /// By name, as in `quorate-up`.
    manuals: Vec<(String, Vec<u8>)>,
}

/// What it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    X86,
    Arm,
}

impl Machine {
    fn of(bytes: &[u8]) -> Option<Self> {
        let machine = bytes.get(ELF_MACHINE..ELF_MACHINE + 2)?;
        match (bytes.starts_with(b"\x7fELF\x02\x01"), machine) {
            (true, [0x3e, 0]) => Some(Self::X86),
            (true, [0xb7, 0]) => Some(Self::Arm),
            _ => None,
        }
    }

    /// As compilers, Debian and containers call it.
    pub(crate) fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::X86 => ("x86_64", "amd64", "amd64"),
            Self::Arm => ("aarch64", "arm64", "arm64"),
        }
    }
}

impl Program {
    /// Asks a program for everything that is packed with it. Fails if it does not run here.
    pub fn examine(path: &Path) -> Result<Self, PackageError> {
        let bytes = std::fs::read(path)
            .map_err(|source| PackageError::File { path: path.to_owned(), source })?;
        let machine = Machine::of(&bytes).ok_or_else(|| PackageError::Foreign(path.to_owned()))?;
        let version = String::from_utf8_lossy(&ask(path, &["--version"])?).trim().to_owned();
        let version = version.rsplit(' ').next().unwrap_or_default().to_owned();
        let mut completions = Vec::new();
        for shell in ["bash", "zsh", "fish"] {
            completions.push((shell, ask(path, &["completions", shell])?));
        }
        let mut manuals = vec![("quorate".to_owned(), ask(path, &["man"])?)];
        for command in commands(&String::from_utf8_lossy(&manuals[0].1)) {
            let page = ask(path, &["man", &command])?;
            manuals.push((format!("quorate-{command}"), page));
        }
        Ok(Self { path: path.to_owned(), version, machine, bytes, completions, manuals })
    }

    /// Whether it needs no library of the system.
    pub fn is_static(&self) -> bool {
        self.libraries().is_empty()
    }

    /// The libraries that it needs, its loader too.
    pub(crate) fn libraries(&self) -> Vec<PathBuf> {
        let Ok(output) = Command::new("ldd").arg(&self.path).output() else { return Vec::new() };
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let paths = told.split_whitespace().filter(|word| word.starts_with('/'));
        paths.map(|path| PathBuf::from(path.trim_end_matches(':'))).collect()
    }

    /// The program, its completions and manual pages, where Linux looks for them below `/usr`.
    pub(crate) fn installed(&self) -> Files {
        let mut files = Files::default();
        files.program("usr/bin/quorate", self.bytes.clone());
        for (shell, script) in &self.completions {
            let path = match *shell {
                "bash" => "usr/share/bash-completion/completions/quorate",
                "zsh" => "usr/share/zsh/vendor-completions/_quorate",
                _ => "usr/share/fish/vendor_completions.d/quorate.fish",
            };
            files.text(path, script.clone());
        }
        for (name, page) in &self.manuals {
            files.text(&format!("usr/share/man/man1/{name}.1.gz"), gzip(page, Effort::Best));
        }
        files
    }
}

fn ask(program: &Path, arguments: &[&str]) -> Result<Vec<u8>, PackageError> {
    let failed = |reason: String| PackageError::Program {
        program: program.display().to_string(),
        arguments: arguments.join(" "),
        reason,
    };
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// The commands that the manual page of the program lists, as `quorate\-up(1)`.
fn commands(manual: &str) -> Vec<String> {
    let listed = manual.lines().filter_map(|line| {
        let name = line.strip_prefix("quorate\\-")?.strip_suffix("(1)")?;
        Some(name.replace("\\-", "-"))
    });
    listed.filter(|name| name != "help").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_read_from_the_manual() {
        let manual =
            ".TP\nquorate\\-up(1)\nRun\n.TP\nquorate\\-what\\-if(1)\n.TP\nquorate\\-help(1)\n";
        assert_eq!(commands(manual), ["up", "what-if"]);
    }

    #[test]
    fn machines_are_told_by_the_header() {
        let mut elf = b"\x7fELF\x02\x01".to_vec();
        elf.resize(64, 0);
        assert_eq!(Machine::of(&elf), None);
        elf[ELF_MACHINE] = 0xb7;
        assert_eq!(Machine::of(&elf), Some(Machine::Arm));
        assert_eq!(Machine::of(b"#!/bin/sh"), None);
    }
}
