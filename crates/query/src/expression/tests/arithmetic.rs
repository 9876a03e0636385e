//! Numbers: promotion, rounding, refusal.

use bson::{Bson, bson};

use super::{check, date, decimal, evaluate, refuse};

const LONG: i64 = 1 << 40;

#[test]
fn sums_and_products_widen_instead_of_overflowing() {
    check(vec![
        (bson!({ "$add": [1, 2] }), bson!(3)),
        (bson!({ "$add": [] }), bson!(0)),
        (bson!({ "$add": [i32::MAX, 1] }), bson!(2_147_483_648_i64)),
        (bson!({ "$add": [i64::MAX, 1] }), bson!(9_223_372_036_854_775_808.0)),
        (bson!({ "$add": [1, 0.5] }), bson!(1.5)),
        (bson!({ "$add": [1, decimal("0.10")] }), decimal("1.10")),
        (bson!({ "$subtract": [5, 7] }), bson!(-2)),
        (bson!({ "$subtract": [i32::MIN, 1] }), bson!(-2_147_483_649_i64)),
        (bson!({ "$multiply": [65536, 65536] }), bson!(4_294_967_296_i64)),
        (bson!({ "$multiply": [LONG, LONG] }), bson!((LONG as f64) * (LONG as f64))),
        (bson!({ "$multiply": [] }), bson!(1)),
        (bson!({ "$multiply": [2, "$nothing"] }), Bson::Null),
        (bson!({ "$add": ["$absent", "x"] }), Bson::Null),
    ]);
    refuse(vec![
        (bson!({ "$add": [1, "x"] }), 16554),
        (bson!({ "$multiply": ["x"] }), 16555),
        (bson!({ "$subtract": [1, "x"] }), 14),
        (bson!({ "$subtract": [1] }), 16020),
    ]);
}

#[test]
fn dates_take_part_in_sums_and_differences() {
    check(vec![
        (bson!({ "$add": [date(5), 2] }), date(7)),
        (bson!({ "$add": [1.6, date(5)] }), date(7)),
        (bson!({ "$subtract": [date(9), date(4)] }), bson!(5_i64)),
        (bson!({ "$subtract": [date(9), 4] }), date(5)),
    ]);
    refuse(vec![
        (bson!({ "$add": [date(1), date(2)] }), 16612),
        (bson!({ "$subtract": [4, date(9)] }), 14),
        (bson!({ "$add": [date(i64::MAX), 1] }), 15),
        (bson!({ "$subtract": [date(1), i64::MIN] }), 15),
    ]);
}

#[test]
fn division_is_never_by_zero() {
    check(vec![
        (bson!({ "$divide": [7, 2] }), bson!(3.5)),
        (bson!({ "$divide": [decimal("1"), 4] }), decimal("0.25")),
        (bson!({ "$mod": [7, 3] }), bson!(1)),
        (bson!({ "$mod": [-7, 3] }), bson!(-1)),
        (bson!({ "$mod": [7.5, 2] }), bson!(1.5)),
        (bson!({ "$mod": [i64::MIN, -1] }), bson!(0_i64)),
        (bson!({ "$divide": ["$absent", 0] }), Bson::Null),
    ]);
    refuse(vec![
        (bson!({ "$divide": [1, 0] }), 2),
        (bson!({ "$divide": [1, decimal("0")] }), 2),
        (bson!({ "$divide": ["a", 1] }), 14),
        (bson!({ "$mod": [1, 0] }), 16610),
        (bson!({ "$mod": [1.5, 0.0] }), 16610),
        (bson!({ "$mod": ["a", 1] }), 16611),
    ]);
}

#[test]
fn rounding_goes_by_the_exact_value_and_ties_to_even() {
    check(vec![
        (bson!({ "$round": [2.5] }), bson!(2.0)),
        (bson!({ "$round": 3.5 }), bson!(4.0)),
        (bson!({ "$round": [2.675, 2] }), bson!(2.67)),
        (bson!({ "$round": [1234, -2] }), bson!(1200)),
        (bson!({ "$round": [1250, -2] }), bson!(1200)),
        (bson!({ "$round": [1350, -2] }), bson!(1400)),
        (bson!({ "$round": [i32::MAX, -1] }), bson!(2_147_483_650_i64)),
        (bson!({ "$round": [1234.5, -2] }), bson!(1200.0)),
        (bson!({ "$round": [decimal("1.25"), 1] }), decimal("1.2")),
        (bson!({ "$trunc": [-1.79, 1] }), bson!(-1.7)),
        (bson!({ "$trunc": [199, -2] }), bson!(100)),
        (bson!({ "$ceil": 1.2 }), bson!(2.0)),
        (bson!({ "$floor": -1.2 }), bson!(-2.0)),
        (bson!({ "$floor": decimal("1.9") }), decimal("1")),
        (bson!({ "$ceil": 7 }), bson!(7)),
        (bson!({ "$abs": -3 }), bson!(3)),
        (bson!({ "$abs": i32::MIN }), bson!(2_147_483_648_i64)),
    ]);
    refuse(vec![
        (bson!({ "$abs": i64::MIN }), 28680),
        (bson!({ "$abs": "x" }), 28765),
        (bson!({ "$round": ["x"] }), 51081),
        (bson!({ "$round": [1.5, 0.5] }), 51082),
        (bson!({ "$round": [1.5, 101] }), 51083),
        (bson!({ "$trunc": [1, 2, 3] }), 28667),
        (bson!({ "$round": [i64::MAX, -19] }), 51080),
    ]);
}

#[test]
fn powers_roots_and_logarithms() {
    check(vec![
        (bson!({ "$pow": [2, 10] }), bson!(1024)),
        (bson!({ "$pow": [2, 40] }), bson!(1_i64 << 40)),
        (bson!({ "$pow": [2, 70] }), bson!(2_f64.powi(70))),
        (bson!({ "$pow": [2, -1] }), bson!(0.5)),
        (bson!({ "$pow": [-1, -3] }), bson!(-1)),
        (bson!({ "$pow": [decimal("1.1"), 2] }), decimal("1.21")),
        (bson!({ "$pow": [decimal("2"), i64::MIN] }), decimal("0")),
        (bson!({ "$sqrt": 16 }), bson!(4.0)),
        (bson!({ "$sqrt": decimal("4") }), decimal("2")),
        (bson!({ "$exp": 0 }), bson!(1.0)),
        (bson!({ "$ln": 1 }), bson!(0.0)),
        (bson!({ "$log": [8, 2] }), bson!(3.0)),
        (bson!({ "$log10": 1000 }), bson!(3.0)),
    ]);
    refuse(vec![
        (bson!({ "$pow": [0, -1] }), 28764),
        (bson!({ "$pow": ["x", 1] }), 28762),
        (bson!({ "$pow": [1, "x"] }), 28763),
        (bson!({ "$sqrt": -1 }), 28714),
        (bson!({ "$ln": 0 }), 28766),
        (bson!({ "$log10": -1 }), 28761),
        (bson!({ "$log": [8, 1] }), 28759),
        (bson!({ "$log": [-8, 2] }), 28758),
        (bson!({ "$log": ["x", 2] }), 28756),
    ]);
}

#[test]
fn trigonometry_knows_its_domain() {
    check(vec![
        (bson!({ "$sin": 0 }), bson!(0.0)),
        (bson!({ "$cos": 0 }), bson!(1.0)),
        (bson!({ "$atan2": [0, 1] }), bson!(0.0)),
        (bson!({ "$degreesToRadians": 180 }), bson!(std::f64::consts::PI)),
        (bson!({ "$radiansToDegrees": std::f64::consts::PI }), bson!(180.0)),
        (bson!({ "$acosh": 1 }), bson!(0.0)),
        (bson!({ "$sin": "$nothing" }), Bson::Null),
    ]);
    refuse(vec![
        (bson!({ "$acos": 2 }), 50989),
        (bson!({ "$sin": f64::INFINITY }), 50989),
        (bson!({ "$tan": "x" }), 28765),
    ]);
}

#[test]
fn bits_of_ints_and_longs() {
    check(vec![
        (bson!({ "$bitAnd": [12, 10] }), bson!(8)),
        (bson!({ "$bitAnd": [] }), bson!(-1)),
        (bson!({ "$bitOr": [12, 3_i64] }), bson!(15_i64)),
        (bson!({ "$bitXor": [12, 10] }), bson!(6)),
        (bson!({ "$bitNot": 0 }), bson!(-1)),
    ]);
    refuse(vec![(bson!({ "$bitOr": [1.5] }), 14)]);
}

#[test]
fn accumulators_over_arguments_and_arrays() {
    check(vec![
        (bson!({ "$sum": [1, 2, "x"] }), bson!(3)),
        (bson!({ "$sum": "$list" }), bson!(6)),
        (bson!({ "$sum": ["$list", 1] }), bson!(1)),
        (bson!({ "$sum": "$absent" }), bson!(0)),
        (bson!({ "$sum": [0.1, 0.2, 0.3, -0.3, -0.2, -0.1] }), bson!(0.0)),
        (bson!({ "$sum": [i64::MAX, 1] }), bson!(9_223_372_036_854_775_808.0)),
        (bson!({ "$sum": [decimal("0.1"), 1] }), decimal("1.1")),
        (bson!({ "$avg": "$list" }), bson!(2.0)),
        (bson!({ "$avg": "$absent" }), Bson::Null),
        (bson!({ "$avg": [decimal("1"), 2] }), decimal("1.5")),
        (bson!({ "$min": "$list" }), bson!(1)),
        (bson!({ "$max": ["$list", 9, Bson::Null] }), bson!([3, 1, 2])),
        (bson!({ "$max": [Bson::Null] }), Bson::Null),
        (bson!({ "$stdDevPop": [1, 3] }), bson!(1.0)),
        (bson!({ "$stdDevSamp": [1] }), Bson::Null),
        (bson!({ "$stdDevSamp": [1, 2, 3] }), bson!(1.0)),
        (bson!({ "$median": { "input": "$list", "method": "approximate" } }), bson!(2.0)),
        (bson!({ "$median": { "input": ["x"], "method": "approximate" } }), Bson::Null),
        (
            bson!({ "$percentile": { "input": [1, 2, 3, 4, "x"], "p": [0, 0.5, 0.9, 1], "method": "approximate" } }),
            bson!([1.0, 2.0, 4.0, 4.0]),
        ),
        (bson!({ "$firstN": { "n": 2, "input": "$list" } }), bson!([3, 1])),
        (bson!({ "$lastN": { "n": 2, "input": "$list" } }), bson!([1, 2])),
        (bson!({ "$maxN": { "n": 2, "input": "$list" } }), bson!([3, 2])),
        (bson!({ "$minN": { "n": 9, "input": "$list" } }), bson!([1, 2, 3])),
    ]);
    refuse(vec![
        (bson!({ "$median": { "input": "$list", "method": "exact" } }), 2),
        (
            bson!({ "$percentile": { "input": "$list", "p": [2], "method": "approximate" } }),
            7750300,
        ),
        (bson!({ "$firstN": { "n": 0, "input": "$list" } }), 5787908),
        (bson!({ "$firstN": { "n": 1, "input": 5 } }), 5788200),
    ]);
}

#[test]
fn random_numbers_come_from_the_seed() {
    let first = evaluate(bson!({ "$rand": {} }));
    assert_eq!(first, evaluate(bson!({ "$rand": {} })));
    let pair = evaluate(bson!([{ "$rand": {} }, { "$rand": {} }]));
    let pair = pair.as_array().unwrap();
    assert_ne!(pair[0], pair[1]);
    assert!((0.0..1.0).contains(&first.as_f64().unwrap()));
    refuse(vec![(bson!({ "$rand": 1 }), 3040501)]);
}
