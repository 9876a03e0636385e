//! Completions and manual pages, from the same definitions as `--help`.

use clap::CommandFactory;

use crate::arguments::{Arguments, CompletionsArguments, ManArguments};
use crate::screen::{Failure, Outcome, Screen};

/// `quorate completions SHELL`.
pub(crate) fn completions(
    arguments: &CompletionsArguments,
    screen: &mut Screen,
) -> Result<Outcome, Failure> {
    let mut script = Vec::new();
    let mut command = Arguments::command();
    clap_complete::generate(arguments.shell, &mut command, "quorate", &mut script);
    screen.raw(&script)?;
    Ok(Outcome::Fine)
}

/// `quorate man [COMMAND]`.
pub(crate) fn page(arguments: &ManArguments, screen: &mut Screen) -> Result<Outcome, Failure> {
    let mut root = Arguments::command();
    root.build();
    let command = match arguments.command.as_deref() {
        None => root,
        Some(name) => match root.find_subcommand(name) {
            Some(command) => command.clone().display_name(format!("quorate-{name}")),
            None => return Err(Failure::Misuse(no_such_page(name, &root))),
        },
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    screen.raw(&page)?;
    Ok(Outcome::Fine)
}

fn no_such_page(name: &str, root: &clap::Command) -> String {
    let all = root.get_subcommands().map(clap::Command::get_name);
    let names: Vec<_> = all.filter(|name| *name != "help").collect();
    format!("there is no command {name:?}; choose one of {}", names.join(", "))
}
