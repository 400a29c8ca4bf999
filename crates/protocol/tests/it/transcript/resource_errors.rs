//! Resource errors: the reason why a subscribed resource is not sent.

use std::sync::Arc;

use bytes::Bytes;
use chancery_model::{
    Incarnation, ResourceDraft, ResourceKey, ResourceName, ScopeName, State, Transaction, TypeUrl,
    Upsert,
    types::{CLUSTER, LISTENER},
};
use chancery_protocol::{
    Config,
    Protocol::{self, Delta, Sotw},
    Request, Session, SotwRequest, StreamKind,
};
use chancery_view::{Differ, View};

use crate::transcript::{check, world::check_with};

const ENABLED: Config = Config { resource_errors: true, ..Config::DEFAULTS };

fn check_enabled(protocol: Protocol, only: &str, script: &str) {
    check_with(protocol, only, ENABLED, script);
}

/// ERR-14: no client receives errors by default.
#[test]
fn errors_are_off_by_default() {
    check(
        Delta,
        "EDS",
        "
        -> EDS +b
        <- EDS -b
        ",
    );
    check(
        Sotw,
        "EDS",
        "
        -> EDS b
        wait 60000
        ",
    );
}

/// ERR-01, ERR-04, ERR-05, ERR-09: in delta, the error is beside the removal of a subscribed name,
/// and is sent again only after the resource existed.
#[test]
fn delta_error_is_beside_the_removal_of_a_subscribed_name() {
    check_enabled(
        Delta,
        "EDS",
        "
        commit EDS/a=1
        -> EDS +a,b
        <- EDS a=1 -b ?b
        ack EDS
        commit EDS/a=2
        <- EDS a=2
        ack EDS
        wait 60000
        commit EDS/b=1
        <- EDS b=1
        ack EDS
        commit -EDS/b
        <- EDS -b ?b
        ack EDS
        wait 60000
        -> EDS -a
        commit -EDS/a
        wait 60000
        ",
    );
}

/// ERR-01, ERR-04, ERR-05, ERR-12, ERR-16: in SotW, the error is the answer to a name that does not
/// exist, at once and once. The stream continues, and the resource ends the error.
#[test]
fn sotw_error_answers_a_missing_name_once() {
    check_enabled(
        Sotw,
        "EDS",
        "
        commit EDS/a=1
        -> EDS a,b
        <- EDS a=1 ?b
        ack EDS
        commit EDS/a=2
        <- EDS a=2
        ack EDS
        -> EDS a,b,c @2
        <- EDS ?c
        ack EDS
        wait 60000
        commit EDS/b=1
        <- EDS b=1
        ack EDS
        commit -EDS/b
        <- EDS ?b
        ack EDS
        wait 60000
        -> EDS a,c @5
        -> EDS a,b,c @5
        <- EDS ?b
        ",
    );
}

/// ERR-04, ADS-12: a request that repeats the last one does not repeat the error.
#[test]
fn repeated_request_does_not_repeat_the_error() {
    check_enabled(
        Sotw,
        "",
        "
        commit CDS/c=1
        -> CDS *
        <- CDS c=1
        ack CDS
        -> EDS b,c
        <- EDS ?b ?c
        ack EDS
        commit EDS/b=1
        <- EDS b=1
        ack EDS
        commit CDS/c=2
        <- CDS c=2
        ack CDS
        -> EDS b,c @3
        <- EDS b=1
        ",
    );
}

/// ERR-17: a new stream receives the errors again.
#[test]
fn errors_are_sent_again_on_a_new_stream() {
    for (protocol, request, response) in
        [(Sotw, "-> EDS b", "<- EDS ?b"), (Delta, "-> EDS +b", "<- EDS -b ?b")]
    {
        let script = format!(
            "
            {request}
            {response}
            ack EDS
            open EDS
            {request}
            {response}
            ",
        );
        check_enabled(protocol, "EDS", &script);
    }
}

/// ERR-02, ERR-11: a SotW response with only an error repeats the version, and the full state of a
/// type that has one. The client answers it like any other.
#[test]
fn error_repeats_version_and_full_state() {
    check_enabled(
        Sotw,
        "",
        "
        commit CDS/a=1 CDS/b=1
        -> CDS a
        <- CDS a=1 v=X
        ack CDS
        -> CDS a,c @1
        <- CDS a=1 ?c v=X
        ack CDS
        status CDS
        = CDS synced sent=X acked=X
        commit CDS/b=2
        wait 60000
        commit CDS/c=1
        <- CDS a=1 c=1
        ack CDS
        commit -CDS/c
        <- CDS a=1 ?c v=Y
        ack CDS
        commit CDS/a=2
        <- CDS a=2
        ",
    );
    check_enabled(
        Sotw,
        "EDS",
        "
        commit EDS/a=1
        -> EDS a
        <- EDS a=1 v=X
        ack EDS
        -> EDS a,b @1
        <- EDS ?b v=X
        nack EDS
        wait 60000
        commit EDS/b=1
        <- EDS b=1
        ",
    );
}

/// ERR-10: a wildcard has no errors. A name beside it has.
#[test]
fn only_names_have_errors() {
    check_enabled(
        Sotw,
        "CDS",
        "
        commit CDS/a=1 CDS/b=1
        -> CDS *
        <- CDS a=1 b=1
        ack CDS
        commit -CDS/a
        <- CDS b=1
        ack CDS
        -> CDS *,b,c @2
        <- CDS b=1 ?c
        ack CDS
        commit -CDS/b
        <- CDS ?b
        ack CDS
        commit CDS/d=1
        <- CDS d=1
        ",
    );
    check_enabled(
        Delta,
        "CDS",
        "
        commit CDS/a=1 CDS/b=1
        -> CDS +*
        <- CDS a=1 b=1
        ack CDS
        commit -CDS/a
        <- CDS -a
        ack CDS
        -> CDS +b,c
        <- CDS b=1 -c ?c
        ack CDS
        commit -CDS/b
        <- CDS -b ?b
        ",
    );
}

/// ERR-06: a resource that the node's assignments hide does not exist for it. The error does not
/// disclose that it exists elsewhere.
#[test]
fn hidden_resource_is_reported_as_missing() {
    check_enabled(
        Sotw,
        "EDS",
        "
        commit other:EDS/a=1
        -> EDS a
        <- EDS ?a
        ack EDS
        scopes default,other
        <- EDS a=1
        ack EDS
        scopes default
        <- EDS ?a
        ",
    );
}

/// ERR-08, ADS-08: the error for a resource that is gone waits like a removal, because the client
/// may drop the resource.
#[test]
fn error_waits_until_referrers_have_moved() {
    check_enabled(
        Sotw,
        "",
        "
        commit CDS/c=1 EDS/c=1 RDS/r=c
        -> CDS c
        <- CDS c=1
        ack CDS
        -> EDS c
        <- EDS c=1
        ack EDS
        -> RDS r
        <- RDS r=c
        ack RDS
        wait 60000
        commit -CDS/c -EDS/c RDS/r=2
        <- RDS r=2
        wait 4000
        contents EDS
        = EDS c=1:synced@1-7
        ack RDS
        wait 10000
        <- CDS ?c
        ack CDS
        <- EDS ?c
        contents EDS
        = EDS c:unknown
        ",
    );
}

/// ERR-03, ADS-08: a resource that is held back in a full state has no error under any of its names.
#[test]
fn held_back_resource_has_no_error() {
    check_enabled(
        Sotw,
        "",
        "
        commit CDS/own=1|alias LDS/l=1
        -> CDS own
        <- CDS own=1
        ack CDS
        -> LDS l
        <- LDS l=1
        ack LDS
        wait 60000
        commit -CDS/own LDS/l=2
        <- LDS l=2
        -> CDS own,alias @1
        <- CDS own=1
        ack CDS
        ack LDS
        wait 16000
        <- CDS ?alias ?own
        ",
    );
}

/// ERR-03, ERR-15, SOTW-110: the error has the name as subscribed, also if it is an alias.
#[test]
fn error_has_the_subscribed_name() {
    check_enabled(
        Sotw,
        "CDS",
        "
        commit CDS/own=1|alias
        -> CDS alias
        <- CDS own=1
        ack CDS
        commit -CDS/own
        <- CDS ?alias
        ",
    );
    check_enabled(
        Delta,
        "EDS",
        "
        commit EDS/own=1|alias
        -> EDS +alias
        <- EDS own=1
        ack EDS
        commit -EDS/own
        <- EDS -own -alias ?alias
        ",
    );
}

/// ERR-02, ERR-03, SOTW-76, DELTA-48, DELTA-63: types without removals have no errors for them, and
/// none in SotW. A virtual host that is reported with an alias has none beside it.
#[test]
fn types_without_removals_have_no_errors_for_them() {
    for (protocol, request, missing) in [(Sotw, "a,b", ""), (Delta, "+a,b", "-b ?b")] {
        let script = format!(
            "
            commit RTDS/a=1
            -> RTDS {request}
            <- RTDS a=1 {missing}
            ack RTDS
            commit -RTDS/a
            wait 60000
            ",
        );
        check_enabled(protocol, "RTDS", &script);
    }
    check_enabled(
        Delta,
        "VHDS",
        "
        commit VHDS/a=1
        -> VHDS +a,b
        <- VHDS a=1 ~b
        ack VHDS
        commit -VHDS/a
        <- VHDS -a ?a
        ",
    );
}

/// ERR-04, OPS-12, SOTW-46, DELTA-28: a split response has each error once, with its removal, and
/// none for a name from which the client has unsubscribed.
#[test]
fn split_response_has_each_error_once() {
    // A removal and an error take 69 bytes.
    let config = Config { response_bytes_target: 140, ..ENABLED };
    check_with(
        Delta,
        "EDS",
        config.clone(),
        "
        -> EDS +a,b,c,d,e
        <- EDS -a -b ?a ?b
        <- EDS -c -d ?c ?d
        <- EDS -e ?e
        ",
    );
    let config = Config { response_bytes_target: 1, ..config };
    check_with(
        Sotw,
        "EDS",
        config,
        "
        -> EDS a,b,c,d
        <- EDS ?a
        ack EDS
        <- EDS ?b
        -> EDS a,b,d @2
        <- EDS ?d
        ack EDS
        wait 60000
        ",
    );
}

/// ERR-04, SOTW-70: a full state that a newer request replaces before it is sent loses no error. Only
/// a transport without room leaves a planned full state unsent, so this is not a script.
#[test]
fn replaced_full_state_keeps_its_errors() {
    let kind = StreamKind { protocol: Sotw, type_url: None };
    let mut session = Session::new(kind, Arc::new(ENABLED));
    let mut state = State::new(Incarnation(7));
    let scope = || ScopeName::new("default").unwrap();
    let key = |type_url, name| ResourceKey {
        type_url: TypeUrl::from_static(type_url),
        name: ResourceName::new(name).unwrap(),
    };
    let mut commit = |transaction: Transaction| {
        state = state.apply(&transaction).state;
        View::resolve(&state, &[scope()])
    };
    let put = |type_url, name, body: &'static str| {
        let draft = ResourceDraft::new(key(type_url, name), Bytes::from_static(body.as_bytes()));
        Upsert { scope: scope(), draft }
    };
    let ask = |session: &mut Session, type_url: &str, names: &[&str], nonce: &str, view, now| {
        let request = SotwRequest {
            type_url: type_url.to_owned(),
            resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
            response_nonce: nonce.to_owned(),
            ..SotwRequest::default()
        };
        session.handle_request(Request::Sotw(request), Some(view), now).unwrap();
    };
    let differ = Differ::new();
    let upserts = vec![put(CLUSTER, "a", "1"), put(LISTENER, "l", "1")];
    let view = commit(Transaction { upserts, ..Transaction::default() });
    for (type_url, name, nonce) in [(CLUSTER, "a", "1"), (LISTENER, "l", "2")] {
        ask(&mut session, type_url, &[name], "", &view, 0);
        assert!(session.poll(Some(&view), &differ, 0).is_some());
        ask(&mut session, type_url, &[name], nonce, &view, 0);
    }
    // The removal of the listener waits for the cluster, which changes again and again.
    let (upserts, deletes) = (vec![put(CLUSTER, "a", "2")], vec![(scope(), key(LISTENER, "l"))]);
    let view = commit(Transaction { upserts, deletes, ..Transaction::default() });
    session.handle_new_view();
    assert_eq!(session.poll(Some(&view), &differ, 0).unwrap().nonce(), "3");
    assert!(session.poll(Some(&view), &differ, 0).is_none());
    for (body, at) in [("3", 3_000), ("4", 4_000)] {
        ask(&mut session, CLUSTER, &["a"], "3", &view, 3_000);
        let upserts = vec![put(CLUSTER, "a", body)];
        let view = commit(Transaction { upserts, ..Transaction::default() });
        session.handle_new_view();
        assert_eq!(session.poll(Some(&view), &differ, at).is_some(), at == 3_000);
    }
    let view = commit(Transaction::default());
    let cluster = session.poll(Some(&view), &differ, 5_000).unwrap();
    assert_eq!(cluster.type_url().as_str(), CLUSTER);
    // The full state of the listeners is planned, but not sent.
    ask(&mut session, LISTENER, &["l", "m"], "2", &view, 5_000);
    let listeners = session.poll(Some(&view), &differ, 5_000).unwrap();
    let errors: Vec<&str> = listeners.errors().iter().map(ResourceName::as_str).collect();
    assert_eq!((listeners.type_url().as_str(), errors), (LISTENER, vec!["l", "m"]));
}
