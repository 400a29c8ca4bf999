//! Counterexamples that the model found, as transcripts. Some comments describe the failure before the fix.

use std::sync::Arc;

use chancery_model::{
    Incarnation, ResourceDraft, ResourceKey, ResourceName, ScopeName, State, Transaction, TypeUrl,
    Upsert, types,
};
use chancery_protocol::{
    Config, DeltaRequest,
    Protocol::{Delta, Sotw},
    ProtocolError, Request, Session, SotwRequest, StreamKind,
};
use chancery_view::{Differ, View};

use crate::transcript::{check, world::check_with};

/// SOTW-40, SOTW-46: a list repeats a name and drops another, so that its length does not change. The
/// server notices the dropped name.
#[test]
fn repeated_name_does_not_hide_unsubscribed_name() {
    check(
        Sotw,
        "",
        "
        commit RDS/b=1 RDS/d=1
        -> RDS b,d
        <- RDS b=1 d=1
        -> RDS b,b @1
        commit RDS/d=2
        commit RDS/b=2
        <- RDS b=2
        ",
    );
}

/// SOTW-34, ADS-20: names of a stale request are answered at the next ACK, though clusters are
/// unacknowledged. Before the fix, they waited like any other push.
#[test]
fn names_of_a_stale_request_are_answered_with_the_next_ack() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1 RDS/r=1 RDS/s=1
        -> RDS r
        <- RDS r=1
        ack RDS
        commit RDS/r=2
        <- RDS r=2
        -> CDS
        <- CDS a=1
        -> RDS r,s @1
        ack RDS
        <- RDS s=1
        ",
    );
}

/// ADS-06, ADS-22: a wait that is over does not shorten the next one. Before the fix, the start of the wait
/// was kept when only requested names were sent, so the next change seemed overdue.
#[test]
fn finished_wait_does_not_shorten_the_next_one() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1 RDS/r=a
        -> CDS
        <- CDS a=1
        -> RDS r
        <- RDS r=a
        ack CDS
        ack RDS
        wait 6000
        commit CDS/b=1 RDS/r=b
        <- CDS a=1 b=1
        ack CDS
        <- RDS r=b
        ack RDS
        ",
    );
}

/// DELTA-30, DELTA-35: a wildcard that starts in the middle of a stream is answered at once, even during an
/// unanswered response.
#[test]
fn a_late_wildcard_does_not_wait_for_an_ack() {
    check(
        Delta,
        "",
        "
        commit LDS/b=1 LDS/c=1
        -> LDS +b
        <- LDS b=1
        -> LDS +*
        <- LDS c=1
        ",
    );
}

/// ADS-08, ADS-11: endpoints that a new cluster needs again are deleted. Their removal waits for its turn.
/// Before the fix, the server treated the need of the cluster as a request of the client.
#[test]
fn removal_of_needed_endpoints_waits_for_its_turn() {
    check(
        Delta,
        "",
        "
        commit CDS/c=1>EDS/b EDS/b=1
        -> CDS
        <- CDS c=1
        -> EDS +b
        <- EDS b=1
        ack CDS
        ack EDS
        wait 6000
        commit CDS/b=1>EDS/b CDS/c=2>EDS/c -EDS/b
        <- CDS b=1 c=2
        ack CDS
        <- EDS -b
        ack EDS
        ",
    );
}

/// DELTA-42, DELTA-52: a resource that a client names beside a wildcard is sent before other changes, and
/// once. If it is deleted before these changes, it is removed.
#[test]
fn resource_sent_ahead_of_wildcard_is_tracked() {
    check(
        Delta,
        "",
        "
        commit CDS/x=1
        -> LDS +*
        <- LDS
        ack LDS
        -> CDS
        <- CDS x=1
        commit LDS/e=1 LDS/f=1
        -> LDS +e
        <- LDS e=1
        ack LDS
        ack CDS
        <- LDS f=1
        ack LDS
        commit CDS/x=2 LDS/e=2
        <- CDS x=2
        -> LDS +e
        <- LDS e=2
        ack LDS
        commit -LDS/e
        ack CDS
        <- LDS -e
        ",
    );
}

/// DELTA-46: the removal of a claimed resource that no longer exists is sent at once, even to a client that
/// subscribes to nothing.
#[test]
fn held_and_deleted_resource_is_removed_without_a_subscription() {
    check(
        Delta,
        "EDS",
        "
        -> EDS -other irv=gone@1-00000000
        <- EDS -gone
        ",
    );
}

/// SOTW-50, ADS-12: a repeated request asks for children only. For clusters, it gets no response.
#[test]
fn repeated_request_for_parents_gets_no_response() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1 RDS/r=a
        -> CDS a
        <- CDS a=1
        ack CDS
        -> RDS r
        <- RDS r=a
        ack RDS
        -> CDS a @1
        ",
    );
}

/// SOTW-90, ADS-14: a cluster that disappears and reappears before its removal was sent is unchanged, and
/// its endpoints are not sent again.
#[test]
fn resource_recreated_before_its_removal_is_unchanged() {
    check(
        Sotw,
        "",
        "
        commit a:CDS/b=1>EDS/b EDS/b=1
        scopes default,a
        -> CDS
        <- CDS b=1
        -> EDS b
        <- EDS b=1
        ack CDS
        ack EDS
        -> RDS r
        commit a:RDS/r=1
        <- RDS r=1
        scopes default
        scopes default,a
        ack RDS
        wait 20000
        ",
    );
}

/// ADS-14: a client that subscribes to a name that its wildcard covers gets an answer, but no endpoints.
#[test]
fn subscription_to_wildcard_resource_does_not_resend_children() {
    check(
        Sotw,
        "",
        "
        commit CDS/b=1>EDS/b EDS/b=1
        -> CDS
        <- CDS b=1
        -> EDS b
        <- EDS b=1
        ack CDS
        ack EDS
        -> CDS b @1
        <- CDS b=1
        ack CDS
        ",
    );
}

/// ADS-08, SOTW-75: the client acknowledges the first part of a split state. The old cluster stays until the
/// client acknowledges the part with the route that leaves it.
#[test]
fn ack_of_one_part_does_not_release_removals() {
    let config = Config { response_bytes_target: 60, ..Config::DEFAULTS };
    check_with(
        Sotw,
        "",
        config,
        "
        commit CDS/a=1 RDS/r=1 RDS/s=a
        -> CDS
        <- CDS a=1
        ack CDS
        -> RDS r,s
        <- RDS r=1
        ack RDS
        <- RDS s=a
        ack RDS
        wait 6000
        commit CDS/b=1 RDS/r=2 RDS/s=b -CDS/a
        <- CDS b=1 a=1
        ack CDS
        <- RDS r=2
        ack RDS
        <- RDS s=b
        ack RDS
        <- CDS b=1
        ack CDS
        ",
    );
}

/// DELTA-21, DELTA-44: a name that is requested again while its answer is in a planned response is answered
/// by that response.
#[test]
fn name_in_planned_response_is_sent_once() {
    check(
        Delta,
        "",
        "
        commit LDS/b=1
        -> LDS +b,*
        <- LDS b=1
        ack LDS
        -> CDS
        <- CDS
        commit -LDS/b
        -> LDS +b
        <- LDS -b
        ack LDS
        ack CDS
        wait 20000
        ",
    );
}

/// SOTW-90: a cluster is deleted when the client subscribes to everything. It is not removed again when the
/// client subscribes to names.
#[test]
fn resource_removed_by_full_state_is_not_removed_again() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1
        -> CDS a
        <- CDS a=1
        commit -CDS/a
        -> CDS *,a
        <- CDS
        ack CDS
        -> CDS a @2
        wait 20000
        ",
    );
}

/// SOTW-36: names that were requested and unsubscribed before an answer do not make a later change urgent.
/// Both requests come before the stream can take a response.
#[test]
fn unsubscribed_names_are_not_urgent() {
    let request = |names: &[&str], nonce: &str| {
        Request::Sotw(SotwRequest {
            type_url: types::LISTENER.to_owned(),
            resource_names: names.iter().map(ToString::to_string).collect(),
            response_nonce: nonce.to_owned(),
            ..SotwRequest::default()
        })
    };
    let state = State::new(Incarnation(1));
    let view = View::resolve(&state, &[ScopeName::new("default").unwrap()]);
    let kind = StreamKind { protocol: Sotw, type_url: None };
    let mut session = Session::new(kind, Arc::new(Config::DEFAULTS));
    let differ = Differ::new();
    let mut responses = |requests: &[(&[&str], &str)]| {
        for (names, nonce) in requests {
            session.handle_request(request(names, nonce), Some(&view), 1_000).unwrap();
        }
        std::iter::from_fn(|| session.poll(Some(&view), &differ, 1_000)).count()
    };
    assert_eq!(responses(&[(&["a"], "")]), 1);
    assert_eq!(responses(&[(&["e"], "")]), 1);
    assert_eq!(responses(&[(&["b", "c"], ""), (&[], "")]), 0);
    assert_eq!(responses(&[(&["b", "c"], "1")]), 0, "a stale request waits for the ACK");
    assert_eq!(responses(&[(&["b", "c"], "2")]), 1);
}

/// SOTW-34, SOTW-36: answered names of a stale request do not make later names urgent.
#[test]
fn answered_names_of_stale_request_are_not_urgent() {
    check(
        Sotw,
        "",
        "
        commit EDS/a=1 EDS/b=1
        -> EDS a
        <- EDS a=1 @A
        -> EDS a @A
        commit EDS/a=2
        <- EDS a=2 @B
        -> EDS b @A
        wait 5000
        <- EDS b=1 @C
        -> EDS
        -> EDS a @B
        wait 5000
        <- EDS a=2
        ",
    );
}

/// DELTA-46: a wildcard ends and begins again while a response is in flight. The client may hold the
/// resources of that response. If they are deleted before the new answer, the server sends their removal.
#[test]
fn restarted_wildcard_removes_deleted_resources_in_flight() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1
        -> CDS
        <- CDS a=1
        commit -CDS/a CDS/d=1
        -> CDS -*
        -> CDS +*
        <- CDS d=1
        ack CDS
        wait 1000
        <- CDS -a
        ",
    );
}

/// DELTA-44: a wildcard starts while a resource and its removal are in flight. It is not removed again.
#[test]
fn new_wildcard_does_not_repeat_removal_in_flight() {
    check(
        Delta,
        "",
        "
        commit CDS/b=1
        -> CDS +b
        <- CDS b=1
        commit -CDS/b CDS/d=1
        wait 5000
        <- CDS -b
        -> CDS +*
        <- CDS d=1
        ack CDS
        wait 20000
        ",
    );
}

/// ADS-08, SOTW-85: SotW cannot express the deletion of a route. The route is created again before the server
/// sent anything, so the client still has the old route and needs its old cluster. The commit and the ACK of
/// the listener come before the stream can take a response.
#[test]
fn recreated_route_keeps_its_old_cluster() {
    let scope = ScopeName::new("default").unwrap();
    let key = |t: &str, name: &str| ResourceKey {
        type_url: TypeUrl::new(t).unwrap(),
        name: ResourceName::new(name).unwrap(),
    };
    let put = |t: &str, body: &'static str| Upsert {
        scope: scope.clone(),
        draft: ResourceDraft::new(key(t, "a"), bytes::Bytes::from_static(body.as_bytes())),
    };
    let gone = |t: &str| (scope.clone(), key(t, "a"));
    let mut state = State::new(Incarnation(1));
    let mut commit = |upserts: Vec<Upsert>, deletes: Vec<(ScopeName, ResourceKey)>| {
        let change = Transaction { upserts, deletes, ..Transaction::default() };
        state = state.apply(&change).state;
        View::resolve(&state, std::slice::from_ref(&scope))
    };
    let now = std::cell::Cell::new(1_000);
    let mut session =
        Session::new(StreamKind { protocol: Sotw, type_url: None }, Arc::new(Config::DEFAULTS));
    let say = |session: &mut Session, view: &View, t: &str, names: &[&str], nonce: &str| {
        let request = Request::Sotw(SotwRequest {
            type_url: t.to_owned(),
            resource_names: names.iter().map(ToString::to_string).collect(),
            response_nonce: nonce.to_owned(),
            ..SotwRequest::default()
        });
        session.handle_request(request, Some(view), now.get()).unwrap();
    };
    let hear = |session: &mut Session, view: &View| {
        let poll = || session.poll(Some(view), &Differ::new(), now.get());
        let shown = std::iter::from_fn(poll)
            .map(|response| format!("{} {}", response.nonce(), response.type_url().message_name()));
        shown.collect::<Vec<_>>().join(", ")
    };
    let (cds, lds, rds) = (types::CLUSTER, types::LISTENER, types::ROUTE);
    let view = commit(vec![put(cds, "1"), put(lds, "1"), put(rds, "to a")], vec![]);
    say(&mut session, &view, cds, &[], "");
    assert_eq!(hear(&mut session, &view), "1 envoy.config.cluster.v3.Cluster");
    say(&mut session, &view, cds, &[], "1");
    say(&mut session, &view, lds, &[], "");
    say(&mut session, &view, rds, &["a"], "");
    assert!(hear(&mut session, &view).contains("3 envoy.config.route"));
    say(&mut session, &view, lds, &[], "2");
    // The client has had the time that a new connection gets.
    now.set(3_000);
    commit(vec![put(rds, "to d"), put(lds, "2")], vec![gone(cds)]);
    let view = commit(vec![], vec![gone(rds)]);
    let name = ResourceName::new("a").unwrap();
    for t in [cds, lds, rds] {
        session.handle_change(&TypeUrl::new(t).unwrap(), Some(&name));
    }
    say(&mut session, &view, rds, &["a"], "3");
    assert_eq!(hear(&mut session, &view), "4 envoy.config.listener.v3.Listener");
    let view = commit(vec![put(rds, "to b")], vec![]);
    session.handle_change(&TypeUrl::new(rds).unwrap(), Some(&name));
    say(&mut session, &view, lds, &[], "4");
    assert_eq!(hear(&mut session, &view), "5 envoy.config.route.v3.RouteConfiguration");
    say(&mut session, &view, rds, &["a"], "5");
    assert_eq!(hear(&mut session, &view), "6 envoy.config.cluster.v3.Cluster");
}

/// DELTA-52, DELTA-28: the client unsubscribes from a planned resource and starts a wildcard. The resource
/// is sent once.
#[test]
fn new_wildcard_gets_unsubscribed_planned_resource_once() {
    let config = Config { response_bytes_target: 1, ..Config::DEFAULTS };
    let cluster = |body: &str| {
        let key = ResourceKey {
            type_url: TypeUrl::new(types::CLUSTER).unwrap(),
            name: ResourceName::new(body).unwrap(),
        };
        let draft = ResourceDraft::new(key, bytes::Bytes::copy_from_slice(body.as_bytes()));
        Upsert { scope: ScopeName::new("default").unwrap(), draft }
    };
    let upserts = vec![cluster("b"), cluster("d")];
    let transaction = Transaction { upserts, ..Transaction::default() };
    let state = State::new(Incarnation(1)).apply(&transaction).state;
    let view = View::resolve(&state, &[ScopeName::new("default").unwrap()]);
    let mut session =
        Session::new(StreamKind { protocol: Delta, type_url: None }, Arc::new(config));
    let ask = |session: &mut Session, subscribe: &[&str], unsubscribe: &[&str]| {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let request = DeltaRequest {
            type_url: types::CLUSTER.to_owned(),
            subscribe: owned(subscribe),
            unsubscribe: owned(unsubscribe),
            ..DeltaRequest::default()
        };
        session.handle_request(Request::Delta(request), Some(&view), 0).unwrap();
    };
    ask(&mut session, &["b", "d"], &[]);
    assert_eq!(session.poll(Some(&view), &Differ::new(), 0).unwrap().n_resources(), 1);
    // The rest is planned, but not sent.
    ask(&mut session, &[], &["d"]);
    ask(&mut session, &["*"], &[]);
    let rest = std::iter::from_fn(|| session.poll(Some(&view), &Differ::new(), 0));
    assert_eq!(rest.map(|response| response.n_resources()).collect::<Vec<_>>(), [1]);
}

/// SOTW-52: the memory for a client that does not read is bounded. The bound covers names that it
/// unsubscribed from beside a wildcard or during a response, and names that it claims to hold. An attack on
/// a running server found that unsubscribed names did not count.
#[test]
fn unanswered_unsubscribed_names_count_towards_the_limit() {
    let config = Config { names_max: 100, response_bytes_target: 1, ..Config::DEFAULTS };
    let scope = ScopeName::new("default").unwrap();
    let put = |state: &State, name: &str| {
        let key = ResourceKey {
            type_url: TypeUrl::new(types::CLUSTER).unwrap(),
            name: ResourceName::new(name).unwrap(),
        };
        let draft = ResourceDraft::new(key, bytes::Bytes::from_static(b"body"));
        let upserts = vec![Upsert { scope: scope.clone(), draft }];
        state.apply(&Transaction { upserts, ..Transaction::default() }).state
    };
    let state = put(&put(&State::new(Incarnation(1)), "a"), "b");
    let view = View::resolve(&state, &[scope]);
    let request = |type_url: &str, subscribe: &[&str], unsubscribe: &[&str], held: usize| {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Request::Delta(DeltaRequest {
            type_url: type_url.to_owned(),
            subscribe: owned(subscribe),
            unsubscribe: owned(unsubscribe),
            initial_resource_versions: (0..held)
                .map(|n| (format!("{type_url}{n}"), "1-00000001".to_owned()))
                .collect(),
            ..DeltaRequest::default()
        })
    };
    let open = || {
        let kind = StreamKind { protocol: Delta, type_url: None };
        Session::new(kind, Arc::new(config.clone()))
    };
    let too_many = |error: &ProtocolError| matches!(error, ProtocolError::NamesTooMany { .. });
    for (opening, polls) in [(["*"].as_slice(), 0), (&["*"], 1), (&["a", "b"], 1), (&["*"], 1_000)]
    {
        let mut session = open();
        session.handle_request(request(types::CLUSTER, opening, &[], 0), Some(&view), 0).unwrap();
        let mut error = None;
        for n in 0..1_000_usize {
            if n < polls {
                session.poll(Some(&view), &Differ::new(), 0);
            }
            let name = format!("name{n}");
            let mut send = |subscribe: &[&str], unsubscribe: &[&str]| {
                let churn = request(types::CLUSTER, subscribe, unsubscribe, 0);
                session.handle_request(churn, Some(&view), 0)
            };
            error = send(&[&name], &[]).and_then(|_| send(&[], &[&name])).err();
            if let Some(error) = &error {
                assert!(too_many(error) && (99..=101).contains(&n), "{n}: {error}");
                break;
            }
        }
        assert_eq!(error.is_some(), polls < 1_000, "{opening:?}, {polls} times read");
    }
    // Claimed names count over all types together.
    let mut session = open();
    let held = |type_url| request(type_url, &["*"], &[], 60);
    session.handle_request(held(types::CLUSTER), None, 0).unwrap();
    let error = session.handle_request(held(types::LISTENER), None, 0).unwrap_err();
    assert!(too_many(&error), "{error}");
}

/// ADS-08, ADS-22: a client names its clusters and keeps the old one. It gets its routes, and time to take
/// them, before the old cluster is removed. This holds also if the routes waited for an answer and then for
/// other types. Before the fix, the cluster was removed a moment after the routes.
#[test]
fn late_routes_precede_removal_of_the_old_cluster() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1 EDS/a=1 RDS/r=a RDS/s=1
        -> CDS a
        <- CDS a=1
        ack CDS
        -> EDS a
        <- EDS a=1
        ack EDS
        -> RDS r
        <- RDS r=a
        wait 1000
        -> RDS r,s
        <- RDS s=1
        commit RDS/r=b -CDS/a
        wait 4900
        commit EDS/a=2
        <- EDS a=2
        wait 100
        wait 4900
        <- RDS r=b
        wait 4999
        wait 1
        <- CDS
        ",
    );
}

/// ADS-11: routes are sent again after the scopes that refer to them, even if these are in the last part of
/// a split state. Before the fix, the routes came between the parts.
#[test]
fn children_follow_the_last_part_of_their_parents() {
    let config = Config { response_bytes_target: 1, ..Config::DEFAULTS };
    check_with(
        Delta,
        "",
        config,
        "
        commit RDS/r=1 SRDS/a=1 SRDS/b=1>RDS/r
        -> SRDS +a,b
        <- SRDS a=1
        <- SRDS b=1
        -> RDS +r
        <- RDS r=1
        ack SRDS
        ack RDS
        commit SRDS/a=2 SRDS/b=2>RDS/r
        <- SRDS a=2
        <- SRDS b=2
        <- RDS r=1
        ",
    );
}

/// SOTW-27, ADS-09: a rejection ends with the ACK of the replacement, even if the client unsubscribes from
/// the unsent rest of that state. Before the fix, it held removals back until the type changed again.
#[test]
fn rejection_ends_even_if_rest_of_state_is_unsubscribed() {
    let config = Config { response_bytes_target: 1, ..Config::DEFAULTS };
    check_with(
        Sotw,
        "",
        config,
        "
        commit RDS/r=1
        -> RDS r,s
        <- RDS r=1
        nack RDS
        commit RDS/r=2 RDS/s=2
        <- RDS r=2 v=X @A
        -> RDS r @A
        status RDS
        = RDS synced sent=X acked=X
        ",
    );
}

/// ADS-08: a cluster waits for the removal of the routes that went with it, also if the server finds that
/// removal later. A type that holds back an older removal does not count as complete.
#[test]
fn removal_waits_for_removal_detected_later() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1 LDS/l=1>RDS/r RDS/r=a
        -> CDS
        <- CDS a=1
        ack CDS
        -> LDS
        <- LDS l=1
        ack LDS
        -> RDS +r
        <- RDS r=a
        wait 2000
        commit LDS/l=2 -RDS/r -CDS/a
        <- LDS l=2
        ack LDS
        commit LDS/l=3
        <- LDS l=3
        ack RDS
        ack LDS
        <- RDS -r
        -> RDS -r
        ack RDS
        <- CDS -a
        ",
    );
}
