//! The rules of gRPC clients (area GRPCV), which differ from those of Envoy.
//!
//! A gRPC client checks four types of resources, each as a whole: it rejects a cluster of another type, a
//! filter that it does not implement, or a policy without a converter. The implementations differ. Each rule
//! names the clients that reject the resource: C++ (C-core), Go, Java and Node. They follow the sources of
//! C-core 1.85, Go 1.75 and 1.85, and Node 1.14, and the gRFCs for Java. Experimental features that a client
//! enables only by an environment variable count as absent.

pub(super) mod catalog;
mod chains;
mod cluster;
mod composite;
mod endpoint;
mod filters;
mod listener;
mod lookup;
mod manager;
mod matchers;
mod metadata;
mod policy;
mod rbac;
mod retry;
mod route;
mod rules;
mod session;
mod tls;

use chancery_model::types;

use super::tree::Message;
use crate::{
    problem::{Fault, Severity},
    profile::Audience,
};
use rules::{At, Rules};

/// The part of the names of listeners that gRPC servers ask for by convention.
const SERVER_LISTENER: &str = "grpc/server";

/// Adds the findings of gRPC clients about a resource. A finding replaces a warning of Envoy's rules with the
/// same ID about the same field.
pub(super) fn check(
    audience: Audience,
    message: &Message<'_>,
    body: &[u8],
    faults: &mut Vec<Fault>,
) {
    let type_name = message.kind.name.as_str();
    let is_api_listener = type_name == short(types::LISTENER) && message.has("api_listener");
    let audience = match audience {
        // The clients are unknown, but the resource can only be for gRPC clients.
        audience if audience.is_assumed && is_api_listener => Audience::of_unknown_grpc(),
        audience if !audience.is_assumed && audience.has_grpc() => audience,
        _ => return,
    };
    // Envoy sees all resources of a view, and a gRPC client those that it asks for by name.
    let is_capped = audience.has_envoy && !is_for_grpc(type_name, message);
    let root = At::root();
    let found_by = |noun, check: &dyn Fn(&mut Rules)| {
        let mut rules = Rules::new(audience, is_capped, noun);
        check(&mut rules);
        rules.into_faults()
    };
    let found = match type_name {
        name if name == short(types::CLUSTER) => {
            found_by("cluster", &|rules| cluster::check(message, body, &root, rules))
        }
        name if name == short(types::ENDPOINT) => {
            found_by("assignment", &|rules| endpoint::check(message, &root, rules))
        }
        name if name == short(types::LISTENER) => {
            found_by("listener", &|rules| listener::check(message, &root, rules))
        }
        name if name == short(types::ROUTE) => {
            found_by("route configuration", &|rules| route::check(message, None, &root, rules))
        }
        _ => return,
    };
    faults.retain(|fault| {
        let is_same = |own: &Fault| (&own.path, &own.id) == (&fault.path, &fault.id);
        fault.severity == Severity::Error || !found.iter().any(is_same)
    });
    faults.extend(found);
}

/// Returns the name of a message from its type URL.
fn short(type_url: &str) -> &str {
    type_url.rsplit('/').next().unwrap_or(type_url)
}

/// Returns whether a gRPC client may ask for a resource that Envoy sees too. Clusters of other types and
/// plain listeners are those of Envoy.
fn is_for_grpc(type_name: &str, message: &Message<'_>) -> bool {
    match type_name {
        name if name == short(types::CLUSTER) => cluster::is_for_grpc(message),
        name if name == short(types::LISTENER) => {
            message.has("api_listener") || message.text("name").contains(SERVER_LISTENER)
        }
        _ => true,
    }
}
