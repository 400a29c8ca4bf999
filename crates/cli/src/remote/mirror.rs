//! The command `mirror`.
//!
//! It is an xDS client that keeps the view of one node in files, in the form that Envoy's `path_config_source`
//! reads. It acknowledges what it has received. Only Envoy knows whether a file is accepted (FS-07).

use std::{
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use chancery_admission::FileEncoding;
use chancery_config::Span;
use chancery_model::{ResourceKey, ResourceName, TypeUrl, types};
use chancery_proto::discovery::DeltaDiscoveryRequest;
use clap::{Args, ValueEnum};
use tokio::time::Instant;

pub(super) use names::file_name;

use self::{
    names::short,
    node::NodeFlags,
    stream::{Lost, Server, Stream},
    view::{FULL, View},
    writer::{Report, Settings, Writer},
};
use super::connector::Security;
use crate::{answer::Answer, failure::Failure, text::plain};

pub(super) mod address;
mod files;
mod names;
mod node;
mod plan;
mod stream;
#[cfg(test)]
mod tests;
mod view;
mod writer;

/// The arguments of `mirror`.
#[derive(Debug, Args)]
pub(crate) struct Mirror {
    #[command(flatten)]
    node: NodeFlags,
    /// Write the files into this directory; it is created if it does not exist
    ///
    /// `cds`, `lds` and `srds` hold all resources of their type. `eds`, `rds`, `sds`, `rtds`, `ecds` and `fcds` are
    /// directories with one file for each resource. The name of such a file is the name of the resource,
    /// percent-encoded except for letters, digits, '.', '_' and '-'. `listing.txt` lists all files.
    #[arg(long)]
    dir: PathBuf,
    /// Encoding, and extension, of the files
    #[arg(long, value_enum, default_value = "json")]
    encoding: Encoding,
    /// Connect to the xDS port at ADDR; try the addresses of a comma-separated list in order
    ///
    /// ADDR is HOST:PORT, or https://HOST:PORT if the port uses TLS.
    #[arg(
        long,
        value_name = "ADDR",
        default_value = "127.0.0.1:18000",
        value_delimiter = ',',
        value_parser = address::parse
    )]
    xds: Vec<String>,
    /// Also mirror a resource to which only the bootstrap refers, such as rtds/NAME; repeatable
    #[arg(long, value_name = "TYPE/NAME", value_parser = included)]
    include: Vec<ResourceKey>,
    /// Write the files once, and exit
    ///
    /// The exit code is 0 if all files of the view are written, and 1 otherwise. The command fails at once if another
    /// attempt would fail in the same way, for example because of a wrong certificate.
    #[arg(long)]
    once: bool,
    /// Wait at most TIME for the complete view; requires --once
    #[arg(long, value_name = "TIME", default_value = "30s", requires = "once")]
    timeout: Span,
    /// Wait TIME between changes to files of different types
    ///
    /// Envoy loads its files in no defined order. The pause lets it apply, for example, new
    /// clusters before the routes to them.
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    pause: Span,
    /// Let the view of another cluster remove resources from the files
    ///
    /// A new or restored cluster may lack resources. Without this flag, no file changes until the view
    /// of that cluster contains all resources that are in the files.
    #[arg(long)]
    accept_new_cluster: bool,
    /// Mode of files with secrets, in octal; the mode of other files is 644
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = mode)]
    secret_mode: u32,
}

/// The encoding of the files.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Encoding {
    /// JSON
    Json,
    /// YAML
    Yaml,
    /// The wire format of protobuf
    Pb,
    /// The text format of protobuf
    #[value(name = "pb_text")]
    PbText,
}

impl From<Encoding> for FileEncoding {
    fn from(encoding: Encoding) -> Self {
        match encoding {
            Encoding::Json => Self::Json,
            Encoding::Yaml => Self::Yaml,
            Encoding::Pb => Self::Binary,
            Encoding::PbText => Self::Text,
        }
    }
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "expected an octal mode, such as 600 or 640".to_owned())
}

fn included(text: &str) -> Result<ResourceKey, String> {
    // Virtual hosts and endpoints of localities have no form as files.
    let unsupported = [types::VIRTUAL_HOST, types::LOCALITY_ENDPOINT];
    let is_named = |url: &str| !FULL.contains(&url) && !unsupported.contains(&url);
    let named = || types::KNOWN.iter().filter(|known| is_named(known.url));
    let Some((alias, name)) = text.split_once('/') else {
        return Err("expected TYPE/NAME, such as rtds/layer".to_owned());
    };
    let known = named().find(|known| known.aliases.contains(&alias)).ok_or_else(|| {
        let known: Vec<&str> = named().filter_map(|known| short(known.url)).collect();
        format!("{alias:?} is not a type that is requested by name: {}", known.join(", "))
    })?;
    let name = ResourceName::canonical(name).map_err(|error| error.to_string())?;
    Ok(ResourceKey { type_url: TypeUrl::from_static(known.url), name })
}

/// The maximum time without a response while the view is incomplete.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The time without a response after which the changes are written.
const QUIET: Duration = Duration::from_millis(50);
/// The maximum time for which responses without a break delay the changes.
const QUIET_MAX: Duration = Duration::from_secs(2);
/// The time between two looks at the directory.
const CHECK: Duration = Duration::from_secs(5);
/// The pause before files that could not be written are written again.
const RETRY: Duration = Duration::from_secs(1);
/// The pauses before the first and each later round over all servers. They double up to the maximum.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// The duration of a stream after which the next failure counts as the first one.
const STABLE: Duration = Duration::from_secs(10);
/// The maximum number of missing resources that a message names.
const MISSING_SHOWN_MAX: usize = 10;

/// Mirrors the view of a node until the process ends, or once.
pub(super) async fn run(
    mirror: Mirror,
    security: &Security,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let settings = Settings {
        encoding: mirror.encoding.into(),
        secret_mode: mirror.secret_mode,
        pause: mirror.pause.duration(),
        accepts_new_cluster: mirror.accept_new_cluster,
    };
    address::check(&mirror.xds).await?;
    let servers = mirror.xds.iter().map(|text| Server::new(text, security));
    let servers = servers.collect::<Result<Vec<_>, _>>()?;
    let mut state = State {
        view: View::new(mirror.include.iter().cloned()),
        writer: Writer::open(&mirror.dir, settings)?,
        once: mirror.once,
        problems: Vec::new(),
        held: None,
        is_held: false,
    };
    if !mirror.once {
        return state.follow_all(&mirror, &servers, answer).await;
    }
    let timeout = mirror.timeout.duration();
    match tokio::time::timeout(timeout, state.follow_all(&mirror, &servers, answer)).await {
        Ok(done) => done,
        Err(_) => {
            let mut lines = std::mem::take(&mut state.problems);
            lines.retain(|line| !line.is_empty());
            let node = &mirror.node.node;
            let failure = if state.view.is_complete() {
                format!(
                    "the files of node {node:?} could not be written completely within {timeout:?}"
                )
            } else {
                format!(
                    "the view of node {node:?} could not be fetched completely within {timeout:?}: {}; nothing was \
                     written",
                    state.missing()
                )
            };
            Err(Failure::lines(lines.into_iter().chain([failure])))
        }
    }
}

/// The reason why the mirror no longer follows a stream.
enum End {
    /// The files are written, and nothing more is to be done.
    Done,
    /// The stream is lost.
    Lost(Lost),
    /// The output or the files cannot be written.
    Failed(Failure),
}

struct State {
    view: View,
    writer: Writer,
    once: bool,
    /// The latest problem of each server, for `--once`.
    problems: Vec<String>,
    /// The latest reason why no file may change.
    held: Option<String>,
    /// Whether no file may change until the next response.
    is_held: bool,
}

impl State {
    /// Follows one server after the other.
    async fn follow_all(
        &mut self,
        mirror: &Mirror,
        servers: &[Server],
        answer: &mut Answer<'_>,
    ) -> Result<(), Failure> {
        let node = mirror.node.encode();
        let n_servers = servers.len();
        let mut backoff = BACKOFF_MIN;
        self.problems = vec![String::new(); n_servers];
        let mut finals = vec![false; n_servers];
        for turn in (0..n_servers).cycle() {
            let server = &servers[turn];
            let address = &server.address;
            let start = Instant::now();
            let Lost { reason, is_final } = match self.follow(server, &node, answer).await {
                End::Done => return Ok(()),
                End::Failed(failure) => return Err(failure),
                End::Lost(lost) => lost,
            };
            let problem = format!("no stream from the server at {address}: {reason}");
            if !self.once {
                warn(&problem);
            }
            self.problems[turn] = problem;
            finals[turn] = is_final;
            if self.once && finals.iter().all(|is_final| *is_final) {
                let node = &mirror.node.node;
                let failure = format!(
                    "the view of node {node:?} could not be fetched, and another attempt would fail in the same way; \
                     nothing was written"
                );
                let problems = std::mem::take(&mut self.problems);
                return Err(Failure::lines(problems.into_iter().chain([failure])));
            }
            if start.elapsed() >= STABLE {
                backoff = BACKOFF_MIN;
            }
            // The other servers are tried at once.
            if turn + 1 == n_servers {
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF_MAX);
            }
        }
        Err(Failure::new("there is no server to connect to; set --xds"))
    }

    async fn follow(
        &mut self,
        server: &Server,
        node: &bytes::Bytes,
        answer: &mut Answer<'_>,
    ) -> End {
        let mut requests = self.view.first_requests().into_iter();
        let Some(mut first) = requests.next() else { return End::Done };
        first.node = Some(node.clone());
        let mut stream = match Stream::open(server, first).await {
            Ok(stream) => stream,
            Err(lost) => return End::Lost(lost),
        };
        for request in requests {
            if let Err(lost) = stream.send(request).await {
                return End::Lost(lost);
            }
        }
        let mut heard = Instant::now();
        // The time at which the changes are written, and the latest such time.
        let mut due = heard + QUIET;
        let mut latest = heard + QUIET_MAX;
        loop {
            let is_complete = self.view.is_complete();
            let until = match (is_complete, self.view.has_changes() && !self.is_held) {
                (true, true) => due.min(latest),
                (true, false) => {
                    latest = Instant::now() + QUIET_MAX;
                    Instant::now() + CHECK
                }
                (false, _) => heard + ANSWER_TIMEOUT,
            };
            match tokio::time::timeout_at(until, stream.next()).await {
                Ok(Ok(response)) => {
                    let ack = DeltaDiscoveryRequest {
                        type_url: response.type_url.clone(),
                        response_nonce: response.nonce.clone(),
                        ..DeltaDiscoveryRequest::default()
                    };
                    self.view.on_response(response);
                    self.is_held = false;
                    for request in std::iter::once(ack).chain(self.view.next_requests()) {
                        if let Err(lost) = stream.send(request).await {
                            return End::Lost(lost);
                        }
                    }
                    heard = Instant::now();
                    due = heard + QUIET;
                }
                Ok(Err(lost)) => return End::Lost(lost),
                Err(_) if !is_complete => {
                    let missing = self.missing();
                    let reason = format!("it has not answered for {ANSWER_TIMEOUT:?}: {missing}");
                    return End::Lost(reason.into());
                }
                Err(_)
                    if !self.is_held && (self.view.has_changes() || !self.writer.is_intact()) =>
                {
                    match self.write(answer).await {
                        Ok(true) if self.once => return End::Done,
                        Ok(true) => {}
                        Ok(false) => due = Instant::now() + RETRY,
                        Err(failure) => return End::Failed(failure),
                    }
                    latest = due.max(Instant::now() + QUIET_MAX);
                }
                Err(_) => {}
            }
        }
    }

    /// Writes the changes. Returns whether all of them are written; otherwise, they remain changes.
    async fn write(&mut self, answer: &mut Answer<'_>) -> Result<bool, Failure> {
        if !self.writer.is_intact() {
            warn("the directory was removed or replaced; all its files are written again");
            if let Err(failure) = self.writer.reopen() {
                failure.lines.iter().for_each(|line| warn(line));
                return Ok(false);
            }
            self.view.change_all();
        }
        if let Some(reason) = self.writer.hold(&self.view) {
            if self.once {
                return Err(Failure::new(reason));
            }
            if self.held.as_ref() != Some(&reason) {
                warn(&reason);
            }
            (self.held, self.is_held) = (Some(reason), true);
            return Ok(false);
        }
        self.held = None;
        let changes = self.view.take_changes();
        let mut report = Report::default();
        let written = self.writer.write(&self.view, &changes, &mut report).await;
        answer.text(|out| report.lines.iter().try_for_each(|line| writeln!(out, "{line}")))?;
        answer.out.flush()?;
        if let Err(error) = written {
            if self.once {
                return Err(Failure::new(error));
            }
            warn(&format!("{error}; the next attempt follows in {RETRY:?}"));
            self.view.put_back(changes);
            return Ok(false);
        }
        if self.once && !report.problems.is_empty() {
            return Err(Failure::lines(report.problems));
        }
        report.problems.iter().for_each(|problem| warn(problem));
        Ok(true)
    }

    /// Names what the server has not answered.
    fn missing(&self) -> String {
        let mut missing = self.view.missing();
        let in_words = |(url, name): (&str, Option<&str>)| {
            let short = short(url).unwrap_or(url);
            name.map_or_else(|| short.to_owned(), |name| format!("{short} {name:?}"))
        };
        let shown: Vec<String> = missing.by_ref().take(MISSING_SHOWN_MAX).map(in_words).collect();
        let more = match missing.count() {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        format!("no answer for {}{more}", shown.join(", "))
    }
}

/// Prints a warning on standard error.
fn warn(text: &str) {
    // A failure to write to standard error cannot be reported anywhere.
    drop(writeln!(io::stderr().lock(), "warning: {}", plain(text)));
}
