//! Children that are sent again so that a client can finish warming, and parts that are rejected late.

use chancery_protocol::{Config, Protocol::*};

use crate::world::{check, check_with};

/// ADS-12, ADS-14: a changed cluster that has no endpoints to ask for does not make a request that
/// repeats itself for another's sake bring all endpoints.
#[test]
fn a_static_cluster_brings_no_endpoints() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1>EDS/a CDS/static=1 EDS/a=1
        -> CDS
        <- CDS a=1 static=1
        -> EDS a
        <- EDS a=1
        ack EDS
        ack CDS
        commit CDS/static=2
        <- CDS a=1 static=2
        ack CDS
        commit CDS/a=2>EDS/a
        <- CDS a=2 static=2
        <- EDS a=1
        ack EDS
        -> EDS a @5
        ack CDS
        commit CDS/a=3>EDS/a CDS/static=3
        <- CDS a=3 static=3
        <- EDS a=1
        ack EDS
        -> EDS a @7
        ack CDS
        ",
    );
}

/// ADS-18: the same for a listener that is asked for by its name.
#[test]
fn a_named_listener_gets_its_routes_again() {
    check(
        Delta,
        "",
        "
        commit LDS/l=1>RDS/r RDS/r=1
        -> LDS +l,m
        <- LDS l=1 -m
        -> RDS +r
        <- RDS r=1
        ack LDS
        ack RDS
        commit LDS/m=1>RDS/r
        <- LDS m=1
        ack LDS
        commit LDS/l=2>RDS/r
        <- LDS l=2
        <- RDS r=1
        ",
    );
}

/// DELTA-19, ADS-09: a part that is rejected after a later one was acknowledged is rejected: clusters
/// that the old routes use stay.
#[test]
fn a_part_may_be_rejected_after_a_later_one_was_acknowledged() {
    let config = Config { response_bytes_target: 1, ..Config::DEFAULTS };
    check_with(
        Delta,
        "",
        config,
        "
        commit CDS/a=1 RDS/r=1 RDS/s=1
        -> CDS
        <- CDS a=1
        ack CDS
        -> RDS +r,s
        <- RDS r=1
        <- RDS s=1
        -> RDS @3
        commit -CDS/a RDS/r=2 RDS/s=2
        <- RDS r=2
        <- RDS s=2
        -> RDS @5
        -> RDS @4 nack
        wait 30000
        commit RDS/r=3
        <- RDS r=3
        ack RDS
        <- CDS -a
        ",
    );
}
