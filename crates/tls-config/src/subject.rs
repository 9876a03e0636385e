//! The subject of a certificate: the name of its holder.
//!
//! Written as RFC 2253 says, which is how users of `$external` are named, and compared by
//! organisation, which is how members of one set know each other. The certificate itself is checked
//! before by the code that accepted it; here only its name is read.

use std::collections::BTreeSet;
use std::fmt;

use rustls::pki_types::CertificateDer;

/// The most parts that a name may have.
const MAX_PARTS: usize = 64;

/// The attributes that have short names, by their encoded identifiers.
const ATTRIBUTES: [(&[u8], &str); 10] = [
    (&[0x55, 0x04, 0x03], "CN"),
    (&[0x55, 0x04, 0x06], "C"),
    (&[0x55, 0x04, 0x07], "L"),
    (&[0x55, 0x04, 0x08], "ST"),
    (&[0x55, 0x04, 0x09], "STREET"),
    (&[0x55, 0x04, 0x0a], "O"),
    (&[0x55, 0x04, 0x0b], "OU"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x01], "UID"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x19], "DC"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x01], "emailAddress"),
];

/// The attributes by which members of one set know each other.
const ORGANISATION: [&str; 3] = ["O", "OU", "DC"];

/// A certificate without a name that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubjectError {
    /// The certificate itself is malformed.
    #[error("the certificate is malformed; make a new one")]
    Certificate,
    /// Its subject is.
    #[error("the subject of the certificate is malformed; make a new one")]
    Name,
}

/// One attribute of a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Attribute {
    kind: String,
    value: String,
}

/// The name of a certificate's holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Relative names from the widest to the narrowest, each of one attribute or more.
    parts: Vec<Vec<Attribute>>,
}

impl Subject {
    /// The subject of a certificate.
    ///
    /// # Errors
    ///
    /// If the certificate or its subject is malformed.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, SubjectError> {
        let parsed =
            webpki::EndEntityCert::try_from(certificate).map_err(|_| SubjectError::Certificate)?;
        Self::parse(parsed.subject()).ok_or(SubjectError::Name)
    }

    /// Whether both belong to one organisation: the same O, OU and DC, and at least one of them.
    pub fn is_of_same_organisation(&self, other: &Self) -> bool {
        let own = self.organisation();
        !own.is_empty() && own == other.organisation()
    }

    fn organisation(&self) -> BTreeSet<&Attribute> {
        let attributes = self.parts.iter().flatten();
        attributes.filter(|attribute| ORGANISATION.contains(&attribute.kind.as_str())).collect()
    }

    /// Reads the contents of a `Name`: a sequence of sets of sequences.
    fn parse(name: &[u8]) -> Option<Self> {
        let mut parts = Vec::new();
        let mut rest = name;
        while !rest.is_empty() {
            let mut set = take(&mut rest, SET)?;
            let mut part = Vec::new();
            while !set.is_empty() {
                let mut pair = take(&mut set, SEQUENCE)?;
                let kind = take(&mut pair, OBJECT_IDENTIFIER)?;
                part.push(Attribute { kind: kind_name(kind)?, value: value(pair)? });
            }
            parts.push(part);
            if parts.len() > MAX_PARTS {
                return None;
            }
        }
        Some(Self { parts })
    }
}

/// The narrowest part first, as RFC 2253 says.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, part) in self.parts.iter().rev().enumerate() {
            for (nth, Attribute { kind, value }) in part.iter().enumerate() {
                let separator = match (place, nth) {
                    (0, 0) => "",
                    (_, 0) => ",",
                    _ => "+",
                };
                write!(f, "{separator}{kind}={}", escaped(value))?;
            }
        }
        Ok(())
    }
}

fn escaped(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    let last = value.chars().count().saturating_sub(1);
    for (place, character) in value.chars().enumerate() {
        let special = matches!(character, ',' | '+' | '"' | '\\' | '<' | '>' | ';')
            || place == 0 && matches!(character, '#' | ' ')
            || place == last && character == ' ';
        if special {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

const OBJECT_IDENTIFIER: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;

/// Takes the contents of the next value, which must have this tag.
fn take<'a>(rest: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (found, contents) = take_any(rest)?;
    (found == tag).then_some(contents)
}

fn take_any<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&tag, after) = rest.split_first()?;
    let (&first, mut after) = after.split_first()?;
    let mut length = usize::from(first);
    if first & 0x80 != 0 {
        let count = usize::from(first & 0x7f);
        // A name of more than 64 KiB is none.
        if !(1..=2).contains(&count) {
            return None;
        }
        let (bytes, following) = after.split_at_checked(count)?;
        length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        after = following;
    }
    let (contents, following) = after.split_at_checked(length)?;
    *rest = following;
    Some((tag, contents))
}

/// The short name of an attribute, or its number.
fn kind_name(identifier: &[u8]) -> Option<String> {
    if let Some((_, name)) = ATTRIBUTES.iter().find(|(known, _)| *known == identifier) {
        return Some((*name).to_owned());
    }
    let mut numbers: Vec<u64> = Vec::new();
    let mut number: u64 = 0;
    for byte in identifier {
        number = number.checked_mul(128)?.checked_add(u64::from(byte & 0x7f))?;
        if byte & 0x80 == 0 {
            if numbers.is_empty() {
                let first = (number / 40).min(2);
                numbers.extend([first, number - first * 40]);
            } else {
                numbers.push(number);
            }
            number = 0;
        }
    }
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    Some(numbers.join("."))
}

/// The text of an attribute's value. Kinds of text that are no UTF-8 are written out in numbers.
fn value(mut encoded: &[u8]) -> Option<String> {
    /// BMPString: two bytes for each character.
    const TWO_BYTES: u8 = 0x1e;
    let (tag, contents) = take_any(&mut encoded)?;
    if tag == TWO_BYTES {
        let units = contents.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
        return String::from_utf16(&units.collect::<Vec<_>>()).ok();
    }
    match std::str::from_utf8(contents) {
        Ok(text) => Some(text.to_owned()),
        Err(_) => Some(contents.iter().map(|byte| format!("{byte:02x}")).collect()),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn subject(attributes: &[(DnType, &str)]) -> Subject {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in attributes {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let key = KeyPair::generate().unwrap();
        Subject::of(params.self_signed(&key).unwrap().der()).unwrap()
    }

    #[test]
    fn names_are_written_narrowest_first_and_escaped() {
        let name = subject(&[
            (DnType::CountryName, "CH"),
            (DnType::OrganizationName, "Bell, Book + Candle"),
            (DnType::CustomDnType(vec![1, 2, 840, 113549, 1, 9, 2]), "x"),
            (DnType::CommonName, " leading"),
        ]);
        assert_eq!(
            name.to_string(),
            r"CN=\ leading,1.2.840.113549.1.9.2=x,O=Bell\, Book \+ Candle,C=CH"
        );
    }

    #[test]
    fn an_organisation_is_all_of_its_attributes_and_never_none() {
        let organisation = |unit| {
            subject(&[
                (DnType::OrganizationName, "quorate"),
                (DnType::OrganizationalUnitName, unit),
                (DnType::CommonName, "a"),
            ])
        };
        assert!(organisation("set").is_of_same_organisation(&organisation("set")));
        assert!(!organisation("set").is_of_same_organisation(&organisation("other")));
        let unnamed = subject(&[(DnType::CommonName, "a")]);
        assert!(!unnamed.is_of_same_organisation(&unnamed.clone()));
    }

    #[test]
    fn damaged_names_are_refused() {
        assert_eq!(Subject::parse(&[]), Some(Subject::default()));
        for damaged in [&[0x31][..], &[0x31, 0x05, 0x30], &[0x30, 0x00], &[0x31, 0x84, 0, 0, 0, 1]]
        {
            assert_eq!(Subject::parse(damaged), None, "{damaged:?}");
        }
        let certificate = CertificateDer::from(vec![1, 2, 3]);
        assert_eq!(Subject::of(&certificate), Err(SubjectError::Certificate));
    }
}
