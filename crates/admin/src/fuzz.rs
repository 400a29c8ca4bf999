//! Entry points for the fuzz targets of `fuzz/`: the decoders of requests of CSDS and of the admin API, which
//! are private. Each function panics if a decoder breaks its contract.

use bytes::Bytes;
use chancery_model::Node;
use chancery_proto::csds::ClientStatusRequest;
use prost::Message;

use crate::{
    bounds::Scan,
    csds::{REQUEST_BYTES_MAX, from_json, matcher::Matchers},
};

/// Decodes a request of CSDS, and applies its matchers to a node.
pub fn csds_request(message: &[u8]) {
    if message.len() > REQUEST_BYTES_MAX {
        return;
    }
    if let Ok(request) = ClientStatusRequest::decode(Bytes::copy_from_slice(message)) {
        select(&request);
    }
}

/// Decodes a request of CSDS in proto JSON, and applies its matchers to a node. Its encoding selects the same.
pub fn csds_json(text: &[u8]) {
    if text.len() > REQUEST_BYTES_MAX {
        return;
    }
    if let Ok(text) = std::str::from_utf8(text)
        && let Ok(request) = from_json(text)
    {
        let encoded = ClientStatusRequest::decode(request.encode_to_vec().as_slice());
        let encoded = encoded.expect("the encoding of a request can be decoded");
        assert_eq!(select(&encoded), select(&request));
    }
}

/// Applies the matchers of a request. Returns `None` for invalid matchers.
fn select(request: &ClientStatusRequest) -> Option<bool> {
    let pairs = [("zone.name", "Eu-1"), ("weight", "3.5"), ("canary", "true")];
    let pairs = pairs.map(|(path, text)| (path.to_owned(), text.to_owned()));
    let node = Node { id: "edge/1".to_owned(), metadata: pairs.into(), ..Node::default() };
    let is_selected = Matchers::new(&request.node_matchers).ok()?.select(&node);
    assert!(is_selected || !request.node_matchers.is_empty(), "no matcher selects every node");
    Some(is_selected)
}

/// Follows the fields of a gRPC request of the admin API in pieces, and in one piece. Both end at the same place.
/// The first byte of the input is the length of the pieces.
pub fn admin_request(input: &[u8]) {
    let Some((&length, body)) = input.split_first() else { return };
    let (mut whole, mut pieces) = (Scan::default(), Scan::default());
    let is_accepted = whole.take(body).is_ok();
    let mut chunks = body.chunks(usize::from(length).max(1));
    assert_eq!(chunks.all(|chunk| pieces.take(chunk).is_ok()), is_accepted);
    assert!(!is_accepted || pieces == whole, "{pieces:?} and {whole:?}");
}
