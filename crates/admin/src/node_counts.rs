//! The connected nodes of this replica, counted by state.
//!
//! Invariant: the metric costs at most a hundredth of the time of the shards, whatever the number of nodes, and nothing
//! while a response is sent.

use std::{collections::HashMap, sync::Arc, time::Duration};

use chancery_fanout::{Fanout, LiveStream};
use chancery_model::Node;
use metrics::{Gauge, gauge};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::node_state::{NodeState, STATES, stream_state};

/// The shortest pause between two counts.
const PAUSE_MIN: Duration = Duration::from_secs(5);
/// The pause after a count, as a multiple of its duration.
const PAUSE_FACTOR: u32 = 100;

/// Returns the worst state of the streams of each node that `select` selects.
pub(crate) async fn states(
    fanout: &Fanout,
    select: impl Fn(&Node) -> bool + Send + Sync + 'static,
) -> HashMap<String, NodeState> {
    let by_id: Arc<Mutex<HashMap<String, NodeState>>> = Arc::default();
    let seen = Arc::clone(&by_id);
    let see = move |stream: &LiveStream<'_>| {
        if select(stream.node) {
            let (id, state, mut seen) = (&stream.node.id, stream_state(stream), seen.lock());
            match seen.get_mut(id) {
                Some(worst) => *worst = state.max(*worst),
                None => drop(seen.insert(id.clone(), state)),
            }
        }
        false
    };
    fanout.for_each_stream_of(Arc::new(see), |_| {}).await;
    std::mem::take(&mut *by_id.lock())
}

/// Keeps the metric of nodes by state up to date.
pub(crate) async fn run(fanout: Fanout) {
    let gauges = STATES.map(gauge_of);
    loop {
        let since = Instant::now();
        count(&fanout, &gauges).await;
        sleep(PAUSE_MIN.max(since.elapsed() * PAUSE_FACTOR)).await;
    }
}

fn gauge_of(state: NodeState) -> Gauge {
    gauge!("chancery_xds_nodes", "state" => state.word())
}

/// Counts the nodes. If a shard has stalled, the metric keeps its values.
async fn count(fanout: &Fanout, gauges: &[Gauge; STATES.len()]) {
    let since = Instant::now();
    let by_id = states(fanout, |_| true).await;
    if !fanout.stalled_since(since).is_empty() {
        return;
    }
    for (state, gauge) in STATES.iter().zip(gauges) {
        let n = by_id.values().filter(|one| *one == state).count();
        gauge.set(u32::try_from(n).unwrap_or(u32::MAX));
    }
}
