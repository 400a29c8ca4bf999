//! The command `apply`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use chancery_admin_proto::v1::{self as pb, File};
use chancery_admission::{Manifest, Options, admit};
use chancery_config::Span;
use chancery_model::ScopeName;
use clap::{ArgGroup, Args, builder::NonEmptyStringValueParser};
use tokio::time::Instant;

use super::{
    client::Servers,
    input::{self, Input, Snapshot},
    interrupted::not_written,
    only_name::OnlyName,
    write::{Body, Request, Validate, Write},
};
use crate::{
    answer::Answer,
    exit::Exit,
    failure::Failure,
    progress::{Progress, Stopped, on_thread},
};

/// The arguments of `apply`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("input").required(true).args(["files", "watch"]))]
pub(crate) struct Apply {
    /// Read manifests (YAML or JSON) from a file, a directory, or standard input (-); repeatable
    ///
    /// A directory is searched with its subdirectories for *.yaml, *.yml, *.json, *.pb and *.pb_text.
    /// The files are read in the order of their paths. Hidden names and links to directories are
    /// skipped. Anything else that is not a regular file is an error.
    ///
    /// A file may also be a DiscoveryResponse for Envoy's path_config_source: JSON, YAML, the wire
    /// format (*.pb) or the protobuf text format (*.pb_text).
    ///
    /// All files together are one transaction.
    #[arg(short, long = "file", value_name = "FILE|DIR|-")]
    files: Vec<PathBuf>,
    /// Follow a directory: apply its files now and after each change, until the process ends
    ///
    /// All files together are one transaction, as with -f. If a file or the transaction has a problem, the
    /// command reports it, changes nothing, and tries again. It polls the directory, and applies
    /// changes when no file has changed for the time of --settle.
    ///
    /// With --prune, the command deletes a resource that is no longer in any file, if a file still
    /// names its scope. Otherwise, it keeps resources of deleted files.
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["dry_run", "wait", "if_revision", "request_id"]
    )]
    watch: Option<PathBuf>,
    /// With --watch, apply changes when no file has changed for TIME [default: 500ms, or 5s with --prune]
    ///
    /// A partly written file may be well-formed but lack resources. With --prune, the command would
    /// delete these resources.
    #[arg(long, value_name = "TIME", requires = "watch")]
    settle: Option<Span>,
    /// Use this scope for documents that do not name one
    #[arg(long, default_value = "default", value_parser = NonEmptyStringValueParser::new())]
    scope: String,
    /// Delete resources that are missing from the input, in the scopes of the input
    ///
    /// The scopes of the input are those that documents name. A document with `resources` but no
    /// scope adds the scope of --scope. Resources of other scopes are kept, and so are all
    /// assignments, access rules and quotas. Delete these with `assignments delete`, `access delete` and
    /// `quota delete`.
    #[arg(long)]
    prune: bool,
    #[command(flatten)]
    only_name: OnlyName,
    #[command(flatten)]
    validate: Validate,
    #[command(flatten)]
    write: Write,
}

impl Apply {
    /// Returns the arguments of a dry run.
    pub(super) fn dry_run(
        files: Vec<PathBuf>,
        scope: Option<String>,
        prune: bool,
        only_name: OnlyName,
        validate: Validate,
        stale: bool,
    ) -> Self {
        Self {
            files,
            watch: None,
            settle: None,
            scope: scope.unwrap_or_else(|| "default".to_owned()),
            prune,
            only_name,
            validate,
            write: Write { dry_run: true, stale, ..Write::default() },
        }
    }
}

/// Publishes manifests.
pub(super) async fn run(
    apply: Apply,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    match &apply.watch {
        None => publish(&apply, &apply.files, servers, answer, &mut Progress::new()?).await,
        Some(directory) => watch(&apply, directory, servers, answer, Progress::new()?).await,
    }
}

async fn publish(
    apply: &Apply,
    paths: &[PathBuf],
    servers: &Servers,
    answer: &mut Answer<'_>,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let empty = if apply.watch.is_some() { EmptyFiles::Rejected } else { EmptyFiles::Allowed };
    let (paths, scope) = (paths.to_vec(), apply.scope.clone());
    let read = read(paths, scope, apply.only_name.clone(), empty, progress).await;
    let files = read.unwrap_or_else(|stopped| Err(not_written(stopped)))?;
    let (scope, prune, name) = (apply.scope.clone(), apply.prune, apply.only_name.to_text());
    let body = |options| {
        let options = apply.validate.add_to(options);
        Body::Apply(pb::ApplyRequest { files, scope, prune, options, name })
    };
    Request::new(&apply.write, body)?.run_with(servers, answer, progress).await
}

/// Whether a file without content is a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EmptyFiles {
    Allowed,
    /// A file that is being written may still be empty.
    Rejected,
}

/// Reads the manifests, and shows the progress.
pub(super) async fn read(
    paths: Vec<PathBuf>,
    scope: String,
    only_name: OnlyName,
    empty: EmptyFiles,
    progress: &mut Progress,
) -> Result<Result<Vec<pb::File>, Failure>, Stopped> {
    progress.stage().begin("reading the input");
    let read = on_thread(move || {
        let files = manifests(&paths, &scope, &only_name)?;
        let empty = files
            .iter()
            .filter(|file| empty == EmptyFiles::Rejected && file.content.trim().is_empty());
        let problems: Vec<String> = empty
            .map(|file| {
                format!("{}: the file is empty; remove it to remove its resources", file.name)
            })
            .collect();
        if problems.is_empty() { Ok(files) } else { Err(Failure::lines(problems)) }
    });
    progress.run(read).await.map(|read| read.and_then(|files| files))
}

/// The minimum and the maximum time between two looks at a directory.
const POLL_MIN: Duration = Duration::from_millis(20);
const POLL: Duration = Duration::from_millis(500);
/// The time without changes after which the files are applied, without and with removals.
const SETTLE: Duration = Duration::from_millis(500);
const SETTLE_PRUNE: Duration = Duration::from_secs(5);
/// The pause after a failure, before the same files are applied again.
const RETRY: Duration = Duration::from_secs(5);

/// Publishes the files of a directory after each change. Ends at a signal, or if the output cannot be written.
async fn watch(
    apply: &Apply,
    directory: &Path,
    servers: &Servers,
    answer: &mut Answer<'_>,
    mut progress: Progress,
) -> Result<(), Failure> {
    let paths = [directory.to_owned()];
    let settle = match &apply.settle {
        Some(settle) => settle.duration(),
        None if apply.prune => SETTLE_PRUNE,
        None => SETTLE,
    };
    // The newest state of the directory, and since when it is the same.
    let (mut last, mut since) = (None, Instant::now());
    let mut applied = None;
    // The files that could not be applied, the failure, and the time of the next attempt.
    let mut failed: Option<(Snapshot, Failure, Instant)> = None;
    loop {
        let now = Some(input::snapshot(directory));
        let is_due = match &failed {
            Some((files, _, retry)) if now.as_ref() == Some(files) => Instant::now() >= *retry,
            _ => now != applied,
        };
        if now != last {
            (last, since) = (now.clone(), Instant::now());
        }
        if is_due && since.elapsed() >= settle {
            let done = publish(apply, &paths, servers, answer, &mut progress).await;
            answer.out.flush()?;
            match done {
                Ok(()) => (applied, failed) = (now.clone(), None),
                Err(failure) if failure.exit == Exit::Interrupted => return Err(failure),
                Err(failure) => {
                    let failure = servers.named(failure);
                    if failed.as_ref().is_none_or(|(files, before, _)| {
                        *before != failure || now.as_ref() != Some(files)
                    }) {
                        failure.report();
                    }
                    failed = now.clone().map(|files| (files, failure, Instant::now() + RETRY));
                }
            }
        }
        let sleep = tokio::time::sleep(settle.clamp(POLL_MIN, POLL));
        tokio::select! {
            () = sleep => {}
            stopped = progress.signal() => return Err(stopped.failure([])),
        }
    }
}

/// Reads the manifests. If a file cannot be read, reports the problems of the others too.
fn manifests(
    paths: &[PathBuf],
    scope: &str,
    only_name: &OnlyName,
) -> Result<Vec<pb::File>, Failure> {
    let Input { files, mut problems } = input::read_all(paths);
    if problems.is_empty() {
        return Ok(files);
    }
    let manifests: Vec<Manifest> =
        files.into_iter().map(|File { name, content }| Manifest { file: name, content }).collect();
    if let Ok(scope) = ScopeName::new(scope)
        && !manifests.is_empty()
        && let Err(others) = admit(&manifests, &only_name.add_to(Options::new(scope)))
    {
        problems.extend(others.iter().map(ToString::to_string));
    }
    Err(Failure::lines(problems))
}
