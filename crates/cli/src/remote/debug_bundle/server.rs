//! The parts of one server.

use std::{collections::BTreeMap, fmt::Display, time::Duration};

use bytes::Bytes;
use chancery_admin::json::JsonMessage;
use chancery_admin_proto::v1::{self as pb, log_service_client::LogServiceClient};
use http_body_util::{BodyExt as _, Limited};
use serde_json::{Value, json};
use tokio::time::timeout;
use tonic::{Status, codegen::http::Request};
use tower::ServiceExt as _;

use super::part::{PART_BYTES_MAX, Part};
use crate::remote::{
    client::{admin, refusal},
    connector::Channel,
};

/// The maximum time of each part.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);
/// The number of revisions of the history.
const HISTORY: u32 = 200;
/// The maximum number of user agents that are counted separately.
const AGENTS_MAX: usize = 100;
/// The parts of a server.
const NAMES: [&str; 8] = [
    "version.json",
    "healthz.txt",
    "readyz.txt",
    "metrics.txt",
    "cluster.json",
    "nodes.json",
    "history.json",
    "log.json",
];

/// Returns the parts of a server that cannot be reached.
pub(super) fn missing(directory: &str, reason: &str) -> Vec<Part> {
    let part = |name| Part::new(format!("{directory}/{name}"), Err(reason.to_owned()));
    NAMES.map(part).into()
}

/// Requests all parts from a server at the same time.
pub(super) async fn parts(directory: &str, server: &str, channel: Channel) -> Vec<Part> {
    let [version, healthz, readyz, metrics, cluster, nodes, history, log] =
        NAMES.map(|name| format!("{directory}/{name}"));
    let client = || admin(channel.clone());
    let version_of = async {
        let response = client().get_version(pb::GetVersionRequest {}).await;
        let mut value = response.map_err(|status| said(&status))?.into_inner().to_json();
        value["server"] = server.into();
        Ok(value)
    };
    let cluster_of = async {
        let response = client().get_cluster(pb::GetClusterRequest {}).await;
        response.map(|done| done.into_inner().to_json()).map_err(|status| said(&status))
    };
    let history_of = async {
        // Without a leader, the history of this replica says more than an error.
        let request = pb::ListHistoryRequest { limit: HISTORY, stale: true, ..Default::default() };
        let response = client().list_history(request).await;
        response.map(|done| done.into_inner().to_json()).map_err(|status| said(&status))
    };
    let log_of = async {
        let mut client = LogServiceClient::new(channel.clone());
        let response = client.get_log_filter(pb::GetLogFilterRequest {}).await;
        response.map(|done| done.into_inner().to_json()).map_err(|status| said(&status))
    };
    let pages = async {
        tokio::join!(
            in_time(page(&channel, "/healthz")),
            in_time(page(&channel, "/readyz")),
            in_time(page(&channel, "/metrics")),
        )
    };
    let (version_of, pages, cluster_of, nodes_of, history_of, log_of) = tokio::join!(
        in_time(version_of),
        pages,
        in_time(cluster_of),
        in_time(summary(channel.clone())),
        in_time(history_of),
        in_time(log_of),
    );
    let (healthz_of, readyz_of, metrics_of) = pages;
    vec![
        Part::json(version, version_of),
        Part::new(healthz, healthz_of),
        Part::new(readyz, readyz_of),
        Part::new(metrics, metrics_of),
        Part::json(cluster, cluster_of),
        Part::json(nodes, nodes_of),
        Part::json(history, history_of),
        Part::json(log, log_of),
    ]
}

async fn in_time<T>(part: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    match timeout(TIMEOUT, part).await {
        Ok(result) => result,
        Err(_) => Err(format!("there was no answer within {TIMEOUT:?}")),
    }
}

fn said(status: &Status) -> String {
    refusal(status).lines.join("; ")
}

/// Returns the status and the body of a path of the HTTP API.
async fn page(channel: &Channel, path: &str) -> Result<Vec<u8>, String> {
    let request = Request::get(path).body(tonic::body::Body::empty());
    let request = request.map_err(|error| error.to_string())?;
    let failed = |error: &dyn Display| format!("the request failed: {error}");
    let response = channel.clone().oneshot(request).await.map_err(|error| failed(&error))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), PART_BYTES_MAX);
    let body: Bytes = body.collect().await.map_err(|error| failed(&error))?.to_bytes();
    let is_answer = status.is_success() || path != "/metrics";
    if is_answer {
        Ok([format!("# HTTP status {}\n", status.as_u16()).into_bytes(), body.to_vec()].concat())
    } else {
        Err(format!("the server answers {status}"))
    }
}

/// Returns the numbers of nodes and streams. Names, addresses and subscriptions of clients stay on the server.
async fn summary(channel: Channel) -> Result<Value, String> {
    let response = admin(channel).list_nodes(pb::ListNodesRequest::default()).await;
    let mut pieces = response.map_err(|status| said(&status))?.into_inner();
    let (mut states, mut agents) = (BTreeMap::<String, u64>::new(), BTreeMap::<String, u64>::new());
    let (mut protocols, mut nodes, mut rejections) = (BTreeMap::<String, u64>::new(), 0_u64, 0_u64);
    while let Some(piece) = pieces.message().await.map_err(|status| said(&status))? {
        for node in piece.nodes {
            nodes += 1;
            *states.entry(node.state).or_default() += 1;
            let is_known = agents.len() < AGENTS_MAX || agents.contains_key(&node.user_agent);
            let agent = if is_known { node.user_agent } else { "others".to_owned() };
            *agents.entry(agent).or_default() += 1;
            for stream in node.streams {
                rejections += stream.nacks.len() as u64;
                *protocols.entry(stream.protocol).or_default() += 1;
            }
        }
    }
    Ok(json!({
        "nodes": nodes, "by_state": states, "by_user_agent": agents, "streams_by_protocol": protocols,
        "last_rejections": rejections,
    }))
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::remote::{client::channel, connector::Security};

    /// A server that accepts connections and never answers costs the time of one part.
    #[tokio::test]
    async fn parts_of_a_server_that_hangs_time_out_together() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let channel = channel(&address, &Security::default()).await.unwrap();
        // From here on, the paused clock advances whenever nothing else happens.
        tokio::time::pause();
        let start = Instant::now();
        let parts = Box::pin(parts("server-1", &address, channel)).await;
        assert!(start.elapsed() <= TIMEOUT + Duration::from_secs(1), "{:?}", start.elapsed());
        assert!(parts.len() == NAMES.len() && parts.iter().all(|part| part.content.is_err()));
    }
}
