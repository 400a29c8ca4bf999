//! The policy of a cluster: the policy of gRFC A52, or the legacy fields.

use crate::{
    convert::LbConfig,
    converters::{least_request_config, ring_hash_config, round_robin_config, wrr_locality_config},
    error::ConvertError,
    proto::Cluster,
    registry::{LegacyLeastRequest, Registry},
};

/// The field of a cluster that contains the policy of gRFC A52.
const FIELD: &str = "load_balancing_policy";
/// `XX_HASH` of the legacy message, whose numbers differ from those of the policy's message.
const LEGACY_XX_HASH: i32 = 0;

impl Registry {
    /// Converts the policy of a cluster. `load_balancing_policy` decides alone if it is present, even
    /// without entries. Without it, `lb_policy` and its configuration decide.
    ///
    /// # Errors
    /// Fails if a gRPC client with these policies rejects the cluster because of its policy.
    pub fn convert_cluster(&self, cluster: &Cluster) -> Result<LbConfig, ConvertError> {
        if let Some(policy) = &cluster.load_balancing_policy {
            return self.convert(policy).map_err(|error| error.under(FIELD));
        }
        let config = self.legacy(cluster)?;
        self.check(&config.to_json()).map_err(|error| error.under("lb_policy"))?;
        Ok(config)
    }

    fn legacy(&self, cluster: &Cluster) -> Result<LbConfig, ConvertError> {
        match cluster.lb_policy {
            Cluster::ROUND_ROBIN => Ok(wrr_locality_config(&round_robin_config())),
            Cluster::RING_HASH => {
                let config = cluster.ring_hash_lb_config.unwrap_or_default();
                if config.hash_function != LEGACY_XX_HASH {
                    return Err(ConvertError::invalid(
                        "ring_hash_lb_config.hash_function",
                        "gRPC supports only XX_HASH; remove the field or set XX_HASH",
                    ));
                }
                Ok(ring_hash_config(config.minimum_ring_size, config.maximum_ring_size))
            }
            Cluster::LEAST_REQUEST => {
                let config = cluster.least_request_lb_config.unwrap_or_default();
                let config = least_request_config(config.choice_count);
                match self.legacy_least_request() {
                    LegacyLeastRequest::Wrapped => Ok(wrr_locality_config(&config)),
                    LegacyLeastRequest::Bare => Ok(config),
                    LegacyLeastRequest::Rejected => Err(unsupported(cluster)),
                }
            }
            _ => Err(unsupported(cluster)),
        }
    }
}

fn unsupported(cluster: &Cluster) -> ConvertError {
    let name = cluster.lb_policy_name();
    let rule = format!("gRPC does not support {name}; set `load_balancing_policy`");
    ConvertError::invalid("lb_policy", rule)
}
