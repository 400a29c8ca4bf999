//! The admin API: messages, clients, servers and descriptors, generated from `/proto/chancery/admin`.

use std::sync::LazyLock;

use prost_reflect::DescriptorPool;

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

pub use generated::chancery::admin::v1;

/// The descriptors of the admin API and its imports, for reflection and JSON.
pub static FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/own.fds"));

/// Returns the descriptors of the admin API, decoded once per process on first use.
#[must_use]
pub fn pool() -> &'static DescriptorPool {
    static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
        DescriptorPool::decode(FILE_DESCRIPTOR_SET)
            .expect("the build script wrote valid descriptors")
    });
    &POOL
}
