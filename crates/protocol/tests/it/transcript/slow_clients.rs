//! Clients that acknowledge slowly or never. A type whose wait has ended is sent after the types
//! that it refers to.

use chancery_protocol::{
    Config,
    Protocol::{Delta, Sotw},
};

use crate::transcript::world::{check, check_with};

/// ADS-06, ADS-07, ADS-22: the client acknowledges clusters after 3 s. Every 2 s, a commit adds a
/// cluster and points the route at it. After 5 s, the route is sent after the clusters of the same
/// state.
#[test]
fn route_sent_after_timeout_follows_its_cluster() {
    for (protocol, name, first, second, third) in [
        (Delta, "+r", "b=1", "c=1", "d=1"),
        (Sotw, "r", "a=1 b=1", "a=1 b=1 c=1", "a=1 b=1 c=1 d=1"),
    ] {
        check(
            protocol,
            "",
            &format!(
                "
                commit CDS/a=1 RDS/r=a
                -> CDS
                <- CDS a=1
                ack CDS
                -> RDS {name}
                <- RDS r=a
                ack RDS
                commit CDS/b=1 RDS/r=b
                <- CDS {first}
                wait 2000
                commit CDS/c=1 RDS/r=c
                wait 1000
                ack CDS
                <- CDS {second}
                wait 1000
                commit CDS/d=1 RDS/r=d
                wait 999
                wait 1
                <- CDS {third}
                <- RDS r=d
                wait 1000
                ack CDS
                ack RDS
                "
            ),
        );
    }
}

/// ADS-03, ADS-06, ADS-22: endpoints, listeners and routes of one state follow its clusters in this
/// order, whatever is unanswered.
#[test]
fn types_preceding_a_timed_out_route_are_sent_first() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1>EDS/a EDS/a=1 LDS/l=1>RDS/r RDS/r=a
        -> CDS
        <- CDS a=1
        -> EDS +a,b
        <- EDS a=1 -b
        ack CDS
        ack EDS
        -> LDS
        <- LDS l=1
        ack LDS
        -> RDS +r
        <- RDS r=a
        ack RDS
        commit CDS/b=1>EDS/b EDS/b=1 LDS/l=2>RDS/r RDS/r=b
        <- CDS b=1
        <- EDS b=1
        wait 3000
        ack CDS
        commit CDS/c=1
        <- CDS c=1
        wait 1000
        commit CDS/b=3>EDS/b EDS/b=3 LDS/l=3>RDS/r RDS/r=c
        wait 1000
        <- CDS b=3
        <- EDS b=3
        <- LDS l=3
        <- RDS r=c
        ",
    );
}

/// ADS-06, ADS-26: a route that is requested while changed clusters wait for an answer is sent at
/// once, after these clusters.
#[test]
fn requested_route_follows_its_cluster() {
    for (protocol, ask, also, first, second) in
        [(Delta, "+r", "+s", "b=1", "c=1"), (Sotw, "r", "r,s @3", "a=1 b=1", "a=1 b=1 c=1")]
    {
        check(
            protocol,
            "",
            &format!(
                "
                commit CDS/a=1 RDS/r=a RDS/s=a
                -> CDS
                <- CDS a=1
                ack CDS
                -> RDS {ask}
                <- RDS r=a
                ack RDS
                commit CDS/b=1
                <- CDS {first}
                commit CDS/c=1 RDS/r=b RDS/s=c
                -> RDS {also}
                <- CDS {second}
                <- RDS s=c
                wait 1000
                ack CDS
                "
            )
            .replace("@3", "@2"),
        );
    }
}

/// ADS-06, SOTW-36, SOTW-75: endpoints are sent in parts, each after the ACK of the previous part.
/// They wait for these ACKs at most as long as the route that follows them.
#[test]
fn remaining_endpoints_precede_a_timed_out_route() {
    let config = Config { response_bytes_target: 1, ..Config::DEFAULTS };
    check_with(
        Sotw,
        "",
        config,
        "
        commit CDS/a=1 RDS/r=a
        -> CDS
        <- CDS a=1
        ack CDS
        -> EDS x,y,z
        -> RDS r
        <- RDS r=a
        ack RDS
        commit CDS/b=1>EDS/x>EDS/y>EDS/z EDS/x=1 EDS/y=1 EDS/z=1 RDS/r=b
        <- CDS a=1 b=1
        <- EDS x=1
        wait 4000
        ack EDS
        <- EDS y=1
        wait 1000
        <- EDS z=1
        <- RDS r=b
        ",
    );
}

/// ADS-22: a client that never answers receives each state of the route within the ACK timeout,
/// after its clusters.
#[test]
fn silent_client_gets_each_route_after_its_clusters() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1 RDS/r=a
        -> CDS
        <- CDS a=1
        -> RDS +r
        <- RDS r=a
        wait 4000
        commit CDS/b=1 RDS/r=b
        wait 1000
        <- CDS b=1
        wait 1000
        commit CDS/c=1 RDS/r=c
        wait 4000
        <- CDS c=1
        <- RDS r=c
        wait 1000
        commit CDS/d=1 RDS/r=d
        wait 4000
        <- CDS d=1
        wait 5000
        <- RDS r=d
        ",
    );
}

/// ADS-06: the rest of the routes follows the rest of the endpoints that were requested after the
/// routes were planned. Found by the model.
#[test]
fn remaining_routes_follow_endpoints_requested_later() {
    let config = Config { response_bytes_target: 1, ..Config::DEFAULTS };
    check_with(
        Sotw,
        "",
        config,
        "
        commit CDS/b=1>EDS/b EDS/a=1 EDS/b=1 RDS/r=a RDS/s=b
        -> CDS
        <- CDS b=1
        ack CDS
        -> RDS r,s
        <- RDS r=a
        -> EDS a,b
        <- EDS a=1
        ack RDS
        <- EDS b=1
        <- RDS s=b
        ",
    );
}

/// ADS-05: endpoints that were requested after the routes were planned precede the remaining
/// routes. Other endpoints do not precede their changed cluster. Found by the model.
#[test]
fn requested_endpoints_do_not_release_others_before_their_cluster() {
    let config = Config { response_bytes_target: 1, ..Config::DEFAULTS };
    check_with(
        Sotw,
        "",
        config,
        "
        commit CDS/b=1>EDS/b EDS/b=1 EDS/e=1 RDS/r=1 RDS/s=1
        -> CDS
        <- CDS b=1
        ack CDS
        -> EDS b
        <- EDS b=1 @A
        ack EDS
        -> RDS r,s
        <- RDS r=1
        commit EDS/b=2
        <- EDS b=2
        commit CDS/b=2>EDS/b
        <- CDS b=2
        commit CDS/b=3>EDS/b EDS/b=3
        -> EDS b,e @A
        ack RDS
        <- EDS e=1
        <- RDS s=1
        ",
    );
}
