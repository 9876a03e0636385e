//! DNS messages: one question out, the records of its answer in.
//!
//! Follows RFC 1035 (messages, names), RFC 2782 (SRV) and RFC 6891 (the size that fits a datagram). Does
//! no I/O. A message comes from the network: every length and every pointer is checked.

/// The longest name, in bytes of a message.
const MAX_NAME_LENGTH: usize = 255;

/// The longest part of a name.
const MAX_LABEL_LENGTH: usize = 63;

/// How often a name may go on at another place of the message.
const MAX_POINTERS: usize = 32;

/// How many aliases are followed from the name that was asked for.
const MAX_ALIASES: usize = 8;

/// The largest datagram that is asked for: it passes any network in one piece.
pub(crate) const MAX_DATAGRAM: u16 = 1232;

const HEADER_LENGTH: usize = 12;
const CLASS_IN: u16 = 1;
const TYPE_ALIAS: u16 = 5;
const TYPE_OPTIONS: u16 = 41;
const FORMAT_ERROR: u8 = 1;
const NO_SUCH_NAME: u8 = 3;
const NOT_IMPLEMENTED: u8 = 4;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Txt,
    Srv,
}

impl Kind {
    const fn number(self) -> u16 {
        match self {
            Self::Txt => 16,
            Self::Srv => 33,
        }
    }
}

/// One record of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// For how many seconds it holds.
    pub(crate) ttl: u32,
    pub(crate) data: Data,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Srv { target: String, port: u16 },
    Txt(Vec<Vec<u8>>),
}

/// What a name server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The records; none if the name has none of this kind, or does not exist.
    Records(Vec<Record>),
    /// The records do not fit a datagram: ask over TCP.
    Truncated,
    /// The server does not understand the question, perhaps because of its size option.
    NotUnderstood,
    /// The server does not answer, with this code.
    Refused(u8),
}

/// Why a name cannot be asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NameError {
    #[error("a name in DNS is plain ASCII; write it in its xn-- form")]
    NotAscii,
    #[error("a part of the name is empty or longer than {MAX_LABEL_LENGTH} bytes")]
    Label,
    #[error("the name is longer than {MAX_NAME_LENGTH} bytes")]
    TooLong,
}

/// The bytes of a question. With `sized`, the server may answer with up to [`MAX_DATAGRAM`] bytes.
pub(crate) fn question(id: u16, name: &str, kind: Kind, sized: bool) -> Result<Vec<u8>, NameError> {
    let mut bytes = Vec::with_capacity(HEADER_LENGTH + name.len() + 17);
    bytes.extend(id.to_be_bytes());
    // A question that wants recursion; one question, no records but the option.
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(sized)]);
    put_name(&mut bytes, name)?;
    bytes.extend(kind.number().to_be_bytes());
    bytes.extend(CLASS_IN.to_be_bytes());
    if sized {
        bytes.push(0);
        bytes.extend(TYPE_OPTIONS.to_be_bytes());
        bytes.extend(MAX_DATAGRAM.to_be_bytes());
        bytes.extend([0; 6]);
    }
    Ok(bytes)
}

fn put_name(bytes: &mut Vec<u8>, name: &str) -> Result<(), NameError> {
    let start = bytes.len();
    for label in name.trim_end_matches('.').split('.') {
        if !label.is_ascii() {
            return Err(NameError::NotAscii);
        }
        let length = u8::try_from(label.len()).ok();
        let length = length.filter(|length| (1..=MAX_LABEL_LENGTH).contains(&usize::from(*length)));
        bytes.push(length.ok_or(NameError::Label)?);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    if bytes.len() - start > MAX_NAME_LENGTH { Err(NameError::TooLong) } else { Ok(()) }
}

/// Reads the answer to a question; none if the message is something else, such as the answer to another
/// question, or cannot be read.
pub(crate) fn answer(message: &[u8], id: u16, name: &str, kind: Kind) -> Option<Answer> {
    let mut reader = Reader { message, at: 0 };
    let (theirs, flags) = (reader.number()?, reader.number()?);
    let counts = [reader.number()?, reader.number()?, reader.number()?, reader.number()?];
    let is_reply = flags & 0x8000 != 0 && flags & 0x7800 == 0;
    if theirs != id || !is_reply {
        return None;
    }
    let code = (flags & 0xf) as u8;
    // A server that understood nothing, or refuses, may leave the question out.
    match code {
        FORMAT_ERROR | NOT_IMPLEMENTED => return Some(Answer::NotUnderstood),
        code if counts[0] == 0 && !matches!(code, 0 | NO_SUCH_NAME) => {
            return Some(Answer::Refused(code));
        }
        _ => {}
    }
    let (asked, asked_kind) = (reader.name()?, reader.number()?);
    let is_ours = counts[0] == 1
        && asked.trim_end_matches('.').eq_ignore_ascii_case(name.trim_end_matches('.'))
        && asked_kind == kind.number()
        && reader.number()? == CLASS_IN;
    if !is_ours {
        return None;
    }
    match code {
        0 | NO_SUCH_NAME if flags & 0x0200 != 0 => Some(Answer::Truncated),
        0 | NO_SUCH_NAME => records(&mut reader, counts[1], asked, kind).map(Answer::Records),
        code => Some(Answer::Refused(code)),
    }
}

/// The records of this kind that belong to the name, or to what it is an alias of.
fn records(
    reader: &mut Reader<'_>,
    count: u16,
    mut name: String,
    kind: Kind,
) -> Option<Vec<Record>> {
    let mut found = Vec::new();
    let mut aliases = Vec::new();
    for _ in 0..count {
        let owner = reader.name()?;
        let (number, class) = (reader.number()?, reader.number()?);
        let ttl = u32::from_be_bytes(reader.take(4)?.try_into().ok()?);
        let length = usize::from(reader.number()?);
        let end = reader.at.checked_add(length).filter(|end| *end <= reader.message.len())?;
        if class == CLASS_IN && number == TYPE_ALIAS {
            aliases.push((owner, reader.name()?));
        } else if class == CLASS_IN && number == kind.number() {
            found.push((owner, Record { ttl, data: reader.data(kind, end)? }));
        }
        // Data that runs into the next record is no data.
        if reader.at > end {
            return None;
        }
        reader.at = end;
    }
    for _ in 0..MAX_ALIASES {
        let alias = aliases.iter().find(|(owner, _)| owner.eq_ignore_ascii_case(&name));
        let Some((_, target)) = alias else { break };
        name.clone_from(target);
    }
    let ours = found.into_iter().filter(|(owner, _)| owner.eq_ignore_ascii_case(&name));
    Some(ours.map(|(_, record)| record).collect())
}

/// Reads a message from one place on.
struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let bytes = self.message.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn number(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    /// A name with a dot behind each part. A part that is no text is shown by its bytes, so that it equals
    /// no name that was asked for.
    fn name(&mut self) -> Option<String> {
        let mut name = String::new();
        // Where to go on after the name, once it has led elsewhere.
        let mut behind = None;
        let mut pointers = 0;
        loop {
            let length = self.byte()?;
            match length {
                0 => break,
                1..=63 => {
                    let label = self.take(usize::from(length))?;
                    match label.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'.') {
                        true => name.extend(label.iter().map(|byte| char::from(*byte))),
                        false => name.push_str(&format!("{label:?}")),
                    }
                    name.push('.');
                }
                192..=255 => {
                    let low = self.byte()?;
                    behind.get_or_insert(self.at);
                    self.at = usize::from(u16::from_be_bytes([length & 0x3f, low]));
                    pointers += 1;
                }
                _ => return None,
            }
            if pointers > MAX_POINTERS || name.len() > 4 * MAX_NAME_LENGTH {
                return None;
            }
        }
        self.at = behind.unwrap_or(self.at);
        Some(name)
    }

    fn data(&mut self, kind: Kind, end: usize) -> Option<Data> {
        match kind {
            Kind::Srv => {
                let (_priority, _weight) = (self.number()?, self.number()?);
                let port = self.number()?;
                Some(Data::Srv { port, target: self.name()? })
            }
            Kind::Txt => {
                let mut texts = Vec::new();
                while self.at < end {
                    let length = self.byte()?;
                    texts.push(self.take(usize::from(length))?.to_vec());
                }
                Some(Data::Txt(texts))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAME: &str = "_mongodb._tcp.c.example.com";

    /// A reply to the question for [`NAME`] with these flags and these answers.
    fn reply(kind: Kind, flags: u16, answers: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = question(7, NAME, kind, false).unwrap();
        bytes[2..4].copy_from_slice(&flags.to_be_bytes());
        bytes[7] = answers.len() as u8;
        bytes.extend(answers.concat());
        bytes
    }

    /// A record of the name in the question (by a pointer to it), or of another one.
    fn record(owner: Option<&str>, number: u16, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        match owner {
            Some(owner) => put_name(&mut bytes, owner).unwrap(),
            None => bytes.extend([0xc0, 12]),
        }
        bytes.extend(number.to_be_bytes());
        bytes.extend([0, 1, 0, 0, 0, 60]);
        bytes.extend((data.len() as u16).to_be_bytes());
        bytes.extend(data);
        bytes
    }

    fn srv(target: &str, port: u16) -> Vec<u8> {
        let mut data = vec![0, 0, 0, 0];
        data.extend(port.to_be_bytes());
        put_name(&mut data, target).unwrap();
        data
    }

    #[test]
    fn a_question_is_what_the_standard_says() {
        let bytes = question(0x0102, "a.bc", Kind::Srv, true).unwrap();
        let head = [1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
        let asked = [1, b'a', 2, b'b', b'c', 0, 0, 33, 0, 1];
        let option = [0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, 0];
        assert_eq!(bytes, [&head[..], &asked, &option].concat());
        assert_eq!(question(1, "ä.example", Kind::Txt, false), Err(NameError::NotAscii));
        assert_eq!(question(1, "a..b", Kind::Txt, false), Err(NameError::Label));
        assert_eq!(question(1, &"a".repeat(64), Kind::Txt, false), Err(NameError::Label));
        assert_eq!(question(1, &["abc"; 70].join("."), Kind::Txt, false), Err(NameError::TooLong));
    }

    #[test]
    fn records_of_the_name_are_read() {
        let answers =
            [record(None, 33, &srv("a.example.com", 27017)), record(Some("x"), 33, &srv("b", 1))];
        let found = answer(&reply(Kind::Srv, 0x8180, &answers), 7, NAME, Kind::Srv).unwrap();
        let data = Data::Srv { target: "a.example.com.".to_owned(), port: 27017 };
        assert_eq!(found, Answer::Records(vec![Record { ttl: 60, data }]));

        let text = [record(None, 16, b"\x05hello\x00\x01x")];
        let found = answer(&reply(Kind::Txt, 0x8180, &text), 7, NAME, Kind::Txt).unwrap();
        let data = Data::Txt(vec![b"hello".to_vec(), Vec::new(), b"x".to_vec()]);
        assert_eq!(found, Answer::Records(vec![Record { ttl: 60, data }]));
    }

    #[test]
    fn aliases_are_followed_and_circles_end() {
        let mut target = Vec::new();
        put_name(&mut target, "real.example.com").unwrap();
        let alias = record(None, 5, &target);
        let real = record(Some("Real.example.com"), 33, &srv("a.example.com", 1));
        let message = reply(Kind::Srv, 0x8180, &[alias.clone(), real]);
        let Some(Answer::Records(found)) = answer(&message, 7, NAME, Kind::Srv) else { panic!() };
        assert_eq!(found.len(), 1);

        let mut back = Vec::new();
        put_name(&mut back, NAME).unwrap();
        let circle = [alias, record(Some("real.example.com"), 5, &back)];
        let found = answer(&reply(Kind::Srv, 0x8180, &circle), 7, NAME, Kind::Srv);
        assert_eq!(found, Some(Answer::Records(Vec::new())));
    }

    #[test]
    fn codes_and_flags_are_told_apart() {
        let told = |flags| answer(&reply(Kind::Srv, flags, &[]), 7, NAME, Kind::Srv);
        assert_eq!(told(0x8180), Some(Answer::Records(Vec::new())));
        assert_eq!(told(0x8183), Some(Answer::Records(Vec::new())), "no such name");
        assert_eq!(told(0x8380), Some(Answer::Truncated));
        assert_eq!(told(0x8181), Some(Answer::NotUnderstood));
        assert_eq!(told(0x8184), Some(Answer::NotUnderstood));
        assert_eq!(told(0x8182), Some(Answer::Refused(2)));
        let header = |flags: u16| {
            let [high, low] = flags.to_be_bytes();
            answer(&[0, 7, high, low, 0, 0, 0, 0, 0, 0, 0, 0], 7, NAME, Kind::Srv)
        };
        assert_eq!(header(0x8185), Some(Answer::Refused(5)), "without the question");
        assert_eq!(header(0x8180), None, "records belong to a question");
        assert_eq!(told(0x0100), None, "a question is no answer");
        let message = reply(Kind::Srv, 0x8180, &[]);
        assert_eq!(answer(&message, 8, NAME, Kind::Srv), None, "another question's");
        assert_eq!(answer(&message, 7, "other", Kind::Srv), None);
        assert_eq!(answer(&message, 7, NAME, Kind::Txt), None);
    }

    #[test]
    fn nothing_that_is_cut_or_points_in_circles_is_read() {
        let whole = reply(Kind::Srv, 0x8180, &[record(None, 33, &srv("a.example.com", 27017))]);
        for end in 0..whole.len() {
            assert_eq!(answer(&whole[..end], 7, NAME, Kind::Srv), None, "{end}");
        }
        for place in 0..whole.len() {
            for byte in [0, 1, 63, 64, 0xc0, 0xff] {
                let mut broken = whole.clone();
                broken[place] = byte;
                let _ = answer(&broken, 7, NAME, Kind::Srv);
            }
        }
        // Data that is longer than it says, so that it reads a part of the next record.
        let text = [record(None, 16, b"\x05hel"), record(None, 16, b"\x01x")];
        assert_eq!(answer(&reply(Kind::Txt, 0x8180, &text), 7, NAME, Kind::Txt), None);
        // A record whose name is a pointer to that pointer.
        let mut circle = reply(Kind::Srv, 0x8180, &[Vec::new()]);
        let at = circle.len() as u8;
        circle.extend([0xc0, at, 0, 33, 0, 1, 0, 0, 0, 1, 0, 0]);
        assert_eq!(answer(&circle, 7, NAME, Kind::Srv), None);
    }
    proptest! {
        /// Whatever a name server sends, reading ends without a panic and yields no more than was sent.
        #[test]
        fn any_bytes_are_read_or_refused(
            answers in any::<u8>(),
            tail in prop::collection::vec(
                prop_oneof![Just(0xc0), Just(0), Just(12), Just(1), Just(33), Just(16), any::<u8>()],
                0..200,
            ),
            kind in prop_oneof![Just(Kind::Srv), Just(Kind::Txt)],
        ) {
            let mut message = reply(kind, 0x8180, &[]);
            message[7] = answers;
            message.extend(&tail);
            if let Some(Answer::Records(records)) = answer(&message, 7, NAME, kind) {
                prop_assert!(records.len() <= usize::from(answers));
            }
        }
    }
}
