//! Children: requested in any order, sent again so that a client can complete warming, rejected
//! late.

use chancery_protocol::{Config, Protocol::*};

use crate::transcript::world::{check, check_with};

/// ADS-12, ADS-14: a cluster without endpoints changes. A later repeated request, which is for another
/// cluster, does not send all endpoints.
#[test]
fn changed_static_cluster_does_not_resend_endpoints() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1>EDS/a CDS/static=1 EDS/a=1
        -> CDS
        <- CDS a=1 static=1
        -> EDS a
        <- EDS a=1
        ack EDS
        ack CDS
        commit CDS/static=2
        <- CDS a=1 static=2
        ack CDS
        commit CDS/a=2>EDS/a
        <- CDS a=2 static=2
        <- EDS a=1
        ack EDS
        -> EDS a @5
        ack CDS
        commit CDS/a=3>EDS/a CDS/static=3
        <- CDS a=3 static=3
        <- EDS a=1
        ack EDS
        -> EDS a @7
        ack CDS
        ",
    );
}

/// ADS-18: the same for a listener that is subscribed by name.
#[test]
fn changed_named_listener_gets_its_routes_again() {
    check(
        Delta,
        "",
        "
        commit LDS/l=1>RDS/r RDS/r=1
        -> LDS +l,m
        <- LDS l=1 -m
        -> RDS +r
        <- RDS r=1
        ack LDS
        ack RDS
        commit LDS/m=1>RDS/r
        <- LDS m=1
        ack LDS
        commit LDS/l=2>RDS/r
        <- LDS l=2
        <- RDS r=1
        ",
    );
}

/// DELTA-19, ADS-09: a client rejects a part after it acknowledged a later one. The rejection
/// counts, and the clusters of the old routes stay.
#[test]
fn rejection_of_part_counts_after_later_part_was_acknowledged() {
    let config = Config { response_bytes_target: 1, ..Config::DEFAULTS };
    check_with(
        Delta,
        "",
        config,
        "
        commit CDS/a=1 RDS/r=1 RDS/s=1
        -> CDS
        <- CDS a=1
        ack CDS
        -> RDS +r,s
        <- RDS r=1
        <- RDS s=1
        -> RDS @3
        commit -CDS/a RDS/r=2 RDS/s=2
        <- RDS r=2
        <- RDS s=2
        -> RDS @5
        -> RDS @4 nack
        wait 30000
        commit RDS/r=3
        <- RDS r=3
        ack RDS
        <- CDS -a
        ",
    );
}

/// ADS-11, ADS-14, ADS-15, CLI-E-12, CLI-E-26, CLI-E-36, P-40, P-53: the endpoints of a changed
/// cluster are sent again, and no others, because Envoy skips unchanged clusters.
#[test]
fn a_changed_cluster_gets_its_endpoints_again() {
    for protocol in [Sotw, Delta] {
        let subscribe = if protocol == Sotw { "a,b" } else { "+a,b" };
        let change = if protocol == Sotw { "a=2 b=1" } else { "a=2" };
        check(
            protocol,
            "",
            &format!(
                "
                commit CDS/a=1>EDS/a CDS/b=1>EDS/b EDS/a=1 EDS/b=1
                -> CDS
                <- CDS a=1 b=1
                -> EDS {subscribe}
                <- EDS a=1 b=1
                ack CDS
                ack EDS
                commit CDS/a=2>EDS/a
                <- CDS {change}
                <- EDS a=1
                ack EDS
                ack CDS
                "
            ),
        );
    }
}

/// ADS-11: a new cluster refers to endpoints that the client already has. They are sent again.
#[test]
fn new_cluster_gets_endpoints_shared_with_another_cluster() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1>EDS/e EDS/e=1
        -> CDS
        <- CDS a=1
        -> EDS +e
        <- EDS e=1
        ack CDS
        ack EDS
        commit CDS/b=1>EDS/e
        <- CDS b=1
        <- EDS e=1
        ",
    );
}

/// ADS-13, P-41: endpoints that were in flight when the cluster changed are sent again.
#[test]
fn endpoints_in_flight_are_sent_again() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1>EDS/a EDS/a=1
        -> CDS
        <- CDS a=1
        -> EDS a
        <- EDS a=1
        ack CDS
        commit CDS/a=2>EDS/a
        <- CDS a=2
        ack EDS
        <- EDS a=1
        ack EDS
        ",
    );
}

/// ADS-12: a repeated request is answered if the children of the change are unknown. It is silent
/// if they were sent.
#[test]
fn a_repeated_child_request_is_answered_once() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1 EDS/a=1
        -> CDS
        <- CDS a=1
        -> EDS a
        <- EDS a=1
        ack EDS
        ack CDS
        commit CDS/a=2
        <- CDS a=2
        -> EDS a @2
        <- EDS a=1
        ack EDS
        -> EDS a @4
        ack CDS
        ",
    );
}

/// ADS-18, P-46: a changed listener gets its routes again.
#[test]
fn a_changed_listener_gets_its_routes_again() {
    check(
        Delta,
        "",
        "
        commit LDS/l=1>RDS/r RDS/r=1
        -> LDS
        <- LDS l=1
        -> RDS +r
        <- RDS r=1
        ack LDS
        ack RDS
        commit LDS/m=1>RDS/r
        <- LDS m=1
        ack LDS
        commit LDS/l=2>RDS/r
        <- LDS l=2
        <- RDS r=1
        ",
    );
}

/// ADS-18: a changed listener's repeated request for its routes, at the same version, is answered.
#[test]
fn repeated_request_for_routes_is_answered() {
    check(
        Sotw,
        "",
        "
        commit LDS/l=1 RDS/r=1
        -> LDS
        <- LDS l=1
        -> RDS r
        <- RDS r=1
        ack LDS
        ack RDS
        commit LDS/l=2
        <- LDS l=2
        -> RDS r @2
        <- RDS r=1
        ",
    );
}

/// ADS-03, ADS-05: endpoints do not overtake a change of their cluster in the same commit. They do not wait
/// for the ACK of an earlier cluster, which Envoy holds back for its endpoints.
#[test]
fn endpoints_do_not_overtake_their_cluster() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1>EDS/a EDS/a=1 CDS/x=1>EDS/x EDS/x=1
        -> CDS
        <- CDS a=1 x=1
        -> EDS +a,x
        <- EDS a=1 x=1
        ack CDS
        ack EDS
        commit CDS/x=2>EDS/x
        <- CDS x=2
        <- EDS x=1
        ack EDS
        commit CDS/a=2>EDS/a EDS/a=2
        ack CDS
        <- CDS a=2
        <- EDS a=2
        ",
    );
}

/// ADS-01, ADS-16, ADS-23, DELTA-03, SOTW-12, SOTW-106, P-43: types may be requested in any order,
/// and each has its own state.
#[test]
fn children_may_be_requested_before_parents() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1>EDS/a EDS/a=1 RDS/r=1
        -> RDS r
        <- RDS r=1
        -> EDS a
        <- EDS a=1
        ack RDS
        -> CDS
        <- CDS a=1
        ack EDS
        <- EDS a=1
        ",
    );
}

/// ADS-19, ADS-20, CLI-E-47, P-49: a requested name is answered even if no resource refers to it.
#[test]
fn unreferenced_names_are_answered() {
    check(
        Delta,
        "",
        "
        commit RDS/lonely=1 SDS/s=1
        -> CDS
        <- CDS
        -> SDS +s
        <- SDS s=1
        ack CDS
        -> RDS +lonely
        <- RDS lonely=1
        ",
    );
}

/// ADS-11, ADS-13: endpoints were deleted when their cluster changed, and reappear before the next
/// response. The server sends them, because the client waits for them. Found by the model.
#[test]
fn endpoints_that_come_back_after_their_cluster_changed_are_sent() {
    check(
        Delta,
        "",
        "
        commit CDS/b=1>EDS/b a:EDS/b=1
        scopes default,a
        -> CDS
        <- CDS b=1
        -> EDS +b
        <- EDS b=1
        ack CDS
        ack EDS
        scopes default
        commit CDS/b=2>EDS/b
        <- CDS b=2
        ack CDS
        scopes default,a
        <- EDS b=1
        ack EDS
        ",
    );
}
