//! The times of creation of resources in collections of MCP.
//!
//! istiod prefers the older one of two resources that conflict, and a missing time counts as 1970. A resource without a
//! time gets one when it is created, and keeps it. The time is part of the proposed transaction, so all replicas
//! store equal bytes.

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use chancery_admission::{Manifest, Options, Prune};
use chancery_model::{ResourceDraft, State, Transaction, Upsert};
use chancery_proto::istio::mcp::v1alpha1::Resource;
use prost::Message;
use prost_types::Timestamp;

use crate::{AdminError, changes::Effect, ctx::Ctx, work::Size, write_options::Checked};

/// Sets the missing times of creation of a transaction.
pub(crate) async fn set_create_times(
    ctx: &Ctx,
    mut transaction: Box<Transaction>,
    checked: &Checked,
    size: Size,
) -> Result<Box<Transaction>, AdminError> {
    let mut state = ctx.deps.replica.state();
    let is_new = |upsert: &Upsert| {
        upsert.draft.key.type_url.is_collection()
            && state.get(&upsert.scope, &upsert.draft.key).is_none()
    };
    if transaction.upserts.iter().any(is_new) {
        // Another replica may have created the resource.
        state = match checked.effect {
            Effect::DryRun => ctx.deps.state(checked.freshness).await?,
            Effect::Committed => ctx.deps.state_to_write().await?,
        };
    }
    let seconds = i64::try_from(checked.meta.time_ms / 1000).unwrap_or(i64::MAX);
    let set = move || {
        set_times(&mut transaction, &state, Timestamp { seconds, nanos: 0 });
        transaction
    };
    ctx.deps.work.run(size, set).await
}

/// Returns whether a transaction has resources without a time of creation.
pub(crate) fn lack_times(transaction: &Transaction) -> bool {
    transaction.upserts.iter().any(|upsert| lacking(&upsert.draft).is_some())
}

/// Returns a digest that identifies a request in a retry. The transaction does not, because its times of creation
/// depend on the state.
pub(crate) fn content(files: &[Manifest], options: &Options) -> Vec<u8> {
    let mut digest = Context::new(&SHA256);
    let mut add = |part: &[u8]| {
        digest.update(&(part.len() as u64).to_le_bytes());
        digest.update(part);
    };
    add(options.scope.as_str().as_bytes());
    add(&[u8::from(matches!(options.prune, Prune::Prune))]);
    add(options.name.as_deref().unwrap_or_default().as_bytes());
    add(&options.if_revision.map_or(0, |revision| revision.0).to_le_bytes());
    for file in files {
        add(file.content.as_bytes());
    }
    digest.finish().as_ref().to_vec()
}

/// Sets missing times: to that of the stored resource, or to `now` for a new one. A stored resource without a time
/// stays without one.
fn set_times(transaction: &mut Transaction, state: &State, now: Timestamp) {
    for Upsert { scope, draft } in &mut transaction.upserts {
        let Some(mut resource) = lacking(draft) else { continue };
        let time = match state.get(scope, &draft.key) {
            Some(stored) => stored.body().and_then(|stored| time_of(&stored)),
            None => Some(now),
        };
        if time.is_some() {
            resource.metadata.get_or_insert_default().create_time = time;
            draft.body = resource.encode_to_vec().into();
        }
    }
}

/// Decodes a resource of a collection if it has no time. Returns `None` if another encoding would change its bytes.
fn lacking(draft: &ResourceDraft) -> Option<Resource> {
    let is_candidate = draft.key.type_url.is_collection() && draft.sealed.is_none();
    let resource = is_candidate.then(|| Resource::decode(draft.body.clone()).ok()).flatten()?;
    let has_time = resource.metadata.as_ref().is_some_and(|known| known.create_time.is_some());
    (!has_time && resource.encode_to_vec() == draft.body).then_some(resource)
}

fn time_of(body: &Bytes) -> Option<Timestamp> {
    Resource::decode(body.clone()).ok()?.metadata?.create_time
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use chancery_model::{Incarnation, ResourceKey, ResourceName, ScopeName, TypeUrl};
    use chancery_proto::istio::mcp::v1alpha1::Metadata;

    use super::*;

    fn write(name: &str, value: &str, create_time: Option<Timestamp>) -> Transaction {
        let labels = BTreeMap::from([("value".to_owned(), value.to_owned())]);
        let metadata = Metadata { name: name.into(), create_time, labels, ..Metadata::default() };
        let body = Resource { metadata: Some(metadata), body: None }.encode_to_vec();
        let type_url = TypeUrl::new("networking.istio.io/v1/VirtualService").unwrap();
        let key = ResourceKey { type_url, name: ResourceName::new(name).unwrap() };
        let draft = ResourceDraft::new(key, body.into());
        let scope = ScopeName::new("default").unwrap();
        Transaction { upserts: vec![Upsert { scope, draft }], ..Transaction::default() }
    }

    fn at(seconds: i64) -> Option<Timestamp> {
        Some(Timestamp { seconds, nanos: 0 })
    }

    /// Applies a write at a time. Returns the stored time of creation, and whether something changed.
    fn apply(
        state: &mut State,
        mut transaction: Transaction,
        now: i64,
    ) -> (Option<Timestamp>, bool) {
        set_times(&mut transaction, state, at(now).unwrap());
        let (scope, key) =
            (transaction.upserts[0].scope.clone(), transaction.upserts[0].draft.key.clone());
        let applied = state.apply(&transaction);
        let is_changed = !applied.changes.is_empty();
        *state = applied.state;
        (time_of(&state.get(&scope, &key).unwrap().body().unwrap()), is_changed)
    }

    /// MCP-12: the time of creation is that of the first write, unless an author gives one.
    #[test]
    fn resource_keeps_the_time_of_its_creation() {
        let mut state = State::new(Incarnation(1));
        assert!(lack_times(&write("a/b", "1", None)) && !lack_times(&write("a/b", "1", at(3))));
        assert_eq!(apply(&mut state, write("a/b", "1", None), 10), (at(10), true));
        assert_eq!(apply(&mut state, write("a/b", "1", None), 20), (at(10), false), "unchanged");
        assert_eq!(apply(&mut state, write("a/b", "2", None), 30), (at(10), true));
        assert_eq!(apply(&mut state, write("a/b", "2", at(5)), 40), (at(5), true));
        assert_eq!(apply(&mut state, write("a/b", "3", None), 50), (at(5), true));
    }

    /// A release that set no times has stored resources without one. They do not become younger than new ones.
    #[test]
    fn stored_resource_without_time_stays_without_one() {
        let mut state = State::new(Incarnation(1)).apply(&write("a/b", "1", None)).state;
        assert_eq!(apply(&mut state, write("a/b", "1", None), 10), (None, false));
        assert_eq!(apply(&mut state, write("a/b", "2", None), 10), (None, true));
    }

    /// Bytes with fields that this release does not know stay as their author wrote them (SVC-18).
    #[test]
    fn unknown_fields_are_kept() {
        let mut transaction = write("a/b", "1", None);
        let body = [&transaction.upserts[0].draft.body[..], b"\x7a\x01x"].concat();
        transaction.upserts[0].draft.body = body.clone().into();
        set_times(&mut transaction, &State::new(Incarnation(1)), at(10).unwrap());
        assert_eq!(transaction.upserts[0].draft.body, body);
    }
}
