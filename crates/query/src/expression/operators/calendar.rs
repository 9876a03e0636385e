//! The proleptic Gregorian calendar and ISO weeks, as plain arithmetic on milliseconds.
//!
//! Knows no time zones: callers shift by the offset first. Covers every date that BSON can hold.

/// Milliseconds in a day.
pub(crate) const DAY: i64 = 86_400_000;

/// A date and time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Civil {
    pub(crate) year: i64,
    /// From 1.
    pub(crate) month: i64,
    /// From 1.
    pub(crate) day: i64,
    pub(crate) hour: i64,
    pub(crate) minute: i64,
    pub(crate) second: i64,
    pub(crate) millis: i64,
}

impl Civil {
    /// The fields of a moment in milliseconds since 1970.
    pub(crate) fn from_millis(millis: i64) -> Self {
        let (days, rest) = (millis.div_euclid(DAY), millis.rem_euclid(DAY));
        let (year, month, day) = date_of(days);
        Self {
            year,
            month,
            day,
            hour: rest / 3_600_000,
            minute: rest / 60_000 % 60,
            second: rest / 1000 % 60,
            millis: rest % 1000,
        }
    }

    /// Days since 1970.
    pub(crate) fn days(&self) -> i64 {
        days_of(self.year, self.month, self.day)
    }

    /// The day of the year, from 1.
    pub(crate) fn day_of_year(&self) -> i64 {
        self.days() - days_of(self.year, 1, 1) + 1
    }

    /// The day of the week: 1 for Monday to 7 for Sunday.
    pub(crate) fn iso_weekday(&self) -> i64 {
        (self.days() + 3).rem_euclid(7) + 1
    }

    /// The ISO year and week: the week belongs to the year that its Thursday lies in.
    pub(crate) fn iso_week(&self) -> (i64, i64) {
        let thursday = self.days() - self.iso_weekday() + 4;
        let (year, _, _) = date_of(thursday);
        (year, (thursday - days_of(year, 1, 1)) / 7 + 1)
    }

    /// The week of the year, 0 to 53; weeks start on Sunday, days before the first one are week 0.
    pub(crate) fn week(&self) -> i64 {
        let weekday = self.iso_weekday() % 7;
        (self.day_of_year() - 1 - weekday + 7) / 7
    }
}

/// Milliseconds since 1970 of a date and time whose fields may lie outside their usual range, so
/// that month 14 is February of the next year. `None` if BSON cannot hold the result.
pub(crate) fn millis_of(
    year: i64,
    month: i64,
    day: i64,
    [hour, minute, second, millis]: [i64; 4],
) -> Option<i64> {
    let months = year.checked_mul(12)?.checked_add(month.checked_sub(1)?)?;
    let (year, month) = (months.div_euclid(12), months.rem_euclid(12) + 1);
    if year.abs() > MAX_YEAR {
        return None;
    }
    days_of(year, month, 1)
        .checked_add(day.checked_sub(1)?)?
        .checked_mul(DAY)?
        .checked_add(hour.checked_mul(3_600_000)?)?
        .checked_add(minute.checked_mul(60_000)?)?
        .checked_add(second.checked_mul(1000)?)?
        .checked_add(millis)
}

/// Past the last year whose milliseconds fit 64 bits.
const MAX_YEAR: i64 = 300_000_000;

/// The number of days in a month.
pub(crate) fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970 of the Monday that ISO week 1 of a year starts with.
pub(crate) fn iso_year_start(year: i64) -> i64 {
    let fourth = days_of(year, 1, 4);
    fourth - (fourth + 3).rem_euclid(7)
}

/// Days since 1970. Years are counted from March, so that the leap day comes last, in cycles of 400
/// years, each of 146 097 days.
pub(crate) fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let cycle = year.div_euclid(400);
    let year_of_cycle = year.rem_euclid(400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_cycle = year_of_cycle * 365 + year_of_cycle / 4 - year_of_cycle / 100 + day_of_year;
    cycle * 146_097 + day_of_cycle - 719_468
}

/// Year, month and day of a day since 1970; the inverse of [`days_of`].
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (cycle, day_of_cycle) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_cycle =
        (day_of_cycle - day_of_cycle / 1460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year =
        day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (cycle * 400 + year_of_cycle + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_moment_reads_back(millis in any::<i64>()) {
            let civil = Civil::from_millis(millis);
            let time = [civil.hour, civil.minute, civil.second, civil.millis];
            // The very first and last day may overflow on the way.
            if millis.unsigned_abs() < i64::MAX as u64 - DAY as u64 {
                prop_assert_eq!(
                    millis_of(civil.year, civil.month, civil.day, time),
                    Some(millis)
                );
            }
            prop_assert!((1..=12).contains(&civil.month));
            prop_assert!((1..=days_in_month(civil.year, civil.month)).contains(&civil.day));
        }
    }

    #[test]
    fn weeks_at_the_turn_of_the_year() {
        let civil =
            |year, month, day| Civil::from_millis(millis_of(year, month, day, [0; 4]).unwrap());
        assert_eq!(civil(2016, 1, 1).iso_week(), (2015, 53));
        assert_eq!(civil(2018, 12, 31).iso_week(), (2019, 1));
        assert_eq!(civil(2017, 1, 1).week(), 1);
        assert_eq!(civil(2016, 1, 1).week(), 0);
        assert_eq!(civil(2024, 12, 31).day_of_year(), 366);
        assert_eq!(civil(1970, 1, 1).iso_weekday(), 4);
        assert_eq!(iso_year_start(2019), days_of(2018, 12, 31));
    }
}
