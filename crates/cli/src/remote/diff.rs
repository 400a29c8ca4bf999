//! The command `diff`.

use std::path::PathBuf;

use chancery_admin_proto::v1::{self as pb, history_service_client::HistoryServiceClient};
use clap::{ArgGroup, Args, builder::NonEmptyStringValueParser};

use super::{
    apply::Apply,
    client::{Servers, refusal},
    only_name::OnlyName,
    read::Read,
    write::{Validate, write_all_changes},
};
use crate::{answer::Answer, exit::Exit, failure::Failure, progress::reading, text::count};

/// The arguments of `diff`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["files", "from"]))]
pub(crate) struct Diff {
    /// Compare only resources of this type: an alias or a type URL
    #[arg(value_name = "TYPE", value_parser = NonEmptyStringValueParser::new())]
    type_name: Option<String>,
    /// Compare only the resource of this name
    #[arg(id = "resource", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// Compare manifests with the newest revision; a file, directory or -; repeatable
    #[arg(short, long = "file", value_name = "FILE|DIR|-", conflicts_with = "from")]
    files: Vec<PathBuf>,
    /// Old revision
    #[arg(long, value_name = "REVISION")]
    from: Option<u64>,
    /// New revision [default: the newest]
    #[arg(long, value_name = "REVISION", requires = "from")]
    to: Option<u64>,
    /// Compare only this scope; with -f, the scope of documents without one
    ///
    /// Without it, --from compares everything, and -f uses the scope "default".
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    scope: Option<String>,
    /// With -f, also show the resources that `apply --prune` would delete
    #[arg(long, requires = "files")]
    prune: bool,
    /// With --from, show at most N changes per page
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// With --from, continue after the page of an earlier command
    #[arg(long, value_name = "CURSOR", requires = "from")]
    cursor: Option<String>,
    #[command(flatten)]
    only_name: OnlyName,
    #[command(flatten)]
    validate: Validate,
    #[command(flatten)]
    read: Read,
}

/// Shows what differs. Fails with [`Exit::Changes`] if something does.
pub(super) async fn run(
    diff: Diff,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let has_name = !diff.only_name.to_text().is_empty();
    let misused = match diff.from {
        Some(_) if has_name || diff.prune || diff.validate.validation.is_some() => {
            Some("--name, --prune and --validation need -f")
        }
        None if diff.to.is_some() || diff.type_name.is_some() || diff.cursor.is_some() => {
            Some("TYPE, NAME, --to and --cursor need --from")
        }
        _ => None,
    };
    if let Some(text) = misused {
        return Err(Failure::with_exit(Exit::Usage, text));
    }
    let Some(from) = diff.from else {
        let Diff { files, scope, prune, only_name, validate, read, .. } = diff;
        let apply = Apply::dry_run(files, scope, prune, only_name, validate, read.stale);
        return super::apply::run(apply, servers, answer).await;
    };
    let request = pb::CompareRevisionsRequest {
        from: Some(from),
        to: diff.to,
        scope: diff.scope.unwrap_or_default(),
        r#type: diff.type_name.unwrap_or_default(),
        name: diff.name.unwrap_or_default(),
        limit: diff.limit,
        cursor: diff.cursor.unwrap_or_default(),
        stale: diff.read.stale,
    };
    let channel = servers.any_channel().await?;
    let mut client = HistoryServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    let compared = reading("comparing revisions", async |_| {
        let response = client.compare_revisions(request).await;
        response.map(tonic::Response::into_inner).map_err(|status| refusal(&status))
    });
    let compared = compared.await?;
    answer.show(&compared, |out| {
        let shown = pb::WriteResponse {
            changes: compared.changes.clone(),
            assignment_changes: compared.assignment_changes.clone(),
            access_changes: compared.access_changes.clone(),
            ..pb::WriteResponse::default()
        };
        write_all_changes(&shown, usize::MAX, out)?;
        if compared.hidden > 0 {
            writeln!(out, "{} that you may not read", count(compared.hidden, "change"))?;
        }
        let pb::RevisionComparison { from, to, total, next, .. } = &compared;
        writeln!(out, "from revision {from} to {to}: {}", count(*total, "change"))?;
        if next.is_empty() { Ok(()) } else { writeln!(out, "more: --cursor {next}") }
    })?;
    if compared.total + compared.hidden == 0 { Ok(()) } else { Err(Failure::changes()) }
}
