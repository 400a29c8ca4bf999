//! The versions of the replication protocol that this program supports.
//!
//! A release that changes the messages between replicas, or the format of entries and snapshots, raises
//! [`NEWEST`]. It keeps [`OLDEST`] at the newest version of the release before it, and sends only what the
//! other side supports. Replicas of adjacent releases therefore work together, and can be upgraded one by
//! one. A replica that is too old or too new is refused with the reason before it can misinterpret a message.
//! `docs/adr/0005-restore.md` has the rules for files.

use chancery_raft_proto::v1 as pb;

/// The oldest version that this program supports.
const OLDEST: u32 = 1;
/// The newest version that this program supports.
const NEWEST: u32 = 2;
/// The version from which a replica accepts the content of earlier revisions in a snapshot.
const CONTENT: u32 = 2;

/// Returns the versions that this program supports.
pub(crate) fn own() -> pb::Protocol {
    pb::Protocol { oldest: OLDEST, newest: NEWEST }
}

/// Returns whether a replica with these versions accepts the content of earlier revisions in a snapshot.
pub(crate) fn accepts_content(other: &pb::Protocol) -> bool {
    other.newest >= CONTENT
}

/// Checks that another replica has a version in common with this one.
pub(crate) fn check(other: Option<&pb::Protocol>) -> Result<(), String> {
    check_with(&own(), other)
}

fn check_with(own: &pb::Protocol, other: Option<&pb::Protocol>) -> Result<(), String> {
    let Some(other) = other else {
        return Err("it does not name its versions of the replication protocol".to_owned());
    };
    let show = |protocol: &pb::Protocol| {
        if protocol.oldest == protocol.newest {
            protocol.newest.to_string()
        } else {
            format!("{} to {}", protocol.oldest, protocol.newest)
        }
    };
    let advice = if other.newest < own.oldest {
        "upgrade that replica, release by release"
    } else if other.oldest > own.newest {
        "upgrade this replica, release by release"
    } else {
        return Ok(());
    };
    let (theirs, ours) = (show(other), show(own));
    Err(format!(
        "it supports version {theirs} of the replication protocol, this replica {ours}; {advice}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adjacent releases communicate. Otherwise the error says which replica to upgrade.
    #[test]
    fn replicas_with_common_protocol_version_communicate() {
        let speaks = |oldest, newest| pb::Protocol { oldest, newest };
        let check = |own: (u32, u32), other: (u32, u32)| {
            check_with(&speaks(own.0, own.1), Some(&speaks(other.0, other.1)))
        };
        assert_eq!(check((1, 1), (1, 1)), Ok(()));
        assert_eq!(check((1, 1), (1, 2)), Ok(()));
        assert_eq!(check((2, 3), (1, 2)), Ok(()));
        let error = check((2, 3), (1, 1)).unwrap_err();
        assert_eq!(
            error,
            "it supports version 1 of the replication protocol, this replica 2 to 3; upgrade that replica, \
             release by release"
        );
        assert!(check((1, 1), (2, 3)).unwrap_err().contains("; upgrade this replica"));
        assert!(check_with(&own(), None).is_err(), "every release sends its versions");
    }
}
