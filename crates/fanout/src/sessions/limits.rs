//! The memory of a node, and the limits that a request may exceed.

use chancery_model::Node;
use chancery_protocol::ProtocolError;

/// Returns the number of bytes that a stream holds for its client's node.
pub(crate) fn bytes_of(node: &Node) -> usize {
    /// The number of bytes of an entry besides its texts.
    const EACH: usize = 96;
    let metadata = node.metadata.iter().map(|(path, text)| EACH + path.len() + text.len());
    let features = node.client_features.iter().map(|feature| EACH + feature.len());
    let parameters = node.dynamic_parameters.iter().flat_map(|(type_url, all)| {
        let texts = all.iter().map(|(key, value)| EACH + key.len() + value.len());
        texts.chain([EACH + type_url.len()])
    });
    let texts = [&node.id, &node.cluster, &node.user_agent].map(String::len);
    metadata.chain(features).chain(parameters).chain(texts).sum()
}

/// Returns the limit that a request exceeds, as the metric names it.
pub(crate) fn limit_of(error: &ProtocolError) -> Option<&'static str> {
    match error {
        ProtocolError::TypesTooMany { .. } => Some("types"),
        ProtocolError::NamesTooMany { .. } => Some("names"),
        ProtocolError::Name(_) => Some("name_bytes"),
        ProtocolError::TypeMissing
        | ProtocolError::Type(_)
        | ProtocolError::TypeForeign { .. }
        | ProtocolError::Variant
        | ProtocolError::Collection(_) => None,
    }
}
