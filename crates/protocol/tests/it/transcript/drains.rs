//! Listeners that drain: the client still subscribes to their old route tables, whose clusters stay.

use chancery_protocol::{
    Config,
    Protocol::{Delta, Sotw},
};

use crate::transcript::world::{check, check_with};

/// ADS-08: a write renames a route table and removes its old cluster. Envoy subscribes to both tables
/// until the old listener has drained. The old cluster and its endpoints stay until then.
#[test]
fn renamed_route_table_keeps_its_cluster_while_its_listener_drains() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1>EDS/a EDS/a=1 LDS/l=1>RDS/r RDS/r=a
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
        commit CDS/b=1>EDS/b EDS/b=1 LDS/l=2>RDS/s RDS/s=b -CDS/a -EDS/a -RDS/r
        <- CDS b=1
        -> EDS +b
        <- EDS b=1
        ack CDS
        ack EDS
        <- LDS l=2
        -> RDS +s
        <- RDS s=b
        ack LDS
        ack RDS
        <- RDS -r
        ack RDS
        wait 600000
        commit CDS/c=1
        <- CDS c=1
        ack CDS
        -> RDS -r
        <- CDS -a
        <- EDS -a
        ",
    );
}

/// ADS-08: the same with SotW, whose full states keep the old cluster.
#[test]
fn sotw_renamed_route_table_keeps_its_cluster_while_its_listener_drains() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1>EDS/a EDS/a=1 LDS/l=1>RDS/r RDS/r=a
        -> CDS
        <- CDS a=1
        -> EDS a
        <- EDS a=1 @E
        ack CDS
        ack EDS
        -> LDS
        <- LDS l=1
        -> RDS r
        <- RDS r=a @R
        ack LDS
        ack RDS
        wait 10000
        commit CDS/b=1>EDS/b EDS/b=1 LDS/l=2>RDS/s RDS/s=b -CDS/a -EDS/a -RDS/r
        <- CDS b=1 a=1
        -> EDS a,b @E
        <- EDS b=1
        ack CDS
        ack EDS
        <- LDS l=2
        -> RDS r,s @R
        <- RDS s=b @S
        ack LDS
        ack RDS
        wait 600000
        commit CDS/c=1
        <- CDS b=1 c=1 a=1
        ack CDS
        -> RDS s @S
        <- CDS b=1 c=1
        ",
    );
}

/// ADS-08, ADS-22: the drain time is limited. A later removal does not wait again for the same table.
#[test]
fn drain_keeps_clusters_for_a_bounded_time() {
    for (protocol, plus, b, none) in [(Delta, "+", "-a", "-b"), (Sotw, "", "b=1", "")] {
        check(
            protocol,
            "",
            &format!(
                "
                commit CDS/a=1 CDS/b=1 RDS/r=a RDS/s=b
                -> CDS
                <- CDS a=1 b=1
                ack CDS
                -> RDS {plus}r,s
                <- RDS r=a s=b
                ack RDS
                wait 10000
                commit -RDS/r -CDS/a
                {}
                wait 659999
                wait 1
                <- CDS {b}
                ack CDS
                commit -CDS/b
                <- CDS {none}
                ",
                if protocol == Delta {
                    "<- RDS -r
ack RDS"
                } else {
                    ""
                }
            ),
        );
    }
}

/// ADS-08: a cluster that was removed before the route table is not in the table.
#[test]
fn drain_keeps_no_cluster_that_was_removed_earlier() {
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
        commit -RDS/r -CDS/b
        ack RDS
        <- CDS -a
        ack CDS
        <- RDS -r
        ack RDS
        wait 60000
        -> RDS -r
        <- CDS -b
        ",
    );
}

/// ADS-08: a table that exists again keeps nothing.
#[test]
fn restored_route_table_keeps_no_cluster() {
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
        commit -RDS/r -CDS/a
        <- RDS -r
        ack RDS
        wait 20000
        commit RDS/r=b
        <- RDS r=b
        <- CDS -a
        ",
    );
}

/// ADS-08, DELTA-60: the virtual hosts of the old table stay. Those of other tables do not.
#[test]
fn drain_keeps_virtual_hosts_of_its_table() {
    check(
        Delta,
        "",
        "
        commit LDS/l=1>RDS/r RDS/r=1 VHDS/r/v=1 VHDS/t/w=1
        -> LDS
        <- LDS l=1
        -> RDS +r
        <- RDS r=1
        -> VHDS
        <- VHDS r/v=1 t/w=1
        ack LDS
        ack RDS
        ack VHDS
        wait 10000
        commit LDS/l=2>RDS/s RDS/s=1 VHDS/s/v=1 -RDS/r -VHDS/r/v -VHDS/t/w
        <- LDS l=2
        <- VHDS s/v=1
        -> RDS +s
        <- RDS s=1
        ack LDS
        ack VHDS
        ack RDS
        <- RDS -r
        ack RDS
        <- VHDS -t/w
        ack VHDS
        wait 60000
        -> RDS -r
        <- VHDS -r/v
        ",
    );
}

/// ADS-08: a client that resumes during the drain keeps the clusters of the old table.
#[test]
fn resumed_client_keeps_clusters_of_a_draining_listener() {
    check(
        Delta,
        "",
        "
        commit CDS/b=1 RDS/s=b
        -> CDS irv=a@1-00000000,b@held
        <- CDS
        ack CDS
        -> RDS +r,s irv=r@1-00000000,s@held
        <- RDS s=b -r
        ack RDS
        wait 60000
        -> RDS -r
        <- CDS -a
        ",
    );
}

/// ADS-08: the number of removals that are kept back is limited.
#[test]
fn drain_keeps_a_limited_number_of_clusters() {
    let config = Config { held_removals_max: 1, ..Config::DEFAULTS };
    check_with(
        Delta,
        "",
        config,
        "
        commit CDS/a=1 CDS/b=1 RDS/r=a
        -> CDS
        <- CDS a=1 b=1
        ack CDS
        -> RDS +r
        <- RDS r=a
        ack RDS
        wait 10000
        commit -RDS/r -CDS/a
        <- RDS -r
        ack RDS
        wait 20000
        commit -CDS/b
        <- CDS -b
        ",
    );
}

/// ADS-08: a write counts as accepted although removals are kept back for a draining listener.
#[test]
fn write_is_accepted_while_its_listener_drains() {
    check(
        Delta,
        "",
        "
        commit CDS/a=1 CDS/b=1 RDS/r=a RDS/s=b
        -> CDS
        <- CDS a=1 b=1
        ack CDS
        -> RDS +r,s
        <- RDS r=a s=b
        ack RDS
        wait 10000
        commit -RDS/r -CDS/a
        <- RDS -r
        acceptance
        = CDS:accepted RDS:unknown
        ack RDS
        wait 60000
        acceptance
        = CDS:accepted RDS:accepted
        ",
    );
}

/// ADS-08: the server has announced the removal of the old table, so a client that reconnects no longer lists it.
/// The subscription shows that the client still uses the table.
#[test]
fn reconnected_client_keeps_clusters_of_a_draining_listener() {
    check(
        Delta,
        "",
        "
        commit CDS/b=1 RDS/s=b
        -> CDS irv=a@1-00000000,b@held
        <- CDS
        ack CDS
        -> RDS +r,s irv=s@held
        <- RDS s=b -r
        ack RDS
        wait 60000
        commit CDS/c=1
        <- CDS c=1
        ack CDS
        -> RDS -r
        <- CDS -a
        ",
    );
}

/// ADS-08: the same if the listener was removed. The client then holds no table that exists.
#[test]
fn reconnected_client_without_tables_keeps_clusters_of_a_draining_listener() {
    check(
        Delta,
        "",
        "
        commit CDS/b=1
        -> CDS irv=a@1-00000000,b@held
        <- CDS
        ack CDS
        -> RDS +r
        <- RDS -r
        ack RDS
        wait 60000
        -> RDS -r
        <- CDS -a
        ",
    );
}

/// ADS-08, ADS-22: after a reconnect, the time counts from the start of the stream.
#[test]
fn reconnected_client_keeps_clusters_for_a_bounded_time() {
    check(
        Delta,
        "",
        "
        commit CDS/b=1 RDS/s=b
        -> CDS irv=a@1-00000000,b@held
        <- CDS
        -> RDS +r,s irv=s@held
        wait 4000
        ack CDS
        <- RDS s=b -r
        ack RDS
        wait 655999
        wait 1
        <- CDS -a
        ",
    );
}

/// ADS-08: a table that the client requests later does not exist yet. A new client has no table.
#[test]
fn missing_table_without_a_drain_keeps_no_cluster() {
    check(
        Delta,
        "",
        "
        commit CDS/b=1 RDS/s=b
        -> CDS irv=a@1-00000000,b@held
        <- CDS
        ack CDS
        -> RDS +s irv=s@held
        <- RDS s=b
        ack RDS
        -> RDS +r
        <- RDS -r
        ack RDS
        wait 1000
        <- CDS -a
        ",
    );
    check(
        Delta,
        "",
        "
        commit CDS/a=1 CDS/b=1 RDS/s=b
        -> CDS
        <- CDS a=1 b=1
        ack CDS
        -> RDS +r,s
        <- RDS s=b -r
        ack RDS
        wait 10000
        commit -CDS/a
        <- CDS -a
        ",
    );
}

/// Runs a SotW script that begins while a renamed route table drains. The client has the clusters `a` and `b` in
/// version `H`, although the write has deleted `a`. `V` is the version of the other types.
fn sotw_while_draining(script: &str) {
    let before = "
        commit CDS/a=1>EDS/a EDS/a=1 LDS/l=1>RDS/r RDS/r=a
        -> CDS
        <- CDS a=1 v=P
        -> EDS a
        <- EDS a=1 @E
        ack CDS
        ack EDS
        -> LDS
        <- LDS l=1
        -> RDS r
        <- RDS r=a @R
        ack LDS
        ack RDS
        wait 10000
        commit CDS/b=1>EDS/b EDS/b=1 LDS/l=2>RDS/s RDS/s=b -CDS/a -EDS/a -RDS/r
        <- CDS b=1 a=1 v=H
        -> EDS a,b @E
        <- EDS b=1 v=V
        ack CDS
        ack EDS
        <- LDS l=2 v=V
        -> RDS r,s @R
        <- RDS s=b v=V
        ack LDS
        ack RDS
        wait 4000
        ";
    check(Sotw, "", &format!("{before}{script}"));
}

/// The reconnect of the client of [`sotw_while_draining`], after the request for clusters.
const RECONNECT: &str = "
        -> EDS a,b v=V
        <- EDS b=1
        ack EDS
        -> LDS v=V
        <- LDS l=2
        ack LDS
        -> RDS r,s v=V
        <- RDS s=b @T
        ack RDS
        ";

/// ADS-08: another replica does not know the removed cluster that the client has. It sends no clusters until the
/// client no longer needs the old one.
#[test]
fn sotw_client_of_another_replica_keeps_clusters_of_a_draining_listener() {
    sotw_while_draining(&format!(
        "
        open
        -> CDS v=H
        {RECONNECT}
        wait 500000
        commit EDS/b=2 RDS/s=c
        <- EDS b=2
        ack EDS
        <- RDS s=c @U
        ack RDS
        wait 60000
        acceptance
        = CDS:accepted EDS:accepted LDS:accepted RDS:accepted
        -> RDS s @U
        <- CDS b=1
        "
    ));
}

/// ADS-08, ADS-22: the time counts from the start of the stream.
#[test]
fn sotw_client_of_another_replica_keeps_clusters_for_a_bounded_time() {
    sotw_while_draining(&format!(
        "
        open
        -> CDS v=H
        {RECONNECT}
        wait 659999
        wait 1
        <- CDS b=1
        "
    ));
}

/// ADS-08, ADS-22: without a table that drains, the removal waits for the routes, as on one stream.
#[test]
fn sotw_client_of_another_replica_drops_clusters_that_nothing_needs() {
    sotw_while_draining(
        "
        open
        -> CDS v=H
        -> RDS s v=V
        <- RDS s=b
        ack RDS
        wait 999
        wait 1
        <- CDS b=1
        ",
    );
    sotw_while_draining(
        "
        open
        -> CDS v=H
        -> RDS s v=V
        <- RDS s=b
        wait 4999
        wait 1
        <- CDS b=1
        ",
    );
}

/// SOTW-70: another replica cannot send a full state with a cluster that it does not know. A client that may lack
/// anything gets the full state at once.
#[test]
fn sotw_client_of_another_replica_gets_changed_clusters() {
    sotw_while_draining(&format!(
        "
        open
        -> CDS v=H
        {RECONNECT}
        wait 60000
        commit CDS/c=1
        <- CDS b=1 c=1
        ack CDS
        wait 700000
        "
    ));
    for version in ["P", "1-7-held-00000000", "2-8-held-00000000", "2-7", ""] {
        sotw_while_draining(&format!(
            "
            open
            -> CDS v={version}
            <- CDS b=1
            "
        ));
    }
    sotw_while_draining(
        "
        open
        commit CDS/c=1
        -> CDS v=H
        <- CDS b=1 c=1
        ",
    );
    sotw_while_draining(
        "
        open
        -> CDS b v=H
        <- CDS b=1
        ",
    );
}

/// ADS-24: on a stream of its own, nothing waits for other types.
#[test]
fn sotw_client_of_another_replica_keeps_no_clusters_without_ads() {
    sotw_while_draining(
        "
        open CDS
        -> CDS v=H
        <- CDS b=1
        ",
    );
}

/// ADS-08: the replica of the old stream knows the removed cluster, and sends it with later changes.
#[test]
fn sotw_client_that_returns_keeps_clusters_of_a_draining_listener() {
    sotw_while_draining(
        "
        resume
        -> CDS v=H
        <- CDS b=1 a=1
        -> EDS a,b v=V
        <- EDS b=1
        -> LDS v=V
        -> RDS r,s v=V
        ack CDS
        ack EDS
        <- LDS l=2
        <- RDS s=b @T
        ack LDS
        ack RDS
        wait 500000
        commit CDS/c=1
        <- CDS b=1 c=1 a=1
        ack CDS
        -> RDS s @T
        <- CDS b=1 c=1
        ",
    );
}
