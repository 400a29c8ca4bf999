//! The messages of a source, with the bytes of their resources.

use bytes::{Buf as _, Bytes};
use chancery_model::wire::{Fields, Token};
use chancery_proto::istio::mcp::v1alpha1::{Metadata, RequestResources};
use prost::Message as _;
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder},
};
use tonic_prost::ProstCodec;

/// The maximum number of resources of a message, and that of removed names. Each of them takes more memory than its
/// bytes.
pub(crate) const RESOURCES_MAX: usize = 1_000_000;

/// A message `istio.mcp.v1alpha1.Resources` whose resources stay encoded, because the store keeps the bytes as their
/// author wrote them (SVC-18).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Resources {
    /// A version for people.
    #[prost(string, tag = "1")]
    pub system_version_info: String,
    /// The name of the collection.
    #[prost(string, tag = "2")]
    pub collection: String,
    /// The encoded resources.
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub resources: Vec<Bytes>,
    /// The names to remove; only in an incremental response.
    #[prost(string, repeated, tag = "4")]
    pub removed_resources: Vec<String>,
    /// The nonce that the answer repeats.
    #[prost(string, tag = "5")]
    pub nonce: String,
    /// Whether the message only has changes since the state that the sink accepted.
    #[prost(bool, tag = "6")]
    pub incremental: bool,
}

/// The part of an encoded resource that a sink reads.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Head {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<Metadata>,
}

/// Encodes requests, and passes on the bytes of the messages of a source, because [`decode`] may take long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SinkCodec;

/// Returns the bytes of messages.
#[derive(Debug)]
pub(crate) struct BytesDecoder;

type Prost = ProstCodec<RequestResources, Resources>;

impl Codec for SinkCodec {
    type Encode = RequestResources;
    type Decode = Bytes;
    type Encoder = <Prost as Codec>::Encoder;
    type Decoder = BytesDecoder;

    fn encoder(&mut self) -> Self::Encoder {
        Prost::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BytesDecoder
    }
}

impl Decoder for BytesDecoder {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(source.copy_to_bytes(source.remaining())))
    }
}

/// Decodes a message of a source. Refuses a message with too many parts before it allocates memory for them.
///
/// # Errors
/// The reason, as a text.
pub(crate) fn decode(bytes: Bytes) -> Result<Resources, String> {
    let invalid =
        |error: &dyn std::fmt::Display| format!("the message is not a valid Resources: {error}");
    let mut n_parts = 0;
    let mut fields = Fields::new(0, bytes.len());
    while let Some(token) = fields.next(&bytes).map_err(|error| invalid(&error))? {
        // Other fields do not grow with their number.
        n_parts += usize::from(matches!(token, Token::Bytes { field: 3 | 4, .. }));
        if n_parts > RESOURCES_MAX {
            return Err(format!(
                "the message has more than {RESOURCES_MAX} resources and removed names"
            ));
        }
    }
    Resources::decode(bytes).map_err(|error| invalid(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T8: a message of small parts would take many times its size in memory.
    #[test]
    fn message_with_too_many_parts_is_refused_before_it_is_decoded() {
        for field in [3, 4] {
            let parts = [field << 3 | 2, 0].repeat(RESOURCES_MAX);
            let message = decode(Bytes::from(parts.clone())).unwrap();
            assert_eq!(message.resources.len() + message.removed_resources.len(), RESOURCES_MAX);
            let error =
                decode(Bytes::from([&parts[..], &[field << 3 | 2, 0]].concat())).unwrap_err();
            assert!(error.contains("more than 1000000"), "{error}");
        }
        assert!(decode(Bytes::from_static(&[0xff])).unwrap_err().contains("not a valid Resources"));
    }
}
