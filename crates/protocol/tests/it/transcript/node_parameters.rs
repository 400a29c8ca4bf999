//! Structured names with parameters that a client derives from its node.

use chancery_protocol::Protocol::{Delta, Sotw};

use crate::transcript::check;

/// XDSTP-08, XDSTP-09, XDSTP-15: a collection with the node's parameters has the members with equal parameters,
/// whatever their order. Members of other nodes, and members without parameters, are not in it.
#[test]
fn glob_with_node_parameters_has_the_members_of_that_node() {
    check(
        Delta,
        "t.T",
        "
        node n1
        commit t.T/xdstp://a/t.T/p/x?xds.node.cluster=c&xds.node.id=n1=1 t.T/xdstp://a/t.T/p/y=1
        commit t.T/xdstp://a/t.T/p/x?xds.node.cluster=c&xds.node.id=n2=1
        -> t.T +xdstp://a/t.T/p/*?xds.node.id=n1&xds.node.cluster=c
        <- t.T xdstp://a/t.T/p/x?xds.node.cluster=c&xds.node.id=n1=1
        ack t.T
        commit t.T/xdstp://a/t.T/p/x?xds.node.cluster=c&xds.node.id=n2=2
        commit t.T/xdstp://a/t.T/p/z?xds.node.cluster=c&xds.node.id=n1=1
        <- t.T xdstp://a/t.T/p/z?xds.node.cluster=c&xds.node.id=n1=1
        ack t.T
        commit -t.T/xdstp://a/t.T/p/x?xds.node.cluster=c&xds.node.id=n1
        <- t.T -xdstp://a/t.T/p/x?xds.node.cluster=c&xds.node.id=n1
        ",
    );
}

/// XDSTP-08, XDSTP-19: the same in SotW, and by name.
#[test]
fn sotw_client_finds_names_with_node_parameters() {
    check(
        Sotw,
        "LEDS",
        "
        node n1
        commit LEDS/xdstp://a/envoy.config.endpoint.v3.LbEndpoint/p/x?xds.node.id=n1=1
        commit LEDS/xdstp://a/envoy.config.endpoint.v3.LbEndpoint/p/x?xds.node.id=n2=1
        -> LEDS xdstp://a/envoy.config.endpoint.v3.LbEndpoint/p/*?xds.node.id=n1
        <- LEDS xdstp://a/envoy.config.endpoint.v3.LbEndpoint/p/x?xds.node.id=n1=1
        ack LEDS
        commit LEDS/xdstp://a/envoy.config.endpoint.v3.LbEndpoint/p/x?xds.node.id=n2=2
        -> LEDS xdstp://a/envoy.config.endpoint.v3.LbEndpoint/p/x?xds.node.id=n2
        <- LEDS xdstp://a/envoy.config.endpoint.v3.LbEndpoint/p/x?xds.node.id=n2=2
        ",
    );
}

/// XDSTP-08: a wildcard returns names of its own node. It returns no names of other nodes: not at first, not when they
/// change, and not when they are removed. The client may also request names of its own node explicitly.
#[test]
fn wildcard_has_no_names_of_other_nodes() {
    check(
        Delta,
        "CDS",
        "
        node n1
        commit CDS/xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n2=1 CDS/web=1
        commit CDS/xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n1=1
        -> CDS +*
        <- CDS web=1 xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n1=1
        ack CDS
        commit CDS/xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n2=2
        commit -CDS/xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n2
        commit CDS/xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n2=3 CDS/web=2
        <- CDS web=2
        ack CDS
        -> CDS +xdstp://a/envoy.config.cluster.v3.Cluster/*?xds.node.id=n1
        <- CDS xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n1=1
        ack CDS
        commit CDS/xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n1=2
        <- CDS xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n1=2
        ack CDS
        commit -CDS/xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n1
        <- CDS -xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n1
        ",
    );
    check(
        Sotw,
        "CDS",
        "
        node n1
        commit CDS/web=1
        -> CDS
        <- CDS web=1
        ack CDS
        commit CDS/xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n1=1
        <- CDS web=1 xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n1=1
        ack CDS
        commit CDS/xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n2=1
        commit CDS/web=2
        <- CDS web=2 xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n1=1
        ack CDS
        commit -CDS/xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n1
        <- CDS web=2
        ",
    );
}

/// XDSTP-08: a stream whose node gets another ID has the names of its present node.
#[test]
fn wildcard_follows_the_node_of_the_stream() {
    check(
        Delta,
        "CDS",
        "
        node n1
        commit CDS/xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n1=1
        commit CDS/xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n2=1
        -> CDS +*
        <- CDS xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n1=1
        ack CDS
        node n2
        scopes default
        <- CDS xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n2=1 -xdstp://a/envoy.config.cluster.v3.Cluster/x?xds.node.id=n1
        ",
    );
}
