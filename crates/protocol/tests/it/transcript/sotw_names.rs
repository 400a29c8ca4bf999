//! SotW subscriptions by name, and resources that do not exist.

use chancery_protocol::Protocol::{Delta, Sotw};

use crate::transcript::check;

/// SOTW-40, SOTW-42, SOTW-45, SOTW-75: added names are sent, and no others.
#[test]
fn added_names_are_answered_though_nothing_changed() {
    check(
        Sotw,
        "",
        "
        commit EDS/a=1 EDS/b=1
        -> EDS a
        <- EDS a=1
        ack EDS
        -> EDS b,a @1
        <- EDS b=1
        ack EDS
        ",
    );
}

/// SOTW-43, CLI-G-09, P-08: each response of a full-state type is complete.
#[test]
fn response_of_full_state_type_contains_all_named_clusters() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1 CDS/b=1 CDS/other=1
        -> CDS a
        <- CDS a=1
        ack CDS
        -> CDS a,b @1
        <- CDS a=1 b=1
        ack CDS
        commit CDS/other=2
        ",
    );
}

/// SOTW-44, SOTW-46, P-05: a name that the client subscribes to again is sent again.
#[test]
fn resubscribed_name_is_sent_again() {
    check(
        Sotw,
        "",
        "
        commit EDS/a=1 EDS/b=1
        -> EDS a,b
        <- EDS a=1 b=1
        ack EDS
        -> EDS a @1
        commit EDS/b=2
        -> EDS a,b @1
        <- EDS b=2
        ack EDS
        -> EDS a @2
        -> EDS a,b @2
        <- EDS b=2
        ",
    );
}

/// SOTW-47, CLI-G-07: an empty list after names subscribes to nothing.
#[test]
fn an_empty_list_after_names_unsubscribes() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1
        -> CDS a
        <- CDS a=1
        ack CDS
        -> CDS @1
        commit CDS/a=2 CDS/b=1
        -> CDS a @1
        <- CDS a=2
        ",
    );
}

/// SOTW-60, SOTW-62 to -67: all transitions in the protocol documents.
#[test]
fn wildcard_and_names_can_be_combined() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1 CDS/b=1
        -> CDS
        <- CDS a=1 b=1
        ack CDS
        -> CDS *,a @1
        <- CDS a=1 b=1
        ack CDS
        -> CDS a @2
        commit CDS/b=2
        commit CDS/a=2
        <- CDS a=2
        ack CDS
        -> CDS @3
        commit CDS/a=3 CDS/b=3
        -> CDS * @3
        <- CDS a=3 b=3
        ",
    );
}

/// SOTW-68, SVC-05, DELTA-67, P-07: an empty first list is not a wildcard if the type has none. In
/// SotW, a virtual host is an ordinary resource.
#[test]
fn endpoints_have_no_wildcard() {
    check(
        Sotw,
        "",
        "
        commit EDS/a=1 RDS/r=1 VHDS/r/v=1 SDS/s=1 RTDS/t=1 ECDS/e=1
        -> EDS
        -> RDS
        -> VHDS
        -> SDS
        -> RTDS
        -> ECDS
        -> VHDS *
        -> VHDS r/v
        <- VHDS r/v=1
        commit EDS/a=2
        -> EDS a
        <- EDS a=2
        ",
    );
}

/// SOTW-77 to -81, SOTW-07, SOTW-72, CLI-G-27: a missing resource is sent when it appears. Missing
/// clusters and listeners get an empty response.
#[test]
fn missing_resource_is_sent_when_it_appears() {
    check(
        Sotw,
        "",
        "
        -> EDS a
        commit EDS/a=1
        <- EDS a=1
        ack EDS
        -> LDS l
        <- LDS
        ack LDS
        commit LDS/l=1
        <- LDS l=1
        ",
    );
}

/// SOTW-85, SOTW-86: deleted endpoints cause no response. They are sent when they reappear, even
/// unchanged.
#[test]
fn a_deleted_child_is_sent_when_it_comes_back() {
    check(
        Sotw,
        "",
        "
        commit EDS/a=1
        -> EDS a
        <- EDS a=1
        ack EDS
        commit -EDS/a
        wait 10000
        commit EDS/a=1
        <- EDS a=1
        ",
    );
}

/// SOTW-68, SOTW-73, P-13: each response with scoped routes has all subscribed resources.
#[test]
fn scoped_routes_are_sent_in_full() {
    check(
        Sotw,
        "",
        "
        commit SRDS/a=1 SRDS/b=1
        -> SRDS
        <- SRDS a=1 b=1
        ack SRDS
        commit SRDS/b=2
        <- SRDS a=1 b=2
        ",
    );
}

/// SOTW-76: a missing runtime gets no empty response, because Envoy would reject it.
#[test]
fn missing_runtime_gets_no_empty_response() {
    check(
        Sotw,
        "",
        "
        -> RTDS r
        commit RTDS/r=1
        <- RTDS r=1
        ack RTDS
        commit -RTDS/r
        ",
    );
}

/// SOTW-48, SOTW-74: only subscribed resources are sent, and none twice.
#[test]
fn subscribed_resources_are_sent_once_and_no_others() {
    check(
        Sotw,
        "",
        "
        commit EDS/a=1|also EDS/b=1
        -> EDS a,also,a
        <- EDS a=1
        ack EDS
        commit EDS/b=2
        ",
    );
}

/// SOTW-41, SOTW-49, CLI-E-03: a client sends many requests, each a superset of the last, or one
/// with all names.
#[test]
fn name_list_may_grow_name_by_name() {
    check(
        Sotw,
        "",
        "
        commit RDS/a=1 RDS/b=1 RDS/c=1
        -> RDS a
        <- RDS a=1
        ack RDS
        -> RDS a,b @1
        <- RDS b=1
        ack RDS
        -> RDS a,b,c @2
        <- RDS c=1
        ack RDS
        commit RDS/a=2 RDS/b=2 RDS/c=2
        <- RDS a=2 b=2 c=2
        open
        -> RDS a,c,b
        <- RDS a=2 b=2 c=2
        ",
    );
}

/// SOTW-66: the legacy wildcard of one type does not depend on the requests for another type.
#[test]
fn the_legacy_wildcard_is_per_type() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1 LDS/l=1
        -> CDS a
        <- CDS a=1
        ack CDS
        -> CDS @1
        -> LDS
        <- LDS l=1
        ",
    );
}

/// SVC-06, SVC-15: type URLs are compared exactly. Another spelling, or the v2 URL, is another
/// type.
#[test]
fn type_url_with_different_spelling_is_another_type() {
    check(
        Sotw,
        "",
        "
        commit CDS/a=1
        -> envoy.api.v2.Cluster a
        <- envoy.api.v2.Cluster
        -> envoy.config.cluster.v3.cluster a
        <- envoy.config.cluster.v3.cluster
        commit CDS/a=2
        ",
    );
}

/// SVC-11, SOTW-68, SOTW-69, P-07: any type can be stored, and served by name or as a whole.
#[test]
fn an_unknown_type_is_served_by_name_and_as_a_whole() {
    check(
        Sotw,
        "",
        "
        commit ratelimit.config.ratelimit.v3.RateLimitConfig/r=1
        -> ratelimit.config.ratelimit.v3.RateLimitConfig r
        <- ratelimit.config.ratelimit.v3.RateLimitConfig r=1
        ack ratelimit.config.ratelimit.v3.RateLimitConfig
        commit ratelimit.config.ratelimit.v3.RateLimitConfig/r=2
        <- ratelimit.config.ratelimit.v3.RateLimitConfig r=2
        ",
    );
    check(
        Sotw,
        "",
        "
        -> istio.networking.nds.v1.NameTable
        <- istio.networking.nds.v1.NameTable
        ack istio.networking.nds.v1.NameTable
        commit istio.networking.nds.v1.NameTable/table=1
        <- istio.networking.nds.v1.NameTable table=1
        ack istio.networking.nds.v1.NameTable
        commit -istio.networking.nds.v1.NameTable/table
        <- istio.networking.nds.v1.NameTable
        ",
    );
    check(
        Delta,
        "",
        "
        -> istio.networking.nds.v1.NameTable
        <- istio.networking.nds.v1.NameTable
        ack istio.networking.nds.v1.NameTable
        commit istio.networking.nds.v1.NameTable/table=1
        <- istio.networking.nds.v1.NameTable table=1
        ack istio.networking.nds.v1.NameTable
        commit -istio.networking.nds.v1.NameTable/table
        <- istio.networking.nds.v1.NameTable -table
        ",
    );
}

/// SOTW-68, DELTA-38, P-07: a first list of empty names is an empty list. Kitex asks for the name table with it.
#[test]
fn a_list_of_empty_names_is_an_empty_list() {
    for (protocol, first) in [(Sotw, "-> x.Y ''"), (Delta, "-> x.Y +'',''")] {
        let script = "
            commit x.Y/table=1 CDS/a=1
            FIRST
            <- x.Y table=1
            "
        .replace("FIRST", first);
        check(protocol, "", &script);
        check(protocol, "", &script.replace("x.Y", "CDS").replace("table", "a"));
    }
}

/// SVC-10: an unknown type is an ordinary type without resources.
#[test]
fn an_unknown_type_can_be_asked_for() {
    check(
        Sotw,
        "",
        "
        -> x.Y thing
        <- x.Y
        ack x.Y
        commit x.Y/thing=1
        <- x.Y thing=1
        ",
    );
}

/// SOTW-46: names that the client unsubscribes from while a state is sent in parts are not sent.
#[test]
fn unsubscribed_parts_of_a_state_are_not_sent() {
    let config = chancery_protocol::Config {
        response_bytes_target: 200,
        ..chancery_protocol::Config::DEFAULTS
    };
    crate::transcript::world::check_with(
        Sotw,
        "",
        config,
        "
        commit EDS/a=1 EDS/b=1 EDS/c=1 EDS/d=1 EDS/e=1 EDS/f=1
        -> EDS a,b,c,d,e,f
        <- EDS a=1 b=1
        -> EDS a,f @1
        <- EDS f=1
        -> EDS @2
        ",
    );
}

/// SOTW-47: a wildcard that ends before its answer is not answered.
#[test]
fn wildcard_ended_before_its_answer_is_not_answered() {
    use chancery_protocol::{Config, Request, Session, SotwRequest, StreamKind};
    let kind = StreamKind { protocol: Sotw, type_url: None };
    let mut session = Session::new(kind, std::sync::Arc::new(Config::DEFAULTS));
    let state = chancery_model::State::new(chancery_model::Incarnation(1));
    let view = chancery_view::View::resolve(&state, &[]);
    for names in [vec![], vec!["a".to_owned()], vec![]] {
        let request = Request::Sotw(SotwRequest {
            type_url: chancery_model::types::CLUSTER.to_owned(),
            resource_names: names.into(),
            ..SotwRequest::default()
        });
        session.handle_request(request, Some(&view), 1).unwrap();
    }
    assert!(session.poll(Some(&view), &chancery_view::Differ::new(), 1).is_none());
}

/// SOTW-87: the parent is deleted and the client unsubscribes from its child, in either order.
#[test]
fn parent_deletion_and_child_unsubscription_work_in_either_order() {
    for child_first in [true, false] {
        let (before, after) = if child_first { ("-> EDS b @2", "") } else { ("", "-> EDS b @2") };
        check(
            Sotw,
            "",
            &format!(
                "
                commit CDS/a=1>EDS/a CDS/b=1>EDS/b EDS/a=1 EDS/b=1
                -> CDS
                <- CDS a=1 b=1
                -> EDS a,b
                <- EDS a=1 b=1
                ack CDS
                ack EDS
                wait 10000
                {before}
                commit -CDS/a -EDS/a
                <- CDS b=1
                {after}
                ack CDS
                wait 60000
                "
            ),
        );
    }
}
