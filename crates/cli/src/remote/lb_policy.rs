//! The commands `lb-policy convert` and `lb-policy explain`.

mod source;
mod text;

use std::{
    collections::BTreeSet,
    io::{self, Write},
    path::PathBuf,
};

use bytes::Bytes;
use chancery_admin_proto::v1 as pb;
use chancery_lb_policy::{
    AggregatePolicy, Client, LbConfig, Leaf, Registry, Tree, cluster_notes,
    proto::{AggregateClusterConfig, Cluster, ClusterLoadAssignment},
};
use chancery_model::types;
use clap::{Args, Subcommand, ValueEnum, builder::NonEmptyStringValueParser};
use prost::Message;
use serde_json::{Value, json};

use super::{client::Servers, parameters::Parameters, read::Read};
use crate::{
    answer::{Answer, Output},
    failure::Failure,
    help::examples,
    text::plain,
};
use source::{Server, Source};

/// The type of the configuration of an aggregate cluster.
const AGGREGATE: &str = "envoy.extensions.clusters.aggregate.v3.ClusterConfig";
/// The maximum depth of aggregate clusters.
const AGGREGATE_DEPTH_MAX: usize = 16;
/// The maximum number of clusters in the tree of an aggregate cluster.
const CLUSTERS_MAX: usize = 1000;

/// The subcommands of `lb-policy`.
#[derive(Debug, Subcommand)]
pub(crate) enum LbPolicy {
    /// Convert the policy of a cluster to gRPC service config
    ///
    /// Prints the JSON that gRPC clients use, or the reason why they reject the cluster. With -f, the
    /// command reads files and connects to no server. A file is a manifest, or a single Cluster or
    /// LoadBalancingPolicy in YAML or JSON.
    #[command(after_help = examples(&[
        "lb-policy convert web",
        "lb-policy convert -f cluster.yaml --client java --policy myorg.MyLb",
    ]))]
    Convert {
        /// Name of the cluster [default: the only cluster of the files]
        #[arg(value_name = "CLUSTER")]
        cluster: Option<String>,
        #[command(flatten)]
        options: Options,
    },
    /// Explain the whole tree of policies of a cluster, with its endpoints
    ///
    /// Shows the priorities, localities with their weights, and endpoints that gRPC clients use. With
    /// -f, the files contain the cluster and its ClusterLoadAssignment.
    #[command(after_help = examples(&[
        "lb-policy explain web --node client-1",
        "lb-policy explain web -f cluster.yaml -f endpoints.yaml",
    ]))]
    Explain {
        /// Name of the cluster
        #[arg(value_name = "CLUSTER")]
        cluster: String,
        /// Take the policy below an aggregate cluster from this cluster
        #[arg(long, value_enum, value_name = "CLUSTER", default_value = "underlying")]
        aggregate_policy: Decides,
        #[command(flatten)]
        options: Options,
    },
}

/// The flags of both subcommands.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Read this file or directory instead of a server; - is standard input; repeatable
    #[arg(short = 'f', long = "file", value_name = "FILE|DIR|-")]
    files: Vec<PathBuf>,
    /// Convert like this gRPC implementation [default: with all policies of gRPC]
    #[arg(long, value_enum, value_name = "CLIENT")]
    client: Option<ClientName>,
    /// Treat this custom policy as registered in the client; repeatable
    #[arg(long = "policy", value_name = "NAME")]
    policies: Vec<String>,
    /// Read the resources of this scope [default: all]
    #[arg(long, conflicts_with = "files", value_parser = NonEmptyStringValueParser::new())]
    scope: Option<String>,
    /// Read the resources that this connected node sees
    #[arg(long, value_name = "ID", conflicts_with = "files")]
    node: Option<String>,
    #[command(flatten)]
    parameters: Parameters,
    #[command(flatten)]
    read: Read,
}

/// The name of a gRPC implementation.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ClientName {
    /// C++, Python, Ruby, PHP
    CCore,
    /// Go
    Go,
    /// Java
    Java,
    /// Node.js
    Node,
}

/// The cluster that decides the policy below an aggregate cluster.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Decides {
    /// The underlying cluster (gRFC A75)
    Underlying,
    /// The aggregate cluster (gRFC A37)
    Aggregate,
}

/// Runs a subcommand.
pub(super) async fn run(
    command: LbPolicy,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    match command {
        LbPolicy::Convert { cluster, options } => {
            let registry = options.registry();
            let mut source = options.source(servers).await?;
            let name = match cluster {
                Some(name) => name,
                None => source.only_cluster()?,
            };
            let cluster = cluster_of(&mut source, &name).await?;
            let config =
                registry.convert_cluster(&cluster).map_err(|error| rejected(&name, error))?;
            print_config(&cluster, &config, answer)
        }
        LbPolicy::Explain { cluster: name, aggregate_policy, options } => {
            let registry = options.registry();
            let mut source = options.source(servers).await?;
            let cluster = cluster_of(&mut source, &name).await?;
            let leaves = leaves(&mut source, &cluster).await?;
            let leaves: Vec<Leaf<'_>> = leaves
                .iter()
                .map(|(cluster, assignment)| Leaf { cluster, assignment: assignment.as_ref() })
                .collect();
            let aggregate = match aggregate_policy {
                Decides::Underlying => AggregatePolicy::Underlying,
                Decides::Aggregate => AggregatePolicy::Aggregate,
            };
            let tree = registry.tree(&cluster, &leaves, aggregate);
            print_tree(&name, &tree.map_err(|error| rejected(&name, error))?, answer)
        }
    }
}

impl Options {
    fn registry(&self) -> Registry {
        let registry = match self.client {
            None => Registry::default(),
            Some(ClientName::CCore) => Registry::of_client(Client::CCore),
            Some(ClientName::Go) => Registry::of_client(Client::Go),
            Some(ClientName::Java) => Registry::of_client(Client::Java),
            Some(ClientName::Node) => Registry::of_client(Client::Node),
        };
        self.policies.iter().fold(registry, |registry, name| registry.with_policy(name))
    }

    async fn source(self, servers: &Servers) -> Result<Source, Failure> {
        let dynamic_parameters = self.parameters.into_map()?;
        if !self.files.is_empty() {
            if !dynamic_parameters.is_empty() {
                return Err(Failure::new("--parameter selects stored variants; remove it, or -f"));
            }
            return Source::read(&self.files);
        }
        let selection = pb::ListResourcesRequest {
            scope: self.scope.unwrap_or_default(),
            view_of_node: self.node.unwrap_or_default(),
            stale: self.read.stale,
            dynamic_parameters,
            ..Default::default()
        };
        let client = servers.connect_any().await?;
        Ok(Source::Server(Box::new(Server { client, selection })))
    }
}

fn rejected(name: &str, error: impl std::fmt::Display) -> Failure {
    Failure::new(format_args!("gRPC clients reject cluster {name:?}: {error}"))
}

fn decoded<M: Message + Default>(name: &str, body: Bytes) -> Result<M, Failure> {
    M::decode(body).map_err(|error| Failure::new(format_args!("cannot decode {name:?}: {error}")))
}

async fn cluster_of(source: &mut Source, name: &str) -> Result<Cluster, Failure> {
    match source.get(types::CLUSTER, name).await? {
        Some(body) => decoded(name, body),
        None => Err(Failure::new(format_args!("cluster {name:?} does not exist"))),
    }
}

/// Returns the cluster with its assignment, or the underlying clusters of an aggregate cluster in
/// order of priority, each once.
async fn leaves(
    source: &mut Source,
    cluster: &Cluster,
) -> Result<Vec<(Cluster, Option<ClusterLoadAssignment>)>, Failure> {
    let (mut leaves, mut seen) = (Vec::new(), BTreeSet::new());
    let mut open = vec![(cluster.clone(), 1)];
    while let Some((cluster, depth)) = open.pop() {
        if !seen.insert(cluster.name.clone()) {
            continue;
        }
        let Some(names) = underlying(&cluster)? else {
            let assignment = assignment(source, &cluster).await?;
            leaves.push((cluster, assignment));
            continue;
        };
        if depth == AGGREGATE_DEPTH_MAX || seen.len() + open.len() + names.len() > CLUSTERS_MAX {
            return Err(Failure::new(format_args!(
                "aggregate cluster {:?} is nested {AGGREGATE_DEPTH_MAX} levels deep, or there are \
                 more than {CLUSTERS_MAX} clusters",
                cluster.name
            )));
        }
        for name in names.iter().rev().filter(|name| !seen.contains(*name)) {
            open.push((cluster_of(source, name).await?, depth + 1));
        }
    }
    if leaves.is_empty() {
        return Err(Failure::new(format_args!(
            "aggregate cluster {:?} has no underlying clusters",
            cluster.name
        )));
    }
    Ok(leaves)
}

async fn assignment(
    source: &mut Source,
    cluster: &Cluster,
) -> Result<Option<ClusterLoadAssignment>, Failure> {
    let service = cluster.eds_cluster_config.as_ref().map(|eds| eds.service_name.as_str());
    let name = service.filter(|name| !name.is_empty()).unwrap_or(&cluster.name);
    let body = source.get(types::ENDPOINT, name).await?;
    body.map(|body| decoded(name, body)).transpose()
}

/// Returns the names of the underlying clusters of an aggregate cluster.
fn underlying(cluster: &Cluster) -> Result<Option<Vec<String>>, Failure> {
    let config = cluster.cluster_type.as_ref().and_then(|it| it.typed_config.as_ref());
    match config {
        Some(any) if any.type_url.rsplit('/').next() == Some(AGGREGATE) => {
            let config: AggregateClusterConfig = decoded(&cluster.name, any.value.clone().into())?;
            Ok(Some(config.clusters))
        }
        _ => Ok(None),
    }
}

/// Prints a service config. Advice goes to standard error.
fn print_config(
    cluster: &Cluster,
    config: &LbConfig,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    for note in cluster_notes(cluster).into_iter().chain(config.notes()) {
        // A failure to write to standard error cannot be reported anywhere.
        drop(writeln!(io::stderr().lock(), "warning: {}", plain(&note)));
    }
    print_json(&json!({ "loadBalancingConfig": config.to_json() }), answer)
}

fn print_json(value: &Value, answer: &mut Answer<'_>) -> Result<(), Failure> {
    match answer.output {
        Output::Text | Output::Wide | Output::Json | Output::Sarif => answer.json(value),
        Output::Yaml => answer.yaml(value),
    }
}

fn print_tree(name: &str, tree: &Tree, answer: &mut Answer<'_>) -> Result<(), Failure> {
    if answer.output == Output::Text {
        return answer.text(|out| text::write(name, tree, out));
    }
    let priorities: Vec<Value> = (tree.priorities.iter())
        .map(|priority| {
            let localities: Vec<Value> = (priority.localities.iter())
                .map(|it| {
                    json!({
                        "locality": it.locality.key(),
                        "weight": it.weight,
                        "endpoints": it.endpoints,
                    })
                })
                .collect();
            json!({
                "name": priority.name,
                "cluster": priority.cluster,
                "localities": localities,
                "weightedTarget": priority.weighted_target.as_ref().map(LbConfig::to_json),
            })
        })
        .collect();
    let tree = json!({
        "cluster": name,
        "loadBalancingConfig": tree.config.to_json(),
        "priorities": priorities,
        "warnings": tree.warnings,
    });
    print_json(&tree, answer)
}
