//! Generates the code of the messages between replicas and on disk.

use std::path::Path;

fn main() -> anyhow::Result<()> {
    chancery_proto_build::generate(Path::new("../../proto"), &["chancery/raft"], |builder| {
        builder.boxed(".chancery.raft.v1.Transaction.meta")
    })
}
