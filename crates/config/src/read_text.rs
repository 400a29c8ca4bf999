//! Reads text whose size is bounded.

use std::io::{self, Read};

/// Reads UTF-8 text of at most `bytes_max` bytes.
///
/// # Errors
/// If the source cannot be read, is longer, or is not UTF-8.
pub fn read_text(from: impl Read, bytes_max: u64) -> io::Result<String> {
    String::from_utf8(read_bytes(from, bytes_max)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::other(format!("byte {at} is not UTF-8 text"))
    })
}

/// Reads at most `bytes_max` bytes.
///
/// # Errors
/// If the source cannot be read, or is longer.
pub fn read_bytes(from: impl Read, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if from.take(bytes_max + 1).read_to_end(&mut bytes)? as u64 > bytes_max {
        return Err(io::Error::other(format!("it has more than {bytes_max} bytes")));
    }
    Ok(bytes)
}
