//! Looks at a deployment, writes a document, reads it back and removes it, without a single thread.
//!
//! ```text
//! cargo run -p quorate-blocking-client --example blocking -- 'mongodb://127.0.0.1:27017/'
//! ```
//!
//! What is found goes to stdout, what happens on the way to stderr.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::process::ExitCode;

use bson::rawdoc;
use quorate_blocking_client::{
    Client, ClientOptions, DiscoveryEvent, Extent, FindOptions, Namespace, SystemClock,
};
use quorate_connection_string::ConnectionString;

fn main() -> ExitCode {
    let Some(uri) = std::env::args().nth(1) else {
        eprintln!("usage: blocking URI, for example blocking mongodb://127.0.0.1:27017/");
        return ExitCode::from(2);
    };
    match run(&uri) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(uri: &str) -> Result<(), Box<dyn Error>> {
    let string = ConnectionString::parse(uri)?;
    for warning in string.warnings() {
        eprintln!("{warning}");
    }
    let options = ClientOptions::from_connection_string(&string)?;
    let listener = Box::new(|event: &DiscoveryEvent| eprintln!("{event}"));
    let mut client = Client::with(options, Box::new(SystemClock::new()), listener)?;

    client.ping(None)?;
    for server in client.topology().servers().iter() {
        println!("{server}");
    }

    let notes = Namespace::new("quorate_example", "notes")?;
    let ids = client.insert(&notes, [rawdoc! { "text": "written by one thread" }])?;
    let mut this_one = rawdoc! {};
    for id in ids {
        this_one.append(bson::raw::cstr!("_id"), id);
    }
    for note in client.find(&notes, &this_one, &FindOptions::default())? {
        println!("read back: {}", note?.get_str("text")?);
    }
    let deleted = client.delete(&notes, &this_one, Extent::One)?;
    println!("deleted: {deleted}");
    client.close();
    Ok(())
}
