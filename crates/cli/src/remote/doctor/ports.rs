//! The check of the ports of the replicas: which of them use TLS, and how long their certificates remain valid.

use chancery_admin_proto::v1 as pb;
use chancery_tls::expiry_warning_seconds;

use super::{
    check::{Check, Outcome},
    cluster::not_reported,
    local::span,
};
use crate::address::{self, is_loopback};

const NAME: &str = "ports";

/// Checks the ports that the replicas report.
pub(super) fn check(status: &pb::ClusterStatus, now: i64) -> Check {
    let mut findings = Vec::new();
    for member in &status.members {
        if member.ports.is_empty() {
            findings.push(not_reported(member, "its ports"));
        }
        findings.extend(member.ports.iter().filter_map(|port| of_port(member, port, now)));
    }
    let ports = status.members.iter().flat_map(|member| &member.ports);
    let mut with_tls: Vec<&str> =
        ports.filter(|port| port.tls).map(|port| port.name.as_str()).collect();
    with_tls.sort_unstable();
    with_tls.dedup();
    let fine = match with_tls.as_slice() {
        [] => "no port uses TLS, and all are on loopback addresses".to_owned(),
        names => format!("these ports use TLS: {}", names.join(", ")),
    };
    let advice = "set tls_cert and tls_key of the port, or replace the files, which are read again";
    Check::of_replicas(NAME, &findings, fine, advice)
}

/// Returns the finding about a port; `None` if it is on a loopback address or has a certificate that remains valid.
fn of_port(
    member: &pb::MemberStatus,
    port: &pb::PortStatus,
    now: i64,
) -> Option<(Outcome, String)> {
    let (id, name, listens) = (member.replica_id, &port.name, &port.address);
    let Some(end) = port.certificate_not_after.filter(|_| port.tls) else {
        let endpoint = address::endpoint(listens);
        let is_local = endpoint.is_some_and(|endpoint| is_loopback(address::host(endpoint.uri())));
        let detail = format!("{name} of replica {id} uses no TLS on {listens}");
        return (!is_local).then_some((Outcome::Warning, detail));
    };
    let left = end.saturating_sub(now);
    let lifetime = port.certificate_not_before.map_or(i64::MAX, |begin| end.saturating_sub(begin));
    match left {
        ..=0 => Some((Outcome::Failed, format!("{name}.tls_cert of replica {id} has expired"))),
        _ if left < expiry_warning_seconds(lifetime) => Some((
            Outcome::Warning,
            format!("{name}.tls_cert of replica {id} expires in {}", span(left)),
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a port with a certificate that is valid for this number of days of a year or a day.
    fn port(name: &str, days: Option<f64>, lifetime_days: f64) -> pb::PortStatus {
        #[expect(clippy::cast_possible_truncation, reason = "days are few")]
        let seconds = |days: f64| (days * 86_400.0) as i64;
        pb::PortStatus {
            name: name.to_owned(),
            address: "10.0.0.1:18000".to_owned(),
            tls: days.is_some(),
            certificate_not_before: days.map(|left| seconds(left - lifetime_days)),
            certificate_not_after: days.map(seconds),
        }
    }

    fn outcome(ports: &[pb::PortStatus]) -> Outcome {
        let member = pb::MemberStatus { ports: ports.to_vec(), ..pb::MemberStatus::default() };
        let status = pb::ClusterStatus { members: vec![member], ..pb::ClusterStatus::default() };
        check(&status, 0).outcome
    }

    #[test]
    fn plaintext_and_expiry_of_ports_are_reported() {
        let all = ["admin", "raft", "xds"].map(|name| port(name, Some(20.0), 365.0));
        assert_eq!(outcome(&all), Outcome::Ok);
        assert_eq!(outcome(&[port("xds", Some(2.0), 365.0)]), Outcome::Warning);
        assert_eq!(outcome(&[port("xds", Some(-1.0), 365.0)]), Outcome::Failed);
        let mut plain = port("xds", None, 0.0);
        assert_eq!(outcome(&[plain.clone()]), Outcome::Warning);
        plain.address = "127.0.0.1:18000".to_owned();
        assert_eq!(outcome(&[plain.clone()]), Outcome::Ok);
        plain.address = "0.0.0.0:18000".to_owned();
        assert_eq!(outcome(&[plain]), Outcome::Warning);
        assert_eq!(outcome(&[]), Outcome::Unknown);
    }

    #[test]
    fn certificate_of_a_day_is_reported_in_its_last_quarter() {
        assert_eq!(outcome(&[port("xds", Some(0.3), 1.0)]), Outcome::Ok);
        assert_eq!(outcome(&[port("xds", Some(0.2), 1.0)]), Outcome::Warning);
    }
}
