//! The blocks of text in PEM, as Envoy's TLS library reads them. The messages never show the content.

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{GeneralPurpose, GeneralPurposeConfig},
};

use crate::validate::tree::Message;

/// The maximum number of bytes that the library reads as one line. The rest is the next line.
const LINE_BYTES_MAX: usize = 253;

/// A block: `-----BEGIN LABEL-----`, base64, `-----END LABEL-----`.
pub(super) struct Block {
    pub(super) label: String,
    /// The lines before an empty line.
    header: Vec<u8>,
    pub(super) content: Vec<u8>,
}

impl Block {
    /// Returns whether the block has lines before its content, as encrypted keys of the old form have.
    pub(super) fn has_header(&self) -> bool {
        !self.header.is_empty()
    }

    /// Returns whether the block has the header of the old form of encryption.
    pub(super) fn is_encrypted(&self) -> bool {
        self.header.starts_with(b"Proc-Type: 4,ENCRYPTED")
    }
}

/// Returns the inline content of a `DataSource`, and the name of its field.
pub(super) fn inline<'a>(source: &Message<'a>) -> Option<(&'static str, &'a [u8])> {
    let field = ["inline_string", "inline_bytes"].into_iter().find(|field| source.has(field))?;
    Some((field, source.bytes(field)))
}

/// Returns the blocks of a text. The last item is the defect of a block that cannot be read.
pub(super) fn blocks(content: &[u8]) -> impl Iterator<Item = Result<Block, String>> {
    let mut lines = Lines(content);
    std::iter::from_fn(move || {
        let block = next_block(&mut lines)?;
        if block.is_err() {
            lines = Lines(&[]);
        }
        Some(block)
    })
}

/// Returns the rule for a text without a wanted block. It names the mistake if there is a line that looks like one.
pub(super) fn missing(content: &[u8], label: &str) -> String {
    let begin = format!("-----BEGIN {label}-----");
    let is_near = content.windows(begin.len()).any(|part| part == begin.as_bytes());
    if is_near {
        format!(
            "has no line `{begin}`: Envoy ignores such a line if spaces, a byte order mark or other text is in it"
        )
    } else {
        format!("has no PEM block `{begin}`")
    }
}

/// The lines of a text, without the bytes at their end that the library trims.
struct Lines<'a>(&'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let longest = &self.0[..self.0.len().min(LINE_BYTES_MAX)];
        let n = longest.iter().position(|byte| *byte == b'\n').map_or(longest.len(), |at| at + 1);
        let (line, rest) = self.0.split_at_checked(n).filter(|_| n > 0)?;
        self.0 = rest;
        // The library compares signed bytes with a space.
        let is_kept = |byte: &u8| byte.is_ascii() && *byte > b' ';
        Some(&line[..line.iter().rposition(is_kept).map_or(0, |at| at + 1)])
    }
}

fn next_block(lines: &mut Lines<'_>) -> Option<Result<Block, String>> {
    let label = lines.find_map(|line| line.strip_prefix(b"-----BEGIN ")?.strip_suffix(b"-----"))?;
    let (mut header, mut content, mut end) = (Vec::new(), Vec::new(), None);
    for line in lines.by_ref() {
        if line.is_empty() {
            break;
        }
        if line.starts_with(b"-----END ") {
            end = Some(line);
            break;
        }
        header.extend([line, b"\n"].concat());
    }
    if end.is_some() {
        // Without an empty line, there is no header.
        std::mem::swap(&mut header, &mut content);
    } else {
        for line in lines {
            if line.starts_with(b"-----END ") {
                end = Some(line);
                break;
            }
            content.extend(line);
        }
    }
    let label = String::from_utf8_lossy(label).into_owned();
    let is_end = |line: &[u8]| {
        let own = line.strip_prefix(b"-----END ").and_then(|line| line.strip_suffix(b"-----"));
        own == Some(label.as_bytes())
    };
    if !end.is_some_and(is_end) {
        let rule = "has a PEM block without an end: a line `-----END …-----` with the label of its beginning";
        return Some(Err(rule.to_owned()));
    }
    content.retain(|byte| !b" \t\r\n".contains(byte));
    let config = GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true);
    match GeneralPurpose::new(&STANDARD, config).decode(&content) {
        Ok(content) if !content.is_empty() => Some(Ok(Block { label, header, content })),
        _ => Some(Err("has a PEM block whose content is not base64".to_owned())),
    }
}
