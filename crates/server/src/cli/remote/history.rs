//! The command `history`.

use chancery_proto::admin::v1::{self as pb, admin_client::AdminClient};
use clap::Args;

use super::{client::refusal, connector::Channel, read::Read};
use crate::cli::{answer::Answer, failure::Failure, table::Table, time::timestamp};

/// The arguments of `history`.
#[derive(Debug, Args)]
pub(crate) struct History {
    /// Show at most N revisions, the newest first
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    #[command(flatten)]
    read: Read,
}

/// Shows the newest revisions.
pub(super) async fn run(
    history: History,
    mut client: AdminClient<Channel>,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let request = pb::ListHistoryRequest { limit: history.limit, stale: history.read.stale };
    let response = client.list_history(request).await.map_err(|status| refusal(&status))?;
    let history = response.into_inner();
    answer.show(&history, |out| {
        if history.entries.is_empty() {
            return writeln!(out, "no revisions");
        }
        let headings = [
            "REVISION",
            "TIME",
            "AUTHOR",
            "CHANGED",
            "REMOVED",
            "ASSIGNMENTS",
            "LABEL",
            "REASON",
            "VALIDATION",
            "CONFIRMED",
            "ACCESS",
        ];
        let mut table = Table::new(headings);
        for entry in &history.entries {
            table.row([
                entry.revision.to_string(),
                timestamp(entry.time_ms),
                entry.author.clone(),
                entry.changed.to_string(),
                entry.removed.to_string(),
                entry.assignments.to_string(),
                entry.label.clone(),
                entry.reason.clone(),
                entry.validation.clone(),
                entry.confirmed.join(","),
                entry.access.to_string(),
            ]);
        }
        table.write(out, "")
    })
}
