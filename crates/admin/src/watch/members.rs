//! The members of the cluster, as a watch compares them.

use std::collections::BTreeMap;

use chancery_admin_proto::v1 as pb;

use crate::ctx::Ctx;

/// The leader and the members, as a replica knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Members {
    pub(super) leader: Option<u64>,
    /// Whether each member is a voter. Empty if the members are unknown.
    pub(super) roles: BTreeMap<u64, bool>,
}

impl Members {
    /// Returns the present leader and members. A replica that has just joined does not know the members; those of `before`
    /// then remain.
    pub(super) fn now(ctx: &Ctx, before: &Self) -> Self {
        let (leader, roles) = (ctx.deps.replica.leader(), ctx.deps.replica.roles());
        Self { leader, roles: if roles.is_empty() { before.roles.clone() } else { roles } }
    }

    /// Returns whether `id` is not one of the members. Returns false if the members are unknown.
    pub(super) fn is_new(&self, id: u64) -> bool {
        !self.roles.is_empty() && !self.roles.contains_key(&id)
    }

    /// Returns one event for each difference between `self` and `now`. If the members of `self` are unknown, no member is
    /// added.
    pub(super) fn changes(&self, now: &Self) -> Vec<pb::MemberEvent> {
        let event = |kind: &str, replica_id, role: &str| pb::MemberEvent {
            kind: kind.to_owned(),
            replica_id,
            role: role.to_owned(),
        };
        let role = |is_voter: bool| if is_voter { "voter" } else { "learner" };
        let mut events = Vec::new();
        for (id, is_voter) in &now.roles {
            match self.roles.get(id) {
                None if self.is_new(*id) => events.push(event("added", *id, role(*is_voter))),
                Some(before) if before != is_voter => {
                    events.push(event("role", *id, role(*is_voter)));
                }
                None | Some(_) => {}
            }
        }
        let gone = self.roles.keys().filter(|id| !now.roles.contains_key(id));
        events.extend(gone.map(|id| event("removed", *id, "")));
        if self.leader != now.leader {
            events.push(event("leader", now.leader.unwrap_or_default(), ""));
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(leader: Option<u64>, roles: &[(u64, bool)]) -> Members {
        Members { leader, roles: roles.iter().copied().collect() }
    }

    fn changes(before: &Members, now: &Members) -> Vec<String> {
        let events = before.changes(now).into_iter();
        events.map(|one| format!("{} {} {}", one.kind, one.replica_id, one.role)).collect()
    }

    #[test]
    fn changes_of_members_are_events() {
        let before = members(Some(1), &[(1, true), (2, true), (3, false)]);
        let now = members(None, &[(1, true), (3, true), (4, false)]);
        let events = changes(&before, &now);
        assert_eq!(events, ["role 3 voter", "added 4 learner", "removed 2 ", "leader 0 "]);
        assert!(now.changes(&now).is_empty());
    }

    #[test]
    fn unknown_members_cause_no_added_event() {
        let now = members(Some(2), &[(1, true), (2, true)]);
        assert_eq!(changes(&Members::default(), &now), ["leader 2 "]);
    }
}
