//! The parts of protobuf's wire format that shared frames and untrusted requests need.

use bytes::{BufMut, BytesMut};

mod fields;

pub use fields::{Fields, Token, WireError, text};

/// Returns the key byte of a length-delimited field.
///
/// The field number is at most 15. The discovery messages that this crate writes use no higher one.
#[must_use]
pub const fn len_key(field: u8) -> u8 {
    (field << 3) | 2
}

/// Returns the length of the varint `n` in bytes.
#[must_use]
pub const fn varint_len(n: u64) -> usize {
    // Each byte holds 7 bits. The value 0 still takes one byte.
    (64 - (n | 1).leading_zeros() as usize).div_ceil(7)
}

/// Writes `n` as a varint.
pub fn put_varint(out: &mut BytesMut, mut n: u64) {
    while n >= 0x80 {
        out.put_u8(n.to_le_bytes()[0] | 0x80);
        n >>= 7;
    }
    out.put_u8(n.to_le_bytes()[0]);
}

/// Returns the total length of a length-delimited field with `len` bytes of content.
#[must_use]
pub const fn len_field_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

/// Writes the key and the length of a length-delimited field.
pub fn put_len_header(out: &mut BytesMut, field: u8, len: usize) {
    out.put_u8(len_key(field));
    put_varint(out, len as u64);
}

/// Writes a length-delimited field: key, length and content.
pub fn put_len_field(out: &mut BytesMut, field: u8, content: &[u8]) {
    put_len_header(out, field, content.len());
    out.put_slice(content);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varint_len_equals_written_length() {
        for n in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX] {
            let mut out = BytesMut::new();
            put_varint(&mut out, n);
            assert_eq!(out.len(), varint_len(n), "{n}");
        }
    }
}
