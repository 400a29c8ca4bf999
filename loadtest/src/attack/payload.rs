//! Requests of the maximum size, each of which is expensive in a different way.

use bytes::{BufMut as _, Bytes, BytesMut};
use chancery_fleet_load::stream;
use chancery_model::types::{CLUSTER, ENDPOINT};
use chancery_proto::discovery::{DeltaDiscoveryRequest, DiscoveryRequest};
use prost::Message as _;
use serde::{Deserialize, Serialize};

/// The number of names in a request with the maximum number of names.
const NAMES: usize = 1_000_000;

/// Keys of length-delimited fields of `DeltaDiscoveryRequest`.
const SUBSCRIBE: u8 = 0x1a;
const VERSIONS: u8 = 0x2a;
const LOCATORS: u8 = 0x42;
const UNKNOWN: u8 = 0x7a;

/// The kinds of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// Empty `error_detail.details`.
    Details,
    /// Empty `resource_locators_subscribe`.
    Locators,
    /// Empty fields that the message does not have.
    Unknown,
    /// Names of one byte.
    TinyNames,
    /// Empty entries of `initial_resource_versions`.
    EmptyVersions,
    /// A million names, delta.
    Names,
    /// A million entries of `initial_resource_versions`.
    Versions,
    /// A million names, state of the world.
    SotwNames,
    /// A node with a list of empty values.
    Node,
}

impl Kind {
    pub(super) fn method(self) -> &'static str {
        match self {
            Self::SotwNames => stream::SOTW,
            _ => stream::DELTA,
        }
    }

    /// Returns a gRPC message of about `bytes` bytes, or with a million names.
    pub(super) fn message(self, bytes: usize) -> Bytes {
        let delta = |type_url: &str| DeltaDiscoveryRequest {
            node: Some(stream::node("attacker".to_owned())),
            type_url: type_url.to_owned(),
            ..DeltaDiscoveryRequest::default()
        };
        let names = || (0..NAMES).map(|n| format!("{n:05x}"));
        let filled = |entry: &[u8]| {
            let mut message = delta(CLUSTER).encode_to_vec();
            let room = bytes.saturating_sub(message.len());
            message.extend_from_slice(&entry.repeat(room / entry.len()));
            message
        };
        let message = match self {
            Self::Details => {
                let details = [0x1a, 0].repeat((bytes.saturating_sub(100)) / 2);
                let mut message = BytesMut::from(&delta(CLUSTER).encode_to_vec()[..]);
                message.put_u8(0x3a);
                prost::encode_length_delimiter(details.len(), &mut message).unwrap_or_default();
                message.put_slice(&details);
                message.to_vec()
            }
            Self::Locators => filled(&[LOCATORS, 0]),
            Self::Unknown => filled(&[UNKNOWN, 0]),
            Self::TinyNames => filled(&[SUBSCRIBE, 1, b'x']),
            Self::EmptyVersions => filled(&[VERSIONS, 0]),
            Self::Names => {
                let resource_names_subscribe = names().collect();
                let of_names =
                    DeltaDiscoveryRequest { resource_names_subscribe, ..delta(ENDPOINT) };
                of_names.encode_to_vec()
            }
            Self::Versions => {
                let version = |name| (name, "1-00000000".to_owned());
                let initial_resource_versions = names().map(version).collect();
                let held = DeltaDiscoveryRequest { initial_resource_versions, ..delta(CLUSTER) };
                held.encode_to_vec()
            }
            Self::SotwNames => DiscoveryRequest {
                node: Some(stream::node("attacker".to_owned())),
                type_url: ENDPOINT.to_owned(),
                resource_names: names().collect(),
                ..DiscoveryRequest::default()
            }
            .encode_to_vec(),
            Self::Node => {
                // A list of empty values: two bytes each, in a value in an entry in a struct.
                let mut content = [0x0a, 0].repeat((1 << 19) - 100);
                for key in [0x32, 0x12, 0x0a, 0x1a] {
                    let mut outer = BytesMut::new();
                    outer.put_u8(key);
                    prost::encode_length_delimiter(content.len(), &mut outer).unwrap_or_default();
                    outer.put_slice(&content);
                    content = outer.to_vec();
                }
                let mut node = stream::node("attacker".to_owned()).to_vec();
                node.extend_from_slice(&content);
                DeltaDiscoveryRequest { node: Some(node.into()), ..delta(CLUSTER) }.encode_to_vec()
            }
        };
        let mut framed = BytesMut::with_capacity(message.len() + 5);
        framed.put_u8(0);
        framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
        framed.put_slice(&message);
        framed.freeze()
    }
}
