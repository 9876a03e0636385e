//! `$setWindowFields`: partitions, windows, ranks, gaps.

use bson::{Bson, Document, bson, doc};

use super::{refuse, run, run_within};

fn days() -> Vec<Document> {
    [("a", 1, 10), ("b", 1, 100), ("a", 3, 30), ("a", 2, 20), ("a", 3, 5)]
        .map(|(k, t, v)| doc! { "k": k, "t": t, "v": v })
        .to_vec()
}

/// The values of a field for partition `a`, in the order they come out.
fn column(output: Bson) -> Vec<Bson> {
    let stages = bson!([
        { "$setWindowFields": { "partitionBy": "$k", "sortBy": { "t": 1 }, "output": { "x": output } } },
        { "$match": { "k": "a" } },
    ]);
    run(stages, days()).iter().map(|document| document.get("x").unwrap().clone()).collect()
}

#[test]
fn windows_by_position() {
    let sum =
        |low: Bson, high: Bson| bson!({ "$sum": "$v", "window": { "documents": [low, high] } });
    assert_eq!(column(bson!({ "$sum": "$v" })), [65, 65, 65, 65].map(Bson::from));
    assert_eq!(column(sum(bson!("unbounded"), bson!("current"))), [10, 30, 60, 65].map(Bson::from));
    assert_eq!(column(sum(bson!(-1), bson!(0))), [10, 30, 50, 35].map(Bson::from));
    assert_eq!(column(sum(bson!(1), bson!("unbounded"))), [55, 35, 5, 0].map(Bson::from));
    assert_eq!(column(sum(bson!(5), bson!(9))), [0, 0, 0, 0].map(Bson::from));
    assert_eq!(
        column(bson!({ "$push": "$v", "window": { "documents": [-1, 1] } })),
        [bson!([10, 20]), bson!([10, 20, 30]), bson!([20, 30, 5]), bson!([30, 5])]
    );
}

#[test]
fn windows_by_value() {
    let sum = |low: Bson, high: Bson| bson!({ "$sum": "$v", "window": { "range": [low, high] } });
    assert_eq!(column(sum(bson!(-1), bson!(0))), [10, 30, 55, 55].map(Bson::from));
    assert_eq!(column(sum(bson!("current"), bson!("unbounded"))), [65, 55, 35, 35].map(Bson::from));
    let dates =
        [0, 1, 3].map(|day| doc! { "t": bson::DateTime::from_millis(day * 86_400_000), "v": 1 });
    let stages = bson!([{ "$setWindowFields": { "sortBy": { "t": 1 }, "output": {
        "x": { "$sum": "$v", "window": { "range": [-1, 0], "unit": "day" } },
    } } }]);
    let found: Vec<_> =
        run(stages, dates.to_vec()).iter().map(|d| d.get_i32("x").unwrap()).collect();
    assert_eq!(found, [1, 2, 1]);
}

#[test]
fn ranks_shifts_and_gaps() {
    assert_eq!(column(bson!({ "$rank": {} })), [1, 2, 3, 3].map(Bson::from));
    assert_eq!(column(bson!({ "$denseRank": {} })), [1, 2, 3, 3].map(Bson::from));
    assert_eq!(column(bson!({ "$documentNumber": {} })), [1, 2, 3, 4].map(Bson::from));
    assert_eq!(
        column(bson!({ "$shift": { "output": "$v", "by": -1, "default": "none" } })),
        [bson!("none"), bson!(10), bson!(20), bson!(30)]
    );
    assert_eq!(
        column(bson!({ "$expMovingAvg": { "input": "$v", "alpha": 0.5 } })),
        [10.0, 15.0, 22.5, 13.75].map(Bson::from)
    );
    let gaps = [(0, Some(1)), (1, None), (2, None), (3, Some(4)), (4, None)]
        .map(|(t, v)| doc! { "t": t, "v": v })
        .to_vec();
    let stages = bson!([{ "$setWindowFields": { "sortBy": { "t": 1 }, "output": {
        "last": { "$locf": "$v" }, "line": { "$linearFill": "$v" },
    } } }]);
    let found: Vec<_> = run(stages, gaps)
        .iter()
        .map(|d| (d.get("last").unwrap().clone(), d.get("line").unwrap().clone()))
        .collect();
    assert_eq!(
        found,
        [
            (bson!(1), bson!(1)),
            (bson!(1), bson!(2.0)),
            (bson!(1), bson!(3.0)),
            (bson!(4), bson!(4)),
            (bson!(4), Bson::Null),
        ]
    );
}

#[test]
fn fill_by_value_and_by_method() {
    let gaps = || {
        [("a", 0, Some(1)), ("a", 1, None), ("b", 1, None), ("a", 2, Some(3)), ("b", 2, Some(9))]
            .map(|(k, t, v)| doc! { "k": k, "t": t, "v": v, "w": v })
            .to_vec()
    };
    let stages = bson!([
        { "$fill": { "partitionByFields": ["k"], "sortBy": { "t": 1 }, "output": {
            "v": { "method": "linear" }, "w": { "method": "locf" }, "x": { "value": "$k" }, "k": { "value": 1 },
        } } },
    ]);
    assert_eq!(
        run(stages, gaps()),
        vec![
            doc! { "k": "a", "t": 0, "v": 1, "w": 1, "x": "a" },
            doc! { "k": "a", "t": 1, "v": 2.0, "w": 1, "x": "a" },
            doc! { "k": "a", "t": 2, "v": 3, "w": 3, "x": "a" },
            doc! { "k": "b", "t": 1, "v": Bson::Null, "w": Bson::Null, "x": "b" },
            doc! { "k": "b", "t": 2, "v": 9, "w": 9, "x": "b" },
        ]
    );
    assert_eq!(
        run(
            bson!([{ "$fill": { "output": { "v": { "value": 0 } } } }]),
            vec![doc! { "v": Bson::Null }]
        ),
        vec![doc! { "v": 0 }]
    );
    refuse(vec![
        (bson!({ "$fill": 1 }), 9),
        (bson!({ "$fill": { "output": {} } }), 40414),
        (bson!({ "$fill": { "output": { "a": { "method": "magic" } } } }), 6050202),
        (bson!({ "$fill": { "output": { "a": { "method": "locf" } } } }), 6050203),
        (bson!({ "$fill": { "output": { "a": { "value": 1 } }, "z": 1 } }), 40415),
    ]);
}

#[test]
fn what_windows_refuse() {
    let stage = |sort: Bson, output: Bson| bson!({ "$setWindowFields": { "sortBy": sort, "output": { "x": output } } });
    let by = || bson!({ "a": 1 });
    refuse(vec![
        (bson!({ "$setWindowFields": 1 }), 9),
        (bson!({ "$setWindowFields": {} }), 40414),
        (bson!({ "$setWindowFields": { "output": {}, "z": 1 } }), 40415),
        (bson!({ "$setWindowFields": { "output": { "x": { "$rank": {} } } } }), 5371602),
        (stage(by(), bson!({ "$rank": 1 })), 5371603),
        (stage(by(), bson!({ "$rank": {}, "window": {} })), 5371601),
        (bson!({ "$setWindowFields": { "output": 1 } }), 14),
        (
            bson!({ "$setWindowFields": { "output": { "a.b": { "$sum": 1 }, "a": { "$sum": 1 } } } }),
            6307900,
        ),
        (stage(by(), bson!({ "$nonsense": 1 })), 9),
        (stage(by(), bson!({ "sum": 1, "window": { "documents": [0, 1] } })), 9),
        (stage(by(), bson!({ "$sum": 1, "window": { "range": ["current", -1] } })), 5339900),
        (stage(by(), bson!({ "$sum": 1, "window": { "range": [1, "current"] } })), 5339900),
        (stage(by(), bson!({ "$sum": 1, "window": { "documents": [1, 0] } })), 5339900),
        (stage(by(), bson!({ "$sum": 1, "window": { "documents": [1] } })), 9),
        (stage(by(), bson!({ "$sum": 1, "window": { "range": [0, 1], "unit": "eon" } })), 9),
        (stage(bson!({ "a": -1 }), bson!({ "$sum": 1, "window": { "range": [0, 1] } })), 5339902),
        (
            stage(
                bson!({ "list": 1 }),
                bson!({ "$sum": 1, "window": { "range": [0, 1], "unit": "day" } }),
            ),
            5429513,
        ),
        (stage(by(), bson!({ "$shift": { "output": 1 } })), 9),
        (stage(by(), bson!({ "$expMovingAvg": { "input": 1, "alpha": 2 } })), 9),
    ]);
    let wide = (0..100).map(|n| doc! { "n": n, "pad": "x".repeat(100) }).collect();
    let stages = bson!([{ "$setWindowFields": { "output": { "x": { "$push": "$pad" } } } }]);
    assert_eq!(run_within(stages, wide, 50_000).unwrap_err().code().0, 292);
}

/// The manual's trucks: miles at moments, and the speed and the power between them.
#[test]
fn derivatives_and_integrals_follow_the_sort_key() {
    let points = || {
        [(0, 0.0), (10, 20.0), (20, 60.0), (40, 60.0)]
            .map(|(t, v)| doc! { "t": t, "v": v })
            .to_vec()
    };
    let of = |documents: Vec<Document>, output: Bson| -> Vec<Bson> {
        let stages =
            bson!([{ "$setWindowFields": { "sortBy": { "t": 1 }, "output": { "x": output } } }]);
        run(stages, documents).iter().map(|it| it.get("x").unwrap().clone()).collect()
    };
    let window = bson!({ "documents": [-1, 0] });
    let slope = bson!({ "$derivative": { "input": "$v" }, "window": window.clone() });
    assert_eq!(of(points(), slope), [Bson::Null, 2.0.into(), 4.0.into(), 0.0.into()]);
    let area = bson!({ "$integral": { "input": "$v" }, "window": { "documents": ["unbounded", "current"] } });
    assert_eq!(of(points(), area), [bson!(0), bson!(100.0), bson!(500.0), bson!(1700.0)]);
    assert_eq!(of(points(), bson!({ "$integral": { "input": "$v" } }))[0], bson!(1700.0));
    let hours = |documents: Vec<Document>| -> Vec<Document> {
        let at = |it: &Document| {
            bson::DateTime::from_millis(i64::from(it.get_i32("t").unwrap()) * 360_000)
        };
        documents.iter().map(|it| doc! { "t": at(it), "v": it.get_f64("v").unwrap() }).collect()
    };
    let speed =
        bson!({ "$derivative": { "input": "$v", "unit": "hour" }, "window": window.clone() });
    assert_eq!(
        of(hours(points()), speed.clone()),
        [Bson::Null, 20.0.into(), 40.0.into(), 0.0.into()]
    );
    let beyond = bson!({ "$integral": { "input": "$v" }, "window": { "documents": [7, 9] } });
    assert_eq!(of(points(), beyond), [Bson::Null, Bson::Null, Bson::Null, Bson::Null]);
    let refused = |documents: Vec<Document>, output: Bson| {
        let stages =
            bson!([{ "$setWindowFields": { "sortBy": { "t": 1 }, "output": { "x": output } } }]);
        super::try_run(stages, documents).unwrap_err().code().0
    };
    assert_eq!(refused(points(), speed), 5624900);
    assert_eq!(refused(hours(points()), bson!({ "$integral": { "input": "$v" } })), 5624901);
    assert_eq!(refused(points(), bson!({ "$derivative": { "input": "$v" } })), 9);
    let month = bson!({ "$derivative": { "input": "$v", "unit": "month" }, "window": window });
    assert_eq!(refused(hours(points()), month), 5490704);
}

#[test]
fn covariances_pass_over_what_is_no_number() {
    let pairs = [(1, Some(2.0)), (2, Some(4.0)), (3, None), (4, Some(9.0))];
    let documents = pairs.map(|(t, v)| doc! { "t": t, "v": v }).to_vec();
    let of = |name: &str| -> Vec<Bson> {
        let stages = bson!([{ "$setWindowFields": { "sortBy": { "t": 1 }, "output": {
            "x": { name: ["$t", "$v"], "window": { "documents": ["unbounded", "current"] } },
        } } }]);
        run(stages, documents.clone()).iter().map(|it| it.get("x").unwrap().clone()).collect()
    };
    let population = of("$covariancePop");
    assert_eq!(population[..2], [0.0.into(), 0.5.into()]);
    assert_eq!(population[2], population[1]);
    let whole = population[3].as_f64().unwrap();
    assert!((whole - 11.0 / 3.0).abs() < 1e-12, "{whole}");
    assert_eq!(of("$covarianceSamp")[..2], [Bson::Null, 1.0.into()]);
}
