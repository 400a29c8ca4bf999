//! The checks of the cluster, as one replica reports it.

use chancery_proto::admin::v1 as pb;

use super::check::Check;

/// The lag in log entries that is reported. The alert ChanceryMemberLags has the same limit.
const LAG_MAX: u64 = 10_000;
/// The free disk space in bytes below which there is a warning. The alert ChanceryDiskFull has the same limit.
const FREE_BYTES_MIN: u64 = 2 << 30;
const DIVERGED: &str = "diverged";

/// Returns the checks of the status that a replica reports.
pub(super) fn checks(status: &pb::ClusterStatus) -> Vec<Check> {
    let mut checks =
        vec![leader(status), quorum(status), replicas(status), lag(status), readiness(status)];
    // The server may know of a problem that none of these checks covers.
    if checks.iter().all(Check::is_ok) {
        let warnings = status.warnings.iter();
        let advice = "see `chancery cluster status`";
        checks.extend(warnings.map(|warning| Check::warning("cluster", warning, advice)));
    }
    checks.push(disk(status));
    checks
}

fn leader(status: &pb::ClusterStatus) -> Check {
    match status.leader {
        Some(leader) => Check::ok("leader", format!("replica {leader} leads")),
        None => Check::failed(
            "leader",
            format!("replica {} has no leader: it accepts no writes", status.replica_id),
            "bring back voters, or check the network between the replication ports",
        ),
    }
}

fn quorum(status: &pb::ClusterStatus) -> Check {
    let (up, all, needed) = (status.voters_up, status.voters.len() as u64, status.quorum);
    let detail = format!("{up} of {all} voters answer ({needed} needed)");
    match up {
        _ if up < needed => Check::failed(
            "quorum",
            detail,
            "bring back voters: no writes are possible without them",
        ),
        _ if up < all => Check::warning("quorum", detail, "bring back the missing voters"),
        _ => Check::ok("quorum", detail),
    }
}

/// Checks whether replicas have diverged, do not answer, or cannot write.
fn replicas(status: &pb::ClusterStatus) -> Check {
    const NAME: &str = "replicas";
    let bad = |member: &pb::MemberStatus| {
        let id = member.replica_id;
        match (member.state == DIVERGED, member.state_alarm.as_str(), member.failure.as_str()) {
            (true, _, failure) => Some(format!("replica {id} has diverged: {failure}")),
            (false, "", "") => None,
            (false, "", failure) => Some(format!("replica {id} accepts no writes: {failure}")),
            (false, alarm, _) => Some(format!("replica {id}: {alarm}")),
        }
    };
    let bad: Vec<String> = status.members.iter().filter_map(bad).collect();
    if !bad.is_empty() {
        return Check::failed(NAME, bad.join("; "), "see docs/cluster.md, \"Repair\"");
    }
    let is_listed = status.members.iter().any(|member| member.replica_id == status.replica_id);
    if !is_listed {
        let detail =
            format!("replica {}, which answers, is not a member of the cluster", status.replica_id);
        return Check::failed(NAME, detail, "ask another replica");
    }
    let down = status.members.iter().filter(|member| !member.up);
    let down: Vec<String> = down.map(|member| member.replica_id.to_string()).collect();
    match down.is_empty() {
        true => {
            let all = status.members.len();
            Check::ok(NAME, format!("{all} of {all} replicas answer"))
        }
        false => Check::warning(
            NAME,
            format!("these replicas do not answer: {}", down.join(", ")),
            "start them, or remove them with `chancery cluster remove`",
        ),
    }
}

fn lag(status: &pb::ClusterStatus) -> Check {
    const NAME: &str = "lag";
    let up = || status.members.iter().filter(|member| member.up);
    let late = up().filter(|member| member.lag.is_some_and(|lag| lag > LAG_MAX));
    let late = late.map(|member| {
        let (id, lag) = (member.replica_id, member.lag.unwrap_or_default());
        format!("replica {id} lags by {lag} log entries")
    });
    let late: Vec<String> = late.collect();
    if !late.is_empty() {
        return Check::warning(NAME, late.join("; "), "check its disk, its CPU time and its log");
    }
    match up().find(|member| member.lag.is_none()) {
        Some(member) => {
            Check::unknown(NAME, format!("the lag of replica {} is not known", member.replica_id))
        }
        None => Check::ok(NAME, format!("no replica lags by more than {LAG_MAX} log entries")),
    }
}

fn readiness(status: &pb::ClusterStatus) -> Check {
    let id = status.replica_id;
    match (status.ready, status.failure.as_str()) {
        (true, _) => Check::ok("readiness", format!("replica {id} is ready")),
        (false, "") => {
            Check::failed("readiness", format!("replica {id} is not ready"), "see its log")
        }
        (false, failure) => Check::failed(
            "readiness",
            format!("replica {id} is not ready: {failure}"),
            "see ChanceryStoreFailed in docs/operations.md",
        ),
    }
}

fn disk(status: &pb::ClusterStatus) -> Check {
    let id = status.replica_id;
    let Some(free) = status.free_bytes else {
        return Check::unknown("disk", format!("replica {id} does not know its free disk space"));
    };
    let detail = format!("replica {id} has {} MiB of free disk space", free >> 20);
    match free < FREE_BYTES_MIN {
        true => Check::warning(
            "disk",
            detail,
            "free disk space: below `store.free_bytes_min`, it rejects writes",
        ),
        false => Check::ok("disk", detail),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::check::Outcome, *};

    fn member(replica_id: u64) -> pb::MemberStatus {
        let state = "up".to_owned();
        pb::MemberStatus {
            replica_id,
            up: true,
            lag: Some(0),
            state,
            ..pb::MemberStatus::default()
        }
    }

    fn healthy() -> pb::ClusterStatus {
        pb::ClusterStatus {
            replica_id: 1,
            leader: Some(2),
            voters: vec![1, 2, 3],
            voters_up: 3,
            quorum: 2,
            members: vec![member(1), member(2), member(3)],
            ready: true,
            free_bytes: Some(10 << 30),
            ..pb::ClusterStatus::default()
        }
    }

    /// Returns the checks that are not `ok`.
    fn found(change: impl FnOnce(&mut pb::ClusterStatus)) -> Vec<(&'static str, Outcome)> {
        let mut status = healthy();
        change(&mut status);
        let checks = checks(&status).into_iter().filter(|check| !check.is_ok());
        checks.map(|check| (check.name, check.outcome)).collect()
    }

    #[test]
    fn each_problem_of_a_cluster_has_its_outcome() {
        use Outcome::{Failed, Unknown, Warning};
        assert_eq!(found(|_| ()), []);
        assert_eq!(found(|status| status.leader = None), [("leader", Failed)]);
        assert_eq!(found(|status| status.voters_up = 1), [("quorum", Failed)]);
        assert_eq!(found(|status| status.voters_up = 2), [("quorum", Warning)]);
        assert_eq!(found(|status| status.members[1].up = false), [("replicas", Warning)]);
        let diverge =
            |status: &mut pb::ClusterStatus| status.members[1].state = DIVERGED.to_owned();
        assert_eq!(found(diverge), [("replicas", Failed)]);
        let alarm = |status: &mut pb::ClusterStatus| status.members[1].state_alarm = "x".to_owned();
        assert_eq!(found(alarm), [("replicas", Failed)]);
        let fail = |status: &mut pb::ClusterStatus| status.members[1].failure = "x".to_owned();
        assert_eq!(found(fail), [("replicas", Failed)]);
        assert_eq!(found(|status| status.replica_id = 9), [("replicas", Failed)]);
        assert_eq!(found(|status| status.members[2].lag = Some(10_001)), [("lag", Warning)]);
        assert_eq!(found(|status| status.members[2].lag = None), [("lag", Unknown)]);
        assert_eq!(found(|status| status.ready = false), [("readiness", Failed)]);
        assert_eq!(found(|status| status.free_bytes = None), [("disk", Unknown)]);
        assert_eq!(found(|status| status.free_bytes = Some(1 << 30)), [("disk", Warning)]);
        assert_eq!(found(|status| status.warnings = vec!["x".into()]), [("cluster", Warning)]);
    }
}
