//! Sinks of MCP to which the leader connects (MCP-70).

use std::time::Duration;

use chancery_fanout::Fanout;
use chancery_store::Replica;
use chancery_xds::{RemoteSink, serve_remote_sink};
use tokio_util::sync::CancellationToken;

/// The interval at which a replica checks whether it leads.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Serves a remote sink while this replica is the leader, until `drain` is cancelled.
pub(super) async fn serve_while_leader(
    remote: RemoteSink,
    replica: Replica,
    fanout: Fanout,
    config: chancery_xds::Config,
    drain: CancellationToken,
) {
    // The loop ends when `drain` is cancelled, so that no stream is opened during a shutdown.
    while drain.run_until_cancelled(until_leads(&replica, true)).await.is_some() {
        let stop = drain.child_token();
        let serve = serve_remote_sink(remote.clone(), fanout.clone(), config.clone(), stop.clone());
        tokio::pin!(serve);
        tokio::select! {
            () = &mut serve => {}
            () = until_leads(&replica, false) => {
                stop.cancel();
                serve.await;
            }
        }
    }
}

/// Waits until the replica is the leader. If `leads` is false, waits until it is not.
async fn until_leads(replica: &Replica, leads: bool) {
    while (replica.leader() == Some(replica.status().replica_id)) != leads {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}
