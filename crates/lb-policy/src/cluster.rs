//! The legacy policy of a cluster: `lb_policy` and its configuration.

use crate::{
    config::LbConfig,
    converters::{least_request_config, ring_hash_config, round_robin_config, wrr_locality_config},
    error::ConvertError,
    proto::Cluster,
};

/// `XX_HASH` of the legacy message, whose numbers differ from those of the policy's message.
const LEGACY_XX_HASH: i32 = 0;

/// How a client treats the legacy `lb_policy: LEAST_REQUEST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LegacyLeastRequest {
    /// The policy runs in each locality, below `xds_wrr_locality_experimental` (gRFC A48, Java).
    #[default]
    Wrapped,
    /// The policy runs over all localities (Go).
    Bare,
    /// The client rejects the cluster (C-core).
    Rejected,
}

/// Converts `lb_policy` and its configuration.
///
/// # Errors
/// Fails if gRPC does not support the policy.
pub(crate) fn legacy_policy(
    cluster: &Cluster,
    least_request: LegacyLeastRequest,
) -> Result<LbConfig, ConvertError> {
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
            match least_request {
                LegacyLeastRequest::Wrapped => Ok(wrr_locality_config(&config)),
                LegacyLeastRequest::Bare => Ok(config),
                LegacyLeastRequest::Rejected => Err(unsupported(cluster)),
            }
        }
        _ => Err(unsupported(cluster)),
    }
}

fn unsupported(cluster: &Cluster) -> ConvertError {
    let name = cluster.lb_policy_name();
    let rule = format!("gRPC does not support {name}; set `load_balancing_policy`");
    ConvertError::invalid("lb_policy", rule)
}
