//! The command `history`.

use chancery_admin_proto::v1 as pb;
use clap::Args;

use super::{
    client::{Servers, refusal},
    history_check::{self, HistoryHead},
    read::Read,
    watch::{Kind, follow_kinds},
};
use crate::cli::{answer::Answer, failure::Failure, table::Table, time::timestamp};

/// The number of revisions that a history has at most.
const HISTORY_MAX: u32 = 10_000;

/// The arguments of `history`.
#[derive(Debug, Args)]
pub(crate) struct History {
    /// Show at most N revisions, the newest first
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Check the hashes of all revisions that the history has, instead of showing revisions
    ///
    /// The hash of a revision covers its entry and all revisions before it. It is equal on all replicas. Prints the
    /// newest one as REVISION:HASH. Exit code 1 means that an entry does not match its hash.
    #[arg(long, conflicts_with = "limit")]
    verify: bool,
    /// With --verify, require that this revision has this hash
    ///
    /// The hash may come from an earlier --verify, or from another replica.
    #[arg(long, value_name = "REVISION:HASH", requires = "verify")]
    expect_head: Option<HistoryHead>,
    /// Then show each new revision with its changes, until you interrupt it
    #[arg(long, conflicts_with = "verify")]
    follow: bool,
    #[command(flatten)]
    read: Read,
}

/// Shows the newest revisions.
pub(super) async fn run(
    history: History,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let mut client = servers.connect_any().await?;
    let limit = if history.verify { HISTORY_MAX } else { history.limit };
    let request = pb::ListHistoryRequest { limit, stale: history.read.stale, ..Default::default() };
    let response = client.list_history(request).await.map_err(|status| refusal(&status))?;
    let expected = history.expect_head;
    let (is_check, follows) = (history.verify, history.follow);
    let history = response.into_inner();
    if is_check {
        return history_check::run(&history.entries, expected.as_ref(), answer);
    }
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
            "SOURCE",
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
                entry.source.clone(),
            ]);
        }
        table.write(out, "")
    })?;
    if !follows {
        return Ok(());
    }
    let newest = history.entries.first().map(|entry| entry.revision);
    follow_kinds(&[Kind::Revisions], newest.or(Some(0)), false, servers, answer).await
}
