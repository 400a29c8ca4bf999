//! The questions of replicas about nodes that ask for collections of MCP.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use chancery_fanout::{Fanout, StreamStatus};
use chancery_model::TypeUrl;
use chancery_raft_proto::v1 as pb;
use chancery_store::NoAnswer;
use prost::Message;

/// The maximum number of collections in a question, and in an answer.
pub(crate) const COLLECTIONS_MAX: usize = 256;

/// The number of connected nodes that ask for each collection.
pub(crate) type Requests = BTreeMap<TypeUrl, u64>;

/// Encodes a question about collections.
pub(crate) fn question(collections: &BTreeSet<TypeUrl>) -> Bytes {
    let collections = collections.iter().map(ToString::to_string).collect();
    pb::CollectionsQuestion { collections }.encode_to_vec().into()
}

/// Answers the question of another replica.
pub(crate) async fn answer(fanout: &Fanout, question: Bytes) -> Result<Bytes, NoAnswer> {
    let question = pb::CollectionsQuestion::decode(question).map_err(invalid)?;
    let asked = question.collections.iter().take(COLLECTIONS_MAX).map(|name| TypeUrl::new(name));
    let asked = asked.collect::<Result<_, _>>().map_err(invalid)?;
    Ok(encode(requests(fanout, &asked).await))
}

/// Returns how many nodes of this replica ask for these collections, and for other versions of them.
pub(crate) async fn requests(fanout: &Fanout, collections: &BTreeSet<TypeUrl>) -> Requests {
    let mut nodes: BTreeMap<TypeUrl, BTreeSet<String>> = BTreeMap::new();
    let take = |stream: StreamStatus| {
        for subscription in &stream.subscriptions {
            let type_url = &subscription.type_url;
            let is_asked = |one: &TypeUrl| one == type_url || type_url.is_other_version_of(one);
            if type_url.is_collection() && collections.iter().any(is_asked) {
                nodes.entry(type_url.clone()).or_default().insert(stream.node.id.clone());
            }
        }
    };
    fanout.for_each_stream(take).await;
    nodes.into_iter().map(|(collection, nodes)| (collection, nodes.len() as u64)).collect()
}

fn encode(requests: Requests) -> Bytes {
    let requests = requests.into_iter().take(COLLECTIONS_MAX);
    let requests = requests.map(|(collection, nodes)| pb::CollectionRequests {
        collection: collection.to_string(),
        nodes,
    });
    pb::CollectionsAnswer { requests: requests.collect() }.encode_to_vec().into()
}

/// Decodes the answer of another replica.
pub(crate) fn decode(answer: Bytes) -> Result<Requests, NoAnswer> {
    let answer = pb::CollectionsAnswer::decode(answer).map_err(invalid)?;
    let requests = answer.requests.into_iter().map(|one| {
        let collection = TypeUrl::new(&one.collection).map_err(invalid)?;
        Ok((collection, one.nodes))
    });
    requests.collect()
}

fn invalid(error: impl std::fmt::Display) -> NoAnswer {
    NoAnswer::Failed(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(version: &str) -> TypeUrl {
        TypeUrl::new(&format!("networking.istio.io/{version}/VirtualService")).unwrap()
    }

    /// A replica of another release, or with a fault, may send anything.
    #[test]
    fn answer_survives_its_encoding_and_damage_is_an_error() {
        let requests = Requests::from([(url("v1"), 2), (url("v1beta1"), 1)]);
        assert_eq!(decode(encode(requests.clone())).unwrap(), requests);
        assert!(decode(Bytes::from_static(b"\x0a\x03edg")).is_err());
    }
}
