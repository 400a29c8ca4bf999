//! The resources of a load: clusters of about 1 KB.

use chancery_model::types::{CLUSTER, ENDPOINT};
use prost::{DecodeError, Message as _};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

/// The scope that every node gets by default.
pub(crate) const SCOPE: &str = "default";
/// Endpoints of a cluster; with its names and its padding they make about 1 KB.
const ENDPOINTS: usize = 24;
/// Bytes of `alt_stat_name`, which also tells one generation from the next.
const STAT_NAME_BYTES: usize = 330;

/// Of `envoy.config.cluster.v3.Cluster`; the first field also of `ClusterLoadAssignment`.
#[derive(Clone, PartialEq, prost::Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "28")]
    alt_stat_name: String,
}

/// The name of cluster `n`.
pub(crate) fn name(n: usize) -> String {
    format!("cluster-{n:07}")
}

/// Cluster `n`. Another generation has other bytes, as many.
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

/// A manifest of one document.
pub(crate) fn manifest(scope: &str, resources: Vec<Value>) -> Value {
    json!({"scope": scope, "resources": resources})
}

/// Cluster `n` with few fields, which has so many bytes when it is encoded, if they suffice; as text.
pub(crate) fn flat_cluster(n: usize, generation: u64, bytes: usize) -> String {
    // Tags and lengths, the type and the timeout.
    const OTHERS: usize = 12;
    let name = name(n);
    let stat = format!("{name}.{generation:012}.");
    let stat_bytes = bytes.saturating_sub(name.len() + OTHERS);
    format!(
        r#"{{"@type":"{CLUSTER}","name":"{name}","type":"STATIC","connect_timeout":"5s","alt_stat_name":"{stat:x<stat_bytes$}"}}"#
    )
}

/// Endpoints by themselves, number `n`, about 100 bytes. No cluster of the load asks for them.
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

/// The name of endpoints `n`.
pub(crate) fn endpoints_name(n: usize) -> String {
    format!("endpoints-{n:07}")
}

/// The number in a name of ours.
pub(crate) fn number(name: &str) -> Option<u32> {
    name.rsplit_once('-')?.1.parse().ok()
}

/// The name of an encoded cluster, or of encoded endpoints: it is the first field of both.
pub(crate) fn name_of(body: &[u8]) -> Result<String, DecodeError> {
    Ok(Named::decode(body)?.name)
}

/// The generation of an encoded cluster of ours.
pub(crate) fn generation_of(body: &[u8]) -> Option<u64> {
    Named::decode(body).ok()?.alt_stat_name.split('.').nth(1)?.parse().ok()
}

/// What is known of a name without keeping it.
pub(crate) fn name_hash(name: &[u8]) -> u64 {
    xxh3_64(name)
}

/// What the names of the clusters `0..n` add up to, in any order.
pub(crate) fn names_hash(n: usize) -> u64 {
    (0..n).fold(0, |sum: u64, n| sum.wrapping_add(name_hash(name(n).as_bytes())))
}
