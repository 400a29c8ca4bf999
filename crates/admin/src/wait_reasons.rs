//! The names for which sessions wait that have not acknowledged a change.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use chancery_admin_proto::v1 as pb;
use chancery_model::{ScopeName, State, TypeUrl};

use crate::{
    ctx::Ctx,
    node_list::page_of_all,
    references::{ReferenceIndex, label},
    wait::LISTED_MAX,
    work::Size,
};

/// The maximum time to find the names. The wait has ended, and its caller waits for the answer.
const FIND_TIMEOUT: Duration = Duration::from_secs(1);

/// Adds to each pending session the names for which its node waits, and the resources that refer to them.
pub(crate) async fn name_missing(ctx: &Ctx, unsettled: &mut [pb::Unsettled]) {
    let is_pending = |one: &&pb::Unsettled| one.state == "pending" && !one.node.is_empty();
    let ids: BTreeSet<String> =
        unsettled.iter().filter(is_pending).map(|one| one.node.clone()).collect();
    if ids.is_empty() {
        return;
    }
    let request = pb::ListNodesRequest {
        ids: ids.into_iter().collect(),
        limit: u32::try_from(LISTED_MAX).unwrap_or(u32::MAX),
        ..pb::ListNodesRequest::default()
    };
    // Without an answer, the sessions are listed without the names.
    let Ok(nodes) = page_of_all(ctx, &request).await else { return };
    let whole = ctx.deps.replica.state();
    let state = ctx.visible(&whole);
    let index = Arc::clone(&ctx.deps.references);
    let find = move || {
        // The index is that of all callers.
        let index = index.at(&whole);
        nodes.iter().filter_map(|node| waits_for(node, &state, &index)).collect()
    };
    let found = tokio::time::timeout(FIND_TIMEOUT, ctx.deps.work.run(Size::Large, find)).await;
    let Ok(Ok(missing)): Result<Result<BTreeMap<String, String>, _>, _> = found else { return };
    for one in unsettled.iter_mut().filter(|one| one.state == "pending") {
        if let Some(text) = missing.get(&one.node) {
            one.message.clone_from(text);
        }
    }
}

/// Returns the ID of a node, and the names for which it waits.
fn waits_for(
    node: &pb::NodeStatus,
    state: &State,
    index: &ReferenceIndex,
) -> Option<(String, String)> {
    let subscriptions = node
        .streams
        .iter()
        .flat_map(|stream| stream.subscriptions.iter().map(move |one| (stream, one)));
    let missing = subscriptions.filter(|(_, one)| one.missing > 0 && !one.first_missing.is_empty());
    let names = missing.filter_map(|(stream, one)| {
        let type_url = TypeUrl::new(&one.type_url).ok()?;
        let more = match one.missing - 1 {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let referrer = referrer(state, index, &stream.scopes, (&type_url, &one.first_missing));
        let because = referrer.map(|label| format!(" ({label} refers to it)")).unwrap_or_default();
        Some(format!("{} {:?}{because}{more}", type_url.short_name(), one.first_missing))
    });
    let names: Vec<String> = names.collect();
    let text = format!("waits for {}, which no scope of the node has", names.join(", "));
    (!names.is_empty()).then(|| (node.id.clone(), text))
}

/// Returns the first resource in the scopes of a node that refers to a name.
fn referrer(
    state: &State,
    index: &ReferenceIndex,
    scopes: &[String],
    (type_url, name): (&TypeUrl, &str),
) -> Option<String> {
    let is_seen = |scope: &ScopeName| scopes.iter().any(|of| of == scope.as_str());
    let mut referrers = index.referrers(type_url, name);
    // The index also has what the caller may not read.
    let found = referrers
        .find(|(origin, key)| is_seen(&origin.scope) && state.get(&origin.scope, key).is_some());
    found.map(|(_, key)| label(&key))
}
