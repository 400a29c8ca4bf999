//! Converts the load balancing policy of a cluster to the service config of gRPC, and shows the error of an invalid one.
//!
//! Run it with `cargo run -p chancery-lb-policy --example convert`.

#![expect(clippy::print_stdout, reason = "an example shows its result")]

use chancery_lb_policy::{
    ConvertError, Reason, Registry,
    proto::{LoadBalancingPolicy, Policy, RingHash, prost_types::Any},
    types,
};
use prost::Message;

/// Returns the policy `ring_hash` with a hash function and a minimum size of the ring.
fn ring_hash(hash_function: i32, minimum: u64) -> LoadBalancingPolicy {
    let config =
        RingHash { hash_function, minimum_ring_size: Some(minimum), ..RingHash::default() };
    let type_url = format!("type.googleapis.com/{}", types::RING_HASH);
    let any = Any { type_url, value: config.encode_to_vec() };
    LoadBalancingPolicy { policies: vec![Policy::new(any)] }
}

fn main() -> Result<(), ConvertError> {
    let registry = Registry::default();

    // `XX_HASH` is the only hash function that gRPC supports.
    let config = registry.convert(&ring_hash(1, 512))?;
    println!("service config: {config}");
    assert!(config.to_string().contains(r#""minRingSize":512"#));

    let Err(error) = registry.convert(&ring_hash(2, 512)) else {
        panic!("gRPC rejects the hash function MURMUR_HASH_2");
    };
    println!("rejected: {error}");
    assert!(matches!(error.reason, Reason::Invalid(_)), "{error}");
    Ok(())
}
