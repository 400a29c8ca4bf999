//! The command `history`.

use std::{
    io::{self, Write},
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use chancery_admin_proto::v1::{
    self as pb, admin_client::AdminClient, history_service_client::HistoryServiceClient,
};
use chancery_config::Span;
use chancery_store::RequestId;
use clap::{Args, Subcommand, builder::NonEmptyStringValueParser};

use super::{
    client::{Servers, refusal},
    connector::Channel,
    history_check::{self, HistoryHead},
    read::Read,
    watch::{Follower, Kind, all_labels},
    write::write_all_changes,
};
use crate::{
    answer::Answer,
    failure::Failure,
    table::Table,
    text::{count, plain, short_type},
    time::timestamp,
};

/// The maximum number of revisions in the history.
const HISTORY_MAX: u32 = 10_000;
/// The maximum number of changed names that a list shows for each revision.
const NAMES_SHOWN: u32 = 3;
/// The scope that names omit.
const DEFAULT_SCOPE: &str = "default";

/// The arguments of `history`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct History {
    #[command(subcommand)]
    command: Option<Command>,
    /// Show only revisions that changed this scope [default: all]
    ///
    /// With --scope, --type or --name, the list has only revisions whose changes are kept.
    #[arg(long, conflicts_with = "verify", value_parser = NonEmptyStringValueParser::new())]
    scope: Option<String>,
    /// Show only revisions that changed a resource of this type [default: all]
    #[arg(long = "type", value_name = "TYPE", conflicts_with = "verify", value_parser = NonEmptyStringValueParser::new())]
    type_name: Option<String>,
    /// Show only revisions that changed a resource of this name [default: all]
    #[arg(long, conflicts_with = "verify", value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// Show only revisions whose author contains this text [default: all]
    #[arg(long, conflicts_with = "verify")]
    author: Option<String>,
    /// Show only revisions with this label: KEY=VALUE, KEY, or a label without `=` [default: all]
    #[arg(long, conflicts_with = "verify", value_parser = NonEmptyStringValueParser::new())]
    label: Option<String>,
    /// Show only revisions newer than this age, such as 30m, 24h or 7d [default: all]
    #[arg(long, value_name = "TIME", conflicts_with = "verify")]
    since: Option<Age>,
    /// Show only the revision that a write with this --request-id made [default: all]
    ///
    /// An empty list does not prove that the write will not take effect: it may still be on its way.
    #[arg(long, value_name = "HEX", conflicts_with = "verify")]
    request_id: Option<RequestId>,
    /// Show at most N revisions, the newest first
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Show the revisions after those of an earlier command [default: from the newest]
    #[arg(long, value_name = "CURSOR", conflicts_with_all = ["verify", "follow"])]
    cursor: Option<String>,
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
    /// After the list, show each new revision with its changes, until you interrupt the command
    #[arg(long, conflicts_with_all = ["verify", "scope", "type_name", "name", "author", "label", "since", "request_id"])]
    follow: bool,
    #[command(flatten)]
    read: Read,
}

/// The commands under `history`.
#[derive(Debug, Subcommand)]
enum Command {
    /// Show a revision: its author, reason and changes
    Show(Show),
}

/// The arguments of `history show`.
#[derive(Debug, Args)]
struct Show {
    /// Revision to show
    #[arg(value_name = "REVISION")]
    revision: u64,
    /// Show at most N changes
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Show the changes after those of an earlier command [default: from the first]
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
    #[command(flatten)]
    read: Read,
}

/// A time before now.
#[derive(Debug, Clone, Copy)]
struct Age(Duration);

impl FromStr for Age {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
        if let Some(days) = days {
            return Ok(Self(Duration::from_secs(u64::from(days) * 24 * 60 * 60)));
        }
        let span = text.parse::<Span>().map_err(|_| "is not a time such as 30m, 24h or 7d")?;
        Ok(Self(span.duration()))
    }
}

impl Age {
    /// Returns the time in milliseconds since 1970.
    fn since_ms(self) -> u64 {
        let since = SystemTime::now().checked_sub(self.0).unwrap_or(UNIX_EPOCH);
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

async fn show(show: Show, servers: &Servers, answer: &mut Answer<'_>) -> Result<(), Failure> {
    let Show { revision, limit, cursor, read } = show;
    let cursor = cursor.unwrap_or_default();
    let request = pb::GetRevisionRequest { revision, limit, cursor, stale: read.stale };
    let channel = servers.any_channel().await?;
    let mut client = HistoryServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    let response = client.get_revision(request).await.map_err(|status| refusal(&status))?;
    let shown = response.into_inner();
    answer.show(&shown, |out| {
        let entry = shown.entry.clone().unwrap_or_default();
        let labels = all_labels(&entry);
        let fields = [
            ("revision", entry.revision.to_string()),
            ("time", timestamp(entry.time_ms)),
            ("author", entry.author),
            ("source", entry.source),
            ("reason", entry.reason),
            ("label", labels),
            ("validation", entry.validation),
            ("confirmed", entry.confirmed.join(",")),
            ("restored from", entry.restored_from.map(|from| from.to_string()).unwrap_or_default()),
            ("hash", entry.hash),
        ];
        for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
            writeln!(out, "{:<14} {}", format!("{name}:"), plain(value))?;
        }
        if !shown.not_kept.is_empty() {
            return writeln!(out, "changes:       {}", plain(&shown.not_kept));
        }
        let changes = pb::WriteResponse {
            changes: shown.changes.clone(),
            assignment_changes: shown.assignment_changes.clone(),
            access_changes: shown.access_changes.clone(),
            ..pb::WriteResponse::default()
        };
        write_all_changes(&changes, usize::MAX, out)?;
        if shown.hidden > 0 {
            writeln!(out, "{} that you may not read", count(shown.hidden, "change"))?;
        }
        if shown.next.is_empty() { Ok(()) } else { writeln!(out, "more: --cursor {}", shown.next) }
    })
}

/// Returns the first changed names, and the number of the others.
fn names_in_words(entry: &pb::HistoryEntry) -> String {
    let name = |one: &pb::ChangedName| match one.object.as_str() {
        "resource" if one.scope == DEFAULT_SCOPE => {
            format!("{} {}", short_type(&one.type_url), one.name)
        }
        "resource" => format!("{} {} ({})", short_type(&one.type_url), one.name, one.scope),
        object => format!("{object} {}", one.name).trim_end().to_owned(),
    };
    let mut names: Vec<String> = entry.names.iter().map(name).collect();
    // Assignments have one name.
    let assignments = entry.assignments.min(1);
    let n = entry.changed + entry.removed + assignments + entry.access;
    match n.saturating_sub(entry.names.len() as u64) {
        0 => {}
        _ if names.is_empty() => {}
        more => names.push(format!("{more} more")),
    }
    names.join(", ")
}

/// Returns the revisions of a request. A page of the server may be shorter than asked for.
async fn list(
    client: &mut AdminClient<Channel>,
    mut request: pb::ListHistoryRequest,
) -> Result<pb::ListHistoryResponse, Failure> {
    let limit = request.limit;
    let mut listed = pb::ListHistoryResponse::default();
    loop {
        let response = client.list_history(request.clone()).await;
        let mut page = response.map_err(|status| refusal(&status))?.into_inner();
        listed.entries.append(&mut page.entries);
        listed = pb::ListHistoryResponse { entries: listed.entries, ..page };
        let n = u32::try_from(listed.entries.len()).unwrap_or(limit);
        request.limit = limit.saturating_sub(n);
        request.cursor.clone_from(&listed.next);
        if request.limit == 0 || listed.next.is_empty() {
            return Ok(listed);
        }
    }
}

/// Writes the revisions, and the cursor of the next page unless the list is followed.
fn write_list(
    history: &pb::ListHistoryResponse,
    follows: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
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
        "HELD",
        "NAMES",
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
            all_labels(entry),
            entry.reason.clone(),
            entry.validation.clone(),
            entry.confirmed.join(","),
            entry.access.to_string(),
            entry.source.clone(),
            if entry.held { "held".to_owned() } else { String::new() },
            names_in_words(entry),
        ]);
    }
    table.write(out, "")?;
    if history.next.is_empty() || follows {
        return Ok(());
    }
    writeln!(out, "more: --cursor {}", history.next)
}

/// Shows the newest revisions.
pub(super) async fn run(
    history: History,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    if let Some(Command::Show(args)) = history.command {
        return show(args, servers, answer).await;
    }
    let mut client = servers.connect_any().await?;
    let limit = if history.verify { HISTORY_MAX } else { history.limit };
    let request = pb::ListHistoryRequest {
        limit,
        stale: history.read.stale,
        cursor: history.cursor.unwrap_or_default(),
        scope: history.scope.unwrap_or_default(),
        r#type: history.type_name.unwrap_or_default(),
        name: history.name.unwrap_or_default(),
        author: history.author.unwrap_or_default(),
        label: history.label.unwrap_or_default(),
        names: if history.verify { 0 } else { NAMES_SHOWN },
        since_ms: history.since.map(Age::since_ms).unwrap_or_default(),
        request_id: history.request_id.map(|id| id.to_string()).unwrap_or_default(),
    };
    let expected = history.expect_head;
    let (is_check, follows) = (history.verify, history.follow);
    let is_by_content =
        [&request.scope, &request.r#type, &request.name].iter().any(|one| !one.is_empty());
    let history = list(&mut client, request).await?;
    if is_check {
        return history_check::run(&history.entries, expected.as_ref(), answer);
    }
    answer.show(&history, |out| {
        write_list(&history, follows, out)?;
        // `content_from` is 0 while the history keeps the changes of all revisions.
        if is_by_content && history.next.is_empty() && history.content_from > 0 {
            let oldest = history.content_from;
            writeln!(
                out,
                "the history no longer keeps the changes of revision {oldest} and earlier"
            )?;
        }
        Ok(())
    })?;
    if !follows {
        return Ok(());
    }
    let newest = history.entries.first().map(|entry| entry.revision);
    let follower = Follower::of_kinds(&[Kind::Revisions], newest.or(Some(0)), false);
    follower.follow(servers, answer).await
}
