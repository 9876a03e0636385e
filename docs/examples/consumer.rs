use std::error::Error;
use std::fs;
use std::path::Path;

use bson::Document;
use quorate_client::Client;

/// Tells of every change, also of those that were made while it did not run.
pub(super) async fn follow(
    uri: &str,
    place: &Path,
    mut tell: impl FnMut(&Document),
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let orders = Client::with_uri(uri)?.collection("shop", "orders");
    let mut watch = orders.watch([] as [Document; 0]);
    if let Ok(token) = fs::read(place) {
        watch = watch.resume_after(Document::from_reader(&token[..])?);
    }
    let mut stream = watch.await?;
    while let Some(event) = stream.next().await? {
        let event = Document::try_from(event)?;
        tell(&event);
        // Stored after the work: what is interrupted in between is seen again, and nothing is missed.
        let new = place.with_extension("new");
        fs::write(&new, bson::serialize_to_vec(event.get_document("_id")?)?)?;
        fs::rename(new, place)?;
    }
    Ok(())
}
