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

/// The labels of certificates. The first certificate of a chain may have any of them. The others may not have the last one.
const CERTIFICATES: [&str; 3] = ["CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE"];
/// The labels of private keys.
const KEYS: [&str; 5] = [
    "PRIVATE KEY",
    "ENCRYPTED PRIVATE KEY",
    "RSA PRIVATE KEY",
    "EC PRIVATE KEY",
    "DSA PRIVATE KEY",
];

/// Parses all certificates of a chain, and returns the first one. Envoy skips blocks with other labels, but not blocks
/// that cannot be read.
pub(super) fn chain(content: &[u8]) -> Result<Leaf, String> {
    let (mut first, mut n) = (None, 0);
    for block in pem::blocks(content) {
        let block = block?;
        let labels = if n == 0 { &CERTIFICATES[..] } else { &CERTIFICATES[..2] };
        if !labels.contains(&block.label.as_str()) {
            continue;
        }
        n += 1;
        let certificate = certificate(&block, n)?;
        first.get_or_insert_with(|| leaf(&certificate));
    }
    first.ok_or_else(|| pem::missing(content, "CERTIFICATE"))
}

fn certificate(block: &Block, n: usize) -> Result<X509Certificate<'_>, String> {
    match X509Certificate::from_der(&block.content) {
        Ok((_, certificate)) if !block.has_header() => Ok(certificate),
        _ => Err(format!("certificate {n} cannot be parsed")),
    }
}

/// Parses the certificates of authorities.
pub(super) fn authorities(content: &[u8]) -> Result<(), String> {
    match store(content)? {
        (0, _) => Err(pem::missing(content, "CERTIFICATE")),
        _ => Ok(()),
    }
}

/// Parses the certificate revocation lists of a text, and returns their number.
pub(super) fn revocations(content: &[u8]) -> Result<usize, String> {
    store(content).map(|(_, n_lists)| n_lists)
}

/// Parses certificates, revocation lists and keys of a text, as Envoy does where it expects certificates of
/// authorities or revocation lists. Returns the numbers of certificates and of lists.
fn store(content: &[u8]) -> Result<(usize, usize), String> {
    let (mut n_certificates, mut n_lists) = (0, 0);
    for block in pem::blocks(content) {
        let block = block?;
        match block.label.as_str() {
            label if CERTIFICATES.contains(&label) => {
                n_certificates += 1;
                certificate(&block, n_certificates)?;
            }
            "X509 CRL" => {
                n_lists += 1;
                let list = CertificateRevocationList::from_der(&block.content);
                if block.has_header() || list.is_err() {
                    return Err(format!("revocation list {n_lists} cannot be parsed"));
                }
            }
            "RSA PRIVATE KEY" | "EC PRIVATE KEY" | "DSA PRIVATE KEY"
                if !block.has_header() && public_part(&block).is_none() =>
            {
                return Err("has a private key that cannot be parsed".to_owned());
            }
            _ => {}
        }
    }
    Ok((n_certificates, n_lists))
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
            if bits < RSA_BITS_MIN {
                Err(format!(
                    "the RSA key has {bits} bits, but at least {RSA_BITS_MIN} are required"
                ))
            } else {
                Ok(())
            }
        }
        Public::Ec(curve, _) if !CURVES.contains(&curve.as_slice()) => {
            Err("the curve of the key is not P-256, P-384 or P-521".to_owned())
        }
        _ => Ok(()),
    }
}

/// Parses the first private key of a text; `None` if it is encrypted.
pub(super) fn private_key(content: &[u8]) -> Result<Option<Public>, String> {
    for block in pem::blocks(content) {
        let block = block?;
        if !KEYS.contains(&block.label.as_str()) {
            continue;
        }
        if block.is_encrypted() || block.label == "ENCRYPTED PRIVATE KEY" {
            return Ok(None);
        }
        let key = public_part(&block).filter(|_| !block.has_header());
        return key.map(Some).ok_or_else(|| "the private key cannot be parsed".to_owned());
    }
    Err(pem::missing(content, "PRIVATE KEY"))
}

/// Returns the public part of a key in PKCS #8, PKCS #1 or SEC 1. A key in PKCS #8 may have the label of its kind.
fn public_part(block: &Block) -> Option<Public> {
    let content = &block.content;
    let is = |kind: fn(&Public) -> bool| pkcs8(content).filter(kind);
    match block.label.as_str() {
        "RSA PRIVATE KEY" => {
            rsa(Items::sequence(content)?).or_else(|| is(|key| matches!(key, Public::Rsa(_))))
        }
        "EC PRIVATE KEY" => {
            ec(Items::sequence(content)?, None).or_else(|| is(|key| matches!(key, Public::Ec(..))))
        }
        "PRIVATE KEY" => pkcs8(content),
        _ => Some(Public::Other),
    }
}

fn pkcs8(content: &[u8]) -> Option<Public> {
    let mut key = Items::sequence(content)?;
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
