//! Listeners of gRPC clients and servers (GRPCV-01 to -13).

use super::{
    chains,
    filters::Side,
    manager,
    rules::{ALL, At, CPP, Clients, GO, JAVA, NODE, Rules},
};
use crate::validate::tree::Message;

pub(super) fn check(listener: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    let Some(api) = listener.message("api_listener") else {
        return server(listener, ALL, at, rules);
    };
    let outer = at.field("api_listener");
    let inner = outer.field("api_listener");
    match api.message("api_listener") {
        Some(config) => manager::of_any(config, Side::Client, ALL, &inner, rules),
        None => {
            let reason = "the HttpConnectionManager is missing";
            rules.refuse(&inner, ALL, "grpc.api_listener", reason, "");
        }
    }
    // Only Node checks the rest of the listener too.
    server(listener, NODE, at, rules);
}

/// The value of `traffic_direction` for requests to other servers.
const OUTBOUND: u64 = 2;

/// Checks a listener of a gRPC server.
fn server(listener: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    if listener.bits("traffic_direction") == OUTBOUND {
        let reason = "the traffic_direction of a gRPC server is not OUTBOUND";
        let at = at.field("traffic_direction");
        rules.refuse(&at, clients & JAVA, "grpc.traffic_direction", reason, "set INBOUND");
    }
    if listener.has("listener_filters") {
        let reason = "gRPC servers do not support listener filters";
        let at = at.field("listener_filters");
        rules.refuse(
            &at,
            clients & (ALL - CPP),
            "grpc.listener_filters",
            reason,
            "remove listener_filters",
        );
    }
    let original = listener.wrapped("use_original_dst");
    let refusing = JAVA.when(original.is_some()) | (ALL - JAVA).when(original == Some(1));
    let reason = "gRPC servers do not support use_original_dst";
    let at_original = at.field("use_original_dst");
    rules.refuse(
        &at_original,
        clients & refusing,
        "grpc.use_original_dst",
        reason,
        "remove the field",
    );
    address(listener, clients, at, rules);
    chains::check(listener, clients, at, rules);
}

fn address(listener: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.listener_address";
    let at = at.field("address");
    let address = listener.message("address");
    let Some(socket) = address.and_then(|address| address.message("socket_address")) else {
        let reason = "the listener of a gRPC server needs a socket_address";
        let fix = "give address, or api_listener for a gRPC client";
        return rules.refuse(&at, clients & (CPP | GO), ID, reason, fix);
    };
    let at = at.field("socket_address");
    if socket.text("address").is_empty() {
        let reason = "the address is empty";
        rules.refuse(&at.field("address"), clients & JAVA.since(73), ID, reason, "give address");
    }
    if socket.has("named_port") {
        let reason = "gRPC does not support named_port";
        let fix = "give port_value";
        rules.refuse(&at.field("named_port"), clients & JAVA.since(73), ID, reason, fix);
    }
    if socket.bits("protocol") != 0 {
        rules.refuse(&at.field("protocol"), clients & CPP, ID, "the protocol is not TCP", "");
    }
    if socket.bits("port_value") > 65535 {
        let reason = "the port is above 65535";
        rules.refuse(&at.field("port_value"), clients & CPP, ID, reason, "");
    }
}
