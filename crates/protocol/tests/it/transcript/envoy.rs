//! The habits of Envoy, as transcripts.

use chancery_protocol::Protocol::{Delta, Sotw};

use crate::transcript::check;

/// CLI-E-01, CLI-E-38: Envoy requests the runtime first, then clusters with their endpoints, then listeners
/// with their dependencies. The server does not wait for a type that was not requested.
#[test]
fn startup_types_are_answered_without_waiting_for_others() {
    for (protocol, plus) in [(Sotw, ""), (Delta, "+")] {
        check(
            protocol,
            "",
            &format!(
                "
                commit RTDS/rt=1 CDS/a=1>EDS/a EDS/a=1 LDS/l=1>RDS/r>SDS/s RDS/r=a SDS/s=1 ECDS/e=1 SRDS/sr=1>RDS/q RDS/q=1
                -> RTDS {plus}rt
                <- RTDS rt=1
                ack RTDS
                -> CDS
                <- CDS a=1
                -> EDS {plus}a
                <- EDS a=1
                ack EDS
                ack CDS
                -> LDS
                <- LDS l=1
                -> ECDS {plus}e
                <- ECDS e=1
                ack ECDS
                -> SDS {plus}s
                <- SDS s=1
                ack SDS
                -> RDS {plus}r
                <- RDS r=a
                ack RDS
                ack LDS
                -> SRDS
                <- SRDS sr=1
                ack SRDS
                wait 60000
                "
            ),
        );
    }
}

/// CLI-E-06, SOTW-29: Envoy acknowledges clusters before they work. Routes to a new cluster also
/// wait for the ACK of its endpoints, and the removal of the old cluster waits for the routes.
#[test]
fn route_to_acknowledged_cluster_waits_for_its_endpoints() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1>EDS/a EDS/a=1 RDS/r=a
        -> CDS
        <- CDS a=1
        -> EDS +a
        <- EDS a=1
        ack CDS
        ack EDS
        -> RDS +r
        <- RDS r=a
        ack RDS
        wait 10000
        commit CDS/b=1>EDS/b EDS/b=1 RDS/r=b -CDS/a
        <- CDS b=1
        -> EDS +b
        <- EDS b=1
        ack CDS
        wait 1000
        ack EDS
        <- RDS r=b
        wait 1000
        ack RDS
        <- CDS -a
        ",
    );
}

/// CLI-E-07, SOTW-21, SOTW-28: a NACK has code 13 and the previous version. Its error is only in
/// that request, so the next request is an ordinary one.
#[test]
fn nack_keeps_previous_version_and_has_error_once() {
    check(
        Sotw,
        "",
        "
        commit RDS/r=1
        -> RDS r v= @
        <- RDS r=1 v=X @A
        -> RDS r v=X @A
        commit RDS/r=bad
        <- RDS r=bad v=Y @B
        -> RDS r v=X @B nack=13
        status RDS
        = RDS nacked sent=Y acked=X nack=13 rejected
        -> RDS r,s v=X @B
        status RDS
        = RDS nacked sent=Y acked=X nack=13 rejected
        commit RDS/s=1
        <- RDS s=1 v=Z @C
        -> RDS r,s v=Z @C
        commit RDS/r=2
        <- RDS r=2 @D
        ack RDS
        ",
    );
}

/// CLI-E-09: the server sends no type that was not requested, because Envoy would drop the response
/// and never answer.
#[test]
fn a_type_that_was_never_asked_for_is_not_sent() {
    for protocol in [Sotw, Delta] {
        check(
            protocol,
            "",
            "
            commit CDS/a=1
            -> CDS
            <- CDS a=1
            ack CDS
            commit LDS/l=1 RDS/r=1 EDS/a=1 SDS/s=1 SRDS/x=1
            wait 60000
            commit CDS/a=2 LDS/l=2
            <- CDS a=2
            ",
        );
    }
}

/// CLI-E-08, CLI-E-09, ADS-22: Envoy removes its last watch of a type while a response is in
/// flight, and never answers. Nothing else waits, and the type continues when Envoy requests it
/// again.
#[test]
fn unanswered_response_without_watch_delays_no_other_type() {
    check(
        Sotw,
        "",
        "
        commit RDS/r=1 CDS/a=1
        -> RDS r
        <- RDS r=1 v=X @A
        -> RDS r v=X @A
        commit RDS/r=2
        <- RDS r=2 @B
        -> RDS v=X @A
        -> CDS
        <- CDS a=1
        ack CDS
        commit CDS/a=2 RDS/r=3
        <- CDS a=2
        ack CDS
        -> RDS r v=X @A
        wait 5000
        <- RDS r=3
        ack RDS
        ",
    );
}

/// CLI-E-10, CLI-E-13, SOTW-66, SOTW-100: Envoy reconnects several times, with its versions,
/// without nonces, and with the types in the order of their first use. Each stream receives the
/// full state.
#[test]
fn every_reconnect_receives_the_full_state() {
    let mut script = "
        commit CDS/a=1>EDS/a EDS/a=1 LDS/l=1 RDS/r=1
        -> CDS
        <- CDS a=1 v=X @A
        ack CDS
        "
    .to_owned();
    for backoff in [500, 1_000, 2_000, 30_000] {
        script += &format!(
            "
            wait {backoff}
            open
            -> CDS v=X @
            <- CDS a=1 v=X @A
            -> EDS a v=X @
            <- EDS a=1 v=X
            ack EDS
            ack CDS
            -> LDS v=X @
            <- LDS l=1 v=X
            -> RDS r v=X @
            <- RDS r=1 v=X
            ack RDS
            ack LDS
            "
        );
    }
    check(Sotw, "", &script);
}

/// CLI-E-14: Envoy may delay its requests and ACKs to limit their rate. A late answer counts for
/// the response that it names.
#[test]
fn late_answer_applies_to_the_response_it_names() {
    check(
        Sotw,
        "",
        "
        commit EDS/a=1 EDS/b=1
        -> EDS a
        <- EDS a=1 v=X @A
        commit EDS/a=2
        wait 5000
        <- EDS a=2 v=Y @B
        -> EDS a v=X @A
        status EDS
        = EDS pending sent=Y acked=X
        commit EDS/a=3
        wait 1000
        -> EDS a,b v=Y @B
        <- EDS a=3 b=1 v=Z @C
        -> EDS a,b v=Z @C
        status EDS
        = EDS synced sent=Z acked=Z
        ",
    );
}

/// CLI-E-15, SOTW-23: Envoy may reject a valid resource for reasons of its build. The resource is
/// not sent again, and other types continue.
#[test]
fn rejection_of_valid_resource_does_not_stop_other_types() {
    for (protocol, name) in [(Sotw, "e"), (Delta, "+e")] {
        check(
            protocol,
            "",
            &format!(
                "
                commit LDS/l=fine EDS/e=1
                -> LDS
                <- LDS l=fine
                nack LDS
                -> EDS {name}
                <- EDS e=1
                ack EDS
                commit EDS/e=2
                <- EDS e=2
                ack EDS
                wait 60000
                commit LDS/l=finer
                <- LDS l=finer
                ack LDS
                "
            ),
        );
    }
}

/// CLI-E-30, CLI-E-31, SOTW-30, DELTA-17: Envoy applies the good resources of a rejected response.
/// Only its error text names the bad ones, which the server does not evaluate. It sends no resource
/// of the response again until that resource changes.
#[test]
fn error_text_of_nack_is_not_evaluated() {
    for kind in ["CDS", "LDS"] {
        check(
            Delta,
            "",
            &format!(
                "
                commit {kind}/good=1 {kind}/bad=1
                -> {kind}
                <- {kind} bad=1 good=1
                nack {kind}
                wait 60000
                commit {kind}/other=1
                <- {kind} other=1
                ack {kind}
                commit {kind}/bad=2
                <- {kind} bad=2
                ack {kind}
                <- {kind} good=1
                ack {kind}
                "
            ),
        );
        check(
            Sotw,
            "",
            &format!(
                "
                commit {kind}/good=1 {kind}/bad=1
                -> {kind}
                <- {kind} bad=1 good=1 v=X
                nack {kind}
                wait 60000
                commit {kind}/bad=2
                <- {kind} bad=2 good=1 v=Y
                ack {kind}
                status {kind}
                = {kind} synced sent=Y acked=Y
                "
            ),
        );
    }
    check(
        Sotw,
        "",
        "
        commit EDS/good=1 EDS/bad=1
        -> EDS good,bad
        <- EDS bad=1 good=1
        nack EDS
        wait 60000
        commit EDS/bad=2
        <- EDS bad=2
        ack EDS
        <- EDS good=1
        ack EDS
        ",
    );
}

/// CLI-E-24, DELTA-47: Envoy rejects a response with a duplicate name. A resource that is
/// subscribed by names, aliases and a wildcard is sent once.
#[test]
fn resource_subscribed_in_several_ways_is_sent_once() {
    check(
        Delta,
        "",
        "
        commit VHDS/r/v=1|r/a.test|r/b.test
        -> VHDS +*,r/v,r/a.test,r/b.test,r/v
        <- VHDS r/v=1
        ack VHDS
        commit VHDS/r/v=2|r/a.test|r/b.test
        <- VHDS r/v=2
        ack VHDS
        commit -VHDS/r/v
        wait 1000
        <- VHDS -r/v
        ack VHDS
        -> VHDS +r/a.test,r/v
        <- VHDS ~r/a.test ~r/v
        ack VHDS
        ",
    );
}

/// CLI-E-25, DELTA-40: a cluster without endpoints completes its warming when the server reports
/// them as absent. It does so at once, and sends the endpoints when they exist.
#[test]
fn absent_endpoints_of_a_cluster_are_reported_at_once() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1>EDS/a
        -> CDS
        <- CDS a=1
        -> EDS +a
        <- EDS -a
        ack EDS
        ack CDS
        commit CDS/a=2>EDS/a
        <- CDS a=2
        -> EDS +a
        <- EDS -a
        ack EDS
        ack CDS
        commit EDS/a=1
        <- EDS a=1
        ",
    );
}

/// CLI-E-11, CLI-E-32, SVC-22, SOTW-48: an EDS watch accepts exactly the assignment of its name. A
/// stream for one cluster receives only that one.
#[test]
fn stream_for_one_cluster_gets_only_its_endpoints() {
    check(
        Sotw,
        "EDS",
        "
        commit EDS/a=1 EDS/ab=1 EDS/b=1
        -> EDS a
        <- EDS a=1
        ack EDS
        commit EDS/ab=2 EDS/b=2
        wait 60000
        commit EDS/a=2 EDS/b=3
        <- EDS a=2
        ack EDS
        ",
    );
}

/// CLI-E-37, SOTW-69, SOTW-80, DELTA-35, DELTA-40, DELTA-66: with `initial_fetch_timeout: 0`, Envoy
/// waits indefinitely for its first answers. The server sends every answer that the protocol
/// allows.
#[test]
fn client_without_fetch_timeout_gets_first_answers() {
    for protocol in [Sotw, Delta] {
        for kind in ["CDS", "LDS", "SRDS"] {
            check(protocol, "", &format!("\n-> {kind}\n<- {kind}\n"));
        }
    }
    check(Sotw, "", "\n-> CDS a\n<- CDS\n-> LDS l\n<- LDS\n");
    for kind in ["CDS", "EDS", "LDS", "RDS", "SDS", "RTDS", "ECDS"] {
        check(Delta, "", &format!("\n-> {kind} +x\n<- {kind} -x\n"));
    }
    check(Delta, "", "\n-> VHDS\n<- VHDS\n");
    check(Delta, "", "\n-> VHDS +r/x\n<- VHDS ~r/x\n");
}

/// CLI-E-44, CLI-G-30, SOTW-15, SOTW-105, DELTA-59: the client has versions of another server, or of another
/// incarnation of this one. They have no meaning here: the server sends everything, and removes what does not
/// exist here.
#[test]
fn versions_of_another_server_are_ignored() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1
        -> CDS v=1-8
        <- CDS a=1 v=X
        -> EDS x v=99-8
        commit EDS/x=1
        <- EDS x=1
        ",
    );
    check(
        Delta,
        "",
        "
        commit CDS/a=1
        -> CDS irv=a@theirs,b@1-0123abcd
        <- CDS a=1
        ack CDS
        wait 1000
        <- CDS -b
        ",
    );
}

/// CLI-E-46, ADS-21: with `validate_clusters`, Envoy rejects a route to a cluster that does not exist. So a
/// route follows its cluster and the ACK of the endpoints. A rejected route is not sent again.
#[test]
fn route_arrives_after_its_cluster() {
    check(
        Sotw,
        "",
        "
        commit LDS/l=1>RDS/r RDS/r=a CDS/a=1>EDS/a EDS/a=1
        -> CDS
        <- CDS a=1
        -> EDS a
        <- EDS a=1
        ack EDS
        ack CDS
        -> LDS
        <- LDS l=1
        -> RDS r
        <- RDS r=a
        ack RDS
        ack LDS
        commit CDS/b=1>EDS/b EDS/b=1 RDS/r=b
        <- CDS a=1 b=1
        -> EDS a,b @2
        <- EDS b=1
        ack EDS
        ack CDS
        <- RDS r=b
        nack RDS
        wait 60000
        commit CDS/b=2>EDS/b
        <- CDS a=1 b=2
        <- EDS b=1
        ack EDS
        ack CDS
        wait 60000
        ",
    );
}

/// ADS-25, ADS-14: a change of endpoints sends no cluster. Changes of clusters during an unanswered
/// response coalesce into one response.
#[test]
fn endpoint_change_sends_no_cluster_and_cluster_changes_coalesce() {
    for protocol in [Sotw, Delta] {
        let (name, rest) = if protocol == Sotw { ("a", "a=1 b=3 c=2") } else { ("+a", "b=3 c=2") };
        let first = if protocol == Sotw { "a=1 b=1 c=1" } else { "b=1" };
        check(
            protocol,
            "",
            &format!(
                "
                commit CDS/a=1>EDS/a CDS/c=1 EDS/a=1
                -> CDS
                <- CDS a=1 c=1
                -> EDS {name}
                <- EDS a=1
                ack EDS
                ack CDS
                commit EDS/a=2
                <- EDS a=2
                ack EDS
                wait 60000
                commit CDS/b=1
                <- CDS {first}
                commit CDS/b=2
                commit CDS/c=2
                commit CDS/b=3
                ack CDS
                <- CDS {rest}
                ack CDS
                "
            ),
        );
    }
}
