//! The endpoints of a `ClusterLoadAssignment`.

use crate::{
    answer::{Endpoint, Locality},
    message::Msg,
};

/// The maximum number of endpoints of a cluster in an answer.
const ENDPOINTS_MAX: usize = 1000;

/// Returns the localities in the order of their priorities, and the number of endpoints beyond the limit.
pub(crate) fn localities(assignment: Msg<'_>) -> (Vec<Locality>, usize) {
    let named = assignment.entries("named_endpoints");
    let (mut left, mut omitted) = (ENDPOINTS_MAX, 0);
    let mut localities = Vec::new();
    for group in assignment.list("endpoints") {
        let own = group.sub("load_balancer_endpoints");
        let endpoints = group
            .list("lb_endpoints")
            .chain(own.into_iter().flat_map(|it| it.list("lb_endpoints")));
        let mut endpoints: Vec<Endpoint> = endpoints.map(|one| endpoint(one, &named)).collect();
        omitted += endpoints.len().saturating_sub(left);
        endpoints.truncate(left);
        left -= endpoints.len();
        let locality = group.sub("locality");
        let text = |field: &str| locality.map(|it| it.text(field).to_owned()).unwrap_or_default();
        let collection = group.sub("leds_cluster_locality_config");
        localities.push(Locality {
            priority: u32::try_from(group.number("priority")).unwrap_or_default(),
            region: text("region"),
            zone: text("zone"),
            sub_zone: text("sub_zone"),
            weight: weight(group),
            collection: collection
                .map(|it| it.text("leds_collection_name").to_owned())
                .unwrap_or_default(),
            endpoints,
        });
    }
    localities.sort_by_key(|locality| locality.priority);
    (localities, omitted)
}

/// Returns the number of endpoints.
pub(crate) fn n_endpoints(localities: &[Locality]) -> usize {
    localities.iter().map(|locality| locality.endpoints.len()).sum()
}

fn weight(message: Msg<'_>) -> u32 {
    let weight = message.wrapped("load_balancing_weight").unwrap_or_default();
    u32::try_from(weight).unwrap_or_default()
}

fn endpoint(endpoint: Msg<'_>, named: &[(&str, Msg<'_>)]) -> Endpoint {
    let name = endpoint.text("endpoint_name");
    let inner = endpoint.sub("endpoint").or_else(|| {
        let found = named.iter().find(|(known, _)| *known == name);
        found.map(|(_, inner)| *inner)
    });
    let health = match endpoint.number("health_status") {
        1 => "HEALTHY",
        2 => "UNHEALTHY",
        3 => "DRAINING",
        4 => "TIMEOUT",
        5 => "DEGRADED",
        _ => "UNKNOWN",
    };
    Endpoint {
        address: inner
            .and_then(|it| it.sub("address"))
            .map(address)
            .unwrap_or_else(|| name.to_owned()),
        health: health.to_owned(),
        weight: weight(endpoint),
    }
}

fn address(address: Msg<'_>) -> String {
    if let Some(socket) = address.sub("socket_address") {
        let host = socket.text("address");
        let port = match socket.text("named_port") {
            "" => socket.number("port_value").to_string(),
            name => name.to_owned(),
        };
        return if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        };
    }
    if let Some(pipe) = address.sub("pipe") {
        return pipe.text("path").to_owned();
    }
    let internal = address.sub("envoy_internal_address");
    internal.map(|it| it.text("server_listener_name").to_owned()).unwrap_or_default()
}
