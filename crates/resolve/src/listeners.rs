//! The selection of listeners, and the walk through one listener.

use std::net::IpAddr;

use chancery_model::types;

use crate::{
    answer::{Answer, End, Resolution},
    filter_chains::{Selected, select_chain},
    filters::follow_chain,
    manager::{Connection, follow_manager},
    message::{Msg, decode},
    request::Request,
    resources::Resources,
    walk::{Skips, Walk, shown},
};

/// The maximum number of listeners through which a request is followed.
const LISTENERS_MAX: usize = 50;
const MANAGER: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

/// Follows a request through the resources of a node. Without the name of a listener, it follows the request through
/// the listeners with the port of the URL. If the URL has no port and no listener has the default port of the scheme,
/// these are all listeners.
#[must_use]
pub fn resolve(resources: &dyn Resources, request: &Request, listener: Option<&str>) -> Answer {
    let (names, reason) = match listener {
        Some(name) => (vec![name.to_owned()], "named by the caller".to_owned()),
        None => select_listeners(resources, request),
    };
    if names.is_empty() {
        let end = End::NoConnection { reason };
        let resolutions = vec![Walk::new(resources, request).finish("", end)];
        return Answer { resolutions, listeners_omitted: 0 };
    }
    let resolutions = names.iter().take(LISTENERS_MAX);
    let resolutions = resolutions.map(|name| follow(resources, request, name, &reason)).collect();
    Answer { resolutions, listeners_omitted: names.len().saturating_sub(LISTENERS_MAX) }
}

/// Returns the names of the listeners that accept the connection, and the reason.
fn select_listeners(resources: &dyn Resources, request: &Request) -> (Vec<String>, String) {
    let port = request.connected_port();
    let ip = request.host.parse::<IpAddr>().ok();
    let api_names = [request.host.clone(), request.authority.clone()];
    let (mut exact, mut with_port, mut all, mut ports) = (vec![], vec![], vec![], vec![]);
    for name in resources.names(types::LISTENER) {
        let resource = resources.get(types::LISTENER, &name);
        let message = resource.and_then(|one| decode(type_name(), one.body).ok());
        let Some(message) = message else { continue };
        let listener = Msg(&message);
        all.push(name.clone());
        if listener.has("api_listener") && api_names.contains(&name) {
            with_port.push(name);
            continue;
        }
        let sockets: Vec<(String, i64)> = sockets(listener);
        let accepted = sockets.iter().find(|(_, its_port)| *its_port == i64::from(port));
        ports.extend(sockets.iter().map(|(_, its_port)| *its_port));
        let Some((address, _)) = accepted else { continue };
        match (ip, address.parse::<IpAddr>()) {
            (Some(ip), Ok(own)) if ip == own => exact.push(name),
            (Some(_), Ok(own)) if !own.is_unspecified() => {}
            _ => with_port.push(name),
        }
    }
    if !exact.is_empty() {
        return (exact, format!("has the address {}", request.host));
    }
    if !with_port.is_empty() || request.port.is_some() {
        ports.sort_unstable();
        ports.dedup();
        ports.truncate(20);
        let reason = if with_port.is_empty() {
            format!("no listener of the node has port {port}; the ports are {ports:?}")
        } else {
            format!("has port {port}")
        };
        return (with_port, reason);
    }
    let reason = if all.is_empty() {
        "the node has no listener".to_owned()
    } else {
        format!("no listener has port {port}, and the URL names no port")
    };
    (all, reason)
}

fn type_name() -> &'static str {
    types::LISTENER.rsplit('/').next().unwrap_or_default()
}

/// Returns the addresses and ports of a listener.
fn sockets(listener: Msg<'_>) -> Vec<(String, i64)> {
    let own = listener.sub("address");
    let additional = listener.list("additional_addresses").filter_map(|one| one.sub("address"));
    let sockets = own.into_iter().chain(additional).filter_map(|one| one.sub("socket_address"));
    sockets.map(|socket| (socket.text("address").to_owned(), socket.number("port_value"))).collect()
}

fn follow(resources: &dyn Resources, request: &Request, name: &str, reason: &str) -> Resolution {
    let mut walk = Walk::new(resources, request);
    let end = match walk.fetch(types::LISTENER, name) {
        Some(message) => {
            walk.step(
                "listener",
                shown(types::LISTENER, name),
                reason.to_owned(),
                Skips::default(),
            );
            follow_listener(&mut walk, Msg(&message))
        }
        None => End::Missing {
            type_url: types::LISTENER.to_owned(),
            name: name.to_owned(),
            effect: "nothing accepts the connection".to_owned(),
        },
    };
    walk.finish(name, end)
}

fn follow_listener(walk: &mut Walk<'_>, listener: Msg<'_>) -> End {
    let sockets = sockets(listener);
    let request_port = i64::from(walk.request.connected_port());
    let port = sockets.iter().map(|(_, port)| *port).find(|port| *port == request_port);
    let port = port.or_else(|| sockets.first().map(|(_, port)| *port)).unwrap_or(request_port);
    if let Some(api) = listener.sub("api_listener") {
        let content = api.any("api_listener");
        return match content.as_ref().and_then(|content| content.of_type(MANAGER)) {
            Some(manager) => {
                let connection = Connection { port, is_tls: walk.request.is_tls() };
                follow_manager(walk, manager, connection)
            }
            None => End::Undecided {
                reason: "the API listener has no HTTP connection manager of a known type"
                    .to_owned(),
            },
        };
    }
    let address = sockets.first().map(|(address, _)| address.clone()).unwrap_or_default();
    match select_chain(walk, listener, &address, port) {
        Selected::Chain(chain) => follow_chain(walk, chain, port),
        Selected::Named(name) => match walk.fetch(types::FILTER_CHAIN, &name) {
            Some(chain) => follow_chain(walk, Msg(&chain), port),
            None => End::Missing {
                type_url: types::FILTER_CHAIN.to_owned(),
                name,
                effect: "the node closes the connection".to_owned(),
            },
        },
        Selected::End(end) => end,
    }
}
