//! Structured names (`xdstp:`): spellings, parameters, types, authorities.

use std::sync::Arc;

use chancery_protocol::{
    Config,
    Protocol::{Delta, Sotw},
};

use crate::transcript::{check, check_with};

/// XDSTP-03, XDSTP-04, XDSTP-11, P-73: a name is found in any spelling, and the answers repeat the one
/// that the client used. Plain names may be in the same request.
#[test]
fn delta_answer_uses_the_spelling_of_the_client() {
    check(
        Delta,
        "t.T",
        "
        commit t.T/xdstp://a/t.T/x%3A1?k=1&l=2=1 t.T/plain=1
        -> t.T +xdstp://%61/t.T/x:1?l=2&k=1,plain,xdstp://a/t.T/y?b=&a
        <- t.T plain=1 xdstp://%61/t.T/x:1?l=2&k=1=1 -xdstp://a/t.T/y?b=&a
        ack t.T
        commit t.T/xdstp://a/t.T/x%3A1?k=1&l=2=2 t.T/xdstp://a/t.T/y?a=&b==1
        <- t.T xdstp://%61/t.T/x:1?l=2&k=1=2 xdstp://a/t.T/y?b=&a=1
        ack t.T
        contents t.T
        = t.T plain=1:synced xdstp://%61/t.T/x:1?l=2&k=1=2:synced xdstp://a/t.T/y?b=&a=1:synced
        commit -t.T/xdstp://a/t.T/x%3A1?k=1&l=2
        <- t.T -xdstp://%61/t.T/x:1?l=2&k=1
        ack t.T
        -> t.T -xdstp://a/t.T/x%3a1?l=2&k=1 +xdstp://a/t.T/y?a=&b=
        <- t.T xdstp://a/t.T/y?a=&b==1
        ack t.T
        commit t.T/xdstp://a/t.T/x%3A1?k=1&l=2=3 t.T/xdstp://a/t.T/y?a=&b==3
        <- t.T xdstp://a/t.T/y?a=&b==3
        ",
    );
}

/// XDSTP-03: the scheme may be in upper case, in the names of resources and of globs.
#[test]
fn scheme_in_upper_case_finds_resources_and_collections() {
    check(
        Delta,
        "t.T",
        "
        commit t.T/xdstp://a/t.T/x=1 t.T/xdstp://a/t.T/p/y=1
        -> t.T +XDSTP://a/t.T/x,Xdstp://a/t.T/p/*
        <- t.T xdstp://a/t.T/p/y=1 XDSTP://a/t.T/x=1
        ack t.T
        commit t.T/xdstp://a/t.T/p/z=1 -t.T/xdstp://a/t.T/x
        <- t.T xdstp://a/t.T/p/z=1 -XDSTP://a/t.T/x
        ",
    );
}

/// XDSTP-03, SOTW-113: in SotW, the name is in the body. A client with support for wrappers gets its
/// spelling in the wrapper. A repeated list is not a new subscription.
#[test]
fn sotw_finds_names_in_any_spelling() {
    check(
        Sotw,
        "",
        "
        commit t.T/xdstp://a/t.T/x?k=1&l=2=1
        -> t.T xdstp://a/t.T/x?l=2&k=1
        <- t.T xdstp://a/t.T/x?k=1&l=2=1
        ack t.T
        commit t.T/xdstp://a/t.T/x?k=1&l=2=2
        <- t.T xdstp://a/t.T/x?k=1&l=2=2
        ack t.T
        features xds.config.resource-in-sotw
        commit t.T/xdstp://a/t.T/x?k=1&l=2=3
        <- t.T xdstp://a/t.T/x?l=2&k=1=3
        ack t.T
        -> t.T xdstp://a/t.T/x?k=1&l=2,xdstp://a/t.T/x?l=2&k=1#entry=e @3
        -> t.T xdstp://a/t.T/x?k=1&l=2 @3
        commit t.T/xdstp://a/t.T/x?k=1&l=2=4
        <- t.T xdstp://a/t.T/x?k=1&l=2=4
        ",
    );
}

/// XDSTP-09, XDSTP-12: parameters distinguish resources; directives do not.
#[test]
fn parameters_distinguish_resources_and_directives_do_not() {
    check(
        Delta,
        "t.T",
        "
        commit t.T/xdstp:///t.T/x=1 t.T/xdstp:///t.T/x?k=1=2
        -> t.T +xdstp:///t.T/x?k=1#entry=a,alt=b
        <- t.T xdstp:///t.T/x?k=1=2 -alt=b
        ack t.T
        -> t.T +xdstp:///t.T/x?k=2
        <- t.T -xdstp:///t.T/x?k=2
        ",
    );
}

/// XDSTP-05: the authority may be empty. C-core then writes the name without `//`.
#[test]
fn empty_authority_may_be_left_out() {
    check(
        Sotw,
        "",
        "
        commit t.T/xdstp:///t.T/x=1
        -> t.T xdstp:/t.T/x
        <- t.T xdstp:///t.T/x=1
        ack t.T
        commit t.T/xdstp:///t.T/x=2
        <- t.T xdstp:///t.T/x=2
        ",
    );
}

/// XDSTP-07: the last value of a key counts.
#[test]
fn last_value_of_duplicate_parameter_counts() {
    check(
        Delta,
        "t.T",
        "
        commit t.T/xdstp:///t.T/x?k=2=1
        -> t.T +xdstp:///t.T/x?k=1&k=2
        <- t.T xdstp:///t.T/x?k=1&k=2=1
        ",
    );
}

/// XDSTP-06: a name whose type differs from that of the request does not exist, whatever is stored.
#[test]
fn name_of_another_type_does_not_exist() {
    check(
        Delta,
        "t.T",
        "
        commit t.T/xdstp://a/t.U/x=1
        -> t.T +xdstp://a/t.U/x
        <- t.T -xdstp://a/t.U/x
        ack t.T
        -> t.T -xdstp://a/t.U/x +xdstp://a/
        <- t.T -xdstp://a/
        ",
    );
}

/// XDSTP-25, XDSTP-26: the names of several authorities may be in one request. Those of authorities that
/// are not configured do not exist.
#[test]
fn only_configured_authorities_exist() {
    let authorities = ["a", ""].map(str::to_owned).into();
    let config = Config { authorities: Some(Arc::new(authorities)), ..Config::DEFAULTS };
    let script = "
        commit t.T/xdstp://a/t.T/x=1 t.T/xdstp://b/t.T/x=1 t.T/xdstp:///t.T/x=1
        -> t.T +xdstp://a/t.T/x,xdstp://b/t.T/x,xdstp:///t.T/x
        <- t.T xdstp:///t.T/x=1 xdstp://a/t.T/x=1 -xdstp://b/t.T/x
        ack t.T
        commit t.T/xdstp://a/t.T/x=2 t.T/xdstp://b/t.T/x=2
        <- t.T xdstp://a/t.T/x=2
        ack t.T
        -> t.T +xdstp://b/t.T/*
        <- t.T -xdstp://b/t.T/*
        ";
    check_with(Delta, "t.T", config, script);
    let both = "
        commit t.T/xdstp://a/t.T/x=1 t.T/xdstp://b/t.T/x=1
        -> t.T xdstp://b/t.T/x,xdstp://a/t.T/x
        <- t.T xdstp://a/t.T/x=1 xdstp://b/t.T/x=1
        ";
    check(Sotw, "", both);
}

/// DELTA-24, XDSTP-03: the answer to the end of a named subscription uses the client's spelling, too.
#[test]
fn unsubscription_under_wildcard_is_answered_in_the_spelling_of_the_client() {
    check(
        Delta,
        "",
        "
        -> CDS +*
        <- CDS
        ack CDS
        -> CDS +xdstp:///envoy.config.cluster.v3.Cluster/x?b=&a
        <- CDS -xdstp:///envoy.config.cluster.v3.Cluster/x?b=&a
        ack CDS
        commit CDS/xdstp:///envoy.config.cluster.v3.Cluster/x?a=&b==1
        <- CDS xdstp:///envoy.config.cluster.v3.Cluster/x?b=&a=1
        ack CDS
        -> CDS -xdstp:///envoy.config.cluster.v3.Cluster/x?b=&a
        <- CDS xdstp:///envoy.config.cluster.v3.Cluster/x?b=&a=1
        ",
    );
}

/// XDSTP-13, XDSTP-14, XDSTP-27, XDSTP-28, CLI-G-29: endpoints with a reference to a list exist only for a client
/// that requests such lists. The list is an ordinary resource, whose name has the parameters of the
/// request.
#[test]
fn endpoints_with_a_list_exist_only_for_clients_with_the_feature() {
    const LIST: &str = "envoy.config.endpoint.v3.LbEndpointCollection";
    let script = "
        commit EDS/a=1>LIST/xdstp://m/LIST/a?k=v EDS/b=1 LIST/xdstp://m/LIST/a?k=v=1
        -> EDS a,b
        <- EDS b=1
        ack EDS
        commit EDS/a=2>LIST/xdstp://m/LIST/a?k=v
        features xds.endpoint.supports_lb_endpoint_collection
        <- EDS a=2
        ack EDS
        -> LIST xdstp://m/LIST/a?k=v
        <- LbEndpointCollection xdstp://m/LIST/a?k=v=1
        ack LIST
        commit LIST/xdstp://m/LIST/a?k=v=2
        <- LbEndpointCollection xdstp://m/LIST/a?k=v=2
        ack LIST
        commit EDS/a=3
        <- EDS a=3
        ";
    let script =
        script.replace("LIST", LIST).replace("<- LbEndpointCollection", &format!("<- {LIST}"));
    check(Sotw, "", &script);
    let delta = "
        commit EDS/a=1>LIST/x
        -> EDS +a
        <- EDS -a
        ack EDS
        commit EDS/a=2
        <- EDS a=2
        ack EDS
        commit EDS/a=3>LIST/x
        <- EDS -a
        ";
    check(Delta, "EDS", &delta.replace("LIST", LIST));
}

/// XDSTP-29, XDSTP-06, ERR-10: the error about an empty glob has the name of the glob. An error about another
/// name has that name, as the client writes it. Removed members of a glob have no error.
#[test]
fn errors_have_the_names_of_the_client() {
    let config = Config { resource_errors: true, ..Config::DEFAULTS };
    let delta = "
        -> t.T +xdstp://a/t.T/p/*?l=&k=,xdstp://a/t.T/x?l=&k=,xdstp://a/t.U/x
        <- t.T -xdstp://a/t.U/x -xdstp://a/t.T/p/*?l=&k= -xdstp://a/t.T/x?l=&k= ERRORS
        ack t.T
        commit t.T/xdstp://a/t.T/p/y?k=&l==1
        <- t.T xdstp://a/t.T/p/y?k=&l==1
        ack t.T
        commit -t.T/xdstp://a/t.T/p/y?k=&l=
        <- t.T -xdstp://a/t.T/p/y?k=&l=
        ";
    let errors = "?xdstp://a/t.U/x ?xdstp://a/t.T/p/*?l=&k= ?xdstp://a/t.T/x?l=&k=";
    check_with(Delta, "t.T", config.clone(), &delta.replace("ERRORS", errors));
    let sotw = "
        -> t.T xdstp://a/t.T/p/*?l=&k=,xdstp://a/t.T/x?l=&k=
        <- t.T ?xdstp://a/t.T/p/*?l=&k= ?xdstp://a/t.T/x?l=&k=
        ";
    check_with(Sotw, "", config.clone(), sotw);
    let members = "
        commit t.T/xdstp://a/t.T/p/x=1 t.T/xdstp://a/t.T/p/y=1
        -> t.T xdstp://a/t.T/p/*
        <- t.T xdstp://a/t.T/p/x=1 xdstp://a/t.T/p/y=1
        ack t.T
        commit -t.T/xdstp://a/t.T/p/x
        <- t.T xdstp://a/t.T/p/y=1
        ";
    check_with(Sotw, "", config, members);
}
