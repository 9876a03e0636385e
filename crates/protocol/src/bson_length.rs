//! How many bytes a BSON value takes, so that a reader can step over values without reading them.
//!
//! Layout per the BSON specification, version 1.1.

/// The length of the value that stands at the start of some bytes, whether or not all of it is there. `None` for a type
/// that BSON does not have, and for a length that is cut off or negative.
#[inline]
pub fn value_length(kind: u8, bytes: &[u8]) -> Option<usize> {
    match kind {
        // Undefined, null, the greatest and the least key.
        0x06 | 0x0a | 0x7f | 0xff => Some(0),
        // Boolean.
        0x08 => Some(1),
        // Number of 32 bits.
        0x10 => Some(4),
        // Double, date, timestamp, number of 64 bits.
        0x01 | 0x09 | 0x11 | 0x12 => Some(8),
        // Object id.
        0x07 => Some(12),
        // Decimal.
        0x13 => Some(16),
        // Document, array, code with scope: the length counts itself.
        0x03 | 0x04 | 0x0f => length_prefix(bytes),
        // String, code, symbol: the length counts the text and its zero.
        0x02 | 0x0d | 0x0e => length_prefix(bytes)?.checked_add(4),
        // Binary: a byte for the subtype.
        0x05 => length_prefix(bytes)?.checked_add(5),
        // Database pointer: a string and an object id.
        0x0c => length_prefix(bytes)?.checked_add(16),
        // Regular expression: two texts that end with zero.
        0x0b => {
            let pattern = bytes.iter().position(|&byte| byte == 0)?;
            let options = bytes[pattern + 1..].iter().position(|&byte| byte == 0)?;
            Some(pattern + options + 2)
        }
        _ => None,
    }
}

/// The length that a document, a string or a binary value begins with.
#[inline]
pub fn length_prefix(bytes: &[u8]) -> Option<usize> {
    usize::try_from(i32::from_le_bytes(*bytes.first_chunk()?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_end_where_the_specification_says() {
        assert_eq!(value_length(0x02, b"\x05\0\0\0text\0rest"), Some(9));
        assert_eq!(value_length(0x03, b"\x05\0\0\0\0"), Some(5));
        assert_eq!(value_length(0x05, b"\x02\0\0\0\0ab"), Some(7));
        assert_eq!(value_length(0x0b, b"a+\0i\0rest"), Some(5));
        assert_eq!(value_length(0x0c, b"\x02\0\0\0c\0"), Some(18));
        assert_eq!(value_length(0x10, b""), Some(4));
        assert_eq!(value_length(0x0b, b"a+\0i"), None);
        assert_eq!(value_length(0x02, b"\xff\xff\xff\xff"), None);
        assert_eq!(value_length(0x02, b"\x05\0"), None);
        assert_eq!(value_length(0x14, b""), None);
    }
}
