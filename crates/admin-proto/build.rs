//! Generates the code and the descriptors of the admin API.

use std::path::Path;

fn main() -> anyhow::Result<()> {
    let root = Path::new("../../proto");
    chancery_proto_build::generate(root, &["chancery/admin"], |builder| {
        builder.boxed(".chancery.admin.v1.WatchEvent.event.made")
    })
}
