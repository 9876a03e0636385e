use std::error::Error;

use bson::doc;
use quorate_client::Client;

/// Moves 5 from Ann to Bob.
pub(super) async fn transfer(uri: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let client = Client::with_uri(uri)?;
    let accounts = client.collection("bank", "accounts");
    let mut session = client.start_session();
    // It runs the work again after a conflict or a failover, and repeats a commit whose answer was lost.
    session
        .with_transaction(async |session| {
            let rich = doc! { "_id": "ann", "balance": { "$gte": 5 } };
            let take = doc! { "$inc": { "balance": -5 } };
            if accounts.update_one(rich, take).session(session).await?.modified_count == 0 {
                return Err("ann has less than 5".into());
            }
            let give = doc! { "$inc": { "balance": 5 } };
            accounts.update_one(doc! { "_id": "bob" }, give).session(session).await?;
            Ok(())
        })
        .await
}
