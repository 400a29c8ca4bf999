//! The habits of gRPC clients, as transcripts.

use chancery_protocol::{
    Config,
    Protocol::{Delta, Sotw},
};

use crate::transcript::{check, world::check_with};

/// CLI-G-02, CLI-G-17, CLI-G-27, SOTW-79: a starting channel requests everything by name, level by
/// level. A missing leaf gets no empty response, and is sent when it exists.
#[test]
fn channel_gets_its_resources_by_name_level_by_level() {
    check(
        Sotw,
        "",
        "
        commit LDS/svc=1>RDS/r RDS/r=c,d CDS/c=1>EDS/c CDS/d=1>EDS/d EDS/c=1 CDS/other=1
        -> LDS svc
        <- LDS svc=1
        ack LDS
        -> RDS r
        <- RDS r=c,d
        ack RDS
        -> CDS c,d
        <- CDS c=1 d=1
        ack CDS
        -> EDS d,c
        <- EDS c=1
        ack EDS
        wait 14000
        commit EDS/d=1
        <- EDS d=1
        ack EDS
        wait 60000
        ",
    );
}

/// CLI-G-03: a gRPC server requests one listener by its address, with IPv6 in brackets.
#[test]
fn grpc_server_gets_the_listener_of_its_address() {
    for name in ["server/0.0.0.0:50051", "server/[::]:50051", "server/[2001:db8::1]:443"] {
        check(
            Sotw,
            "",
            &format!(
                "
                commit default:LDS/{name}=1 default:LDS/server/[::]:50052=1
                -> LDS {name}
                <- LDS {name}=1
                ack LDS
                commit default:LDS/{name}=2
                <- LDS {name}=2
                ack LDS
                "
            ),
        );
    }
}

/// CLI-G-04, SOTW-48: the response has exactly the requested names.
#[test]
fn response_contains_exactly_the_requested_names() {
    check(
        Sotw,
        "",
        "
        commit CDS/svc=1 CDS/svc.=1 CDS/Svc=1 CDS/svc-2=1
        -> CDS svc
        <- CDS svc=1
        ack CDS
        commit CDS/Svc=2 CDS/svc-2=2
        wait 60000
        ",
    );
}

/// CLI-G-06, SOTW-33: a client sends one request per watch, with its names in any order. Lists
/// shrink and grow with one nonce, because an ACK overtakes queued subscriptions. The server
/// processes each list in turn.
#[test]
fn name_lists_with_one_nonce_are_processed_in_turn() {
    check(
        Sotw,
        "",
        "
        commit EDS/a=1 EDS/b=1 EDS/c=1
        -> EDS a
        <- EDS a=1 v=X @A
        -> EDS b,a v= @
        <- EDS b=1 v=X @B
        -> EDS a,b v=X @A
        -> EDS a v=X @B
        -> EDS c,a v=X @B
        <- EDS c=1 v=X @C
        -> EDS a v=X @C
        -> EDS b,c,a v=X @C
        <- EDS b=1 c=1 v=X @D
        ack EDS
        commit EDS/a=2 EDS/b=2 EDS/c=2
        <- EDS a=2 b=2 c=2
        ",
    );
}

/// CLI-G-08, SOTW-16, SOTW-100: a client reconnects with its versions, without nonces, and with the
/// types in any order. Types without names are left out.
#[test]
fn reconnect_is_served_in_any_type_order() {
    check(
        Sotw,
        "",
        "
        commit LDS/l=1 RDS/r=1 CDS/c=1>EDS/c EDS/c=1
        -> LDS l
        <- LDS l=1 v=X @A
        ack LDS
        -> RDS r
        <- RDS r=1 v=X
        ack RDS
        open
        -> EDS c v=X @
        <- EDS c=1
        -> RDS r v=X @
        ack EDS
        <- RDS r=1
        -> LDS l v=X @
        <- LDS l=1
        -> CDS c v=X @
        <- CDS c=1
        <- EDS c=1
        ack RDS
        ack LDS
        ack CDS
        ack EDS
        wait 60000
        ",
    );
}

/// CLI-G-10, SOTW-78: a client gives up on a name after 15 seconds. Existing resources are sent at
/// once, even if everything else waits for an answer.
#[test]
fn existing_resource_is_sent_immediately() {
    check(
        Sotw,
        "",
        "
        commit LDS/l=1 RDS/r=1 CDS/c=1 EDS/c=1 EDS/d=1
        -> CDS c
        <- CDS c=1
        -> EDS c
        <- EDS c=1
        -> LDS l
        <- LDS l=1
        -> RDS r
        <- RDS r=1
        -> EDS c,d @2
        <- EDS d=1
        ",
    );
}

/// CLI-G-11, CLI-G-12, CLI-E-07: a NACK has code 3 and the older version. Its error is only in that
/// request. The good resources of the response are in use and are not sent again.
#[test]
fn a_rejection_has_code_three_and_the_older_version() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1 CDS/b=1
        -> CDS a,b v= @
        <- CDS a=1 b=1 v=X @A
        -> CDS a,b v=X @A
        commit CDS/a=2 CDS/b=bad
        <- CDS a=2 b=bad v=Y @B
        -> CDS a,b v=X @B nack=3
        status CDS
        = CDS nacked sent=Y acked=X nack=3 rejected
        -> CDS a,b v=X @B
        wait 60000
        commit CDS/b=2
        <- CDS a=2 b=2 v=Z @C
        -> CDS a,b v=Z @C
        status CDS
        = CDS synced sent=Z acked=Z
        ",
    );
}

/// CLI-G-07, CLI-G-13: the last watch of a type ends while a response is in flight. The client neither
/// acknowledges nor rejects it, and does not request the type for a while. Nothing else waits for it.
#[test]
fn unanswered_response_of_unsubscribed_type_delays_nothing() {
    check(
        Sotw,
        "",
        "
        commit RDS/r=1 LDS/l=1
        -> LDS l
        <- LDS l=1 v=X
        ack LDS
        -> RDS r
        <- RDS r=1 v=X @A
        -> RDS v= @
        commit LDS/l=2 RDS/r=2
        <- LDS l=2 v=Y
        ack LDS
        wait 60000
        -> RDS r v= @A
        <- RDS r=2 v=Y @B
        -> RDS r v=Y @B
        ",
    );
}

/// CLI-G-14, SOTW-36, SOTW-112: a slow application reads and answers late. The changes meanwhile
/// coalesce into one response.
#[test]
fn slow_reader_gets_missed_changes_in_one_response() {
    let mut script = "
        commit EDS/a=0
        -> EDS a
        <- EDS a=0
        "
    .to_owned();
    for n in 1..=40 {
        script += &format!("commit EDS/a={n}\n wait 100\n");
    }
    script += "
        ack EDS
        <- EDS a=40
        ack EDS
        wait 60000
        ";
    check(Sotw, "", &script);
}

/// CLI-G-22, SOTW-75: a gRPC client accepts 4 MiB by default. Endpoints and routes are sent in parts well
/// below this limit. Clusters and listeners cannot be split.
#[test]
fn responses_for_grpc_stay_below_its_limit() {
    const { assert!(Config::DEFAULTS.response_bytes_target < 4 << 20) };
    let config = Config { response_bytes_target: 200, ..Config::DEFAULTS };
    check_with(
        Sotw,
        "",
        config.clone(),
        "
        commit EDS/a=1 EDS/b=1 EDS/c=1 EDS/d=1
        -> EDS a,b,c,d
        <- EDS a=1 b=1
        ack EDS
        <- EDS c=1 d=1
        ack EDS
        ",
    );
    check_with(
        Sotw,
        "",
        config,
        "
        commit CDS/a=1 CDS/b=1 CDS/c=1 CDS/d=1
        -> CDS a,b,c,d
        <- CDS a=1 b=1 c=1 d=1
        ",
    );
}

/// CLI-G-25, ADS-02: one node opens one stream for each channel. Each stream has its own names, nonces and
/// responses. The end of one stream does not affect the others.
#[test]
fn streams_of_one_node_are_independent() {
    check(
        Sotw,
        "",
        "
        commit LDS/x=1 LDS/y=1 RDS/r=1
        -> LDS x
        <- LDS x=1 v=X @A
        b: open
        b: -> LDS y
        b: <- LDS y=1 v=X @A
        b: -> RDS r
        b: <- RDS r=1 v=X @B
        b: ack RDS
        -> RDS r
        <- RDS r=1 v=X @B
        ack LDS
        ack RDS
        b: ack LDS
        commit LDS/x=2 LDS/y=2
        <- LDS x=2 v=Y @C
        b: <- LDS y=2 v=Y @C
        b: ack LDS
        commit RDS/r=2
        <- RDS r=2
        b: <- RDS r=2
        nack LDS
        b: open
        commit LDS/x=3
        <- LDS x=3
        b: -> LDS x
        b: <- LDS x=3
        ",
    );
}

/// CLI-G-29: newer clients request collections of endpoints, whose type is not in the table of
/// types.
#[test]
fn a_collection_of_endpoints_is_served_by_name() {
    check(
        Sotw,
        "",
        "
        commit envoy.config.endpoint.v3.LbEndpointCollection/loc=1
        -> envoy.config.endpoint.v3.LbEndpointCollection loc,none
        <- envoy.config.endpoint.v3.LbEndpointCollection loc=1
        ack envoy.config.endpoint.v3.LbEndpointCollection
        commit envoy.config.endpoint.v3.LbEndpointCollection/none=
        <- envoy.config.endpoint.v3.LbEndpointCollection none=
        ",
    );
}

/// CLI-G-30, CLI-G-16, ADS-02: a client comes back with all its resources while its old stream is
/// still open. Both streams are served.
#[test]
fn reconnected_client_is_served_beside_its_old_stream() {
    for (protocol, ask) in [(Sotw, "-> CDS c v=X"), (Delta, "-> CDS +c irv=c@held")] {
        let name = if protocol == Sotw { "c" } else { "+c" };
        check(
            protocol,
            "",
            &format!(
                "
                commit CDS/c=1
                -> CDS {name}
                <- CDS c=1 v=X @A
                ack CDS
                new: open
                new: {ask}
                new: <- CDS c=1 v=X @A
                commit CDS/c=2
                <- CDS c=2 v=Y
                new: ack CDS
                new: <- CDS c=2 v=Y
                ack CDS
                new: ack CDS
                commit CDS/c=3
                <- CDS c=3
                new: <- CDS c=3
                "
            ),
        );
    }
}
