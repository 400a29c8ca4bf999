//! The encoding of resources in a response, with or without their lifetimes.
//!
//! All clients share the encoded bytes of a resource, which do not contain its lifetime. For a
//! client that supports lifetimes, each response adds bytes before and after them:
//!
//! - In delta, the lifetime is a field of the resource (`Resource.ttl`).
//! - In SotW, a resource with a lifetime is wrapped in an `Any` with a `Resource` (TTL-05). Resources
//!   without a lifetime stay bare (SOTW-113).
//! - In MCP, a resource has no lifetime. It is an `istio.mcp.v1alpha1.Resource` without an `Any` around it. Each response
//!   adds the metadata after it.
//!
//! A resource whose name the client spells differently gets the client's spelling in the same way. In
//! SotW, only the wrapper has a place for it (XDSTP-03).

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use chancery_model::{
    CollectionVersion, Incarnation, Resource, TypeVersion, encode_resource_name, mcp_metadata,
    wire::{len_field_len, put_len_field, put_len_header, put_varint, varint_len},
};

use crate::{Protocol, spelling::Spellings};

/// The type of the wrapper in SotW.
const WRAPPER_URL: &str = "type.googleapis.com/envoy.service.discovery.v3.Resource";

/// The form of lifetimes in the responses of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LifetimeForm {
    /// Lifetimes are not sent.
    #[default]
    None,
    /// Delta: a field of the resource.
    Field,
    /// SotW: a field of the wrapper around the resource.
    Wrapper,
}

/// The encoding of the resources of one response.
#[derive(Debug)]
pub(crate) struct Encoding {
    protocol: Protocol,
    form: LifetimeForm,
    /// Whether the client reads the constraints of variants (DYN-04).
    reads_constraints: bool,
    /// The names that the client writes differently (XDSTP-03).
    spellings: Spellings,
    /// The version in wrappers. It is the version of the response, because Envoy compares the two
    /// (CLI-E-45).
    version: Box<str>,
    /// The cluster, which the versions of MCP identify (MCP-37).
    incarnation: Incarnation,
}

/// One encoded `resources` field, in three pieces.
#[derive(Debug)]
pub(crate) struct EncodedResource {
    pub(crate) head: BytesMut,
    /// The bytes that all clients share.
    pub(crate) shared: Bytes,
    pub(crate) tail: BytesMut,
}

impl Encoding {
    /// Creates the encoding of a response with this version of the type.
    pub(crate) fn new(
        protocol: Protocol,
        form: LifetimeForm,
        reads_constraints: bool,
        spellings: Spellings,
        version: &TypeVersion,
    ) -> Self {
        let has_wrappers = protocol == Protocol::Sotw
            && (form == LifetimeForm::Wrapper || !spellings.is_empty() || reads_constraints);
        let incarnation = version.incarnation;
        let version = if has_wrappers { version.to_string().into() } else { Box::default() };
        Self { protocol, form, reads_constraints, spellings, version, incarnation }
    }

    /// Returns the length of a resource in the response.
    pub(crate) fn len(&self, resource: &Resource) -> usize {
        let ttl = self.ttl_of(resource);
        match (self.is_renamed(resource), ttl, self.protocol) {
            (_, _, Protocol::Mcp) => {
                len_field_len(resource.body_len() + self.mcp_metadata(resource).len())
            }
            (false, None, Protocol::Sotw) => resource.sotw_len(),
            (false, None, Protocol::Delta) => resource.delta_len(),
            (false, Some(ttl), Protocol::Delta) => {
                len_field_len(resource.delta_content().len() + ttl_field_len(ttl))
            }
            (true, _, _) | (false, Some(_), Protocol::Sotw) => {
                let aliases = resource.aliases().iter().map(|a| len_field_len(a.as_str().len()));
                let content = resource.sotw_len() + aliases.sum::<usize>();
                self.wrapped_len(content + self.suffix_len(resource, ttl))
            }
        }
    }

    /// Encodes a resource.
    pub(crate) fn resource(&self, resource: &Resource) -> EncodedResource {
        let (mut head, mut tail) = (BytesMut::new(), BytesMut::new());
        let ttl = self.ttl_of(resource);
        let shared = match (self.is_renamed(resource), ttl, self.protocol) {
            (_, _, Protocol::Mcp) => {
                tail = self.mcp_metadata(resource);
                put_len_header(&mut head, 3, resource.body_len() + tail.len());
                resource.sent_body()
            }
            (false, None, Protocol::Sotw) => resource.sotw_field(),
            (false, None, Protocol::Delta) => resource.delta_field(),
            (false, Some(ttl), Protocol::Delta) => {
                let content = resource.delta_content();
                put_ttl(&mut tail, ttl);
                put_len_header(&mut head, 2, content.len() + tail.len());
                content
            }
            // The `Any` has the same field number in a response and in a wrapper.
            (true, _, _) | (false, Some(_), Protocol::Sotw) => {
                let any = resource.sotw_field();
                for alias in resource.aliases() {
                    put_len_field(&mut tail, 4, alias.as_str().as_bytes());
                }
                self.put_suffix(&mut tail, resource, ttl);
                self.put_wrapper_header(&mut head, any.len() + tail.len());
                any
            }
        };
        EncodedResource { head, shared, tail }
    }

    /// Returns the metadata after the body of a resource, which overrides the version of the author (MCP-14).
    fn mcp_metadata(&self, resource: &Resource) -> BytesMut {
        let (version, incarnation) = (resource.version(), self.incarnation);
        mcp_metadata(&CollectionVersion { version, incarnation }.to_string())
    }

    /// Returns whether the name of a resource differs from that in its shared bytes: the client spells it
    /// differently, or has to be sent a variant with constraints (SotW) or without (delta).
    fn is_renamed(&self, resource: &Resource) -> bool {
        let has_constraints = self.protocol == Protocol::Delta;
        self.spellings.get(resource.base_name()).is_some()
            || (resource.constraints().is_some() && self.reads_constraints != has_constraints)
    }

    /// Returns the lifetime that the client is sent with a resource.
    fn ttl_of(&self, resource: &Resource) -> Option<Duration> {
        resource.ttl().filter(|_| self.form != LifetimeForm::None)
    }

    /// Returns the length of a heartbeat in the response.
    pub(crate) fn heartbeat_len(&self, resource: &Resource) -> usize {
        self.wrapped_len(self.suffix_len(resource, Some(resource.ttl().unwrap_or_default())))
    }

    /// Encodes a heartbeat: the name, the version and the lifetime, without the content (TTL-03).
    pub(crate) fn put_heartbeat(&self, out: &mut BytesMut, resource: &Resource) {
        let ttl = Some(resource.ttl().unwrap_or_default());
        self.put_wrapper_header(out, self.suffix_len(resource, ttl));
        self.put_suffix(out, resource, ttl);
    }

    fn suffix_len(&self, resource: &Resource, ttl: Option<Duration>) -> usize {
        len_field_len(self.version_of(resource).len())
            + match self.constraints_of(resource) {
                None => len_field_len(self.name_of(resource).len()),
                Some(name) => len_field_len(name.len()),
            }
            + ttl.map_or(0, ttl_field_len)
    }

    fn put_suffix(&self, out: &mut BytesMut, resource: &Resource, ttl: Option<Duration>) {
        put_len_field(out, 1, self.version_of(resource).as_bytes());
        match self.constraints_of(resource) {
            None => put_len_field(out, 3, self.name_of(resource).as_bytes()),
            Some(name) => put_len_field(out, 8, &name),
        }
        if let Some(ttl) = ttl {
            put_ttl(out, ttl);
        }
    }

    fn name_of<'a>(&'a self, resource: &'a Resource) -> &'a str {
        let name = resource.base_name();
        self.spellings.get(name).unwrap_or(name).as_str()
    }

    /// Returns the encoded name with constraints of a variant, if the client reads them (DYN-04).
    fn constraints_of(&self, resource: &Resource) -> Option<BytesMut> {
        let constraints = resource.constraints().filter(|_| self.reads_constraints)?;
        Some(encode_resource_name(self.name_of(resource), Some(constraints)))
    }

    fn version_of(&self, resource: &Resource) -> Box<str> {
        match self.protocol {
            Protocol::Sotw => self.version.clone(),
            Protocol::Delta | Protocol::Mcp => resource.version().to_string().into(),
        }
    }

    /// Returns the length of a `resources` field with a `Resource` message of `content` bytes.
    fn wrapped_len(&self, content: usize) -> usize {
        match self.protocol {
            Protocol::Sotw => {
                len_field_len(len_field_len(WRAPPER_URL.len()) + len_field_len(content))
            }
            Protocol::Delta | Protocol::Mcp => len_field_len(content),
        }
    }

    /// Encodes everything before the content of a `Resource` message. In SotW, the message is in an
    /// `Any`.
    fn put_wrapper_header(&self, out: &mut BytesMut, content: usize) {
        if self.protocol == Protocol::Sotw {
            put_len_header(out, 2, len_field_len(WRAPPER_URL.len()) + len_field_len(content));
            put_len_field(out, 1, WRAPPER_URL.as_bytes());
        }
        put_len_header(out, 2, content);
    }
}

/// Returns the length of a `google.protobuf.Duration` message.
fn ttl_len(ttl: Duration) -> usize {
    let field_len = |value: u64| if value == 0 { 0 } else { 1 + varint_len(value) };
    field_len(ttl.as_secs()) + field_len(u64::from(ttl.subsec_nanos()))
}

fn ttl_field_len(ttl: Duration) -> usize {
    len_field_len(ttl_len(ttl))
}

fn put_ttl(out: &mut BytesMut, ttl: Duration) {
    put_len_header(out, 6, ttl_len(ttl));
    for (field, value) in [(1, ttl.as_secs()), (2, u64::from(ttl.subsec_nanos()))] {
        if value > 0 {
            out.put_u8(field << 3);
            put_varint(out, value);
        }
    }
}
