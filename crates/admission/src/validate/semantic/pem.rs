//! The blocks of text in PEM. The messages never show the content.

use crate::{scalar::base64_decoded, validate::tree::Message};

/// The maximum number of blocks that are read of a text.
const BLOCKS_MAX: usize = 1000;

/// A block: `-----BEGIN LABEL-----`, base64, `-----END LABEL-----`.
pub(super) struct Block {
    pub(super) label: String,
    /// The block has the header of the old form of encryption.
    pub(super) is_encrypted: bool,
    pub(super) content: Vec<u8>,
}

/// Returns the inline content of a `DataSource`, and the name of its field.
pub(super) fn inline<'a>(source: &Message<'a>) -> Option<(&'static str, &'a [u8])> {
    let field = ["inline_string", "inline_bytes"].into_iter().find(|field| source.has(field))?;
    Some((field, source.bytes(field)))
}

/// Returns the blocks whose label passes, or the first defect of one.
pub(super) fn blocks(
    content: &[u8],
    what: &str,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Block>, String> {
    // Bytes that are not text have no block.
    let mut rest = std::str::from_utf8(content).unwrap_or_default();
    let mut found = Vec::new();
    while let Some((_, after)) = rest.split_once("-----BEGIN ") {
        let Some((label, body)) = after.split_once("-----") else { break };
        rest = body;
        if !is_wanted(label) {
            continue;
        }
        let (text, after) = body
            .split_once(&format!("-----END {label}-----"))
            .ok_or_else(|| format!("has a PEM block {what} without an end"))?;
        rest = after;
        // An encrypted key has headers before its content.
        let lines = text.lines().map(str::trim).filter(|line| !line.contains(':'));
        let base64: String = lines.collect();
        let content = match base64_decoded(&base64) {
            Ok(bytes) if !bytes.is_empty() => bytes,
            _ => return Err(format!("has a PEM block {what} whose content is not base64")),
        };
        let is_encrypted = text.contains("Proc-Type: 4,ENCRYPTED");
        found.push(Block { label: label.to_owned(), is_encrypted, content });
        if found.len() >= BLOCKS_MAX {
            break;
        }
    }
    match found.is_empty() {
        true => Err(format!("has no PEM block `-----BEGIN {what}-----`")),
        false => Ok(found),
    }
}
