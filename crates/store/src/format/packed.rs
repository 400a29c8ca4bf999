//! Large commands in compressed form, as the log stores them.
//!
//! Later entries wait until a large entry is written and synced. Compression shortens this wait, because resources
//! repeat their scope, their type and much of their content. The leader compresses a command before it proposes the
//! entry.

use bytes::Bytes;
use chancery_raft_proto::v1 as pb;

use crate::format::record::RecordError;

/// The maximum expansion ratio of LZ4. It limits the memory for reading a record.
const RATIO_MAX: u64 = 255;

/// Compresses a command. Returns `None` if compression saves less than a quarter, or if decompression does not return
/// the same bytes. The check matters because the log of a single replica may be the only place that has the command.
pub(crate) fn pack(command: &[u8]) -> Option<pb::PackedCommand> {
    let lz4 = lz4_flex::block::compress(command);
    let is_shorter = lz4.len() < command.len() / 4 * 3;
    let packed =
        is_shorter.then(|| pb::PackedCommand { len: command.len() as u64, lz4: lz4.into() })?;
    unpack(&packed).is_ok_and(|restored| restored == command).then_some(packed)
}

/// Returns the command that was compressed.
pub(crate) fn unpack(packed: &pb::PackedCommand) -> Result<Bytes, RecordError> {
    let content = |reason: String| RecordError::Content(format!("its command {reason}"));
    let possible = |len: &usize| *len as u64 <= packed.lz4.len() as u64 * RATIO_MAX;
    let len = usize::try_from(packed.len).ok().filter(possible).ok_or_else(|| {
        content(format!("cannot have {} bytes: {} are stored", packed.len, packed.lz4.len()))
    })?;
    let command = lz4_flex::block::decompress(&packed.lz4, len)
        .map_err(|error| content(format!("cannot be decompressed: {error}")))?;
    if command.len() == len {
        Ok(command.into())
    } else {
        Err(content(format!("has {} bytes, not {len}", command.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that do not repeat.
    fn noise(len: u32) -> Vec<u8> {
        (0..len).map(|n| (n.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect()
    }

    #[test]
    fn packed_command_is_restored_and_a_changed_one_is_rejected() {
        let command = [noise(1000).repeat(5), noise(700)].concat();
        let packed = pack(&command).unwrap();
        assert!(packed.lz4.len() < command.len() / 2, "{}", packed.lz4.len());
        assert_eq!(unpack(&packed).unwrap(), command);
        let reason = |len: u64, lz4: &Bytes| {
            unpack(&pb::PackedCommand { len, lz4: lz4.clone() }).unwrap_err().to_string()
        };
        assert_eq!(reason(5701, &packed.lz4), "its command has 5700 bytes, not 5701");
        let impossible = reason(511, &Bytes::from_static(b"\x10a"));
        assert_eq!(impossible, "its command cannot have 511 bytes: 2 are stored");
        let cut = packed.lz4.slice(..packed.lz4.len() / 2);
        assert!(reason(packed.len, &cut).starts_with("its command "));
        assert!(reason(5699, &packed.lz4).starts_with("its command cannot be decompressed: "));
    }

    #[test]
    fn command_that_does_not_become_shorter_is_not_packed() {
        assert_eq!(pack(&noise(256)), None);
        assert_eq!(pack(b""), None);
    }
}
