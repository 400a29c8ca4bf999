//! SotW streams.

use chancery_protocol::Protocol::Sotw;

use crate::transcript::check;

/// SOTW-01, SOTW-10, SOTW-61, SOTW-69 to -71, SOTW-84, CLI-E-01: an empty list opens a wildcard,
/// and each response has all resources.
#[test]
fn every_wildcard_response_has_all_resources() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1 CDS/b=1
        -> CDS
        <- CDS a=1 b=1
        ack CDS
        commit CDS/a=2
        <- CDS a=2 b=1
        ack CDS
        commit -CDS/b
        wait 1000
        <- CDS a=2
        ack CDS
        ",
    );
}

/// SOTW-69: an empty view is answered when it is known to be empty.
#[test]
fn wildcard_over_empty_view_gets_empty_response() {
    check(
        Sotw,
        "",
        "
        -> CDS
        <- CDS
        ack CDS
        -> LDS
        <- LDS
        -> SRDS
        <- SRDS
        ",
    );
}

/// SOTW-23, SOTW-24, SOTW-27: rejected content is not sent again. Any change is sent, even one back
/// to earlier content.
#[test]
fn a_rejection_is_not_answered_until_something_changes() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1
        -> CDS
        <- CDS a=1
        ack CDS
        commit CDS/a=bad
        <- CDS a=bad
        nack CDS
        wait 60000
        commit CDS/a=1
        <- CDS a=1
        ack CDS
        ",
    );
}

/// SOTW-20, SOTW-21: a request with an error is a NACK, whatever its version.
#[test]
fn request_with_error_at_same_version_is_a_rejection() {
    check(
        Sotw,
        "",
        "
        commit EDS/a=1 EDS/b=bad
        -> EDS a
        <- EDS a=1
        ack EDS
        -> EDS a,b @1 v=1-7
        <- EDS b=bad
        -> EDS a,b @2 v=1-7 nack
        commit EDS/b=2
        <- EDS b=2
        ack EDS
        ",
    );
}

/// SOTW-26: a NACK can change the names as well.
#[test]
fn a_rejection_may_change_the_subscription() {
    check(
        Sotw,
        "",
        "
        commit EDS/a=bad EDS/b=1
        -> EDS a
        <- EDS a=bad
        -> EDS b @1 nack
        <- EDS b=1
        ack EDS
        commit EDS/a=2
        ",
    );
}

/// SOTW-36, SOTW-92, SOTW-93: changes during an unanswered response coalesce into the next one.
#[test]
fn changes_during_unanswered_response_coalesce() {
    check(
        Sotw,
        "",
        "
        commit EDS/a=1
        -> EDS a,b
        <- EDS a=1
        commit EDS/a=2
        commit EDS/a=3 EDS/b=1
        ack EDS
        <- EDS a=3 b=1
        ack EDS
        ",
    );
}

/// ADS-22, SOTW-31: the server sends nothing twice to a silent client, and sends the newest state
/// after the timeout.
#[test]
fn unanswered_response_delays_changes_for_a_bounded_time() {
    check(
        Sotw,
        "",
        "
        commit EDS/a=1
        -> EDS a
        <- EDS a=1
        wait 60000
        commit EDS/a=2
        <- EDS a=2
        commit EDS/a=3
        wait 4999
        wait 1
        <- EDS a=3
        wait 60000
        ",
    );
}

/// SOTW-33 to -35, CLI-G-06: a stale request gets no response of its own, and its names are not lost.
#[test]
fn a_stale_nonce_gets_no_response() {
    check(
        Sotw,
        "",
        "
        commit EDS/a=1 EDS/b=1
        -> EDS a
        <- EDS a=1
        ack EDS
        commit EDS/a=2
        <- EDS a=2
        -> EDS a,b @1
        -> EDS a,b @2
        <- EDS b=1
        ",
    );
}

/// SOTW-34, SOTW-35: the requests of a client are always late because the type changes often. The
/// client gets all names that it requests, and nothing for names that it unsubscribes from.
#[test]
fn names_of_stale_requests_take_effect() {
    check(
        Sotw,
        "",
        "
        commit EDS/a=1 EDS/b=1
        -> EDS a
        <- EDS a=1 @A
        commit EDS/a=2
        wait 5000
        <- EDS a=2 @B
        -> EDS a,b @A
        wait 4999
        wait 1
        <- EDS b=1 @C
        -> EDS b @B
        commit EDS/a=3 EDS/b=2
        wait 5000
        <- EDS b=2
        ",
    );
}

/// SOTW-08: the last of several requests before the first response takes effect.
#[test]
fn last_of_several_first_requests_takes_effect() {
    check(
        Sotw,
        "",
        "
        -> EDS a
        -> EDS b,a
        -> EDS c,b
        commit EDS/a=1 EDS/b=1 EDS/c=1
        <- EDS b=1 c=1
        ",
    );
}

/// SOTW-37: a request with an empty nonce is a new subscription at any time, and acknowledges
/// nothing.
#[test]
fn an_empty_nonce_is_never_stale() {
    check(
        Sotw,
        "",
        "
        commit EDS/a=1 EDS/b=1 EDS/c=1
        -> EDS a
        <- EDS a=1 v=X
        -> EDS a,b v=X @
        <- EDS b=1 v=X
        -> EDS a,b,c
        <- EDS c=1 v=X
        status EDS
        = EDS pending sent=X
        ",
    );
}

/// SOTW-04, SOTW-05, SOTW-11: a first request opens the type, whatever its nonce and version.
#[test]
fn first_request_with_foreign_nonce_opens_the_type() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1
        -> CDS @17 v=old
        <- CDS a=1 v=X
        status CDS
        = CDS pending sent=X
        open
        -> CDS @1 v=X
        <- CDS a=1 v=X @A
        status CDS
        = CDS pending sent=X
        ",
    );
}

/// SOTW-38, SOTW-50, CLI-E-04: a request that changes nothing gets no response, whatever the order
/// of its names.
#[test]
fn repeated_request_gets_no_response() {
    check(
        Sotw,
        "",
        "
        commit EDS/a=1 EDS/b=1
        -> EDS a,b
        <- EDS a=1 b=1
        ack EDS
        -> EDS b,a @1
        -> EDS a,b,a @1
        ",
    );
}

/// SOTW-90, SOTW-91: changes that the node does not see cause no response.
#[test]
fn changes_outside_of_the_view_cause_no_response() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1
        -> CDS
        <- CDS a=1
        ack CDS
        commit other:CDS/a=2 other:CDS/b=1
        commit RDS/r=1
        wait 60000
        ",
    );
}

/// DELTA-50: another list of scopes is sent like any change.
#[test]
fn changed_scope_list_is_sent_like_any_change() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1 CDS/b=1 eu:CDS/b=eu
        -> CDS
        <- CDS a=1 b=1
        ack CDS
        scopes eu,default
        <- CDS a=1 b=eu
        ack CDS
        scopes eu
        wait 1000
        <- CDS b=eu
        ",
    );
}

/// SOTW-22, CLI-E-08: an answer with an older version and no error is not a rejection, and causes
/// no response.
#[test]
fn an_answer_with_an_older_version_is_not_a_rejection() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1
        -> CDS
        <- CDS a=1
        ack CDS
        commit CDS/a=2
        <- CDS a=2
        -> CDS @2 v=1-7
        wait 60000
        commit CDS/a=3
        <- CDS a=3
        ",
    );
}

/// SOTW-04, SOTW-100, SOTW-102, SOTW-105, P-01: a new stream receives everything, whatever version
/// the client has.
#[test]
fn new_stream_receives_everything_despite_earlier_version() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1 EDS/a=1
        -> CDS v=1-7
        <- CDS a=1
        ack CDS
        -> EDS a v=1-7
        <- EDS a=1
        ",
    );
}

/// SOTW-104: a client that reconnects with the newest version receives everything, and not only what has
/// changed. The server knows what the client has at this version: equal commits send nothing, and the next
/// change is complete.
#[test]
fn reconnect_with_newest_version_is_the_base_of_the_next_change() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1 CDS/b=1
        -> CDS
        <- CDS a=1 b=1 v=X
        ack CDS
        open
        -> CDS v=X
        <- CDS a=1 b=1 v=X
        ack CDS
        commit CDS/a=1
        commit -CDS/b
        wait 60000
        <- CDS a=1
        ",
    );
}

/// SOTW-103, P-42: a client that was still warming receives its endpoints with the clusters.
#[test]
fn children_are_answered_in_full_after_a_reconnect() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1>EDS/a EDS/a=1
        -> EDS a v=1-7
        <- EDS a=1
        -> CDS v=1-7
        <- CDS a=1
        ack EDS
        <- EDS a=1
        ",
    );
}
