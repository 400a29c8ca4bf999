//! The answer: the steps of a walk, its end, and the conditions that were not decided.

/// The paths of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// One path for each listener that accepts the connection; at least one.
    pub resolutions: Vec<Resolution>,
    /// The number of further listeners that accept the connection.
    pub listeners_omitted: usize,
}

/// The path of a request through one listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The name of the listener; empty if no listener accepts the connection.
    pub listener: String,
    /// The steps in their order.
    pub steps: Vec<Step>,
    /// The end of the path.
    pub end: End,
    /// The conditions that were not decided. The end may be another one if they hold.
    pub undecided: Vec<Undecided>,
    /// The number of undecided conditions beyond the limit.
    pub undecided_omitted: usize,
}

/// One step of the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The kind of the step, such as `route`.
    pub kind: &'static str,
    /// The place that was selected, such as `virtual_hosts[0].routes[2]`.
    pub place: String,
    /// The reason why it was selected.
    pub result: String,
    /// The earlier candidates that did not match.
    pub skipped: Vec<Skipped>,
    /// The number of further candidates that did not match.
    pub skipped_omitted: usize,
}

/// A candidate that did not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The place of the candidate.
    pub place: String,
    /// The reason why it did not match.
    pub reason: String,
}

/// A condition that was not decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecided {
    /// The place of the condition.
    pub place: String,
    /// The fact on which the condition depends.
    pub reason: String,
    /// The consequence if the condition holds; empty if it is not known.
    pub otherwise: String,
}

/// The end of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The request is forwarded to one of these clusters.
    Clusters {
        /// The clusters. Several clusters have weights.
        clusters: Vec<ClusterChoice>,
        /// The path that the cluster receives, if the route rewrites it.
        path: Option<String>,
        /// The host that the cluster receives, if the route rewrites it.
        host: Option<String>,
    },
    /// The connection is forwarded without HTTP, to one of these clusters.
    Tcp {
        /// The clusters. Several clusters have weights.
        clusters: Vec<ClusterChoice>,
    },
    /// The node answers with a redirect.
    Redirect {
        /// The status code.
        status: u16,
        /// The header `location`.
        location: String,
    },
    /// The node answers with a fixed response.
    DirectResponse {
        /// The status code.
        status: u16,
    },
    /// The route selects no cluster. gRPC servers handle such requests themselves.
    NonForwarding,
    /// No virtual host or no route matches: the node answers with 404.
    NoRoute {
        /// The reason.
        reason: String,
    },
    /// The node does not have a resource that the path needs.
    Missing {
        /// The type of the resource.
        type_url: String,
        /// The name of the resource.
        name: String,
        /// The consequence for the request.
        effect: String,
    },
    /// No listener or no filter chain accepts the connection.
    NoConnection {
        /// The reason.
        reason: String,
    },
    /// The path depends on a choice that is not decided.
    Undecided {
        /// The reason.
        reason: String,
    },
}

impl End {
    /// Returns whether the request reaches a cluster that the node has, or is answered by a redirect, by a direct response
    /// or by the node itself.
    #[must_use]
    pub fn is_served(&self) -> bool {
        match self {
            Self::Clusters { clusters, .. } | Self::Tcp { clusters } => {
                clusters.iter().any(|cluster| cluster.missing.is_empty())
            }
            Self::Redirect { .. } | Self::DirectResponse { .. } | Self::NonForwarding => true,
            Self::NoRoute { .. }
            | Self::Missing { .. }
            | Self::NoConnection { .. }
            | Self::Undecided { .. } => false,
        }
    }
}

/// A cluster that a request may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterChoice {
    /// The name.
    pub name: String,
    /// The weight among the clusters of the route; 0 if the route has only one cluster.
    pub weight: u32,
    /// The way in which the cluster finds its endpoints, such as `EDS`.
    pub discovery: String,
    /// The name under which the cluster requests its endpoints; empty if it does not request them.
    pub service_name: String,
    /// The endpoints, in the order of their priorities.
    pub localities: Vec<Locality>,
    /// The number of endpoints beyond the limit.
    pub endpoints_omitted: usize,
    /// The reason why the cluster cannot take requests; empty otherwise.
    pub missing: String,
    /// The clusters of which an aggregate cluster consists, in the order of their priorities.
    pub members: Vec<ClusterChoice>,
}

/// The endpoints of one locality.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Locality {
    /// The priority; 0 is the highest.
    pub priority: u32,
    /// The region.
    pub region: String,
    /// The zone.
    pub zone: String,
    /// The sub-zone.
    pub sub_zone: String,
    /// The weight; 0 if it is not set.
    pub weight: u32,
    /// The collection (LEDS) with the endpoints; empty if the locality contains them.
    pub collection: String,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// An endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// `HOST:PORT`, the path of a socket, or the name of an internal listener.
    pub address: String,
    /// The health status in the configuration, such as `HEALTHY`.
    pub health: String,
    /// The weight; 0 if it is not set.
    pub weight: u32,
}
