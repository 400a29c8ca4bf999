//! Delta streams.

use chancery_protocol::{Config, Protocol::Delta};

use crate::transcript::{check, world::check_with};

/// DELTA-10, DELTA-31, DELTA-42, DELTA-44, DELTA-51, DELTA-52, CLI-E-20: a legacy wildcard receives
/// everything, and then the changes.
#[test]
fn wildcard_receives_everything_and_then_changes() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/a=1 CDS/b=1
        -> CDS
        <- CDS a=1 b=1
        ack CDS
        commit CDS/b=2 CDS/c=1
        <- CDS b=2 c=1
        ack CDS
        commit -CDS/a
        <- CDS -a
        ack CDS
        commit CDS/b=3
        <- CDS b=3
        ack CDS
        ",
    );
}

/// DELTA-35, DELTA-55: an opening wildcard over an empty view gets an empty response. No other
/// request does.
#[test]
fn only_opening_wildcard_gets_empty_response() {
    check(
        Delta,
        "CDS",
        "
        -> CDS
        <- CDS
        ack CDS
        commit other:CDS/a=1
        -> CDS
        wait 60000
        ",
    );
}

/// DELTA-21, DELTA-40, DELTA-43: each subscribed name is answered. A name without a resource stays
/// subscribed.
#[test]
fn a_subscribed_name_is_answered_and_stays_subscribed() {
    check(
        Delta,
        "EDS",
        "
        commit EDS/a=1
        -> EDS +a,b
        <- EDS a=1 -b
        ack EDS
        -> EDS +a
        <- EDS a=1
        ack EDS
        commit EDS/b=1
        <- EDS b=1
        ack EDS
        commit -EDS/b
        <- EDS -b
        ack EDS
        commit EDS/b=1
        <- EDS b=1
        ",
    );
}

/// DELTA-01, DELTA-12, DELTA-14, DELTA-15, CLI-E-23, P-20: a request with a stale nonce still
/// subscribes.
#[test]
fn request_with_stale_nonce_still_subscribes() {
    check(
        Delta,
        "EDS",
        "
        commit EDS/a=1 EDS/b=1 EDS/c=1
        -> EDS +a
        <- EDS a=1
        -> EDS +b @1
        <- EDS b=1
        -> EDS +c @1
        <- EDS c=1
        -> EDS +a @bogus
        <- EDS a=1
        ",
    );
}

/// DELTA-13, DELTA-16 to -18, P-32: after a NACK, only changes are sent.
#[test]
fn after_a_rejection_only_changes_are_sent() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/a=1 CDS/b=1
        -> CDS
        <- CDS a=1 b=1
        ack CDS
        commit CDS/a=bad CDS/b=2
        <- CDS a=bad b=2
        nack CDS
        wait 60000
        commit CDS/c=1
        <- CDS c=1
        ack CDS
        commit CDS/a=1
        <- CDS a=1
        ",
    );
}

/// DELTA-19: one response is in flight, and changes meanwhile coalesce.
#[test]
fn changes_during_unanswered_response_coalesce() {
    check(
        Delta,
        "CDS",
        "
        -> CDS
        <- CDS
        commit CDS/a=1
        commit CDS/a=2 CDS/b=1
        commit -CDS/b
        ack CDS
        <- CDS a=2
        ",
    );
}

/// DELTA-20: if an ordinary name is in both lists, subscribe takes precedence. For `*`, unsubscribe
/// does.
#[test]
fn name_in_both_lists_is_subscribed_and_wildcard_is_not() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/a=1 CDS/b=1
        -> CDS +*,a -*,a
        <- CDS a=1
        ack CDS
        commit CDS/b=2
        ",
    );
}

/// DELTA-23, DELTA-25 to -28: an unsubscription gets no response. A later subscription sends the
/// resource again.
#[test]
fn unsubscription_gets_no_response_and_is_forgotten() {
    check(
        Delta,
        "EDS",
        "
        commit EDS/a=1 EDS/b=1
        -> EDS +a,b -phantom
        <- EDS a=1 b=1
        ack EDS
        -> EDS -b,phantom
        commit EDS/b=2
        -> EDS
        -> EDS +b
        <- EDS b=2
        ",
    );
}

/// DELTA-24, P-27: beside a wildcard, an unsubscription from a name is answered.
#[test]
fn unsubscribed_name_beside_wildcard_is_answered() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/a=1
        -> CDS
        <- CDS a=1
        ack CDS
        -> CDS +a,gone
        <- CDS a=1 -gone
        ack CDS
        -> CDS -a,gone
        <- CDS a=1 -gone
        ack CDS
        ",
    );
}

/// DELTA-30, DELTA-32 to -34, DELTA-36, DELTA-37: the sequence of requests in the protocol
/// documents.
#[test]
fn asterisk_starts_and_ends_wildcard() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/a=1 CDS/b=1
        -> CDS
        <- CDS a=1 b=1
        ack CDS
        -> CDS +a
        <- CDS a=1
        ack CDS
        -> CDS -*
        commit CDS/b=2
        commit CDS/a=2
        <- CDS a=2
        ack CDS
        -> CDS -a
        commit CDS/a=3 CDS/b=3
        -> CDS
        -> CDS +*
        <- CDS a=3 b=3
        ",
    );
}

/// DELTA-34: an opening request that only unsubscribes starts no wildcard.
#[test]
fn opening_unsubscription_does_not_start_wildcard() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/a=1
        -> CDS -x
        -> CDS
        wait 60000
        ",
    );
}

/// DELTA-38: a type without wildcard support has no wildcard.
#[test]
fn endpoints_have_no_wildcard() {
    check(
        Delta,
        "EDS",
        "
        commit EDS/a=1
        -> EDS
        -> EDS +*
        commit EDS/a=2
        ",
    );
}

/// DELTA-45, DELTA-46, DELTA-58, DELTA-59, DELTA-70, P-22: on a resume, the server sends the
/// differences and removes deleted resources.
#[test]
fn resume_sends_only_differences() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/a=1 CDS/b=1 CDS/c=1
        -> CDS irv=a@held,b@1-00000000,old@5-0123abcd,c@elsewhere
        <- CDS b=1 c=1 -old
        ack CDS
        commit CDS/a=2
        <- CDS a=2
        ",
    );
}

/// DELTA-58: an up-to-date client gets an empty answer to its opening wildcard.
#[test]
fn a_resume_with_nothing_new_sends_no_resource() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/a=1
        -> CDS irv=a@held
        <- CDS
        ack CDS
        ",
    );
}

/// DELTA-22, P-21: subscribed names are sent even if the client claims to hold them.
#[test]
fn subscribed_name_with_initial_version_is_sent() {
    check(
        Delta,
        "EDS",
        "
        commit EDS/a=1
        -> EDS +a,b irv=a@held,b@1-00000000,c@1-00000000
        <- EDS a=1 -b -c
        ack EDS
        ",
    );
}

/// CLI-E-21: a client that only claims to hold names is subscribed to them.
#[test]
fn name_with_initial_version_only_is_subscribed() {
    check(
        Delta,
        "EDS",
        "
        commit EDS/a=1 EDS/b=1
        -> EDS irv=a@held,b@1-00000000
        <- EDS b=1
        ack EDS
        commit EDS/a=2
        <- EDS a=2
        ",
    );
}

/// DELTA-57: only the claims in the opening request count.
#[test]
fn later_initial_versions_are_ignored() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/a=1
        -> CDS
        <- CDS a=1
        ack CDS
        -> CDS irv=x@1-00000000
        commit CDS/a=2
        <- CDS a=2
        ",
    );
    check(
        Delta,
        "EDS",
        "
        commit EDS/a=1 EDS/b=1
        -> EDS +a
        <- EDS a=1
        ack EDS
        -> EDS irv=b@held
        commit EDS/b=2
        -> EDS +a irv=a@held,x@1-00000000
        <- EDS a=1
        ",
    );
}

/// DELTA-48: removals that would break traffic, or that the client would reject, are not announced.
#[test]
fn extension_and_runtime_removals_are_not_announced() {
    for kind in ["ECDS", "RTDS"] {
        check(
            Delta,
            kind,
            &format!(
                "
                commit {kind}/e=1
                -> {kind} +e
                <- {kind} e=1
                ack {kind}
                commit -{kind}/e
                wait 60000
                commit {kind}/e=2
                <- {kind} e=2
                "
            ),
        );
    }
}

/// DELTA-46, DELTA-48: a client that reconnects lists a filter chain that was deleted in the meantime. No removal is
/// announced, however the client lists the chain. A later version of the chain is sent.
#[test]
fn removal_of_held_filter_chain_is_not_announced_after_reconnect() {
    for request in ["+c irv=c@1-00000000", "+c irv=c@unparsable", "irv=c@1-00000000"] {
        check(
            Delta,
            "FCDS",
            &format!(
                "
                commit FCDS/c=1
                -> FCDS +c
                <- FCDS c=1
                ack FCDS
                commit -FCDS/c
                open FCDS
                -> FCDS {request}
                wait 60000
                commit FCDS/c=2
                <- FCDS c=2
                ack FCDS
                "
            ),
        );
    }
    check(
        Delta,
        "FCDS",
        "
        commit FCDS/d=1
        -> FCDS +d irv=c@1-00000000
        <- FCDS d=1
        ack FCDS
        wait 60000
        ",
    );
}

/// DELTA-40, DELTA-48: a client unsubscribes from a deleted filter chain that it held, because the last listener that
/// named it is gone. It then has no chain, and a new request for it has an answer.
#[test]
fn deleted_filter_chain_is_reported_absent_after_unsubscribe() {
    check(
        Delta,
        "FCDS",
        "
        commit FCDS/d=1
        -> FCDS +c,d irv=c@1-00000000
        <- FCDS d=1
        ack FCDS
        -> FCDS -c
        -> FCDS +c
        <- FCDS -c
        ack FCDS
        commit FCDS/c=2
        <- FCDS c=2
        ack FCDS
        -> FCDS -c
        commit FCDS/c=3
        wait 60000
        ",
    );
}

/// DELTA-53, OPS-12: a large state is sent in parts, with the removals in the last one.
#[test]
fn large_state_is_sent_in_parts() {
    let config = Config { response_bytes_target: 200, ..Config::DEFAULTS };
    check_with(
        Delta,
        "CDS",
        config,
        "
        commit CDS/a=1 CDS/b=1 CDS/c=1 CDS/d=1 CDS/e=1
        -> CDS irv=x@1-00000000
        <- CDS a=1 b=1
        <- CDS c=1 d=1
        <- CDS e=1 -x
        commit CDS/a=2
        ack CDS
        <- CDS a=2
        ",
    );
}

/// DELTA-47: a name occurs at most once in a response, whatever happened to it meanwhile.
#[test]
fn response_contains_each_name_at_most_once() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/a=1
        -> CDS
        <- CDS a=1
        commit -CDS/a
        commit CDS/a=1
        ack CDS
        <- CDS a=1
        ack CDS
        commit -CDS/a
        <- CDS -a
        ack CDS
        ",
    );
}

/// DELTA-11, DELTA-12: a request without a nonce answers no response.
#[test]
fn request_without_nonce_does_not_acknowledge() {
    check(
        Delta,
        "EDS",
        "
        commit EDS/a=1
        -> EDS +a
        <- EDS a=1
        commit EDS/a=2
        -> EDS -x
        wait 100
        ack EDS
        <- EDS a=2
        ",
    );
}

/// DELTA-05: a first request opens the type, whatever its nonce.
#[test]
fn first_request_with_foreign_nonce_opens_the_type() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/a=1
        -> CDS @17
        <- CDS a=1
        ",
    );
}

/// DELTA-26, DELTA-04: later empty lists change nothing, and a subscription does not depend on
/// other streams.
#[test]
fn later_empty_lists_keep_the_subscription() {
    check(
        Delta,
        "EDS",
        "
        commit EDS/a=1
        -> EDS +a
        <- EDS a=1
        ack EDS
        -> EDS
        commit EDS/a=2
        <- EDS a=2
        ",
    );
}

/// DELTA-41, DELTA-43, P-23, P-26: absence is a removed name, never an empty resource. The name
/// stays subscribed.
#[test]
fn a_removed_name_stays_subscribed() {
    check(
        Delta,
        "EDS",
        "
        commit EDS/a=1
        -> EDS +a
        <- EDS a=1
        ack EDS
        commit -EDS/a
        <- EDS -a
        ack EDS
        wait 60000
        commit EDS/a=1
        <- EDS a=1
        ",
    );
}

/// DELTA-50: a resource that another scope hides or reveals is an ordinary change.
#[test]
fn changed_scopes_send_only_differences() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/a=1 CDS/b=1 CDS/c=1 eu:CDS/b=eu eu:CDS/d=eu
        -> CDS
        <- CDS a=1 b=1 c=1
        ack CDS
        scopes eu,default
        <- CDS d=eu b=eu
        ack CDS
        scopes eu
        <- CDS -a -c
        ack CDS
        scopes default
        <- CDS a=1 c=1 b=1 -d
        ",
    );
}

/// DELTA-46: a client claims a resource with an unparsable version. The resource no longer exists, so the
/// server removes it.
#[test]
fn held_resource_with_unparsable_version_is_removed() {
    check(
        Delta,
        "EDS",
        "
        -> EDS irv=gone@abc
        <- EDS -gone
        ",
    );
}

/// DELTA-01, DELTA-15, DELTA-16: one request rejects, subscribes and unsubscribes.
#[test]
fn one_request_rejects_subscribes_and_unsubscribes() {
    check(
        Delta,
        "EDS",
        "
        commit EDS/a=bad EDS/b=1 EDS/c=1
        -> EDS +a,b irv=b@held,x@1-00000000
        <- EDS a=bad b=1 -x v=X @A
        -> EDS +c -b @A nack
        <- EDS c=1 a=bad v=X @B
        commit EDS/b=2
        ack EDS
        wait 60000
        commit EDS/a=2
        <- EDS a=2
        ",
    );
}

/// DELTA-13, DELTA-19: an ACK accepts the versions of the response that it names, even after a
/// later response.
#[test]
fn ack_accepts_versions_of_the_named_response() {
    check(
        Delta,
        "EDS",
        "
        commit EDS/a=1
        -> EDS +a
        <- EDS a=1 v=X @A
        commit EDS/a=2
        wait 5000
        <- EDS a=2 v=Y @B
        commit EDS/a=3
        wait 5000
        <- EDS a=3 v=Z @C
        -> EDS @B
        status EDS
        = EDS pending sent=Z acked=Y
        -> EDS @A
        status EDS
        = EDS pending sent=Z acked=Y
        -> EDS @C
        status EDS
        = EDS synced sent=Z acked=Z
        ",
    );
}

/// DELTA-56, DELTA-70: only subscribed resources are sent. After a reconnect, these are the newly
/// requested ones.
#[test]
fn reconnected_stream_gets_only_newly_requested_names() {
    check(
        Delta,
        "EDS",
        "
        commit EDS/a=1 EDS/b=1 EDS/c=1
        -> EDS +a,b
        <- EDS a=1 b=1
        ack EDS
        commit EDS/c=2
        open EDS
        -> EDS +a
        <- EDS a=1
        ack EDS
        commit EDS/b=2 EDS/c=3
        wait 60000
        ",
    );
}

/// SOTW-93, DELTA-53: all parts of a state are from one commit. Later commits are sent after them.
#[test]
fn parts_of_a_state_come_from_one_commit() {
    let config = Config { response_bytes_target: 200, ..Config::DEFAULTS };
    for (protocol, names) in [(chancery_protocol::Protocol::Sotw, "a,b,c,d"), (Delta, "+a,b,c,d")] {
        let script = match protocol {
            Delta => {
                "
                <- EDS a=1 b=1 v=X
                <- EDS c=1 d=1 v=X
                commit EDS/a=2 EDS/d=2
                ack EDS
                <- EDS a=2 d=2 v=Y
                "
            }
            chancery_protocol::Protocol::Sotw => {
                "
                <- EDS a=1 b=1 v=X
                commit EDS/a=2 EDS/d=2
                ack EDS
                <- EDS c=1 d=1 v=X
                ack EDS
                <- EDS a=2 d=2 v=Y
                "
            }
            chancery_protocol::Protocol::Mcp => unreachable!("a test of xDS"),
        };
        let opening = format!("commit EDS/a=1 EDS/b=1 EDS/c=1 EDS/d=1\n-> EDS {names}\n");
        check_with(protocol, "", config.clone(), &(opening + script));
    }
}
