//! The command `cluster`: the members of the cluster, and changes of the membership.

use std::io::{self, Write};

use chancery_admin_proto::v1::{self as pb, admin_client::AdminClient};
use chancery_store::REPLICA_ID_MAX;
use clap::{Subcommand, builder::RangedU64ValueParser};

use super::{client::refusal, connector::Channel};
use crate::{answer::Answer, failure::Failure, help::examples, table::Table, text::plain};

/// Returns the parser of a replica ID.
pub(super) fn replica_id() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=REPLICA_ID_MAX)
}

/// The subcommands of `cluster`.
#[derive(Debug, Subcommand)]
pub(crate) enum Cluster {
    /// Show the members, the leader, problems, and the replica that answers
    ///
    /// Without `--check`, the exit code is 0 if a replica answers. In JSON, `leader` is null if there
    /// is no leader.
    Status {
        /// Exit with code 1 if there is no leader, or a replica is not healthy
        ///
        /// A replica is healthy if it answers, accepts writes or can do so as the leader, and its state
        /// is that of the cluster.
        #[arg(long)]
        check: bool,
    },
    /// Add a replica as a learner, which becomes a voter when it has caught up
    ///
    /// A replica that starts with `--join` or `--peers` adds itself.
    #[command(after_help = examples(&["cluster add 4 10.0.0.4:18002"]))]
    Add {
        /// ID of the replica, at least 1 and unique in the cluster
        #[arg(value_name = "ID", value_parser = replica_id())]
        id: u64,
        /// Address of its replication port
        #[arg(value_name = "HOST:PORT")]
        address: String,
        /// Keep it a learner, which serves streams and has no vote
        ///
        /// A learner becomes a voter only with `chancery cluster promote`.
        #[arg(long)]
        learner: bool,
    },
    /// Make a learner a voter, after it has caught up
    #[command(after_help = examples(&["cluster promote 4"]))]
    Promote {
        /// ID of the replica
        #[arg(value_name = "ID", value_parser = replica_id())]
        id: u64,
    },
    /// Remove a replica, unless the remaining members could no longer write
    #[command(after_help = examples(&["cluster remove 4"]))]
    Remove {
        /// ID of the replica
        #[arg(value_name = "ID", value_parser = replica_id())]
        id: u64,
    },
    /// Transfer leadership to another voter
    #[command(after_help = examples(&["cluster transfer-leader", "cluster transfer-leader 2"]))]
    TransferLeader {
        /// ID of the next leader [default: the most up-to-date voter]
        #[arg(value_name = "ID", value_parser = replica_id())]
        id: Option<u64>,
    },
    /// Take a snapshot on the contacted replica, so that its log can be purged
    #[command(after_help = examples(&["cluster snapshot"]))]
    Snapshot,
}

/// Runs a subcommand of `cluster`.
pub(super) async fn run(
    command: Cluster,
    mut client: AdminClient<Channel>,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let changed = match command {
        Cluster::Status { check } => {
            let response = client.get_cluster(pb::GetClusterRequest {}).await;
            let status = response.map_err(|status| refusal(&status))?.into_inner();
            answer.show(&status, |out| write_status(&status, out))?;
            return if check { check_status(&status) } else { Ok(()) };
        }
        Cluster::Snapshot => {
            let response = client.take_snapshot(pb::TakeSnapshotRequest {}).await;
            let taken = response.map_err(|status| refusal(&status))?.into_inner();
            return answer.show(&taken, |out| {
                let pb::TakeSnapshotResponse { replica_id, snapshot_index } = taken;
                writeln!(
                    out,
                    "replica {replica_id} has a snapshot up to log entry {snapshot_index}"
                )
            });
        }
        Cluster::Add { id: replica_id, address, learner } => {
            client.add_member(pb::AddMemberRequest { replica_id, address, learner }).await
        }
        Cluster::Promote { id: replica_id } => {
            client.promote_member(pb::PromoteMemberRequest { replica_id }).await
        }
        Cluster::Remove { id: replica_id } => {
            client.remove_member(pb::RemoveMemberRequest { replica_id }).await
        }
        Cluster::TransferLeader { id: replica_id } => {
            client.transfer_leader(pb::TransferLeaderRequest { replica_id }).await
        }
    };
    let changed = changed.map_err(|status| refusal(&status))?.into_inner();
    answer.show(&changed, |out| writeln!(out, "{}", plain(&changed.message)))
}

/// The state of a member whose state or log differs from that of the cluster.
const DIVERGED: &str = "diverged";

/// Fails if a replica has diverged or reports that states differ, if the replica that answers has no
/// leader, or if a replica does not answer or cannot accept writes.
fn check_status(status: &pb::ClusterStatus) -> Result<(), Failure> {
    let problem = |member: &pb::MemberStatus| {
        let id = member.replica_id;
        match (member.state == DIVERGED, member.state_alarm.as_str()) {
            (true, _) => Some(format!("replica {id} has diverged: {}", member.failure)),
            (false, "") => None,
            (false, alarm) => Some(format!("replica {id}: {alarm}")),
        }
    };
    let problems: Vec<String> = status.members.iter().filter_map(problem).collect();
    let limits: Vec<String> = status.members.iter().filter_map(limitation).collect();
    match status.leader {
        _ if !problems.is_empty() => Err(Failure::lines(problems)),
        None => Err(Failure::of_server("has no leader: it accepts no writes")),
        Some(_) if !limits.is_empty() => Err(Failure::lines(limits)),
        Some(_) => Ok(()),
    }
}

/// Returns why a member does not answer or cannot accept writes; `None` if it can.
fn limitation(member: &pb::MemberStatus) -> Option<String> {
    let id = member.replica_id;
    let reason = reason(member);
    match (member.up, reason) {
        (true, "") => None,
        (true, reason) => Some(format!("replica {id} cannot accept writes: {reason}")),
        (false, "") => Some(format!("replica {id} does not answer")),
        (false, reason) => Some(format!("replica {id} does not answer: {reason}")),
    }
}

/// Returns the reason why a member accepts no writes, could not as the leader, or does not answer.
fn reason(member: &pb::MemberStatus) -> &str {
    let reasons = [&member.failure, &member.disk_full, &member.unanswered];
    reasons.into_iter().find(|reason| !reason.is_empty()).map_or("", String::as_str)
}

fn write_status(status: &pb::ClusterStatus, out: &mut dyn Write) -> io::Result<()> {
    let is_diverged = |member: &pb::MemberStatus| member.state == DIVERGED;
    let is_own = |member: &&pb::MemberStatus| member.replica_id == status.replica_id;
    let leader = match status.leader {
        Some(leader) => format!("replica {leader} leads"),
        // A diverged replica hears no leader, although the others may have one.
        None if status.members.iter().find(is_own).is_some_and(is_diverged) => {
            "unknown leader".to_owned()
        }
        None => "no leader".to_owned(),
    };
    writeln!(
        out,
        "cluster {} ({}): {leader}, {} of {} voters answer ({} needed)",
        status.cluster_id,
        status.incarnation,
        status.voters_up,
        status.voters.len(),
        status.quorum
    )?;
    for warning in &status.warnings {
        writeln!(out, "warning: {}", plain(warning))?;
    }
    writeln!(out)?;
    let headings =
        ["ID", "ADDRESS", "ROLE", "STATE", "REVISION", "LAG", "TERM", "VERSION", "FREE", "FAILURE"];
    let mut table = Table::new(headings);
    for member in &status.members {
        let said = |text: String| if member.up { text } else { String::new() };
        let role = member.role.clone();
        let state = if !member.up {
            "DOWN"
        } else if is_diverged(member) {
            "DIVERGED"
        } else if member.drained {
            "drained"
        } else {
            "up"
        };
        table.row([
            member.replica_id.to_string(),
            member.address.clone(),
            role,
            state.to_owned(),
            said(member.revision.to_string()),
            member.lag.map(|lag| lag.to_string()).unwrap_or_default(),
            said(member.term.to_string()),
            member.version.clone(),
            member.free_bytes.map(|free| format!("{}MiB", free >> 20)).unwrap_or_default(),
            reason(member).to_owned(),
        ]);
    }
    table.write(out, "")?;
    writeln!(out)?;
    write_replica(status, out)
}

/// Writes the status of the replica that answers.
fn write_replica(status: &pb::ClusterStatus, out: &mut dyn Write) -> io::Result<()> {
    let is_drained =
        |member: &pb::MemberStatus| member.replica_id == status.replica_id && member.drained;
    let ready = match (status.ready, status.failure.as_str()) {
        (true, _) => "ready".to_owned(),
        (false, "") if status.members.iter().any(is_drained) => "not ready: drained".to_owned(),
        (false, "") => "not ready".to_owned(),
        (false, failure) => format!("not ready: {}", plain(failure)),
    };
    let disk = match status.free_bytes {
        Some(free) => format!("{} bytes used, {free} free", status.disk_bytes),
        None => format!("{} bytes used", status.disk_bytes),
    };
    for (what, value) in [
        ("answered by", format!("replica {}, {ready}", status.replica_id)),
        ("revision", status.revision.to_string()),
        ("resources", format!("{} in {} scopes", status.resources, status.scopes)),
        ("streams", status.streams.to_string()),
        (
            "log",
            format!(
                "last {}, committed {}, applied {}, snapshot {}",
                status.last_log_index,
                status.committed_index,
                status.applied_index,
                status.snapshot_index
            ),
        ),
        ("disk", disk),
    ] {
        writeln!(out, "{what:<13}{value}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_text_summarizes_members_and_warnings() {
        let member = |replica_id: u64, role: &str| pb::MemberStatus {
            replica_id,
            role: role.to_owned(),
            address: format!("r{replica_id}:18002"),
            ..pb::MemberStatus::default()
        };
        let up = |member: pb::MemberStatus| pb::MemberStatus {
            up: true,
            revision: 12,
            lag: Some(0),
            term: 3,
            version: "0.1.0".to_owned(),
            free_bytes: Some(3 << 30),
            ..member
        };
        let unanswered = "connection refused".to_owned();
        let down = pb::MemberStatus { unanswered, ..member(2, "voter") };
        let status = pb::ClusterStatus {
            replica_id: 1,
            cluster_id: "abc".to_owned(),
            incarnation: "x1".to_owned(),
            leader: Some(1),
            voters: vec![1, 2],
            voters_up: 1,
            quorum: 2,
            warnings: vec!["two\nlines".to_owned()],
            members: vec![up(member(1, "leader")), down],
            revision: 12,
            failure: "x".to_owned(),
            ..pb::ClusterStatus::default()
        };
        let mut out = Vec::new();
        write_status(&status, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected = "cluster abc (x1): replica 1 leads, 1 of 2 voters answer (2 needed)\n\
            warning: two\\nlines\n\
            \n\
            ID  ADDRESS   ROLE    STATE  REVISION  LAG  TERM  VERSION  FREE     FAILURE\n\
            1   r1:18002  leader  up     12        0    3     0.1.0    3072MiB  -\n\
            2   r2:18002  voter   DOWN   -         -    -     -        -        connection refused\n\
            \n\
            answered by  replica 1, not ready: x\n\
            revision     12\n";
        assert!(text.starts_with(expected), "{text}");
    }

    /// A replica that does not answer was not checked, so it does not count as healthy.
    #[test]
    fn check_fails_while_a_replica_lacks_disk_space_or_does_not_answer() {
        let up = |replica_id| pb::MemberStatus { replica_id, up: true, ..Default::default() };
        let mut status = pb::ClusterStatus {
            replica_id: 1,
            leader: Some(1),
            members: vec![up(1), up(2), up(3)],
            ..pb::ClusterStatus::default()
        };
        assert_eq!(check_status(&status), Ok(()));
        status.members[1].disk_full = "the disk is nearly full".to_owned();
        status.members[2].up = false;
        status.members[2].unanswered = "connection refused".to_owned();
        assert_eq!(
            check_status(&status).unwrap_err().lines,
            [
                "replica 2 cannot accept writes: the disk is nearly full",
                "replica 3 does not answer: connection refused"
            ]
        );
    }

    /// L13: a check of any replica fails if a replica has diverged, and says why.
    #[test]
    fn check_fails_while_a_replica_has_diverged() {
        let member = |replica_id| pb::MemberStatus {
            replica_id,
            up: true,
            state: "up".to_owned(),
            ..pb::MemberStatus::default()
        };
        let mut status = pb::ClusterStatus {
            replica_id: 1,
            leader: Some(1),
            members: vec![member(1), member(2)],
            ..pb::ClusterStatus::default()
        };
        assert_eq!(check_status(&status), Ok(()));
        status.members[0].state_alarm = "its state differs from that of replica 2".to_owned();
        let lines = |status: &pb::ClusterStatus| check_status(status).unwrap_err().lines;
        assert_eq!(lines(&status), ["replica 1: its state differs from that of replica 2"]);
        status.members[0].state_alarm.clear();
        status.members[1].state = DIVERGED.to_owned();
        status.members[1].failure = "its log differs".to_owned();
        assert_eq!(lines(&status), ["replica 2 has diverged: its log differs"]);
        let shown = |status: &pb::ClusterStatus| {
            let mut out = Vec::new();
            write_status(status, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(shown(&status).contains("DIVERGED"), "{}", shown(&status));
        status.leader = None;
        assert!(shown(&status).contains("): no leader, "), "{}", shown(&status));
        status.replica_id = 2;
        assert!(shown(&status).contains("): unknown leader, "), "{}", shown(&status));
        status.members.pop();
        assert_eq!(lines(&status), ["the server has no leader: it accepts no writes"]);
    }
}
