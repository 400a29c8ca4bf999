//! A connected node, wherever it is connected.

use std::{collections::BTreeMap, sync::Arc};

use chancery_fanout::StreamStatus;
use chancery_model::{DynamicParameters, Locality, Node, ScopeName, Verb};
use chancery_raft_proto::v1 as pb;

use crate::{
    AdminError,
    ctx::{Access, Ctx, Needs},
    fleet::{self, FleetRequest},
    nodes::{not_connected, streams_of_node},
    times::millis,
};

/// The node of a connected client, as its newest stream describes it.
#[derive(Debug, Clone)]
pub(crate) struct FoundNode {
    pub(crate) node: Arc<Node>,
    /// The scopes that the node receives.
    pub(crate) scopes: Vec<ScopeName>,
    since_ms: u64,
}

/// Returns the node with an ID: that of the newest stream to any replica.
///
/// # Errors
/// Fails if the node is not connected to any replica that answers.
pub(crate) async fn find_node(ctx: &Ctx, id: &str) -> Result<FoundNode, AdminError> {
    let request = pb::FindNode { id: id.to_owned() };
    let (here, there) = tokio::join!(streams_of_node(ctx, id), fleet::ask(ctx, &request));
    let here = here?.last().map(FoundNode::of_stream);
    let elsewhere = there.replies.iter().filter_map(|(_, found)| FoundNode::from_proto(found));
    let found = here.into_iter().chain(elsewhere).max_by_key(|found| found.since_ms);
    found.ok_or_else(|| not_connected(id, &there))
}

impl Needs for pb::FindNode {
    const NEEDS: Access = Access::Cluster(Verb::Nodes);
}

impl FleetRequest for pb::FindNode {
    const NAME: &'static str = "chancery.raft.v1.FindNode";
    type Reply = pb::FoundNode;

    async fn answer_here(self, ctx: &Ctx) -> Result<pb::FoundNode, AdminError> {
        let streams = streams_of_node(ctx, &self.id).await?;
        let newest = streams.last().map(FoundNode::of_stream);
        newest.map(FoundNode::into_proto).ok_or_else(|| AdminError::NotFound(String::new()))
    }
}

impl FoundNode {
    fn of_stream(stream: &StreamStatus) -> Self {
        Self {
            node: Arc::clone(&stream.node),
            scopes: stream.scopes.clone(),
            since_ms: millis(stream.since),
        }
    }

    fn into_proto(self) -> pb::FoundNode {
        let node = Arc::unwrap_or_clone(self.node);
        let parameters = |(type_url, values)| (type_url, pb::Parameters { values });
        pb::FoundNode {
            id: node.id,
            cluster: node.cluster,
            region: node.locality.region,
            zone: node.locality.zone,
            sub_zone: node.locality.sub_zone,
            metadata: node.metadata,
            user_agent: node.user_agent,
            client_features: node.client_features,
            dynamic_parameters: node.dynamic_parameters.into_iter().map(parameters).collect(),
            scopes: self.scopes.iter().map(ToString::to_string).collect(),
            since_ms: self.since_ms,
        }
    }

    /// Returns the node of an answer; `None` if the answer has a scope that cannot exist.
    fn from_proto(found: &pb::FoundNode) -> Option<Self> {
        let parameters = found.dynamic_parameters.iter();
        let parameters: BTreeMap<String, DynamicParameters> =
            parameters.map(|(type_url, all)| (type_url.clone(), all.values.clone())).collect();
        let node = Node {
            id: found.id.clone(),
            cluster: found.cluster.clone(),
            locality: Locality {
                region: found.region.clone(),
                zone: found.zone.clone(),
                sub_zone: found.sub_zone.clone(),
            },
            metadata: found.metadata.clone(),
            user_agent: found.user_agent.clone(),
            client_features: found.client_features.clone(),
            dynamic_parameters: parameters,
        };
        let scopes = found.scopes.iter().map(|name| ScopeName::new(name).ok());
        Some(Self {
            node: Arc::new(node),
            scopes: scopes.collect::<Option<_>>()?,
            since_ms: found.since_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_survives_the_way_between_replicas() {
        let pair = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
        let node = Node {
            id: "edge-1".to_owned(),
            cluster: "edge".to_owned(),
            locality: Locality { region: "r".into(), zone: "z".into(), sub_zone: "s".into() },
            metadata: pair("mesh", "m1"),
            user_agent: "envoy 1.40".to_owned(),
            client_features: vec!["f".to_owned()],
            dynamic_parameters: [("type".to_owned(), pair("a", "b"))].into(),
        };
        let scopes = vec![ScopeName::new("edge").unwrap()];
        let found = FoundNode { node: Arc::new(node), scopes, since_ms: 7 };
        let received = FoundNode::from_proto(&found.clone().into_proto()).unwrap();
        assert_eq!(
            (received.node, received.scopes, received.since_ms),
            (found.node, found.scopes, 7)
        );
        let damaged = pb::FoundNode { scopes: vec![String::new()], ..Default::default() };
        assert!(FoundNode::from_proto(&damaged).is_none());
    }
}
