//! References that move between resources in use: children that the client has are sent again.

use chancery_protocol::{
    Config,
    Protocol::{self, Delta, Sotw},
};

use crate::transcript::world::{check, check_with};

/// Moves references between two parents with a child each. The first parent then refers to the
/// child of the second one, which is deleted. A new parent refers to the child of the first one.
/// `again` lists the children that the client receives.
fn references_move(protocol: Protocol, parent: &str, child: &str, again: &str) {
    let (names, full) = match protocol {
        Sotw => ("x,y", "p1=2 p3=1"),
        Delta => ("+x,y", "p1=2 p3=1 -p2"),
        Protocol::Mcp => unreachable!("a test of xDS"),
    };
    let again = if again.is_empty() { String::new() } else { format!("<- {child} {again}") };
    check(
        protocol,
        "",
        &format!(
            "
            commit {parent}/p1=1>{child}/x {parent}/p2=1>{child}/y {child}/x=1 {child}/y=1
            -> {parent}
            <- {parent} p1=1 p2=1
            -> {child} {names}
            <- {child} x=1 y=1
            ack {parent}
            ack {child}
            wait 10000
            commit {parent}/p1=2>{child}/y {parent}/p3=1>{child}/x -{parent}/p2
            <- {parent} {full}
            {again}
            ack {parent}
            "
        ),
    );
}

/// ADS-11, CLI-E-12: clusters and their endpoints.
#[test]
fn endpoints_are_resent_when_clusters_swap_them() {
    references_move(Sotw, "CDS", "EDS", "x=1 y=1");
    references_move(Delta, "CDS", "EDS", "x=1 y=1");
}

/// ADS-19: clusters and their secrets.
#[test]
fn secrets_are_resent_when_clusters_swap_them() {
    references_move(Sotw, "CDS", "SDS", "x=1 y=1");
    references_move(Delta, "CDS", "SDS", "x=1 y=1");
}

/// ADS-18: listeners and their routes. In delta, a new listener uses the routes that the client
/// has.
#[test]
fn routes_are_resent_when_listeners_swap_them() {
    references_move(Sotw, "LDS", "RDS", "x=1 y=1");
    references_move(Delta, "LDS", "RDS", "y=1");
}

/// ADS-12: scopes and their routes. Envoy drops the routes of the first scope and subscribes to them for the
/// new scope. Its list of names is unchanged, so without a response the new scope never has routes.
#[test]
fn routes_are_resent_when_scopes_swap_them() {
    references_move(Sotw, "SRDS", "RDS", "x=1 y=1");
    references_move(Delta, "SRDS", "RDS", "y=1");
}

/// ADS-19: listeners and their secrets. The new listener refers to a secret that Envoy holds, with a source
/// configuration of its own. In delta, Envoy waits for the secret and sends no request.
#[test]
fn secrets_are_resent_when_listeners_swap_them() {
    references_move(Sotw, "LDS", "SDS", "x=1 y=1");
    references_move(Delta, "LDS", "SDS", "x=1 y=1");
}

/// ADS-19: listeners and the extensions of their filters.
#[test]
fn extensions_are_resent_when_listeners_swap_them() {
    references_move(Sotw, "LDS", "ECDS", "x=1 y=1");
    references_move(Delta, "LDS", "ECDS", "y=1");
}

/// DELTA-53, OPS-12: names count towards the size of a response like resources, whether the
/// resources were removed or never existed.
#[test]
fn removed_names_are_split_over_responses() {
    // A name of one byte takes three.
    let config = Config { response_bytes_target: 6, ..Config::DEFAULTS };
    check_with(
        Delta,
        "",
        config,
        "
        -> EDS +a,b,c,d,e
        <- EDS -a -b
        <- EDS -c -d
        <- EDS -e
        ack EDS
        ",
    );
}

/// DELTA-63, OPS-12: the same for names that an alias reports as absent.
#[test]
fn absent_names_are_split_over_responses() {
    let config = Config { response_bytes_target: 16, ..Config::DEFAULTS };
    check_with(
        Delta,
        "",
        config,
        "
        -> VHDS +r/a,r/b,r/c
        <- VHDS ~r/a
        <- VHDS ~r/b
        <- VHDS ~r/c
        ",
    );
}

/// SVC-05, SOTW-79: in SotW, the type of virtual hosts is like an unknown type. A resource that
/// does not exist gets no answer.
#[test]
fn a_virtual_host_that_does_not_exist_is_not_answered_in_sotw() {
    check(
        Sotw,
        "",
        "
        -> VHDS nope
        commit VHDS/nope=1
        <- VHDS nope=1
        ack VHDS
        ",
    );
}

/// DELTA-21, DELTA-40: no resource has an empty name. A client that subscribes to the empty name
/// learns that.
#[test]
fn an_empty_name_is_answered_as_absent() {
    let mut session = chancery_protocol::Session::new(
        chancery_protocol::StreamKind { protocol: Delta, type_url: None },
        std::sync::Arc::new(Config::DEFAULTS),
    );
    let state = chancery_model::State::new(chancery_model::Incarnation(7));
    let view = chancery_view::View::resolve(&state, &[]);
    let request = chancery_protocol::DeltaRequest {
        type_url: chancery_model::types::ENDPOINT.to_owned(),
        subscribe: vec![String::new()].into(),
        ..Default::default()
    };
    session.handle_request(chancery_protocol::Request::Delta(request), Some(&view), 0).unwrap();
    let response = session.poll(Some(&view), &chancery_view::Differ::new(), 0).unwrap();
    assert_eq!(response.n_resources(), 0);
    let removed: Vec<&str> = response.removed().iter().map(|name| name.as_str()).collect();
    assert_eq!(removed, [""]);
}

/// SOTW-90, DELTA-51: a resource is no longer shadowed by another scope. It is sent even with equal
/// bytes, because the client does not have its version. A new client would get this version, too.
#[test]
fn unshadowed_resource_is_sent_for_its_version() {
    for (protocol, names) in [(Sotw, "x"), (Delta, "+x")] {
        check(
            protocol,
            "",
            &format!(
                "
                scopes a,default
                commit EDS/x=1
                -> EDS {names}
                <- EDS x=1
                ack EDS
                commit a:EDS/x=1
                <- EDS x=1
                ack EDS
                commit -a:EDS/x
                <- EDS x=1
                ack EDS
                "
            ),
        );
    }
}

/// ADS-12: a repeated request for secrets is answered if the changed clusters are known to have
/// endpoints, but no secrets.
#[test]
fn a_repeated_request_for_children_of_an_unknown_type_is_answered() {
    check(
        Sotw,
        "",
        "
        commit CDS/c=1>EDS/c EDS/c=1 SDS/x=1
        -> CDS
        <- CDS c=1
        -> EDS c
        <- EDS c=1
        -> SDS x
        <- SDS x=1 @A
        ack EDS
        ack SDS
        ack CDS
        commit CDS/c=2>EDS/c
        <- CDS c=2
        <- EDS c=1
        ack EDS
        ack CDS
        -> SDS x @A
        <- SDS x=1
        ack SDS
        -> SDS x
        ",
    );
}

/// ADS-11, ADS-19: secrets are sent again after the endpoints of their cluster, whether these wait
/// for an ACK or for a request. Envoy requests the secrets of a cluster when it has its endpoints.
#[test]
fn secrets_are_resent_after_the_endpoints_of_their_cluster() {
    for protocol in [Sotw, Delta] {
        let (c_and_d, d, x) = match protocol {
            Sotw => ("c=2 d=1", "c,d", "x"),
            Delta => ("d=1", "+d", "+x"),
            Protocol::Mcp => unreachable!("a test of xDS"),
        };
        let c = if protocol == Delta { "+c" } else { "c" };
        check(
            protocol,
            "",
            &format!(
                "
                commit CDS/c=1>EDS/c>SDS/x EDS/c=1 SDS/x=1
                -> CDS
                <- CDS c=1
                -> EDS {c}
                <- EDS c=1
                -> SDS {x}
                <- SDS x=1
                ack EDS
                ack SDS
                ack CDS
                commit EDS/c=2
                <- EDS c=2
                commit CDS/c=2>EDS/c>SDS/x
                <- CDS c=2
                ack EDS
                <- EDS c=2
                <- SDS x=1
                ack EDS
                ack SDS
                ack CDS
                commit CDS/d=1>EDS/d>SDS/x EDS/d=1
                <- CDS {c_and_d}
                -> EDS {d}
                <- EDS d=1
                <- SDS x=1
                "
            ),
        );
    }
}
