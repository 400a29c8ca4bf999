//! The addresses on which listeners accept connections. Envoy rejects a listener with the address of another one.

use std::{borrow::Cow, net::IpAddr};

use chancery_model::{ResourceKey, is_structured, types};

use crate::wire::{Raw, Reader, last, last_text, last_varint};

/// An address on which a listener accepts connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerAddress {
    /// The field of the listener.
    pub field: Cow<'static, str>,
    /// The address as text: equal for two addresses if Envoy rejects the second one.
    pub text: String,
}

/// The numbers of fields of `Listener`.
const ADDRESS: u32 = 2;
const ADDITIONAL_ADDRESSES: u32 = 33;
const ENABLE_REUSE_PORT: u32 = 29;

/// Returns the addresses of a listener that no other listener of a view can have. Other resources have none.
///
/// Envoy subscribes to all listeners of its view. A listener with a structured name is requested by its name,
/// and one with a query is requested by a gRPC server for itself. Variants of a name replace each other. They
/// have no addresses in this sense.
#[must_use]
pub fn listener_addresses(key: &ResourceKey, body: &[u8]) -> Vec<ListenerAddress> {
    let name = key.name.base();
    let is_listener = key.type_url.as_str() == types::LISTENER;
    if !is_listener || key.name.is_variant() || is_structured(name) || name.contains('?') {
        return Vec::new();
    }
    let mut found = Vec::new();
    let own = last(body, ADDRESS).and_then(text);
    found.extend(own.map(|text| ListenerAddress { field: Cow::Borrowed("address"), text }));
    let (mut reader, mut index) = (Reader(body), 0_usize);
    while let Ok(Some((number, raw))) = reader.next() {
        let Raw::Len(entry) = raw else { continue };
        if number != ADDITIONAL_ADDRESSES {
            continue;
        }
        let field = Cow::Owned(format!("additional_addresses[{index}].address"));
        let address = last(entry, 1).and_then(text);
        found.extend(address.map(|text| ListenerAddress { field, text }));
        index += 1;
    }
    found
}

/// Returns whether the sockets of a listener let other sockets have their port, which is the default. Envoy rejects a
/// change, and a listener without this property that keeps only some of its addresses.
#[must_use]
pub fn reuses_ports(listener: &[u8]) -> bool {
    match last(listener, ENABLE_REUSE_PORT) {
        Some(value) => last_varint(value, 1) == Some(1),
        None => true,
    }
}

/// Returns an `envoy.config.core.v3.Address` as text; `None` if others can have it: the system chooses the
/// port 0, and internal addresses belong to the name of the listener.
fn text(address: &[u8]) -> Option<String> {
    if let Some(pipe) = last(address, 2) {
        return last_text(pipe, 1).map(ToOwned::to_owned);
    }
    let socket = last(address, 1)?;
    let port = last_varint(socket, 3).filter(|port| *port != 0)?;
    let ip = last_text(socket, 2).unwrap_or_default();
    let host = match ip.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
        Ok(IpAddr::V4(ip)) => ip.to_string(),
        Err(_) => ip.to_owned(),
    };
    let protocol = if last_varint(socket, 1) == Some(1) { " (UDP)" } else { "" };
    let namespace = last_text(socket, 7).filter(|path| !path.is_empty());
    let namespace = namespace.map(|path| format!(" in {path}")).unwrap_or_default();
    Some(format!("{host}:{port}{protocol}{namespace}"))
}
