//! Events that end a stream, events that do not, and matters outside the server's responsibility.

use std::sync::Arc;

use chancery_model::{Incarnation, State, types::CLUSTER};
use chancery_protocol::{
    Config, ErrorDetail,
    Protocol::{Delta, Sotw},
    Request, Session, SotwRequest, StreamKind,
};
use chancery_view::View;

use crate::transcript::{check, world::check_with};

/// SOTW-16, SOTW-11: nonces and versions are compared only for equality. A nonce that looks like a
/// valid one, or like a number, does not match.
#[test]
fn similar_nonce_does_not_acknowledge() {
    let likes = ["01", "+1", "1.0", "0x1", "0", "-1", "18446744073709551617", "2", "\u{661}"];
    for (protocol, name) in [(Sotw, "a"), (Delta, "")] {
        for nonce in likes {
            let open = if protocol == Sotw { "a" } else { "+a" };
            check(
                protocol,
                "",
                &format!(
                    "
                    commit EDS/a=1
                    -> EDS {open}
                    <- EDS a=1 v=X @A
                    -> EDS {name} v=X @{nonce}
                    status EDS
                    = EDS pending sent=X
                    -> EDS {name} v=X @{nonce} nack
                    status EDS
                    = EDS pending sent=X
                    commit EDS/a=2
                    wait 100
                    -> EDS {name} v=none @A
                    <- EDS a=2
                    "
                ),
            );
        }
    }
}

/// SOTW-25, SOTW-38: an ACK or NACK causes a response only if it changes the subscription or newer
/// content is waiting.
#[test]
fn ack_or_nack_gets_response_only_for_changes() {
    for verdict in ["", "nack"] {
        check(
            Sotw,
            "",
            &format!(
                "
                commit EDS/a=1 EDS/b=1
                -> EDS a
                <- EDS a=1 v=X @A
                -> EDS a v=X @A {verdict}
                wait 60000
                open
                -> EDS a
                <- EDS a=1 v=X @A
                -> EDS a,b v=X @A {verdict}
                <- EDS b=1 v=X @B
                commit EDS/a=2
                -> EDS a,b v=X @B {verdict}
                <- EDS a=2 v=Y @C
                "
            ),
        );
    }
}

/// SOTW-51, DELTA-40: a resource outside the node's scopes does not exist for the node, whichever
/// other nodes see it. The stream continues.
#[test]
fn resource_outside_of_node_scopes_does_not_exist() {
    check(
        Sotw,
        "",
        "
        commit secret:EDS/hidden=1 EDS/shown=1
        -> EDS hidden,shown
        <- EDS shown=1
        ack EDS
        commit secret:EDS/hidden=2
        wait 60000
        commit EDS/shown=2
        <- EDS shown=2
        ",
    );
    check(
        Delta,
        "",
        "
        commit secret:EDS/hidden=1 EDS/shown=1
        -> EDS +hidden,shown
        <- EDS shown=1 -hidden
        ack EDS
        commit secret:EDS/hidden=2
        wait 60000
        scopes default,secret
        <- EDS hidden=2
        ",
    );
}

/// SOTW-110: a problem with one resource or one type does not end a stream.
#[test]
fn problem_with_resource_or_type_does_not_end_stream() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=bad EDS/e=1
        -> CDS
        <- CDS a=bad
        nack CDS
        -> x.Unknown thing
        <- x.Unknown
        -> EDS missing,e
        <- EDS e=1
        -> EDS e @bogus v=bogus nack=0
        -> EDS e,,e @3
        -> CDS @1 nack=99
        commit -CDS/a
        wait 1000
        <- CDS
        nack CDS
        commit EDS/e=2
        <- EDS e=2
        ",
    );
}

/// SOTW-110, SOTW-52, SVC-08: an error that ends a stream names the rule and both values.
#[test]
fn invalid_request_ends_its_stream() {
    let config = Config { names_max: 2, types_max: 1, ..Config::DEFAULTS };
    for (event, text) in [
        ("-> EDS a,b,c", "this stream subscribes to 3 names, at most 2 are allowed (names_max)"),
        ("-> CDS", "this stream asks for more than 1 types (types_max)"),
    ] {
        check_with(
            Sotw,
            "",
            config.clone(),
            &format!(
                "
                commit EDS/a=1
                other: open
                other: -> EDS a
                other: <- EDS a=1
                -> EDS a
                <- EDS a=1
                {event}
                ! {text}
                commit EDS/a=2
                other: ack EDS
                other: <- EDS a=2
                "
            ),
        );
    }
    let (cds, eds) = (chancery_model::types::CLUSTER, chancery_model::types::ENDPOINT);
    check(
        Delta,
        "CDS",
        &format!(
            "
            -> EDS +a
            ! type_url is \"{eds}\", but this method serves only \"{cds}\"
            commit CDS/a=1
            "
        ),
    );
}

/// SOTW-20: the presence of an error makes a NACK, whatever its code.
#[test]
fn an_error_with_code_zero_is_a_rejection() {
    for (protocol, name) in [(Sotw, "a"), (Delta, "+a")] {
        check(
            protocol,
            "",
            &format!(
                "
                commit EDS/a=bad
                -> EDS {name}
                <- EDS a=bad v=X @A
                nack EDS 0
                status EDS
                = EDS nacked sent=X nack=0 rejected
                wait 60000
                "
            ),
        );
    }
}

/// Returns a session that has requested all clusters of an empty view, with the view and the request.
fn cluster_session(config: Config) -> (Session, View, SotwRequest) {
    let kind = StreamKind { protocol: Sotw, type_url: None };
    let mut session = Session::new(kind, Arc::new(config));
    let view = View::resolve(&State::new(Incarnation(1)), &[]);
    let request = SotwRequest { type_url: CLUSTER.to_owned(), ..SotwRequest::default() };
    session.handle_request(Request::Sotw(request.clone()), Some(&view), 1).unwrap();
    (session, view, request)
}

/// SOTW-28: the text of a rejection is truncated to the limit, at a character boundary.
#[test]
fn a_long_rejection_is_cut() {
    let config = Config { nack_message_bytes_max: 10, ..Config::DEFAULTS };
    let (mut session, view, mut request) = cluster_session(config);
    let sent = session.poll(Some(&view), &chancery_view::Differ::new(), 1).unwrap();
    request.response_nonce = sent.nonce();
    request.error_detail = Some(ErrorDetail { code: 13, message: "123456789ééé".to_owned() });
    session.handle_request(Request::Sotw(request), Some(&view), 7).unwrap();
    let nack = session.status()[0].nack.clone().unwrap();
    assert_eq!((nack.message.as_str(), nack.code, nack.at_ms), ("123456789", 13, 7));
    assert_eq!(nack.version.to_string(), sent.version().to_string());
}

/// SOTW-28: the memory of the client's rejections is counted, before and after each of them. It stays
/// bounded, because only the last rejections are kept.
#[test]
fn rejection_messages_count_as_retained_bytes() {
    const MESSAGE_BYTES: usize = 100;
    let config = Config { nack_message_bytes_max: MESSAGE_BYTES, ..Config::DEFAULTS };
    let (mut session, view, mut request) = cluster_session(config);
    let before = session.retained_bytes();
    let mut kept = Vec::new();
    for n in 0..8 {
        let sent = session.poll(Some(&view), &chancery_view::Differ::new(), 1).unwrap();
        request.response_nonce = sent.nonce();
        // The new list has a response, which is rejected next.
        request.resource_names = [format!("name-{n}")].into_iter().collect();
        let message = "x".repeat(10 * MESSAGE_BYTES);
        request.error_detail = Some(ErrorDetail { code: 13, message });
        let request = Request::Sotw(request.clone());
        let bound = session.retained_bytes_after(&request);
        session.handle_request(request, Some(&view), 7).unwrap();
        kept.push(session.retained_bytes());
        assert!(kept[n] <= bound, "{kept:?} {bound}");
    }
    // The last message is kept twice, and each of the three before it once more.
    assert!(kept[0] >= before + 2 * MESSAGE_BYTES, "{before} {kept:?}");
    assert_eq!(kept[3], kept[0] + 3 * MESSAGE_BYTES, "{kept:?}");
    assert_eq!(kept[3], kept[7], "{kept:?}");
}

/// SVC-04, SVC-15: v2 types are separate types with exactly their own names. The SDS type of v2 has
/// a lower-case `auth`.
#[test]
fn v2_type_is_a_separate_type() {
    check(
        Sotw,
        "",
        "
        commit envoy.api.v2.auth.Secret/s=2 SDS/s=3
        -> envoy.api.v2.Auth.Secret s
        <- envoy.api.v2.Auth.Secret
        -> envoy.api.v2.auth.Secret s
        <- envoy.api.v2.auth.Secret s=2
        -> SDS s
        <- SDS s=3
        ack SDS
        ack envoy.api.v2.auth.Secret
        commit SDS/s=4
        <- SDS s=4
        ",
    );
}

/// SVC-25: an extension is requested by the name of the filter.
#[test]
fn extension_is_requested_by_filter_name() {
    check(
        Sotw,
        "",
        "
        commit LDS/l=1>ECDS/my-filter ECDS/my-filter=1 ECDS/envoy.filters.http.router=1
        -> LDS
        <- LDS l=1
        -> ECDS my-filter
        <- ECDS my-filter=1
        ack ECDS
        ack LDS
        commit ECDS/my-filter=2
        <- ECDS my-filter=2
        ",
    );
}

/// DELTA-49: a secret that is deleted with its last reference is removed only after the listener
/// has moved.
#[test]
fn a_secret_is_kept_until_nothing_refers_to_it() {
    check(
        Delta,
        "",
        "
        commit LDS/l=1>SDS/old SDS/old=1 SDS/new=1
        -> LDS
        <- LDS l=1
        -> SDS +old
        <- SDS old=1
        ack SDS
        ack LDS
        wait 10000
        commit LDS/l=2>SDS/new -SDS/old
        <- LDS l=2
        -> SDS +new
        <- SDS new=1
        ack SDS
        wait 1000
        ack LDS
        <- SDS -old
        ",
    );
}

/// DELTA-65: Envoy drops its virtual hosts when the route's `vhds` changes, and requests them
/// again. All are sent.
#[test]
fn virtual_hosts_requested_again_are_sent_again() {
    check(
        Delta,
        "",
        "
        commit RDS/r=1 VHDS/r/a=1 VHDS/r/b=1|r/b.test
        -> RDS +r
        <- RDS r=1
        -> VHDS +r/a,r/b.test
        <- VHDS r/a=1 r/b=1
        ack VHDS
        ack RDS
        commit RDS/r=2
        <- RDS r=2
        -> VHDS +r/a,r/b.test
        <- VHDS r/a=1 r/b=1
        ack RDS
        ack VHDS
        open
        -> VHDS
        <- VHDS r/a=1 r/b=1
        ",
    );
}

/// DELTA-69: the passage of time sends nothing. There are no heartbeats, for virtual hosts as for
/// any other type.
#[test]
fn passage_of_time_sends_nothing() {
    check(
        Delta,
        "",
        "
        commit VHDS/r/v=1 CDS/a=1
        -> VHDS
        <- VHDS r/v=1
        -> CDS
        <- CDS a=1
        ack VHDS
        ack CDS
        wait 86400000
        ",
    );
}
