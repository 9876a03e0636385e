//! Times and sizes as people write them on the command line.

use std::time::Duration;

/// A time such as `5s`, `200ms` or `1.5s`.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    let advice = || "give a time such as 5s, 1.5s or 200ms".to_owned();
    let end = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(advice)?;
    let (number, unit) = text.split_at(end);
    let seconds = match unit {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(advice()),
    };
    let number: f64 = number.parse().map_err(|_| advice())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| advice())
}

/// The smallest oplog: less would lose a follower within seconds.
const MIN_OPLOG_BYTES: u64 = 1024 * 1024;

/// The largest oplog.
const MAX_OPLOG_BYTES: u64 = 1 << 50;

/// A size as people write it: 512MB, 2GiB, or a number of megabytes.
pub(crate) fn oplog_size(text: &str) -> Result<u64, String> {
    let advice = || "give a size such as 512MB or 2GB, at least 1MB".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(advice()),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    bytes.filter(|bytes| (MIN_OPLOG_BYTES..=MAX_OPLOG_BYTES).contains(bytes)).ok_or_else(advice)
}

/// How many connections a server takes at once: one at least.
pub(crate) fn connection_limit(text: &str) -> Result<usize, String> {
    let limit = text.parse().ok().filter(|&limit| limit > 0);
    limit.ok_or_else(|| "give a whole number from 1 on".to_owned())
}

/// The name of a replica set.
pub(crate) fn set_name(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("give the set a name, such as rs0".to_owned()),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_the_oplog_have_units_and_bounds() {
        const MIB: u64 = 1 << 20;
        for (text, bytes) in
            [("64", 64 * MIB), ("512MB", 512 * MIB), ("2GB", 2048 * MIB), ("1tib", 1 << 40)]
        {
            assert_eq!(oplog_size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "0", "MB", "5 apples", "-1", "99999999999999999999TB", "2000000TB"] {
            assert!(oplog_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_have_units() {
        for (text, millis) in
            [("5s", 5000), ("200ms", 200), ("1.5s", 1500), ("2m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(span(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "s", "-1s", "5 h", "NaNs", "infs", "1e300s"] {
            assert!(span(text).is_err(), "{text}");
        }
    }
}
