//! Any query, projection and sort over any document: an answer or an error, the same whether the
//! document is read or still in bytes, and the opposite under `$nor`, unless chance has a part in it.
#![no_main]

use bson::{RawDocumentBuf, doc};
use libfuzzer_sys::fuzz_target;
use quorate_fuzz::{Choices, words};
use quorate_query::expression::{Compiler, Variables};
use quorate_query::{Matcher, Projection, SortPattern};

fuzz_target!(|bytes: &[u8]| {
    let mut choices = Choices::new(bytes);
    let document = choices.stored();
    let query = choices.spoken(&[words::QUERY, words::SCHEMA, words::EXPRESSIONS]);
    let raw = RawDocumentBuf::try_from(&document).expect("names hold no zero byte");
    let compiler = Compiler::new(Variables::new(1));
    if let Ok(matcher) = Matcher::parse_with(&query, &compiler) {
        let answer = matcher.matches(&document);
        assert_eq!(answer.is_ok(), matcher.matches(&*raw).is_ok());
        let text = query.to_string();
        let is_certain = !["$sampleRate", "$rand"].iter().any(|word| text.contains(word));
        if let Some(answer) = answer.ok().filter(|_| is_certain) {
            assert_eq!(matcher.matches(&*raw).ok(), Some(answer), "bytes differ: {query}");
            let opposite = Matcher::parse_with(&doc! {"$nor": [query.clone()]}, &compiler);
            if let Some(opposite) = opposite.ok().and_then(|not| not.matches(&document).ok()) {
                assert_ne!(opposite, answer, "$nor of {query} on {document}");
            }
        }
        let projection = choices.spoken(&[words::QUERY, words::EXPRESSIONS]);
        if let Ok(projection) = Projection::parse_find_with(&projection, &matcher, &compiler) {
            let _ = projection.apply(&document, None);
        }
    }
    if let Ok(sort) = SortPattern::parse(&choices.spoken(&[])) {
        let (one, other) = (sort.key(&document), sort.key(&*raw));
        if let (Ok(one), Ok(other)) = (one, other) {
            assert!(sort.compare(&one, &other).is_eq());
        }
    }
});
