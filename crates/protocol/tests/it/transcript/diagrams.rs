//! The sequence diagrams of the protocol documents.
//!
//! The order is that of the documents: the xDS protocol of 2018 and of 2020 (the Chinese tutorial
//! has the figures of 2018), then the figures and examples of the current text. `V=X` and `N=A` of
//! a figure are `v=X` and `@A` here. If the current protocol differs from an old figure, the
//! transcript shows the current rule, and its comment says so. The figures of the Mesh
//! Configuration Protocol are not part of xDS.

use chancery_protocol::Protocol::{Delta, Sotw};

use crate::transcript::check;

/// SOTW-01, SOTW-07, SOTW-12, SOTW-21, SOTW-25: figure "Version update after ACK" (simple-ack, 2018 and
/// 2020).
#[test]
fn version_update_after_ack() {
    check(
        Sotw,
        "EDS",
        "
        commit EDS/foo=1 EDS/bar=1
        -> EDS foo,bar v= @
        <- EDS bar=1 foo=1 v=X @A
        -> EDS foo,bar v=X @A
        status EDS
        = EDS synced sent=X acked=X
        ",
    );
}

/// SOTW-07: the text before that figure. The response may also come later, when the resources
/// become available.
#[test]
fn missing_resource_is_sent_when_it_is_created() {
    check(
        Sotw,
        "EDS",
        "
        -> EDS foo,bar v= @
        wait 60000
        commit EDS/foo=1 EDS/bar=1
        <- EDS bar=1 foo=1 v=X @A
        -> EDS foo,bar v=X @A
        status EDS
        = EDS synced sent=X acked=X
        ",
    );
}

/// SOTW-20, SOTW-21, SOTW-23, SOTW-28: figure "No version update after NACK" (simple-nack, 2018 and
/// 2020).
#[test]
fn no_version_update_after_nack() {
    check(
        Sotw,
        "EDS",
        "
        commit EDS/foo=bad
        -> EDS foo v= @
        <- EDS foo=bad v=X @A
        -> EDS foo v= @A nack
        status EDS
        = EDS nacked sent=X nack=13 rejected
        wait 60000
        ",
    );
}

/// SOTW-13, SOTW-23, SOTW-27: figure "ACK after NACK" (later-ack, 2018 and 2020).
#[test]
fn ack_after_nack_accepts_the_corrected_version() {
    check(
        Sotw,
        "EDS",
        "
        commit EDS/foo=bad
        -> EDS foo v= @
        <- EDS foo=bad v=X @A
        -> EDS foo v= @A nack
        commit EDS/foo=good
        <- EDS foo=good v=Y @B
        -> EDS foo v=Y @B
        status EDS
        = EDS synced sent=Y acked=Y
        ",
    );
}

/// SOTW-25, SOTW-42, SOTW-49: figure "Multiple EDS requests on the same stream" (eds-same-stream,
/// 2018 and 2020). The figure sends both resources again, but only the new one is required
/// (SOTW-75).
#[test]
fn added_endpoint_is_sent_on_the_same_stream() {
    check(
        Sotw,
        "EDS",
        "
        commit EDS/foo=1 EDS/bar=1
        -> EDS foo v= @
        <- EDS foo=1 v=X @A
        -> EDS foo v=X @A
        -> EDS foo,bar v=X @A
        <- EDS bar=1 v=X @B
        -> EDS foo,bar v=X @B
        ",
    );
}

/// SOTW-11, SOTW-49, ADS-24: figure "Multiple EDS requests on distinct streams"
/// (eds-distinct-stream, 2018 and 2020). Each stream has its own nonces and receives only its own
/// resource.
#[test]
fn each_stream_gets_only_its_own_endpoint() {
    check(
        Sotw,
        "EDS",
        "
        commit EDS/foo=1 EDS/bar=1
        -> EDS foo v= @
        <- EDS foo=1 v=X @A
        b: open EDS
        b: -> EDS bar v= @
        b: <- EDS bar=1 v=X @A
        -> EDS foo v=X @A
        b: -> EDS bar v=X @A
        commit EDS/bar=2
        b: <- EDS bar=2 v=Y @B
        b: -> EDS bar v=Y @B
        commit EDS/foo=2
        <- EDS foo=2 v=Z @B
        ",
    );
}

/// SOTW-25, SOTW-40, SOTW-42, ADS-01, C1: figure "CDS response leads to EDS resource hint update"
/// (cds-eds-resources, 2018 and 2020). The hint in the figure is the subscription: the server sends
/// the added endpoints.
#[test]
fn endpoints_added_for_new_cluster_are_sent() {
    check(
        Sotw,
        "",
        "
        commit EDS/foo=1 EDS/bar=1
        commit CDS/foo=1>EDS/foo
        m: open CDS
        m: -> CDS v= @
        m: <- CDS foo=1 v=L @C
        m: ack CDS
        -> EDS foo v= @
        <- EDS foo=1 v=X @A
        -> EDS foo v=X @A
        commit CDS/bar=1>EDS/bar
        m: <- CDS bar=1 foo=1 v=M @D
        -> EDS foo,bar v=X @A
        <- EDS bar=1 v=X @B
        -> EDS foo,bar v=X @B
        m: ack CDS
        ",
    );
}

/// SOTW-20, SOTW-34, SOTW-35: figure "EDS update race motivates nonces" (update-race, 2018 and 2020). The
/// request at X does not reject Y, and the server answers the names in it.
#[test]
fn request_with_older_nonce_is_not_a_nack_and_adds_names() {
    check(
        Sotw,
        "EDS",
        "
        commit EDS/foo=1 EDS/bar=1
        -> EDS foo v= @
        <- EDS foo=1 v=X @A
        -> EDS foo v=X @A
        commit EDS/foo=2
        <- EDS foo=2 v=Y @B
        -> EDS foo,bar v=X @A
        status EDS
        = EDS pending sent=Y acked=X
        -> EDS foo,bar v=Y @B
        <- EDS bar=1 v=Y @C
        -> EDS foo,bar v=Y @C
        status EDS
        = EDS synced sent=Y acked=Y
        ",
    );
}

/// SOTW-33, SOTW-34, SOTW-38: figure "Requests become stale" (stale-requests, 2018 and 2020). One request is
/// replaced by a later one at the same version. The nonce of another is no longer the last.
#[test]
fn superseded_requests_are_stale() {
    check(
        Sotw,
        "EDS",
        "
        commit EDS/foo=1
        -> EDS foo v= @
        <- EDS foo=1 v=X @A
        -> EDS foo v=X @A
        -> EDS foo,bar v=X @A
        commit EDS/foo=2 EDS/bar=2
        <- EDS bar=2 foo=2 v=Y @B
        -> EDS foo,baz v=X @A
        -> EDS foo,baz v=Y @B
        commit EDS/foo=3 EDS/baz=3
        <- EDS baz=3 foo=3 v=Z @C
        ",
    );
}

/// SOTW-12, ADS-01, ADS-05, CLI-E-16: figure "EDS/CDS multiplexed on an ADS stream" (ads, 2018 and 2020).
/// Each type has its own version and nonce. The endpoints do not wait for the ACK of the clusters.
#[test]
fn types_on_one_stream_have_separate_versions_and_nonces() {
    check(
        Sotw,
        "",
        "
        commit EDS/foo=1
        -> CDS v= @
        <- CDS v=X @A
        -> CDS v=X @A
        commit CDS/foo=1>EDS/foo
        <- CDS foo=1 v=Y @B
        -> EDS foo v= @
        <- EDS foo=1 v=M @D
        -> EDS foo v=M @D
        -> CDS v=Y @B
        status CDS
        = CDS synced sent=Y acked=Y
        status EDS
        = EDS synced sent=M acked=M
        ",
    );
}

/// ADS-03, ADS-06, ADS-08: the example of X and Y under "Eventual consistency considerations" (2018 and
/// 2020), as one transaction. The server sends both clusters, then the route, then the state without the old
/// cluster.
#[test]
fn moved_route_is_sent_between_cluster_addition_and_removal() {
    check(
        Sotw,
        "",
        "
        commit CDS/x=1>EDS/x EDS/x=1 LDS/l=1>RDS/r RDS/r=x
        -> CDS
        <- CDS x=1
        -> EDS x
        <- EDS x=1
        ack EDS
        ack CDS
        -> LDS
        <- LDS l=1
        -> RDS r
        <- RDS r=x
        ack RDS
        ack LDS
        wait 10000
        commit CDS/y=1>EDS/y EDS/y=1 RDS/r=y -CDS/x -EDS/x
        <- CDS y=1 x=1
        -> EDS x,y @2
        <- EDS y=1
        ack EDS
        ack CDS
        <- RDS r=y
        ack RDS
        <- CDS y=1
        ack CDS
        ",
    );
}

/// DELTA-01, DELTA-10 to -12, DELTA-16, DELTA-21: figure "Incremental session example"
/// (incremental, 2018 and 2020). After a rejected update, the client subscribes to `wc`. By the
/// current rules (C2), it keeps its wildcard, and `wc` is sent whether or not the wildcard sent it
/// before.
#[test]
fn incremental_session_matches_the_protocol_figure() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/foo=0
        -> CDS
        <- CDS foo=0 v=X @A
        -> CDS @A
        commit CDS/bar=0
        <- CDS bar=0 v=Y @B
        -> CDS @B nack
        status CDS
        = CDS nacked sent=Y acked=X nack=13 rejected
        commit other:CDS/wc=0
        -> CDS +wc
        <- CDS -wc @C
        -> CDS @C
        scopes default,other
        <- CDS wc=0 @D
        -> CDS @D
        -> CDS +wc
        <- CDS wc=0 @E
        -> CDS @E
        ",
    );
}

/// DELTA-04, DELTA-58, DELTA-70, DELTA-72, C14: figure "Incremental reconnect example"
/// (incremental-reconnect, 2018 and 2020). Resources that the client still holds are not sent again. The
/// server does not rely on what it sent on the earlier stream.
#[test]
fn incremental_reconnect_resends_nothing_held() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/foo=0 CDS/bar=0
        -> CDS
        <- CDS bar=0 foo=0 @A
        -> CDS @A
        open CDS
        -> CDS irv=foo@held,bar@held
        <- CDS @A
        ack CDS
        open CDS
        -> CDS
        <- CDS bar=0 foo=0
        ",
    );
}

/// DELTA-46, DELTA-58: the same after the state has changed. Only the difference is sent.
#[test]
fn incremental_reconnect_to_newer_state_sends_only_difference() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/foo=0 CDS/bar=0 CDS/gone=0
        -> CDS
        <- CDS bar=0 foo=0 gone=0
        ack CDS
        open CDS
        commit CDS/foo=1 -CDS/gone CDS/new=0
        -> CDS irv=foo@1-00000000,bar@held,gone@1-00000000
        <- CDS foo=1 new=0 -gone
        ack CDS
        ",
    );
}

/// SOTW-43, SOTW-70, SOTW-75, DELTA-52: "Four Variants" and "Grouping Resources" (2020). One of many
/// resources changes, or is requested in addition. SotW sends all listeners and clusters. Other types, and
/// delta, send the one resource.
#[test]
fn changed_resource_is_sent_alone_or_with_full_state_by_type() {
    let check_three = |protocol, kind: &str, add: &str, all: &str, first: &str, changed: &str| {
        check(
            protocol,
            kind,
            &format!(
                "
                commit {kind}/a=1 {kind}/b=1 {kind}/c=1
                -> {kind} {add}
                <- {kind} a=1 b=1
                ack {kind}
                -> {kind} {all} @1
                <- {kind} {first}
                ack {kind}
                commit {kind}/b=2
                <- {kind} {changed}
                "
            ),
        );
    };
    for kind in ["LDS", "CDS"] {
        check_three(Sotw, kind, "a,b", "a,b,c", "a=1 b=1 c=1", "a=1 b=2 c=1");
        check_three(Delta, kind, "+a,b", "+c", "c=1", "b=2");
    }
    for kind in ["RDS", "EDS"] {
        check_three(Sotw, kind, "a,b", "a,b,c", "c=1", "b=2");
        check_three(Delta, kind, "+a,b", "+c", "c=1", "b=2");
    }
}

/// SOTW-46, DELTA-23, DELTA-28: "Unsubscribing From Resources" (2020). The client subscribes to A
/// and B, then to A only.
#[test]
fn shorter_name_list_unsubscribes_from_the_missing_name() {
    check(
        Sotw,
        "EDS",
        "
        commit EDS/a=1 EDS/b=1
        -> EDS a,b
        <- EDS a=1 b=1 v=X @A
        -> EDS a,b v=X @A
        -> EDS a v=X @A
        commit EDS/b=2
        wait 60000
        commit EDS/a=2
        <- EDS a=2
        ",
    );
    check(
        Delta,
        "EDS",
        "
        commit EDS/a=1 EDS/b=1
        -> EDS +a,b
        <- EDS a=1 b=1
        ack EDS
        -> EDS -b
        commit EDS/b=2
        wait 60000
        commit EDS/a=2
        <- EDS a=2
        ",
    );
}

/// SOTW-72, SOTW-77, SOTW-78, SOTW-85, DELTA-40, C3, C4: "Knowing When a Requested Resource Does Not Exist"
/// and "Deleting Resources" (2020). In SotW, only listeners and clusters can express it. In delta, the name
/// is in `removed_resources` (2020 has a resource without body). A resource that is created later is sent.
#[test]
fn absent_resource_is_reported_and_sent_after_creation() {
    check(
        Sotw,
        "EDS",
        "
        commit EDS/a=1
        -> EDS a,b
        <- EDS a=1
        ack EDS
        commit EDS/b=1
        <- EDS b=1
        ack EDS
        commit -EDS/b
        wait 60000
        ",
    );
    check(
        Delta,
        "EDS",
        "
        commit EDS/a=1
        -> EDS +a,b
        <- EDS a=1 -b
        ack EDS
        commit EDS/b=1
        <- EDS b=1
        ack EDS
        commit -EDS/b
        <- EDS -b
        ",
    );
}

/// DELTA-21, DELTA-25, DELTA-29: "Resource names", "Subscribing" and "Unsubscribing" under Incremental xDS
/// (2020). A name that the client subscribes to again is sent again. An alias works like a name. Superfluous
/// unsubscriptions are ignored.
#[test]
fn resubscription_resends_and_aliases_work_like_names() {
    check(
        Delta,
        "VHDS",
        "
        commit VHDS/r/v=1|r/v.test
        -> VHDS +r/v.test -r/phantom
        <- VHDS r/v=1
        ack VHDS
        -> VHDS +r/v.test
        <- VHDS r/v=1
        ack VHDS
        -> VHDS -r/phantom,r/v
        commit VHDS/r/v=2|r/v.test
        <- VHDS r/v=2
        ack VHDS
        -> VHDS -r/v.test
        commit VHDS/r/v=3|r/v.test
        ",
    );
}

/// SOTW-20, SOTW-45, P-02: figure of a rejection that the version does not show (error-detail-nack, current
/// text). The added resource is bad. The version is the one that the client acknowledged before.
#[test]
fn request_with_error_detail_at_same_version_is_a_nack() {
    check(
        Sotw,
        "EDS",
        "
        commit EDS/a=1 EDS/b=bad
        -> EDS a
        <- EDS a=1 v=X @A
        -> EDS a v=X @A
        -> EDS a,b v=X @A
        <- EDS b=bad v=X @B
        -> EDS a,b v=X @B nack
        status EDS
        = EDS nacked sent=X acked=X nack=13 rejected
        wait 60000
        ",
    );
}

/// SOTW-61 to -63, SOTW-65, C2: the current text's example of a client that adds a name to its wildcard,
/// drops the wildcard, and then drops the name. The last request equals the first, but is not a wildcard.
#[test]
fn sotw_wildcard_gains_a_name_and_ends_without_reopening() {
    check(
        Sotw,
        "CDS",
        "
        commit CDS/a=1 CDS/b=1
        -> CDS v= @
        <- CDS a=1 b=1 v=X @A
        -> CDS v=X @A
        -> CDS *,a v=X @A
        <- CDS a=1 b=1 v=X @B
        -> CDS *,a v=X @B
        commit CDS/b=2
        <- CDS a=1 b=2 v=Y @C
        -> CDS *,a v=Y @C
        -> CDS a v=Y @C
        commit CDS/b=3
        commit CDS/a=3
        <- CDS a=3 v=Z @D
        -> CDS a v=Z @D
        -> CDS v=Z @D
        commit CDS/a=4 CDS/b=4
        wait 60000
        ",
    );
}

/// SOTW-61, SOTW-62, SOTW-66: an empty list first subscribes to everything, and after a name to
/// nothing. On a new stream, it subscribes to everything again.
#[test]
fn empty_list_meaning_depends_on_earlier_names_of_the_stream() {
    check(
        Sotw,
        "CDS",
        "
        commit CDS/a=1
        -> CDS
        <- CDS a=1 v=X @A
        ack CDS
        -> CDS a v=X @A
        <- CDS a=1 v=X @B
        -> CDS v=X @B
        commit CDS/a=2
        open CDS
        -> CDS v=X
        <- CDS a=2 v=Y @A
        ",
    );
}

/// DELTA-31 to -33, DELTA-36: the current text's incremental example. The client opens a wildcard,
/// adds a name, drops `*`, and drops the name. Then it subscribes to nothing.
#[test]
fn incremental_wildcard_gains_a_name_and_ends() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/a=1 CDS/b=1
        -> CDS
        <- CDS a=1 b=1 @A
        -> CDS @A
        -> CDS +a
        <- CDS a=1 @B
        -> CDS @B
        commit CDS/b=2
        <- CDS b=2 @C
        -> CDS @C
        -> CDS -*
        commit CDS/b=3
        commit CDS/a=3
        <- CDS a=3 @D
        -> CDS @D
        -> CDS -a
        commit CDS/a=4 CDS/b=4
        wait 60000
        ",
    );
}

/// DELTA-24, DELTA-37, P-27: the current text's ambiguous case. The client unsubscribes from a name
/// beside a wildcard, and only the server knows whether the wildcard covers it.
#[test]
fn ambiguous_unsubscription_beside_wildcard_is_answered() {
    check(
        Delta,
        "CDS",
        "
        commit CDS/a=1
        -> CDS +*,a,b
        <- CDS a=1 -b @A
        -> CDS @A
        -> CDS -a
        <- CDS a=1 @B
        -> CDS @B
        -> CDS -b
        <- CDS -b @C
        -> CDS @C
        ",
    );
}
