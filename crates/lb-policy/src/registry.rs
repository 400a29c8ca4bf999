//! The registry: the policies that a client supports.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde_json::Value;

use crate::{
    c_core,
    cluster::{LegacyLeastRequest, legacy_policy},
    config::LbConfig,
    convert::{Context, Converter, LEVELS_MAX, Support, decode_at, walk},
    converters,
    error::ConvertError,
    java,
    model::{self, Model},
    names::{self, types},
    policies,
    proto::{Cluster, LoadBalancingPolicy},
    tree::{self, AggregatePolicy, Leaf, Tree},
    typed_struct,
};

/// A function from the bytes of a built-in policy to its configuration.
type BuiltIn = fn(&[u8], &Context<'_>) -> Result<Option<LbConfig>, ConvertError>;

const CONVERTERS: &[(&str, BuiltIn)] = &[
    (types::RING_HASH, converters::ring_hash),
    (types::ROUND_ROBIN, converters::round_robin),
    (types::WRR_LOCALITY, converters::wrr_locality),
    (types::LEAST_REQUEST, converters::least_request),
    (types::WEIGHTED_ROUND_ROBIN, converters::weighted_round_robin),
    (types::PICK_FIRST, converters::pick_first),
    (types::RANDOM_SUBSETTING, converters::random_subsetting),
    (types::TYPED_STRUCT, typed_struct::convert),
    (types::UDPA_TYPED_STRUCT, typed_struct::convert),
];

/// A gRPC implementation whose support of policies [`Registry::of_client`] knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Client {
    /// C++, Python, Ruby, PHP: no least_request; an unset hash function is XX_HASH; stricter rules for
    /// weighted_round_robin, type URLs of a `TypedStruct`, and entries without a type.
    CCore,
    /// Go: no random_subsetting from xDS; a legacy LEAST_REQUEST has no locality policy.
    Go,
    /// Java: no random_subsetting from xDS; sizes of a ring are capped; any penalty of weighted_round_robin;
    /// 17 levels of policies.
    Java,
    /// Node: no least_request and no random_subsetting; 17 levels of policies; sizes of a ring only in
    /// the legacy policy.
    Node,
}

/// The policies that a client supports: the converters of xDS messages, and the client's own LB
/// policy registry, whose parser checks each result.
///
/// [`Registry::default`] has all converters and policies of gRFC A52 and its successors. The methods
/// `with_…` and `without_…` adapt it to a client.
#[derive(Clone)]
pub struct Registry {
    converters: BTreeMap<String, Arc<Converter>>,
    model: Model,
    levels_max: usize,
    rejects_empty_entries: bool,
    legacy_least_request: LegacyLeastRequest,
}

impl Default for Registry {
    fn default() -> Self {
        let converters = CONVERTERS.iter().map(|(name, converter)| {
            let converter: Arc<Converter> = Arc::new(converter);
            ((*name).to_owned(), converter)
        });
        Self {
            converters: converters.collect(),
            model: policies::model(),
            levels_max: LEVELS_MAX,
            rejects_empty_entries: false,
            legacy_least_request: LegacyLeastRequest::default(),
        }
    }
}

impl Registry {
    /// Returns what a recent version of a gRPC implementation supports.
    pub fn of_client(client: Client) -> Self {
        let all = Self::default();
        match client {
            Client::CCore => all.of_c_core(),
            Client::Go => all
                .with_built_in(names::RING_HASH, policies::ring_hash_of_go)
                .without_converter(types::RANDOM_SUBSETTING)
                .with_legacy_least_request(LegacyLeastRequest::Bare),
            Client::Java => all.of_java(),
            Client::Node => Self { levels_max: LEVELS_MAX + 1, ..all }
                .without_converter(types::LEAST_REQUEST)
                .without_policy(names::LEAST_REQUEST)
                .without_converter(types::RANDOM_SUBSETTING)
                .without_policy(names::RANDOM_SUBSETTING)
                .with_converter(types::RING_HASH, converters::ring_hash_without_sizes)
                .with_legacy_least_request(LegacyLeastRequest::Rejected),
        }
    }

    fn of_java(mut self) -> Self {
        self.levels_max = LEVELS_MAX + 1;
        self.with_built_in(names::RING_HASH, java::check_ring_hash)
            .with_built_in(names::WEIGHTED_ROUND_ROBIN, java::check_weighted)
            .with_built_in(names::LEAST_REQUEST, java::check_least_request)
            .with_built_in(names::CLUSTER_MANAGER, java::check_cluster_manager)
            .without_policy(names::OVERRIDE_HOST)
            .without_policy(names::RLS)
            .without_converter(types::RANDOM_SUBSETTING)
            .with_converter(types::RING_HASH, java::ring_hash)
            .with_converter(types::WEIGHTED_ROUND_ROBIN, java::weighted)
            .with_converter(types::TYPED_STRUCT, java::typed_struct)
            .with_converter(types::UDPA_TYPED_STRUCT, java::typed_struct)
    }

    fn of_c_core(mut self) -> Self {
        self.rejects_empty_entries = true;
        self.with_built_in(names::WEIGHTED_ROUND_ROBIN, c_core::weighted_round_robin)
            .with_built_in(names::PRIORITY, c_core::priority)
            .without_converter(types::LEAST_REQUEST)
            .without_policy(names::LEAST_REQUEST)
            .with_default_hash()
            .with_converter(types::TYPED_STRUCT, c_core::typed_struct)
            .with_converter(types::UDPA_TYPED_STRUCT, c_core::typed_struct)
            .with_legacy_least_request(LegacyLeastRequest::Rejected)
    }

    fn with_built_in(mut self, name: &str, check: model::BuiltIn) -> Self {
        self.model.add_built_in(name, check);
        self
    }

    /// Adds a custom policy, which a `TypedStruct` or another policy can name. Every configuration
    /// object is valid.
    #[must_use]
    pub fn with_policy(self, name: impl Into<String>) -> Self {
        self.with_checked_policy(name, |_| Ok(()))
    }

    /// Adds a custom policy, whose parser accepts a configuration or returns the violated rule.
    #[must_use]
    pub fn with_checked_policy(
        mut self,
        name: impl Into<String>,
        check: impl Fn(&Value) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.model.add(name.into(), check);
        self
    }

    /// Removes a policy of the client's LB policy registry.
    #[must_use]
    pub fn without_policy(mut self, name: &str) -> Self {
        self.model.remove(name);
        self
    }

    /// Adds a converter for a message type, such as `myorg.v1.MyPolicy`. It receives the bytes of the
    /// message. `None` skips the policy, as if its type were unknown.
    ///
    /// The name of the returned policy has to be known too: see [`Registry::with_policy`].
    #[must_use]
    pub fn with_converter(
        mut self,
        type_name: impl Into<String>,
        converter: impl Fn(&[u8], &Context<'_>) -> Result<Option<LbConfig>, ConvertError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.converters.insert(type_name.into(), Arc::new(converter));
        self
    }

    /// Removes the converter of a message type, so that the type is skipped.
    #[must_use]
    pub fn without_converter(mut self, type_name: &str) -> Self {
        self.converters.remove(type_name);
        self
    }

    /// Accepts a ring hash policy without hash function, like C-core.
    #[must_use]
    pub fn with_default_hash(self) -> Self {
        self.with_converter(types::RING_HASH, converters::ring_hash_lenient)
    }

    /// Sets the treatment of the legacy policy `LEAST_REQUEST`.
    #[must_use]
    pub fn with_legacy_least_request(self, legacy_least_request: LegacyLeastRequest) -> Self {
        Self { legacy_least_request, ..self }
    }

    /// Converts the first supported policy of a list, and checks the result like the client's LB
    /// policy registry.
    ///
    /// # Errors
    /// Fails if the list contains no supported policy, or the first supported policy is invalid.
    pub fn convert(&self, policy: &LoadBalancingPolicy) -> Result<LbConfig, ConvertError> {
        let converted = self.convert_unchecked(policy)?;
        self.check(&converted.to_json())?;
        Ok(converted)
    }

    /// Converts the bytes of an `envoy.config.cluster.v3.LoadBalancingPolicy`.
    ///
    /// # Errors
    /// Fails if the bytes are malformed or longer than [`crate::MESSAGE_BYTES_MAX`], or if
    /// [`Registry::convert`] fails.
    pub fn convert_bytes(&self, bytes: &[u8]) -> Result<LbConfig, ConvertError> {
        self.convert(&decode_at(bytes, "")?)
    }

    /// Converts like [`Registry::convert`], but does not check the result. This is the first of the two
    /// steps in which gRPC clients validate a policy.
    ///
    /// # Errors
    /// Fails if the list contains no supported policy, or the first supported policy cannot be converted.
    pub fn convert_unchecked(
        &self,
        policy: &LoadBalancingPolicy,
    ) -> Result<LbConfig, ConvertError> {
        walk(self, policy, 1, "")
    }

    /// Parses a `loadBalancingConfig` like the client's LB policy registry: a list of objects with one
    /// policy each, of which the first known policy has to be valid.
    ///
    /// # Errors
    /// Fails if no policy of the list is known, or the first known policy is invalid.
    pub fn check(&self, config: &Value) -> Result<(), ConvertError> {
        self.model.check(config)
    }

    /// Converts the policy of a cluster. `load_balancing_policy` decides alone if it is present, even
    /// without entries. Without it, `lb_policy` and its configuration decide.
    ///
    /// # Errors
    /// Fails if a gRPC client with these policies rejects the cluster because of its policy.
    pub fn convert_cluster(&self, cluster: &Cluster) -> Result<LbConfig, ConvertError> {
        if let Some(policy) = &cluster.load_balancing_policy {
            return self.convert(policy).map_err(|error| error.under("load_balancing_policy"));
        }
        let config = legacy_policy(cluster, self.legacy_least_request)?;
        self.check(&config.to_json()).map_err(|error| error.under("lb_policy"))?;
        Ok(config)
    }

    /// Returns the tree of policies that a client creates for a cluster. `leaves` contains the cluster
    /// itself, or the underlying clusters of an aggregate cluster in order of priority.
    ///
    /// # Errors
    /// Fails if a gRPC client rejects a cluster or an assignment.
    pub fn tree(
        &self,
        cluster: &Cluster,
        leaves: &[Leaf<'_>],
        aggregate: AggregatePolicy,
    ) -> Result<Tree, ConvertError> {
        let tree =
            tree::build(cluster, leaves, aggregate, |cluster| self.convert_cluster(cluster))?;
        self.check(&tree.config.to_json())?;
        Ok(tree)
    }
}

impl Support for Registry {
    fn converter(&self, type_name: &str) -> Option<&Converter> {
        self.converters.get(type_name).map(AsRef::as_ref)
    }

    fn has_policy(&self, name: &str) -> bool {
        self.model.contains(name)
    }

    fn levels_max(&self) -> usize {
        self.levels_max
    }

    fn rejects_empty_entries(&self) -> bool {
        self.rejects_empty_entries
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("converters", &self.converters.keys())
            .field("policies", &self.model)
            .field("levels_max", &self.levels_max)
            .field("legacy_least_request", &self.legacy_least_request)
            .finish()
    }
}
