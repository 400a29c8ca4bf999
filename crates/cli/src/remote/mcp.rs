//! The commands `mcp status` and `mcp confirm`: the sources of MCP, and held deletions.

use std::io::{self, Write};

use chancery_admin_proto::v1::{
    ConfirmMcpDeletionRequest, GetMcpStatusRequest, McpCollection, McpSource, McpStatus,
    mcp_service_client::McpServiceClient,
};
use clap::Subcommand;

use super::{
    client::refusal,
    connector::Channel,
    fleet::{Extent, check_complete, unanswered},
};
use crate::{answer::Answer, failure::Failure, help::examples, table::Table, text::count};

/// The subcommands of `mcp`.
#[derive(Debug, Subcommand)]
pub(crate) enum Mcp {
    /// Show the MCP sources and the held deletions
    ///
    /// Only the leader has streams to the sources, so the leader is asked.
    #[command(after_help = examples(&["mcp status", "mcp status -o json"]))]
    Status(Extent),
    /// Allow a deletion that the guard `mass-deletion` holds
    ///
    /// The leader then asks the source for its state, and deletes the resources that the source still
    /// lacks. `chancery mcp status` shows the token, which identifies the resources. A deletion of
    /// other resources has a different token. The confirmation expires after one minute.
    #[command(after_help = examples(&[
        "mcp confirm pilot istio/networking/v1alpha3/virtualservices 5c1f0a9e33b7d210",
    ]))]
    Confirm {
        /// Name of the source
        source: String,
        /// Name of the collection
        collection: String,
        /// Token of the held deletion
        token: String,
    },
}

/// Runs a subcommand.
pub(super) async fn run(
    command: Mcp,
    channel: Channel,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let mut client = McpServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    match command {
        Mcp::Status(Extent { local }) => {
            let request = GetMcpStatusRequest { local, ..Default::default() };
            let response = client.get_mcp_status(request).await;
            let status = response.map_err(|status| refusal(&status))?.into_inner();
            answer.show(&status, |out| write_status(&status, out))?;
            // The status on the leader is complete without the others.
            if status.leader == status.replica_id {
                return Ok(());
            }
            check_complete(&status.not_asked)
        }
        Mcp::Confirm { source, collection, token } => {
            let request = ConfirmMcpDeletionRequest { source, collection, token };
            let response = client.confirm_mcp_deletion(request).await;
            let status = response.map_err(|status| refusal(&status))?.into_inner();
            answer.show(&status, |out| {
                writeln!(out, "confirmed for one minute; the leader requests the collection again, as soon as it has a stream to the source")
            })
        }
    }
}

fn write_status(status: &McpStatus, out: &mut dyn Write) -> io::Result<()> {
    if status.sources.is_empty() {
        return writeln!(out, "no MCP source is configured (mcp.sources)");
    }
    if status.leader == status.replica_id && !status.not_asked.is_empty() {
        let missing = unanswered(&status.not_asked);
        writeln!(out, "{missing}; only the leader has streams to the sources")?;
    }
    if status.leader != status.replica_id {
        let leader = match status.leader {
            0 => "no leader is known".to_owned(),
            id => format!("replica {id} leads, and has the streams to the sources"),
        };
        writeln!(out, "replica {} does not lead; {leader}", status.replica_id)?;
    }
    let mut table = Table::new([
        "SOURCE",
        "SCOPE",
        "CONNECTION",
        "COLLECTION",
        "RESOURCES",
        "ACCEPTED",
        "REJECTED",
        "HELD",
    ]);
    for source in &status.sources {
        for collection in &source.collections {
            table.row([
                source.name.clone(),
                source.scope.clone(),
                source.connection.clone(),
                collection.name.clone(),
                collection.resources.to_string(),
                collection.accepted.to_string(),
                collection.rejected.to_string(),
                collection.held.as_ref().map_or(0, |held| held.deletions).to_string(),
            ]);
        }
    }
    table.write(out, "")?;
    status.sources.iter().try_for_each(|source| write_problems(source, out))
}

/// Returns the reason why there is no stream, and for a source that connects its address.
fn connection_line(source: &McpSource) -> Option<String> {
    let McpSource { connection, address, listen, last_error, .. } = source;
    match (connection.as_str(), last_error.as_str()) {
        ("connected", _) => None,
        ("waiting", "") => Some(format!("waits for the source to connect to {listen}")),
        ("waiting", error) => {
            Some(format!("waits for the source to connect to {listen}; the last stream: {error}"))
        }
        (_, "") => None,
        (_, error) => {
            let address = if listen.is_empty() { address } else { listen };
            Some(format!("{error} ({address})"))
        }
    }
}

fn write_problems(source: &McpSource, out: &mut dyn Write) -> io::Result<()> {
    let name = &source.name;
    if let Some(line) = connection_line(source) {
        writeln!(out, "{name}: {line}")?;
    }
    for McpCollection { name: collection, held, last_rejection, .. } in &source.collections {
        match held {
            Some(held) => writeln!(
                out,
                "{name}: the deletion of {} of {} is held; to allow it: chancery mcp confirm {name} {collection} {}",
                count(held.deletions, "resource"),
                held.stored,
                held.token
            )?,
            None if last_rejection.is_empty() => {}
            None => writeln!(out, "{name}: {collection}: rejected: {last_rejection}")?,
        }
    }
    Ok(())
}
