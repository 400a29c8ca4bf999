//! The CA bundle of the image: Mozilla's root certificates, in the version of `Cargo.lock`.
//!
//! The bundle of the building machine may contain CAs of its owner, and differs between machines.

use std::fmt::Write as _;

use webpki_root_certs::TLS_SERVER_ROOT_CERTS;

/// The characters of a line of PEM.
const LINE: usize = 64;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Returns all root certificates in PEM.
pub(super) fn bundle() -> String {
    TLS_SERVER_ROOT_CERTS.iter().map(|certificate| pem(certificate)).collect()
}

fn pem(der: &[u8]) -> String {
    let encoded = base64(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for (at, character) in encoded.chars().enumerate() {
        if at > 0 && at % LINE == 0 {
            pem.push('\n');
        }
        pem.push(character);
    }
    // Writing to a string cannot fail.
    let _ = writeln!(pem, "\n-----END CERTIFICATE-----");
    pem
}

fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) & 63;
            let is_padding = digit > group.len();
            text.push(if is_padding { '=' } else { char::from(ALPHABET[index as usize]) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_has_padding() {
        let encoded = ["", "f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes()));
        assert_eq!(encoded, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]);
    }

    #[test]
    fn bundle_has_all_certificates() {
        let bundle = bundle();
        let n_certificates = bundle.matches("-----BEGIN CERTIFICATE-----\nMII").count();
        assert_eq!(n_certificates, TLS_SERVER_ROOT_CERTS.len());
        assert!(bundle.lines().all(|line| line.len() <= LINE));
    }
}
