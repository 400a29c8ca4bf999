//! The rejections that REST clients report (REST-16).
//!
//! A poll has no session, so the newest rejection of each identity, node and type is kept here. Its text is not: it may
//! quote secrets, and the rejected response, in which they would be searched for, is no longer known.

use std::{collections::VecDeque, sync::Arc, time::SystemTime};

use chancery_model::{Principal, ScopeName, TypeUrl};
use parking_lot::Mutex;

/// The maximum number of rejections that are kept. A further one replaces the oldest.
const KEPT_MAX: usize = 256;

/// The maximum length of the kept version in bytes. A longer one is not a version of this server.
const VERSION_BYTES_MAX: usize = 128;

/// A rejection that a REST client has reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PollRejection {
    /// The identity of the client.
    pub principal: Principal,
    /// The ID of the node.
    pub node: String,
    /// The scopes that the node saw.
    pub scopes: Vec<ScopeName>,
    /// The type of the rejected response.
    pub type_url: TypeUrl,
    /// The version that the client has; empty if it is too long.
    pub version: String,
    /// The client's code.
    pub code: i32,
    /// The time at which the poll arrived.
    pub time: SystemTime,
}

impl PollRejection {
    fn origin(&self) -> (&Principal, &str, &TypeUrl) {
        (&self.principal, &self.node, &self.type_url)
    }
}

/// The newest rejections, oldest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct PollRejections(Arc<Mutex<VecDeque<PollRejection>>>);

impl PollRejections {
    /// Keeps a rejection in place of the earlier one of its identity, node and type.
    pub(crate) fn record(&self, mut rejection: PollRejection) {
        if rejection.version.len() > VERSION_BYTES_MAX {
            rejection.version = String::new();
        }
        let mut kept = self.0.lock();
        kept.retain(|one| one.origin() != rejection.origin());
        if kept.len() == KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(rejection);
    }

    /// Returns all rejections that are kept.
    pub(crate) fn list(&self) -> Vec<PollRejection> {
        self.0.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejection(node: &str, version: &str) -> PollRejection {
        PollRejection {
            principal: Principal::anonymous(),
            node: node.to_owned(),
            scopes: vec![],
            type_url: TypeUrl::from_static("t/x.Y"),
            version: version.to_owned(),
            code: 3,
            time: SystemTime::UNIX_EPOCH,
        }
    }

    /// REST-16: the newest rejection of a node is kept, and the number of rejections is bounded.
    #[test]
    fn newest_rejection_of_each_node_is_kept() {
        let rejections = PollRejections::default();
        rejections.record(rejection("a", "1"));
        rejections.record(rejection("b", &"x".repeat(VERSION_BYTES_MAX + 1)));
        rejections.record(rejection("a", "2"));
        let kept = rejections.list();
        let kept: Vec<_> =
            kept.iter().map(|one| (one.node.as_str(), one.version.as_str())).collect();
        assert_eq!(kept, [("b", ""), ("a", "2")]);
        for n in 0..2 * KEPT_MAX {
            rejections.record(rejection(&n.to_string(), "1"));
        }
        let kept = rejections.list();
        assert_eq!((kept.len(), kept[0].node.as_str()), (KEPT_MAX, "256"));
    }

    /// T3: a client cannot replace the rejection of another identity that has the same node.
    #[test]
    fn rejection_of_another_identity_is_not_replaced() {
        let rejections = PollRejections::default();
        let principal = Principal::new("token:a").unwrap();
        rejections.record(PollRejection { principal, ..rejection("a", "1") });
        rejections.record(rejection("a", "2"));
        let kept = rejections.list();
        let versions: Vec<_> = kept.iter().map(|one| one.version.as_str()).collect();
        assert_eq!(versions, ["1", "2"]);
    }
}
