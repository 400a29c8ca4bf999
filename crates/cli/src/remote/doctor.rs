//! The command `doctor`: the checks that an operator would make by hand.
//!
//! A check that could not be made is `unknown`, never `ok`.

mod check;
mod cluster;
mod date;
mod local;
mod nodes;
mod ports;
mod replica;
mod server;

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use self::check::{Check, Outcome};
use super::{
    client::{admin, refusal},
    connector::Channel,
    settings::{ConnectionFlags, Settings},
};
use crate::{
    answer::{Answer, Output},
    failure::Failure,
    text::{count, plain},
};
use chancery_admin_proto::v1 as pb;

/// The checks of a server and of the cluster, which need settings and a server that answers.
const OF_CLUSTER: [&str; 9] =
    ["leader", "quorum", "replicas", "lag", "readiness", "disk", "clocks", "ports", "nodes"];

/// The arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Also check this configuration file, and the limits of the local replica that uses it
    #[arg(long, value_name = "FILE", env = "CHANCERY_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
}

/// Makes all checks. Fails if one of them fails.
pub(crate) fn run(
    doctor: &Doctor,
    flags: &ConnectionFlags,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format_args!("cannot start the async runtime: {error}")))?;
    let mut checks = runtime.block_on(all(flags));
    checks.extend(doctor.config.as_deref().into_iter().flat_map(replica::checks));
    let n = |outcome| checks.iter().filter(|check| check.outcome == outcome).count() as u64;
    let failed = n(Outcome::Failed);
    match answer.output {
        Output::Text | Output::Wide => answer.text(|out| {
            let width = checks.iter().map(|check| check.name.len()).max().unwrap_or_default();
            for check in &checks {
                let Check { outcome, name, detail, advice } = check;
                let advice = if advice.is_empty() { String::new() } else { format!("; {advice}") };
                let line = plain(&format!("{detail}{advice}"));
                writeln!(out, "{:<9}{name:<width$}  {line}", outcome.name())?;
            }
            let (warnings, unknown) = (n(Outcome::Warning), n(Outcome::Unknown));
            let (total, warned) = (count(checks.len() as u64, "check"), count(warnings, "warning"));
            writeln!(out, "{total}: {failed} failed, {warned}, {unknown} unknown")
        })?,
        Output::Json | Output::Sarif => answer.json(&to_json(&checks, failed))?,
        Output::Yaml => answer.yaml(&to_json(&checks, failed))?,
    }
    answer.out.flush()?;
    match failed {
        0 => Ok(()),
        n => Err(Failure::new(format_args!("{} failed", count(n, "check")))),
    }
}

/// Returns all checks as JSON.
pub(super) async fn report(flags: &ConnectionFlags) -> Value {
    let checks = all(flags).await;
    let failed = checks.iter().filter(|check| check.outcome == Outcome::Failed).count() as u64;
    to_json(&checks, failed)
}

fn to_json(checks: &[Check], failed: u64) -> Value {
    let check = |check: &Check| {
        json!({
            "name": check.name, "status": check.outcome.name(), "detail": check.detail,
            "advice": check.advice,
        })
    };
    let checks: Vec<Value> = checks.iter().map(check).collect();
    json!({"healthy": failed == 0, "checks": checks})
}

async fn all(flags: &ConnectionFlags) -> Vec<Check> {
    let mut checks = vec![local::contexts(flags)];
    let settings = match flags.resolve() {
        Ok(settings) => settings,
        Err(failure) => {
            if checks[0].outcome != Outcome::Failed {
                let advice = "correct the flags and variables";
                checks.push(Check::failed("settings", failure.lines.join("; "), advice));
            }
            let names = ["token", "certificate"].into_iter().chain(server::NAMES).chain(OF_CLUSTER);
            checks.extend(names.map(|name| Check::unknown(name, "the settings are unusable")));
            return checks;
        }
    };
    checks.push(local::token(settings.token.as_ref()));
    checks.push(local::certificate(&settings.files));
    checks.extend(of_servers(&settings).await);
    checks
}

/// Checks each server, and the cluster as the first server that answers sees it.
async fn of_servers(settings: &Settings) -> Vec<Check> {
    let security = settings.security();
    let (mut checks, mut cluster) = (Vec::new(), None);
    for server in settings.server.split(',').map(str::trim) {
        let channel = server::check(server, &security, &mut checks).await;
        if let Some(channel) = channel
            && cluster.is_none()
        {
            cluster = Some(of_cluster(server, channel).await);
        }
    }
    checks.extend(cluster.unwrap_or_else(|| {
        OF_CLUSTER.map(|name| Check::unknown(name, "no server answers")).to_vec()
    }));
    checks
}

async fn of_cluster(server: &str, channel: Channel) -> Vec<Check> {
    let mut client = admin(channel);
    let status = client.get_cluster(pb::GetClusterRequest {});
    let mut checks = match tokio::time::timeout(server::TIMEOUT, status).await {
        Ok(Ok(status)) => {
            let status = status.into_inner();
            let mut checks = cluster::checks(&status);
            checks.push(ports::check(&status, local::unix_time()));
            checks.push(nodes::check(&mut client).await);
            return checks;
        }
        Ok(Err(status)) => {
            let reason = refusal(&status).at(server).lines.join("; ");
            vec![Check::failed("cluster", reason, "see the log of the server")]
        }
        Err(_) => {
            let detail =
                format!("the server at {server} has not answered within {:?}", server::TIMEOUT);
            vec![Check::failed("cluster", detail, "see the log of the server")]
        }
    };
    checks.extend(
        OF_CLUSTER.map(|name| Check::unknown(name, "the server does not report its status")),
    );
    checks
}
