//! The clusters of a route, with their endpoints.

use chancery_model::types;

use crate::{
    answer::ClusterChoice,
    endpoints::{localities, n_endpoints},
    headers::{HeaderValue, Seen},
    message::Msg,
    walk::Walk,
};

/// The maximum number of clusters in an answer, with the members of aggregate clusters.
const CLUSTERS_MAX: usize = 500;
/// The maximum number of nested aggregate clusters.
const LEVELS_MAX: usize = 5;
const AGGREGATE: &str = "envoy.extensions.clusters.aggregate.v3.ClusterConfig";

/// The names of clusters with their weights.
type Weighted = Vec<(String, u32)>;

/// Returns the weighted clusters of a route. Without a request, clusters in headers are left out.
pub(crate) fn weighted(walk: &mut Walk<'_>, list: Msg<'_>, seen: Option<&Seen<'_>>) -> Weighted {
    let mut names = Weighted::new();
    for (index, cluster) in list.list("clusters").enumerate() {
        // Envoy's TCP proxy has a plain number, and its router a wrapper.
        let weight = cluster.wrapped("weight").unwrap_or_else(|| cluster.number("weight"));
        let weight = u32::try_from(weight).unwrap_or_default();
        let header = cluster.text("cluster_header");
        if header.is_empty() {
            names.push((cluster.text("name").to_owned(), weight));
            continue;
        }
        match seen.map(|seen| seen.header(header)) {
            Some(HeaderValue::Known(Some(name))) => names.push((name, weight)),
            _ => {
                let place = format!("weighted_clusters.clusters[{index}].cluster_header");
                let reason =
                    format!("the request has no header {header:?}, which names the cluster");
                walk.doubt(&place, &reason, "");
            }
        }
    }
    if list.has("header_name") || list.has("use_hash_policy") {
        walk.doubt("weighted_clusters", "a hash of the request selects the cluster", "");
    }
    names.retain(|(_, weight)| *weight > 0);
    names
}

/// Returns the clusters with these names. A single cluster has no weight.
pub(crate) fn choose(walk: &mut Walk<'_>, names: Weighted) -> Vec<ClusterChoice> {
    let mut budget = CLUSTERS_MAX;
    let choices = names
        .into_iter()
        .map(|(name, weight)| ClusterChoice { weight, ..cluster(walk, &name, 0, &mut budget) });
    choices.collect()
}

fn cluster(walk: &mut Walk<'_>, name: &str, level: usize, budget: &mut usize) -> ClusterChoice {
    let choice = ClusterChoice { name: name.to_owned(), ..ClusterChoice::default() };
    if level > LEVELS_MAX || *budget == 0 {
        let missing = format!(
            "not shown: an answer has at most {CLUSTERS_MAX} clusters in {LEVELS_MAX} levels"
        );
        return ClusterChoice { missing, ..choice };
    }
    *budget -= 1;
    let Some(message) = walk.fetch(types::CLUSTER, name) else {
        let missing = "the node has no such cluster, unless its bootstrap contains it; without it, the node answers with 503";
        return ClusterChoice { missing: missing.to_owned(), ..choice };
    };
    let message = Msg(&message);
    if message.has("lb_subset_config") {
        let place = format!("cluster {name:?}, lb_subset_config");
        walk.doubt(&place, "the metadata of the route selects a subset of the endpoints", "");
    }
    if let Some(kind) = message.sub("cluster_type") {
        return of_extension(walk, kind, choice, level, budget);
    }
    match message.number("type") {
        3 => from_eds(walk, message, choice),
        4 => ClusterChoice { discovery: "ORIGINAL_DST".to_owned(), ..choice },
        other => {
            let discovery = match other {
                0 => "STATIC",
                1 => "STRICT_DNS",
                _ => "LOGICAL_DNS",
            };
            with_endpoints(choice, discovery, message.sub("load_assignment"))
        }
    }
}

fn of_extension(
    walk: &mut Walk<'_>,
    kind: Msg<'_>,
    choice: ClusterChoice,
    level: usize,
    budget: &mut usize,
) -> ClusterChoice {
    let content = kind.any("typed_config");
    let aggregate = content.as_ref().and_then(|content| content.of_type(AGGREGATE));
    let Some(aggregate) = aggregate else {
        let discovery = content.map(|content| content.type_name).unwrap_or_default();
        return ClusterChoice { discovery, ..choice };
    };
    let members =
        aggregate.texts("clusters").map(|member| cluster(walk, member, level + 1, budget));
    let members: Vec<ClusterChoice> = members.collect();
    let has_member = members.iter().any(|member| member.missing.is_empty());
    let missing = if has_member {
        ""
    } else {
        "none of the clusters of the aggregate cluster takes requests"
    };
    ClusterChoice {
        discovery: "aggregate".to_owned(),
        members,
        missing: missing.to_owned(),
        ..choice
    }
}

fn from_eds(walk: &mut Walk<'_>, cluster: Msg<'_>, choice: ClusterChoice) -> ClusterChoice {
    let config = cluster.sub("eds_cluster_config");
    let service = config.map(|config| config.text("service_name")).unwrap_or_default();
    let service = if service.is_empty() { choice.name.clone() } else { service.to_owned() };
    let choice = ClusterChoice { service_name: service.clone(), ..choice };
    match walk.fetch(types::ENDPOINT, &service) {
        Some(assignment) => with_endpoints(choice, "EDS", Some(Msg(&assignment))),
        None => ClusterChoice {
            discovery: "EDS".to_owned(),
            missing: format!("the node has no endpoints {service:?}, and answers with 503"),
            ..choice
        },
    }
}

fn with_endpoints(
    choice: ClusterChoice,
    discovery: &str,
    assignment: Option<Msg<'_>>,
) -> ClusterChoice {
    let (localities, endpoints_omitted) = assignment.map(localities).unwrap_or_default();
    let has_endpoints = n_endpoints(&localities) > 0
        || localities.iter().any(|locality| !locality.collection.is_empty());
    let missing = if has_endpoints {
        ""
    } else {
        "the cluster has no endpoints, and the node answers with 503"
    };
    ClusterChoice {
        discovery: discovery.to_owned(),
        localities,
        endpoints_omitted,
        missing: missing.to_owned(),
        ..choice
    }
}
