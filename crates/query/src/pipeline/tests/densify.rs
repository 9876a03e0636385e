//! `$densify`: missing numbers and dates.

use bson::{Bson, DateTime, Document, bson, doc};

use super::{run, try_run};

#[track_caller]
fn refuse(stages: Bson, documents: Vec<Document>, code: i32) {
    match try_run(stages.clone(), documents) {
        Err(error) => assert_eq!(error.code().0, code, "{stages}: {error}"),
        Ok(documents) => {
            panic!("{stages} gave {} documents instead of error {code}", documents.len())
        }
    }
}

fn stage(range: Bson) -> Bson {
    bson!([{ "$densify": { "field": "t", "range": range } }])
}

fn times(stages: Bson, documents: Vec<Document>) -> Vec<Bson> {
    run(stages, documents).iter().map(|it| it.get("t").cloned().unwrap_or(Bson::Null)).collect()
}

fn at(times: &[i32]) -> Vec<Document> {
    times.iter().map(|t| doc! { "t": *t, "v": 1 }).collect()
}

/// The manual's coffee beans, from altitude 600 to 1000 by 200.
#[test]
fn a_row_goes_from_the_least_to_the_greatest() {
    let full = stage(bson!({ "step": 200, "bounds": "full" }));
    assert_eq!(times(full.clone(), at(&[1000, 600])), [600, 800, 1000].map(Bson::from));
    // Values beside the row stay, and the row goes on from where it began.
    assert_eq!(
        times(full.clone(), at(&[600, 750, 1100])),
        [600, 750, 800, 1000, 1100].map(Bson::from)
    );
    let made = run(full.clone(), at(&[600, 1000]));
    assert_eq!(made[1], doc! { "t": 800 }, "it has nothing but its place");
    assert!(times(full, Vec::new()).is_empty());
}

#[test]
fn a_row_between_bounds_ends_before_the_upper_one() {
    let between = |low: Bson, high: Bson| stage(bson!({ "step": 2, "bounds": [low, high] }));
    assert_eq!(times(between(bson!(0), bson!(6)), at(&[2, 9])), [0, 2, 4, 9].map(Bson::from));
    assert_eq!(times(between(bson!(0), bson!(3)), at(&[-5])), [-5, 0, 2].map(Bson::from));
    assert_eq!(times(between(bson!(0), bson!(3)), Vec::new()), [0, 2].map(Bson::from));
    let halves = stage(bson!({ "step": 0.5, "bounds": [0, 2] }));
    assert_eq!(times(halves, at(&[1])), [bson!(0.0), bson!(0.5), bson!(1), bson!(1.5)]);
}

#[test]
fn each_partition_has_its_own_row() {
    let documents = || {
        [("a", 1), ("a", 3), ("b", 5), ("b", 6)]
            .map(|(k, t)| doc! { "k": { "n": k }, "t": t })
            .to_vec()
    };
    let found = |bounds: &str| -> Vec<(String, i32)> {
        let stages = bson!([{ "$densify": {
            "field": "t", "partitionByFields": ["k.n"], "range": { "step": 1, "bounds": bounds },
        } }]);
        let name = |it: &Document| it.get_document("k").unwrap().get_str("n").unwrap().to_owned();
        run(stages, documents()).iter().map(|it| (name(it), it.get_i32("t").unwrap())).collect()
    };
    let of = |pairs: &[(&str, i32)]| -> Vec<(String, i32)> {
        pairs.iter().map(|(name, t)| ((*name).to_owned(), *t)).collect()
    };
    assert_eq!(found("partition"), of(&[("a", 1), ("a", 2), ("a", 3), ("b", 5), ("b", 6)]));
    let every = (1..=6).map(|t| ("a".to_owned(), t)).chain((1..=6).map(|t| ("b".to_owned(), t)));
    assert_eq!(found("full"), every.collect::<Vec<_>>());
}

#[test]
fn dates_go_by_units_and_other_values_are_refused() {
    let date = |day: i64| Bson::DateTime(DateTime::from_millis(day * 86_400_000));
    let days = stage(bson!({ "step": 1, "unit": "day", "bounds": "full" }));
    let documents = || vec![doc! { "t": date(0) }, doc! { "t": date(3) }];
    assert_eq!(times(days.clone(), documents()), [0, 1, 2, 3].map(date));
    // 31 January 1970, and the last days of the months after it.
    let months = stage(bson!({ "step": 1, "unit": "month", "bounds": [date(30), date(119)] }));
    assert_eq!(times(months, Vec::new()), [30, 58, 89].map(date));
    // Null and missing are no places.
    let gaps =
        vec![doc! { "t": Bson::Null }, doc! {}, doc! { "t": date(0) }, doc! { "t": date(1) }];
    assert_eq!(times(days.clone(), gaps), [Bson::Null, Bson::Null, date(0), date(1)]);
    refuse(days.clone(), vec![doc! { "t": 1 }], 6053600);
    refuse(days, vec![doc! { "t": "x" }], 5733201);
    refuse(stage(bson!({ "step": 1, "bounds": "full" })), documents(), 6053600);
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let date = || Bson::DateTime(bson::DateTime::from_millis(0));
    let wrong: [(Bson, i32); 12] = [
        (bson!({ "step": 0, "bounds": "full" }), 5733401),
        (bson!({ "step": "x", "bounds": "full" }), 14),
        (bson!({ "step": 1, "unit": "day", "bounds": [1, 2] }), 5733409),
        (bson!({ "step": 1, "bounds": [1, date()] }), 5733406),
        (bson!({ "step": 1, "unit": "day", "bounds": [date(), 1] }), 5733402),
        (bson!({ "step": 1, "bounds": "partition" }), 5733408),
        (bson!({ "step": 1, "bounds": "all" }), 5946802),
        (bson!({ "step": 1, "bounds": [1] }), 5733403),
        (bson!({ "step": 1, "bounds": [2, 1] }), 5733402),
        (bson!({ "step": 1.5, "unit": "day", "bounds": "full" }), 6586400),
        (bson!({ "bounds": "full" }), 40414),
        (bson!({ "step": 1, "bounds": "full", "more": 1 }), 40415),
    ];
    for (range, code) in wrong {
        refuse(stage(range), at(&[1]), code);
    }
    // A step that changes nothing ends too.
    let huge = vec![doc! { "t": 1e300 }, doc! { "t": 2e300 }];
    refuse(stage(bson!({ "step": 1, "bounds": "full" })), huge, 5897900);
}
