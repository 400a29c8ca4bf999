//! The scopes and the rights of a client: its assignment chooses the scopes, and the access rules permit them.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use chancery_model::{Identity, Node, Principal, ScopeName, State, StreamRefusal, StreamRights};
use parking_lot::Mutex;
use tracing::warn;

use crate::{
    log_limit::{RefusalLog, logged_name},
    messages::{
        client_events::{ClientEvent, ClientEventKind, ClientObserver},
        status::{End, EndCode},
    },
    metrics::access_refused,
};

/// Whether the access rules apply to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessControl {
    /// Every client may receive everything.
    #[default]
    Off,
    /// A client may receive what the access rules give to its identity.
    Enforced,
}

/// The text for clients whose stream is refused. It is the same for every reason, so that it tells nothing about
/// other identities and scopes.
const REFUSED: &str = "the identity of this client has no access to its configuration; the log of the server has the reason";

/// The text for clients whose stream ends because their rights changed.
pub(crate) const CHANGED: &str = "the access rules have changed; reconnect";

/// The scopes and rights that a client gets.
#[derive(Debug)]
pub(crate) struct Authorization {
    /// The assignment with its scopes; `None` if no assignment matches.
    pub(crate) assigned: Option<(Arc<str>, Vec<ScopeName>)>,
    /// The rights; `None` if access rules do not apply.
    pub(crate) rights: Option<StreamRights>,
}

impl AccessControl {
    /// Returns what a node receives. `identity` is `None` for connections that the operator has configured, such as
    /// those to remote sinks of MCP.
    pub(crate) fn authorize(
        self,
        state: &State,
        identity: Option<&Identity>,
        node: &Node,
    ) -> Result<Authorization, StreamRefusal> {
        let assignment = state.assignments.for_node(node);
        let assigned = assignment.map(|one| (Arc::clone(&one.name), one.scopes_for(node)));
        let rights = match (self, identity) {
            (Self::Off, _) | (Self::Enforced, None) => None,
            (Self::Enforced, Some(identity)) => {
                let scopes = assigned.as_ref().map_or(&[][..], |(_, scopes)| scopes);
                let unresolved = assignment.and_then(|one| one.unresolved(node));
                let unresolved = unresolved.map(|template| template.as_str());
                Some(state.access.decide_stream(identity, node, scopes, unresolved)?)
            }
        };
        Ok(Authorization { assigned, rights })
    }

    /// Returns whether a client may read scopes that its assignment no longer gives. Without access rules, every client
    /// may.
    pub(crate) fn may_read(
        self,
        state: &State,
        identity: Option<&Identity>,
        node: &Node,
        scopes: &[ScopeName],
    ) -> bool {
        match identity.filter(|_| self == Self::Enforced && !scopes.is_empty()) {
            Some(identity) => state.access.decide_stream(identity, node, scopes, None).is_ok(),
            None => true,
        }
    }

    /// Returns whether the rules decide what an identity may read. Otherwise, a client only claims to be its node, and
    /// only the assignment decides.
    pub(crate) fn proves(self, identity: Option<&Identity>) -> bool {
        self == Self::Enforced && identity.is_some_and(|one| !one.principal.is_anonymous())
    }
}

impl Authorization {
    pub(crate) fn scopes(&self) -> &[ScopeName] {
        self.assigned.as_ref().map_or(&[], |(_, scopes)| scopes)
    }
}

/// The access of clients without a session: polls, and streams of load reports.
#[derive(Debug)]
pub(crate) struct PollAccess {
    pub(crate) control: AccessControl,
    pub(crate) observer: ClientObserver,
    pub(crate) log: Arc<RefusalLog>,
}

impl PollAccess {
    pub(crate) fn new(
        control: AccessControl,
        observer: ClientObserver,
        log: Arc<RefusalLog>,
    ) -> Self {
        Self { control, observer, log }
    }

    /// Returns what the node of an identity receives.
    ///
    /// # Errors
    /// Returns the end for a client that the access rules refuse.
    pub(crate) fn authorize(
        &self,
        state: &State,
        identity: &Identity,
        node: &Node,
        peer: SocketAddr,
    ) -> Result<Authorization, End> {
        self.control.authorize(state, Some(identity), node).map_err(|refusal| {
            let left_out = self.log.take(&node.id, peer);
            log_refusal(left_out, Some(identity), node, peer, &refusal);
            refused(&self.observer, Some(identity), node, peer, &refusal)
        })
    }
}

/// Writes the reason of a refusal to the log, which the client does not learn. `left_out` is that of
/// [`RefusalLog::take`].
pub(crate) fn log_refusal(
    left_out: Option<u64>,
    identity: Option<&Identity>,
    node: &Node,
    peer: SocketAddr,
    refusal: &StreamRefusal,
) {
    let Some(left_out) = left_out else { return };
    let identity = identity.map_or("", |identity| identity.principal.as_str());
    let (node, reason) = (logged_name(&node.id), refusal.to_string());
    warn!(identity, node = &*node, %peer, reason, left_out, "a client has no access");
}

/// Returns the end of a stream that is refused, counts it, and passes it on.
pub(crate) fn refused(
    observer: &ClientObserver,
    identity: Option<&Identity>,
    node: &Node,
    peer: SocketAddr,
    refusal: &StreamRefusal,
) -> End {
    access_refused(refusal.reason());
    observer.observe(ClientEvent {
        kind: ClientEventKind::Refused(refusal.reason()),
        principal: identity.map(|identity| &identity.principal),
        peer,
        node: &node.id,
    });
    End::new(EndCode::PermissionDenied, REFUSED)
}

/// The numbers of streams by identity, for identities whose access rule limits them.
#[derive(Debug, Clone, Default)]
pub(crate) struct IdentityStreams(Arc<Mutex<HashMap<Principal, u64>>>);

/// A counted stream of an identity. Dropping it uncounts the stream.
#[derive(Debug)]
pub(crate) struct CountedStream {
    streams: IdentityStreams,
    principal: Principal,
}

impl IdentityStreams {
    /// Counts a stream, unless the identity already has `max`.
    pub(crate) fn take(&self, principal: &Principal, max: u64) -> Option<CountedStream> {
        let mut counts = self.0.lock();
        let count = counts.entry(principal.clone()).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(CountedStream { streams: self.clone(), principal: principal.clone() })
    }
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        let mut counts = self.streams.0.lock();
        if let Some(count) = counts.get_mut(&self.principal) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read as _};

    use super::*;

    /// T9: a client's text cannot end a line of the log, add a field to it, nor color the lines after it.
    #[test]
    fn client_text_in_log_is_one_quoted_value() {
        let (mut lines, writer) = io::pipe().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_writer(Arc::new(writer))
            .finish();
        let forged = "a level=ERROR principal=\"root\"\n2026-01-01 INFO all is well\r\u{1b}[2J\u{2028}\u{202e}é";
        let node = Node { id: forged.to_owned(), ..Node::default() };
        tracing::subscriber::with_default(subscriber, || {
            let refusal = StreamRefusal::NoRule;
            log_refusal(Some(3), None, &node, ([127, 0, 0, 1], 1).into(), &refusal);
        });
        let mut text = String::new();
        lines.read_to_string(&mut text).unwrap();
        let quoted = r#"node="a level=ERROR principal=\"root\"\n2026-01-01 INFO all is well\r\u{1b}[2J\u{2028}\u{202e}é""#;
        assert!(text.contains(quoted), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
