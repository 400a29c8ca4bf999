//! HTTP connection managers (GRPCV-01 to -06).

use super::{
    filters,
    filters::Side,
    route,
    rules::{
        ALL, At, CPP, Clients, DURATION, GO, JAVA, NODE, Rules, extension, is_duration,
        is_duration_of_java, is_own_source,
    },
};
use crate::validate::tree::Message;

const HCM: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

/// Checks an `Any` that has to be a connection manager.
pub(super) fn of_any(
    config: &Message<'_>,
    side: Side,
    clients: Clients,
    at: &At<'_>,
    rules: &mut Rules,
) {
    let kind = extension(config);
    if kind.name != HCM || kind.is_struct {
        let reason = "gRPC supports only the network filter HttpConnectionManager";
        return rules.refuse(at, clients, "grpc.network_filter", reason, "");
    }
    if let Some(manager) = config.content.as_deref() {
        self::check(manager, side, clients, at, rules);
    }
}

fn check(manager: &Message<'_>, side: Side, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    let id = "grpc.remote_address";
    let reason = "gRPC takes the client address only from the connection";
    for field in ["xff_num_trusted_hops", "original_ip_detection_extensions"] {
        if manager.has(field) {
            rules.refuse(&at.field(field), clients & (ALL - NODE), id, reason, "remove the field");
        }
    }
    let options = manager.message("common_http_protocol_options");
    let stream = options.and_then(|options| options.message("max_stream_duration"));
    if let Some(duration) = stream {
        let refusing = CPP.when(!is_duration(duration)) | JAVA.when(!is_duration_of_java(duration));
        let at = at.field("common_http_protocol_options");
        let at = at.field("max_stream_duration");
        rules.refuse(&at, clients & refusing, "grpc.max_stream_duration", DURATION, "");
    }
    filters::check(manager, side, clients, at, rules);
    if let Some(config) = manager.message("route_config") {
        let at = at.field("route_config");
        return rules.only(clients, |rules| route::check(config, Some(side), &at, rules));
    }
    let Some(rds) = manager.message("rds") else {
        let reason = "the HttpConnectionManager has neither rds nor route_config";
        return rules.refuse(at, clients, "grpc.route_source", reason, "give rds");
    };
    let at = at.field("rds");
    let source = rds.message("config_source");
    let fix = "set config_source to {ads: {}, resource_api_version: V3}";
    let has_ads = source.is_some_and(|source| source.has("ads"));
    // A Go server takes its routes only by ADS.
    let refusing = ALL.when(!is_own_source(source)) | GO.when(side == Side::Server && !has_ads);
    let reason = "gRPC receives routes only from the server that sent the listener";
    rules.refuse(&at.field("config_source"), clients & refusing, "grpc.route_source", reason, fix);
    if rds.text("route_config_name").is_empty() {
        let reason = "the name of the route configuration is empty";
        let at = at.field("route_config_name");
        let fix = "give route_config_name";
        rules.refuse(&at, clients & GO, "grpc.route_source", reason, fix);
        let effect = "every RPC fails after 15s, because no route configuration has an empty name";
        rules.effect(&at, clients & JAVA, "grpc.effect.route_name", effect, fix);
    }
}
