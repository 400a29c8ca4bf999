//! What the one who drives a session tells it of changes, and looks at between responses.

use chancery_model::{ResourceName, TypeUrl};
use chancery_view::LayerDelta;

use super::Session;
use crate::subscription::Subscription;

/// A response that has been unanswered for too long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overdue {
    /// Its type.
    pub type_url: TypeUrl,
    /// For how long the client has been silent on the type, in milliseconds.
    pub silent_ms: u64,
}

impl Session {
    /// Something of this type has changed that the session is interested in: the resource or alias
    /// `name`, or anything, for a wildcard.
    pub fn on_change(&mut self, type_url: &TypeUrl, name: Option<&ResourceName>) {
        let mut subscriptions = self.subscriptions.iter_mut();
        let Some(s) = subscriptions.find(|s| s.type_url == *type_url) else { return };
        match name {
            Some(name) if !s.wildcard => {
                if let Some((name, _)) = s.names.get_key_value(name) {
                    s.stale.insert(name.clone());
                }
            }
            _ => s.dirty |= s.wildcard,
        }
    }

    /// All that has changed of one collection, whether or not the session is interested in it. O(what
    /// has changed · log names), and no more than O(1) if it names less than has changed: then all
    /// its names are looked at later. Says whether the session may be interested.
    pub fn on_changes(&mut self, delta: &LayerDelta) -> bool {
        let mut subscriptions = self.subscriptions.iter_mut();
        let Some(s) = subscriptions.find(|s| s.type_url == *delta.type_url()) else { return false };
        if s.wildcard || s.names.len() < delta.n_steps() {
            let asks = s.wildcard || !s.names.is_empty();
            s.dirty |= asks;
            return asks;
        }
        let mut found = false;
        for name in delta.names() {
            if let Some((name, _)) = s.names.get_key_value(name) {
                s.stale.insert(name.clone());
                found = true;
            }
        }
        found
    }

    /// The node sees other scopes now: anything may have changed.
    pub fn on_new_view(&mut self) {
        self.subscriptions.iter_mut().for_each(|subscription| subscription.dirty = true);
    }

    /// Whether something is to be sent, as far as is known without looking.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.subscriptions.iter().any(Subscription::has_work)
    }

    /// The same for one type.
    #[must_use]
    pub fn has_work_of(&self, type_url: &TypeUrl) -> bool {
        self.subscriptions.iter().any(|s| s.type_url == *type_url && s.has_work())
    }

    /// Whether a response of the type is unanswered, or a part of one is still to be sent.
    #[must_use]
    pub fn is_under_way(&self, type_url: &TypeUrl) -> bool {
        let of_type = self.subscriptions.iter().find(|s| s.type_url == *type_url);
        of_type.is_some_and(|s| s.train.is_some() || !s.outstanding.is_empty())
    }

    /// Whether a rejection stands.
    #[must_use]
    pub fn is_rejecting(&self) -> bool {
        self.subscriptions.iter().any(|s| s.nack().is_some())
    }

    /// Since when the client has not answered, of the type where that is longest; `None` if it owes no
    /// answer.
    #[must_use]
    pub fn silent_since(&self) -> Option<u64> {
        self.subscriptions.iter().filter_map(Subscription::silent_since).min()
    }

    /// When the stream will be overdue if the client says nothing until then.
    #[must_use]
    pub fn overdue_at(&self) -> Option<u64> {
        let patience = self.config.ack_close_after_ms?;
        self.silent_since().map(|since| since.saturating_add(patience))
    }

    /// The response that the client has left unanswered for too long, if there is one. The stream is to
    /// be closed then.
    #[must_use]
    pub fn overdue(&self, now: u64) -> Option<Overdue> {
        let patience = self.config.ack_close_after_ms?;
        let silent = self.subscriptions.iter().filter_map(|s| Some((s.silent_since()?, s)));
        let (since, s) = silent.min_by_key(|(since, _)| *since)?;
        let silent_ms = now.saturating_sub(since);
        (silent_ms >= patience).then(|| Overdue { type_url: s.type_url.clone(), silent_ms })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use chancery_model::{
        Incarnation, ResourceDraft, ResourceKey, ScopeName, State, Transaction, Upsert,
        types::{CLUSTER, ENDPOINT, LISTENER},
    };
    use chancery_view::{Differ, View, changed_collections};

    use super::*;
    use crate::{
        Config, ErrorDetail, Protocol, Request, RequestKind, Response, SotwRequest, StreamKind,
    };

    struct World {
        state: State,
        session: Session,
        now: u64,
    }

    fn scope() -> ScopeName {
        ScopeName::new("default").unwrap()
    }

    impl World {
        fn new() -> Self {
            let config = Config { ack_close_after_ms: Some(60_000), ..Config::default() };
            let kind = StreamKind { protocol: Protocol::Sotw, type_url: None };
            let session = Session::new(kind, Arc::new(config));
            Self { state: State::new(Incarnation(1)), session, now: 1_000 }
        }

        fn put(&mut self, type_url: &str, names: &[&str], body: &'static str) {
            let draft = |name: &&str| {
                let type_url = TypeUrl::new(type_url).unwrap();
                let name = ResourceName::new(name).unwrap();
                ResourceDraft::new(
                    ResourceKey { type_url, name },
                    Bytes::from_static(body.as_bytes()),
                )
            };
            let upserts = names.iter().map(|name| Upsert { scope: scope(), draft: draft(name) });
            let transaction = Transaction { upserts: upserts.collect(), ..Transaction::default() };
            self.state = self.state.apply(&transaction).state;
        }

        fn send(&mut self, type_url: &str, names: &[&str], nonce: &str) -> RequestKind {
            self.send_with(type_url, names, nonce, None)
        }

        fn send_with(
            &mut self,
            type_url: &str,
            names: &[&str],
            nonce: &str,
            error_detail: Option<ErrorDetail>,
        ) -> RequestKind {
            let request = SotwRequest {
                type_url: type_url.to_owned(),
                resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
                response_nonce: nonce.to_owned(),
                error_detail,
                ..SotwRequest::default()
            };
            let view = View::resolve(&self.state, &[scope()]);
            let receipt = self.session.on_request(Request::Sotw(request), Some(&view), self.now);
            receipt.unwrap().kind
        }

        fn poll(&mut self) -> Option<Response> {
            let view = View::resolve(&self.state, &[scope()]);
            self.session.poll(Some(&view), &Differ::new(), self.now)
        }
    }

    /// SOTW-34: what a request is, for who counts them.
    #[test]
    fn a_request_is_one_of_five_things() {
        let mut world = World::new();
        world.put(ENDPOINT, &["x", "y"], "1");
        assert_eq!(world.send(ENDPOINT, &["x"], ""), RequestKind::Subscribe);
        let first = world.poll().unwrap().nonce();
        assert_eq!(world.send(ENDPOINT, &["x"], &first), RequestKind::Ack);
        assert_eq!(world.send(ENDPOINT, &["x"], &first), RequestKind::Repeat);
        assert_eq!(world.send(ENDPOINT, &["x", "y"], &first), RequestKind::Subscribe);
        let second = world.poll().unwrap().nonce();
        assert_eq!(world.send(ENDPOINT, &["x", "y"], &first), RequestKind::Stale);
        let error = Some(ErrorDetail { code: 3, message: "no".to_owned() });
        assert_eq!(world.send_with(ENDPOINT, &["x", "y"], &second, error), RequestKind::Nack);
        assert_eq!(world.send(ENDPOINT, &["x", "y"], "made up"), RequestKind::Stale);
    }

    /// Design 4.6: a response that is not answered is overdue, of the type whose client has been silent
    /// the longest, whatever other types do.
    #[test]
    fn the_longest_silence_is_what_is_overdue() {
        let mut world = World::new();
        world.put(CLUSTER, &["a"], "1");
        world.put(ENDPOINT, &["x"], "1");
        world.send(CLUSTER, &[], "");
        assert!(world.poll().is_some());
        assert_eq!(world.session.overdue_at(), Some(61_000));
        world.now = 50_000;
        world.send(ENDPOINT, &["x"], "");
        let endpoints = world.poll().unwrap().nonce();
        world.now = 60_999;
        assert_eq!(world.session.overdue(world.now), None);
        world.send(ENDPOINT, &["x"], &endpoints);
        world.now = 61_000;
        let overdue = world.session.overdue(world.now).unwrap();
        assert_eq!((overdue.type_url.as_str(), overdue.silent_ms), (CLUSTER, 60_000));
    }

    /// CLI-G-13: gRPC gives up a type by naming nothing, and does not answer what comes for it then.
    #[test]
    fn a_type_that_names_nothing_owes_no_answer() {
        let mut world = World::new();
        world.put(ENDPOINT, &["x"], "1");
        world.send(ENDPOINT, &["x"], "");
        let first = world.poll().unwrap().nonce();
        world.send(ENDPOINT, &["x"], &first);
        let before = world.state.clone();
        world.put(ENDPOINT, &["x"], "2");
        for delta in changed_collections(&Differ::new(), &before, &world.state) {
            assert!(world.session.on_changes(&delta));
        }
        assert!(world.poll().is_some());
        assert!(world.session.silent_since().is_some());
        // It had sent that before the response came.
        world.send(ENDPOINT, &[], &first);
        assert_eq!((world.session.silent_since(), world.session.overdue_at()), (None, None));
    }

    /// A session that is told of a whole collection finds out what concerns it.
    #[test]
    fn what_is_told_at_once_marks_what_is_asked_for() {
        let mut world = World::new();
        world.put(ENDPOINT, &["x", "y", "z"], "1");
        world.send(ENDPOINT, &["x", "y"], "");
        let first = world.poll().unwrap().nonce();
        world.send(ENDPOINT, &["x", "y"], &first);
        for (names, n) in [(vec!["z"], 0), (vec!["x"], 1), (vec!["x", "y", "z"], 2)] {
            let before = world.state.clone();
            let body = ["2", "3", "4"][n];
            world.put(ENDPOINT, &names, body);
            for delta in changed_collections(&Differ::new(), &before, &world.state) {
                world.session.on_changes(&delta);
            }
            assert_eq!(world.session.has_work(), n > 0, "{names:?}");
            let response = world.poll();
            assert_eq!(response.as_ref().map_or(0, Response::n_resources), n, "{names:?}");
            if let Some(response) = response {
                world.send(ENDPOINT, &["x", "y"], &response.nonce());
            }
        }
    }

    /// SOTW-43, SOTW-70: a full state that was planned, but not sent when the client asked for more, has what it asks
    /// for.
    #[test]
    fn a_planned_full_state_follows_the_newest_request() {
        let mut world = World::new();
        world.put(CLUSTER, &["a"], "1");
        world.put(LISTENER, &["l", "m"], "1");
        for (type_url, names) in [(CLUSTER, &[][..]), (LISTENER, &["l"])] {
            world.send(type_url, names, "");
            let nonce = world.poll().unwrap().nonce();
            world.send(type_url, names, &nonce);
        }
        let commit = |world: &mut World, type_url: &str, name: &str, body: &'static str| {
            let before = world.state.clone();
            world.put(type_url, &[name], body);
            for delta in changed_collections(&Differ::new(), &before, &world.state) {
                world.session.on_changes(&delta);
            }
        };
        commit(&mut world, CLUSTER, "b", "1");
        commit(&mut world, LISTENER, "l", "2");
        assert_eq!(world.poll().unwrap().type_url().as_str(), CLUSTER);
        assert!(world.poll().is_none());
        world.now += 4_000;
        world.send(CLUSTER, &[], "3");
        commit(&mut world, CLUSTER, "b", "2");
        assert_eq!(world.poll().unwrap().type_url().as_str(), CLUSTER);
        assert!(world.poll().is_none());
        world.now += 1_000;
        commit(&mut world, CLUSTER, "b", "3");
        // The listener has waited for the ACK timeout: it is planned with the clusters, which are sent first.
        assert_eq!(world.poll().unwrap().type_url().as_str(), CLUSTER);
        world.send(LISTENER, &["l", "m"], "2");
        let listeners = world.poll().unwrap();
        let names: Vec<&str> = listeners.resources().map(|r| r.name().as_str()).collect();
        assert_eq!(names, ["l", "m"]);
    }
}
