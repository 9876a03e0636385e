//! Percent-encoding, the only quoting a connection string knows (RFC 3986, section 2.1).
//!
//! A plus sign stays a plus sign: the specification leaves form decoding to choice, and passwords
//! with a plus are common.

/// Why a text could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// A percent sign without two hexadecimal digits after it.
    BadEscape,
    /// The bytes behind the escapes are not UTF-8.
    NotUtf8,
}

/// Replaces every `%41` by the byte it stands for.
pub(crate) fn decode(text: &str) -> Result<String, DecodeError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| {
            byte.and_then(|byte| char::from(byte).to_digit(16)).ok_or(DecodeError::BadEscape)
        };
        let value = digit(rest.next())? << 4 | digit(rest.next())?;
        bytes.push(u8::try_from(value).map_err(|_| DecodeError::BadEscape)?);
    }
    String::from_utf8(bytes).map_err(|_| DecodeError::NotUtf8)
}

/// Escapes every character that is neither unreserved (letters, digits, `-._~`) nor in `also_kept`.
pub(crate) fn encode(text: &str, also_kept: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for character in text.chars() {
        // Letters beyond ASCII may stand in a connection string as they are, and read better.
        let kept = character.is_alphanumeric()
            || matches!(character, '-' | '.' | '_' | '~')
            || also_kept.contains(character);
        if kept {
            encoded.push(character);
        } else {
            let mut buffer = [0; 4];
            for byte in character.encode_utf8(&mut buffer).bytes() {
                encoded.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_in_either_case() {
        assert_eq!(decode("a%2Fb%2fc+d").unwrap(), "a/b/c+d");
        assert_eq!(decode("b%C3%BCcher").unwrap(), "bücher");
        assert_eq!(decode("").unwrap(), "");
    }

    #[test]
    fn broken_escapes_are_refused() {
        for bad in ["%", "%2", "%zz", "%+1", "a%é", "%%41"] {
            assert_eq!(decode(bad), Err(DecodeError::BadEscape), "{bad}");
        }
        assert_eq!(decode("%ff"), Err(DecodeError::NotUtf8));
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_encoded_decodes_to_itself(text in ".{0,60}") {
            proptest::prop_assert_eq!(decode(&encode(&text, ":,")).unwrap(), text);
        }
    }
}
