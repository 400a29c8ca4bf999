//! The whole tree of policies of a cluster, for given endpoints.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::{
    config::{LbConfig, WeightedLocality},
    error::ConvertError,
    names,
    notes::cluster_notes,
    outlier,
    proto::{Cluster, ClusterLoadAssignment, LbEndpoint, Locality, LocalityLbEndpoints},
};

/// The values of `health_status` of endpoints that clients use: UNKNOWN and HEALTHY.
const USED_HEALTH: [i32; 2] = [0, 1];

/// A cluster with endpoints: the cluster itself, or an underlying cluster of an aggregate cluster.
#[derive(Debug, Clone, Copy)]
pub struct Leaf<'a> {
    /// The cluster, of type EDS or LOGICAL_DNS.
    pub cluster: &'a Cluster,
    /// The endpoints of an EDS cluster, unless they are unknown.
    pub assignment: Option<&'a ClusterLoadAssignment>,
}

/// The cluster that decides the policy below an aggregate cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AggregatePolicy {
    /// The underlying cluster (gRFC A75).
    #[default]
    Underlying,
    /// The aggregate cluster (gRFCs A37 and A52).
    Aggregate,
}

/// The tree of policies, and what its leaves consist of.
#[derive(Debug, Clone, PartialEq)]
pub struct Tree {
    /// The outermost policy, `priority_experimental`.
    pub config: LbConfig,
    /// The children of the outermost policy in order of priority.
    pub priorities: Vec<Priority>,
    /// Notes about configured values that clients replace or ignore.
    pub warnings: Vec<String>,
}

/// A child of `priority_experimental`.
#[derive(Debug, Clone, PartialEq)]
pub struct Priority {
    /// The name of the child.
    pub name: String,
    /// The cluster with the endpoints.
    pub cluster: String,
    /// The localities with this priority.
    pub localities: Vec<WeightedLocality>,
    /// The policy that `xds_wrr_locality_experimental` creates, if it is the policy of the cluster.
    pub weighted_target: Option<LbConfig>,
}

/// Builds the tree of policies of a cluster from its leaves in order of priority. `policy_of` converts the policy of
/// a cluster.
///
/// # Errors
/// Fails if a gRPC client rejects a cluster or an assignment.
pub(crate) fn build(
    cluster: &Cluster,
    leaves: &[Leaf<'_>],
    aggregate: AggregatePolicy,
    policy_of: impl Fn(&Cluster) -> Result<LbConfig, ConvertError>,
) -> Result<Tree, ConvertError> {
    let (mut children, mut order) = (Map::new(), Vec::new());
    let (mut priorities, mut warnings) = (Vec::new(), Vec::new());
    for leaf in leaves {
        let decides = match aggregate {
            AggregatePolicy::Underlying => leaf.cluster,
            AggregatePolicy::Aggregate => cluster,
        };
        let policy = policy_of(decides)?;
        for note in cluster_notes(decides).into_iter().chain(policy.notes()) {
            let note = format!("cluster {:?}: {note}", decides.name);
            if !warnings.contains(&note) {
                warnings.push(note);
            }
        }
        let is_eds = leaf.cluster.cluster_type.is_none() && leaf.cluster.r#type == Cluster::EDS;
        for localities in leaf.priorities(&mut warnings)? {
            let name = format!("priority-{}", priorities.len() + 1);
            let config = child(leaf.cluster, &policy)?;
            children.insert(
                name.clone(),
                json!({ "config": config.to_json(), "ignoreReresolutionRequests": is_eds }),
            );
            order.push(Value::from(name.clone()));
            let weighted_target = if policy.name == names::WRR_LOCALITY {
                Some(policy.weighted_target(&localities)?.config)
            } else {
                None
            };
            let cluster = leaf.cluster.name.clone();
            priorities.push(Priority { name, cluster, localities, weighted_target });
        }
    }
    let config = json!({ "children": children, "priorities": order });
    let config = LbConfig::new(names::PRIORITY, config);
    Ok(Tree { config, priorities, warnings })
}

/// Returns the policies of a child, from the outlier detection down to the policy of the cluster.
fn child(cluster: &Cluster, policy: &LbConfig) -> Result<LbConfig, ConvertError> {
    let config = json!({ "cluster": cluster.name, "childPolicy": policy.to_json() });
    let cluster_impl = LbConfig::new(names::CLUSTER_IMPL, config);
    outlier::config(cluster.outlier_detection.as_ref(), &cluster_impl)
}

impl Leaf<'_> {
    /// Returns the localities of each priority. A cluster without endpoints has one empty priority.
    fn priorities(
        &self,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Vec<WeightedLocality>>, ConvertError> {
        let name = &self.cluster.name;
        match (&self.cluster.cluster_type, self.cluster.r#type) {
            (None, Cluster::EDS) => match self.assignment {
                Some(assignment) => by_priority(assignment, warnings),
                None => {
                    warnings.push(format!("cluster {name:?}: its endpoints are unknown"));
                    Ok(vec![Vec::new()])
                }
            },
            (None, Cluster::LOGICAL_DNS) => {
                let localities = self.cluster.load_assignment.iter().flat_map(|all| &all.endpoints);
                let endpoints = localities.flat_map(|locality| &locality.lb_endpoints).collect();
                let endpoints = addresses(endpoints);
                let locality = Locality::default();
                Ok(vec![vec![WeightedLocality { locality, weight: Some(1), endpoints }]])
            }
            _ => Err(ConvertError::invalid(
                "type",
                format!(
                    "gRPC supports neither the type of cluster {name:?} nor its endpoints; use EDS"
                ),
            )),
        }
    }
}

/// Groups the localities of an assignment, without those that clients skip.
fn by_priority(
    assignment: &ClusterLoadAssignment,
    warnings: &mut Vec<String>,
) -> Result<Vec<Vec<WeightedLocality>>, ConvertError> {
    let mut groups: BTreeMap<u32, Vec<WeightedLocality>> = BTreeMap::new();
    for (index, entry) in assignment.endpoints.iter().enumerate() {
        let error = |rule: String| ConvertError::invalid(format!("endpoints[{index}]"), rule);
        let Some(locality) = &entry.locality else {
            return Err(error("the field `locality` is missing".to_owned()));
        };
        if entry.load_balancing_weight.unwrap_or(0) == 0 {
            let key = locality.key();
            warnings.push(format!("endpoints[{index}]: clients skip {key}, which has no weight"));
            continue;
        }
        let group = groups.entry(entry.priority).or_default();
        if group.iter().any(|other| other.locality == *locality) {
            let priority = entry.priority;
            return Err(error(format!("priority {priority} contains {} twice", locality.key())));
        }
        let weighted = weighted(locality, entry);
        let n_skipped = entry.lb_endpoints.len() - weighted.endpoints.len();
        if n_skipped > 0 {
            warnings.push(format!(
                "endpoints[{index}]: clients skip {n_skipped} endpoints of {}, which are neither \
                 HEALTHY nor UNKNOWN, or have no address",
                locality.key()
            ));
        }
        group.push(weighted);
    }
    for (expected, (priority, group)) in (0_u32..).zip(&groups) {
        if *priority != expected {
            let rule = format!("the priority {priority} is used, but not {expected}");
            return Err(ConvertError::invalid("endpoints", rule));
        }
        let sum: u64 = group.iter().map(|one| u64::from(one.weight.unwrap_or(0))).sum();
        if sum > u64::from(u32::MAX) {
            let rule =
                format!("the weights of priority {priority} add up to {sum}, more than 4294967295");
            return Err(ConvertError::invalid("endpoints", rule));
        }
    }
    if groups.is_empty() { Ok(vec![Vec::new()]) } else { Ok(groups.into_values().collect()) }
}

fn weighted(locality: &Locality, entry: &LocalityLbEndpoints) -> WeightedLocality {
    let used = |endpoint: &&LbEndpoint| USED_HEALTH.contains(&endpoint.health_status);
    WeightedLocality {
        locality: locality.clone(),
        weight: entry.load_balancing_weight,
        endpoints: addresses(entry.lb_endpoints.iter().filter(used).collect()),
    }
}

fn addresses(endpoints: Vec<&LbEndpoint>) -> Vec<String> {
    let addresses = endpoints.into_iter().filter_map(|endpoint| {
        let address = endpoint.endpoint.as_ref()?.address.as_ref()?.socket_address.as_ref()?;
        Some(if address.address.contains(':') {
            format!("[{}]:{}", address.address, address.port_value)
        } else {
            format!("{}:{}", address.address, address.port_value)
        })
    });
    addresses.collect()
}
