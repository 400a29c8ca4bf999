//! The format of sealed bytes, and the digests of bodies. Pure, except for random numbers.
//!
//! ```text
//! 1 │ data key (4, big endian) │ salt (32) │ nonce (12) │ AES-256-GCM(HKDF-SHA256(key, salt), bytes) │ tag (16)
//! ```
//!
//! HKDF derives another key for each write, so the number of writes per data key is not limited by the nonces of
//! AES-GCM. The associated data are the sealing ID, the scope, the type, the name and the data key, each after its
//! length. A sealed body that is moved to another resource, or to another cluster, therefore does not open.

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    constant_time, hkdf, hmac, rand,
};
use bytes::Bytes;
use chancery_model::{DataKeyId, ResourceKey, ScopeName, SealingId};

use crate::key::{KEY_BYTES, Key, SealError};

const FORMAT: u8 = 1;
const SALT_BYTES: usize = 32;
const TAG_BYTES: usize = 16;
const HEADER_BYTES: usize = 1 + 4 + SALT_BYTES + NONCE_LEN;

const BODY_DOMAIN: &[u8] = b"chancery sealed body v1";
const WRAP_DOMAIN: &[u8] = b"chancery wrapped key v1";
const MAC_DOMAIN: &[u8] = b"chancery body digest v1";
const NAME_DOMAIN: &[u8] = b"chancery key name v1";

/// The place of a sealed body, which is part of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path<'a> {
    /// The ID of the keys of the cluster.
    pub(crate) sealing_id: SealingId,
    pub(crate) scope: &'a ScopeName,
    /// The type and name.
    pub(crate) key: &'a ResourceKey,
}

impl Path<'_> {
    fn parts(&self) -> [&[u8]; 4] {
        let ResourceKey { type_url, name } = self.key;
        let texts = [self.scope.as_str(), type_url.as_str(), name.as_str()].map(str::as_bytes);
        [&self.sealing_id.0, texts[0], texts[1], texts[2]]
    }
}

/// The key that a wrapped key belongs to: 0 for the key of digests, or a data key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WrapPath {
    pub(crate) sealing_id: SealingId,
    pub(crate) target: u64,
}

/// Joins parts, each after its length, so that different parts never give the same bytes.
fn encode(domain: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in [domain].into_iter().chain(parts.iter().copied()) {
        out.extend_from_slice(&(part.len() as u64).to_be_bytes());
        out.extend_from_slice(part);
    }
    out
}

pub(crate) fn seal_body(
    key: &Key,
    id: DataKeyId,
    path: &Path<'_>,
    body: &[u8],
) -> Result<Bytes, SealError> {
    seal(key, id.0, &encode(BODY_DOMAIN, &path.parts()), body)
}

pub(crate) fn open_body(
    key: &Key,
    id: DataKeyId,
    path: &Path<'_>,
    sealed: &[u8],
) -> Result<Bytes, SealError> {
    open(key, id.0, &encode(BODY_DOMAIN, &path.parts()), sealed).map(Bytes::from)
}

/// Wraps a key.
pub(crate) fn wrap(kek: &Key, path: WrapPath, key: &Key) -> Result<Bytes, SealError> {
    seal(kek, 0, &wrap_data(path), key.bytes())
}

/// Unwraps a key.
pub(crate) fn unwrap(kek: &Key, path: WrapPath, wrapped: &[u8]) -> Result<Key, SealError> {
    let bytes = zeroize::Zeroizing::new(open(kek, 0, &wrap_data(path), wrapped)?);
    Key::from_bytes(&bytes).ok_or(SealError::Format)
}

fn wrap_data(path: WrapPath) -> Vec<u8> {
    encode(WRAP_DOMAIN, &[&path.sealing_id.0, &path.target.to_be_bytes()])
}

fn associated(data: &[u8], id: u32) -> Vec<u8> {
    [data, &id.to_be_bytes()[..]].concat()
}

fn seal(key: &Key, id: u32, data: &[u8], plain: &[u8]) -> Result<Bytes, SealError> {
    let mut out = Vec::with_capacity(HEADER_BYTES + plain.len() + TAG_BYTES);
    out.push(FORMAT);
    out.extend_from_slice(&id.to_be_bytes());
    let mut random = [0; SALT_BYTES + NONCE_LEN];
    rand::fill(&mut random).map_err(|_| SealError::Random)?;
    out.extend_from_slice(&random);
    let (salt, nonce) = random.split_at(SALT_BYTES);
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Format)?;
    out.extend_from_slice(plain);
    let (_, body) = out.split_at_mut(HEADER_BYTES);
    let tag = derive(key, salt)?
        .seal_in_place_separate_tag(nonce, Aad::from(associated(data, id)), body)
        .map_err(|_| SealError::Long)?;
    out.extend_from_slice(tag.as_ref());
    Ok(out.into())
}

fn open(key: &Key, id: u32, data: &[u8], sealed: &[u8]) -> Result<Vec<u8>, SealError> {
    let (header, body) = sealed.split_at_checked(HEADER_BYTES).ok_or(SealError::Format)?;
    let (prefix, random) = header.split_at(5);
    if prefix[0] != FORMAT || prefix[1..] != id.to_be_bytes() || body.len() < TAG_BYTES {
        return Err(SealError::Format);
    }
    let (salt, nonce) = random.split_at(SALT_BYTES);
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Format)?;
    let (body, tag) = body.split_at(body.len() - TAG_BYTES);
    let mut plain = vec![0; body.len()];
    derive(key, salt)?
        .open_separate_gather(nonce, Aad::from(associated(data, id)), body, tag, &mut plain)
        .map_err(|_| SealError::Authentic)?;
    Ok(plain)
}

/// Derives the key of one write.
fn derive(key: &Key, salt: &[u8]) -> Result<LessSafeKey, SealError> {
    let derived = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(key.bytes());
    let mut bytes = zeroize::Zeroizing::new([0; KEY_BYTES]);
    let expanded = derived.expand(&[BODY_DOMAIN], &AES_256_GCM);
    expanded.and_then(|expanded| expanded.fill(&mut bytes[..])).map_err(|_| SealError::Format)?;
    UnboundKey::new(&AES_256_GCM, &bytes[..]).map(LessSafeKey::new).map_err(|_| SealError::Format)
}

/// Returns the digest of a body, which two bodies of a resource have in common only if they are equal.
pub(crate) fn mac(key: &Key, path: &Path<'_>, body: &[u8]) -> [u8; 32] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.bytes());
    let mut context = hmac::Context::with_key(&key);
    context.update(&encode(MAC_DOMAIN, &path.parts()));
    context.update(body);
    let mut digest = [0; 32];
    digest.copy_from_slice(context.sign().as_ref());
    digest
}

/// Returns whether two digests are equal, in constant time.
pub(crate) fn is_same_mac(a: &[u8; 32], b: &[u8; 32]) -> bool {
    constant_time::verify_slices_are_equal(a, b).is_ok()
}

/// Returns a name for a key, which does not reveal the key.
pub(crate) fn name_of(key: &Key) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.bytes());
    hex::encode(&hmac::sign(&key, NAME_DOMAIN).as_ref()[..8])
}

#[cfg(test)]
mod tests {
    use chancery_model::{ResourceName, TypeUrl};
    use proptest::prelude::*;

    use super::*;

    fn key_of(type_url: &str, name: &str) -> ResourceKey {
        let type_url = TypeUrl::new(type_url).unwrap();
        ResourceKey { type_url, name: ResourceName::new(name).unwrap() }
    }

    /// Everything that a sealed body is bound to.
    #[derive(Debug, Clone, PartialEq)]
    struct Place {
        key: u8,
        sealing_id: [u8; 16],
        scope: String,
        type_url: String,
        name: String,
        id: u32,
    }

    impl Place {
        fn with<T>(&self, act: impl FnOnce(&Key, DataKeyId, &Path<'_>) -> T) -> T {
            let key = Key::from_bytes(&[self.key; 32]).unwrap();
            let scope = ScopeName::new(&self.scope).unwrap();
            let resource = key_of(&self.type_url, &self.name);
            let sealing_id = SealingId(self.sealing_id);
            act(&key, DataKeyId(self.id), &Path { sealing_id, scope: &scope, key: &resource })
        }

        fn seal(&self, body: &[u8]) -> Bytes {
            self.with(|key, id, path| seal_body(key, id, path, body)).unwrap()
        }

        fn open(&self, sealed: &[u8]) -> Result<Bytes, SealError> {
            self.with(|key, id, path| open_body(key, id, path, sealed))
        }
    }

    fn place() -> impl Strategy<Value = Place> {
        // Short texts over few letters: neighbouring parts often could be split elsewhere.
        let text = || "[ab/]{0,3}";
        (0..3_u8, prop::array::uniform16(0..2_u8), text(), text(), text(), 0..3_u32).prop_map(
            |(key, sealing_id, scope, type_url, name, id)| Place {
                key,
                sealing_id,
                scope: format!("s{}", scope.replace('/', "-")),
                type_url: format!("type.googleapis.com/t{}", type_url.replace('/', ".")),
                name: format!("n{name}"),
                id,
            },
        )
    }

    proptest! {
        /// A sealed body opens at its place, and at no other one. All parts of the place count.
        #[test]
        fn sealed_body_opens_only_at_its_own_place(
            here in place(),
            there in place(),
            body in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let sealed = here.seal(&body);
            prop_assert_eq!(here.open(&sealed).unwrap(), body);
            prop_assert_eq!(there.open(&sealed).is_ok(), here == there);
        }

        /// Attack 58: each part of the place counts alone.
        #[test]
        fn sealed_body_with_one_wrong_associated_part_does_not_open(
            here in place(),
            body in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let sealed = here.seal(&body);
            let mut id = here.sealing_id;
            id[0] ^= 1;
            let wrong = [
                Place { key: here.key + 1, ..here.clone() },
                Place { sealing_id: id, ..here.clone() },
                Place { scope: format!("{}x", here.scope), ..here.clone() },
                Place { type_url: format!("{}x", here.type_url), ..here.clone() },
                Place { name: format!("{}x", here.name), ..here.clone() },
                Place { id: here.id + 1, ..here.clone() },
            ];
            for place in wrong {
                prop_assert!(place.open(&sealed).is_err(), "{:?}", place);
            }
        }

        /// A changed bit, a missing or an added byte is detected at every position.
        #[test]
        fn changed_sealed_body_does_not_open(
            here in place(),
            body in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let sealed = here.seal(&body);
            for bit in 0..sealed.len() * 8 {
                let mut changed = sealed.to_vec();
                changed[bit / 8] ^= 1 << (bit % 8);
                prop_assert!(here.open(&changed).is_err(), "bit {bit}");
            }
            for len in 0..sealed.len() {
                prop_assert!(here.open(&sealed[..len]).is_err(), "length {len}");
            }
            prop_assert!(here.open(&[&sealed[..], b"x"].concat()).is_err());
        }

        /// The digest depends on the body and on the place, so that equal secrets of two resources do not show.
        #[test]
        fn digests_are_equal_only_for_equal_bodies_of_one_resource(
            here in place(),
            there in place(),
            a in prop::collection::vec(any::<u8>(), 0..3),
            b in prop::collection::vec(any::<u8>(), 0..3),
        ) {
            let of = |place: &Place, body: &[u8]| place.with(|key, _, path| mac(key, path, body));
            let there = Place { id: here.id, ..there };
            let is_equal = is_same_mac(&of(&here, &a), &of(&there, &b));
            prop_assert_eq!(is_equal, here == there && a == b);
        }
    }

    #[test]
    fn equal_bodies_have_different_sealed_forms() {
        let place = Place {
            key: 1,
            sealing_id: [0; 16],
            scope: "s".into(),
            type_url: "type.googleapis.com/t".into(),
            name: "n".into(),
            id: 1,
        };
        assert_ne!(place.seal(b"same"), place.seal(b"same"));
    }

    #[test]
    fn wrapped_key_opens_only_for_its_target() {
        let (kek, key) = (Key::random().unwrap(), Key::random().unwrap());
        let path = |n: u8, target| WrapPath { sealing_id: SealingId([n; 16]), target };
        let wrapped = wrap(&kek, path(1, 7), &key).unwrap();
        assert_eq!(unwrap(&kek, path(1, 7), &wrapped).unwrap().bytes(), key.bytes());
        for other in [path(1, 8), path(2, 7)] {
            assert_eq!(unwrap(&kek, other, &wrapped).unwrap_err(), SealError::Authentic);
        }
        let other = Key::random().unwrap();
        assert_eq!(unwrap(&other, path(1, 7), &wrapped).unwrap_err(), SealError::Authentic);
    }

    /// The format of the first release is readable forever.
    #[test]
    fn sealed_format_of_first_release_is_unchanged() {
        let place = Place {
            key: 7,
            sealing_id: [9; 16],
            scope: "mesh".into(),
            type_url: "type.googleapis.com/x.Y".into(),
            name: "cert".into(),
            id: 3,
        };
        let golden = hex::decode(GOLDEN).unwrap();
        assert_eq!(place.open(&golden).unwrap(), "the secret");
    }

    /// Made by another implementation of HKDF and AES-GCM.
    const GOLDEN: &str = "0100000003000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f6\
        465666768696a6b6c6d6e6f7afb1144e5906dff09776f3c9db83ef5eed8942cd6b7c28567cb";
}
