//! Which versions of the replication protocol this program speaks, and with whom it has one in common.
//!
//! A release that changes what replicas say to each other, or the format of entries and snapshots, raises
//! [`NEWEST`]; it keeps [`OLDEST`] at what the release before it speaks, and says only what the other side
//! knows. So replicas of adjacent releases work together, one after the other is upgraded, and one that is
//! too old or too new is refused by name before it can misunderstand anything (`docs/adr/0005-restore.md`
//! has the rules for files).

use chancery_proto::raft::v1 as pb;

/// The oldest version that this program speaks.
const OLDEST: u32 = 1;
/// The newest version that this program speaks.
const NEWEST: u32 = 1;

/// What this program speaks.
pub(crate) fn own() -> pb::Protocol {
    pb::Protocol { oldest: OLDEST, newest: NEWEST }
}

/// Why there is no version in common with another replica.
pub(crate) fn check(other: Option<&pb::Protocol>) -> Result<(), String> {
    check_with(&own(), other)
}

fn check_with(own: &pb::Protocol, other: Option<&pb::Protocol>) -> Result<(), String> {
    let Some(other) = other else {
        return Err("it does not say which replication protocol it speaks".to_owned());
    };
    let show = |protocol: &pb::Protocol| match protocol.oldest == protocol.newest {
        true => protocol.newest.to_string(),
        false => format!("{} to {}", protocol.oldest, protocol.newest),
    };
    let advice = if other.newest < own.oldest {
        "that one has to be upgraded, release by release"
    } else if other.oldest > own.newest {
        "this one has to be upgraded, release by release"
    } else {
        return Ok(());
    };
    let (theirs, ours) = (show(other), show(own));
    Err(format!(
        "it speaks version {theirs} of the replication protocol, this one {ours}: {advice}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Design 4.1: adjacent releases speak to each other, others are told which one to upgrade.
    #[test]
    fn replicas_with_a_version_in_common_speak_to_each_other() {
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
            "it speaks version 1 of the replication protocol, this one 2 to 3: that one has to be \
             upgraded, release by release"
        );
        assert!(check((1, 1), (2, 3)).unwrap_err().contains("this one has to be upgraded"));
        assert!(check_with(&own(), None).is_err(), "nobody leaves it out");
    }
}
