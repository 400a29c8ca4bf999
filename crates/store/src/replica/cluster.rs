//! The members of a cluster, their reports, and changes of them.

use std::time::{Duration, Instant};

use chancery_model::Revision;
use chancery_raft_proto::v1 as pb;
use chancery_tls::Validity;
use openraft::async_runtime::WatchReceiver;
use pb::change_request::Change;

use crate::{
    ChangeError,
    format::raft::Peer,
    replication::{codec, core::Core, hello, machine::time_ms, members::HELLO_TIMEOUT},
};

/// A membership change, or a leadership transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberChange {
    /// Adds a member as a learner.
    Add {
        /// The ID of the replica.
        replica_id: u64,
        /// The address of its replication port, as `HOST:PORT`.
        address: String,
        /// Whether it stays a learner. Otherwise it becomes a voter when it has caught up.
        learner: bool,
    },
    /// Makes a learner a voter, after it has caught up.
    Promote(u64),
    /// Removes a member.
    Remove(u64),
    /// Transfers leadership to another voter; `None` selects the most up-to-date one.
    TransferLeader(Option<u64>),
}

impl MemberChange {
    /// Returns the change as it is sent to the leader.
    pub(super) fn into_request(self) -> Change {
        match self {
            Self::Add { replica_id, address, learner } => {
                Change::Add(pb::Peer { replica_id, address, learner, instance: 0 })
            }
            Self::Promote(id) => Change::Promote(id),
            Self::Remove(id) => Change::Remove(id),
            Self::TransferLeader(to) => Change::TransferLeader(to.unwrap_or_default()),
        }
    }
}

/// The role of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The voter that leads.
    Leader,
    /// A voter that does not lead.
    Voter,
    /// A learner that becomes a voter when it has caught up.
    Joining,
    /// A learner that stays one: it has a copy of the state and serves streams.
    Learner,
}

/// A member and its report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The ID of the replica.
    pub replica_id: u64,
    /// The address of its replication port.
    pub address: String,
    /// The role of the member.
    pub role: Role,
    /// The report of the member; `None` if it does not answer.
    pub report: Option<Report>,
    /// A description, for people, of the replica that answers at this address instead of the member.
    pub stranger: Option<String>,
    /// The reason why the member does not answer; empty if it does.
    pub unanswered: String,
}

/// The report of a replica about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The Raft term.
    pub term: u64,
    /// The ID of the leader that the replica hears; `None` if it hears none.
    pub leader: Option<u64>,
    /// The index of the last log entry.
    pub last_log_index: u64,
    /// The index of the last applied entry.
    pub applied: u64,
    /// The revision of the state.
    pub revision: Revision,
    /// The version of the program.
    pub version: String,
    /// The reason why the replica accepts no writes; `None` if it accepts them.
    pub failure: Option<String>,
    /// The reason why the replica has stopped, because its state or log differs from that of the cluster.
    pub diverged: Option<String>,
    /// A text that names the voters whose state differs; `None` if no difference is known.
    pub state_alarm: Option<String>,
    /// Whether the replica has a newer membership than the caller, without the caller: the caller was
    /// removed.
    pub excludes_caller: bool,
    /// The machine of the replica; `None` if its release does not report it.
    pub machine: Option<MachineReport>,
}

/// The report of a replica about its machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineReport {
    /// The free space of the file system of the data directory in bytes, if known.
    pub free_bytes: Option<u64>,
    /// The configured minimum of that space.
    pub free_bytes_min: u64,
    /// An error text if the replica would refuse writes as the leader for lack of space.
    pub disk_full: Option<String>,
    /// The clock of the replica minus the clock of the asking one, in milliseconds. The error is at most
    /// half of the duration of the call.
    pub clock_offset_ms: i64,
    /// The address and the certificate of each port.
    pub ports: Vec<PortReport>,
    /// Whether an operator drains the replica.
    pub is_drained: bool,
}

/// The report of a replica about one of its ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortReport {
    /// The name of its section in the configuration.
    pub name: String,
    /// The address on which it listens.
    pub address: String,
    /// The validity of its certificate; `None` without TLS.
    pub certificate: Option<Validity>,
}

impl MachineReport {
    /// Converts a report that was asked for at `asked` and arrived at `arrived`, in milliseconds since
    /// 1970.
    fn new(machine: pb::Machine, asked: u64, arrived: u64) -> Self {
        let here = asked / 2 + arrived / 2;
        let offset = i128::from(machine.time_ms) - i128::from(here);
        let port = |port: pb::Port| PortReport {
            name: port.name,
            address: port.address,
            certificate: port.certificate.map(|validity| Validity {
                not_before: validity.not_before,
                not_after: validity.not_after,
            }),
        };
        Self {
            free_bytes: machine.free_bytes,
            free_bytes_min: machine.free_bytes_min,
            disk_full: Some(machine.disk_full).filter(|full| !full.is_empty()),
            clock_offset_ms: i64::try_from(offset).unwrap_or(i64::MAX),
            ports: machine.ports.into_iter().map(port).collect(),
            is_drained: machine.drained,
        }
    }
}

/// The reason why a member has no report.
enum NoReport {
    /// The description of another replica that answers at its address.
    Stranger(String),
    /// The reason why nobody answers.
    Unanswered(String),
}

impl From<pb::HelloResponse> for Report {
    fn from(hello: pb::HelloResponse) -> Self {
        Self {
            term: hello.term,
            leader: Some(hello.leader).filter(|leader| *leader > 0),
            last_log_index: hello.last_log_index,
            applied: hello.applied,
            revision: Revision(hello.revision),
            version: hello.version,
            failure: Some(hello.failure).filter(|failure| !failure.is_empty()),
            diverged: Some(hello.diverged).filter(|reason| !reason.is_empty()),
            state_alarm: Some(hello.state_alarm).filter(|alarm| !alarm.is_empty()),
            excludes_caller: false,
            machine: None,
        }
    }
}

/// Returns all members with their current reports.
pub(super) async fn members(core: &Core) -> Vec<Member> {
    let membership = core.node.membership();
    let voters: Vec<u64> = membership.voter_ids().collect();
    let leader = core.node.present_leader();
    let reports = membership.nodes().map(|(id, peer)| {
        let role = if !voters.contains(id) {
            if peer.learner { Role::Learner } else { Role::Joining }
        } else if leader == Some(*id) {
            Role::Leader
        } else {
            Role::Voter
        };
        let (replica_id, address) = (*id, peer.address.clone());
        async move {
            let member = Member {
                replica_id,
                address,
                role,
                report: None,
                stranger: None,
                unanswered: String::new(),
            };
            match report(core, replica_id, &member.address).await {
                Ok(report) => Member { report: Some(report), ..member },
                Err(NoReport::Stranger(stranger)) => Member {
                    unanswered: format!("at its address is {stranger}"),
                    stranger: Some(stranger),
                    ..member
                },
                Err(NoReport::Unanswered(unanswered)) => Member { unanswered, ..member },
            }
        }
    });
    futures::future::join_all(reports).await
}

/// Returns the report of a member.
async fn report(core: &Core, id: u64, address: &str) -> Result<Report, NoReport> {
    let asked = time_ms();
    let report = |mut hello: pb::HelloResponse| {
        let machine = hello.machine.take();
        let machine = machine.map(|machine| MachineReport::new(machine, asked, time_ms()));
        Report { machine, ..hello.into() }
    };
    if id == core.id() {
        return Ok(report(hello::answer(core, &codec::hello(core.identity))));
    }
    let hello = core.calls.hello_or_reason(address, HELLO_TIMEOUT).await;
    let hello = hello.map_err(NoReport::Unanswered)?;
    let stranger = |text| Err(NoReport::Stranger(text));
    if let Some(text) = core.calls.stranger(&hello) {
        return stranger(text);
    }
    if hello.replica_id != id {
        return stranger(format!("replica {} of this cluster", hello.replica_id));
    }
    let membership = core.node.membership();
    // Another instance may answer at this address.
    let own = |peer: &Peer| [0, hello.instance].contains(&peer.instance) || hello.instance == 0;
    if !membership.get_node(&id).is_some_and(own) {
        return stranger(format!(
            "a different instance of replica {id}: one of the two replaced the other"
        ));
    }
    let excludes_caller = core.removal.is_disowned_by(&hello, &membership);
    Ok(Report { excludes_caller, ..report(hello) })
}

/// Takes a snapshot and returns its last log index. Waits at most `timeout`.
pub(super) async fn snapshot(core: &Core, timeout: Duration) -> Result<u64, ChangeError> {
    let stopped = |error: &dyn std::fmt::Display| ChangeError::Refused(error.to_string());
    let applied = core.storage.published.applied();
    let deadline = Instant::now() + timeout;
    core.node.raft.trigger().snapshot().await.map_err(|error| stopped(&error))?;
    loop {
        let snapshot = core.node.raft.metrics().borrow_watched().snapshot.map(|id| id.index);
        match snapshot {
            Some(index) if index >= applied => return Ok(index),
            _ if Instant::now() >= deadline => return Err(ChangeError::Timeout(timeout)),
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
