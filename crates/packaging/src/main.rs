//! `quorate-packaging PROGRAM DIRECTORY`: makes the packages of a program. `cargo xtask package` builds
//! the program and runs this.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a command-line program")]

use std::path::Path;
use std::process::ExitCode;

use quorate_packaging::{Effort, Program, make_all};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [program, directory] = arguments.as_slice() else {
        eprintln!("usage: quorate-packaging PROGRAM DIRECTORY; cargo xtask package runs it");
        return ExitCode::from(2);
    };
    let made = Program::examine(Path::new(program)).and_then(|program| {
        if !program.is_static() {
            eprintln!("warning: the program is not static; the packages fit systems like this one");
        }
        make_all(&program, Path::new(directory), Effort::Best)
    });
    match made {
        Ok(paths) => {
            for path in paths {
                println!("{}", path.display());
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
