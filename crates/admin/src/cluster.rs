//! Operations on the replica, the history and the assignments.

use std::cmp::Reverse;

use chancery_admin_proto::v1 as pb;
use chancery_model::{Assignment, Glob};
use chancery_store::{HistoryEntry, StateDigest};

use crate::{AdminError, ctx::Ctx, deps::Freshness, members, page::Page};

/// Returns the assignments in the order in which they are tried.
pub(crate) async fn list_assignments(
    ctx: &Ctx,
    request: pb::ListAssignmentsRequest,
) -> Result<pb::ListAssignmentsResponse, AdminError> {
    let page = Page::parse_or_all("assignments", request.limit, &request.cursor)?;
    let state = ctx.deps.state(Freshness::of(request.stale)).await?;
    let key = |rule: &&Assignment| (Reverse(rule.priority), rule.name.to_string());
    let (rules, next) = page.of(&state.assignments.rules, key);
    Ok(pb::ListAssignmentsResponse {
        revision: state.revision.0,
        assignments: rules.into_iter().map(show_assignment).collect(),
        next,
    })
}

/// Converts a revision of the history to a message.
pub(crate) fn show_entry(entry: &HistoryEntry) -> pb::HistoryEntry {
    pb::HistoryEntry {
        revision: entry.revision.0,
        time_ms: entry.meta.time_ms,
        author: entry.meta.author.clone(),
        reason: entry.meta.reason.clone(),
        label: entry.meta.label.as_deref().unwrap_or_default().to_owned(),
        changed: entry.summary.changed,
        removed: entry.summary.removed,
        unchanged: entry.summary.unchanged,
        assignments: entry.summary.assignments,
        access: entry.summary.access,
        validation: entry.meta.validation.clone(),
        confirmed: entry.meta.confirmed.clone(),
        hash: entry.hash.map(|hash| hash.to_string()).unwrap_or_default(),
        previous_hash: entry.previous_hash.map(|hash| hash.to_string()).unwrap_or_default(),
        restored_from: entry.restored_from.map(|revision| revision.0),
        source: entry.meta.source.clone(),
        labels: entry.meta.labels.clone(),
        ..pb::HistoryEntry::default()
    }
}

/// Returns the status of the replica, and of the cluster as the replica sees it.
pub(crate) async fn get_cluster(ctx: &Ctx) -> Result<pb::ClusterStatus, AdminError> {
    let found = ctx.deps.replica.members().await;
    let removed = members::reports_removed(&found);
    let members = members::show(&found);
    let status = ctx.deps.replica.status();
    let voters_up = members::voters_up(&members);
    let quorum = status.voters.len() as u64 / 2 + 1;
    let warnings = members::warnings(&members, status.leader, status.replica_id, removed);
    Ok(pb::ClusterStatus {
        replica_id: status.replica_id,
        cluster_id: status.cluster_id.to_string(),
        incarnation: status.incarnation.to_string(),
        leader: status.leader,
        term: status.term,
        revision: status.revision.0,
        last_log_index: status.last_log_index.unwrap_or_default(),
        committed_index: status.committed.unwrap_or_default(),
        applied_index: status.applied.unwrap_or_default(),
        snapshot_index: status.snapshot.unwrap_or_default(),
        voters: status.voters,
        learners: status.learners,
        disk_bytes: status.disk_bytes,
        free_bytes: status.free_bytes,
        resources: status.n_resources,
        scopes: ctx.deps.replica.state().scopes.len() as u64,
        streams: ctx.deps.fanout.n_streams() as u64,
        ready: ctx.deps.readiness.check().is_ok(),
        failure: status.failure.unwrap_or_default(),
        version: ctx.deps.version.to_owned(),
        members,
        voters_up,
        quorum,
        warnings,
        state_digests: status.digests.iter().map(show_digest).collect(),
    })
}

/// Returns the version of the program.
pub(crate) fn version(ctx: &Ctx) -> pb::VersionInfo {
    pb::VersionInfo { version: ctx.deps.version.to_owned() }
}

fn show_digest(digest: &StateDigest) -> pb::StateDigest {
    let StateDigest { index, digest } = *digest;
    pb::StateDigest { applied_index: index, digest: format!("{digest:016x}") }
}

/// Converts an assignment to a message.
pub(crate) fn show_assignment(rule: &Assignment) -> pb::Assignment {
    let text = |glob: &Option<Glob>| glob.as_ref().map(|glob| glob.as_str().to_owned());
    let matcher = &rule.matcher;
    let locality = pb::LocalityMatch {
        region: text(&matcher.region),
        zone: text(&matcher.zone),
        sub_zone: text(&matcher.sub_zone),
    };
    let metadata = matcher.metadata.iter();
    pb::Assignment {
        name: rule.name.to_string(),
        priority: rule.priority,
        r#match: Some(pb::NodeMatch {
            id: text(&matcher.id),
            cluster: text(&matcher.cluster),
            locality: (locality != pb::LocalityMatch::default()).then_some(locality),
            metadata: metadata
                .map(|(path, glob)| (path.clone(), glob.as_str().to_owned()))
                .collect(),
        }),
        scopes: rule.scopes.iter().map(|template| template.as_str().to_owned()).collect(),
    }
}
