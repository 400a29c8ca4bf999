//! Endpoints that the client marks as stale unless it receives them again.
//!
//! In these scripts, the time is 4 s. It counts as 3.75 s, and half of that, less a small part, is about 1.8 s.

use chancery_protocol::Protocol::{Delta, Sotw};

use crate::transcript::check;

/// CLI-E-34: the client receives the content again after about half of the time, over both variants and
/// without any feature. Other endpoints are not repeated, and nothing else is sent.
#[test]
fn endpoints_are_sent_again_before_they_are_stale() {
    for (protocol, names) in [(Sotw, "x,y"), (Delta, "+x,y")] {
        check(
            protocol,
            "EDS",
            &format!(
                "
                commit EDS/x=1;stale=4 EDS/y=1
                -> EDS {names}
                <- EDS x=1 y=1 v=A
                ack EDS
                wait 1500
                wait 400
                <- EDS x=1 v=A
                ack EDS
                wait 1500
                wait 400
                <- EDS x=1 v=A
                ack EDS
                commit EDS/x=2
                <- EDS x=2 v=B
                ack EDS
                wait 60000
                status EDS
                = EDS synced sent=B acked=B
                "
            ),
        );
    }
}

/// CLI-E-34: rejected endpoints are not sent again, and neither are those that the client no longer
/// requests.
#[test]
fn rejected_and_unsubscribed_endpoints_are_not_sent_again() {
    check(
        Delta,
        "EDS",
        "
        commit EDS/x=1;stale=4 EDS/y=1;stale=4
        -> EDS +x,y
        <- EDS x=1 y=1
        ack EDS
        commit EDS/x=2;stale=4
        <- EDS x=2
        nack EDS
        -> EDS -y
        wait 60000
        ",
    );
}

/// CLI-E-34, TTL-11: without contact to the cluster, the state may be outdated, and endpoints become stale.
/// When the contact returns, they are sent at once.
#[test]
fn stale_endpoints_follow_the_contact_to_the_cluster() {
    check(
        Delta,
        "EDS",
        "
        commit EDS/x=1;stale=4
        -> EDS +x
        <- EDS x=1
        ack EDS
        renewals off
        wait 60000
        renewals on
        <- EDS x=1
        ",
    );
}

/// CLI-E-34: the time also runs while the client has no stream. The endpoints are therefore sent when it
/// reconnects, also if it has the same version.
#[test]
fn endpoints_are_sent_at_once_to_a_client_that_reconnects() {
    check(
        Delta,
        "EDS",
        "
        commit EDS/x=1;stale=4 EDS/y=1
        -> EDS irv=x@held,y@held
        <- EDS x=1
        ack EDS
        wait 2000
        <- EDS x=1
        ",
    );
}
