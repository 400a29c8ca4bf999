//! The common part of all commands that write: flags, attempts and output.

use std::{
    cell::Cell,
    collections::BTreeMap,
    io::{self, Write as _},
    time::Duration,
};

use chancery_admin::{guard_name, time_limits::WAIT};
use chancery_admin_proto::v1::{self as pb, admin_client::AdminClient};
use chancery_config::Span;
use chancery_store::RequestId;
use clap::{Args, builder::NonEmptyStringValueParser};
use tonic::Status;

use super::{
    checked_clients::report_clients,
    client::Servers,
    connector::Channel,
    interrupted::{self, Sent},
    left_out::report_left_out,
    parameters::{shortened, with_variant},
    wait_result::{held, in_words, not_all_asked, unsettled_lines},
    write_attempt::{Again, Refused, Written, problem_lines},
    write_effects::{
        Differences, access_object, write_access_changes, write_access_effects, write_differences,
        write_guards,
    },
};
use crate::{
    answer::Answer,
    exit::Exit,
    failure::Failure,
    progress::Progress,
    table::Table,
    text::{count, plain, short_type},
    time::time_in,
};

/// The flags of all commands that write resources.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct Write {
    /// Show what would change, and write nothing
    ///
    /// The exit code is 0 without changes, 2 with changes, and 1 if the write would be rejected.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Exit with 0 even if the dry run has changes, or a guard would reject the write
    #[arg(long, requires = "dry_run")]
    pub(crate) exit_zero: bool,
    /// Compute the dry run from the replica's own state, which may be outdated
    ///
    /// Without this flag, the replica first asks the leader for its commit index, and applies all
    /// entries up to it. Requires --dry-run.
    #[arg(long, requires = "dry_run")]
    pub(crate) stale: bool,
    /// Wait at most TIME for the sessions to acknowledge the write [`--wait` alone: 30s]
    ///
    /// TIME is a number with a unit: 250ms, 10s, 5m or 1h. The maximum is 1h. Not allowed with
    /// --dry-run.
    ///
    /// The command asks the sessions that the write concerns, and lists those that have not
    /// acknowledged. It asks the sessions of all replicas.
    ///
    /// A write concerns a session that subscribes to a changed resource, if its node sees the resource or
    /// saw it immediately before the write. The subscription may be by name or by wildcard. A write that
    /// changes assignments also concerns the sessions whose scopes it changes. A write that changes
    /// nothing concerns the sessions that subscribe to the resources it names.
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "30s",
        value_parser = time_in(WAIT),
        conflicts_with = "dry_run"
    )]
    pub(crate) wait: Option<Span>,
    /// Record a label KEY=VALUE in the history, such as git=4fe1a2 [default: none]
    ///
    /// May be given up to 16 times. A value has at most 256 printable ASCII characters without commas.
    ///
    /// A label without `=` becomes part of the version that clients see. Only one such label is possible. It
    /// has at most 64 letters, digits, '.', '_' and '-'.
    #[arg(long, value_name = "KEY=VALUE", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) label: Vec<String>,
    /// Reject the write if a scope that it touches has changed after this revision
    #[arg(long, value_name = "REVISION")]
    pub(crate) if_revision: Option<u64>,
    /// Record this author in the history [default: $USER, or none if that is unset]
    #[arg(long)]
    pub(crate) author: Option<String>,
    /// Record this reason in the history [default: none]
    #[arg(long)]
    pub(crate) reason: Option<String>,
    /// Write although these guards reject it [default: none]
    ///
    /// Guards reject writes that may take down connected nodes. The rejection and the dry run name the
    /// guards and the effect on nodes. --confirm all confirms every guard.
    ///
    /// mass-deletion: deletes a large share of the resources of a type that a node sees.
    /// empty-endpoints: leaves a cluster without endpoints.
    /// cluster-in-use: removes a cluster to which another resource refers, such as a route.
    /// view-change: gives connected nodes other resources, or none, by a change of assignments.
    /// sotw-size: makes a SotW response larger than gRPC clients accept by default.
    /// unasked: a replica did not answer whether the write concerns its nodes.
    /// effect: clients accept a resource, and then their calls fail.
    #[arg(long, value_name = "GUARD[,GUARD]", value_delimiter = ',', value_parser = guard_name, verbatim_doc_comment)]
    pub(crate) confirm: Vec<&'static str>,
    /// Send the resources of this write to clients, even if a freeze holds their scopes
    ///
    /// Clients receive all resources that the write names or prunes, even unchanged ones. If all scopes are frozen,
    /// clients also receive the assignments that the write names. Other held changes stay held. Needs the right
    /// `freeze.override`, and `freeze.all` for assignments.
    #[arg(long)]
    pub(crate) override_freeze: bool,
    /// Identify the write by 32 hexadecimal digits [default: random]
    ///
    /// Use the same ID to retry safely when the outcome of the first attempt is unknown: a write
    /// takes effect once under one ID. Not allowed with --dry-run.
    #[arg(long, value_name = "HEX", conflicts_with = "dry_run")]
    pub(crate) request_id: Option<RequestId>,
}

/// The flag of the commands that publish resources.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct Validate {
    /// Refuse, report or ignore resources that clients would reject [default: the scope's mode]
    ///
    /// enforce refuses the whole write. warn stores the resources and prints the findings. off does
    /// not check the resources. The history records this flag. Without it, the server uses its
    /// configured mode for each scope.
    #[arg(long, value_name = "MODE", value_parser = ["enforce", "warn", "off"])]
    pub(crate) validation: Option<String>,
}

impl Validate {
    /// Adds the mode to the options of a write.
    pub(super) fn add_to(&self, options: Option<pb::WriteOptions>) -> Option<pb::WriteOptions> {
        let validation = self.validation.clone().unwrap_or_default();
        options.map(|options| pb::WriteOptions { validation, ..options })
    }
}

impl Write {
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.wait.map(Span::duration)
    }
}

/// The maximum number of changes in text output. JSON has more.
const CHANGES_SHOWN_MAX: usize = 100;
/// The minimum number of attempts of a write. With more servers, each server gets one.
const ATTEMPTS_MIN: usize = 3;
/// The pause after the first attempt. The pause after attempt n is n times as long.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(200);

/// A write with all its input and its request ID.
pub(super) struct Request {
    id: RequestId,
    dry_run: bool,
    exit_zero: bool,
    /// Whether a server may have received the write.
    is_sent: Cell<bool>,
    body: Body,
}

/// The request of each command that writes.
pub(super) enum Body {
    Apply(pb::ApplyRequest),
    Import(pb::ImportRequest),
    Delete(pb::DeleteRequest),
    DeleteAssignment(pb::DeleteAssignmentRequest),
    Rollback(pb::RollbackRequest),
    Undo(pb::UndoRequest),
    Freeze(pb::FreezeRequest),
    Thaw(pb::ThawRequest),
}

impl Request {
    /// Creates a write. `body` takes the options of the write.
    pub(super) fn new(
        write: &Write,
        body: impl FnOnce(Option<pb::WriteOptions>) -> Body,
    ) -> Result<Self, Failure> {
        // All attempts use the same ID, so that the write takes effect once.
        let id = match write.request_id {
            Some(id) => id,
            None => RequestId::random().map_err(|error| {
                Failure::new(format_args!("cannot generate a request ID: {error}"))
            })?,
        };
        let Write { dry_run, exit_zero, .. } = *write;
        let body = body(Some(options(write, id)?));
        Ok(Self { id, dry_run, exit_zero, is_sent: Cell::new(false), body })
    }
}

impl Body {
    async fn send(&self, mut client: AdminClient<Channel>) -> Result<pb::WriteResponse, Status> {
        let response = match self {
            Self::Apply(request) => client.apply(request.clone()).await,
            Self::Import(request) => client.import(request.clone()).await,
            Self::Delete(request) => client.delete(request.clone()).await,
            Self::DeleteAssignment(request) => client.delete_assignment(request.clone()).await,
            Self::Rollback(request) => client.rollback(request.clone()).await,
            Self::Undo(request) => client.undo(request.clone()).await,
            Self::Freeze(request) => client.freeze(request.clone()).await,
            Self::Thaw(request) => client.thaw(request.clone()).await,
        };
        response.map(tonic::Response::into_inner)
    }
}

impl Request {
    /// Sends the write and shows the result.
    pub(super) async fn run(
        &self,
        servers: &Servers,
        answer: &mut Answer<'_>,
    ) -> Result<(), Failure> {
        self.run_with(servers, answer, &mut Progress::new()?).await
    }

    /// [`Request::run`], with the progress of a command that has done something before.
    pub(super) async fn run_with(
        &self,
        servers: &Servers,
        answer: &mut Answer<'_>,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let response = match self.send(servers, progress).await? {
            Sent::Answered(response) => response,
            Sent::Interrupted(interrupted) => return interrupted.show(answer),
        };
        report_notes(&response);
        answer.show(response.as_ref(), |out| write_text(&response, out))?;
        match &response.wait {
            Some(wait) => verdict(&response, wait),
            None if response.dry_run && !self.exit_zero => dry_run_verdict(&response),
            None => Ok(()),
        }
    }

    /// Sends the write, and shows the progress.
    pub(super) async fn send(
        &self,
        servers: &Servers,
        progress: &mut Progress,
    ) -> Result<Sent, Failure> {
        progress.stage().begin("waiting for the answer of the server");
        match progress.run(self.attempts(servers)).await {
            Ok(response) => Ok(Sent::Answered(Box::new(response?))),
            Err(stopped) => {
                let may_be_written = self.is_sent.get() && !self.dry_run;
                let id = may_be_written.then_some(self.id);
                Ok(Sent::Interrupted(interrupted::find(servers, progress, stopped, id).await))
            }
        }
    }

    /// Sends the write. If the connection breaks or the replica has no leader, retries at the next
    /// server. A failure contains the last attempt, and the latest attempt that may have been
    /// written.
    async fn attempts(&self, servers: &Servers) -> Result<pb::WriteResponse, Failure> {
        let attempts_max = servers.len().max(ATTEMPTS_MIN);
        let mut unknown: Option<String> = None;
        let mut attempt = 0;
        loop {
            let connected = servers.connect(attempt).await;
            self.is_sent.set(self.is_sent.get() || connected.is_ok());
            let refused = match connected {
                Ok(client) => match self.body.send(client).await {
                    Ok(response) if response.problems.is_empty() => return Ok(response),
                    Ok(refused) => Refused::input(&refused),
                    Err(status) => Refused::from(&status),
                },
                Err(failure) => Refused { failure, written: Written::No, again: Again::Anywhere },
            };
            let again = match refused.again {
                Again::Nowhere => false,
                // A single server has already waited for a leader.
                Again::Elsewhere => servers.len() > 1,
                Again::Anywhere => true,
            };
            let said = || {
                let (n, server) = (attempt + 1, servers.name(attempt));
                format!("attempt {n}, at {server}: {}", refused.failure.lines.join("; "))
            };
            if refused.written == Written::Unknown && !self.dry_run {
                unknown = Some(said());
            }
            if !again || attempt + 1 >= attempts_max {
                return Err(match unknown {
                    None => refused.failure,
                    Some(unknown) => self.may_be_written(unknown, said()),
                });
            }
            attempt += 1;
            let pauses = u32::try_from(attempt).unwrap_or(u32::MAX);
            tokio::time::sleep(ATTEMPT_PAUSE.saturating_mul(pauses)).await;
        }
    }

    fn may_be_written(&self, unknown: String, last: String) -> Failure {
        let id = self.id;
        let then = format!(
            "to retry safely, run the same command with --request-id {id}: the write takes effect once; `chancery \
             history` and `chancery get` show the current state"
        );
        let may = format!("the write may have taken effect, or may still take effect: {unknown}");
        if unknown == last {
            Failure::lines([may, then])
        } else {
            Failure::lines([may, last, then])
        }
    }
}

/// Returns the label of versions, if any, and the labels of the history.
fn labels(given: &[String]) -> Result<(String, BTreeMap<String, String>), Failure> {
    let (mut of_versions, mut labels) = (String::new(), BTreeMap::new());
    for label in given {
        match label.split_once('=') {
            None if of_versions.is_empty() => of_versions.clone_from(label),
            None => {
                return Err(Failure::new(format_args!(
                    "only one --label without `=` is possible: {of_versions:?} or {label:?}"
                )));
            }
            Some((key, value)) => {
                if labels.insert(key.to_owned(), value.to_owned()).is_some() {
                    return Err(Failure::new(format_args!("--label {key:?} is given twice")));
                }
            }
        }
    }
    Ok((of_versions, labels))
}

fn options(write: &Write, request_id: RequestId) -> Result<pb::WriteOptions, Failure> {
    let (label, labels) = labels(&write.label)?;
    let millis = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    // The local user name. Only an authenticated identity could prove who the user is.
    let user = || std::env::var("USER").unwrap_or_default();
    Ok(pb::WriteOptions {
        dry_run: write.dry_run,
        if_revision: write.if_revision,
        wait_ms: write.wait().map(millis),
        label,
        labels,
        author: write.author.clone().unwrap_or_else(user),
        reason: write.reason.clone().unwrap_or_default(),
        problems_in_response: true,
        request_id: request_id.to_string(),
        stale: write.stale,
        confirm: write.confirm.iter().copied().map(str::to_owned).collect(),
        validation: String::new(),
        override_freeze: write.override_freeze,
    })
}

/// Prints what the author should know about a write, on standard error.
pub(super) fn report_notes(response: &pb::WriteResponse) {
    report_warnings(&response.warnings);
    report_left_out(&response.left_out);
    report_clients(response);
}

/// Prints the findings that did not refuse the write, on standard error.
fn report_warnings(warnings: &[pb::Problem]) {
    let mut stderr = io::stderr().lock();
    for line in problem_lines(warnings) {
        // A failure to write to standard error cannot be reported anywhere.
        drop(writeln!(stderr, "warning: {}", plain(&line)));
    }
}

/// Writes the differences of the first resources and assignments.
fn write_changes(
    response: &pb::WriteResponse,
    shown_max: usize,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let shown = response.changes.iter().take(shown_max);
    for change in shown {
        let type_name = short_type(&change.type_url);
        let name = with_variant(&format!("{:?}", change.name), &change.variant);
        let object = format!("{type_name} {} in {}", plain(&name), change.scope);
        let differences = Differences {
            unified: &change.unified,
            lines_omitted: change.unified_lines_omitted,
            fields: &change.differences,
        };
        write_differences(&object, &differences, out)?;
    }
    for change in response.assignment_changes.iter().take(shown_max) {
        let differences = Differences {
            unified: &change.unified,
            lines_omitted: change.unified_lines_omitted,
            fields: &change.differences,
        };
        write_differences(&format!("assignment {:?}", change.name), &differences, out)?;
    }
    Ok(())
}

/// Writes a table of the first `shown_max` changes of each kind, and their differences.
pub(super) fn write_all_changes(
    response: &pb::WriteResponse,
    shown_max: usize,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let mut table = Table::new(["CHANGE", "TYPE", "NAME", "SCOPE"]);
    for change in response.changes.iter().take(shown_max) {
        let (kind, scope) = (change.kind.clone(), change.scope.clone());
        let name = with_variant(&change.name, &shortened(&change.variant));
        table.row([kind, short_type(&change.type_url), name, scope]);
    }
    for change in response.assignment_changes.iter().take(shown_max) {
        let kind = change.kind.clone();
        table.row([kind, "assignment".to_owned(), change.name.clone(), String::new()]);
    }
    for change in response.access_changes.iter().take(shown_max) {
        let (kind, name) = (change.kind.clone(), change.name.clone());
        table.row([kind, access_object(change).to_owned(), name, String::new()]);
    }
    if !table.is_empty() {
        table.write(out, "")?;
    }
    let beyond = |n: usize| n.saturating_sub(shown_max) as u64;
    let hidden = beyond(response.changes.len())
        + beyond(response.assignment_changes.len())
        + beyond(response.access_changes.len());
    if hidden + response.changes_omitted > 0 {
        let more = if table.is_empty() { "" } else { "more " };
        let n = hidden + response.changes_omitted;
        writeln!(out, "… {n} {more}{}", if n == 1 { "change" } else { "changes" })?;
    }
    write_changes(response, shown_max, out)?;
    write_access_changes(response, shown_max, out)
}

fn write_text(response: &pb::WriteResponse, out: &mut dyn io::Write) -> io::Result<()> {
    write_all_changes(response, CHANGES_SHOWN_MAX, out)?;
    write_access_effects(response, out)?;
    write_guards(response, out)?;
    let what = match (response.dry_run, response.repeated) {
        (true, _) => "dry run, nothing written; revision",
        (false, true) => "already written by this request, as revision",
        (false, false) => "revision",
    };
    writeln!(out, "{what} {}: {}", response.revision, counts_in_words(response))?;
    match &response.wait {
        Some(wait) if !wait.held.is_empty() => Ok(()),
        Some(wait) => writeln!(out, "{}", in_words(wait)),
        None => Ok(()),
    }
}

/// Returns the numbers of a write.
pub(super) fn counts_in_words(response: &pb::WriteResponse) -> String {
    let assignments = match response.assignments {
        0 => String::new(),
        n => format!(", {}", count(n, "assignment")),
    };
    let access = match response.access {
        0 => String::new(),
        1 => ", 1 access rule or quota".to_owned(),
        n => format!(", {n} access rules or quotas"),
    };
    let pb::WriteResponse { changed, removed, unchanged, .. } = response;
    format!("{changed} changed, {removed} removed, {unchanged} unchanged{assignments}{access}")
}

/// Succeeds only if a dry run would change nothing.
fn dry_run_verdict(response: &pb::WriteResponse) -> Result<(), Failure> {
    let guards = response.guards.iter().filter(|finding| !finding.confirmed);
    let guards: Vec<&str> = guards.map(|finding| finding.guard.as_str()).collect();
    if !guards.is_empty() {
        let names = guards.join(",");
        return Err(Failure::new(format_args!(
            "guard `{names}` would reject the write; to write it anyway, pass `--confirm {names}`"
        )));
    }
    if n_changes(response) == 0 { Ok(()) } else { Err(Failure::changes()) }
}

/// Returns the number of changes of a write.
fn n_changes(response: &pb::WriteResponse) -> u64 {
    response.changed + response.removed + response.assignments + response.access
}

/// Succeeds only if every session of the cluster is known to have acknowledged.
fn verdict(response: &pb::WriteResponse, wait: &pb::WaitResult) -> Result<(), Failure> {
    if !wait.held.is_empty() {
        return Err(held(&wait.held));
    }
    if !wait.settled {
        return Err(Failure::lines(unsettled_lines(wait)));
    }
    let has_changed = n_changes(response) > 0;
    let done = if has_changed { "written" } else { "nothing changed" };
    if wait.left > 0 || wait.replicas_not_asked > 0 {
        return Err(not_all_asked(done, wait));
    }
    if wait.asked == 0 {
        let line = format!("{done}, but not confirmed: the write concerns no session");
        return Err(Failure::with_exit(Exit::NoSessionConcerned, line));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        write: Write,
    }

    #[test]
    fn wait_flag_accepts_an_optional_duration() {
        let wait =
            |args: &[&str]| Flags::try_parse_from([&["x"], args].concat()).unwrap().write.wait();
        assert_eq!(wait(&[]), None);
        assert_eq!(wait(&["--wait"]), Some(Duration::from_secs(30)));
        assert_eq!(wait(&["--wait=250ms"]), Some(Duration::from_millis(250)));
    }

    #[test]
    fn a_dry_run_shows_what_would_change_field_by_field() {
        let response = pb::WriteResponse {
            revision: 4,
            changed: 1,
            removed: 1,
            unchanged: 2,
            dry_run: true,
            changes: vec![
                pb::Change {
                    scope: "default".into(),
                    type_url: chancery_model::types::CLUSTER.into(),
                    name: "web".into(),
                    kind: "updated".into(),
                    unified: "+ connect_timeout: 1s\n".into(),
                    unified_lines_omitted: 1,
                    ..Default::default()
                },
                pb::Change {
                    scope: "default".into(),
                    type_url: "example.com/a.B".into(),
                    name: "x".into(),
                    kind: "removed".into(),
                    ..Default::default()
                },
            ],
            assignments: 1,
            assignment_changes: vec![pb::AssignmentChange {
                name: "edge".into(),
                kind: "updated".into(),
                differences: vec![pb::FieldDifference {
                    path: "priority".into(),
                    before: "1".into(),
                    after: "2".into(),
                    kind: "changed".into(),
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        let mut out = Vec::new();
        write_text(&response, &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "CHANGE   TYPE        NAME  SCOPE\n\
             updated  cluster     web   default\n\
             removed  a.B         x     default\n\
             updated  assignment  edge  -\n\
             cluster \"web\" in default:\n\
             + connect_timeout: 1s\n\
             \x20 … 1 more line\n\
             assignment \"edge\":\n\
             \x20 priority: 1 -> 2\n\
             dry run, nothing written; revision 4: 1 changed, 1 removed, 2 unchanged, 1 assignment\n"
        );
    }

    #[test]
    fn wait_succeeds_only_if_every_session_of_the_cluster_has_acknowledged() {
        let missing = pb::ReplicaNotAsked {
            replica_id: 2,
            message: "is starting".to_owned(),
            ..Default::default()
        };
        let wait = |asked, n_missing| {
            let wait = pb::WaitResult {
                settled: true,
                asked,
                acknowledged: asked,
                replicas_not_asked: n_missing as u64,
                not_asked: vec![missing.clone(); n_missing],
                ..Default::default()
            };
            let written = pb::WriteResponse { changed: 1, ..Default::default() };
            verdict(&written, &wait).map_err(|failure| (failure.exit, failure.lines.join("; ")))
        };
        assert_eq!(wait(2, 0), Ok(()));
        let (code, line) = wait(0, 0).unwrap_err();
        assert!(
            code == Exit::NoSessionConcerned && line.contains("not confirmed"),
            "{code:?}: {line}"
        );
        for asked in [0, 2] {
            let (code, line) = wait(asked, 1).unwrap_err();
            let told = format!(
                "{asked} of {asked} sessions acknowledged after 0 ms; replica 2 is starting"
            );
            assert!(code == Exit::NotAllAsked && line.contains(&told), "{code:?}: {line}");
        }
    }

    #[test]
    fn verdict_on_unchanged_write_does_not_say_written() {
        for replicas_not_asked in [0, 2] {
            let asked = replicas_not_asked;
            let wait =
                pb::WaitResult { settled: true, asked, replicas_not_asked, ..Default::default() };
            let said = |response| verdict(&response, &wait).unwrap_err().lines.join("; ");
            let unchanged = said(pb::WriteResponse { unchanged: 1, ..Default::default() });
            assert!(unchanged.starts_with("nothing changed, but "), "{unchanged}");
            let changed = said(pb::WriteResponse { assignments: 1, ..Default::default() });
            assert!(changed.starts_with("written, but "), "{changed}");
        }
    }

    #[test]
    fn session_that_leaves_before_answering_makes_outcome_unknown() {
        let wait = pb::WaitResult { settled: true, asked: 1, left: 1, ..Default::default() };
        let failure = verdict(&pb::WriteResponse::default(), &wait).unwrap_err();
        let told = "0 of 1 session acknowledged after 0 ms; 1 session left before answering";
        assert!(
            failure.exit == Exit::NotAllAsked && failure.lines[0].ends_with(told),
            "{failure:?}"
        );
    }

    #[test]
    fn unacknowledged_sessions_are_listed_with_the_reason() {
        let unsettled = |state: &str, message: &str| pb::Unsettled {
            node: "edge-1".into(),
            type_url: chancery_model::types::LISTENER.into(),
            state: state.into(),
            message: message.into(),
            replica_id: 1,
        };
        let wait = pb::WaitResult {
            settled: false,
            waited_ms: 50,
            unsettled: vec![unsettled("nacked", "bad\nport"), unsettled("pending", "")],
            unsettled_omitted: 3,
            asked: 7,
            acknowledged: 2,
            ..Default::default()
        };
        assert_eq!(verdict(&pb::WriteResponse::default(), &wait).unwrap_err().exit, Exit::Failed);
        assert_eq!(in_words(&wait), "2 of 7 sessions acknowledged after 50 ms");
        assert_eq!(
            unsettled_lines(&wait),
            [
                "node \"edge-1\" has rejected listener: bad\\nport",
                "node \"edge-1\" has not acknowledged listener within 50 ms",
                "and 3 more",
            ]
        );
        assert_eq!(unsettled_lines(&pb::WaitResult::default()).len(), 1);
    }
}
