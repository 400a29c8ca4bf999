//! The keys by which resources of one type exclude each other at a client ([`Exclusion`]).
//!
//! The keys are fields of the body, and no format on disk stores a copy of them. A session decodes the keys only when
//! it removes and adds resources of the same type.

use crate::{
    hash::Tag,
    types::Exclusion,
    wire::{Fields, Token},
};

/// The numbers of fields.
mod field {
    /// `ScopedRouteConfiguration.key`, and `fragments` and `string_key` in it.
    pub(super) const SCOPE_KEY: u32 = 3;
    pub(super) const FRAGMENTS: u32 = 1;
    pub(super) const STRING_KEY: u32 = 1;
    /// `VirtualHost.domains`.
    pub(super) const DOMAINS: u32 = 2;
    /// `Listener.address`, `Listener.additional_addresses`, and `address` in the latter.
    pub(super) const ADDRESS: u32 = 2;
    pub(super) const ADDITIONAL_ADDRESSES: u32 = 33;
    pub(super) const ADDITIONAL_ADDRESS: u32 = 1;
    /// `Address.socket_address` and `Address.pipe`, and `path` in the latter.
    pub(super) const SOCKET_ADDRESS: u32 = 1;
    pub(super) const PIPE: u32 = 2;
    pub(super) const PIPE_PATH: u32 = 1;
    /// `SocketAddress.protocol`, `.address` and `.port_value`.
    pub(super) const PROTOCOL: u32 = 1;
    pub(super) const IP: u32 = 2;
    pub(super) const PORT: u32 = 3;
}

/// Returns digests of the keys of a resource with this published name.
pub(crate) fn exclusive_keys(by: Exclusion, name: &str, body: &[u8]) -> Vec<u64> {
    match by {
        Exclusion::None => Vec::new(),
        Exclusion::ScopeKey => scope_key(body).into_iter().collect(),
        Exclusion::Domain => {
            let route = name.rsplit_once('/').map_or("", |(route, _)| route);
            let domains = contents(body, field::DOMAINS);
            let key = |domain: &[u8]| {
                Tag::default().field(route.as_bytes()).field(&domain.to_ascii_lowercase()).digest()
            };
            domains.map(key).collect()
        }
        Exclusion::Address => {
            let more = contents(body, field::ADDITIONAL_ADDRESSES);
            let more = more.flat_map(|one| contents(one, field::ADDITIONAL_ADDRESS));
            contents(body, field::ADDRESS).chain(more).filter_map(address_key).collect()
        }
    }
}

/// Returns the digest of a scope's key; `None` without one.
fn scope_key(body: &[u8]) -> Option<u64> {
    let keys = contents(body, field::SCOPE_KEY);
    let mut fragments = keys.flat_map(|key| contents(key, field::FRAGMENTS)).peekable();
    fragments.peek()?;
    let mut tag = Tag::default();
    for fragment in fragments {
        tag = tag.field(contents(fragment, field::STRING_KEY).last().unwrap_or_default());
    }
    Some(tag.digest())
}

/// Returns the digest of an address; `None` if several listeners can have it, such as one whose port the system
/// chooses.
fn address_key(address: &[u8]) -> Option<u64> {
    if let Some(pipe) = contents(address, field::PIPE).last() {
        let path = contents(pipe, field::PIPE_PATH).last()?;
        return Some(Tag::default().field(path).digest());
    }
    let socket = contents(address, field::SOCKET_ADDRESS).last()?;
    let number = |of: u32| {
        let values = tokens(socket).filter_map(|token| match token {
            Token::Varint { field, value } if field == of => Some(value),
            _ => None,
        });
        values.last().unwrap_or_default()
    };
    let port = number(field::PORT);
    let ip = contents(socket, field::IP).last().unwrap_or_default();
    let key = || {
        let tag = Tag::default().field(&number(field::PROTOCOL).to_le_bytes());
        tag.field(ip).field(&port.to_le_bytes()).digest()
    };
    (port != 0).then(key)
}

/// Iterates over the contents of one field of a message.
fn contents(message: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    tokens(message).filter_map(move |token| match token {
        Token::Bytes { field, content } if field == number => Some(content),
        _ => None,
    })
}

/// Iterates over the fields of a message, up to the first malformed one.
fn tokens(message: &[u8]) -> impl Iterator<Item = Token<'_>> {
    let mut fields = Fields::new(0, message.len());
    std::iter::from_fn(move || fields.next(message).ok().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a field with a length.
    fn len(number: u8, content: &[u8]) -> Vec<u8> {
        // The fields from 16 on have keys of two bytes.
        let key = u16::from(number) << 3 | 2;
        let key = match u8::try_from(key) {
            Ok(key) if key < 128 => vec![key],
            _ => vec![(key & 0x7f) as u8 | 0x80, (key >> 7 & 0x7f) as u8],
        };
        [key.as_slice(), &[u8::try_from(content.len()).unwrap()], content].concat()
    }

    fn scope(fragments: &[&str]) -> Vec<u8> {
        let fragments = fragments.iter().map(|text| len(1, &len(1, text.as_bytes())));
        let fragments: Vec<Vec<u8>> = fragments.collect();
        [len(1, b"name"), len(2, b"route"), len(3, &fragments.concat())].concat()
    }

    #[test]
    fn scopes_with_equal_fragments_have_equal_keys() {
        let of = |fragments: &[&str]| exclusive_keys(Exclusion::ScopeKey, "x", &scope(fragments));
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
        assert_ne!(of(&["a", "b"]), of(&["ab", ""]));
        assert_ne!(of(&["a"]), of(&["b"]));
        assert_eq!(exclusive_keys(Exclusion::ScopeKey, "x", b"1"), []);
        let body = scope(&["a", "b"]);
        for end in 0..body.len() {
            let _no_panic = exclusive_keys(Exclusion::ScopeKey, "x", &body[..end]);
        }
    }

    #[test]
    fn virtual_hosts_share_domains_within_a_route_configuration() {
        let body = [len(1, b"r/x"), len(2, b"A.test"), len(2, b"b.test")].concat();
        let of = |name: &str, body: &[u8]| exclusive_keys(Exclusion::Domain, name, body);
        let all = of("r/x", &body);
        assert_eq!(all.len(), 2);
        assert_eq!(of("r/y", &len(2, b"a.test")), all[..1]);
        assert_ne!(of("s/y", &len(2, b"a.test")), all[..1]);
    }

    #[test]
    fn listeners_share_addresses_that_the_system_does_not_choose() {
        let socket = |ip: &str, port: u8| {
            let body = [len(2, ip.as_bytes()), vec![0x18, port]].concat();
            len(1, &body)
        };
        let of = |body: &[u8]| exclusive_keys(Exclusion::Address, "x", body);
        let one = of(&len(2, &socket("::1", 80)));
        assert_eq!(one.len(), 1);
        assert_ne!(of(&len(2, &socket("::1", 81))), one);
        assert_eq!(of(&len(33, &len(1, &socket("::1", 80)))), one);
        assert_eq!(of(&len(2, &socket("::1", 0))), []);
        assert_eq!(of(&len(2, &len(2, &len(1, b"/run/x")))).len(), 1);
    }
}
