//! Context parameters that a client derives from its node, such as `xds.node.id` (XDSTP-08).
//!
//! Envoy adds them to the names of collections (`node_context_params`). A resource whose name has such
//! parameters belongs to the nodes with these values.

use crate::{
    Node,
    structured_name::{NODE_PARAMETER, decode, is_structured},
};

/// Returns the keys after their common start, and the encoded values, of a name in canonical form.
fn node_parameters(name: &str) -> impl Iterator<Item = (&str, &str)> {
    let parameters = is_structured(name).then(|| name.split_once('?')).flatten();
    let all = parameters.map_or("", |(_, parameters)| parameters).split('&');
    all.filter_map(|parameter| parameter.strip_prefix(NODE_PARAMETER)?.split_once('='))
}

/// Returns whether a name in canonical form has parameters of a node.
#[must_use]
pub fn has_node_parameters(name: &str) -> bool {
    node_parameters(name).next().is_some()
}

/// Returns whether a name in canonical form has no parameters of a node, or only parameters with the values
/// of this node. Only the ID, the cluster and the locality are compared: other parameters match no node.
#[must_use]
pub fn is_of_node(name: &str, node: &Node) -> bool {
    node_parameters(name).all(|(key, value)| {
        let own = match key {
            "id" => &node.id,
            "cluster" => &node.cluster,
            "locality.region" => &node.locality.region,
            "locality.zone" => &node.locality.zone,
            "locality.sub_zone" => &node.locality.sub_zone,
            _ => return false,
        };
        decode(value) == own.as_bytes()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Locality, canonical_name};

    fn is_own(parameters: &str) -> bool {
        let locality = Locality { zone: "z".into(), ..Locality::default() };
        let (id, cluster) = ("n=1".into(), "edge".into());
        let node = Node { id, cluster, locality, ..Node::default() };
        is_of_node(&canonical_name(&format!("xdstp://a/t.T/x{parameters}")), &node)
    }

    /// XDSTP-08, XDSTP-09: all parameters of the node must have its values.
    #[test]
    fn name_belongs_to_nodes_with_equal_values() {
        for own in [
            "",
            "?k=1",
            "?xds.node.id=n%3d1",
            "?xds.node.id=n%3D1&xds.node.cluster=edge&k=2&xds.node.locality.zone=z",
            "?xds.node.locality.region=",
        ] {
            assert!(is_own(own), "{own}");
        }
        for other in [
            "?xds.node.id=n",
            "?xds.node.id=n%3D1&xds.node.cluster=core",
            "?xds.node.locality.zone=",
            "?xds.node.metadata.a=1",
        ] {
            assert!(!is_own(other), "{other}");
        }
        assert!(is_of_node("web?xds.node.id=other", &Node::default()), "a plain name");
    }

    /// XDSTP-03: only context parameters count, in any encoding.
    #[test]
    fn node_parameters_are_found_after_the_id_only() {
        let has = |name: &str| has_node_parameters(&canonical_name(name));
        assert!(has("xdstp://a/t.T/x?k=1&%78ds.node.id=n"));
        for other in ["xdstp://a/t.T/x%3Fxds.node.id=n", "xdstp://a/t.T/x?k=xds.node.id=n", "x"] {
            assert!(!has(other), "{other}");
        }
    }
}
