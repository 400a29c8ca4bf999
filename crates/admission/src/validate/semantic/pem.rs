//! The form of certificates and keys in PEM. The messages never show the content.

use crate::{
    scalar::base64_decoded,
    validate::{findings::Findings, tree::Message},
};

/// Checks that a `DataSource` with inline content has a PEM block with a label that ends in `label`.
pub(super) fn check<'m>(source: &'m Message<'_>, label: &str, findings: &mut Findings<'m>) {
    let field = ["inline_string", "inline_bytes"].into_iter().find(|field| source.has(field));
    let Some(field) = field else { return };
    // A private key may be in DER. Bytes that are not text have no PEM block.
    let text = std::str::from_utf8(source.bytes(field)).unwrap_or_default();
    if let Err(rule) = block(text, label) {
        findings.field(field, |findings| findings.refuse("tls.pem", rule));
    }
}

/// Checks the first block with the label.
fn block(text: &str, label: &str) -> Result<(), String> {
    let missing = || format!("has no PEM block `-----BEGIN {label}-----`");
    let mut rest = text;
    loop {
        let (_, after) = rest.split_once("-----BEGIN ").ok_or_else(missing)?;
        let (name, body) = after.split_once("-----").ok_or_else(missing)?;
        rest = body;
        if !name.ends_with(label) {
            continue;
        }
        let (content, _) = body
            .split_once("-----END ")
            .ok_or_else(|| format!("has a PEM block {label} without an end"))?;
        // An encrypted key has headers before its content.
        let lines = content.lines().map(str::trim).filter(|line| !line.contains(':'));
        let content: String = lines.collect();
        return match base64_decoded(&content) {
            Ok(bytes) if !bytes.is_empty() => Ok(()),
            _ => Err(format!("has a PEM block {label} whose content is not base64")),
        };
    }
}
