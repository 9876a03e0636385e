//! Prints the error of the `mongodb` crate for a connection string and an operation, for
//! `crates/cli/tests/pasted/collect.py`.

#![expect(clippy::print_stdout, reason = "this is a command-line program")]

use bson::doc;
use mongodb::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(uri), Some(operation)) = (arguments.next(), arguments.next()) else {
        return Err("give a connection string, and insert or find".into());
    };
    match run(&uri, &operation).await {
        Ok(()) => println!("no error"),
        // As `fn main() -> mongodb::error::Result<()>` prints it.
        Err(error) => println!("Error: {error:?}"),
    }
    Ok(())
}

async fn run(uri: &str, operation: &str) -> mongodb::error::Result<()> {
    let client = Client::with_uri_str(uri).await?;
    let orders = client.database("shop").collection::<bson::Document>("orders");
    match operation {
        "insert" => orders.insert_one(doc! { "x": 1 }).await.map(drop),
        _ => orders.find_one(doc! {}).await.map(drop),
    }
}
