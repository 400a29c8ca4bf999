//! The members of the cluster: their status, warnings, and membership changes.

use std::{collections::BTreeSet, time::Duration};

use chancery_admin_proto::v1 as pb;
use chancery_store::{ChangeError, MachineReport, Member, MemberChange, PortReport, Role};

use crate::{AdminError, ctx::Ctx, readiness, record::Operation};

/// A member that lacks more log entries causes a warning.
const LAG_MAX: u64 = 10_000;
/// A larger difference of two clocks, in milliseconds, causes a warning. Servers accept tokens with a leeway of
/// this time.
const CLOCK_OFFSET_MAX_MS: u64 = 30_000;
/// The maximum time for a snapshot.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(120);

/// The states of a member.
const UP: &str = "up";
const DOWN: &str = "down";
const DIVERGED: &str = "diverged";

/// Returns the members with their reports.
pub(crate) fn show(members: &[Member]) -> Vec<pb::MemberStatus> {
    let leader = members.iter().find(|member| member.role == Role::Leader);
    let last = leader.and_then(|leader| Some(leader.report.as_ref()?.last_log_index));
    let show = |member: &Member| {
        let role = match member.role {
            Role::Leader => "leader",
            Role::Voter => "voter",
            Role::Joining => "joining",
            Role::Learner => "learner",
        };
        let silent = pb::MemberStatus {
            replica_id: member.replica_id,
            address: member.address.clone(),
            role: role.to_owned(),
            state: DOWN.to_owned(),
            ..pb::MemberStatus::default()
        };
        let Some(report) = &member.report else {
            let somebody = |stranger| format!("at its address is {stranger}");
            let failure = member.stranger.as_ref().map(somebody).unwrap_or_default();
            let unanswered = member.unanswered.clone();
            return pb::MemberStatus { failure, unanswered, ..silent };
        };
        let silent = match &report.machine {
            Some(machine) => with_machine(silent, machine),
            None => silent,
        };
        pb::MemberStatus {
            up: true,
            state: if report.diverged.is_some() { DIVERGED } else { UP }.to_owned(),
            revision: report.revision.0,
            lag: last.map(|last| last.saturating_sub(report.applied)),
            term: report.term,
            leader: report.leader,
            last_log_index: report.last_log_index,
            applied_index: report.applied,
            version: report.version.clone(),
            failure: report.failure.clone().unwrap_or_default(),
            state_alarm: report.state_alarm.clone().unwrap_or_default(),
            ..silent
        }
    };
    members.iter().map(show).collect()
}

/// Adds the report of a member about its machine to its status.
fn with_machine(status: pb::MemberStatus, machine: &MachineReport) -> pb::MemberStatus {
    let port = |port: &PortReport| pb::PortStatus {
        name: port.name.clone(),
        address: port.address.clone(),
        tls: port.certificate.is_some(),
        certificate_not_before: port.certificate.map(|validity| validity.not_before),
        certificate_not_after: port.certificate.map(|validity| validity.not_after),
    };
    pb::MemberStatus {
        free_bytes: machine.free_bytes,
        free_bytes_min: Some(machine.free_bytes_min),
        disk_full: machine.disk_full.clone().unwrap_or_default(),
        clock_offset_ms: Some(machine.clock_offset_ms),
        ports: machine.ports.iter().map(port).collect(),
        drained: machine.is_drained,
        ..status
    }
}

fn voters(members: &[pb::MemberStatus]) -> impl Iterator<Item = &pb::MemberStatus> {
    members.iter().filter(|member| matches!(member.role.as_str(), "leader" | "voter"))
}

/// Returns the number of voters that answer and have not diverged.
pub(crate) fn voters_up(members: &[pb::MemberStatus]) -> u64 {
    voters(members).filter(|member| member.state == UP).count() as u64
}

/// Returns a member that reports that the answering replica was removed.
pub(crate) fn reports_removed(members: &[Member]) -> Option<u64> {
    let excludes_caller =
        |member: &&Member| member.report.as_ref().is_some_and(|report| report.excludes_caller);
    members.iter().find(excludes_caller).map(|member| member.replica_id)
}

/// Returns the present and imminent problems of the cluster, the most severe first.
pub(crate) fn warnings(
    members: &[pb::MemberStatus],
    leader: Option<u64>,
    this: u64,
    removed: Option<u64>,
) -> Vec<String> {
    let diverged = || members.iter().filter(|member| member.state == DIVERGED);
    let answers = |id: u64| if id == this { ", which answers," } else { "" };
    let describe = |member: &pb::MemberStatus| {
        let id = member.replica_id;
        format!("replica {id}{} has diverged: {}", answers(id), member.failure)
    };
    let mut warnings: Vec<String> = diverged().map(describe).collect();
    let (n_voters, n_up) = (voters(members).count() as u64, voters_up(members));
    let quorum = n_voters / 2 + 1;
    if n_up < quorum {
        let streams = match diverged().next() {
            None => "streams are still served",
            Some(_) => "replicas that have not diverged still serve streams",
        };
        warnings.push(format!(
            "only {n_up} of {n_voters} voters answer, but {quorum} are needed: no writes are possible, and reads need \
             --stale; {streams}"
        ));
    } else if diverged().any(|member| member.replica_id == this) {
        warnings.push(
            "this replica no longer follows a leader; ask another replica about the cluster"
                .to_owned(),
        );
    } else if leader.is_none() {
        warnings.push(
            "this replica has no leader: it accepts no writes, and reads need --stale; streams are \
             still served"
                .to_owned(),
        );
    }
    let reporter = removed.map(|by| format!(" (reported by replica {by})")).unwrap_or_default();
    if removed.is_some() || !members.iter().any(|member| member.replica_id == this) {
        warnings.insert(
            0,
            format!(
                "replica {this}, which answers, was removed from the cluster{reporter} and receives no updates; stop it, \
                 and delete its data before it joins again; ask another replica about the cluster"
            ),
        );
    }
    let has_alarm =
        |member: &&pb::MemberStatus| !member.state_alarm.is_empty() && member.state != DIVERGED;
    for member in members.iter().filter(has_alarm) {
        warnings.push(format!("ALARM: replica {}: {}", member.replica_id, member.state_alarm));
    }
    let others = || members.iter().filter(|member| member.state != DIVERGED);
    warnings.extend(others().filter_map(limitation));
    warnings.extend(others().filter_map(wrong_clock));
    let drained = members.iter().filter(|member| member.drained);
    warnings.extend(drained.map(|member| readiness::drained(member.replica_id)));
    if n_voters > 1 && n_up == quorum {
        warnings.push(format!(
            "{n_up} of {n_voters} voters answer: if one more is lost, no writes are possible"
        ));
    }
    let versions: BTreeSet<&str> =
        members.iter().filter(|member| member.up).map(|member| member.version.as_str()).collect();
    if versions.len() > 1 {
        let versions = versions.into_iter().collect::<Vec<_>>().join(", ");
        warnings.push(format!("the replicas run different versions: {versions}"));
    }
    warnings
}

/// Returns the warning about a member whose clock differs from the one of the answering replica.
fn wrong_clock(member: &pb::MemberStatus) -> Option<String> {
    let offset = member.clock_offset_ms.filter(|ms| ms.unsigned_abs() > CLOCK_OFFSET_MAX_MS)?;
    let (id, seconds) = (member.replica_id, offset.unsigned_abs() / 1000);
    let direction = if offset < 0 { "behind" } else { "ahead of" };
    Some(format!(
        "the clock of replica {id} is {seconds}s {direction} the one of the replica that answers"
    ))
}

/// Returns the warning about a member that does not answer, takes no writes, or is behind.
fn limitation(member: &pb::MemberStatus) -> Option<String> {
    let id = member.replica_id;
    if !member.up {
        let (role, address) = (&member.role, &member.address);
        let reason = match member.unanswered.as_str() {
            "" => String::new(),
            reason => format!(": {reason}"),
        };
        return Some(format!("replica {id} ({role}) does not answer at {address:?}{reason}"));
    }
    if !member.failure.is_empty() {
        return Some(format!("replica {id} takes no writes: {}", member.failure));
    }
    if !member.disk_full.is_empty() {
        let full = &member.disk_full;
        return Some(format!("replica {id} cannot accept writes as the leader: {full}"));
    }
    let lag = member.lag.filter(|lag| *lag > LAG_MAX)?;
    Some(format!("replica {id} is {lag} log entries behind the leader"))
}

fn not_changed(error: ChangeError) -> AdminError {
    match error {
        ChangeError::Refused(text) => AdminError::Precondition(text),
        ChangeError::NoLeader | ChangeError::Timeout(_) => {
            AdminError::Unavailable(error.to_string())
        }
    }
}

/// Returns an error if the ID of the replica is missing.
pub(crate) fn given(replica_id: u64) -> Result<u64, AdminError> {
    match replica_id {
        0 => Err(AdminError::Parameter(
            "the ID of the replica is 0 or missing; it must be at least 1".to_owned(),
        )),
        id => Ok(id),
    }
}

async fn change(ctx: &Ctx, change: MemberChange) -> Result<pb::ChangeResponse, AdminError> {
    let message = ctx.deps.replica.change_members(change).await.map_err(not_changed)?;
    Ok(pb::ChangeResponse { message })
}

/// Returns the record of [`add_member`].
pub(crate) fn record_add(request: &pb::AddMemberRequest) -> Operation {
    Operation::new("member.add")
        .target("", request.replica_id.to_string())
        .detail("address", request.address.as_str())
        .detail("learner", request.learner)
}

/// Adds a replica to the cluster.
pub(crate) async fn add_member(
    ctx: &Ctx,
    request: pb::AddMemberRequest,
) -> Result<pb::ChangeResponse, AdminError> {
    let replica_id = given(request.replica_id)?;
    chancery_store::check_address(&request.address).map_err(AdminError::Parameter)?;
    let (address, learner) = (request.address, request.learner);
    change(ctx, MemberChange::Add { replica_id, address, learner }).await
}

/// Returns the record of an operation on a member.
pub(crate) fn record(verb: &'static str, replica_id: impl Into<Option<u64>>) -> Operation {
    let id = replica_id.into().map(|id: u64| id.to_string());
    Operation::new(verb).target("", id.unwrap_or_default())
}

/// Makes a learner a voter.
pub(crate) async fn promote_member(
    ctx: &Ctx,
    request: pb::PromoteMemberRequest,
) -> Result<pb::ChangeResponse, AdminError> {
    change(ctx, MemberChange::Promote(given(request.replica_id)?)).await
}

/// Removes a member.
pub(crate) async fn remove_member(
    ctx: &Ctx,
    request: pb::RemoveMemberRequest,
) -> Result<pb::ChangeResponse, AdminError> {
    change(ctx, MemberChange::Remove(given(request.replica_id)?)).await
}

/// Transfers leadership to another voter.
pub(crate) async fn transfer_leader(
    ctx: &Ctx,
    request: pb::TransferLeaderRequest,
) -> Result<pb::ChangeResponse, AdminError> {
    let to = request.replica_id.map(given).transpose()?;
    change(ctx, MemberChange::TransferLeader(to)).await
}

/// Takes a snapshot on this replica.
pub(crate) async fn take_snapshot(ctx: &Ctx) -> Result<pb::TakeSnapshotResponse, AdminError> {
    let replica = &ctx.deps.replica;
    let index = replica.snapshot(SNAPSHOT_TIMEOUT).await;
    let index = index
        .map_err(|error| AdminError::Unavailable(format!("cannot take a snapshot: {error}")))?;
    let replica_id = replica.status().replica_id;
    Ok(pb::TakeSnapshotResponse { replica_id, snapshot_index: index })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(replica_id: u64, role: &str, up: bool) -> pb::MemberStatus {
        pb::MemberStatus {
            replica_id,
            role: role.to_owned(),
            address: format!("r{replica_id}:1"),
            up,
            state: if up { UP } else { DOWN }.to_owned(),
            version: if up { "1".to_owned() } else { String::new() },
            ..pb::MemberStatus::default()
        }
    }

    #[test]
    fn healthy_cluster_has_no_warnings() {
        let one = [member(1, "leader", true)];
        assert_eq!(warnings(&one, Some(1), 1, None), Vec::<String>::new());
        let three = [member(1, "leader", true), member(2, "voter", true), member(3, "voter", true)];
        assert_eq!(warnings(&three, Some(1), 3, None), Vec::<String>::new());
        assert_eq!(voters_up(&three), 3);
    }

    #[test]
    fn warnings_are_ordered_by_severity() {
        let mut members = vec![
            member(1, "leader", true),
            member(2, "voter", true),
            member(3, "voter", false),
            member(4, "learner", false),
        ];
        assert_eq!(
            warnings(&members, Some(1), 1, None),
            [
                "replica 3 (voter) does not answer at \"r3:1\"",
                "replica 4 (learner) does not answer at \"r4:1\"",
                "2 of 3 voters answer: if one more is lost, no writes are possible",
            ]
        );
        members[2].unanswered = "at its address is replica 3 of another cluster, ab".to_owned();
        assert_eq!(
            warnings(&members, Some(1), 1, None)[0],
            "replica 3 (voter) does not answer at \"r3:1\": at its address is replica 3 of another cluster, ab"
        );
        members[2].unanswered.clear();
        members[1] = member(2, "voter", false);
        let told = warnings(&members, None, 1, None);
        assert!(told[0].starts_with("only 1 of 3 voters answer, but 2 are needed: "), "{told:?}");
        members[1] = member(2, "voter", true);
        let told = warnings(&members, None, 9, None);
        assert!(told[0].contains("replica 9, which") && told[1].contains("no leader"), "{told:?}");
        let told = warnings(&members, Some(1), 2, Some(1));
        assert!(told[0].starts_with(
            "replica 2, which answers, was removed from the cluster (reported by replica 1)"
        ));
        members[2] = member(3, "voter", true);
        members[2].state_alarm = "its state differs".to_owned();
        assert_eq!(warnings(&members, Some(1), 1, None)[0], "ALARM: replica 3: its state differs");
        members[2] = member(3, "voter", false);
        members[0].failure = "the disk".to_owned();
        members[1].lag = Some(20_000);
        members[1].version = "2".to_owned();
        members[1].clock_offset_ms = Some(-31_000);
        let told = warnings(&members, Some(1), 1, None);
        assert_eq!(told[0], "replica 1 takes no writes: the disk");
        assert_eq!(told[1], "replica 2 is 20000 log entries behind the leader");
        let clock = "the clock of replica 2 is 31s behind the one of the replica that answers";
        assert!(told.iter().any(|warning| warning == clock), "{told:?}");
        assert_eq!(told.last().unwrap(), "the replicas run different versions: 1, 2");
    }
    /// A follower without disk space follows its leader, but cannot replace it.
    #[test]
    fn follower_without_disk_space_is_reported() {
        let [second, third] = [2, 3].map(|id| member(id, "voter", true));
        let mut members = [member(1, "leader", true), second, third];
        members[1].disk_full = "the disk is nearly full".to_owned();
        assert_eq!(
            warnings(&members, Some(1), 1, None),
            ["replica 2 cannot accept writes as the leader: the disk is nearly full"]
        );
    }

    /// An operator may forget that a replica is drained.
    #[test]
    fn drained_replica_is_reported_with_the_command_that_ends_the_drain() {
        let mut members = [1, 2, 3].map(|id| member(id, "voter", true));
        members[1].drained = true;
        let drained =
            "replica 2 is drained: it accepts no streams; `chancery undrain 2` ends the drain";
        assert_eq!(warnings(&members, Some(1), 1, None), [drained]);
        assert_eq!(warnings(&members, Some(1), 2, None), [drained]);
    }

    /// L13: a diverged voter does not vote, so it does not count as one that answers. No other
    /// warning says that it serves streams.
    #[test]
    fn diverged_replica_is_reported_and_does_not_count_as_a_voter() {
        let diverged = |replica_id| pb::MemberStatus {
            state: DIVERGED.to_owned(),
            failure: "its state differs; empty its directory".to_owned(),
            state_alarm: "it differs from replica 1".to_owned(),
            ..member(replica_id, "voter", true)
        };
        let mut members = vec![member(1, "leader", true), member(2, "voter", true), diverged(3)];
        assert_eq!(voters_up(&members), 2);
        let at_risk = "2 of 3 voters answer: if one more is lost, no writes are possible";
        assert_eq!(
            warnings(&members, Some(1), 1, None),
            ["replica 3 has diverged: its state differs; empty its directory", at_risk]
        );
        let told = warnings(&members, None, 3, None);
        assert_eq!(
            told,
            [
                "replica 3, which answers, has diverged: its state differs; empty its directory",
                "this replica no longer follows a leader; ask another replica about the cluster",
                at_risk
            ]
        );
        members[1] = member(2, "voter", false);
        for this in [1, 3] {
            let told = warnings(&members, None, this, None);
            assert!(told[0].contains("has diverged: "), "{told:?}");
            assert!(told[1].ends_with("replicas that have not diverged still serve streams"));
        }
    }
}
