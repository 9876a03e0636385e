//! Any update of any document: a new version or an error; and what the oplog says of the change
//! leads from the old version to the new one, however often it is applied.
#![no_main]

use bson::{Bson, DateTime, Document, Timestamp};
use libfuzzer_sys::fuzz_target;
use quorate_fuzz::{Choices, words};
use quorate_query::diff::{OplogUpdate, apply_oplog_update, oplog_update};
use quorate_query::expression::{Compiler, Variables};
use quorate_query::update::Change;
use quorate_query::value::identical;
use quorate_query::{Matcher, Update, UpdateContext};

fuzz_target!(|bytes: &[u8]| {
    let mut choices = Choices::new(bytes);
    let mut before = choices.stored();
    before.entry("_id".to_owned()).or_insert(Bson::Int32(1));
    let update = match choices.byte() % 4 {
        0 => Bson::Array(choices.list(&[words::STAGES, words::EXPRESSIONS, words::ARGUMENTS])),
        1 => Bson::Document(choices.stored()),
        _ => Bson::Document(choices.spoken(&[words::UPDATE, words::QUERY])),
    };
    let filters: Vec<Document> = match choices.byte() % 2 {
        0 => Vec::new(),
        _ => vec![Document::from_iter([(
            "x".to_owned(),
            Bson::from(choices.spoken(&[words::QUERY])),
        )])],
    };
    let compiler = Compiler::new(Variables::new(1).with_now(DateTime::from_millis(0)));
    let Ok(update) = Update::parse_with(&update, &filters, &compiler) else { return };
    let context = UpdateContext::new(DateTime::from_millis(0), Timestamp { time: 1, increment: 1 })
        .with_array_index((choices.byte() % 3).checked_sub(1).map(usize::from));
    if let Ok(Some(Change { after, told_as })) = update.change(&before, &context) {
        let OplogUpdate::Entry(entry) = oplog_update(&before, &after, &told_as) else {
            panic!("a change without an entry: {before} became {after}");
        };
        let once = apply_oplog_update(&before, &entry).expect("we wrote the entry");
        assert!(same(&once, &after), "{entry} made {before} into {once}, not {after}");
        let twice = apply_oplog_update(&once, &entry).expect("we wrote the entry");
        assert!(same(&twice, &after), "{entry} a second time made {once} into {twice}");
    }
    let query = choices.spoken(&[words::QUERY]);
    if let Ok(query) = Matcher::parse_with(&query, &compiler) {
        let _ = update.upsert_document(&query, &context);
    }
});

fn same(one: &Document, other: &Document) -> bool {
    identical(&Bson::Document(one.clone()), &Bson::Document(other.clone()))
}
