//! The checks of the cluster, as one replica reports it.

use chancery_admin::drained;
use chancery_admin_proto::v1 as pb;

use super::{
    check::{Check, Outcome},
    server::CLOCK_DIFFERENCE_MAX,
};

/// The lag in log entries that is reported. The alert ChanceryMemberLags has the same limit.
const LAG_MAX: u64 = 10_000;
/// The free disk space in bytes below which there is a warning. The alert ChanceryDiskFull has the same limit.
const FREE_BYTES_MIN: u64 = 2 << 30;
const DIVERGED: &str = "diverged";

/// Returns the checks of the status that a replica reports.
pub(super) fn checks(status: &pb::ClusterStatus) -> Vec<Check> {
    let mut checks = vec![leader(status), quorum(status), replicas(status), lag(status)];
    let (readiness, disk, clocks) = (readiness(status), disk(status), clocks(status));
    // The server may know of a problem that no check covers.
    if checks.iter().all(Check::is_ok) {
        let is_covered = |warning: &str| {
            disk.detail.contains(warning)
                || (!readiness.is_ok() && readiness.detail.contains(warning))
                || (!clocks.is_ok() && warning.starts_with("the clock of replica "))
        };
        let warnings = status.warnings.iter().filter(|warning| !is_covered(warning));
        let advice = "see `chancery cluster status`";
        checks.extend(warnings.map(|warning| Check::warning("cluster", warning, advice)));
    }
    checks.extend([readiness, disk, clocks]);
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
            (false, "", failure) if member.up => {
                Some(format!("replica {id} accepts no writes: {failure}"))
            }
            (false, "", failure) => Some(format!("replica {id} does not answer: {failure}")),
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
    let down: Vec<String> = down.map(|member| not_reported(member, "").1).collect();
    if down.is_empty() {
        let all = status.members.len();
        Check::ok(NAME, format!("{all} of {all} replicas answer"))
    } else {
        Check::warning(
            NAME,
            down.join("; "),
            "start them, or remove them with `chancery cluster remove`",
        )
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

/// Checks whether the replica that answers is ready, and whether an operator drains a replica.
fn readiness(status: &pb::ClusterStatus) -> Check {
    const NAME: &str = "readiness";
    let id = status.replica_id;
    let drains = || status.members.iter().filter(|member| member.drained);
    // A drained replica is not ready, as its operator wants it.
    let is_drained = status.failure.is_empty() && drains().any(|member| member.replica_id == id);
    let drains: Vec<String> = drains().map(|member| drained(member.replica_id)).collect();
    match (status.ready || is_drained, status.failure.as_str()) {
        (false, "") => Check::failed(NAME, format!("replica {id} is not ready"), "see its log"),
        (false, failure) => Check::failed(
            NAME,
            format!("replica {id} is not ready: {failure}"),
            "see ChanceryStoreFailed in docs/operations.md",
        ),
        (true, _) if drains.is_empty() => Check::ok(NAME, format!("replica {id} is ready")),
        (true, _) => Check::warning(NAME, drains.join("; "), ""),
    }
}

/// Returns the finding that a member reports nothing of a kind, with the reason.
pub(super) fn not_reported(member: &pb::MemberStatus, what: &str) -> (Outcome, String) {
    let id = member.replica_id;
    let detail = match (member.up, member.unanswered.as_str()) {
        (true, _) => format!("replica {id} does not report {what}"),
        (false, "") => format!("replica {id} does not answer"),
        (false, reason) => format!("replica {id} does not answer: {reason}"),
    };
    (Outcome::Unknown, detail)
}

/// Checks the disk of each member.
fn disk(status: &pb::ClusterStatus) -> Check {
    let finding = |member: &pb::MemberStatus| {
        let (id, full) = (member.replica_id, member.disk_full.as_str());
        let Some(free) = member.free_bytes else {
            return Some(not_reported(member, "its free disk space"));
        };
        match full {
            "" if free >= FREE_BYTES_MIN => None,
            "" => {
                let detail = format!("replica {id} has {} MiB of free disk space", free >> 20);
                Some((Outcome::Warning, detail))
            }
            full => Some((
                Outcome::Failed,
                format!("replica {id} cannot accept writes as the leader: {full}"),
            )),
        }
    };
    let findings: Vec<_> = status.members.iter().filter_map(finding).collect();
    let least = status.members.iter().filter_map(|member| member.free_bytes).min();
    Check::of_replicas(
        "disk",
        &findings,
        format!("every replica has at least {} MiB of free disk space", least.unwrap_or(0) >> 20),
        "free disk space: a leader with at most `store.free_bytes_min` rejects writes",
    )
}

/// Compares the clock of each member with the one of the replica that answers.
fn clocks(status: &pb::ClusterStatus) -> Check {
    let finding = |member: &pb::MemberStatus| {
        let Some(offset) = member.clock_offset_ms else {
            return Some(not_reported(member, "its time"));
        };
        let (id, this, difference) =
            (member.replica_id, status.replica_id, offset.unsigned_abs() / 1000);
        let direction = if offset < 0 { "behind" } else { "ahead of" };
        let detail = format!(
            "the clock of replica {id} is {difference}s {direction} the one of replica {this}"
        );
        (difference > CLOCK_DIFFERENCE_MAX).then_some((Outcome::Warning, detail))
    };
    let findings: Vec<_> = status.members.iter().filter_map(finding).collect();
    Check::of_replicas(
        "clocks",
        &findings,
        format!("the clocks of the replicas differ by at most {CLOCK_DIFFERENCE_MAX}s"),
        "synchronize the clocks: certificates and tokens depend on them",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(replica_id: u64) -> pb::MemberStatus {
        let state = "up".to_owned();
        pb::MemberStatus {
            replica_id,
            up: true,
            lag: Some(0),
            state,
            free_bytes: Some(10 << 30),
            clock_offset_ms: Some(-2),
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

    /// A finding about one replica does not hide that another one was not asked.
    #[test]
    fn detail_of_the_disk_names_each_replica() {
        let mut status = healthy();
        status.members[1].disk_full = "the disk is nearly full".to_owned();
        let (replica_id, unanswered) = (3, "no answer within 800ms".to_owned());
        status.members[2] =
            pb::MemberStatus { replica_id, unanswered, ..pb::MemberStatus::default() };
        let check = disk(&status);
        assert_eq!(
            (check.outcome, check.detail.as_str()),
            (
                Outcome::Failed,
                "replica 2 cannot accept writes as the leader: the disk is nearly full; \
                 replica 3 does not answer: no answer within 800ms"
            )
        );
    }

    #[test]
    fn each_problem_of_a_cluster_has_its_outcome() {
        use Outcome::{Failed, Unknown, Warning};
        assert_eq!(found(|_| ()), []);
        assert_eq!(found(|status| status.leader = None), [("leader", Failed)]);
        assert_eq!(found(|status| status.voters_up = 1), [("quorum", Failed)]);
        assert_eq!(found(|status| status.voters_up = 2), [("quorum", Warning)]);
        let down = |status: &mut pb::ClusterStatus| {
            let (replica_id, unanswered) = (2, "connection refused".to_owned());
            status.members[1] =
                pb::MemberStatus { replica_id, unanswered, ..pb::MemberStatus::default() };
        };
        assert_eq!(found(down), [("replicas", Warning), ("disk", Unknown), ("clocks", Unknown)]);
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
        let drain = |status: &mut pb::ClusterStatus| {
            status.members[0].drained = true;
            status.warnings = vec![drained(1)];
        };
        assert_eq!(found(drain), [("readiness", Warning)]);
        let drain_this = |status: &mut pb::ClusterStatus| {
            drain(status);
            status.ready = false;
        };
        assert_eq!(found(drain_this), [("readiness", Warning)]);
        let fail_drained = |status: &mut pb::ClusterStatus| {
            drain_this(status);
            status.failure = "x".to_owned();
        };
        assert_eq!(found(fail_drained), [("cluster", Warning), ("readiness", Failed)]);
        let free =
            |bytes| move |status: &mut pb::ClusterStatus| status.members[2].free_bytes = bytes;
        assert_eq!(found(free(None)), [("disk", Unknown)]);
        assert_eq!(found(free(Some(1 << 30))), [("disk", Warning)]);
        let full = |status: &mut pb::ClusterStatus| status.members[2].disk_full = "x".to_owned();
        assert_eq!(found(full), [("disk", Failed)]);
        // The server warns about the same, and about something else.
        let repeated = |other: &'static [&'static str]| {
            move |status: &mut pb::ClusterStatus| {
                status.members[2].disk_full = "x".to_owned();
                status.members[0].clock_offset_ms = Some(-31_000);
                let own = [
                    "replica 3 cannot accept writes as the leader: x",
                    "the clock of replica 1 is 31s behind the one of the replica that answers",
                ];
                status.warnings = own.iter().chain(other).map(ToString::to_string).collect();
            }
        };
        let covered = [("disk", Failed), ("clocks", Warning)];
        assert_eq!(found(repeated(&[])), covered);
        let both = [("cluster", Warning), ("disk", Failed), ("clocks", Warning)];
        assert_eq!(found(repeated(&["y"])), both);
        let clock =
            |ms| move |status: &mut pb::ClusterStatus| status.members[0].clock_offset_ms = Some(ms);
        assert_eq!(found(clock(-30_999)), []);
        assert_eq!(found(clock(-31_000)), [("clocks", Warning)]);
        assert_eq!(found(|status| status.warnings = vec!["x".into()]), [("cluster", Warning)]);
    }
}
