//! Certificates and private keys. The messages never show the content.

use x509_parser::{
    asn1_rs::{Any, Class, FromDer, Tag},
    extensions::{GeneralName, ParsedExtension},
    prelude::X509Certificate,
    public_key::PublicKey,
    revocation_list::CertificateRevocationList,
};

use super::pem::{self, Block};

/// The minimum size of RSA keys in bits.
const RSA_BITS_MIN: usize = 2048;
/// The curves that Envoy takes: P-256, P-384 and P-521.
const CURVES: [&[u8]; 3] = [
    &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
    &[0x2b, 0x81, 0x04, 0x00, 0x22],
    &[0x2b, 0x81, 0x04, 0x00, 0x23],
];
/// The object identifiers of RSA keys and of keys on a curve.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
/// The extension of certificates that require an OCSP response (RFC 7633), and its value.
const TLS_FEATURE: &str = "1.3.6.1.5.5.7.1.24";
const MUST_STAPLE: &[u8] = &[0x30, 0x03, 0x02, 0x01, 0x05];

/// The part of a key that is public.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Public {
    /// The modulus without leading zeros.
    Rsa(Vec<u8>),
    /// The curve, and the point if the key contains it.
    Ec(Vec<u8>, Option<Vec<u8>>),
    Other,
}

/// The facts about the first certificate of a chain.
pub(super) struct Leaf {
    pub(super) key: Public,
    pub(super) must_staple: bool,
    /// The certificate has a common name or an alternative name.
    pub(super) has_name: bool,
}

/// Returns whether a PEM block is a certificate.
fn is_certificate(label: &str) -> bool {
    ["CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE"].contains(&label)
}

/// Parses all certificates of a text, and returns the first one.
pub(super) fn chain(content: &[u8]) -> Result<Leaf, String> {
    let blocks = pem::blocks(content, "CERTIFICATE", is_certificate)?;
    let mut first = None;
    for (index, block) in blocks.iter().enumerate() {
        let broken = |_| format!("certificate {} cannot be parsed", index + 1);
        let (_, certificate) = X509Certificate::from_der(&block.content).map_err(broken)?;
        if first.is_none() {
            first = Some(leaf(&certificate));
        }
    }
    first.ok_or_else(|| "has no certificate".to_owned())
}

/// Parses all certificate revocation lists of a text. Envoy ignores a text without any.
pub(super) fn revocations(content: &[u8]) -> Result<(), String> {
    const LABEL: &str = "X509 CRL";
    let text = String::from_utf8_lossy(content);
    if !text.contains(&format!("-----BEGIN {LABEL}-----")) {
        return Ok(());
    }
    for (index, block) in pem::blocks(content, LABEL, |label| label == LABEL)?.iter().enumerate() {
        let broken = |_| format!("revocation list {} cannot be parsed", index + 1);
        CertificateRevocationList::from_der(&block.content).map_err(broken)?;
    }
    Ok(())
}

fn leaf(certificate: &X509Certificate<'_>) -> Leaf {
    let key = certificate.public_key();
    let key = match key.parsed() {
        Ok(PublicKey::RSA(rsa)) => Public::Rsa(stripped(rsa.modulus).to_vec()),
        Ok(PublicKey::EC(point)) => {
            let curve = key.algorithm.parameters.as_ref().map_or(&[][..], |any| any.data);
            Public::Ec(curve.to_vec(), Some(point.data().to_vec()))
        }
        _ => Public::Other,
    };
    let must_staple = certificate.extensions().iter().any(|extension| {
        extension.oid.to_id_string() == TLS_FEATURE && extension.value == MUST_STAPLE
    });
    let has_common_name = certificate.subject().iter_common_name().next().is_some();
    let has_name = has_common_name
        || certificate.extensions().iter().any(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectAlternativeName(names) => {
                names.general_names.iter().any(|name| {
                    matches!(
                        name,
                        GeneralName::DNSName(_) | GeneralName::IPAddress(_) | GeneralName::URI(_)
                    )
                })
            }
            _ => false,
        });
    Leaf { key, must_staple, has_name }
}

/// Checks that Envoy takes a key of this kind and size.
pub(super) fn strength(key: &Public) -> Result<(), String> {
    match key {
        Public::Rsa(modulus) => {
            let bits =
                modulus.len() * 8 - modulus.first().map_or(0, |byte| byte.leading_zeros() as usize);
            match bits < RSA_BITS_MIN {
                true => Err(format!(
                    "the RSA key has {bits} bits, but at least {RSA_BITS_MIN} are required"
                )),
                false => Ok(()),
            }
        }
        Public::Ec(curve, _) if !CURVES.contains(&curve.as_slice()) => {
            Err("the curve of the key is not P-256, P-384 or P-521".to_owned())
        }
        _ => Ok(()),
    }
}

/// Parses the private key of a text; `None` if it is encrypted.
pub(super) fn private_key(content: &[u8]) -> Result<Option<Public>, String> {
    let is_key = |label: &str| label == "PRIVATE KEY" || label.ends_with(" PRIVATE KEY");
    let blocks = pem::blocks(content, "PRIVATE KEY", is_key)?;
    let Some(block) = blocks.first() else { return Ok(None) };
    if block.is_encrypted || block.label == "ENCRYPTED PRIVATE KEY" {
        return Ok(None);
    }
    match public_part(block) {
        Some(key) => Ok(Some(key)),
        None => Err("the private key cannot be parsed".to_owned()),
    }
}

/// Returns the public part of a key in PKCS #8, PKCS #1 or SEC 1.
fn public_part(block: &Block) -> Option<Public> {
    let key = Items::sequence(&block.content)?;
    match block.label.as_str() {
        "RSA PRIVATE KEY" => rsa(key),
        "EC PRIVATE KEY" => ec(key, None),
        "PRIVATE KEY" => {
            let mut key = key;
            key.next(Tag::Integer)?;
            let mut algorithm = Items(key.next(Tag::Sequence)?);
            let kind = algorithm.next(Tag::Oid)?;
            let inner = key.next(Tag::OctetString)?;
            match kind {
                RSA => rsa(Items::sequence(inner)?),
                EC => ec(Items::sequence(inner)?, Some(algorithm.next(Tag::Oid)?)),
                _ => Some(Public::Other),
            }
        }
        _ => Some(Public::Other),
    }
}

fn rsa(mut key: Items<'_>) -> Option<Public> {
    key.next(Tag::Integer)?;
    Some(Public::Rsa(stripped(key.next(Tag::Integer)?).to_vec()))
}

/// Reads a key of SEC 1. The curve is in the key or around it.
fn ec<'a>(mut key: Items<'a>, mut curve: Option<&'a [u8]>) -> Option<Public> {
    key.next(Tag::Integer)?;
    key.next(Tag::OctetString)?;
    let mut point = None;
    while let Some(part) = key.any() {
        let mut inner = Items(part.data);
        match (part.header.class(), part.tag().0) {
            (Class::ContextSpecific, 0) => curve = inner.next(Tag::Oid).or(curve),
            // The first byte of a bit string is the number of unused bits.
            (Class::ContextSpecific, 1) => {
                point = inner.next(Tag::BitString).and_then(|bits| bits.get(1..));
            }
            _ => {}
        }
    }
    Some(Public::Ec(curve?.to_vec(), point.map(<[u8]>::to_vec)))
}

/// Returns whether a private key surely belongs to another certificate.
pub(super) fn differs(certificate: &Public, key: &Public) -> bool {
    match (certificate, key) {
        (Public::Ec(curve, _), Public::Ec(own, None)) => curve != own,
        (certificate, key) => certificate != key,
    }
}

/// Checks the outer structure of an OCSP response (RFC 6960).
pub(super) fn ocsp_response(content: &[u8]) -> Result<(), &'static str> {
    let response = || {
        let (rest, outer) = Any::from_der(content).ok()?;
        let mut inner = Items(outer.data);
        let is_whole = rest.is_empty() && outer.tag() == Tag::Sequence;
        is_whole.then(|| inner.next(Tag::Enumerated)).flatten()
    };
    match response() {
        None => Err("is not an OCSP response in DER"),
        Some([0]) => Ok(()),
        Some(_) => Err("is an OCSP response with an error"),
    }
}

/// Returns whether bytes are an ASN.1 sequence, as an archive of PKCS #12 is.
pub(super) fn is_sequence(content: &[u8]) -> bool {
    Items::sequence(content).is_some()
}

fn stripped(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}

/// The items of an ASN.1 sequence.
struct Items<'a>(&'a [u8]);

impl<'a> Items<'a> {
    fn sequence(content: &'a [u8]) -> Option<Self> {
        Items(content).next(Tag::Sequence).map(Items)
    }

    fn any(&mut self) -> Option<Any<'a>> {
        let (rest, item) = Any::from_der(self.0).ok()?;
        self.0 = rest;
        Some(item)
    }

    /// Returns the content of the next item, if it has the tag.
    fn next(&mut self, tag: Tag) -> Option<&'a [u8]> {
        self.any().filter(|item| item.tag() == tag).map(|item| item.data)
    }
}
