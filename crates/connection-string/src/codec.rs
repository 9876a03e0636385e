//! How each kind of option value is read and written.
//!
//! Reading follows "Values" in the specification "Connection String" and the accepted values in
//! "URI Options". A codec answers an unacceptable text with the words for what it expected; the
//! caller turns that into a warning and leaves the option unset.

use std::collections::BTreeMap;
use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use quorate_protocol::{ReadPreferenceMode, ServerMonitoringMode, TagSet};

use crate::credential::MechanismProperties;
use crate::error::Warning;
use crate::options::{Compressor, Limit, WriteAcknowledgement};
use crate::secret::Secret;

/// The longest application name that servers accept, in bytes ("MongoDB Handshake").
pub const MAX_APP_NAME_LENGTH: usize = 128;

/// The longest SRV service name: a DNS label of 63 bytes without its underscore.
const MAX_SERVICE_NAME_LENGTH: usize = 62;

/// The shortest staleness bound that means anything ("Max Staleness").
const SMALLEST_MAX_STALENESS_SECONDS: i64 = 90;

/// What would have been accepted instead.
pub(crate) type Expected = &'static str;

/// Where a codec puts warnings about a value that it accepts all the same.
pub(crate) struct Notes<'a> {
    pub(crate) option: &'static str,
    pub(crate) warnings: &'a mut Vec<Warning>,
}

/// Text to value and back. `write` is the inverse of `read`.
pub(crate) struct Codec<T> {
    pub(crate) read: fn(&str, &mut Notes<'_>) -> Result<T, Expected>,
    pub(crate) write: fn(&T) -> String,
}

/// `true` or `false`, and the deprecated spellings of both.
pub(crate) const BOOLEAN: Codec<bool> = Codec {
    read: |text, notes| {
        let meaning = match text {
            "true" => return Ok(true),
            "false" => return Ok(false),
            "1" | "yes" | "y" | "t" => true,
            "0" | "-1" | "no" | "n" | "f" => false,
            _ => return Err("true or false"),
        };
        notes.warnings.push(Warning::DeprecatedBoolean {
            option: notes.option,
            value: text.to_owned(),
            meaning,
        });
        Ok(meaning)
    },
    write: bool::to_string,
};

/// Any text but the empty one.
pub(crate) const TEXT: Codec<String> =
    Codec { read: |text, _| not_empty(text), write: String::clone };

/// Any text but the empty one, kept from logs.
pub(crate) const SECRET: Codec<Secret> = Codec {
    read: |text, _| not_empty(text).map(Secret::new),
    write: |value| value.expose().to_owned(),
};

/// The name an application gives itself.
pub(crate) const APP_NAME: Codec<String> = Codec {
    read: |text, _| match text.len() {
        1..=MAX_APP_NAME_LENGTH => Ok(text.to_owned()),
        _ => Err("1 to 128 bytes of text"),
    },
    write: String::clone,
};

/// A service name of RFC 6335, section 5.1, except that it may be longer than 15 characters.
pub(crate) const SERVICE_NAME: Codec<String> = Codec {
    read: |text, _| {
        let valid = (1..=MAX_SERVICE_NAME_LENGTH).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && text.bytes().any(|byte| byte.is_ascii_alphabetic())
            && !text.starts_with('-')
            && !text.ends_with('-')
            && !text.contains("--");
        let expected = "an SRV service name: letters, digits and single hyphens between them";
        valid.then(|| text.to_owned()).ok_or(expected)
    },
    write: String::clone,
};

/// A 32-bit integer that is not negative.
pub(crate) const COUNT: Codec<u32> = Codec {
    read: |text, _| count(text).ok_or("an integer that is not negative"),
    write: u32::to_string,
};

/// A 32-bit integer above zero.
pub(crate) const POSITIVE_COUNT: Codec<NonZeroU32> = Codec {
    read: |text, _| count(text).and_then(NonZeroU32::new).ok_or("an integer above zero"),
    write: NonZeroU32::to_string,
};

/// A 32-bit integer that is not negative; zero switches the bound off.
pub(crate) const COUNT_LIMIT: Codec<Limit<NonZeroU32>> = Codec {
    read: |text, notes| {
        let count = (COUNT.read)(text, notes)?;
        Ok(NonZeroU32::new(count).map_or(Limit::Unlimited, Limit::AtMost))
    },
    write: |value| value.bound().map_or(0, NonZeroU32::get).to_string(),
};

pub(crate) const PORT: Codec<NonZeroU16> = Codec {
    read: |text, _| {
        let port = integer_32(text).and_then(|value| u16::try_from(value).ok());
        port.and_then(NonZeroU16::new).ok_or("a port from 1 to 65535")
    },
    write: NonZeroU16::to_string,
};

/// A 32-bit number of milliseconds, at least `MIN`.
pub(crate) const fn milliseconds<const MIN: u64>() -> Codec<Duration> {
    Codec {
        read: |text, _| {
            let millis = integer_32(text).and_then(|value| u64::try_from(value).ok());
            millis.filter(|value| *value >= MIN).map(Duration::from_millis).ok_or(match MIN {
                0 => "a number of milliseconds that is not negative",
                500 => "a number of milliseconds, at least 500",
                _ => "a number of milliseconds above zero",
            })
        },
        write: |value| value.as_millis().to_string(),
    }
}

/// The range of most options.
pub(crate) const BITS_32: i64 = i32::MAX as i64;
/// The range of those that the specification calls 64-bit.
pub(crate) const BITS_64: i64 = i64::MAX;

/// A number of milliseconds that is not negative, at most `MAX`; zero switches the bound off.
pub(crate) const fn milliseconds_limit<const MAX: i64>() -> Codec<Limit<Duration>> {
    Codec {
        read: |text, _| match integer(text).filter(|value| *value <= MAX).map(u64::try_from) {
            Some(Ok(0)) => Ok(Limit::Unlimited),
            Some(Ok(millis)) => Ok(Limit::AtMost(Duration::from_millis(millis))),
            _ => Err("a number of milliseconds that is not negative; 0 means no limit"),
        },
        write: |value| value.bound().map_or(0, |bound| bound.as_millis()).to_string(),
    }
}

/// `maxStalenessSeconds`.
pub(crate) const STALENESS: Codec<Limit<Duration>> = Codec {
    read: |text, _| match integer_32(text) {
        Some(-1) => Ok(Limit::Unlimited),
        Some(seconds) if seconds >= SMALLEST_MAX_STALENESS_SECONDS => {
            Ok(Limit::AtMost(Duration::from_secs(seconds.unsigned_abs())))
        }
        _ => Err("-1 for no limit, or at least 90 seconds"),
    },
    write: |value| {
        value.bound().map_or_else(|| "-1".to_owned(), |bound| bound.as_secs().to_string())
    },
};

/// `zlibCompressionLevel`.
pub(crate) const ZLIB_LEVEL: Codec<i8> = Codec {
    read: |text, _| {
        let level = integer_32(text).filter(|level| (-1..=9).contains(level));
        level.and_then(|level| i8::try_from(level).ok()).ok_or("a level from -1 to 9")
    },
    write: i8::to_string,
};

/// `compressors`. Unknown ones are left out one by one, not all together.
pub(crate) const COMPRESSORS: Codec<Vec<Compressor>> = Codec {
    read: |text, notes| {
        let mut known = Vec::new();
        for name in text.split(',') {
            match Compressor::from_name(name) {
                Some(compressor) if known.contains(&compressor) => {}
                Some(compressor) => known.push(compressor),
                None => notes.warnings.push(Warning::UnknownCompressor(name.to_owned())),
            }
        }
        if known.is_empty() { Err("a list of snappy, zlib and zstd") } else { Ok(known) }
    },
    write: |value| value.iter().map(|compressor| compressor.name()).collect::<Vec<_>>().join(","),
};

/// `readPreference`.
pub(crate) const READ_PREFERENCE: Codec<ReadPreferenceMode> = Codec {
    read: |text, _| {
        let expected = "primary, primaryPreferred, secondary, secondaryPreferred or nearest";
        ReadPreferenceMode::from_name(text).ok_or(expected)
    },
    write: |value| value.name().to_owned(),
};

/// `serverMonitoringMode`.
pub(crate) const MONITORING_MODE: Codec<ServerMonitoringMode> = Codec {
    read: |text, _| ServerMonitoringMode::from_name(text).ok_or("auto, stream or poll"),
    write: |value| value.name().to_owned(),
};

/// `w`. What looks like a number is one; everything else names a rule.
pub(crate) const ACKNOWLEDGEMENT: Codec<WriteAcknowledgement> = Codec {
    read: |text, _| {
        let digits = text.strip_prefix('-').unwrap_or(text);
        if text == "majority" {
            Ok(WriteAcknowledgement::Majority)
        } else if digits.bytes().all(|byte| byte.is_ascii_digit()) {
            let expected = "a number of members that is not negative, majority, or a rule's name";
            count(text).map(WriteAcknowledgement::Members).ok_or(expected)
        } else {
            Ok(WriteAcknowledgement::Custom(text.to_owned()))
        }
    },
    write: |value| match value {
        WriteAcknowledgement::Members(members) => members.to_string(),
        WriteAcknowledgement::Majority => "majority".to_owned(),
        WriteAcknowledgement::Custom(rule) => rule.clone(),
    },
};

/// One `readPreferenceTags`. Empty text is the set that suits every member.
pub(crate) const TAGS: Codec<TagSet> = Codec {
    read: |text, _| {
        let pairs = if text.is_empty() { Some(BTreeMap::new()) } else { pairs(text) };
        let tags = pairs.map(|pairs| pairs.into_iter().collect());
        tags.ok_or("pairs of name:value with commas between them")
    },
    write: |value| {
        let pairs = value.iter().map(|(name, value)| format!("{name}:{value}"));
        pairs.collect::<Vec<_>>().join(",")
    },
};

/// `authMechanismProperties`.
pub(crate) const PROPERTIES: Codec<MechanismProperties> = Codec {
    read: |text, _| {
        pairs(text).map(|pairs| pairs.into_iter().collect()).ok_or(
            "pairs of NAME:value with commas between them (a value with a comma can not be given \
             in a connection string)",
        )
    },
    write: |value| value.to_text(|_, value| value.to_owned()),
};

fn not_empty(text: &str) -> Result<String, Expected> {
    if text.is_empty() { Err("a text that is not empty") } else { Ok(text.to_owned()) }
}

/// `name:value,name:value`; a value may hold colons. `None` if a pair has no colon or no name, or
/// if a name comes twice.
fn pairs(text: &str) -> Option<BTreeMap<&str, &str>> {
    let mut pairs = BTreeMap::new();
    for pair in text.split(',') {
        let (name, value) = pair.split_once(':')?;
        if name.is_empty() || pairs.insert(name, value).is_some() {
            return None;
        }
    }
    Some(pairs)
}

/// Digits with or without a minus sign. Rust would also take a plus sign.
fn integer(text: &str) -> Option<i64> {
    if text.starts_with('+') { None } else { text.parse().ok() }
}

fn count(text: &str) -> Option<u32> {
    integer_32(text).and_then(|value| u32::try_from(value).ok())
}

fn integer_32(text: &str) -> Option<i64> {
    integer(text).filter(|value| i32::try_from(*value).is_ok())
}
