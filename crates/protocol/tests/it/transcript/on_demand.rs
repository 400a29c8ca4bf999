//! Delta: virtual hosts, aliases, and on-demand subscriptions.

use chancery_protocol::Protocol::Delta;

use crate::transcript::check;

/// DELTA-29: a client can subscribe to an alias.
#[test]
fn subscription_to_alias_gets_the_resource() {
    check(
        Delta,
        "EDS",
        "
        commit EDS/a=1|also
        -> EDS +also,a
        <- EDS a=1
        ack EDS
        -> EDS -a
        commit EDS/a=2|also
        <- EDS a=2
        ack EDS
        commit EDS/a=3
        <- EDS -also
        ",
    );
}

/// DELTA-60 to -63, DELTA-66, CLI-E-40, P-50: the server reports an unknown virtual host with an
/// alias. The name of a route may contain slashes.
#[test]
fn unknown_virtual_host_is_reported_by_an_alias() {
    check(
        Delta,
        "VHDS",
        "
        commit VHDS/team/r/v=1|team/r/a.test
        -> VHDS
        <- VHDS team/r/v=1
        ack VHDS
        -> VHDS +team/r/a.test,team/r/b.test
        <- VHDS team/r/v=1 ~team/r/b.test
        ",
    );
}

/// DELTA-68, CLI-E-40, P-52: an on-demand subscription to a cluster is answered at once and stays,
/// even if the cluster does not exist.
#[test]
fn on_demand_cluster_is_answered_at_once() {
    check(
        Delta,
        "CDS",
        "
        -> CDS +late
        <- CDS -late
        ack CDS
        commit CDS/late=1 CDS/other=1
        <- CDS late=1
        ",
    );
}

/// DELTA-47, DELTA-63: Envoy claims to hold an unknown virtual host. The server reports its absence
/// once.
#[test]
fn held_unknown_virtual_host_is_reported_once() {
    check(
        Delta,
        "VHDS",
        "
        commit VHDS/r/v=1
        -> VHDS +*,r/x irv=r/x@none
        <- VHDS r/v=1 ~r/x
        ",
    );
}

/// DELTA-47: a removed name that is now an alias is removed in a response of its own.
#[test]
fn name_that_became_an_alias_is_removed_in_separate_response() {
    check(
        Delta,
        "VHDS",
        "
        commit VHDS/r/v=1 VHDS/r/d=1
        -> VHDS
        <- VHDS r/d=1 r/v=1
        ack VHDS
        commit VHDS/r/v=2|r/d -VHDS/r/d
        <- VHDS r/v=2
        ack VHDS
        <- VHDS -r/d
        ",
    );
}

/// DELTA-42: a resource that was subscribed by an alias is removed by its name and by the alias.
#[test]
fn removal_lists_the_resource_name_and_the_alias() {
    check(
        Delta,
        "VHDS",
        "
        commit VHDS/r/v=1|r/a.test
        -> VHDS +r/a.test
        <- VHDS r/v=1
        ack VHDS
        commit -VHDS/r/v
        <- VHDS -r/v -r/a.test
        ",
    );
}

/// DELTA-42, DELTA-63: a virtual host is deleted, and the client requests it before the server sent the
/// removal. The server sends both answers. First the name does not exist, which Envoy does not treat as a
/// removal; then the resource is removed.
#[test]
fn deleted_virtual_host_held_by_client_is_removed() {
    for (opening, again, absent) in [
        ("-> VHDS +r/v", "+r/v", "~r/v"),
        ("-> VHDS +r/a.test", "+r/a.test", "~r/a.test"),
        ("-> VHDS", "+r/v", "~r/v"),
        ("-> VHDS +*,r/a.test", "+r/a.test", "~r/a.test"),
    ] {
        check(
            Delta,
            "",
            &format!(
                "
                commit VHDS/r/v=1|r/a.test
                {opening}
                <- VHDS r/v=1
                commit -VHDS/r/v
                -> VHDS {again}
                <- VHDS {absent}
                ack VHDS
                wait 1000
                <- VHDS -r/v
                ack VHDS
                wait 60000
                commit VHDS/r/v=2|r/a.test
                <- VHDS r/v=2
                "
            ),
        );
    }
}

/// DELTA-46: a virtual host that a client only claims to hold, and that no longer exists, is
/// removed.
#[test]
fn deleted_virtual_host_with_initial_version_only_is_removed() {
    check(
        Delta,
        "",
        "
        commit VHDS/r/v=1
        -> VHDS +r/v irv=r/v@held,r/gone@1-00000000
        <- VHDS r/v=1 -r/gone
        ",
    );
}

/// DELTA-42, DELTA-47: a deleted virtual host reappears, or is requested by its other name, before
/// its removal was sent.
#[test]
fn virtual_host_recreated_before_removal_is_not_removed() {
    check(
        Delta,
        "",
        "
        commit VHDS/r/v=1|r/a.test
        -> VHDS +r/a.test
        <- VHDS r/v=1
        commit -VHDS/r/v
        -> VHDS +r/a.test
        <- VHDS ~r/a.test
        commit VHDS/r/v=2|r/a.test
        ack VHDS
        <- VHDS r/v=2
        ack VHDS
        wait 60000
        ",
    );
    check(
        Delta,
        "",
        "
        commit VHDS/r/v=1|r/a.test
        -> VHDS +r/a.test
        <- VHDS r/v=1
        ack VHDS
        wait 1000
        -> RDS +r
        <- RDS -r
        commit RDS/r=1 -VHDS/r/v
        ack RDS
        <- RDS r=1
        -> VHDS +r/v
        <- VHDS ~r/v
        ack VHDS
        ack RDS
        <- VHDS -r/v -r/a.test
        ",
    );
}

/// DELTA-47, DELTA-64: two virtual hosts with the same domain are sent in separate responses.
#[test]
fn alias_occurs_once_in_a_response() {
    check(
        Delta,
        "VHDS",
        "
        commit VHDS/r/v1=1|r/a VHDS/r/v3=1|r/b
        commit VHDS/r/v2=1|r/a
        -> VHDS
        <- VHDS r/v1=1
        <- VHDS r/v2=1 r/v3=1
        ",
    );
}
