//! The clients: how each is installed and started.

use std::path::{Path, PathBuf};
use std::process::Command;

use quorate_provision::{debian, npm, python};
use tokio::task::spawn_blocking;

use crate::rust_driver;

/// A client from a registry.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Client {
    Pymongo,
    Node,
    Mongosh,
    Rust,
    Libmongoc,
    Mongoose,
}

impl Client {
    /// The compressors that come with it from its registry. Those of the Node driver beyond zlib are
    /// packages of their own, and its zstd is a native part that the registry does not hold.
    pub(crate) fn compressors(self) -> &'static [&'static str] {
        match self {
            Self::Pymongo | Self::Rust | Self::Libmongoc => &["snappy", "zlib", "zstd"],
            Self::Node => &["snappy", "zlib"],
            Self::Mongosh | Self::Mongoose => &["zlib"],
        }
    }

    /// Runs these parts and returns how many checks were made, or what the client said when it
    /// failed.
    pub(crate) async fn run(self, uri: &str, parts: &[&str]) -> Result<u64, String> {
        let (uri, parts) = (uri.to_owned(), parts.join(","));
        if matches!(self, Self::Rust) {
            let running = tokio::spawn(async move { rust_driver::run(&uri, &parts).await });
            return running.await.map_err(|panic| {
                let message = panic.into_panic();
                message.downcast_ref::<String>().cloned().unwrap_or_default()
            });
        }
        let running = spawn_blocking(move || {
            let mut command = self.command();
            command.env("QUORATE_PARTS", parts).arg(uri);
            output(&mut command)
        });
        running.await.unwrap().map(|stdout| checks(&stdout))
    }

    /// Installs it if need be. The command gets the connection string as its last argument and the
    /// parts to run in a variable.
    fn command(self) -> Command {
        match self {
            Self::Pymongo => {
                let mut command = Command::new(python(&["pymongo[snappy,zstd]==4.19.0"]).unwrap());
                command.arg(script("client.py"));
                command
            }
            Self::Node => {
                let modules = npm(&["mongodb@7.8.0", "snappy@7.4.3"]).unwrap();
                let mut command = Command::new("node");
                // They are not beside the script, where they would be looked for.
                command.env("NODE_PATH", modules).arg(script("client.cjs"));
                command
            }
            Self::Mongosh => {
                let modules = npm(&["mongosh@2.12.0"]).unwrap();
                let mut command = Command::new("node");
                command.arg(modules.join("mongosh/bin/mongosh.js"));
                // It keeps settings and logs at home.
                command.env("HOME", env!("CARGO_TARGET_TMPDIR"));
                command.args(["--quiet", "--norc", "--file"]).arg(script("client.mongosh.js"));
                command
            }
            Self::Mongoose => {
                let modules = npm(&["mongoose@9.12.0"]).unwrap();
                let mut command = Command::new("node");
                command.env("NODE_PATH", modules).arg(script("mongoose.cjs"));
                command
            }
            Self::Libmongoc => Command::new(compile("client.c")),
            Self::Rust => unreachable!("it runs in this process"),
        }
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(name)
}

/// Compiles a program against libmongoc. Every test process makes its own, so that none runs a file
/// that another is writing.
fn compile(source: &str) -> PathBuf {
    debian(&["gcc", "libc6-dev", "libmongoc-dev", "pkg-config"]).unwrap();
    let flags = succeed(Command::new("pkg-config").args(["--cflags", "--libs", "libmongoc-1.0"]));
    let name = format!("{source}-{}", std::process::id());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    succeed(compiler.arg(script(source)).args(flags.split_whitespace()));
    program
}

fn succeed(command: &mut Command) -> String {
    output(command).unwrap_or_else(|said| panic!("{said}"))
}

/// Runs it and returns what it wrote to its standard output, or everything if it failed.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(stdout),
        false => Err(format!("{command:?}: {}\n{stdout}{stderr}", output.status)),
    }
}

/// The number in the last line, which reads "checks: 17".
fn checks(stdout: &str) -> u64 {
    let last = stdout.lines().rfind(|line| !line.trim().is_empty());
    last.and_then(|line| line.strip_prefix("checks: ")?.trim().parse().ok()).unwrap_or(0)
}

#[test]
fn only_a_script_that_reached_its_end_counts() {
    assert_eq!(checks("hello\nchecks: 17\n"), 17);
    assert_eq!(checks("checks: 0\n"), 0);
    assert_eq!(checks("checks: 17\nthen it went wrong\n"), 0);
    assert_eq!(checks(""), 0);
}
