//! The resources of a client with the state of each, as CSDS shows them.

use chancery_protocol::Protocol::{Delta, Sotw};

use crate::transcript::check;

/// CSDS-07, CSDS-10, CSDS-12: a named resource is not sent, then sent, then acknowledged, under the
/// version of the last response with it. A name without a resource is unknown.
#[test]
fn named_resources_show_the_response_that_last_sent_them() {
    check(
        Sotw,
        "",
        "
        commit EDS/a=1 EDS/b=1
        -> EDS a,b,c
        <- EDS a=1 b=1 v=X @A
        contents EDS
        = EDS a=1:stale@X b=1:stale@X c:unknown
        -> EDS a,b,c v=X @A
        contents EDS
        = EDS a=1:synced@X b=1:synced@X c:unknown
        commit EDS/b=2
        <- EDS b=2 v=Y @B
        contents EDS
        = EDS a=1:synced@X b=2:stale@Y c:unknown
        commit EDS/a=2
        contents EDS
        = EDS a=2:notsent b=2:stale@Y c:unknown
        -> EDS a,b,c v=Y @B
        <- EDS a=2 v=Z @C
        -> EDS a,b,c v=Z @C
        contents EDS
        = EDS a=2:synced@Z b=2:synced@Y c:unknown
        ",
    );
}

/// CSDS-07: a rejected resource is shown with the rejected content until its replacement is sent.
#[test]
fn rejected_resources_show_the_rejected_content() {
    check(
        Delta,
        "",
        "
        commit EDS/a=1 EDS/b=1
        -> EDS +a,b,c
        <- EDS a=1 b=1 -c
        contents EDS
        = EDS a=1:stale b=1:stale c:unknown
        ack EDS
        commit EDS/b=2
        <- EDS b=2
        nack EDS
        contents EDS
        = EDS a=1:synced b=2:rejected c:unknown
        commit EDS/b=3
        <- EDS b=3
        contents EDS
        = EDS a=1:synced b=3:stale c:unknown
        ack EDS
        contents EDS
        = EDS a=1:synced b=3:synced c:unknown
        ",
    );
}

/// CSDS-07: a wildcard stores nothing per resource, and still knows the state of each. A rejected full state also has
/// resources that have not changed since the client acknowledged a state.
#[test]
fn wildcard_resources_are_known_from_the_views() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1 CDS/b=1
        -> CDS
        <- CDS a=1 b=1
        commit CDS/c=1
        contents CDS
        = CDS a=1:stale b=1:stale c=1:notsent
        ack CDS
        <- CDS c=1
        contents CDS
        = CDS a=1:synced b=1:synced c=1:stale
        nack CDS
        contents CDS
        = CDS a=1:synced b=1:synced c=1:rejected
        ",
    );
    check(
        Sotw,
        "",
        "
        commit CDS/a=1 CDS/b=1
        -> CDS
        <- CDS a=1 b=1 v=X
        contents CDS
        = CDS a=1:stale@X b=1:stale@X
        ack CDS
        contents CDS
        = CDS a=1:synced@X b=1:synced@X
        commit CDS/b=2
        <- CDS a=1 b=2 v=Y
        nack CDS
        contents CDS
        = CDS a=1:rejected@Y,same@X b=2:rejected@Y
        ",
    );
}

/// CSDS-07: a removed resource is shown while the client has it.
#[test]
fn resource_that_waits_for_its_removal_is_shown() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1 CDS/b=1
        -> CDS
        <- CDS a=1 b=1
        ack CDS
        -> LDS
        <- LDS
        ack LDS
        commit -CDS/b
        contents CDS
        = CDS a=1:synced b=1:synced
        ",
    );
}
