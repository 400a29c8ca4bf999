//! The commands `freeze`, `thaw` and `freezes`.

use chancery_admin::time_limits::FREEZE;
use chancery_admin_proto::v1::{self as pb, admin_client::AdminClient};
use chancery_config::Span;
use clap::{ArgGroup, Args, builder::NonEmptyStringValueParser};

use super::{
    client::{Servers, refusal},
    connector::Channel,
    read::Read,
    write::{Body, Request, Write},
};
use crate::{
    answer::Answer,
    failure::Failure,
    table::Table,
    text::plain,
    time::{time_in, timestamp},
};

/// The arguments of `freeze`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["scope", "all"]))]
pub(crate) struct Freeze {
    /// Scope to freeze
    #[arg(value_name = "SCOPE", value_parser = NonEmptyStringValueParser::new())]
    scope: Option<String>,
    /// Freeze all scopes, also those that do not exist yet, and the assignments
    #[arg(long)]
    all: bool,
    /// End the freeze after this time, from 1s to 720h [default: no end]
    #[arg(long = "for", value_name = "TIME", value_parser = time_in(FREEZE))]
    time: Option<Span>,
    /// Record this author [default: $USER, or none if that is unset]
    #[arg(long)]
    author: Option<String>,
    /// Record this reason [default: none]
    #[arg(long)]
    reason: Option<String>,
}

/// The arguments of `thaw`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["scope", "all"]))]
pub(crate) struct Thaw {
    /// Scope to thaw
    #[arg(value_name = "SCOPE", value_parser = NonEmptyStringValueParser::new())]
    scope: Option<String>,
    /// End the freeze of all scopes; freezes of single scopes stay
    #[arg(long)]
    all: bool,
    /// Discard the held changes instead of sending them
    #[arg(long)]
    discard: bool,
    #[command(flatten)]
    write: Write,
}

/// Freezes a scope.
pub(super) async fn freeze(
    freeze: Freeze,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let Freeze { scope, all, time, author, reason } = freeze;
    let write = Write { author, reason, ..Write::default() };
    let (scope, for_ms) = (scope.unwrap_or_default(), time.map(Span::millis));
    let body = |options| Body::Freeze(pb::FreezeRequest { scope, all, for_ms, options });
    Request::new(&write, body)?.run(servers, answer).await
}

/// Ends a freeze.
pub(super) async fn thaw(
    thaw: Thaw,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let Thaw { scope, all, discard, write } = thaw;
    let scope = scope.unwrap_or_default();
    let body = |options| Body::Thaw(pb::ThawRequest { scope, all, discard, options });
    Request::new(&write, body)?.run(servers, answer).await
}

/// Lists the freezes.
pub(super) async fn list(
    read: &Read,
    mut client: AdminClient<Channel>,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let request = pb::ListFreezesRequest { stale: read.stale, ..Default::default() };
    let response = client.list_freezes(request).await.map_err(|status| refusal(&status))?;
    let response = response.into_inner();
    answer.show(&response, |out| {
        if response.freezes.is_empty() {
            return writeln!(out, "nothing is frozen");
        }
        let header = ["SCOPE", "REVISION", "SINCE", "UNTIL", "HELD", "AUTHOR", "REASON"];
        let mut table = Table::new(header);
        for freeze in &response.freezes {
            let scope = if freeze.scope.is_empty() { "(all)" } else { &freeze.scope };
            let assignments = if freeze.held_assignments { " and the assignments" } else { "" };
            table.row([
                plain(scope),
                freeze.revision.to_string(),
                timestamp(freeze.time_ms),
                freeze.until_ms.map_or_else(|| "-".to_owned(), timestamp),
                format!("{}{assignments}", freeze.held_resources),
                plain(&freeze.author),
                plain(&freeze.reason),
            ]);
        }
        table.write(out, "")
    })
}
