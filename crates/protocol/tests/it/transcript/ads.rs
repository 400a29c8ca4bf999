//! Aggregated streams: order, make before break, warming.

use chancery_protocol::Protocol::{Delta, Sotw};

use crate::transcript::check;

/// ADS-03, ADS-05 to -08, CLI-E-16: one publish for Envoy adds a cluster, moves the route and
/// removes the old cluster.
#[test]
fn envoy_delta_gets_make_before_break() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1>EDS/a EDS/a=1 LDS/l=1 RDS/r=a
        -> CDS
        <- CDS a=1
        -> EDS +a
        <- EDS a=1
        ack CDS
        ack EDS
        -> LDS
        <- LDS l=1
        -> RDS +r
        <- RDS r=a
        ack LDS
        ack RDS
        wait 10000
        commit CDS/c=1>EDS/c EDS/c=1 RDS/r=c -CDS/a -EDS/a
        <- CDS c=1
        -> EDS +c
        <- EDS c=1
        ack CDS
        ack EDS
        <- RDS r=c
        ack RDS
        <- CDS -a
        -> EDS -a
        ack CDS
        ",
    );
}

/// ADS-08, SOTW-15, CLI-E-02, CLI-E-17: the same in SotW. A full state that still has the old
/// cluster is sent in between, with a version of its own.
#[test]
fn envoy_sotw_gets_make_before_break() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1>EDS/a EDS/a=1 LDS/l=1 RDS/r=a
        -> CDS
        <- CDS a=1
        -> EDS a
        <- EDS a=1
        ack CDS
        ack EDS
        -> LDS
        <- LDS l=1
        ack LDS
        -> RDS r
        <- RDS r=a
        ack RDS
        wait 10000
        commit CDS/c=1>EDS/c EDS/c=1 RDS/r=c -CDS/a -EDS/a
        <- CDS c=1 a=1 v=H
        -> EDS c,a @2
        <- EDS c=1
        ack CDS
        ack EDS
        <- RDS r=c
        ack RDS
        <- CDS c=1 v=N
        -> EDS c @6
        ack CDS
        ",
    );
}

/// ADS-08, CLI-G-01, CLI-G-02: gRPC learns of the new cluster from the route, and drops the old one
/// itself.
#[test]
fn grpc_gets_make_before_break() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1>EDS/a EDS/a=1 LDS/l=1 RDS/r=a
        -> LDS l
        <- LDS l=1
        ack LDS
        -> RDS r
        <- RDS r=a
        ack RDS
        -> CDS a
        <- CDS a=1
        ack CDS
        -> EDS a
        <- EDS a=1
        ack EDS
        wait 10000
        commit CDS/c=1>EDS/c EDS/c=1 RDS/r=c -CDS/a -EDS/a
        <- RDS r=c
        ack RDS
        -> CDS a,c @3
        <- CDS c=1 a=1
        ack CDS
        -> EDS a,c @4
        <- EDS c=1
        ack EDS
        -> CDS c @6
        -> EDS c @7
        wait 20000
        ",
    );
}

/// ADS-22: a gRPC client that does not drop the cluster loses it after a bounded time.
#[test]
fn a_removal_waits_for_a_bounded_time() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1 RDS/r=a
        -> RDS r
        <- RDS r=a
        ack RDS
        -> CDS a
        <- CDS a=1
        ack CDS
        wait 10000
        commit RDS/r=b -CDS/a
        <- RDS r=b
        ack RDS
        wait 4999
        wait 1
        <- CDS
        ",
    );
}

/// ADS-10: a removal without related changes is sent at once.
#[test]
fn a_removal_alone_does_not_wait() {
    for (protocol, change) in [(Sotw, "a=1"), (Delta, "-b")] {
        check(
            protocol,
            "",
            &format!(
                "
                commit CDS/a=1 CDS/b=1
                -> CDS
                <- CDS a=1 b=1
                ack CDS
                wait 10000
                commit -CDS/b
                <- CDS {change}
                "
            ),
        );
    }
}

/// ADS-09: while the client rejects the replacement of a route, the old clusters stay.
#[test]
fn a_rejected_route_keeps_the_old_cluster() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1 RDS/r=a
        -> CDS
        <- CDS a=1
        ack CDS
        -> RDS +r
        <- RDS r=a
        ack RDS
        wait 10000
        commit RDS/r=bad -CDS/a
        <- RDS r=bad
        nack RDS
        wait 60000
        commit RDS/r=good
        <- RDS r=good
        ack RDS
        <- CDS -a
        ",
    );
}

/// ADS-07, ADS-22: routes wait for their clusters for a bounded time.
#[test]
fn a_route_waits_for_an_unanswered_cluster_for_a_bounded_time() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1 RDS/r=a
        -> CDS
        <- CDS a=1
        ack CDS
        -> RDS +r
        <- RDS r=a
        ack RDS
        commit CDS/b=1 RDS/r=b
        <- CDS b=1
        wait 4999
        wait 1
        <- RDS r=b
        ",
    );
}

/// ADS-22: a rejected cluster does not block the routes.
#[test]
fn a_rejected_cluster_does_not_block_the_routes() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1 RDS/r=a
        -> CDS
        <- CDS a=1
        ack CDS
        -> RDS +r
        <- RDS r=a
        ack RDS
        commit CDS/b=bad RDS/r=b
        <- CDS b=bad
        nack CDS
        <- RDS r=b
        ",
    );
}

/// A delta client that resumes with an older state loses nothing. Routes come after their clusters,
/// and removals come last.
#[test]
fn resume_at_another_state_keeps_update_order() {
    check(
        Delta,
        "",
        "
        commit CDS/b=1>EDS/b EDS/b=1 LDS/l=1 RDS/r=b
        -> CDS irv=a@1-00000000
        <- CDS b=1
        -> EDS +a irv=a@1-00000000
        <- EDS -a
        -> LDS irv=l@held
        -> RDS +r irv=r@1-00000000
        -> EDS +b
        <- EDS b=1
        ack CDS
        ack EDS
        <- LDS
        <- RDS r=b
        ack LDS
        ack RDS
        wait 1000
        <- CDS -a
        -> EDS -a
        ack CDS
        ",
    );
}

/// ADS-20, ADS-26: the first answers to a new client do not wait for each other.
#[test]
fn first_answers_do_not_wait_for_acknowledgements() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1>EDS/a EDS/a=1 LDS/l=1 RDS/r=a
        -> CDS
        <- CDS a=1
        -> LDS
        <- LDS l=1
        -> RDS +r
        <- RDS r=a
        ",
    );
}

/// ADS-19, P-47: a requested secret is sent at once, whatever else is unanswered.
#[test]
fn a_secret_does_not_wait() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1 SDS/s=1
        -> CDS
        <- CDS a=1
        -> SDS +s
        <- SDS s=1
        commit SDS/s=2
        ack SDS
        <- SDS s=2
        ",
    );
}

/// ADS-24: on a stream of one type, a removal waits for nothing.
#[test]
fn streams_of_one_type_do_not_wait_for_others() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/a=1
        -> CDS irv=gone@1-00000000
        <- CDS a=1 -gone
        ack CDS
        commit -CDS/a RDS/r=1
        <- CDS -a
        ",
    );
}

/// ADS-10, ADS-26: a request during an unanswered response is answered with the newest state.
#[test]
fn a_request_is_answered_with_the_newest_state() {
    check(
        Delta,
        "",
        "
        commit EDS/a=1 EDS/b=1
        -> EDS +a
        <- EDS a=1
        commit EDS/a=2
        -> EDS +b
        <- EDS a=2 b=1
        ",
    );
}

/// ADS-08: a client that never acknowledges clusters still gets the routes before the removal.
#[test]
fn unacknowledged_clusters_do_not_reverse_the_order() {
    for (protocol, route, all, done) in [(Delta, "+r", "n=1", "-a"), (Sotw, "r", "n=1 a=1", "n=1")]
    {
        check(
            protocol,
            "",
            &format!(
                "
                commit CDS/a=1 RDS/r=a
                -> CDS
                <- CDS a=1
                ack CDS
                -> RDS {route}
                <- RDS r=a
                ack RDS
                wait 10000
                commit CDS/n=1 RDS/r=n -CDS/a
                <- CDS {all}
                wait 5000
                <- RDS r=n
                wait 100
                ack RDS
                <- CDS {done}
                "
            ),
        );
    }
}

/// ADS-08: each removal waits for its own referrers, not for those of an earlier removal.
#[test]
fn removal_waits_only_for_its_own_referrers() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1 CDS/b=1 RDS/r=a
        -> CDS
        <- CDS a=1 b=1
        ack CDS
        -> RDS +r
        <- RDS r=a
        ack RDS
        wait 10000
        commit RDS/r=b -CDS/a
        <- RDS r=b
        wait 4500
        commit CDS/n=1 RDS/r=n -CDS/b
        <- CDS n=1
        ack CDS
        ack RDS
        <- CDS -a
        ack CDS
        <- RDS r=n
        ack RDS
        <- CDS -b
        ",
    );
}

/// ADS-06, CLI-E-03: a request for one route does not let another route overtake its cluster.
#[test]
fn request_for_one_route_does_not_release_another() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1 RDS/r=a RDS/s=1
        -> CDS
        <- CDS a=1
        -> RDS +r
        <- RDS r=a
        ack CDS
        ack RDS
        commit CDS/x=1
        <- CDS x=1
        commit CDS/c=1 RDS/r=c
        -> RDS +s
        <- CDS c=1
        <- RDS s=1
        ack RDS
        wait 4999
        ack CDS
        <- RDS r=c
        ",
    );
}

/// ADS-09, SOTW-28: an ACK for another resource does not end a rejection.
#[test]
fn a_rejection_outlives_acks_of_other_resources() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1 RDS/r=a RDS/s=1
        -> CDS
        <- CDS a=1
        ack CDS
        -> RDS +r,s
        <- RDS r=a s=1
        ack RDS
        wait 10000
        commit RDS/r=bad -CDS/a
        <- RDS r=bad
        nack RDS
        commit RDS/s=2
        <- RDS s=2
        ack RDS
        wait 60000
        commit RDS/r=good
        <- RDS r=good
        ack RDS
        <- CDS -a
        ",
    );
}

/// ADS-09, ADS-22: a rejected route no longer holds removals back once it is deleted or
/// unsubscribed.
#[test]
fn a_rejection_ends_with_its_resource() {
    for end in ["commit -RDS/r", "-> RDS s @2"] {
        check(
            Sotw,
            "",
            &format!(
                "
                commit CDS/a=1 CDS/k=1 RDS/r=a RDS/s=1
                -> CDS
                <- CDS a=1 k=1
                ack CDS
                -> RDS r,s
                <- RDS r=a s=1
                ack RDS
                wait 10000
                commit RDS/r=bad -CDS/a
                <- RDS r=bad
                nack RDS
                wait 20000
                {end}
                <- CDS k=1
                "
            ),
        );
    }
}

/// ADS-03, ADS-04: one commit changes every type. The types go out in order, each as soon as the types that
/// it needs are acknowledged. Types on which nothing depends do not wait.
#[test]
fn change_of_every_type_is_sent_in_dependency_order() {
    check(
        Delta,
        "",
        "
        commit CDS/c=1 EDS/e=1 LDS/l=1 RDS/r=1 SRDS/s=1 VHDS/r/v=1 SDS/t=1 RTDS/u=1 ECDS/x=1
        -> ECDS +x
        <- ECDS x=1
        -> RTDS +u
        <- RTDS u=1
        -> SDS +t
        <- SDS t=1
        -> VHDS
        <- VHDS r/v=1
        -> SRDS
        <- SRDS s=1
        -> RDS +r
        <- RDS r=1
        -> LDS
        <- LDS l=1
        -> EDS +e
        <- EDS e=1
        -> CDS
        <- CDS c=1
        ack ECDS
        ack RTDS
        ack SDS
        ack VHDS
        ack SRDS
        ack RDS
        ack LDS
        ack EDS
        ack CDS
        commit CDS/c=2 EDS/e=2 LDS/l=2 RDS/r=2 SRDS/s=2 VHDS/r/v=2 SDS/t=2 RTDS/u=2 ECDS/x=2
        <- CDS c=2
        <- EDS e=2
        <- SDS t=2
        <- RTDS u=2
        <- ECDS x=2
        ack CDS
        ack EDS
        <- LDS l=2
        <- RDS r=2
        <- SRDS s=2
        <- VHDS r/v=2
        ",
    );
}

/// ADS-01, DELTA-03, SOTW-12: a nonce answers a response of its own type only.
#[test]
fn types_do_not_share_nonces() {
    for (protocol, plus, e) in [(Sotw, "", "e"), (Delta, "+", "")] {
        check(
            protocol,
            "",
            &format!(
                "
                commit EDS/e=1
                commit SDS/s=1
                -> EDS {plus}e
                <- EDS e=1 v=X @A
                -> SDS {plus}s
                <- SDS s=1 @B
                -> EDS {e} v=X @B
                status EDS
                = EDS pending sent=X
                -> EDS {e} v=X @B nack
                status EDS
                = EDS pending sent=X
                -> EDS {e} v=X @A
                status EDS
                = EDS synced sent=X acked=X
                nack SDS
                status EDS
                = EDS synced sent=X acked=X
                "
            ),
        );
    }
}

/// CLI-E-22: Envoy sends queued ACKs before new subscriptions. Either order works.
#[test]
fn acknowledgment_may_precede_the_subscription_it_causes() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1>EDS/a EDS/a=1
        -> CDS
        <- CDS a=1
        ack CDS
        -> EDS +a
        <- EDS a=1
        ack EDS
        commit CDS/b=1>EDS/b EDS/b=1 RDS/r=b
        <- CDS b=1
        ack CDS
        -> EDS +b
        <- EDS b=1
        ack EDS
        wait 60000
        ",
    );
}
