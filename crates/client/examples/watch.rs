//! Prints what a client hears about a deployment until it is interrupted:
//! `cargo run -p quorate-client --example watch -- mongodb://localhost:27017`

use quorate_client::{Client, ClientEvent};

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "it is what the example is for")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let uri = std::env::args().nth(1).unwrap_or_else(|| "mongodb://localhost:27017".to_owned());
    let client = Client::connect(&uri).await?;
    let mut events = client.events();
    println!("{}", client.topology());
    loop {
        match events.recv().await? {
            ClientEvent::Discovery(event) => println!("{event}"),
            ClientEvent::Pool(event) => println!("{}: {}", event.address, event.kind.message()),
            ClientEvent::Command(event) => println!("{}: {}", event.address, event.command_name),
            _ => {}
        }
    }
}
