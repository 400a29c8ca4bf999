//! The command `sync`: the content of a directory, such as a git checkout.

use std::{
    fs,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use chancery_admin_proto::v1 as pb;
use chancery_config::Span;
use clap::{ArgGroup, Args, builder::NonEmptyStringValueParser};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    apply::{EmptyFiles, read},
    client::{Servers, refusal},
    input::{self, Snapshot},
    interrupted::{Sent, not_written},
    only_name::OnlyName,
    write::{Body, Request, Validate, Write, counts_in_words, report_notes},
};
use crate::{
    answer::{Answer, Output},
    failure::Failure,
    progress::{Progress, Signals, Stopped},
    text::{count, printable_json},
    time::{now, time_in, timestamp},
};

/// The arguments of `sync`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("mode").required(true).args(["once", "watch"]))]
pub(crate) struct Sync {
    /// Directory of manifests, such as a checkout of git or the directory of `export`
    ///
    /// All files together are one transaction, as with `apply -f DIR`.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Apply the directory once
    #[arg(long)]
    once: bool,
    /// Apply the directory now and after each change, until a signal ends the command
    ///
    /// The command looks at the directory and at the revision of the cluster once per --interval. It applies the
    /// directory if a file has changed, if somebody else has written, or if the last attempt failed. It prints a line
    /// for each attempt that changed something or failed in another way than the one before. While git writes the
    /// checkout (.git/index.lock), it waits.
    #[arg(long, conflicts_with_all = ["dry_run", "wait", "if_revision", "request_id"])]
    watch: bool,
    /// With --watch, look for changes once per TIME, from 1s to 1h [default: 10s]
    #[arg(long, value_name = "TIME", requires = "watch", value_parser = time_in(INTERVALS))]
    interval: Option<Span>,
    /// With --watch, apply changes when no file has changed for TIME [default: 2s]
    ///
    /// A checkout changes one file after the other. A transaction with a part of them could delete resources.
    #[arg(long, value_name = "TIME", requires = "watch")]
    settle: Option<Span>,
    /// Use this scope for documents that do not name one
    #[arg(long, default_value = "default", value_parser = NonEmptyStringValueParser::new())]
    scope: String,
    #[command(flatten)]
    validate: Validate,
    #[command(flatten)]
    write: Write,
}

const INTERVAL: Duration = Duration::from_secs(10);
const SETTLE: Duration = Duration::from_secs(2);
/// The time between two looks at files that change.
const SETTLE_POLL: Duration = Duration::from_millis(200);

/// The range of `--interval`.
const INTERVALS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60 * 60);
/// Applies a directory.
pub(super) async fn run(
    sync: Sync,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    if sync.watch && !sync.once {
        let progress = Progress::with(Signals::all()?);
        return Follower::new(&sync, servers, progress).follow(answer).await;
    }
    let mut progress = Progress::new()?;
    let read = files(&sync, &mut progress).await;
    let files = read.unwrap_or_else(|stopped| Err(not_written(stopped)))?;
    request(&sync, files)?.run_with(servers, answer, &mut progress).await
}

/// Reads all files.
async fn files(
    sync: &Sync,
    progress: &mut Progress,
) -> Result<Result<Vec<pb::File>, Failure>, Stopped> {
    let (paths, scope, name) = (vec![sync.dir.clone()], sync.scope.clone(), OnlyName::default());
    read(paths, scope, name, EmptyFiles::Rejected, progress).await
}

fn request(sync: &Sync, files: Vec<pb::File>) -> Result<Request, Failure> {
    let (scope, prune, name) = (sync.scope.clone(), true, String::new());
    Request::new(&sync.write, |options| {
        let options = sync.validate.add_to(options);
        Body::Apply(pb::ApplyRequest { files, scope, prune, options, name })
    })
}

/// The newest attempt of [`Sync::watch`].
#[derive(Debug, Clone, PartialEq)]
struct Attempt {
    /// The files that were read.
    files: Snapshot,
    /// The revision of the cluster after a successful attempt.
    revision: Option<u64>,
    /// The lines of the failure.
    error: Vec<String>,
}

/// Applies a directory again and again.
struct Follower<'a> {
    sync: &'a Sync,
    servers: &'a Servers,
    progress: Progress,
    last: Option<Attempt>,
    /// The revision of the newest successful attempt.
    revision: Option<u64>,
}

/// The end of one look at the directory.
enum Turn {
    /// The directory is applied, or cannot be.
    Done,
    /// The files are changing.
    Unsettled,
    /// SIGTERM, the regular end.
    Ended,
}

impl<'a> Follower<'a> {
    fn new(sync: &'a Sync, servers: &'a Servers, progress: Progress) -> Self {
        Self { sync, servers, progress, last: None, revision: None }
    }

    /// Applies the directory until a signal arrives, or the output cannot be written.
    async fn follow(mut self, answer: &mut Answer<'_>) -> Result<(), Failure> {
        let interval = self.sync.interval.map_or(INTERVAL, Span::duration);
        let settle = self.sync.settle.map_or(SETTLE, Span::duration);
        // The newest state of the directory, and since when it is the same.
        let mut seen: Option<(Snapshot, Instant)> = None;
        loop {
            let files = input::snapshot(&self.sync.dir);
            let since = match &seen {
                Some((before, since)) if *before == files => *since,
                _ => Instant::now(),
            };
            seen = Some((files.clone(), since));
            let is_known = self.last.as_ref().is_some_and(|last| last.files == files);
            let is_settled = is_known || since.elapsed() >= settle && !is_git_busy(&self.sync.dir);
            let turn = if is_settled { self.turn(files, answer).await? } else { Turn::Unsettled };
            answer.out.flush()?;
            let pause = match turn {
                Turn::Done => interval,
                Turn::Unsettled => SETTLE_POLL.min(interval),
                Turn::Ended => return Ok(()),
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                stopped = self.progress.signal() => return ended(stopped).map(drop),
            }
        }
    }

    /// Applies the directory if something has changed.
    async fn turn(&mut self, files: Snapshot, answer: &mut Answer<'_>) -> Result<Turn, Failure> {
        if let Some(Attempt { files: before, revision: Some(revision), .. }) = &self.last
            && *before == files
            && self.is_newest(*revision).await
        {
            return Ok(Turn::Done);
        }
        let read = match self::files(self.sync, &mut self.progress).await {
            Ok(read) => read,
            Err(stopped) => return ended(stopped),
        };
        if input::snapshot(&self.sync.dir) != files {
            return Ok(Turn::Unsettled);
        }
        let sent = match read.and_then(|files| Ok((files.len(), request(self.sync, files)?))) {
            Ok((n, request)) => {
                request.send(self.servers, &mut self.progress).await.map(|sent| (n, sent))
            }
            Err(failure) => Err(failure),
        };
        match sent {
            Ok((_, Sent::Interrupted(interrupted))) => return Err(interrupted.failure()),
            Ok((n, Sent::Answered(response))) => self.on_written(files, n, &response, answer)?,
            Err(failure) => self.on_failed(files, self.servers.named(failure), answer)?,
        }
        Ok(Turn::Done)
    }

    /// Returns whether nobody has written since a revision. If the server does not answer, the next write says why.
    async fn is_newest(&self, revision: u64) -> bool {
        let request = pb::ListResourcesRequest {
            limit: 1,
            without_body: true,
            ..pb::ListResourcesRequest::default()
        };
        let newest = async {
            let mut client = self.servers.connect_any().await?;
            let response = client.list_resources(request).await;
            let mut pieces = response.map_err(|status| refusal(&status))?.into_inner();
            pieces.message().await.map_err(|status| refusal(&status))
        };
        let newest = tokio::time::timeout(INTERVAL, newest).await;
        matches!(newest, Ok(Ok(Some(piece))) if piece.revision == revision)
    }

    fn on_written(
        &mut self,
        files: Snapshot,
        n_files: usize,
        response: &pb::WriteResponse,
        answer: &mut Answer<'_>,
    ) -> Result<(), Failure> {
        let pb::WriteResponse {
            revision, changed, removed, unchanged, assignments, access, ..
        } = response;
        let has_changed = changed + removed + assignments + access > 0;
        let has_recovered = self.last.as_ref().is_none_or(|last| !last.error.is_empty());
        self.revision = Some(*revision);
        self.last = Some(Attempt { files, revision: Some(*revision), error: Vec::new() });
        if !has_changed && !has_recovered {
            return Ok(());
        }
        report_notes(response);
        let files = count(n_files as u64, "file");
        let text = format!("revision {revision}: {} in {files}", counts_in_words(response));
        let json = json!({
            "time_ms": now(), "ok": true, "revision": revision, "changed": changed, "removed": removed,
            "unchanged": unchanged, "assignments": assignments, "access": access, "files": n_files, "error": "",
        });
        show(&text, &json, answer)
    }

    fn on_failed(
        &mut self,
        files: Snapshot,
        failure: Failure,
        answer: &mut Answer<'_>,
    ) -> Result<(), Failure> {
        let error = failure.lines.clone();
        let attempt = Attempt { files, revision: None, error };
        let is_repeated = self.last.as_ref() == Some(&attempt);
        self.last = Some(attempt);
        if is_repeated {
            return Ok(());
        }
        failure.report();
        let applied = match self.revision {
            Some(revision) => format!("revision {revision} is the last that was applied"),
            None => "nothing was applied yet".to_owned(),
        };
        let text = format!("failed: {}; {applied}", failure.lines.join("; "));
        let json = json!({
            "time_ms": now(), "ok": false, "revision": self.revision, "error": failure.lines.join("; "),
        });
        show(&text, &json, answer)
    }
}

/// Ends the command.
fn ended(stopped: Stopped) -> Result<Turn, Failure> {
    match stopped {
        Stopped::Terminated => Ok(Turn::Ended),
        Stopped::Interrupted => Err(stopped.failure([])),
    }
}

/// Prints the status: a line of text or JSON.
fn show(text: &str, json: &Value, answer: &mut Answer<'_>) -> Result<(), Failure> {
    match answer.output {
        Output::Text | Output::Wide => {
            answer.text(|out| writeln!(out, "{} {text}", timestamp(now())))
        }
        Output::Json | Output::Sarif => {
            writeln!(answer.out, "{}", printable_json(&json.to_string()))?;
            Ok(())
        }
        Output::Yaml => {
            answer.out.write_all(b"---\n")?;
            answer.yaml(json)
        }
    }
}

/// Returns whether git is writing the checkout that has this directory. A lock that is left by a killed git is
/// reported by git itself.
fn is_git_busy(directory: &Path) -> bool {
    let directory = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let found = directory.ancestors().map(|parent| parent.join(".git")).find(|git| git.exists());
    let Some(git) = found else { return false };
    // In a worktree, it is a file with the path.
    let link = fs::read_to_string(&git).ok().and_then(|text| {
        text.strip_prefix("gitdir: ").map(|path| git.with_file_name("").join(path.trim()))
    });
    link.unwrap_or(git).join("index.lock").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_is_bounded() {
        let interval = time_in(INTERVALS);
        assert!(interval("1s").is_ok() && interval("1h").is_ok());
        for text in ["999ms", "2h", "0s"] {
            assert_eq!(interval(text).unwrap_err(), "must be from 1s to 1h", "{text}");
        }
        assert!(interval("soon").is_err());
    }

    #[test]
    fn checkout_is_busy_while_git_holds_its_lock() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("config/prod");
        fs::create_dir_all(&inner).unwrap();
        fs::create_dir(root.path().join(".git")).unwrap();
        assert!(!is_git_busy(&inner));
        fs::write(root.path().join(".git/index.lock"), "").unwrap();
        assert!(is_git_busy(&inner));
        // A worktree inside of it has a lock of its own.
        let other = root.path().join("other");
        fs::create_dir_all(&other).unwrap();
        fs::create_dir_all(root.path().join("of-other")).unwrap();
        fs::write(other.join(".git"), "gitdir: ../of-other\n").unwrap();
        assert!(!is_git_busy(&other));
        fs::write(root.path().join("of-other/index.lock"), "").unwrap();
        assert!(is_git_busy(&other));
    }
}
