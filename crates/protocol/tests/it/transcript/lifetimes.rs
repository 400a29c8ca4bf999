//! Lifetimes of resources and their renewal.
//!
//! The lifetimes are 3 s. A renewal is due after 845 ms to 938 ms, which depends on the stream.

use chancery_protocol::{
    Config,
    Protocol::{Delta, Sotw},
};

use crate::transcript::{check, world::check_with};

/// TTL-02: a client without the feature receives neither lifetimes nor heartbeats. In SotW, the
/// resource stays bare (SOTW-113, CLI-G-18).
#[test]
fn lifetime_is_sent_only_to_clients_with_the_feature() {
    for (protocol, features) in [
        (Delta, "x"),
        (Delta, "xds.config.resource-in-sotw"),
        (Sotw, "x"),
        (Sotw, "xds.config.supports-resource-ttl"),
        (Sotw, "xds.config.resource-in-sotw"),
    ] {
        let script = "
            commit CDS/a=1;ttl=3000
            -> CDS
            <- CDS a=1
            ack CDS
            wait 60000
        ";
        check(protocol, "CDS", &format!("features {features}\n{script}"));
    }
}

/// TTL-01, TTL-03, TTL-07, TTL-08: a heartbeat follows about every third of the lifetime. It has the
/// version that was sent, and no content. Resources without a lifetime have no heartbeats.
#[test]
fn delta_lifetime_is_renewed_by_heartbeats() {
    check(
        Delta,
        "",
        "
        features xds.config.supports-resource-ttl
        commit CDS/a=1;ttl=3000 CDS/b=1
        -> CDS
        <- CDS a=1;ttl=3000 b=1 v=X @A
        ack CDS
        wait 800
        wait 150
        <- CDS a;ttl=3000 v=X @B
        ack CDS
        wait 700
        wait 240
        <- CDS a;ttl=3000 v=X @C
        ack CDS
        status CDS
        = CDS synced sent=X acked=X
        ",
    );
}

/// TTL-05, TTL-06, SOTW-113, CLI-E-45: the version of the response stays the same, with a new nonce.
/// A response for a full-state type has all resources. Both spellings of the feature count.
#[test]
fn sotw_lifetime_is_renewed_with_the_same_version() {
    for feature in ["resource-in-sotw", "supports-resource-in-sotw"] {
        let script = "
            commit CDS/a=1;ttl=3000 CDS/b=1
            -> CDS
            <- CDS a=1;ttl=3000 b=1 v=X @A
            ack CDS
            wait 800
            wait 150
            <- CDS b=1 a;ttl=3000 v=X @B
            ack CDS
            wait 700
            wait 240
            <- CDS b=1 a;ttl=3000 v=X @C
        ";
        let features = format!("features xds.config.supports-resource-ttl xds.config.{feature}");
        check(Sotw, "", &format!("{features}\n{script}"));
    }
}

/// TTL-06, TTL-01: the SotW client of Envoy ignores heartbeats and removes the clusters that lack
/// content. It receives all content again, which renews the lifetime.
#[test]
fn sotw_envoy_is_renewed_with_content() {
    check(
        Sotw,
        "",
        "
        agent envoy/1.40.0
        features xds.config.supports-resource-ttl xds.config.resource-in-sotw
        commit CDS/a=1;ttl=3000 CDS/b=1 EDS/x=1;ttl=3000 EDS/y=1
        -> CDS
        <- CDS a=1;ttl=3000 b=1 v=X @A
        ack CDS
        -> EDS x,y
        <- EDS x=1;ttl=3000 y=1 v=X @B
        ack EDS
        wait 950
        <- CDS a=1;ttl=3000 b=1 v=X @C
        <- EDS x=1;ttl=3000 v=X @D
        ",
    );
    check(
        Delta,
        "",
        "
        agent envoy/1.40.0
        features xds.config.supports-resource-ttl xds.config.resource-in-sotw
        commit CDS/a=1;ttl=3000
        -> CDS
        <- CDS a=1;ttl=3000
        ack CDS
        wait 950
        <- CDS a;ttl=3000
        ",
    );
}

/// TTL-03, CLI-E-45: a SotW heartbeat has the version of the response. A client that received the
/// resource with another version receives the content once more.
#[test]
fn sotw_heartbeat_has_the_version_that_the_client_knows() {
    check(
        Sotw,
        "",
        "
        features xds.config.supports-resource-ttl xds.config.resource-in-sotw
        commit EDS/x=1;ttl=3000 EDS/y=1;ttl=3000
        -> EDS x,y
        <- EDS x=1;ttl=3000 y=1;ttl=3000 v=X @A
        ack EDS
        wait 950
        <- EDS x;ttl=3000 y;ttl=3000 v=X @B
        ack EDS
        commit EDS/y=2;ttl=3000
        <- EDS y=2;ttl=3000 v=Y @C
        ack EDS
        wait 950
        <- EDS x=1;ttl=3000 y=2;ttl=3000 v=Y @D
        ack EDS
        wait 950
        <- EDS x;ttl=3000 y;ttl=3000 v=Y @E
        ",
    );
}

/// TTL-04: the resources of a rejected response have no heartbeats, and the others have. A later
/// accepted version has heartbeats again.
#[test]
fn rejected_resource_has_no_heartbeat() {
    check(
        Delta,
        "",
        "
        features xds.config.supports-resource-ttl
        commit CDS/a=1;ttl=3000
        -> CDS
        <- CDS a=1;ttl=3000
        ack CDS
        commit CDS/b=1;ttl=3000
        <- CDS b=1;ttl=3000
        nack CDS
        wait 950
        <- CDS a;ttl=3000
        ack CDS
        wait 700
        commit CDS/b=2;ttl=3000
        <- CDS b=2;ttl=3000
        ack CDS
        wait 250
        <- CDS a;ttl=3000
        ack CDS
        wait 700
        <- CDS b;ttl=3000
        ",
    );
    check(
        Sotw,
        "",
        "
        features xds.config.supports-resource-ttl xds.config.resource-in-sotw
        commit CDS/a=1;ttl=3000
        -> CDS
        <- CDS a=1;ttl=3000
        nack CDS
        wait 60000
        ",
    );
}

/// TTL-04: a heartbeat has the content that was sent, while a change waits for other types.
#[test]
fn unsent_version_has_no_heartbeat() {
    check(
        Delta,
        "",
        "
        features xds.config.supports-resource-ttl
        commit CDS/c=1 LDS/l=1;ttl=3000
        -> CDS
        <- CDS c=1
        ack CDS
        -> LDS
        <- LDS l=1;ttl=3000 v=X
        ack LDS
        wait 500
        commit CDS/c=2 LDS/l=2;ttl=3000 LDS/m=1;ttl=3000
        <- CDS c=2
        wait 450
        <- LDS l;ttl=3000 v=X
        ack LDS
        ack CDS
        <- LDS l=2;ttl=3000 m=1;ttl=3000 v=Y
        ",
    );
}

/// SOTW-36, TTL-04: a renewal waits for the answer to the last response, because that answer may be
/// a rejection. The wait is bounded. A lifetime that has ended meanwhile needs the content.
#[test]
fn heartbeat_waits_for_the_answer_to_the_last_response() {
    let config = Config { ack_timeout_ms: 2_000, ..Config::DEFAULTS };
    let script = "
        features xds.config.supports-resource-ttl
        commit CDS/a=1;ttl=3000
        -> CDS
        <- CDS a=1;ttl=3000
        wait 1990
        wait 10
        <- CDS a;ttl=3000
        wait 1990
        ack CDS
        <- CDS a;ttl=3000
    ";
    check_with(Delta, "", config.clone(), script);
    let config = Config { ack_timeout_ms: 5_000, ..config };
    let script = "
        features xds.config.supports-resource-ttl
        commit CDS/a=1;ttl=3000
        -> CDS
        <- CDS a=1;ttl=3000
        wait 4990
        wait 10
        <- CDS a=1;ttl=3000
    ";
    check_with(Delta, "", config, script);
}

/// TTL-09: a changed lifetime is a change. A lifetime that ends needs the resource without it, and
/// then there are no heartbeats.
#[test]
fn changed_lifetime_is_sent_and_an_ended_one_has_no_heartbeats() {
    check(
        Delta,
        "",
        "
        features xds.config.supports-resource-ttl
        commit CDS/a=1;ttl=3000
        -> CDS
        <- CDS a=1;ttl=3000 v=X
        ack CDS
        commit CDS/a=1;ttl=6000
        <- CDS a=1;ttl=6000 v=Y
        ack CDS
        wait 1600
        wait 400
        <- CDS a;ttl=6000 v=Y
        ack CDS
        commit CDS/a=1
        <- CDS a=1 v=Z
        ack CDS
        wait 60000
        ",
    );
}

/// TTL-10, DELTA-69: a virtual host has neither a lifetime nor heartbeats.
#[test]
fn virtual_host_has_no_lifetime() {
    check(
        Delta,
        "VHDS",
        "
        features xds.config.supports-resource-ttl
        commit VHDS/r/v=1;ttl=3000|r/a.test
        -> VHDS
        <- VHDS r/v=1
        ack VHDS
        wait 60000
        ",
    );
}

/// TTL-13: a resource that was sent again needs no heartbeat with the others.
#[test]
fn resource_that_was_sent_again_is_renewed_later() {
    check(
        Delta,
        "",
        "
        features xds.config.supports-resource-ttl
        commit CDS/a=1;ttl=3000 CDS/b=1;ttl=3000
        -> CDS
        <- CDS a=1;ttl=3000 b=1;ttl=3000
        ack CDS
        wait 800
        commit CDS/b=2;ttl=3000
        <- CDS b=2;ttl=3000
        ack CDS
        wait 150
        <- CDS a;ttl=3000
        ack CDS
        wait 650
        wait 140
        <- CDS b;ttl=3000
        ",
    );
}

/// TTL-12, TTL-04: on a new stream, a resource with a lifetime that the client holds is sent again
/// at once. A heartbeat is not enough, because this stream has not sent it yet.
#[test]
fn lifetime_is_renewed_at_once_after_a_reconnect() {
    check(
        Delta,
        "",
        "
        features xds.config.supports-resource-ttl
        commit CDS/a=1;ttl=3000 CDS/b=1 EDS/x=1;ttl=3000 EDS/y=1
        -> CDS irv=a@held,b@held
        <- CDS a=1;ttl=3000
        ack CDS
        -> EDS +x,y irv=x@held,y@held
        <- EDS x=1;ttl=3000 y=1
        ack EDS
        wait 950
        <- CDS a;ttl=3000
        <- EDS x;ttl=3000
        ",
    );
    check(
        Delta,
        "EDS",
        "
        features xds.config.supports-resource-ttl
        commit EDS/x=1;ttl=3000 EDS/y=1
        -> EDS irv=x@held,y@held
        <- EDS x=1;ttl=3000
        ",
    );
}

/// TTL-11: renewals may stop. A resource whose lifetime may have ended meanwhile is sent with its
/// content. Clients accept no heartbeat for a resource that they dropped.
#[test]
fn renewal_after_a_long_pause_has_the_content() {
    check(
        Delta,
        "",
        "
        features xds.config.supports-resource-ttl
        commit CDS/a=1;ttl=3000 CDS/b=1;ttl=60000
        -> CDS
        <- CDS a=1;ttl=3000 b=1;ttl=60000
        ack CDS
        renewals off
        wait 1500
        renewals on
        <- CDS a;ttl=3000
        ack CDS
        renewals off
        wait 30000
        renewals on
        <- CDS a=1;ttl=3000 b;ttl=60000
        ",
    );
}

/// TTL-08, ADS-08: a resource whose removal waits for the types that refer to it is renewed.
#[test]
fn resource_is_renewed_until_its_removal_is_announced() {
    for protocol in [Delta, Sotw] {
        let script = "
            features xds.config.supports-resource-ttl xds.config.resource-in-sotw
            commit CDS/a=1;ttl=3000 CDS/b=1 LDS/l=1
            -> CDS
            <- CDS a=1;ttl=3000 b=1
            ack CDS
            -> LDS
            <- LDS l=1
            ack LDS
            wait 800
            commit -CDS/a LDS/l=2
        ";
        let rest = match protocol {
            Delta => {
                "
            <- LDS l=2
            wait 150
            <- CDS a;ttl=3000
            ack CDS
            ack LDS
            wait 100
            <- CDS -a
            ack CDS
            "
            }
            Sotw => {
                "
            <- LDS l=2
            wait 150
            <- CDS b=1 a;ttl=3000
            ack CDS
            ack LDS
            wait 100
            <- CDS b=1
            ack CDS
            "
            }
            chancery_protocol::Protocol::Mcp => unreachable!("a test of xDS"),
        };
        check(protocol, "", &format!("{script}{rest}wait 60000"));
    }
}

/// A client that unsubscribes receives no further heartbeats.
#[test]
fn unsubscribed_resource_has_no_heartbeat() {
    check(
        Delta,
        "",
        "
        features xds.config.supports-resource-ttl
        commit EDS/x=1;ttl=3000 EDS/y=1;ttl=3000
        -> EDS +x,y
        <- EDS x=1;ttl=3000 y=1;ttl=3000
        ack EDS
        -> EDS -y
        wait 950
        <- EDS x;ttl=3000
        ack EDS
        -> EDS -x
        wait 60000
        ",
    );
}

/// OPS-12: many heartbeats are split like any delta response.
#[test]
fn many_heartbeats_are_split() {
    let config = Config { response_bytes_target: 60, ..Config::DEFAULTS };
    let script = "
        features xds.config.supports-resource-ttl
        commit CDS/a=1;ttl=3000 CDS/b=1;ttl=3000 CDS/c=1;ttl=3000
        -> CDS
        <- CDS a=1;ttl=3000
        <- CDS b=1;ttl=3000
        <- CDS c=1;ttl=3000
        ack CDS
        wait 950
        <- CDS a;ttl=3000 b;ttl=3000
        <- CDS c;ttl=3000
    ";
    check_with(Delta, "", config, script);
}

/// TTL-08: a client that rejects a removal keeps the lifetimes of the other resources.
#[test]
fn rejected_removal_does_not_end_renewals() {
    check(
        Delta,
        "CDS",
        "
        features xds.config.supports-resource-ttl
        commit CDS/a=1;ttl=3000 CDS/b=1
        -> CDS
        <- CDS a=1;ttl=3000 b=1
        ack CDS
        commit -CDS/b
        <- CDS -b
        nack CDS
        wait 950
        <- CDS a;ttl=3000
        ",
    );
}

/// TTL-08: constant changes of other resources do not delay a renewal.
#[test]
fn renewal_precedes_changes() {
    check(
        Delta,
        "CDS",
        "
        features xds.config.supports-resource-ttl
        commit CDS/a=1;ttl=3000 CDS/b=1
        -> CDS
        <- CDS a=1;ttl=3000 b=1
        ack CDS
        commit CDS/b=2
        <- CDS b=2
        commit CDS/b=3
        wait 950
        ack CDS
        <- CDS a;ttl=3000
        ack CDS
        <- CDS b=3
        ",
    );
}
