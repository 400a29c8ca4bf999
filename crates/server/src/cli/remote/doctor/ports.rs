//! The check of the ports of a replica: which of them use TLS, and how long their certificates remain valid.

use axum::body::{Body, to_bytes};
use chancery_proto::admin::v1 as pb;
use chancery_tls::expiry_warning_seconds;
use tokio::time::timeout;
use tonic::codegen::http::{Request, StatusCode};
use tower::ServiceExt as _;

use super::{check::Check, local::span, server::TIMEOUT};
use crate::cli::{
    address::{self, is_loopback},
    remote::connector::{Channel, Security},
};

const NAME: &str = "ports";
/// The metric of each port: the seconds until its certificate expires, or infinity without TLS.
const SECONDS_LEFT: &str = "chancery_tls_certificate_seconds_left{port=\"";
/// The metric of each port: the lifetime of its certificate, which servers of earlier versions do not have.
const LIFETIME: &str = "chancery_tls_certificate_lifetime_seconds{port=\"";
const PAGE_BYTES_MAX: usize = 64 << 20;

/// Checks the ports of the replica that answers.
pub(super) async fn check(
    server: &str,
    security: &Security,
    channel: Channel,
    status: &pb::ClusterStatus,
) -> Check {
    let page = match timeout(TIMEOUT, page(channel)).await {
        Ok(Ok(page)) => page,
        Ok(Err(reason)) => {
            let reason = security.last_advice().unwrap_or(reason);
            return Check::unknown(NAME, format!("{server} does not show its metrics: {reason}"));
        }
        Err(_) => {
            return Check::unknown(NAME, format!("{server} does not show its metrics in time"));
        }
    };
    of_page(&page, status)
}

/// Returns the metrics of the server.
async fn page(channel: Channel) -> Result<String, String> {
    let request = Request::get("/metrics").body(tonic::body::Body::empty());
    let request = request.map_err(|error| error.to_string())?;
    let response = channel.oneshot(request).await.map_err(|error| error.to_string())?;
    if response.status() != StatusCode::OK {
        return Err(format!("HTTP status {}", response.status().as_u16()));
    }
    let body = to_bytes(Body::new(response.into_body()), PAGE_BYTES_MAX).await;
    let body = body.map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&body).into_owned())
}

fn of_page(page: &str, status: &pb::ClusterStatus) -> Check {
    let lifetimes: Vec<(&str, f64)> = by_port(page, LIFETIME).collect();
    let mut ports: Vec<(&str, f64)> = by_port(page, SECONDS_LEFT).collect();
    if ports.is_empty() {
        return Check::unknown(NAME, "the metrics do not show which ports use TLS");
    }
    // The metric of a port without TLS is infinite.
    ports.retain(|(_, seconds)| seconds.is_finite());
    ports.sort_by_key(|(port, _)| *port);
    let expired = ports.iter().filter(|(_, seconds)| *seconds <= 0.0);
    let expired: Vec<String> = expired.map(|(port, _)| format!("{port}.tls_cert")).collect();
    if !expired.is_empty() {
        let detail = format!("these certificates have expired: {}", expired.join(", "));
        return Check::failed(NAME, detail, "replace the files; the server reads them again");
    }
    let has_tls = |name: &str| ports.iter().any(|(port, _)| *port == name);
    let is_remote = |member: &&pb::MemberStatus| {
        let endpoint = address::endpoint(&member.address);
        endpoint.is_some_and(|endpoint| !is_loopback(address::host(endpoint.uri())))
    };
    if !has_tls("raft")
        && let Some(member) = status.members.iter().find(is_remote)
    {
        let (id, address) = (member.replica_id, &member.address);
        return Check::warning(
            NAME,
            format!("the replicas use no TLS, and replica {id} has the address {address}"),
            "set raft.tls_cert, raft.tls_key and raft.tls_ca",
        );
    }
    let soon: Vec<String> = ports
        .iter()
        .filter(|(port, seconds)| {
            let lifetime = lifetimes.iter().find(|(name, _)| name == port);
            let lifetime = lifetime.map_or(i64::MAX, |(_, lifetime)| whole(*lifetime));
            whole(*seconds) < expiry_warning_seconds(lifetime)
        })
        .map(|(port, seconds)| format!("{port}.tls_cert expires in {}", span(whole(*seconds))))
        .collect();
    if !soon.is_empty() {
        return Check::warning(
            NAME,
            soon.join("; "),
            "replace the files; the server reads them again",
        );
    }
    let names: Vec<&str> = ports.iter().map(|(port, _)| *port).collect();
    match has_tls("xds") {
        true => Check::ok(NAME, format!("these ports use TLS: {}", names.join(", "))),
        // The API does not report the address of the port.
        false => Check::unknown(
            NAME,
            "the xDS port uses no TLS, which is safe on loopback only; the server does not report its address",
        ),
    }
}

/// Returns the samples of a metric with the label `port`.
fn by_port<'a>(page: &'a str, metric: &str) -> impl Iterator<Item = (&'a str, f64)> {
    let samples =
        page.lines().filter_map(move |line| line.strip_prefix(metric)?.split_once("\"} "));
    samples.filter_map(|(port, seconds)| Some((port, seconds.parse().ok()?)))
}

#[expect(clippy::cast_possible_truncation, reason = "a conversion of floats saturates")]
fn whole(seconds: f64) -> i64 {
    seconds as i64
}

#[cfg(test)]
mod tests {
    use super::{super::check::Outcome, *};

    fn outcome(ports: &[(&str, f64)], address: &str) -> Outcome {
        outcome_of(&page(SECONDS_LEFT, ports), address)
    }

    fn page(metric: &str, ports: &[(&str, f64)]) -> String {
        let line = |(port, days): &(&str, f64)| format!("{metric}{port}\"}} {}\n", days * 86_400.0);
        ports.iter().map(line).collect()
    }

    fn outcome_of(page: &str, address: &str) -> Outcome {
        let member =
            pb::MemberStatus { address: address.to_owned(), ..pb::MemberStatus::default() };
        let status = pb::ClusterStatus { members: vec![member], ..pb::ClusterStatus::default() };
        of_page(page, &status).outcome
    }

    #[test]
    fn plaintext_and_expiry_of_ports_are_reported() {
        let all = [("admin", 20.0), ("raft", 20.0), ("xds", 20.0)];
        assert_eq!(outcome(&all, "10.0.0.1:18002"), Outcome::Ok);
        assert_eq!(outcome(&[("xds", 20.0)], "127.0.0.1:18002"), Outcome::Ok);
        assert_eq!(outcome(&[("xds", 20.0)], "10.0.0.1:18002"), Outcome::Warning);
        assert_eq!(outcome(&[("xds", 2.0)], "127.0.0.1:18002"), Outcome::Warning);
        assert_eq!(outcome(&[("xds", -1.0)], "127.0.0.1:18002"), Outcome::Failed);
        let none = [("admin", f64::INFINITY), ("xds", f64::INFINITY)];
        assert_eq!(outcome(&none, "127.0.0.1:18002"), Outcome::Unknown);
        assert_eq!(outcome(&none, "10.0.0.1:18002"), Outcome::Warning);
        assert_eq!(outcome(&[], "127.0.0.1:18002"), Outcome::Unknown);
    }

    #[test]
    fn certificate_of_a_day_is_reported_in_its_last_quarter() {
        let outcome = |days| {
            let page = page(SECONDS_LEFT, &[("xds", days)]) + &page(LIFETIME, &[("xds", 1.0)]);
            outcome_of(&page, "127.0.0.1:18002")
        };
        assert_eq!(outcome(0.3), Outcome::Ok);
        assert_eq!(outcome(0.2), Outcome::Warning);
    }
}
