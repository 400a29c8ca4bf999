//! The server CPU of one change for each sink of MCP that receives it, in small and large collections.
//!
//! The measurement is that of `fanout`, with sinks instead of wildcard delta clients.

use std::path::Path;

use anyhow::Result;

use crate::{common::Common, fanout, host::Pinning, report::Findings, resource::Content};

/// Measure server CPU per acknowledged delivery to sinks of MCP
///
/// Each sink has a stream of `istio.mcp.v1alpha1.ResourceSource`. One resource changes at a time,
/// and all sinks acknowledge the change before the next one. Each size has its own server. In each
/// round, the first size has two turns and the others have one. Exits with 1 if the ratio to the
/// first size is too high, or if a sink receives more than the changed resource.
///
/// Only the first sink of each size receives the full state of the collection: 100 GB of full states
/// would not show the cost of a change. The other sinks resume with its versions
/// (`initial_resource_versions`), as after a reconnect, and receive an empty response.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Sizes of the collections in resources of about 1 KB; the first is the base of the comparison
    #[arg(long, value_delimiter = ',', default_value = "1000,100000")]
    resources: Vec<usize>,
    /// Sinks per size
    #[arg(long, default_value_t = 1000)]
    sinks: usize,
    /// Sinks per connection
    #[arg(long, default_value_t = 50)]
    sinks_per_connection: usize,
    /// Changes per turn
    #[arg(long, default_value_t = 40)]
    updates: usize,
    /// Rounds; in each, the first size has two turns and the others have one
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Maximum ratio of the cost per delivery to that of the first size
    #[arg(long, default_value_t = 1.25)]
    ratio_max: f64,
    /// Let server and sinks run on any CPU, instead of one CPU for each of them
    #[arg(long)]
    no_pin: bool,
}

impl Args {
    pub(crate) fn pinning(&self) -> Result<Pinning> {
        self.fanout().pinning()
    }

    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        self.fanout().run(common, dir).await
    }

    fn fanout(&self) -> fanout::Args {
        fanout::Args {
            content: Content::Collection,
            compares_tls: false,
            resources: self.resources.clone(),
            streams: self.sinks,
            streams_per_connection: self.sinks_per_connection,
            updates: self.updates,
            rounds: self.rounds,
            ratio_max: self.ratio_max,
            no_pin: self.no_pin,
        }
    }
}
