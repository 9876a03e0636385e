//! Completions and manual pages, from the same definitions as `--help`.

use clap::Args;

use crate::arguments::Arguments;
use crate::screen::{Failure, Outcome, Result, Screen};

/// `quorate completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  quorate completions bash > ~/.local/share/bash-completion/completions/quorate
  quorate completions zsh > ~/.zfunc/_quorate
  quorate completions fish > ~/.config/fish/completions/quorate.fish")]
pub(crate) struct CompletionsArguments {
    /// The shell.
    #[arg(value_name = "SHELL")]
    pub(crate) shell: clap_complete::Shell,
}

/// `quorate man`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  quorate man > /usr/local/share/man/man1/quorate.1
  quorate man replay | man -l -")]
pub(crate) struct ManArguments {
    /// The command to print the page of; without it, the page of quorate itself.
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Option<String>,
}

/// `quorate completions SHELL`.
pub(crate) fn completions(
    arguments: &CompletionsArguments,
    screen: &mut Screen,
) -> Result<Outcome> {
    let mut script = Vec::new();
    let mut command = Arguments::definitions();
    clap_complete::generate(arguments.shell, &mut command, "quorate", &mut script);
    screen.raw(&script)?;
    Ok(Outcome::Fine)
}

/// `quorate man [COMMAND]`.
pub(crate) fn page(arguments: &ManArguments, screen: &mut Screen) -> Result<Outcome> {
    let mut root = Arguments::definitions();
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
