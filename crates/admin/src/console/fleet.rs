//! The page about the fleet.

use chancery_admin_proto::v1 as pb;
use chancery_console::{
    Page,
    fleet::{self as view, Convergence, Fleet},
};
use chancery_model::Verb;

use super::{
    convergence,
    reads::{acknowledged, or_stale, part, pieces},
    visit::Visit,
};
use crate::{
    AdminError,
    ctx::{Access, Call},
    operations,
    record::Record,
    routes::Http,
};

/// The number of rejecting nodes, and of revisions, that the page shows.
const REJECTED_MAX: u32 = 20;
const REVISIONS_MAX: u32 = 8;
/// The number of revisions whose acknowledgments are counted.
const COUNTED_REVISIONS_MAX: usize = 5;

/// Returns the page.
pub(super) async fn fleet(mut visit: Visit) -> Result<Page, AdminError> {
    visit.params.finish()?;
    let Visit { http, call, .. } = visit;
    let counts = async {
        let request = pb::ListNodesRequest { count: true, ..pb::ListNodesRequest::default() };
        pieces(operations::list_nodes(&call, request).await?).await
    };
    let cluster = operations::get_cluster(&call, pb::GetClusterRequest {});
    let freezes = operations::list_freezes(&call, pb::ListFreezesRequest::default());
    let (counts, cluster, freezes, timeline, convergence) =
        tokio::join!(counts, cluster, freezes, timeline(&call), convergence_of(http, &call));
    // Only a node that rejects a response has a cause to show.
    let n_rejected = counts.as_ref().ok().and_then(|all| all.counts.get("rejected").copied());
    let rejected = match n_rejected {
        Some(0) | None => Ok(Vec::new()),
        Some(_) => rejected(&call).await,
    };
    Ok(view::page(&Fleet {
        counts: part(counts),
        cluster: part(cluster),
        rejected: part(rejected),
        timeline: part(timeline),
        freezes: part(freezes.map(|list| list.freezes)),
        convergence: part(convergence),
    }))
}

async fn rejected(call: &Call) -> Result<Vec<pb::NodeStatus>, AdminError> {
    let request = pb::ListNodesRequest {
        state: "rejected".to_owned(),
        limit: REJECTED_MAX,
        ..pb::ListNodesRequest::default()
    };
    Ok(pieces(operations::list_nodes(call, request).await?).await?.nodes)
}

/// Returns the newest revisions, with the sessions that have acknowledged them. A session acknowledges everything up to a
/// revision, so that nothing is asked about earlier revisions than one that all have.
async fn timeline(
    call: &Call,
) -> Result<Vec<(pb::HistoryEntry, Option<pb::WaitResult>)>, AdminError> {
    let request = pb::ListHistoryRequest { limit: REVISIONS_MAX, ..Default::default() };
    let read =
        |stale| operations::list_history(call, pb::ListHistoryRequest { stale, ..request.clone() });
    // The page says elsewhere that the cluster has no leader.
    let (list, _) = or_stale(read).await?;
    let entries = list.entries;
    let mut timeline = Vec::new();
    let mut is_open = true;
    for (at, entry) in entries.into_iter().enumerate() {
        let result = if is_open && at < COUNTED_REVISIONS_MAX {
            Some(acknowledged(call, entry.revision).await?)
        } else {
            None
        };
        is_open &= result.as_ref().is_none_or(|result| !result.complete);
        timeline.push((entry, result));
    }
    Ok(timeline)
}

async fn convergence_of(http: Http, call: &Call) -> Result<Convergence, AdminError> {
    Record::new(call, None).permit(Access::Cluster(Verb::Metrics))?;
    let text = http.probes.metrics_text().await.unwrap_or_default();
    Ok(convergence::of_metrics(&text))
}
