//! Collections of MCP that no connected node asks for, while nodes ask for the same kind in another version.
//!
//! istiod asks for other versions than its earlier releases did. Resources in the collections of earlier releases then
//! have no effect, although every client is synced.

use std::collections::BTreeSet;

use chancery_admin_proto::v1 as pb;
use chancery_model::{Revision, Transaction, TypeUrl};
use chancery_store::{NoAnswer, Question};
use tokio::time::Instant;

use crate::{
    collection_requests::{COLLECTIONS_MAX, Requests, decode, question, requests},
    ctx::Ctx,
    fleet_messages::{COLLECTIONS, LIMITS, failed, not_asked},
    nodes::number,
};

/// The collections that no connected node asks for, as far as the replicas answered.
#[derive(Debug, Default)]
pub(crate) struct UnrequestedCollections {
    pub(crate) found: Vec<Unrequested>,
    /// The replicas whose nodes are not known.
    pub(crate) not_asked: Vec<pb::ReplicaNotAsked>,
}

/// A collection that no connected node asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unrequested {
    collection: TypeUrl,
    /// The other versions that nodes ask for, with the number of nodes; not empty.
    others: Requests,
    /// The number of replicas whose nodes are not known.
    n_not_asked: usize,
}

impl Unrequested {
    /// Describes the collection in a phrase.
    pub(crate) fn text(&self) -> String {
        let others = self.others.iter().map(|(other, n)| match n {
            1 => format!("1 node asks for {other}"),
            n => format!("{n} nodes ask for {other}"),
        });
        let others: Vec<String> = others.collect();
        let unknown = match self.n_not_asked {
            0 => String::new(),
            n => format!(" ({} did not answer, and may have nodes that do)", number(n, "replica")),
        };
        format!(
            "no connected node asks for {}{unknown}, but {}",
            self.collection,
            others.join(", ")
        )
    }

    fn warning(&self) -> pb::Problem {
        let others: Vec<&str> = self.others.keys().map(TypeUrl::as_str).collect();
        pb::Problem {
            message: self.text(),
            fix: format!("publish the resources in {}", others.join(" or ")),
            ..pb::Problem::default()
        }
    }
}

/// Adds a warning for each collection of a write that no connected node asks for, while nodes ask for another
/// version of it, and the replicas that did not answer.
pub(crate) async fn with_unrequested(
    ctx: &Ctx,
    mut response: pb::WriteResponse,
    collections: BTreeSet<TypeUrl>,
) -> pb::WriteResponse {
    let UnrequestedCollections { found, not_asked } = find_unrequested(ctx, collections).await;
    response.warnings.extend(found.iter().map(Unrequested::warning));
    if found.is_empty() {
        response.warnings.extend(unknown(&not_asked));
    }
    for replica in not_asked {
        let is_known = |one: &pb::ReplicaNotAsked| one.replica_id == replica.replica_id;
        if !response.not_asked.iter().any(is_known) {
            response.not_asked.push(replica);
        }
    }
    response
}

/// Returns the collections that no connected node asks for, while nodes ask for another version. Asks the other
/// replicas only about collections that no node of this replica asks for.
pub(crate) async fn find_unrequested(
    ctx: &Ctx,
    mut collections: BTreeSet<TypeUrl>,
) -> UnrequestedCollections {
    if collections.is_empty() {
        return UnrequestedCollections::default();
    }
    let since = Instant::now();
    let mut all = requests(&ctx.deps.fanout, &collections).await;
    collections.retain(|collection| !all.contains_key(collection));
    if collections.is_empty() {
        return UnrequestedCollections::default();
    }
    let is_stalled = !ctx.deps.fanout.stalled_since(since).is_empty();
    let body = question(&collections);
    let asked = Question { kind: COLLECTIONS, body, revision: Revision(0) };
    let answers = ctx.deps.replica.ask_all(asked, LIMITS).await;
    let mut missing: Vec<_> = answers.unanswered.iter().map(not_asked).collect();
    for (replica_id, pages) in answers.answered {
        let there: Result<Vec<Requests>, NoAnswer> = pages.into_iter().map(decode).collect();
        match there {
            Ok(there) => there.into_iter().flatten().for_each(|(collection, n)| {
                *all.entry(collection).or_default() += n;
            }),
            Err(reason) => missing.push(failed(replica_id, &reason)),
        }
    }
    let found = unrequested(collections, &all, missing.len() + usize::from(is_stalled));
    UnrequestedCollections { found, not_asked: missing }
}

/// Returns the warning that replicas did not answer whether their nodes ask for the collections of a write; `None` if all
/// answered.
fn unknown(not_asked: &[pb::ReplicaNotAsked]) -> Option<pb::Problem> {
    let replicas =
        not_asked.iter().map(|one| format!("replica {} {}", one.replica_id, one.message));
    let replicas: Vec<String> = replicas.collect();
    (!replicas.is_empty()).then(|| pb::Problem {
        message: format!(
            "it is not known whether nodes ask for the collections of this write in another version: {}",
            replicas.join(", ")
        ),
        fix: "ask again later with `chancery explain`".to_owned(),
        ..pb::Problem::default()
    })
}

/// Returns the collections that no node requests, if nodes request another version.
fn unrequested(
    collections: BTreeSet<TypeUrl>,
    all: &Requests,
    n_not_asked: usize,
) -> Vec<Unrequested> {
    let missing = collections.into_iter().filter(|collection| !all.contains_key(collection));
    let with_others = missing.map(|collection| {
        let others = all.iter().filter(|(other, _)| other.is_other_version_of(&collection));
        let others = others.map(|(other, n)| (other.clone(), *n)).collect();
        Unrequested { collection, others, n_not_asked }
    });
    with_others.filter(|one| !one.others.is_empty()).collect()
}

/// Returns the collections in which a transaction publishes resources.
pub(crate) fn collections_of(transaction: &Transaction) -> BTreeSet<TypeUrl> {
    let types = transaction.upserts.iter().map(|upsert| &upsert.draft.key.type_url);
    let mut collections = BTreeSet::new();
    // Neighbors mostly have the same type.
    let mut last = None;
    for type_url in types {
        if last != Some(type_url) && type_url.is_collection() && collections.len() < COLLECTIONS_MAX
        {
            collections.insert(type_url.clone());
        }
        last = Some(type_url);
    }
    collections
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(version: &str) -> TypeUrl {
        TypeUrl::new(&format!("networking.istio.io/{version}/VirtualService")).unwrap()
    }

    /// A replica that did not answer is named, although no other one reports another version.
    #[test]
    fn replica_that_did_not_answer_is_named() {
        assert_eq!(unknown(&[]), None);
        let (reason, message) = ("timed-out".to_owned(), "did not answer within 1s".to_owned());
        let warning = unknown(&[pb::ReplicaNotAsked { replica_id: 3, reason, message }]).unwrap();
        assert!(warning.message.ends_with(": replica 3 did not answer within 1s"), "{warning:?}");
    }

    /// A collection is reported if nodes ask for another version only. The text says how complete it is.
    #[test]
    fn collection_is_reported_if_only_another_version_is_requested() {
        let old = || BTreeSet::from([url("v1alpha3")]);
        assert_eq!(unrequested(old(), &Requests::new(), 0), []);
        let both = Requests::from([(url("v1"), 1), (url("v1alpha3"), 1)]);
        assert_eq!(unrequested(old(), &both, 0), []);
        let gateway = TypeUrl::new("networking.istio.io/v1/Gateway").unwrap();
        assert_eq!(unrequested(old(), &Requests::from([(gateway, 1)]), 0), []);

        let found = unrequested(old(), &Requests::from([(url("v1"), 2)]), 0);
        let text = "no connected node asks for networking.istio.io/v1alpha3/VirtualService, but 2 nodes ask for \
                    networking.istio.io/v1/VirtualService";
        assert_eq!(found[0].text(), text);
        let fix = "publish the resources in networking.istio.io/v1/VirtualService";
        assert_eq!((found.len(), found[0].warning().fix.as_str()), (1, fix));
        let found = unrequested(old(), &Requests::from([(url("v1"), 1)]), 2);
        let text = "no connected node asks for networking.istio.io/v1alpha3/VirtualService (2 replicas did not \
                    answer, and may have nodes that do), but 1 node asks for networking.istio.io/v1/VirtualService";
        assert_eq!(found[0].text(), text);
    }
}
