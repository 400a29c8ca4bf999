//! Routes whose wait for clusters has ended. They wait until the client has requested the endpoints.

use chancery_protocol::Protocol::{self, Delta, Sotw};

use crate::transcript::check;

/// A client with the cluster `a` and the route `r`, to which each test adds its script. Of `{x|y}` in
/// the script, a delta client gets `x`, and a SotW client `y`.
const START: &str = "
    commit CDS/a=1>EDS/a EDS/a=1 RDS/r=a RDS/s=a
    -> CDS
    <- CDS a=1
    -> EDS {+a|a}
    <- EDS a=1 @EDS
    ack CDS
    ack EDS
    -> RDS {+r|r}
    <- RDS r=a @RDS
    ack RDS
    wait 10000
";

fn check_both(script: &str) {
    for protocol in [Delta, Sotw] {
        check(protocol, "", &of(protocol, &format!("{START}{script}")));
    }
}

/// Returns the script for a protocol.
fn of(protocol: Protocol, script: &str) -> String {
    let mut text = String::new();
    for part in script.split('{') {
        match part.split_once('}') {
            Some((both, rest)) => {
                let (delta, sotw) = both.split_once('|').unwrap();
                text += if protocol == Delta { delta } else { sotw };
                text += rest;
            }
            None => text += part,
        }
    }
    text
}

/// ADS-06, ADS-22: the client does nothing for 6 s. When it continues, it has the clusters, and the
/// route follows the endpoints that it requests.
#[test]
fn frozen_client_gets_route_after_endpoints() {
    check_both(
        "
        commit CDS/b=1>EDS/b EDS/b=1 RDS/r=b
        <- CDS {b=1|a=1 b=1}
        wait 2000
        commit CDS/c=1>EDS/c EDS/c=1 RDS/r=c
        wait 2999
        wait 1
        <- CDS {c=1|a=1 b=1 c=1}
        wait 1000
        -> EDS {+b,c|a,b,c @EDS}
        <- EDS b=1 c=1
        <- RDS r=c
        ",
    );
}

/// ADS-06, ADS-22: without a later cluster, the route waits for the client's request for at most one
/// second after the ACK timeout.
#[test]
fn route_waits_a_second_more_for_requested_endpoints() {
    let commit = "
        commit CDS/b=1>EDS/b EDS/b=1 RDS/r=b
        <- CDS {b=1|a=1 b=1}
        wait 5999
        ";
    check_both(&format!("{commit} \n wait 1 \n <- RDS r=b"));
    check_both(&format!(
        "{commit}
        -> EDS {{+b|a,b @EDS}}
        <- EDS b=1
        <- RDS r=b
        "
    ));
}

/// ADS-06, ADS-22: the wait counts from the last cluster. A client that requests no endpoints gets the
/// route in a bounded time, even if clusters change constantly.
#[test]
fn route_waits_for_its_newest_cluster_for_a_bounded_time() {
    check_both(
        "
        commit CDS/b=1>EDS/b EDS/b=1 RDS/r=b
        <- CDS {b=1|a=1 b=1}
        wait 4000
        commit CDS/c=1>EDS/c EDS/c=1 RDS/r=c
        wait 1000
        <- CDS {c=1|a=1 b=1 c=1}
        wait 5000
        commit CDS/d=1>EDS/d EDS/d=1 RDS/r=d
        <- CDS {d=1|a=1 b=1 c=1 d=1}
        wait 999
        wait 1
        <- RDS r=c
        ",
    );
}

/// ADS-06: the client takes 3 s for each response with clusters. Every 2 s, a commit adds a cluster and
/// moves the route. Each route follows the endpoints of its cluster.
#[test]
fn slow_client_gets_each_route_after_its_endpoints() {
    check(
        Delta,
        "",
        &of(
            Delta,
            &format!(
                "{START}
                commit CDS/b=1>EDS/b EDS/b=1 RDS/r=b
                <- CDS b=1
                wait 2000
                commit CDS/c=1>EDS/c EDS/c=1 RDS/r=c
                wait 1000
                -> EDS +b
                <- EDS b=1
                ack EDS
                ack CDS
                <- CDS c=1
                wait 1000
                commit CDS/d=1>EDS/d EDS/d=1 RDS/r=d
                wait 1000
                <- CDS d=1 @D
                wait 1000
                -> EDS +c
                <- EDS c=1
                ack EDS
                commit CDS/e=1>EDS/e EDS/e=1 RDS/r=e
                wait 2000
                commit CDS/f=1>EDS/f EDS/f=1 RDS/r=f
                wait 1000
                -> EDS +d
                <- EDS d=1
                <- RDS r=d
                -> CDS @D
                <- CDS e=1 f=1
                "
            ),
        ),
    );
}

/// ADS-06: an answer to the clusters ends the wait.
#[test]
fn answered_clusters_release_the_route() {
    for answer in ["ack CDS", "nack CDS"] {
        check_both(&format!(
            "
            commit CDS/b=1>EDS/b EDS/b=1 RDS/r=b
            <- CDS {{b=1|a=1 b=1}}
            wait 1000
            commit CDS/c=1>EDS/c EDS/c=1 RDS/r=c
            wait 4000
            <- CDS {{c=1|a=1 b=1 c=1}}
            wait 1000
            {answer}
            <- RDS r=c
            "
        ));
    }
}

/// ADS-03, ADS-06: all types that depend on the clusters wait together, and are sent in order.
#[test]
fn late_types_wait_together_and_are_sent_in_order() {
    check_both(
        "
        commit LDS/l=1>RDS/r SRDS/x=1
        -> LDS
        <- LDS l=1
        {|<- RDS r=a}
        -> SRDS
        <- SRDS x=1
        ack LDS
        ack RDS
        ack SRDS
        commit CDS/b=1>EDS/b EDS/b=1
        <- CDS {b=1|a=1 b=1}
        commit CDS/c=1>EDS/c>SDS/t EDS/c=1 SDS/t=1 LDS/l=2>RDS/r RDS/r=c SRDS/x=2
        wait 5000
        <- CDS {c=1|a=1 b=1 c=1}
        wait 2000
        -> EDS {+b,c|a,b,c @EDS}
        <- EDS b=1 c=1
        wait 1000
        -> SDS {+t|t}
        <- SDS t=1
        <- LDS l=2
        <- RDS r=c
        <- SRDS x=2
        ",
    );
}

/// ADS-20, ADS-26: a requested route does not wait, and does not release the route that waits.
#[test]
fn request_for_one_route_does_not_release_a_late_one() {
    check_both(
        "
        commit CDS/b=1>EDS/b EDS/b=1 RDS/r=b
        <- CDS {b=1|a=1 b=1}
        commit CDS/c=1>EDS/c EDS/c=1 RDS/r=c
        wait 5000
        <- CDS {c=1|a=1 b=1 c=1}
        -> RDS {+s|r,s @RDS}
        <- RDS s=a
        ack RDS
        wait 1000
        -> EDS {+b,c|a,b,c @EDS}
        <- EDS b=1 c=1
        <- RDS r=c
        ",
    );
}

/// A node that is moved to other scopes while a route waits gets nothing of its earlier scopes.
#[test]
fn late_route_is_planned_again_after_a_move() {
    check(
        Delta,
        "",
        &of(
            Delta,
            &format!(
                "{START}
                commit CDS/b=1>EDS/b EDS/b=1 RDS/r=b other:CDS/o=1>EDS/o other:EDS/o=1 other:RDS/r=o
                <- CDS b=1
                commit CDS/c=1>EDS/c EDS/c=1 RDS/r=c
                wait 5000
                <- CDS c=1
                scopes other
                <- CDS o=1
                wait 1000
                -> EDS +o
                <- EDS o=1
                <- RDS r=o
                "
            ),
        ),
    );
}

/// ADS-06, ADS-22: a client that continues at a replica without its state gets the route after the
/// endpoints, too.
#[test]
fn resumed_client_gets_route_after_endpoints() {
    for (protocol, held) in [(Delta, " irv=a@1-00000000"), (Sotw, " v=1")] {
        check(
            protocol,
            "",
            &of(
                protocol,
                &format!(
                    "
                    commit CDS/b=1>EDS/b EDS/b=1 RDS/r=b
                    -> CDS{held}
                    <- CDS b=1
                    -> RDS {{+r irv=r@1-00000000|r v=1}}
                    wait 2000
                    commit CDS/c=1>EDS/c EDS/c=1 RDS/r=c
                    wait 3000
                    <- CDS {{c=1|b=1 c=1}}
                    wait 1000
                    -> EDS {{+b,c|b,c}}
                    <- EDS b=1 c=1
                    <- RDS r=c
                    "
                ),
            ),
        );
    }
}
