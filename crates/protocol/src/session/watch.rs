//! The silence of a client: responses that it leaves unanswered.

use chancery_model::TypeUrl;

use crate::subscription::Subscription;

/// A response that has been unanswered for too long.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overdue {
    /// The type of the response.
    pub type_url: TypeUrl,
    /// The time since the client's last answer for the type, or since the response, in
    /// milliseconds.
    pub silent_ms: u64,
}

impl Overdue {
    /// Returns the response that the client has left unanswered for at least `patience_ms`, for the type where
    /// that is longest.
    pub(super) fn find(subscriptions: &[Subscription], patience_ms: u64, now: u64) -> Option<Self> {
        let silent = subscriptions.iter().filter_map(|s| Some((s.silent_since()?, s)));
        let (since, s) = silent.min_by_key(|(since, _)| *since)?;
        let silent_ms = now.saturating_sub(since);
        (silent_ms >= patience_ms).then(|| Self { type_url: s.type_url().clone(), silent_ms })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use chancery_model::{
        Incarnation, ResourceDraft, ResourceKey, ResourceName, ScopeName, State, Transaction,
        Upsert,
        types::{CLUSTER, ENDPOINT, LISTENER},
    };
    use chancery_view::{Differ, View, changed_collections};

    use super::*;
    use crate::{
        Config, ErrorDetail, Protocol, Request, RequestKind, Response, Session, SotwRequest,
        StreamKind,
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
            let receipt =
                self.session.handle_request(Request::Sotw(request), Some(&view), self.now);
            receipt.unwrap().kind
        }

        fn poll(&mut self) -> Option<Response> {
            let view = View::resolve(&self.state, &[scope()]);
            self.session.poll(Some(&view), &Differ::new(), self.now)
        }
    }

    /// SOTW-34: each request has one of five kinds, which metrics count.
    #[test]
    fn request_is_classified_into_five_kinds() {
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

    /// The overdue response belongs to the type with the longest silence, whatever the other types
    /// do.
    #[test]
    fn longest_unanswered_type_is_overdue() {
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

    /// CLI-G-13: gRPC unsubscribes from a type with an empty list, and does not answer later
    /// responses of that type.
    #[test]
    fn type_without_names_owes_no_answer() {
        let mut world = World::new();
        world.put(ENDPOINT, &["x"], "1");
        world.send(ENDPOINT, &["x"], "");
        let first = world.poll().unwrap().nonce();
        world.send(ENDPOINT, &["x"], &first);
        let before = world.state.clone();
        world.put(ENDPOINT, &["x"], "2");
        for delta in changed_collections(&Differ::new(), &before, &world.state) {
            assert!(world.session.handle_changes(&delta));
        }
        assert!(world.poll().is_some());
        assert!(world.session.silent_since().is_some());
        // The client sent this request before the response arrived.
        world.send(ENDPOINT, &[], &first);
        assert_eq!((world.session.silent_since(), world.session.overdue_at()), (None, None));
    }

    /// The changes of a collection mark a session only if it subscribes to one of the names.
    #[test]
    fn changes_of_a_collection_mark_only_subscribed_names() {
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
                world.session.handle_changes(&delta);
            }
            assert_eq!(world.session.has_work(), n > 0, "{names:?}");
            let response = world.poll();
            assert_eq!(response.as_ref().map_or(0, Response::n_resources), n, "{names:?}");
            if let Some(response) = response {
                world.send(ENDPOINT, &["x", "y"], &response.nonce());
            }
        }
    }

    /// SOTW-43, SOTW-70: a full state is planned but not sent when the client requests more names.
    /// The response includes these names.
    #[test]
    fn planned_full_state_includes_newly_requested_names() {
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
                world.session.handle_changes(&delta);
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
        // The listener has waited for the ACK timeout. It is planned with the clusters, which are
        // sent first.
        assert_eq!(world.poll().unwrap().type_url().as_str(), CLUSTER);
        world.send(LISTENER, &["l", "m"], "2");
        let listeners = world.poll().unwrap();
        let names: Vec<&str> = listeners.resources().map(|r| r.name().as_str()).collect();
        assert_eq!(names, ["l", "m"]);
    }
}
