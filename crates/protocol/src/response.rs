//! Responses and their encoding.

use std::sync::Arc;

use bytes::{Buf as _, BufMut, Bytes, BytesMut};
use chancery_model::{
    Resource, ResourceName, Revision, TypeUrl, TypeVersion, encode_resource_name,
    wire::{len_field_len, put_len_field, put_len_header},
};
use chancery_view::Resources;

use crate::{
    Protocol,
    encoding::{EncodedResource, Encoding, LifetimeForm},
    resource_error::put_error,
    spelling::Spellings,
};

/// The minimum size of a resource that a message passes on by reference. Smaller resources are
/// copied together, because each piece for the socket costs more than the copy.
const SHARED_BYTES_MIN: usize = 4 << 10;

/// The size at which a piece of copied resources is complete.
const CHUNK_BYTES: usize = 16 << 10;

/// The maximum size of a prefix that a transport puts before a message, in bytes.
pub const PREFIX_BYTES_MAX: usize = 8;

/// A response that is ready to be sent.
#[derive(Debug, Clone)]
pub struct Response {
    pub(crate) protocol: Protocol,
    pub(crate) type_url: TypeUrl,
    pub(crate) version: TypeVersion,
    pub(crate) nonce: u64,
    pub(crate) lifetimes: LifetimeForm,
    pub(crate) spellings: Spellings,
    pub(crate) resources: Resources,
    /// Resources whose lifetime is renewed without their content (TTL-03).
    pub(crate) heartbeats: Resources,
    pub(crate) removed: Vec<ResourceName>,
    /// Removed variants, if the client reads their constraints.
    pub(crate) removed_variants: Vec<ResourceName>,
    /// Whether the client reads the constraints of variants (DYN-04).
    pub(crate) reads_constraints: bool,
    /// MCP: whether the response is a difference (`incremental`).
    pub(crate) is_incremental: bool,
    /// Whether the response renews lifetimes and carries no change.
    pub(crate) is_renewal: bool,
    /// Names that do not exist, reported as a resource with an alias (DELTA-63).
    pub(crate) absent: Vec<ResourceName>,
    /// Subscribed names that do not exist, reported as errors (ERR-01).
    pub(crate) errors: Vec<ResourceName>,
    pub(crate) revision: Revision,
}

impl Response {
    /// Returns the variant of the protocol.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns the type.
    #[must_use]
    pub fn type_url(&self) -> &TypeUrl {
        &self.type_url
    }

    /// Returns the version of the type.
    #[must_use]
    pub fn version(&self) -> &TypeVersion {
        &self.version
    }

    /// Returns the nonce, which the client repeats in its answer.
    #[must_use]
    pub fn nonce(&self) -> String {
        self.nonce.to_string()
    }

    /// Iterates over the resources.
    pub fn resources(&self) -> impl Iterator<Item = &Resource> {
        self.resources.iter().map(|resource| &**resource)
    }

    /// Returns the name of one of the resources, as the client writes it.
    #[must_use]
    pub fn name_of<'a>(&'a self, resource: &'a Resource) -> &'a ResourceName {
        self.spellings.get(resource.base_name()).unwrap_or(resource.base_name())
    }

    /// Returns all resources, with and without their content. The lists are shared.
    pub(crate) fn contents(&self) -> Resources {
        let mut all = self.resources.clone();
        self.heartbeats.iter().for_each(|resource| all.push(Arc::clone(resource)));
        all
    }

    /// Iterates over the resources whose lifetime the response renews without their content
    /// (TTL-03).
    pub fn heartbeats(&self) -> impl Iterator<Item = &Resource> {
        self.heartbeats.iter().map(|resource| &**resource)
    }

    /// Returns whether the response renews lifetimes and carries no change.
    #[must_use]
    pub fn is_renewal(&self) -> bool {
        self.is_renewal
    }

    /// Returns whether the client is sent the lifetimes of the resources.
    #[must_use]
    pub fn has_lifetimes(&self) -> bool {
        self.lifetimes != LifetimeForm::None
    }

    /// Returns the number of resources, including heartbeats and those that report an absent name.
    #[must_use]
    pub fn n_resources(&self) -> usize {
        self.resources.len() + self.heartbeats.len() + self.absent.len()
    }

    /// Returns the names of removed resources.
    #[must_use]
    pub fn removed(&self) -> &[ResourceName] {
        &self.removed
    }

    /// Returns the number of removed names and variants.
    #[must_use]
    pub fn n_removed(&self) -> usize {
        self.removed.len() + self.removed_variants.len()
    }

    /// Returns the removed variants, which the response names with their constraints (DYN-08).
    #[must_use]
    pub fn removed_variants(&self) -> &[ResourceName] {
        &self.removed_variants
    }

    /// Returns the absent names that the response reports with an alias (DELTA-63).
    #[must_use]
    pub fn absent(&self) -> &[ResourceName] {
        &self.absent
    }

    /// Returns the subscribed names that the response reports with the error `NOT_FOUND` (ERR-01).
    #[must_use]
    pub fn errors(&self) -> &[ResourceName] {
        &self.errors
    }

    /// Returns the revision of the state from which the response was built.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Encodes the response as a `DiscoveryResponse`, a `DeltaDiscoveryResponse` or the `Resources` of MCP.
    /// `control_plane` becomes `control_plane.identifier` (SVC-20), for which MCP has no field.
    #[must_use]
    pub fn into_message(self, control_plane: &str) -> Message {
        let (protocol, form, spellings) = (self.protocol, self.lifetimes, self.spellings.clone());
        let encoding =
            Encoding::new(protocol, form, self.reads_constraints, spellings, &self.version);
        let head = self.head(control_plane);
        let tail = self.tail(&encoding);
        let resources = self.resources.iter().map(|r| encoding.len(r)).sum::<usize>();
        let len = head.len() + resources + tail.len();
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES.min(PREFIX_BYTES_MAX + len));
        chunk.put_bytes(0, PREFIX_BYTES_MAX);
        chunk.put_slice(&head);
        Message {
            encoding,
            resources: self.resources,
            cursor: (0, 0),
            headroom: PREFIX_BYTES_MAX,
            chunk,
            next: None,
            tail,
            len,
        }
    }

    /// Encodes the fields before the resources. Protobuf allows any order of fields.
    fn head(&self, control_plane: &str) -> BytesMut {
        let (version, nonce) = (self.version.to_string(), self.nonce.to_string());
        let mut head = BytesMut::with_capacity(128);
        put_len_field(&mut head, 1, version.as_bytes());
        put_len_field(&mut head, 5, nonce.as_bytes());
        let control_plane_field = match self.protocol {
            Protocol::Sotw => 6,
            Protocol::Delta => 7,
            Protocol::Mcp => {
                put_len_field(&mut head, 2, self.type_url.as_str().as_bytes());
                if self.is_incremental {
                    head.put_slice(&[6 << 3, 1]);
                }
                return head;
            }
        };
        put_len_field(&mut head, 4, self.type_url.as_str().as_bytes());
        if !control_plane.is_empty() {
            put_len_header(&mut head, control_plane_field, len_field_len(control_plane.len()));
            put_len_field(&mut head, 1, control_plane.as_bytes());
        }
        head
    }

    /// Encodes the fields after the resources.
    fn tail(&self, encoding: &Encoding) -> Bytes {
        let mut tail = BytesMut::new();
        self.heartbeats.iter().for_each(|resource| encoding.put_heartbeat(&mut tail, resource));
        for name in &self.absent {
            // A resource with a name, the same name as an alias, and no body (DELTA-63).
            let name = name.as_str().as_bytes();
            put_len_header(&mut tail, 2, 2 * len_field_len(name.len()));
            put_len_field(&mut tail, 3, name);
            put_len_field(&mut tail, 4, name);
        }
        let removed_field = if self.protocol == Protocol::Mcp { 4 } else { 6 };
        for name in &self.removed {
            put_len_field(&mut tail, removed_field, name.as_str().as_bytes());
        }
        // DYN-08, DELTA-73.
        for name in &self.removed_variants {
            let base = self.spellings.spell(name.to_base());
            let name = encode_resource_name(base.as_str(), name.constraints().as_ref());
            put_len_field(&mut tail, 8, &name);
        }
        self.errors.iter().for_each(|name| put_error(&mut tail, self.protocol, name));
        tail.freeze()
    }
}

/// Returns the number of bytes of a removed name in a response.
pub(crate) fn removed_len(name: &ResourceName) -> usize {
    len_field_len(name.as_str().len())
}

/// Returns the number of bytes of an absent name in a response that reports it with an alias
/// (DELTA-63).
pub(crate) fn absent_len(name: &ResourceName) -> usize {
    len_field_len(2 * len_field_len(name.as_str().len()))
}

/// An encoded response, as an iterator of the pieces for the socket. The bytes of large
/// resources are shared with the state and with other messages.
#[derive(Debug)]
pub struct Message {
    encoding: Encoding,
    resources: Resources,
    cursor: (usize, usize),
    /// The unused bytes at the start of `chunk`, until the first piece is taken.
    headroom: usize,
    chunk: BytesMut,
    next: Option<Bytes>,
    tail: Bytes,
    len: usize,
}

impl Message {
    /// Puts the prefix of a transport, such as the header of a gRPC message, before the first piece.
    ///
    /// # Panics
    /// If the prefix has more than [`PREFIX_BYTES_MAX`] bytes, or if a piece was taken before.
    pub fn set_prefix(&mut self, prefix: &[u8]) {
        let start = self.headroom - prefix.len();
        self.chunk[start..self.headroom].copy_from_slice(prefix);
        self.headroom = start;
    }

    /// Returns the size of the response in bytes, without a prefix.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the response has no bytes; always `false`, because every response has a type.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Iterator for Message {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        self.chunk.advance(std::mem::take(&mut self.headroom));
        if let Some(shared) = self.next.take() {
            return Some(shared);
        }
        while let Some((resource, next)) = self.resources.at(self.cursor) {
            let EncodedResource { head, shared, tail } = self.encoding.resource(resource);
            self.cursor = next;
            self.chunk.put_slice(&head);
            if shared.len() >= SHARED_BYTES_MIN {
                let before = self.chunk.split().freeze();
                self.chunk.put_slice(&tail);
                if before.is_empty() {
                    return Some(shared);
                }
                self.next = Some(shared);
                return Some(before);
            }
            self.chunk.put_slice(&shared);
            self.chunk.put_slice(&tail);
            if self.chunk.len() + SHARED_BYTES_MIN > CHUNK_BYTES {
                let full = std::mem::replace(&mut self.chunk, BytesMut::with_capacity(CHUNK_BYTES));
                return Some(full.freeze());
            }
        }
        let tail = std::mem::take(&mut self.tail);
        if self.chunk.is_empty() {
            return (!tail.is_empty()).then_some(tail);
        }
        if tail.len() < SHARED_BYTES_MIN {
            self.chunk.put_slice(&tail);
        } else {
            self.next = Some(tail);
        }
        Some(std::mem::take(&mut self.chunk).freeze())
    }
}
