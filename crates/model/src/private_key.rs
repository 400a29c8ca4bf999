//! Private keys in text that is not meant for them.

/// Returns whether the bytes contain a private key in PEM form, or the beginning of one.
#[must_use]
pub fn has_private_key(bytes: &[u8]) -> bool {
    const BEGIN: &[u8] = b"-----BEGIN ";
    const KEY: &[u8] = b"PRIVATE KEY";
    /// The maximum length of the key's kind before `KEY`: `ENCRYPTED ` and some reserve.
    const KIND_BYTES_MAX: usize = 24;
    // `BEGIN` starts with five dashes. One of any five consecutive bytes has an index `at` of this sequence.
    let starts =
        (4..bytes.len()).step_by(5).filter(|at| bytes[*at] == b'-').flat_map(|at| at - 4..=at);
    starts.map(|start| &bytes[start..]).any(|from| {
        from.strip_prefix(BEGIN).is_some_and(|kind| {
            let kind = &kind[..kind.len().min(KIND_BYTES_MAX + KEY.len())];
            let header = kind.split(|byte| *byte == b'-').next().unwrap_or_default();
            header.windows(KEY.len()).any(|window| window == KEY)
        })
    })
}
