//! The resources that a client with certain features can request.

use chancery_model::{
    Node, TypeUrl,
    types::{ENDPOINT, LOCALITY_ENDPOINTS},
};
use chancery_view::{TypeView, View};

/// The feature of a client that requests lists of endpoints.
const LISTS_FEATURE: &str = "xds.endpoint.supports_lb_endpoint_collection";

/// The support of a client for lists of the endpoints of a locality (XDSTP-28).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EndpointLists(bool);

impl EndpointLists {
    /// Reads the support from the node of a client.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        Self(node.client_features.iter().any(|feature| feature == LISTS_FEATURE))
    }

    /// Returns the part of a view with one type. For a client without support, endpoints with a
    /// reference to a list do not exist.
    #[must_use]
    pub fn visible(self, view: &View, type_url: &TypeUrl) -> TypeView {
        let all = view.of_type(type_url);
        if self.0 || type_url.as_str() != ENDPOINT {
            all
        } else {
            all.hiding_parents_of(LOCALITY_ENDPOINTS)
        }
    }
}
