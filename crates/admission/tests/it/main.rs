//! Tests of the conversion of manifests through the public interface.

#![expect(clippy::unwrap_used, reason = "a test stops where something is missing")]

mod admit;
mod canonical;
mod certificates;
mod clusters;
mod collections;
mod corpus;
mod discovery;
mod extensions;
mod grpc;
mod limits;
mod positions;
mod refuse;
mod semantic;
mod shapes;
mod support;
mod together;
mod validate;
mod variants;
mod versions;
mod yaml_scalars;
