//! `quorate`: finds, watches, explains and runs MongoDB-compatible replica sets.
//!
//! The program shows and never decides: what a client believes comes from
//! `quorate-server-discovery`, bytes from `quorate-wire`, sockets from `quorate-client`. This crate
//! owns the command line, the words and the exit codes.
//!
//! Data goes to stdout and talk to stderr. Exit codes: 0 fine, 1 a problem was found, 2 misuse.

#[macro_use]
mod screen;
#[macro_use]
mod finding;

mod arguments;
mod backup;
mod clock;
mod connect;
mod dashboard;
mod doctor;
mod down;
mod drill;
mod dump;
mod explain;
mod export;
mod exporter;
mod import;
mod list;
mod manual;
mod metrics;
mod pasted;
mod progress;
mod prove;
mod quantities;
mod recording;
mod remedy;
mod replay;
mod restore;
mod run;
mod serve;
mod shell;
mod signals;
mod status;
mod tail;
mod task;
mod token;
mod topology_view;
mod transfer;
mod up;
mod view;
mod watch;
mod web;
mod what_if;
mod whole_file;
mod words;

use std::process::ExitCode;

use crate::arguments::{Arguments, Command, UpArguments};
use crate::screen::{Outcome, Result, Screen};
use crate::up::Then;

#[global_allocator]
static ALLOCATOR: quorate_server::Allocator = quorate_server::Allocator;

fn main() -> ExitCode {
    // A usage error ends here with code 2, `--help` and `--version` with code 0.
    let (arguments, json) = Arguments::read();
    let mut screen = Screen::of_process(json);
    let result = dispatch(&arguments, &mut screen);
    screen.conclude(result)
}

fn dispatch(arguments: &Arguments, screen: &mut Screen) -> Result<Outcome> {
    match &arguments.command {
        None => up::run(&UpArguments::default(), Then::Show, screen),
        Some(Command::Up(arguments)) => up::run(arguments, Then::Wait, screen),
        Some(Command::Down(arguments)) => down::run(arguments, screen),
        Some(Command::List(_)) => list::run(screen),
        Some(Command::Start(arguments)) => list::start(arguments, screen),
        Some(Command::Stop(arguments)) => list::stop(arguments, screen),
        Some(Command::Restart(arguments)) => list::restart(arguments, screen),
        Some(Command::Drill(arguments)) => drill::run(arguments, screen),
        Some(Command::Prove(arguments)) => prove::run(arguments, screen),
        Some(Command::Switchover(arguments)) => drill::switch_over(arguments, screen),
        Some(Command::Status(arguments)) => status::run(arguments, screen),
        Some(Command::WhatIf(arguments)) => what_if::run(arguments, screen),
        Some(Command::Doctor(doctor)) => doctor::run(doctor, screen),
        Some(Command::Watch(arguments)) => watch::run(arguments, screen),
        Some(Command::Replay(replay)) => replay::run(replay, screen),
        Some(Command::Run(arguments)) => run::run(arguments, screen),
        Some(Command::Shell(arguments)) => shell::run(arguments, screen),
        Some(Command::Tail(arguments)) => tail::run(arguments, screen),
        Some(Command::Token(arguments)) => token::run(arguments, screen),
        Some(Command::Backup(arguments)) => backup::run(arguments, screen),
        Some(Command::Dump(arguments)) => dump::run(arguments, screen),
        Some(Command::Restore(arguments)) => restore::run(arguments, screen),
        Some(Command::Export(arguments)) => export::run(arguments, screen),
        Some(Command::Import(arguments)) => import::run(arguments, screen),
        Some(Command::Serve(arguments)) => serve::run(arguments, screen),
        Some(Command::Completions(completions)) => manual::completions(completions, screen),
        Some(Command::Man(man)) => manual::page(man, screen),
    }
}
