//! Transactions, replicas, and comparing states.

use std::path::Path;

use bytes::Bytes;
use chancery_model::{
    Outcome, ResourceDraft, ResourceKey, ResourceName, Revision, ScopeName, State, Summary,
    Transaction, TypeUrl, Upsert, types,
};
use chancery_store::{Config, Replica};

/// Settings that do not depend on how full the machine's disk is.
pub(crate) fn config(data_dir: &Path) -> Config {
    Config { data_dir: data_dir.to_owned(), free_bytes_min: 1 << 20, ..Config::default() }
}

pub(crate) async fn open(data_dir: &Path) -> Replica {
    Replica::open(config(data_dir)).await.unwrap()
}

pub(crate) fn scope(name: &str) -> ScopeName {
    ScopeName::new(name).unwrap()
}

pub(crate) fn key(name: &str) -> ResourceKey {
    ResourceKey {
        type_url: TypeUrl::from_static(types::CLUSTER),
        name: ResourceName::new(name).unwrap(),
    }
}

pub(crate) fn upsert(name: &str, body: &[u8]) -> Upsert {
    let draft = ResourceDraft::new(key(name), Bytes::copy_from_slice(body));
    Upsert { scope: scope("default"), draft }
}

/// A transaction that publishes one resource.
pub(crate) fn put(name: &str, body: &[u8]) -> Transaction {
    Transaction { upserts: vec![upsert(name, body)], ..Transaction::default() }
}

pub(crate) async fn commit(replica: &Replica, transaction: Transaction) -> Summary {
    match replica.transact(transaction).await.unwrap() {
        Outcome::Committed(summary) => summary,
        Outcome::Refused(refusal) => panic!("refused: {refusal}"),
    }
}

/// Everything about a state that a client or an author could see.
pub(crate) fn render(state: &State) -> Vec<String> {
    let mut lines = vec![
        format!("revision {} incarnation {}", state.revision, state.incarnation.0),
        format!("assignments {:?}", state.assignments),
    ];
    for (name, scope) in &state.scopes {
        lines.push(format!("scope {name} {}", scope.changed));
        for (type_url, collection) in &scope.types {
            let (changed, label) = (collection.changed, &collection.label);
            lines.push(format!("{type_url} {changed} {label:?} {:?}", collection.aliases));
            for resource in collection.resources.values() {
                let labels: Vec<_> = resource.labels().collect();
                lines.push(format!(
                    "{:?} {:?} {:?} {labels:?} {:?} {:?}",
                    resource.name(),
                    resource.delta_field(),
                    resource.ttl(),
                    resource.aliases(),
                    resource.children(),
                ));
            }
        }
    }
    lines
}

pub(crate) fn revision(replica: &Replica) -> Revision {
    replica.state().revision
}
