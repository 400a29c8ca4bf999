//! The command `blame`.

use std::collections::HashMap;

use chancery_admin_proto::v1::{self as pb, history_service_client::HistoryServiceClient};
use clap::{Args, builder::NonEmptyStringValueParser};

use super::{
    client::{Servers, refusal},
    read::Read,
};
use crate::{answer::Answer, failure::Failure, table::Table, text::plain, time::timestamp};

/// The arguments of `blame`.
#[derive(Debug, Args)]
pub(crate) struct Blame {
    /// Resource type: an alias or a type URL
    #[arg(value_name = "TYPE")]
    type_name: String,
    /// Name of the resource
    #[arg(value_name = "NAME")]
    name: String,
    /// Scope of the resource
    #[arg(long, default_value = "default", value_parser = NonEmptyStringValueParser::new())]
    scope: String,
    #[command(flatten)]
    read: Read,
}

/// Shows which revision last set each line of a resource.
pub(super) async fn run(
    blame: Blame,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let Blame { type_name, name, scope, read } = blame;
    let request = pb::BlameRequest { r#type: type_name, name, scope, stale: read.stale };
    let channel = servers.any_channel().await?;
    let mut client = HistoryServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    let response = client.blame(request).await.map_err(|status| refusal(&status))?.into_inner();
    answer.show(&response, |out| {
        let entries: HashMap<u64, &pb::HistoryEntry> =
            response.revisions.iter().map(|entry| (entry.revision, entry)).collect();
        let mut table = Table::new(["REVISION", "TIME", "AUTHOR", "LINE"]);
        for line in &response.lines {
            let entry = entries.get(&line.revision);
            table.row([
                match line.revision {
                    0 => format!("<={}", response.oldest),
                    revision => revision.to_string(),
                },
                entry.map(|entry| timestamp(entry.time_ms)).unwrap_or_default(),
                entry.map(|entry| plain(&entry.author)).unwrap_or_default(),
                plain(&line.text),
            ]);
        }
        table.write(out, "")
    })
}
