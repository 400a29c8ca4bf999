//! Converts xDS load balancing policies to gRPC service config, as gRFC A52 and its successors define.
//!
//! A [`Registry`] holds the policies that a client supports. It converts an
//! `envoy.config.cluster.v3.LoadBalancingPolicy`, or the policy of a whole cluster, to an [`LbConfig`]. An
//! error says why gRPC clients reject (NACK) the policy, and names the field.
//!
//! The crate has no I/O and no global state. Hostile input gives an error, because the depth of nested
//! policies, the depth of messages and the size of messages are bounded.
//!
//! ```
//! use chancery_lb_policy::{Registry, proto::LoadBalancingPolicy, types};
//! use chancery_lb_policy::proto::{Policy, RingHash, prost_types::Any};
//! use prost::Message;
//!
//! let ring_hash = RingHash { hash_function: 1, minimum_ring_size: Some(512), ..Default::default() };
//! let policy = LoadBalancingPolicy {
//!     policies: vec![Policy::new(Any {
//!         type_url: format!("type.googleapis.com/{}", types::RING_HASH),
//!         value: ring_hash.encode_to_vec(),
//!     })],
//! };
//! let config = Registry::default().convert(&policy)?;
//! assert_eq!(
//!     config.to_string(),
//!     r#"[{"ring_hash_experimental":{"maxRingSize":8388608,"minRingSize":512}}]"#
//! );
//! # Ok::<(), chancery_lb_policy::ConvertError>(())
//! ```
//!
//! Programs with other Envoy types, such as those of `envoy-types`, encode their message and call
//! [`Registry::convert_bytes`].
//!
//! The registry knows a custom policy after its registration. This example also registers a converter for a
//! message type of its own, which passes the message to the policy as text:
//!
//! ```
//! use chancery_lb_policy::{LbConfig, Registry, proto::{LoadBalancingPolicy, Policy, prost_types::Any}};
//!
//! let registry = Registry::default()
//!     .with_policy("myorg.MyCustomLb")
//!     .with_converter("myorg.v1.MyCustomLb", |bytes, context| {
//!         let text = std::str::from_utf8(bytes).map_err(|error| context.invalid("", error.to_string()))?;
//!         let config = serde_json::json!({ "setting": text });
//!         Ok(Some(LbConfig::new("myorg.MyCustomLb", config)))
//!     });
//! let any = Any { type_url: "type.googleapis.com/myorg.v1.MyCustomLb".to_owned(), value: b"fast".to_vec() };
//! let config = registry.convert(&LoadBalancingPolicy { policies: vec![Policy::new(any)] })?;
//! assert_eq!(config.to_string(), r#"[{"myorg.MyCustomLb":{"setting":"fast"}}]"#);
//! # Ok::<(), chancery_lb_policy::ConvertError>(())
//! ```

mod c_core;
mod cluster;
mod config;
mod convert;
mod converters;
mod duration;
mod error;
mod java;
mod model;
mod notes;
mod outlier;
mod policies;
mod registry;
mod tree;
mod typed_struct;

pub mod names;
pub mod proto;

pub use cluster::LegacyLeastRequest;
pub use config::{LbConfig, WeightedLocality, WeightedTarget};
pub use convert::{Context, LEVELS_MAX, MESSAGE_BYTES_MAX};
pub use error::{ConvertError, Reason};
pub use names::types;
pub use notes::cluster_notes;
pub use registry::{Client, Registry};
pub use tree::{AggregatePolicy, Leaf, Priority, Tree};
