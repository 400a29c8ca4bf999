//! Responses, and how they become bytes.

use bytes::{BufMut, Bytes, BytesMut};
use chancery_model::{
    Resource, ResourceName, Revision, TypeUrl, TypeVersion,
    wire::{len_field_len, put_len_field, put_len_header},
};
use chancery_view::Resources;

use crate::Protocol;

/// Resources of this size or more are passed on by reference; smaller ones are copied together, for
/// each piece that goes to the socket costs more than copying it.
const SHARED_BYTES_MIN: usize = 4 << 10;

/// Copied pieces are cut at this size.
const CHUNK_BYTES: usize = 16 << 10;

/// Bytes of the header of a gRPC message: a flag and the length.
const GRPC_HEADER_BYTES: usize = 5;

/// A response that is ready to be sent.
#[derive(Debug, Clone)]
pub struct Response {
    pub(crate) protocol: Protocol,
    pub(crate) type_url: TypeUrl,
    pub(crate) version: TypeVersion,
    pub(crate) nonce: u64,
    pub(crate) resources: Resources,
    pub(crate) removed: Vec<ResourceName>,
    /// Names that do not exist, where that is said by an alias (DELTA-63).
    pub(crate) absent: Vec<ResourceName>,
    pub(crate) revision: Revision,
}

impl Response {
    /// The variant of the protocol that it is in.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The type.
    #[must_use]
    pub fn type_url(&self) -> &TypeUrl {
        &self.type_url
    }

    /// The version of the type.
    #[must_use]
    pub fn version(&self) -> &TypeVersion {
        &self.version
    }

    /// The nonce, as the client will repeat it.
    #[must_use]
    pub fn nonce(&self) -> String {
        self.nonce.to_string()
    }

    /// The resources in it.
    pub fn resources(&self) -> impl Iterator<Item = &Resource> {
        self.resources.iter().map(|resource| &**resource)
    }

    /// Number of resources in it.
    #[must_use]
    pub fn n_resources(&self) -> usize {
        self.resources.len() + self.absent.len()
    }

    /// The names that it removes.
    #[must_use]
    pub fn removed(&self) -> &[ResourceName] {
        &self.removed
    }

    /// The names that it says do not exist, where an alias says so (DELTA-63).
    #[must_use]
    pub fn absent(&self) -> &[ResourceName] {
        &self.absent
    }

    /// The revision of the state that it was built from.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Encodes it as a gRPC message: a `DiscoveryResponse` or a `DeltaDiscoveryResponse` behind the
    /// five bytes that announce it. `control_plane` becomes `control_plane.identifier` (SVC-20).
    #[must_use]
    pub fn into_message(self, control_plane: &str) -> Message {
        let size = size_of(self.protocol);
        let head = self.head(control_plane);
        let tail = self.tail();
        let resources = self.resources.iter().map(|r| size(r)).sum::<usize>();
        let len = head.len() + resources + tail.len();
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES.min(GRPC_HEADER_BYTES + len));
        chunk.put_u8(0);
        // A message of 4 GiB can not be announced; the caller refuses it by `len`.
        chunk.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
        chunk.put_slice(&head);
        Message {
            protocol: self.protocol,
            resources: self.resources,
            cursor: (0, 0),
            chunk,
            next: None,
            tail,
            len: GRPC_HEADER_BYTES + len,
        }
    }

    /// The fields that come before the resources. Protobuf fields may come in any order.
    fn head(&self, control_plane: &str) -> BytesMut {
        let (version, nonce) = (self.version.to_string(), self.nonce.to_string());
        let control_plane_field = match self.protocol {
            Protocol::Sotw => 6,
            Protocol::Delta => 7,
        };
        let mut head = BytesMut::with_capacity(128);
        put_len_field(&mut head, 1, version.as_bytes());
        put_len_field(&mut head, 4, self.type_url.as_str().as_bytes());
        put_len_field(&mut head, 5, nonce.as_bytes());
        if !control_plane.is_empty() {
            put_len_header(&mut head, control_plane_field, len_field_len(control_plane.len()));
            put_len_field(&mut head, 1, control_plane.as_bytes());
        }
        head
    }

    /// The fields that come after the resources.
    fn tail(&self) -> Bytes {
        let mut tail = BytesMut::new();
        for name in &self.absent {
            // A resource with a name, the same name as an alias, and no body (DELTA-63).
            let name = name.as_str().as_bytes();
            put_len_header(&mut tail, 2, 2 * len_field_len(name.len()));
            put_len_field(&mut tail, 3, name);
            put_len_field(&mut tail, 4, name);
        }
        for name in &self.removed {
            put_len_field(&mut tail, 6, name.as_str().as_bytes());
        }
        tail.freeze()
    }
}

/// How many bytes a resource takes in a response.
pub(crate) fn size_of(protocol: Protocol) -> fn(&Resource) -> usize {
    match protocol {
        Protocol::Sotw => Resource::sotw_len,
        Protocol::Delta => Resource::delta_len,
    }
}

/// The number of bytes that a removed name takes in a response.
pub(crate) fn removed_len(name: &ResourceName) -> usize {
    len_field_len(name.as_str().len())
}

/// The number of bytes that an absent name takes in a response, where an alias reports it (DELTA-63).
pub(crate) fn absent_len(name: &ResourceName) -> usize {
    len_field_len(2 * len_field_len(name.as_str().len()))
}

/// An encoded gRPC message, as the pieces that go to the socket. The bytes of large resources are
/// shared with the state and with every other message that has them.
#[derive(Debug)]
pub struct Message {
    protocol: Protocol,
    resources: Resources,
    cursor: (usize, usize),
    chunk: BytesMut,
    next: Option<Bytes>,
    tail: Bytes,
    len: usize,
}

impl Message {
    /// Bytes of all pieces together.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: even an empty response has a header.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Iterator for Message {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if let Some(shared) = self.next.take() {
            return Some(shared);
        }
        while let Some((resource, next)) = self.resources.at(self.cursor) {
            let field = match self.protocol {
                Protocol::Sotw => resource.sotw_field(),
                Protocol::Delta => resource.delta_field(),
            };
            self.cursor = next;
            if field.len() >= SHARED_BYTES_MIN {
                if self.chunk.is_empty() {
                    return Some(field);
                }
                self.next = Some(field);
                return Some(self.chunk.split().freeze());
            }
            self.chunk.put_slice(&field);
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
