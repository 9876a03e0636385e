//! Any two values: the order of their index keys is the order of the values, from either form, and
//! measuring them agrees with writing them.
#![no_main]

use std::cmp::Ordering;

use bson::{Bson, doc};
use libfuzzer_sys::fuzz_target;
use quorate_fuzz::Choices;
use quorate_query::value::{GroupKey, compare, measure};
use quorate_storage::key::value_key;

fuzz_target!(|bytes: &[u8]| {
    let mut choices = Choices::new(bytes);
    let (one, other) = (choices.stored(), choices.stored());
    for document in [&one, &other] {
        let written = document.to_vec().expect("names hold no zero byte");
        assert_eq!(measure(document).bytes, written.len(), "{document}");
    }
    let values = [one, other]
        .map(|document| document.into_iter().next().map_or(Bson::Null, |(_, value)| value));
    let [one, other] = &values;
    let order = compare(one, other);
    assert_eq!(compare(other, one), order.reverse(), "{one:?} and {other:?}");
    assert_eq!(compare(one, one), Ordering::Equal, "{one:?}");
    if let (Ok(first), Ok(second)) = (value_key(one), value_key(other)) {
        assert_eq!(first.cmp(&second), order, "keys of {one:?} and {other:?}");
    }
    let same = GroupKey::of(one) == GroupKey::of(other);
    assert_eq!(
        same,
        order == Ordering::Equal,
        "groups of {:?}",
        doc! {"one": one.clone(), "other": other.clone()}
    );
});
