//! The number of endpoints in a resource.

use bytes::Bytes;
use chancery_model::{Resource, ResourceKey, ResourceName, TypeUrl, types};
use chancery_view::View;
use prost::Message;

use crate::references::ReferenceIndex;

/// The part of `envoy.config.endpoint.v3.ClusterLoadAssignment` that has endpoints.
#[derive(Clone, PartialEq, Message)]
struct LoadAssignment {
    #[prost(message, repeated, tag = "2")]
    endpoints: Vec<Locality>,
}

/// The part of `envoy.config.endpoint.v3.LocalityLbEndpoints` that has endpoints.
#[derive(Clone, PartialEq, Message)]
struct Locality {
    #[prost(message, repeated, tag = "2")]
    lb_endpoints: Vec<LbEndpoint>,
    #[prost(message, optional, tag = "3")]
    weight: Option<u32>,
    #[prost(message, optional, tag = "7")]
    load_balancer_endpoints: Option<EndpointList>,
    /// A collection of endpoints, which other resources contain.
    #[prost(bytes = "bytes", optional, tag = "8")]
    leds: Option<Bytes>,
}

/// The part of `envoy.config.endpoint.v3.LbEndpoint` that decides whether gRPC clients use it.
#[derive(Clone, PartialEq, Message)]
struct LbEndpoint {
    #[prost(int32, tag = "2")]
    health_status: i32,
}

/// The greatest health status of the endpoints that gRPC clients use: `HEALTHY`. The other one is `UNKNOWN`.
const HEALTHY: i32 = 1;

/// The endpoints that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Users {
    /// All endpoints. If none is healthy, Envoy uses the others.
    Envoy,
    /// The endpoints that gRPC clients use: the healthy ones of localities with a weight.
    Grpc,
}

#[derive(Clone, PartialEq, Message)]
struct EndpointList {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    lb_endpoints: Vec<Bytes>,
}

/// The part of `envoy.config.cluster.v3.Cluster` that decides where its endpoints come from.
#[derive(Clone, PartialEq, Message)]
struct Cluster {
    #[prost(int32, tag = "2")]
    discovery_type: i32,
    #[prost(message, optional, tag = "33")]
    load_assignment: Option<LoadAssignment>,
    #[prost(bytes = "bytes", optional, tag = "38")]
    cluster_type: Option<Bytes>,
}

/// The greatest `Cluster.type` whose endpoints are in the cluster: `LOGICAL_DNS`.
const INLINE_MAX: i32 = 2;

/// Returns the number of endpoints in a `ClusterLoadAssignment`, or in a cluster that contains its
/// endpoints. `None` if the resource is not a place for endpoints. A collection of endpoints counts as
/// one.
pub(super) fn n_endpoints(type_url: &TypeUrl, resource: &Resource, users: Users) -> Option<usize> {
    let assignment = match type_url.as_str() {
        types::ENDPOINT => LoadAssignment::decode(resource.body()?).ok()?,
        types::CLUSTER => {
            let cluster = Cluster::decode(resource.body()?).ok()?;
            if cluster.cluster_type.is_some() || cluster.discovery_type > INLINE_MAX {
                return None;
            }
            cluster.load_assignment.unwrap_or_default()
        }
        _ => return None,
    };
    let count = match users {
        Users::Envoy => n_in_locality,
        Users::Grpc => n_usable,
    };
    Some(assignment.endpoints.iter().map(count).sum())
}

fn n_usable(locality: &Locality) -> usize {
    let endpoints = locality.lb_endpoints.iter();
    match locality.weight {
        None | Some(0) => 0,
        Some(_) => endpoints.filter(|endpoint| endpoint.health_status <= HEALTHY).count(),
    }
}

fn n_in_locality(locality: &Locality) -> usize {
    let listed = locality.load_balancer_endpoints.as_ref();
    locality.lb_endpoints.len()
        + listed.map_or(0, |list| list.lb_endpoints.len())
        + usize::from(locality.leds.is_some())
}

/// Returns the number of endpoints that a view has for a `ClusterLoadAssignment` or a cluster. `None` if
/// the view lacks the resource, or if it is not a place for endpoints.
pub(super) fn n_served(view: &View, key: &ResourceKey, users: Users) -> Option<usize> {
    let resource = view.of_type(&key.type_url).get(key.name.as_str()).cloned()?;
    match endpoints_of(&resource) {
        Some(list) => {
            let found = view.of_type(&list.type_url).get(list.name.as_str()).cloned();
            Some(
                found
                    .and_then(|found| n_endpoints(&list.type_url, &found, users))
                    .unwrap_or_default(),
            )
        }
        None => n_endpoints(&key.type_url, &resource, users),
    }
}

/// Returns the `ClusterLoadAssignment` from which a cluster gets its endpoints.
pub(super) fn endpoints_of(cluster: &Resource) -> Option<&ResourceKey> {
    cluster.children().iter().find(|child| child.type_url.as_str() == types::ENDPOINT)
}

/// Iterates over the names of the clusters that refer to a `ClusterLoadAssignment`, in any scope.
pub(super) fn clusters_with(
    references: &ReferenceIndex,
    key: &ResourceKey,
) -> impl Iterator<Item = ResourceName> {
    let all = references.referrers(&key.type_url, key.name.base());
    let clusters = all.filter(|(_, referrer)| referrer.type_url.as_str() == types::CLUSTER);
    clusters.map(|(_, referrer)| referrer.name)
}

/// Returns whether a cluster gets its endpoints from the resource `key`.
pub(super) fn refers_to(cluster: &Resource, key: &ResourceKey) -> bool {
    cluster.children().contains(key)
}

#[cfg(test)]
mod tests {
    use chancery_admission::{Manifest, Options, admit};
    use chancery_model::{Revision, ScopeName};

    use super::*;

    fn count(resource: &str) -> Option<usize> {
        count_of(resource, Users::Envoy)
    }

    fn count_of(resource: &str, users: Users) -> Option<usize> {
        let content = format!("resources: [{resource}]");
        let manifest = Manifest { file: "a.yaml".to_owned(), content };
        let options = Options::new(ScopeName::new("default").unwrap());
        let transaction = admit(&[manifest], &options).unwrap();
        let draft = &transaction.upserts[0].draft;
        n_endpoints(&draft.key.type_url, &Resource::publish(draft, Revision(1)), users)
    }

    #[test]
    fn grpc_clients_use_healthy_endpoints_of_localities_with_a_weight() {
        let of = |locality: &str| {
            let url = types::ENDPOINT;
            let text = format!("{{'@type': {url}, cluster_name: web, endpoints: [{locality}]}}");
            [Users::Envoy, Users::Grpc].map(|users| count_of(&text, users).unwrap())
        };
        for (health, n) in [("UNKNOWN", 1), ("HEALTHY", 1), ("UNHEALTHY", 0), ("DRAINING", 0)] {
            let list = format!("lb_endpoints: [{{health_status: {health}}}]");
            assert_eq!(of(&format!("{{load_balancing_weight: 1, {list}}}")), [1, n], "{health}");
            assert_eq!(of(&format!("{{{list}}}")), [1, 0], "{health}");
        }
    }

    fn endpoint(port: u16) -> String {
        format!(
            "{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}}}"
        )
    }

    #[test]
    fn endpoints_are_counted_wherever_they_are() {
        let (a, b) = (endpoint(1), endpoint(2));
        let assignment = |endpoints: &str| {
            let url = types::ENDPOINT;
            count(&format!("{{'@type': {url}, cluster_name: web, endpoints: {endpoints}}}"))
        };
        assert_eq!(assignment("[]"), Some(0));
        assert_eq!(assignment("[{priority: 1}]"), Some(0));
        assert_eq!(
            assignment(&format!("[{{lb_endpoints: [{a}]}}, {{lb_endpoints: [{b}]}}]")),
            Some(2)
        );
        let list = format!("[{{load_balancer_endpoints: {{lb_endpoints: [{a}, {b}]}}}}]");
        assert_eq!(assignment(&list), Some(2));
        let leds = "[{leds_cluster_locality_config: {leds_collection_name: x}}]";
        assert_eq!(assignment(leds), Some(1));
        let cluster = |rest: &str| {
            let url = types::CLUSTER;
            count(&format!("{{'@type': {url}, name: web, connect_timeout: 1s, {rest}}}"))
        };
        let inline =
            format!("load_assignment: {{cluster_name: web, endpoints: [{{lb_endpoints: [{a}]}}]}}");
        assert_eq!(cluster(&format!("type: STATIC, {inline}")), Some(1));
        assert_eq!(cluster("type: STRICT_DNS"), Some(0));
        assert_eq!(cluster("type: EDS"), None);
        assert_eq!(cluster("type: ORIGINAL_DST, lb_policy: CLUSTER_PROVIDED"), None);
        assert_eq!(cluster("cluster_type: {name: envoy.clusters.aggregate}"), None);
    }
}
