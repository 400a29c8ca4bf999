//! The encoding of resource errors: `ResourceError` in a response (ERR-01).
//!
//! The only error is `NOT_FOUND`. A name that the node may not see does not exist for it, so the
//! error does not disclose that the resource exists elsewhere (ERR-06). A replica in trouble sends
//! no response, so a client never drops resources because of it (ERR-08).

use bytes::{BufMut, BytesMut};
use chancery_model::{
    ResourceName, encode_resource_name,
    wire::{len_field_len, put_len_field, put_len_header},
};

use crate::Protocol;

/// The gRPC status code of the error.
pub const NOT_FOUND: u8 = 5;

/// The text of the error, which clients show to people.
pub const NOT_FOUND_TEXT: &str = "this node has no resource of this type and name";

/// The length of an encoded `google.rpc.Status` with the code and the text.
const STATUS_LEN: usize = 2 + len_field_len(NOT_FOUND_TEXT.len());

/// Returns the number of bytes of an error in a response.
pub(crate) fn error_len(name: &ResourceName) -> usize {
    len_field_len(content_len(&encoded(name)))
}

/// Encodes the name. That of a variant has its constraints.
fn encoded(name: &ResourceName) -> BytesMut {
    encode_resource_name(name.base(), name.constraints().as_ref())
}

fn content_len(name: &[u8]) -> usize {
    len_field_len(name.len()) + len_field_len(STATUS_LEN)
}

/// Encodes an error as a field of a response.
pub(crate) fn put_error(out: &mut BytesMut, protocol: Protocol, name: &ResourceName) {
    let field = match protocol {
        Protocol::Sotw => 7,
        Protocol::Delta | Protocol::Mcp => 9,
    };
    let name = encoded(name);
    put_len_header(out, field, content_len(&name));
    put_len_field(out, 1, &name);
    put_len_header(out, 2, STATUS_LEN);
    out.put_slice(&[1 << 3, NOT_FOUND]);
    put_len_field(out, 2, NOT_FOUND_TEXT.as_bytes());
}
