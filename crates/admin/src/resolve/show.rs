//! Converts the answer of the resolver to messages.

use chancery_admin_proto::v1 as pb;
use chancery_resolve::{
    Answer, ClusterChoice, End, Endpoint, Locality, Resolution, Skipped, Step, Undecided,
};

/// Converts an answer. The node and the replica are not set.
pub(super) fn answer(answer: Answer) -> pb::ResolveResponse {
    pb::ResolveResponse {
        resolutions: answer.resolutions.into_iter().map(resolution).collect(),
        listeners_omitted: answer.listeners_omitted as u64,
        ..pb::ResolveResponse::default()
    }
}

fn resolution(resolution: Resolution) -> pb::Resolution {
    let Resolution { listener, steps, end: its_end, undecided, undecided_omitted } = resolution;
    let undecided = undecided.into_iter();
    let undecided = undecided.map(|Undecided { place, reason, otherwise }| {
        pb::UndecidedCondition { place, reason, otherwise }
    });
    pb::Resolution {
        listener,
        steps: steps.into_iter().map(step).collect(),
        end: Some(end(its_end)),
        undecided: undecided.collect(),
        undecided_omitted: undecided_omitted as u64,
    }
}

fn step(step: Step) -> pb::ResolveStep {
    let Step { kind, place, result, skipped, skipped_omitted } = step;
    let skipped = skipped.into_iter();
    let skipped =
        skipped.map(|Skipped { place, reason }| pb::SkippedCandidate { place, reason }).collect();
    pb::ResolveStep {
        kind: kind.to_owned(),
        place,
        result,
        skipped,
        skipped_omitted: skipped_omitted as u64,
    }
}

fn end(end: End) -> pb::ResolveEnd {
    let served = end.is_served();
    let with = |kind: &str| pb::ResolveEnd { kind: kind.to_owned(), served, ..Default::default() };
    match end {
        End::Clusters { clusters: all, path, host } => pb::ResolveEnd {
            clusters: clusters(all),
            rewritten_path: path.unwrap_or_default(),
            rewritten_host: host.unwrap_or_default(),
            ..with("clusters")
        },
        End::Tcp { clusters: all } => pb::ResolveEnd { clusters: clusters(all), ..with("tcp") },
        End::Redirect { status, location } => {
            pb::ResolveEnd { status: status.into(), location, ..with("redirect") }
        }
        End::DirectResponse { status } => {
            pb::ResolveEnd { status: status.into(), ..with("direct response") }
        }
        End::NonForwarding => pb::ResolveEnd {
            message: "the route has a non_forwarding_action; a gRPC server handles the request"
                .to_owned(),
            ..with("non forwarding")
        },
        End::NoRoute { reason } => {
            pb::ResolveEnd { status: 404, message: reason, ..with("no route") }
        }
        End::Missing { type_url, name, effect } => pb::ResolveEnd {
            missing_type: type_url,
            missing_name: name,
            message: effect,
            ..with("missing resource")
        },
        End::NoConnection { reason } => pb::ResolveEnd { message: reason, ..with("no connection") },
        End::Undecided { reason } => pb::ResolveEnd { message: reason, ..with("undecided") },
    }
}

fn clusters(clusters: Vec<ClusterChoice>) -> Vec<pb::ResolvedCluster> {
    clusters.into_iter().map(cluster).collect()
}

fn cluster(cluster: ClusterChoice) -> pb::ResolvedCluster {
    let ClusterChoice { name, weight, discovery, service_name, missing, .. } = cluster;
    pb::ResolvedCluster {
        name,
        weight,
        discovery,
        service_name,
        localities: cluster.localities.into_iter().map(locality).collect(),
        endpoints_omitted: cluster.endpoints_omitted as u64,
        missing,
        members: clusters(cluster.members),
    }
}

fn locality(locality: Locality) -> pb::ResolvedLocality {
    let Locality { priority, region, zone, sub_zone, weight, collection, endpoints } = locality;
    let endpoints = endpoints.into_iter();
    let endpoints = endpoints.map(|Endpoint { address, health, weight }| pb::ResolvedEndpoint {
        address,
        health,
        weight,
    });
    let endpoints = endpoints.collect();
    pb::ResolvedLocality { priority, region, zone, sub_zone, weight, collection, endpoints }
}
