//! Discovery requests of clients and sinks, compared with what prost reads.

use std::collections::BTreeMap;

use bytes::Bytes;
use chancery_model::{
    TypeUrl,
    wire::{Fields, Token},
};
use chancery_proto::{
    discovery::{DeltaDiscoveryRequest, DiscoveryRequest, ResourceLocator},
    istio::mcp::v1alpha1::RequestResources,
};
use chancery_protocol::{DecodeLimits, DecodedRequest, Protocol, Request};
use prost::Message;

/// The maximum length of an input to which the small limits apply.
const SHORT_BYTES_MAX: usize = 8 << 10;
/// The number of the field in a delta request.
const INITIAL_RESOURCE_VERSIONS: u32 = 5;
/// The number of the field in a request of a sink.
const MCP_INITIAL_RESOURCE_VERSIONS: u32 = 3;
const NAMES_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 256;
const NACK_MESSAGE_BYTES_MAX: usize = 64;

/// Decodes a SotW request with its node. A request that is accepted has the names that prost reads.
pub(crate) fn sotw(message: &[u8], decoded: &dyn Fn()) {
    let Some(Request::Sotw(found)) = decode(Protocol::Sotw, message) else { return };
    decoded();
    let Ok(expected) = DiscoveryRequest::decode(message) else { return };
    assert_eq!(found.type_url, expected.type_url);
    let names = with_locators(expected.resource_names, expected.resource_locators);
    assert_eq!(found.resource_names.to_vec(), names);
    assert_eq!(found.error_detail.is_some(), expected.error_detail.is_some());
    drop(TypeUrl::new(&found.type_url));
}

/// Decodes a delta request with its node. A request that is accepted has the names that prost reads.
pub(crate) fn delta(message: &[u8], decoded: &dyn Fn()) {
    let Some(Request::Delta(found)) = decode(Protocol::Delta, message) else { return };
    decoded();
    // prost reads a map field of any wire type as an entry, and then also the fields of a group. The protocol
    // has only one with a length.
    if has_other_wire_type(message, INITIAL_RESOURCE_VERSIONS) {
        return;
    }
    let Ok(expected) = DeltaDiscoveryRequest::decode(message) else { return };
    assert_eq!(found.type_url, expected.type_url);
    let names =
        with_locators(expected.resource_names_subscribe, expected.resource_locators_subscribe);
    assert_eq!(found.subscribe.to_vec(), names);
    let names =
        with_locators(expected.resource_names_unsubscribe, expected.resource_locators_unsubscribe);
    assert_eq!(found.unsubscribe.to_vec(), names);
    let versions = found.initial_resource_versions.iter();
    let versions = versions.map(|(name, version)| (name.to_owned(), version.to_owned()));
    assert_eq!(versions.collect::<BTreeMap<_, _>>(), expected.initial_resource_versions);
}

/// Decodes a request of a sink with its node. A request that is accepted has the fields that prost reads.
pub(crate) fn mcp(message: &[u8], decoded: &dyn Fn()) {
    let Some(Request::Mcp(found)) = decode(Protocol::Mcp, message) else { return };
    decoded();
    if has_other_wire_type(message, MCP_INITIAL_RESOURCE_VERSIONS) {
        return;
    }
    let Ok(expected) = RequestResources::decode(message) else { return };
    assert_eq!(found.collection, expected.collection);
    assert_eq!(found.incremental, expected.incremental);
    assert_eq!(found.error_detail.is_some(), expected.error_detail.is_some());
    let versions = found.initial_resource_versions.iter();
    let versions = versions.map(|(name, version)| (name.to_owned(), version.to_owned()));
    assert_eq!(versions.collect::<BTreeMap<_, _>>(), expected.initial_resource_versions);
}

/// Returns whether a field of a valid message may occur without a length.
fn has_other_wire_type(message: &[u8], number: u32) -> bool {
    let mut fields = Fields::new(0, message.len());
    std::iter::from_fn(|| fields.next(message).ok()?).any(|token| match token {
        Token::Varint { field, .. } | Token::Fixed { field } => field == number,
        Token::Group => true,
        Token::Bytes { .. } => false,
    })
}

/// Adds the names of locators, which come last.
fn with_locators(mut names: Vec<String>, locators: Vec<ResourceLocator>) -> Vec<String> {
    names.extend(locators.into_iter().map(|locator| locator.name));
    names
}

/// Decodes a request with its node. The limits of long inputs are as large as the inputs, so that the time for long
/// lists shows.
fn decode(protocol: Protocol, message: &[u8]) -> Option<Request> {
    let limit = |of_short| if message.len() <= SHORT_BYTES_MAX { of_short } else { message.len() };
    let limits = DecodeLimits {
        names_max: limit(NAMES_MAX),
        name_bytes_max: limit(NAME_BYTES_MAX),
        nack_message_bytes_max: limit(NACK_MESSAGE_BYTES_MAX),
    };
    let decoded = DecodedRequest::decode(protocol, Bytes::copy_from_slice(message), limits).ok()?;
    chancery_xds::fuzz::request_node(protocol, message, decoded.node);
    Some(decoded.request)
}
