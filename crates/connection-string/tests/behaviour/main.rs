//! What the published files leave out: redaction, warnings in detail, forbidden combinations,
//! credentials, DNS answers, bounds, and what holds for every text.

mod combinations;
mod credentials;
mod dns;
mod options;
mod redaction;
mod round_trip;
mod syntax;

use quorate_connection_string::{ConnectionString, ParseError, Warning};

fn parse(text: &str) -> ConnectionString {
    ConnectionString::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> ParseError {
    match ConnectionString::parse(text) {
        Ok(connection) => panic!("{text} was accepted as {connection}"),
        Err(error) => error,
    }
}

/// The warnings about `mongodb://host/?` and these options.
fn warnings(options: &str) -> Vec<Warning> {
    parse(&format!("mongodb://host/?{options}")).warnings().to_vec()
}
