//! Glob collections of structured names.

use chancery_protocol::Protocol::{Delta, Sotw};

use crate::transcript::check;

/// A type whose SotW responses have only changes.
const PARTIAL: &str = "envoy.config.endpoint.v3.LbEndpointCollection";

/// XDSTP-15, XDSTP-16, P-71: a glob has the resources of one level with equal parameters. New members,
/// changes and removals are ordinary updates.
#[test]
fn glob_delivers_members_and_their_changes() {
    check(
        Delta,
        "LEDS",
        "
        commit t.T/xdstp://a/t.T/p/x=1
        open t.T
        commit t.T/xdstp://a/t.T/p/y=1 t.T/xdstp://a/t.T/p/q/z=1 t.T/xdstp://a/t.T/p/x?k=1=1
        commit t.T/xdstp://b/t.T/p/x=1 t.T/xdstp://a/t.T/pp/x=1 t.T/p/x=1 t.T/xdstp://a/t.T/p/q/w=1
        -> t.T +xdstp://a/t.T/p/*
        <- t.T xdstp://a/t.T/p/x=1 xdstp://a/t.T/p/y=1
        ack t.T
        commit t.T/xdstp://a/t.T/p/y=2 t.T/xdstp://a/t.T/p/q/z=2 t.T/xdstp://a/t.T/p/x?k=1=2
        <- t.T xdstp://a/t.T/p/y=2
        ack t.T
        commit t.T/xdstp://a/t.T/p/w=1
        <- t.T xdstp://a/t.T/p/w=1
        ack t.T
        commit -t.T/xdstp://a/t.T/p/x -t.T/xdstp://a/t.T/p/y t.T/xdstp://a/t.T/p/w=2
        <- t.T xdstp://a/t.T/p/w=2 -xdstp://a/t.T/p/x -xdstp://a/t.T/p/y
        ack t.T
        contents t.T
        = t.T xdstp://a/t.T/p/w=2:synced
        commit t.T/xdstp://a/t.T/p/x=3 -t.T/xdstp://a/t.T/p/w
        <- t.T xdstp://a/t.T/p/x=3 -xdstp://a/t.T/p/w
        ",
    );
}

/// XDSTP-15, XDSTP-09: the parameters of a glob select the members with equal parameters.
#[test]
fn glob_with_parameters_has_members_with_equal_parameters() {
    check(
        Delta,
        "t.T",
        "
        commit t.T/xdstp://a/t.T/p/x?k=1&l=2=1 t.T/xdstp://a/t.T/p/x=1 t.T/xdstp://a/t.T/p/x?k=1=1
        -> t.T +xdstp://a/t.T/p/*?l=2&k=1
        <- t.T xdstp://a/t.T/p/x?k=1&l=2=1
        ack t.T
        commit t.T/xdstp://a/t.T/p/x?k=1=2
        commit t.T/xdstp://a/t.T/p/y?k=1&l=2=1
        <- t.T xdstp://a/t.T/p/y?k=1&l=2=1
        ",
    );
}

/// XDSTP-17: an empty glob is answered with its own name, as the client wrote it, once.
#[test]
fn empty_glob_is_answered_with_its_own_name() {
    check(
        Delta,
        "t.T",
        "
        -> t.T +xdstp://a/t.T/p/*?b=1&a=1,xdstp://a/t.T/q/*
        <- t.T -xdstp://a/t.T/p/*?b=1&a=1 -xdstp://a/t.T/q/*
        ack t.T
        commit t.T/xdstp://a/t.T/p/x?a=1&b=1=1
        <- t.T xdstp://a/t.T/p/x?a=1&b=1=1
        ack t.T
        commit -t.T/xdstp://a/t.T/p/x?a=1&b=1
        <- t.T -xdstp://a/t.T/p/x?a=1&b=1
        ack t.T
        commit t.T/xdstp://a/t.T/other/x=1
        -> t.T -xdstp://a/t.T/q/*
        commit t.T/xdstp://a/t.T/q/x=1
        ",
    );
}

/// XDSTP-18, DELTA-47: globs, names and the wildcard may be active together. A resource is sent once per
/// response.
#[test]
fn globs_names_and_wildcard_deliver_each_resource_once() {
    check(
        Delta,
        "t.T",
        "
        commit t.T/xdstp://a/t.T/p/x=1 t.T/xdstp://a/t.T/p/y=1 t.T/xdstp://a/t.T/q/x=1 t.T/n=1
        -> t.T +xdstp://a/t.T/p/*,xdstp://a/t.T/p/x,xdstp://a/t.T/q/*,n
        <- t.T n=1 xdstp://a/t.T/p/x=1 xdstp://a/t.T/p/y=1 xdstp://a/t.T/q/x=1
        ack t.T
        commit t.T/xdstp://a/t.T/p/x=2 t.T/n=2
        <- t.T n=2 xdstp://a/t.T/p/x=2
        ",
    );
    check(
        Delta,
        "CDS",
        "
        commit CDS/xdstp://a/envoy.config.cluster.v3.Cluster/p/x=1 CDS/y=1
        -> CDS +*
        <- CDS xdstp://a/envoy.config.cluster.v3.Cluster/p/x=1 y=1
        ack CDS
        -> CDS +xdstp://a/envoy.config.cluster.v3.Cluster/p/*
        <- CDS xdstp://a/envoy.config.cluster.v3.Cluster/p/x=1
        ack CDS
        commit CDS/xdstp://a/envoy.config.cluster.v3.Cluster/p/x=2 CDS/y=2
        <- CDS xdstp://a/envoy.config.cluster.v3.Cluster/p/x=2 y=2
        ack CDS
        -> CDS -*
        commit CDS/xdstp://a/envoy.config.cluster.v3.Cluster/p/x=3 CDS/y=3
        <- CDS xdstp://a/envoy.config.cluster.v3.Cluster/p/x=3
        ack CDS
        commit CDS/xdstp://a/envoy.config.cluster.v3.Cluster/p/z=1
        <- CDS xdstp://a/envoy.config.cluster.v3.Cluster/p/z=1
        ack CDS
        -> CDS +*
        <- CDS y=3
        ack CDS
        commit -CDS/xdstp://a/envoy.config.cluster.v3.Cluster/p/z
        <- CDS -xdstp://a/envoy.config.cluster.v3.Cluster/p/z
        ",
    );
}

/// XDSTP-18: the end of a glob ends the subscription to its members, except those that the client names
/// itself: these are sent again. A name that a glob still covers stays subscribed.
#[test]
fn end_of_glob_keeps_named_members() {
    check(
        Delta,
        "t.T",
        "
        commit t.T/xdstp://a/t.T/p/x=1 t.T/xdstp://a/t.T/p/y=1 t.T/xdstp://a/t.T/p/z=1
        -> t.T +xdstp://a/t.T/p/*,xdstp://a/t.T/p/x
        <- t.T xdstp://a/t.T/p/x=1 xdstp://a/t.T/p/y=1 xdstp://a/t.T/p/z=1
        ack t.T
        -> t.T -xdstp://a/t.T/p/y
        -> t.T -xdstp://a/t.T/p/x
        <- t.T xdstp://a/t.T/p/x=1
        ack t.T
        commit t.T/xdstp://a/t.T/p/x=2
        <- t.T xdstp://a/t.T/p/x=2
        ack t.T
        -> t.T +xdstp://a/t.T/p/z
        <- t.T xdstp://a/t.T/p/z=1
        ack t.T
        -> t.T -xdstp://a/t.T/p/*
        <- t.T xdstp://a/t.T/p/z=1
        ack t.T
        commit t.T/xdstp://a/t.T/p/x=3 t.T/xdstp://a/t.T/p/y=3 t.T/xdstp://a/t.T/p/z=3
        <- t.T xdstp://a/t.T/p/z=3
        ack t.T
        -> t.T +xdstp://a/t.T/p/*
        <- t.T xdstp://a/t.T/p/x=3 xdstp://a/t.T/p/y=3 xdstp://a/t.T/p/z=3
        ",
    );
}

/// XDSTP-15, DELTA-46, DELTA-58: a client that reconnects lists the members that it holds. Those that
/// changed are sent, and those that are gone are removed.
#[test]
fn glob_resumes_with_the_versions_of_the_client() {
    check(
        Delta,
        "t.T",
        "
        commit t.T/xdstp://a/t.T/p/x=1 t.T/xdstp://a/t.T/p/y=1 t.T/xdstp://a/t.T/p/z=1
        -> t.T +xdstp://a/t.T/p/* irv=xdstp://a/t.T/p/x@held,xdstp://a/t.T/p/y@1-0,xdstp://a/t.T/p/gone@1-0
        <- t.T xdstp://a/t.T/p/y=1 xdstp://a/t.T/p/z=1 -xdstp://a/t.T/p/gone
        ack t.T
        commit t.T/xdstp://a/t.T/p/x=2
        <- t.T xdstp://a/t.T/p/x=2
        ack t.T
        commit -t.T/xdstp://a/t.T/p/x
        <- t.T -xdstp://a/t.T/p/x
        ",
    );
}

/// XDSTP-15: a glob follows the view of its node.
#[test]
fn glob_follows_a_change_of_scopes() {
    check(
        Delta,
        "t.T",
        "
        commit t.T/xdstp://a/t.T/p/x=1 s:t.T/xdstp://a/t.T/p/x=2 s:t.T/xdstp://a/t.T/p/y=2
        -> t.T +xdstp://a/t.T/p/*
        <- t.T xdstp://a/t.T/p/x=1
        ack t.T
        scopes default,s
        <- t.T xdstp://a/t.T/p/y=2
        ack t.T
        commit s:t.T/xdstp://a/t.T/p/x=3 s:t.T/xdstp://a/t.T/p/z=3
        <- t.T xdstp://a/t.T/p/z=3
        ack t.T
        scopes s
        <- t.T xdstp://a/t.T/p/x=3
        ack t.T
        scopes default
        <- t.T xdstp://a/t.T/p/x=1 -xdstp://a/t.T/p/y -xdstp://a/t.T/p/z
        ",
    );
}

/// XDSTP-16, XDSTP-19: a change costs a delta client the changed members, whatever the size of the
/// collection. A SotW client with several collections receives only the one with the change, also if a
/// member is lost.
#[test]
fn change_of_a_member_concerns_only_its_collection() {
    let many: String = (0..500).map(|n| format!(" t.T/xdstp://a/t.T/p/{n}=1")).collect();
    let mut names: Vec<String> = (0..500).map(|n| format!("xdstp://a/t.T/p/{n}")).collect();
    names.sort();
    let all: String = names.iter().map(|name| format!(" {name}=1")).collect();
    let start = format!("commit t.T/xdstp://a/t.T/q/x=1 t.T/xdstp://a/t.T/q/y=1{many}");
    check(
        Delta,
        "t.T",
        &format!(
            "
            {start}
            -> t.T +xdstp://a/t.T/p/*,xdstp://a/t.T/q/*
            <- t.T{all} xdstp://a/t.T/q/x=1 xdstp://a/t.T/q/y=1
            ack t.T
            commit t.T/xdstp://a/t.T/p/7=2
            <- t.T xdstp://a/t.T/p/7=2
            cost 3
            ack t.T
            commit -t.T/xdstp://a/t.T/p/7
            <- t.T -xdstp://a/t.T/p/7
            cost 3
            "
        ),
    );
    check(
        Sotw,
        PARTIAL,
        &format!(
            "
            {start}
            -> t.T xdstp://a/t.T/p/*,xdstp://a/t.T/q/*
            <- t.T{all} xdstp://a/t.T/q/x=1 xdstp://a/t.T/q/y=1
            ack t.T
            commit t.T/other=1
            cost 0
            commit t.T/xdstp://a/t.T/q/x=2
            <- t.T xdstp://a/t.T/q/x=2 xdstp://a/t.T/q/y=1
            ack t.T
            commit -t.T/xdstp://a/t.T/q/x
            <- t.T xdstp://a/t.T/q/y=1
            ack t.T
            commit t.T/xdstp://a/t.T/q/z=1
            <- t.T xdstp://a/t.T/q/z=1 xdstp://a/t.T/q/y=1
            "
        )
        .replace("t.T", PARTIAL),
    );
}

/// XDSTP-19, P-74: in SotW, a response with a member of a glob has all of its members.
#[test]
fn sotw_glob_is_sent_as_full_state() {
    check(
        Sotw,
        "",
        &"
        commit t.T/xdstp://a/t.T/p/x=1 t.T/xdstp://a/t.T/p/y=1 t.T/n=1
        -> t.T xdstp://a/t.T/p/*,n
        <- t.T n=1 xdstp://a/t.T/p/x=1 xdstp://a/t.T/p/y=1
        ack t.T
        commit t.T/n=2
        <- t.T n=2
        ack t.T
        commit t.T/xdstp://a/t.T/p/x=2
        <- t.T xdstp://a/t.T/p/x=2 xdstp://a/t.T/p/y=1
        ack t.T
        commit -t.T/xdstp://a/t.T/p/x
        <- t.T xdstp://a/t.T/p/y=1
        ack t.T
        commit t.T/xdstp://a/t.T/p/z=1
        <- t.T xdstp://a/t.T/p/z=1 xdstp://a/t.T/p/y=1
        ack t.T
        -> t.T n @5
        commit t.T/xdstp://a/t.T/p/z=2
        "
        .replace("t.T", PARTIAL),
    );
    check(
        Sotw,
        "CDS",
        "
        commit CDS/xdstp://a/envoy.config.cluster.v3.Cluster/p/x=1 CDS/n=1
        -> CDS xdstp://a/envoy.config.cluster.v3.Cluster/p/*
        <- CDS xdstp://a/envoy.config.cluster.v3.Cluster/p/x=1
        ack CDS
        commit CDS/xdstp://a/envoy.config.cluster.v3.Cluster/p/y=1
        <- CDS xdstp://a/envoy.config.cluster.v3.Cluster/p/x=1 xdstp://a/envoy.config.cluster.v3.Cluster/p/y=1
        ack CDS
        commit -CDS/xdstp://a/envoy.config.cluster.v3.Cluster/p/x
        <- CDS xdstp://a/envoy.config.cluster.v3.Cluster/p/y=1
        ack CDS
        commit -CDS/xdstp://a/envoy.config.cluster.v3.Cluster/p/y
        <- CDS
        ",
    );
}
