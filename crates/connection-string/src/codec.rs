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
pub(crate) trait Codec {
    type Value;
    fn read(text: &str, notes: &mut Notes<'_>) -> Result<Self::Value, Expected>;
    fn write(value: &Self::Value) -> String;
}

/// `true` or `false`, and the deprecated spellings of both.
pub(crate) struct Boolean;

impl Codec for Boolean {
    type Value = bool;

    fn read(text: &str, notes: &mut Notes<'_>) -> Result<bool, Expected> {
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
    }

    fn write(value: &bool) -> String {
        value.to_string()
    }
}

/// Any text but the empty one.
pub(crate) struct Text;

impl Codec for Text {
    type Value = String;

    fn read(text: &str, _: &mut Notes<'_>) -> Result<String, Expected> {
        if text.is_empty() { Err("a text that is not empty") } else { Ok(text.to_owned()) }
    }

    fn write(value: &String) -> String {
        value.clone()
    }
}

/// Any text but the empty one, kept from logs.
pub(crate) struct SecretText;

impl Codec for SecretText {
    type Value = Secret;

    fn read(text: &str, notes: &mut Notes<'_>) -> Result<Secret, Expected> {
        Text::read(text, notes).map(Secret::new)
    }

    fn write(value: &Secret) -> String {
        value.expose().to_owned()
    }
}

/// The name an application gives itself.
pub(crate) struct AppName;

impl Codec for AppName {
    type Value = String;

    fn read(text: &str, _: &mut Notes<'_>) -> Result<String, Expected> {
        if text.is_empty() || text.len() > MAX_APP_NAME_LENGTH {
            return Err("1 to 128 bytes of text");
        }
        Ok(text.to_owned())
    }

    fn write(value: &String) -> String {
        value.clone()
    }
}

/// A service name of RFC 6335, section 5.1, except that it may be longer than 15 characters.
pub(crate) struct ServiceName;

impl Codec for ServiceName {
    type Value = String;

    fn read(text: &str, _: &mut Notes<'_>) -> Result<String, Expected> {
        let valid = (1..=MAX_SERVICE_NAME_LENGTH).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && text.bytes().any(|byte| byte.is_ascii_alphabetic())
            && !text.starts_with('-')
            && !text.ends_with('-')
            && !text.contains("--");
        if !valid {
            return Err("an SRV service name: letters, digits and single hyphens between them");
        }
        Ok(text.to_owned())
    }

    fn write(value: &String) -> String {
        value.clone()
    }
}

/// A 32-bit integer that is not negative.
pub(crate) struct Count;

impl Codec for Count {
    type Value = u32;

    fn read(text: &str, _: &mut Notes<'_>) -> Result<u32, Expected> {
        integer_32(text)
            .and_then(|value| u32::try_from(value).ok())
            .ok_or("an integer that is not negative")
    }

    fn write(value: &u32) -> String {
        value.to_string()
    }
}

/// A 32-bit integer above zero.
pub(crate) struct PositiveCount;

impl Codec for PositiveCount {
    type Value = NonZeroU32;

    fn read(text: &str, notes: &mut Notes<'_>) -> Result<NonZeroU32, Expected> {
        let expected = "an integer above zero";
        Count::read(text, notes).ok().and_then(NonZeroU32::new).ok_or(expected)
    }

    fn write(value: &NonZeroU32) -> String {
        value.to_string()
    }
}

/// A 32-bit integer that is not negative; zero switches the bound off.
pub(crate) struct CountLimit;

impl Codec for CountLimit {
    type Value = Limit<NonZeroU32>;

    fn read(text: &str, notes: &mut Notes<'_>) -> Result<Self::Value, Expected> {
        let count = Count::read(text, notes)?;
        Ok(NonZeroU32::new(count).map_or(Limit::Unlimited, Limit::AtMost))
    }

    fn write(value: &Self::Value) -> String {
        value.bound().map_or(0, NonZeroU32::get).to_string()
    }
}

/// A port.
pub(crate) struct Port;

impl Codec for Port {
    type Value = NonZeroU16;

    fn read(text: &str, _: &mut Notes<'_>) -> Result<NonZeroU16, Expected> {
        integer_32(text)
            .and_then(|value| u16::try_from(value).ok())
            .and_then(NonZeroU16::new)
            .ok_or("a port from 1 to 65535")
    }

    fn write(value: &NonZeroU16) -> String {
        value.to_string()
    }
}

/// A 32-bit number of milliseconds, at least `MIN`.
pub(crate) struct Milliseconds<const MIN: u64>;

impl<const MIN: u64> Codec for Milliseconds<MIN> {
    type Value = Duration;

    fn read(text: &str, _: &mut Notes<'_>) -> Result<Duration, Expected> {
        integer_32(text)
            .and_then(|value| u64::try_from(value).ok())
            .filter(|value| *value >= MIN)
            .map(Duration::from_millis)
            .ok_or(match MIN {
                0 => "a number of milliseconds that is not negative",
                500 => "a number of milliseconds, at least 500",
                _ => "a number of milliseconds above zero",
            })
    }

    fn write(value: &Duration) -> String {
        value.as_millis().to_string()
    }
}

/// A number of milliseconds that is not negative, at most `MAX`; zero switches the bound off.
pub(crate) struct MillisecondsLimit<const MAX: i64>;

/// The range of most options.
pub(crate) const BITS_32: i64 = i32::MAX as i64;
/// The range of those that the specification calls 64-bit.
pub(crate) const BITS_64: i64 = i64::MAX;

impl<const MAX: i64> Codec for MillisecondsLimit<MAX> {
    type Value = Limit<Duration>;

    fn read(text: &str, _: &mut Notes<'_>) -> Result<Self::Value, Expected> {
        match integer(text).filter(|value| *value <= MAX).map(u64::try_from) {
            Some(Ok(0)) => Ok(Limit::Unlimited),
            Some(Ok(millis)) => Ok(Limit::AtMost(Duration::from_millis(millis))),
            _ => Err("a number of milliseconds that is not negative; 0 means no limit"),
        }
    }

    fn write(value: &Self::Value) -> String {
        value.bound().map_or(0, |bound| bound.as_millis()).to_string()
    }
}

/// `maxStalenessSeconds`.
pub(crate) struct Staleness;

impl Codec for Staleness {
    type Value = Limit<Duration>;

    fn read(text: &str, _: &mut Notes<'_>) -> Result<Self::Value, Expected> {
        match integer_32(text) {
            Some(-1) => Ok(Limit::Unlimited),
            Some(seconds) if seconds >= SMALLEST_MAX_STALENESS_SECONDS => {
                Ok(Limit::AtMost(Duration::from_secs(seconds.unsigned_abs())))
            }
            _ => Err("-1 for no limit, or at least 90 seconds"),
        }
    }

    fn write(value: &Self::Value) -> String {
        value.bound().map_or_else(|| "-1".to_owned(), |bound| bound.as_secs().to_string())
    }
}

/// `zlibCompressionLevel`.
pub(crate) struct ZlibLevel;

impl Codec for ZlibLevel {
    type Value = i8;

    fn read(text: &str, _: &mut Notes<'_>) -> Result<i8, Expected> {
        integer_32(text)
            .filter(|level| (-1..=9).contains(level))
            .and_then(|level| i8::try_from(level).ok())
            .ok_or("a level from -1 to 9")
    }

    fn write(value: &i8) -> String {
        value.to_string()
    }
}

/// `compressors`. Unknown ones are left out one by one, not all together.
pub(crate) struct Compressors;

impl Codec for Compressors {
    type Value = Vec<Compressor>;

    fn read(text: &str, notes: &mut Notes<'_>) -> Result<Self::Value, Expected> {
        let mut known = Vec::new();
        for name in text.split(',') {
            match Compressor::ALL.into_iter().find(|compressor| compressor.name() == name) {
                Some(compressor) if known.contains(&compressor) => {}
                Some(compressor) => known.push(compressor),
                None => notes.warnings.push(Warning::UnknownCompressor(name.to_owned())),
            }
        }
        if known.is_empty() { Err("a list of snappy, zlib and zstd") } else { Ok(known) }
    }

    fn write(value: &Self::Value) -> String {
        value.iter().map(|compressor| compressor.name()).collect::<Vec<_>>().join(",")
    }
}

/// `readPreference`.
pub(crate) struct Mode;

impl Codec for Mode {
    type Value = ReadPreferenceMode;

    fn read(text: &str, _: &mut Notes<'_>) -> Result<Self::Value, Expected> {
        ReadPreferenceMode::ALL
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or("primary, primaryPreferred, secondary, secondaryPreferred or nearest")
    }

    fn write(value: &Self::Value) -> String {
        value.name().to_owned()
    }
}

/// `serverMonitoringMode`.
pub(crate) struct MonitoringMode;

impl Codec for MonitoringMode {
    type Value = ServerMonitoringMode;

    fn read(text: &str, _: &mut Notes<'_>) -> Result<Self::Value, Expected> {
        ServerMonitoringMode::ALL
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or("auto, stream or poll")
    }

    fn write(value: &Self::Value) -> String {
        value.name().to_owned()
    }
}

/// `w`. What looks like a number is one; everything else names a rule.
pub(crate) struct Acknowledgement;

impl Codec for Acknowledgement {
    type Value = WriteAcknowledgement;

    fn read(text: &str, _: &mut Notes<'_>) -> Result<Self::Value, Expected> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        if text == "majority" {
            Ok(WriteAcknowledgement::Majority)
        } else if digits.bytes().all(|byte| byte.is_ascii_digit()) {
            integer_32(text)
                .and_then(|members| u32::try_from(members).ok())
                .map(WriteAcknowledgement::Members)
                .ok_or("a number of members that is not negative, majority, or a rule's name")
        } else {
            Ok(WriteAcknowledgement::Custom(text.to_owned()))
        }
    }

    fn write(value: &Self::Value) -> String {
        match value {
            WriteAcknowledgement::Members(members) => members.to_string(),
            WriteAcknowledgement::Majority => "majority".to_owned(),
            WriteAcknowledgement::Custom(rule) => rule.clone(),
        }
    }
}

/// One `readPreferenceTags`. Empty text is the set that suits every member.
pub(crate) struct Tags;

impl Codec for Tags {
    type Value = TagSet;

    fn read(text: &str, _: &mut Notes<'_>) -> Result<TagSet, Expected> {
        if text.is_empty() {
            return Ok(TagSet::EMPTY);
        }
        pairs(text)
            .map(|pairs| pairs.into_iter().collect())
            .ok_or("pairs of name:value with commas between them")
    }

    fn write(value: &TagSet) -> String {
        let pairs: Vec<String> =
            value.iter().map(|(name, value)| format!("{name}:{value}")).collect();
        pairs.join(",")
    }
}

/// `authMechanismProperties`.
pub(crate) struct Properties;

impl Codec for Properties {
    type Value = MechanismProperties;

    fn read(text: &str, _: &mut Notes<'_>) -> Result<Self::Value, Expected> {
        pairs(text).map(|pairs| pairs.into_iter().collect()).ok_or(
            "pairs of NAME:value with commas between them (a value with a comma can not be given \
             in a connection string)",
        )
    }

    fn write(value: &Self::Value) -> String {
        value.to_text(|_, value| value.to_owned())
    }
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

fn integer_32(text: &str) -> Option<i64> {
    integer(text).filter(|value| i32::try_from(*value).is_ok())
}
