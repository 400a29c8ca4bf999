//! The messages between replicas and the records on disk, generated from `/proto/chancery/raft`.

/// The output of the build script.
#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    missing_docs,
    unreachable_pub,
    reason = "generated code"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/own.rs"));
}

pub use generated::chancery::raft::v1;
