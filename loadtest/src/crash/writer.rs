//! A writer that sends one transaction after the other until the server is killed.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Result, bail};
use chancery_admin_proto::v1::WriteResponse;
use chancery_model::{Version, types::CLUSTER};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tonic::{Code, Status};

use super::history::{Acked, Op, Report, names};
use crate::{
    author::{Author, is_outcome_unknown},
    random::Random,
    resource,
};

/// The scopes of each transaction.
pub(crate) const SCOPES: [&str; 2] = ["crash/left", "crash/right"];
/// One of this number of writes is a deletion.
const DELETIONS: u64 = 8;

/// The initial state of a writer.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) number: usize,
    pub(crate) round: u64,
    /// Whether the writer's clusters of the first scope exist.
    pub(crate) holds_left: bool,
    pub(crate) random: Random,
    /// Notified of every acknowledged write.
    pub(crate) acked: Arc<Notify>,
}

impl Writer {
    /// Writes until the server no longer answers. Fails if the server refuses a write, which it
    /// must not do.
    pub(crate) async fn run(mut self, mut author: Author) -> Result<Report> {
        let mut report = Report::default();
        let mut n = 0_u64;
        loop {
            n += 1;
            let op = if self.holds_left && self.random.one_in(DELETIONS) {
                Op::Drop
            } else {
                Op::Put { value: format!("{}-{}-{n}", self.round, self.number) }
            };
            let written = match self.write(&mut author, &op).await {
                Ok(written) => written,
                Err(status) if is_refusal(&status) => {
                    bail!("the server refused writer {}'s {op:?}: {status}", self.number)
                }
                // The outcome of this write is unknown.
                Err(_) => {
                    report.in_flight = Some(op);
                    return Ok(report);
                }
            };
            self.holds_left = op != Op::Drop;
            report.acked.push(acked(op, &written)?);
            self.acked.notify_one();
        }
    }

    async fn write(&self, author: &mut Author, op: &Op) -> Result<WriteResponse, tonic::Status> {
        let [a, b, c] = names(self.number);
        let [left, right] = SCOPES;
        match op {
            Op::Put { value } => {
                let first = vec![cluster(&a, value), cluster(&b, value)];
                let second = vec![cluster(&c, value)];
                let manifests =
                    [resource::manifest(left, first), resource::manifest(right, second)];
                author.apply(&manifests).await
            }
            Op::Drop => author.delete(left, &[&a, &b]).await,
        }
    }
}

/// Returns a cluster with a value.
pub(crate) fn cluster(name: &str, value: &str) -> Value {
    json!({
        "@type": CLUSTER,
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "alt_stat_name": value,
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [
            {"endpoint": {"address": {"socket_address": {"address": "10.0.0.1", "port_value": 80}}}},
        ]}]},
    })
}

/// Returns whether the server has rejected the request, which excludes a later write.
fn is_refusal(status: &Status) -> bool {
    let refused = matches!(
        status.code(),
        Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::Unimplemented
    );
    refused && !is_outcome_unknown(status)
}

fn acked(op: Op, written: &WriteResponse) -> Result<Acked> {
    let touched = match op {
        Op::Put { .. } => (written.changed, 3),
        Op::Drop => (written.removed, 2),
    };
    if touched.0 != touched.1 {
        bail!("{op:?} changed {} clusters instead of {}", touched.0, touched.1);
    }
    let versions: BTreeMap<String, Version> = written
        .changes
        .iter()
        .filter_map(|change| Some((change.name.clone(), Version::parse(&change.version)?)))
        .collect();
    Ok(Acked { op, revision: written.revision, versions })
}
