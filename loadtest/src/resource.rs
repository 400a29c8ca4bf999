//! The resources of a load: clusters of about 1 KB, or the same amount in a collection of MCP.

use chancery_model::types::{CLUSTER, ENDPOINT, SECRET};
use prost::{DecodeError, Message as _};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use crate::random::Random;

/// The scope that every node has by default.
pub(crate) const SCOPE: &str = "default";
/// The number of endpoints of a cluster. With its names and padding, a cluster has about 1 KB.
const ENDPOINTS: usize = 24;
/// The length of `alt_stat_name` in bytes. The name also contains the generation.
const STAT_NAME_BYTES: usize = 330;

/// The collection of a load for sinks of MCP.
pub(crate) const COLLECTION: &str = "istio/networking/v1alpha3/virtualservices";
/// The length of the text in a resource of the collection. With its name and metadata, the resource has about 1 KB.
const TEXT_BYTES: usize = 900;
/// The length of a secret in base64, which encodes 1026 bytes.
const SECRET_CHARS: usize = 1368;

/// The contents of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Clusters,
    /// The resources of [`COLLECTION`].
    Collection,
}

/// The fields of `envoy.config.cluster.v3.Cluster` that the tests read. The first one also exists
/// in `ClusterLoadAssignment`.
#[derive(Clone, PartialEq, prost::Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "28")]
    alt_stat_name: String,
}

impl Content {
    /// Returns the name of resource `n`.
    pub(crate) fn name(self, n: usize) -> String {
        match self {
            Self::Clusters => name(n),
            Self::Collection => format!("load/{}", name(n)),
        }
    }

    /// Returns resource `n`. Generations differ in their bytes, but not in their length.
    pub(crate) fn resource(self, n: usize, generation: u64) -> Value {
        match self {
            Self::Clusters => cluster(n, generation),
            Self::Collection => {
                let name = self.name(n);
                let text = format!("{name}.{generation:012}.");
                json!({
                    "@type": COLLECTION,
                    "metadata": {"name": name, "labels": {"app": "loadtest"}},
                    "body": {
                        "@type": "type.googleapis.com/google.protobuf.StringValue",
                        "value": format!("{text:x<TEXT_BYTES$}"),
                    },
                })
            }
        }
    }

    /// Returns the sum of the name hashes of resources `0..n`, which does not depend on their order.
    pub(crate) fn names_hash(self, n: usize) -> u64 {
        (0..n).fold(0, |sum: u64, n| sum.wrapping_add(name_hash(self.name(n).as_bytes())))
    }
}

/// Returns the name of cluster `n`.
pub(crate) fn name(n: usize) -> String {
    format!("cluster-{n:07}")
}

/// Returns cluster `n`. Generations differ in their bytes, but not in their length.
pub(crate) fn cluster(n: usize, generation: u64) -> Value {
    let name = name(n);
    let endpoints: Vec<Value> = (0..ENDPOINTS)
        .map(|at| {
            let address = format!("10.{}.{}.{}", 100 + n / 10_000 % 100, 100 + n / 100 % 100, 100 + at);
            json!({"endpoint": {"address": {"socket_address": {"address": address, "port_value": 8080}}}})
        })
        .collect();
    let stat = format!("{name}.{generation:012}.");
    json!({
        "@type": CLUSTER,
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "alt_stat_name": format!("{stat:x<STAT_NAME_BYTES$}"),
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
    })
}

/// Returns a manifest of one document.
pub(crate) fn manifest(scope: &str, resources: Vec<Value>) -> Value {
    json!({"scope": scope, "resources": resources})
}

/// Returns cluster `n` with few fields, as text. The encoded cluster has `bytes` bytes, unless its
/// fields need more.
pub(crate) fn flat_cluster(n: usize, generation: u64, bytes: usize) -> String {
    // Tags and lengths, the type, and the timeout.
    const OTHERS: usize = 12;
    let name = name(n);
    let stat = format!("{name}.{generation:012}.");
    let stat_bytes = bytes.saturating_sub(name.len() + OTHERS);
    format!(
        r#"{{"@type":"{CLUSTER}","name":"{name}","type":"STATIC","connect_timeout":"5s","alt_stat_name":"{stat:x<stat_bytes$}"}}"#
    )
}

/// Returns cluster `n` with endpoints by EDS, limits and outlier detection, as text of about 600 bytes.
pub(crate) fn eds_cluster(n: usize, generation: u64) -> String {
    let name = name(n);
    let cluster = json!({
        "@type": CLUSTER,
        "name": name,
        "alt_stat_name": format!("{name}.{generation:012}."),
        "type": "EDS",
        "connect_timeout": "2s",
        "lb_policy": "LEAST_REQUEST",
        "eds_cluster_config": {
            "eds_config": {"ads": {}, "resource_api_version": "V3"},
            "service_name": format!("{name}.svc"),
        },
        "circuit_breakers": {"thresholds": [{"max_connections": 4096, "max_requests": 8192}]},
        "outlier_detection": {"consecutive_5xx": 5, "interval": "10s", "base_ejection_time": "30s"},
        "health_checks": [{
            "timeout": "1s", "interval": "10s", "unhealthy_threshold": 3, "healthy_threshold": 2,
            "tcp_health_check": {},
        }],
    });
    cluster.to_string()
}

/// Returns generic secret `n` of 1026 random bytes, as text of about 1.5 KB.
pub(crate) fn secret(n: usize, random: &mut Random) -> String {
    let bytes = random.base64(SECRET_CHARS);
    format!(
        r#"{{"@type":"{SECRET}","name":"secret-{n:07}","generic_secret":{{"secret":{{"inline_bytes":"{bytes}"}}}}}}"#
    )
}

/// Returns endpoints `n`, of about 100 bytes. No cluster of the load refers to them.
pub(crate) fn endpoints(n: usize, generation: u64) -> Value {
    let address =
        format!("10.{}.{}.{}", generation / 65_536 % 256, generation / 256 % 256, generation % 256);
    let endpoint = json!({"address": {"socket_address": {"address": address, "port_value": 8080}}});
    json!({
        "@type": ENDPOINT,
        "cluster_name": endpoints_name(n),
        "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}],
    })
}

/// Returns the name of endpoints `n`.
pub(crate) fn endpoints_name(n: usize) -> String {
    format!("endpoints-{n:07}")
}

/// Returns the number in a name of a load.
pub(crate) fn number(name: &str) -> Option<u32> {
    name.rsplit_once('-')?.1.parse().ok()
}

/// Returns the name of an encoded cluster or of encoded endpoints, which is the first field of
/// both.
pub(crate) fn name_of(body: &[u8]) -> Result<String, DecodeError> {
    Ok(Named::decode(body)?.name)
}

/// Returns the generation of an encoded cluster of a load.
pub(crate) fn generation_of(body: &[u8]) -> Option<u64> {
    Named::decode(body).ok()?.alt_stat_name.split('.').nth(1)?.parse().ok()
}

/// Returns the hash of a name, which is kept instead of the name.
pub(crate) fn name_hash(name: &[u8]) -> u64 {
    xxh3_64(name)
}
