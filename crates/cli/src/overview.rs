//! What `quorate` without arguments says.

use clap::CommandFactory;

use crate::arguments::Arguments;
use crate::screen::{Failure, Outcome, QUIET, STRONG, Screen};

/// One line to type for each command worth meeting first, and what it does.
const EXAMPLES: &[(&str, &str)] = &[
    ("quorate doctor 'mongodb://HOST'", "what is wrong with a deployment, and what to type"),
    ("quorate doctor --error 'TEXT'", "what a driver's error message means, and what to type"),
    ("quorate watch URI", "its members and every change, as it happens"),
    ("quorate run URI '{ping: 1}'", "one command, on the server that suits it"),
    ("quorate serve --memory", "a document database to talk to"),
    ("quorate replay FILE", "what a client saw, again, step by step"),
];

/// Prints what works, each with a line to type.
pub(crate) fn run(screen: &mut Screen) -> Result<Outcome, Failure> {
    let about = Arguments::command().get_about().map(ToString::to_string).unwrap_or_default();
    screen.line(format_args!("{STRONG}quorate{STRONG:#}: {about}"))?;
    screen.line("")?;
    let width = EXAMPLES.iter().map(|(example, _)| example.len()).max().unwrap_or(0);
    for (example, meaning) in EXAMPLES {
        screen.line(format_args!("  {example:width$}   {QUIET}{meaning}{QUIET:#}"))?;
    }
    screen.line("")?;
    screen.line("All commands: quorate --help. Examples of one: quorate COMMAND --help.")?;
    Ok(Outcome::Fine)
}
