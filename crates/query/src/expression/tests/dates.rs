//! Dates: parts, text, arithmetic, time zones.

use bson::{Bson, bson};

use super::{check, date, refuse};

/// 2017-06-19T15:13:25.713Z, a Monday.
const MOMENT: i64 = 1_497_885_205_713;

#[test]
fn parts_in_utc_and_elsewhere() {
    let moment = date(MOMENT);
    check(vec![
        (bson!({ "$year": moment.clone() }), bson!(2017)),
        (bson!({ "$month": moment.clone() }), bson!(6)),
        (bson!({ "$dayOfMonth": moment.clone() }), bson!(19)),
        (bson!({ "$hour": moment.clone() }), bson!(15)),
        (bson!({ "$minute": moment.clone() }), bson!(13)),
        (bson!({ "$second": moment.clone() }), bson!(25)),
        (bson!({ "$millisecond": moment.clone() }), bson!(713)),
        (bson!({ "$dayOfWeek": moment.clone() }), bson!(2)),
        (bson!({ "$dayOfYear": moment.clone() }), bson!(170)),
        (bson!({ "$week": moment.clone() }), bson!(25)),
        (bson!({ "$isoWeek": moment.clone() }), bson!(25)),
        (bson!({ "$isoWeekYear": moment.clone() }), bson!(2017_i64)),
        (bson!({ "$isoDayOfWeek": moment.clone() }), bson!(1)),
        (bson!({ "$hour": { "date": moment.clone(), "timezone": "+0530" } }), bson!(20)),
        (bson!({ "$hour": { "date": moment.clone(), "timezone": "America/New_York" } }), bson!(11)),
        (bson!({ "$hour": [moment.clone()] }), bson!(15)),
        (bson!({ "$year": "$absent" }), Bson::Null),
        (bson!({ "$year": { "date": moment.clone(), "timezone": "$nothing" } }), Bson::Null),
        (bson!({ "$tsSecond": bson::Timestamp { time: 7, increment: 2 } }), bson!(7_i64)),
    ]);
    refuse(vec![
        (bson!({ "$year": "x" }), 16006),
        (bson!({ "$year": { "date": moment.clone(), "timezone": "Nowhere" } }), 40485),
        (bson!({ "$year": { "date": moment.clone(), "timezone": 5 } }), 40517),
        (bson!({ "$year": { "date": moment, "zone": 5 } }), 40535),
        (bson!({ "$year": { "timezone": "UTC" } }), 40539),
    ]);
}

#[test]
fn text_from_dates() {
    let moment = date(MOMENT);
    check(vec![
        (bson!({ "$dateToString": { "date": moment.clone() } }), bson!("2017-06-19T15:13:25.713Z")),
        (
            bson!({ "$dateToString": { "date": moment.clone(), "format": "%Y/%m/%d %H:%M:%S:%L %j %u %w %U %V %G %z %Z %b %B %%" } }),
            bson!("2017/06/19 15:13:25:713 170 1 2 25 25 2017 +0000 0 Jun June %"),
        ),
        (
            bson!({ "$dateToString": { "date": moment.clone(), "format": "%H:%M%z %Z", "timezone": "-03:30" } }),
            bson!("11:43-0330 -210"),
        ),
        (bson!({ "$dateToString": { "date": "$nothing", "onNull": "none" } }), bson!("none")),
        (bson!({ "$dateToString": { "date": "$nothing" } }), Bson::Null),
    ]);
    refuse(vec![
        (bson!({ "$dateToString": { "date": moment.clone(), "format": "%" } }), 18535),
        (bson!({ "$dateToString": { "date": moment.clone(), "format": "%n" } }), 18536),
        (bson!({ "$dateToString": { "date": date(i64::MAX / 2), "format": "%Y" } }), 18537),
        (bson!({ "$dateToString": { "date": moment, "format": 5 } }), 18533),
        (bson!({ "$dateToString": { "format": "%Y" } }), 18628),
    ]);
}

#[test]
fn dates_from_text() {
    let read = |text: &str| bson!({ "$dateFromString": { "dateString": text } });
    let read_as = |text: &str, format: &str| bson!({ "$dateFromString": { "dateString": text, "format": format } });
    check(vec![
        (read("2017-06-19T15:13:25.713Z"), date(MOMENT)),
        (read("2017-06-19 15:13:25.713"), date(MOMENT)),
        (read("2017-06-19T17:13:25.713+02:00"), date(MOMENT)),
        (read("2017-06-19T11:13:25.713 America/New_York"), date(MOMENT)),
        (read("2017-06-19"), date(1_497_830_400_000)),
        (read("20170619"), date(1_497_830_400_000)),
        (read("2017/06/19"), date(1_497_830_400_000)),
        (read("06/19/2017"), date(1_497_830_400_000)),
        (read("June 19, 2017"), date(1_497_830_400_000)),
        (read("19 Jun 2017 00:00Z"), date(1_497_830_400_000)),
        (read_as("19.06.2017", "%d.%m.%Y"), date(1_497_830_400_000)),
        (read_as("2017-25-1", "%G-%V-%u"), date(1_497_830_400_000)),
        (read_as("2017 170", "%Y %j"), date(1_497_830_400_000)),
        (read_as("2017-06-19 02:00 +0200", "%Y-%m-%d %H:%M %z"), date(1_497_830_400_000)),
        (
            bson!({ "$dateFromString": { "dateString": "2017-06-19T00:00", "timezone": "+01" } }),
            date(1_497_826_800_000),
        ),
        (bson!({ "$dateFromString": { "dateString": "$nothing", "onNull": 1 } }), bson!(1)),
        (bson!({ "$dateFromString": { "dateString": "junk", "onError": 2 } }), bson!(2)),
    ]);
    refuse(vec![
        (read("junk"), 241),
        (read("2017-02-30"), 241),
        (read("2017-02-03T25:00"), 241),
        (read("2017-02-03T05:00 trailing junk"), 241),
        (read_as("2017", "%Y-%m"), 241),
        (read_as("2017-01", "%Y-%q"), 18536),
        (bson!({ "$dateFromString": { "dateString": "2017-06-19Z", "timezone": "+01" } }), 241),
        (bson!({ "$dateFromString": { "dateString": 5 } }), 241),
    ]);
}

#[test]
fn dates_from_and_to_parts() {
    check(vec![
        (
            bson!({ "$dateFromParts": { "year": 2017, "month": 6, "day": 19, "hour": 15, "minute": 13, "second": 25, "millisecond": 713 } }),
            date(MOMENT),
        ),
        (bson!({ "$dateFromParts": { "year": 2017, "month": 14 } }), date(1_517_443_200_000)),
        (
            bson!({ "$dateFromParts": { "year": 2017, "month": 1, "day": 0 } }),
            date(1_483_142_400_000),
        ),
        (
            bson!({ "$dateFromParts": { "isoWeekYear": 2017, "isoWeek": 25, "isoDayOfWeek": 1 } }),
            date(1_497_830_400_000),
        ),
        (
            bson!({ "$dateFromParts": { "year": 2017, "timezone": "Europe/Berlin" } }),
            date(1_483_225_200_000),
        ),
        (bson!({ "$dateFromParts": { "year": "$nothing" } }), Bson::Null),
        (
            bson!({ "$dateToParts": { "date": date(MOMENT) } }),
            bson!({ "year": 2017, "month": 6, "day": 19, "hour": 15, "minute": 13, "second": 25, "millisecond": 713 }),
        ),
        (
            bson!({ "$dateToParts": { "date": date(MOMENT), "iso8601": true } }),
            bson!({ "isoWeekYear": 2017, "isoWeek": 25, "isoDayOfWeek": 1, "hour": 15, "minute": 13, "second": 25, "millisecond": 713 }),
        ),
    ]);
    refuse(vec![
        (bson!({ "$dateFromParts": { "year": "x" } }), 40515),
        (bson!({ "$dateFromParts": { "year": 10000 } }), 40523),
        (bson!({ "$dateFromParts": { "month": 1 } }), 40516),
        (bson!({ "$dateFromParts": { "isoWeekYear": 2017, "month": 1 } }), 40489),
        (bson!({ "$dateFromParts": { "year": 2017, "month": 99999 } }), 31034),
        (bson!({ "$dateToParts": { "date": date(0), "iso8601": 1 } }), 40521),
    ]);
}

#[test]
fn moving_dates() {
    let add = |start: i64, unit: &str, amount: i64| bson!({ "$dateAdd": { "startDate": date(start), "unit": unit, "amount": amount } });
    // 2020-01-31 and 2020-02-29.
    let (january, february) = (1_580_428_800_000, 1_582_934_400_000);
    check(vec![
        (add(january, "month", 1), date(february)),
        (add(february, "year", 1), date(1_614_470_400_000)),
        (add(0, "day", 1), date(86_400_000)),
        (add(0, "week", -1), date(-604_800_000)),
        (add(0, "quarter", 1), date(7_776_000_000)),
        (add(0, "millisecond", 5), date(5)),
        (
            bson!({ "$dateSubtract": { "startDate": date(5), "unit": "second", "amount": 1 } }),
            date(-995),
        ),
        // A day later at the same time on the clock, over the change to summer time.
        (
            bson!({ "$dateAdd": { "startDate": date(1_616_886_000_000_i64 - 86_400_000), "unit": "day", "amount": 1, "timezone": "Europe/Berlin" } }),
            date(1_616_886_000_000),
        ),
    ]);
    refuse(vec![
        (add(0, "fortnight", 1), 9),
        (add(i64::MAX, "day", 1), 15),
        (add(0, "year", i64::MAX), 15),
        (bson!({ "$dateAdd": { "startDate": date(0), "unit": "day", "amount": 1.5 } }), 5166405),
        (bson!({ "$dateAdd": { "startDate": date(0), "unit": "day" } }), 5166402),
    ]);
}

#[test]
fn differences_count_boundaries() {
    let diff = |start: i64, end: i64, unit: &str| bson!({ "$dateDiff": { "startDate": date(start), "endDate": date(end), "unit": unit } });
    check(vec![
        (diff(-1, 0, "year"), bson!(1_i64)),
        (diff(0, -1, "day"), bson!(-1_i64)),
        (diff(0, MOMENT, "month"), bson!(569_i64)),
        (diff(0, MOMENT, "quarter"), bson!(189_i64)),
        (diff(0, 7_200_000, "hour"), bson!(2_i64)),
        (diff(0, 59_999, "minute"), bson!(0_i64)),
        (diff(0, 59_999, "millisecond"), bson!(59_999_i64)),
        // Thursday to Sunday crosses into a new week only if weeks start on Sunday.
        (diff(0, 3 * 86_400_000, "week"), bson!(1_i64)),
        (
            bson!({ "$dateDiff": { "startDate": date(0), "endDate": date(3 * 86_400_000), "unit": "week", "startOfWeek": "Monday" } }),
            bson!(0_i64),
        ),
    ]);
    refuse(vec![
        (diff(i64::MIN, i64::MAX, "millisecond"), 15),
        (
            bson!({ "$dateDiff": { "startDate": date(0), "endDate": date(0), "unit": "week", "startOfWeek": "x" } }),
            9,
        ),
    ]);
}

#[test]
fn truncating_dates() {
    let trunc = |unit: &str, bin: i64| bson!({ "$dateTrunc": { "date": date(MOMENT), "unit": unit, "binSize": bin } });
    check(vec![
        (trunc("year", 1), date(1_483_228_800_000)),
        (trunc("quarter", 1), date(1_491_004_800_000)),
        (trunc("month", 1), date(1_496_275_200_000)),
        (trunc("month", 6), date(1_483_228_800_000)),
        (trunc("week", 1), date(1_497_744_000_000)),
        (trunc("day", 1), date(1_497_830_400_000)),
        (trunc("hour", 1), date(1_497_884_400_000)),
        (trunc("hour", 12), date(1_497_873_600_000)),
        (trunc("second", 1), date(1_497_885_205_000)),
        (
            bson!({ "$dateTrunc": { "date": date(MOMENT), "unit": "week", "startOfWeek": "mon" } }),
            date(1_497_830_400_000),
        ),
        (
            bson!({ "$dateTrunc": { "date": date(MOMENT), "unit": "day", "timezone": "+02:00" } }),
            date(1_497_823_200_000),
        ),
        (bson!({ "$dateTrunc": { "date": "$nothing", "unit": "day" } }), Bson::Null),
    ]);
    refuse(vec![
        (trunc("day", 0), 5439018),
        (bson!({ "$dateTrunc": { "date": date(0), "unit": "day", "binSize": 1.5 } }), 5439017),
    ]);
}
