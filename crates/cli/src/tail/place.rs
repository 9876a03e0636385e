//! Where a feed begins and goes on: `--since` and `--resume-file`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{Bson, DateTime, Timestamp};
use serde_json::Value;

use crate::screen::{Failure, Result};
use crate::whole_file::{self, PUBLIC};

/// The longest resume file that is read. A token has a few hundred bytes.
const MAX_FILE: u64 = 64 * 1024;

/// The place of a feed, kept in a file if there is one.
pub(super) struct Place {
    file: Option<PathBuf>,
    token: Option<RawDocumentBuf>,
}

impl Place {
    /// What the file holds. One that does not exist holds nothing.
    pub(super) fn open(file: Option<&Path>) -> Result<Self> {
        let Some(path) = file else { return Ok(Self { file: None, token: None }) };
        let wrong = |what: String| {
            let path = path.display();
            misuse!("{path}: {what}; remove the file or give another")
        };
        let text = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(wrong(format!("cannot be read ({error})"))),
            Ok(facts) if facts.len() > MAX_FILE => {
                return Err(wrong("is too long to hold a resume token".to_owned()));
            }
            Ok(_) => {
                let text = fs::read_to_string(path);
                Some(text.map_err(|error| wrong(format!("cannot be read ({error})")))?)
            }
        };
        let token = text.map(|text| read_token(&text)).transpose();
        let token = token.map_err(|what| wrong(format!("holds no resume token ({what})")))?;
        let place = Self { file: Some(path.to_owned()), token };
        place.probe()?;
        Ok(place)
    }

    /// The token to go on after.
    pub(super) fn token(&self) -> Option<&RawDocumentBuf> {
        self.token.as_ref()
    }

    /// Keeps a token. The file is replaced as a whole, so that a kill leaves the old or the new one.
    pub(super) fn store(&mut self, token: &RawDocumentBuf) -> Result<()> {
        if self.token.as_ref() == Some(token) {
            return Ok(());
        }
        self.token = Some(token.clone());
        match &self.file {
            None => Ok(()),
            Some(path) => write(path, token).map_err(|error| unwritable(path, &error)),
        }
    }

    /// Whether the file can be written, which is better known before the first change.
    fn probe(&self) -> Result<()> {
        let Some(path) = &self.file else { return Ok(()) };
        let beside = whole_file::beside(path, ".new");
        let tried = fs::File::create(&beside).and_then(|_| fs::remove_file(&beside));
        tried.map_err(|error| unwritable(path, &error))
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    problem!("{path}: cannot be written ({error}); give a file that can")
}

fn write(path: &Path, token: &RawDocumentBuf) -> io::Result<()> {
    let document = bson::Document::try_from(token).map_err(io::Error::other)?;
    let text = Bson::Document(document).into_relaxed_extjson();
    whole_file::replace(path, &format!("{text}\n"), PUBLIC)
}

fn read_token(text: &str) -> Result<RawDocumentBuf, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match Bson::try_from(value).map_err(|error| error.to_string())? {
        Bson::Document(token) if token.contains_key("_data") => {
            RawDocumentBuf::try_from(&token).map_err(|error| error.to_string())
        }
        _ => Err("there is no _data".to_owned()),
    }
}

/// A time in the past to begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Since(Timestamp);

impl Since {
    /// Reads `90s`, `15m`, `2h`, `1d` (before `now`), `2026-11-15T20:00:00Z`, or seconds since 1970,
    /// perhaps with a colon and the place within the second.
    pub(super) fn parse(text: &str, now: Duration) -> Result<Self> {
        let time = ago(text, now).or_else(|| moment(text)).or_else(|| exact(text));
        time.map(Self).ok_or_else(|| {
            misuse!(
                "--since {text:?} is no time; write 15m, 2h, 1d, 2026-11-15T20:00:00Z or seconds \
                 since 1970"
            )
        })
    }

    pub(super) fn time(self) -> Timestamp {
        self.0
    }
}

fn ago(text: &str, now: Duration) -> Option<Timestamp> {
    let unit = text.chars().last()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return None,
    };
    let count: u64 = text[..text.len() - 1].parse().ok()?;
    let then = now.as_secs().saturating_sub(count.checked_mul(seconds)?);
    at(then, 1)
}

fn moment(text: &str) -> Option<Timestamp> {
    let millis = DateTime::parse_rfc3339_str(text).ok()?.timestamp_millis();
    at(u64::try_from(millis).ok()? / 1000, 1)
}

fn exact(text: &str) -> Option<Timestamp> {
    let (seconds, increment) = text.split_once(':').unwrap_or((text, "1"));
    at(seconds.parse().ok()?, increment.parse().ok()?)
}

fn at(seconds: u64, increment: u32) -> Option<Timestamp> {
    Some(Timestamp { time: u32::try_from(seconds).ok()?, increment })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn times_are_read_as_people_write_them() {
        let now = Duration::from_secs(1_000_000);
        let read = |text| Since::parse(text, now).unwrap().time();
        let at = |time, increment| Timestamp { time, increment };
        assert_eq!(read("90s"), at(999_910, 1));
        assert_eq!(read("2h"), at(992_800, 1));
        assert_eq!(read("99d"), at(0, 1), "not before 1970");
        assert_eq!(read("1970-01-01T00:01:00Z"), at(60, 1));
        assert_eq!(read("7:3"), at(7, 3));
        for wrong in ["", "soon", "1y", "-5m", "99999999999", "7:x"] {
            assert!(matches!(Since::parse(wrong, now), Err(Failure::Misuse(_))), "{wrong}");
        }
    }

    #[test]
    fn a_place_survives_in_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("place");
        let mut place = Place::open(Some(&path)).unwrap();
        assert_eq!(place.token(), None);
        let token = rawdoc! { "_data": "8263" };
        place.store(&token).unwrap();
        assert_eq!(Place::open(Some(&path)).unwrap().token(), Some(&token));
        assert!(!whole_file::beside(&path, ".new").exists());
    }

    #[test]
    fn files_that_hold_something_else_are_refused_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("place");
        for text in ["", "hello", "{\"a\": 1}", "[1]"] {
            fs::write(&path, text).unwrap();
            assert!(matches!(Place::open(Some(&path)), Err(Failure::Misuse(_))), "{text:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let elsewhere = folder.path().join("no/such/folder/place");
        assert!(matches!(Place::open(Some(&elsewhere)), Err(Failure::Problem(_))));
    }
}
