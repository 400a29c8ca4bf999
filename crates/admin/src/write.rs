//! Writes: from the input to a transaction and its result.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use chancery_admin_proto::v1 as pb;
use chancery_admission::{
    Admitted, Imported, Manifest, Omitted, Options, Problem, Prune, Validation,
};
use chancery_audit::truncated;
use chancery_fanout::Change;
use chancery_model::{
    AccessOp, Applied, AssignmentOp, Outcome, Precondition, Refusal, ResourceKey, ResourceName,
    Revision, ScopeName, State, Summary, Transaction, Upsert,
};
use chancery_store::{HISTORY_MAX, TransactError};
use tracing::debug;

use crate::{
    AdminError,
    access_effects::access_effect,
    changed_names::{self, NamedResources},
    changes::{self, Effect},
    create_times,
    ctx::Ctx,
    deletion::{content, deletion},
    deps::Deps,
    deps::Freshness,
    fleet_effects::{self, FleetEffects},
    fleet_wait::{Enough, wait_for},
    held_changes::held_of_write,
    nodes,
    record::Operation,
    releases,
    request_ids::stored_id,
    resources::parse_type,
    trial::{Attempt, Trial},
    unchanged, unrequested_collections,
    unrequested_collections::collections_of,
    work::Size,
    write_access, write_check,
    write_guards::{self, effects_of, rejection},
    write_input::{Input, reading_size},
    write_options::{Checked, check},
    write_profiles,
    write_profiles::{checked_clients, refused},
    write_trace::WriteTrace,
};

/// The maximum number of files in one request.
const FILES_MAX: usize = 10_000;
/// Transactions of more operations are large work.
const SMALL_OPERATIONS_MAX: usize = 100;
/// Transactions whose bodies have more bytes are large work.
const SMALL_BODY_BYTES_MAX: usize = 256 << 10;
/// The maximum number of reported expectations of a delete that do not hold.
const UNMET_MAX: usize = 100;

/// The scope of a request that does not name one.
const DEFAULT_SCOPE: &str = "default";

/// The maximum time for which a trace waits for clients.
const ACKNOWLEDGMENT_TIMEOUT: Duration = Duration::from_secs(30);

fn scope(name: &str) -> Result<ScopeName, AdminError> {
    Ok(ScopeName::new(if name.is_empty() { DEFAULT_SCOPE } else { name })?)
}

/// Returns the record of [`apply`].
pub(crate) fn record_apply(request: &pb::ApplyRequest) -> Operation {
    Operation::write("apply", &request.scope, request.options.as_ref())
        .detail("files", request.files.len())
        .detail("prune", request.prune)
}

/// Publishes manifests.
pub(crate) async fn apply(
    ctx: &Ctx,
    request: pb::ApplyRequest,
) -> Result<pb::WriteResponse, AdminError> {
    let mut checked = check(request.options, ctx.source())?;
    let scope = scope(&request.scope)?;
    check_number_of_files(request.files.len())?;
    let files: Vec<Manifest> = request.files.into_iter().map(manifest).collect();
    let (validation, elsewhere) = write_profiles::validation_of(ctx, checked.validation).await;
    let options = Options {
        scope,
        prune: if request.prune { Prune::Prune } else { Prune::Keep },
        if_revision: checked.if_revision,
        meta: checked.meta.clone(),
        validation,
        name: only_name(request.name),
    };
    let size = reading_size(&files);
    // The transaction of a write is tried in the same job, on the present state of this
    // replica. With an external validator, it is tried after the run, on the state of that time.
    let try_now = checked.freshness == Freshness::Stale && ctx.deps.external.is_none();
    let state = try_now.then(|| ctx.deps.replica.state());
    let checks = write_check::checks(&ctx.deps, checked.validation);
    let override_freeze = checked.override_freeze;
    let read = move |stop: &Arc<AtomicBool>| {
        let admitted = chancery_admission::admit_unless(&files, &options, stop);
        let Admitted { mut transaction, origins, unchanged, warnings } =
            admitted.map_err(|problems| refused(&options.validation, problems))?;
        if override_freeze {
            transaction.access.push(AccessOp::OverrideFreezes);
        }
        let clients = checked_clients(&options.validation, &transaction);
        let collections = collections_of(&transaction);
        // The stored resources decide which bodies such a write publishes.
        let content = (create_times::lack_times(&transaction) || !unchanged.is_empty())
            .then(|| create_times::content(&files, &options));
        let input = Input { files, origins, warnings };
        let attempt = match state.filter(|_| content.is_none()) {
            // A small input may become a large transaction.
            Some(state) if self::size(&transaction) == size => {
                Attempt::of(transaction, state, &checks)
            }
            _ => Attempt::Untried(Box::new(transaction)),
        };
        Ok::<_, AdminError>((attempt, input, clients, (collections, content, unchanged)))
    };
    let (attempt, mut input, clients, (collections, content, unchanged)) =
        ctx.deps.work.run_while_awaited(size, read).await??;
    let response = match attempt {
        Attempt::Untried(mut transaction) => {
            if content.is_some() {
                checked.content = content;
                let size = self::size(&transaction);
                transaction =
                    create_times::set_create_times(ctx, transaction, &checked, size).await?;
                let kept =
                    unchanged::keep_stored(ctx, transaction, &mut input, unchanged, &checked).await;
                transaction = match kept {
                    Err(_) if took_effect(ctx, &checked).await? => {
                        Box::new(self::transaction(&checked))
                    }
                    kept => kept?,
                };
            }
            input.warnings.extend(external_findings(ctx, &mut transaction, &checked).await?);
            commit(ctx, *transaction, checked, input).await
        }
        Attempt::Tried(tried) => commit_tried(ctx, *tried, checked, input).await,
    };
    let response = write_profiles::with_clients(response?, clients, &elsewhere);
    Ok(unrequested_collections::with_unrequested(ctx, response, collections).await)
}

fn check_number_of_files(n: usize) -> Result<(), AdminError> {
    if n == 0 {
        return Err(AdminError::Parameter("there is no manifest to apply".to_owned()));
    }
    if n > FILES_MAX {
        let text = format!("the request has {n} files, at most {FILES_MAX} are allowed");
        return Err(AdminError::TooLarge(text));
    }
    Ok(())
}

/// Asks the external validator, if the caller may write the transaction. Returns the findings that do
/// not refuse it.
pub(crate) async fn external_findings(
    ctx: &Ctx,
    transaction: &mut Transaction,
    checked: &Checked,
) -> Result<Vec<Problem>, AdminError> {
    let Some(external) = &ctx.deps.external else { return Ok(Vec::new()) };
    write_access::authorize_write(ctx, transaction, checked)?;
    let modes = Validation { call: checked.validation, ..ctx.deps.validation.clone() };
    match external.check(transaction, &modes).await {
        Err(_) if took_effect(ctx, checked).await? => Ok(Vec::new()),
        findings => findings,
    }
}

/// Returns whether an earlier attempt of a request took effect. The store then returns the result of
/// that attempt, and the checks of this one do not matter.
pub(crate) async fn took_effect(ctx: &Ctx, checked: &Checked) -> Result<bool, AdminError> {
    if !checked.may_be_repeated {
        return Ok(false);
    }
    // Another replica may have taken the earlier attempt.
    let known = "this attempt wrote nothing, but an earlier one with the same request ID may have";
    ctx.deps.catch_up_to_write(known).await?;
    let history = ctx.deps.replica.history(HISTORY_MAX);
    let id = stored_id(checked, ctx.caller());
    Ok(history.iter().any(|entry| entry.request == Some(id)))
}

/// Returns the record of [`import`].
pub(crate) fn record_import(request: &pb::ImportRequest) -> Operation {
    Operation::write("import", &request.scope, request.options.as_ref())
}

/// Publishes the static resources of an Envoy bootstrap.
pub(crate) async fn import(
    ctx: &Ctx,
    request: pb::ImportRequest,
) -> Result<pb::WriteResponse, AdminError> {
    let checked = check(request.options, ctx.source())?;
    let scope = scope(&request.scope)?;
    let file = request
        .file
        .ok_or_else(|| AdminError::Parameter("there is no bootstrap to import".to_owned()))?;
    let file = manifest(file);
    let size = reading_size(std::slice::from_ref(&file));
    let (validation, elsewhere) = write_profiles::validation_of(ctx, checked.validation).await;
    let call = validation.clone();
    let only_name = only_name(request.name);
    let read = move |stop: &Arc<AtomicBool>| {
        let (name, content, only_name) = (&file.file, &file.content, only_name.as_deref());
        chancery_admission::import_bootstrap(name, content, &scope, only_name, &call, stop)
            .map(|imported| (file, imported))
    };
    let imported = ctx.deps.work.run_while_awaited(size, read).await?;
    let (file, imported) = imported.map_err(|problems| refused(&validation, problems))?;
    let left_out = left_out(&file.file, &imported.omitted);
    let Imported { drafts, origins, warnings, .. } = imported;
    let drafts = drafts.into_iter();
    let upserts = drafts.map(|(scope, draft)| Upsert { scope, draft }).collect();
    let mut transaction = Transaction { upserts, ..transaction(&checked) };
    let mut input = Input { files: vec![file], origins, warnings };
    let checked_clients = checked_clients(&validation, &transaction);
    input.warnings.extend(external_findings(ctx, &mut transaction, &checked).await?);
    let response = commit(ctx, transaction, checked, input).await?;
    let response = write_profiles::with_clients(response, checked_clients, &elsewhere);
    Ok(pb::WriteResponse { left_out, ..response })
}

/// Returns the record of [`delete`].
pub(crate) fn record_delete(request: &pb::DeleteRequest) -> Operation {
    let names = request.resources.iter().map(|resource| resource.name.as_str());
    let operation = Operation::write("delete", &request.scope, request.options.as_ref())
        .detail("resources", request.resources.len())
        .names("names", names);
    match request.resources.as_slice() {
        [only] => operation.target(&only.r#type, only.name.as_str()),
        _ => operation,
    }
}

/// Deletes existing resources.
pub(crate) async fn delete(
    ctx: &Ctx,
    request: pb::DeleteRequest,
) -> Result<pb::WriteResponse, AdminError> {
    let pb::DeleteRequest { resources, scope: scope_name, options } = request;
    let mut checked = check(options, ctx.source())?;
    let scope = scope(&scope_name)?;
    if !ctx.caller().may_everything() {
        // Nobody learns what exists where they may not delete.
        let mut asked = transaction(&checked);
        for resource in &resources {
            let type_url = parse_type(&resource.r#type)?;
            let name = ResourceName::canonical(&resource.name)?;
            asked.deletes.push((scope.clone(), ResourceKey { type_url, name }));
        }
        write_access::authorize_write(ctx, &mut asked, &checked)?;
    }
    let size = Size::of(resources.len() <= SMALL_OPERATIONS_MAX);
    let empty = transaction(&checked);
    let state = ctx.deps.replica.state();
    let if_revision = checked.if_revision;
    let read = move || {
        let content = content(&resources, &scope, if_revision)?;
        Ok::<_, AdminError>((content, deletion(&resources, &scope, empty, &state)))
    };
    let (content, found) = ctx.deps.work.run(size, read).await??;
    // Which variant is deleted depends on the state. The content of the request therefore identifies a retry.
    checked.content = Some(content);
    let transaction = match found {
        Err(_) if took_effect(ctx, &checked).await? => transaction(&checked),
        found => found?,
    };
    commit(ctx, transaction, checked, Input::default()).await
}

/// Returns the error of a refused transaction. The refusal contains only the first unmet
/// expectation, and the author needs all of them.
async fn refused_by(
    ctx: &Ctx,
    size: Size,
    expected: Vec<Precondition>,
    refusal: Refusal,
) -> AdminError {
    let all = match AdminError::from(refusal) {
        error @ AdminError::Quota(_) => {
            crate::metrics::refused("quota");
            Ok(error)
        }
        AdminError::NotFound(first) => {
            list_unmet(ctx, size, expected, first).await.map(AdminError::NotFound)
        }
        AdminError::Precondition(first) => {
            list_unmet(ctx, size, expected, first).await.map(AdminError::Precondition)
        }
        other => Ok(other),
    };
    all.unwrap_or_else(|error| error)
}

/// Returns all expectations that do not hold, as one text.
async fn list_unmet(
    ctx: &Ctx,
    size: Size,
    expected: Vec<Precondition>,
    first: String,
) -> Result<String, AdminError> {
    let state = ctx.deps.replica.state();
    let list = move |stop: &Arc<AtomicBool>| all_unmet(&state, &expected, first, stop);
    ctx.deps.work.run_while_awaited(size, list).await
}

/// Returns the record of [`delete_assignment`].
pub(crate) fn record_delete_assignment(request: &pb::DeleteAssignmentRequest) -> Operation {
    Operation::write("assignment.delete", "", request.options.as_ref())
        .target("", request.name.as_str())
}

/// Deletes an existing assignment.
pub(crate) async fn delete_assignment(
    ctx: &Ctx,
    request: pb::DeleteAssignmentRequest,
) -> Result<pb::WriteResponse, AdminError> {
    let checked = check(request.options, ctx.source())?;
    let mut transaction = transaction(&checked);
    let name = request.name;
    transaction.assignments.push(AssignmentOp::Delete(name.as_str().into()));
    let response = commit(ctx, transaction, checked, Input::default()).await?;
    if response.assignments == 0 {
        return Err(AdminError::NotFound(format!("there is no assignment {name:?}")));
    }
    Ok(response)
}

/// Commits a transaction, or tries it for a dry run, if the caller may write it.
pub(crate) async fn commit(
    ctx: &Ctx,
    mut transaction: Transaction,
    checked: Checked,
    input: Input,
) -> Result<pb::WriteResponse, AdminError> {
    checked.mark(&mut transaction);
    write_access::authorize_write(ctx, &mut transaction, &checked)?;
    // A dry run is a read. For a write, the leader decides, and the local state is only for the
    // answer.
    let before = match checked.effect {
        Effect::DryRun => ctx.deps.state(checked.freshness).await?,
        Effect::Committed => ctx.deps.replica.state(),
    };
    let size = size(&transaction);
    let checks = write_check::checks(&ctx.deps, checked.validation);
    let tried = ctx.deps.work.run(size, move || Trial::new(transaction, before, &checks)).await?;
    commit_tried(ctx, tried, checked, input).await
}

async fn commit_tried(
    ctx: &Ctx,
    mut tried: Trial,
    checked: Checked,
    mut input: Input,
) -> Result<pb::WriteResponse, AdminError> {
    write_access::authorize_write(ctx, &mut tried.transaction, &checked)?;
    if checked.effect == Effect::Committed && !checked.meta.labels.is_empty() {
        releases::require(
            ctx,
            "store labels",
            "without labels, which would drop them and have another history",
        )
        .await?;
    }
    let fleet = fleet_effects::fleet_effects(ctx, &tried, checked.effect).await?;
    let shared = write_check::shared_addresses(ctx, &tried, checked.validation, &fleet).await?;
    let mut guards = guards(ctx, &mut tried, &checked, &fleet).await?;
    let effects = effects_of(&input.warnings, &ctx.deps.guards);
    guards.extend(effects.map(|effects| write_guards::show(effects, &checked.confirmed, 0)));
    let Trial { mut transaction, before, applied: tried, dangling, replaced, published, .. } =
        tried;
    let (started, after) = (checked.started, &tried.state);
    let dangling = write_check::dangling_references(ctx, &before, after, dangling, &fleet).await?;
    let mut findings = dangling.and(shared);
    findings.warnings.extend(replaced);
    let reason = rejection(&guards).filter(|_| checked.effect == Effect::Committed);
    if reason.is_some() || !findings.refusing.is_empty() {
        if !took_effect(ctx, &checked).await? {
            input.warnings = Vec::new();
            let problems = write_check::located(ctx, input, findings.refusing, &published).await;
            let guarded = reason.filter(|_| problems.is_empty());
            return Err(guarded.map_or_else(|| problems.into(), AdminError::Precondition));
        }
        (guards, findings.warnings) = Default::default();
    }
    if findings.warnings.is_empty() {
        // Without findings, nothing reads the input again, so it is freed before replication.
        input = Input { warnings: input.warnings, ..Input::default() };
    }
    let size = size(&transaction);
    let wait = checked.wait;
    let is_awaited = wait.is_some() || ctx.trace().is_some();
    let named = is_awaited.then(|| NamedResources::of(&transaction));
    if checked.effect == Effect::DryRun {
        if let Some(error) = ctx.deps.replica.sealing_refusal(&transaction) {
            return Err(not_committed(&error));
        }
        let access_effects = fleet.access.into_iter().map(access_effect).collect();
        let response = dry_run(ctx, before, tried, transaction.preconditions, size).await?;
        let not_asked = fleet.not_asked;
        let mut response = pb::WriteResponse { access_effects, guards, not_asked, ..response };
        write_access::hide_differences(ctx, &mut response);
        response.warnings = write_check::located(ctx, input, findings.warnings, &published).await;
        response.warnings.extend(nodes::unasked_shards(ctx, started));
        return Ok(response);
    }
    transaction.meta.confirmed = guards.iter().map(|finding| finding.guard.clone()).collect();
    let summary = transact(ctx, checked, transaction, size).await?;
    // Positions are found after the commit, so that they do not delay it, and before a wait, to free the input.
    let warnings = write_check::located(ctx, input, findings.warnings, &published).await;
    let not_asked = fleet.not_asked;
    let response = pb::WriteResponse { guards, warnings, not_asked, ..respond(&summary) };
    let mut response = with_changes(ctx, response, summary, &before, &tried);
    if let Some(named) = named {
        let now = ctx.deps.replica.state();
        let held = held_of_write(&now, named.places(), &tried.changes, summary.assignments > 0);
        let find = move || changed_names::change(summary, &named, &before, &tried, &now);
        response.wait = await_clients(ctx, size, find, (wait, held)).await?;
    }
    response.warnings.extend(nodes::unasked_shards(ctx, started));
    Ok(response)
}

/// Returns the guards that a write trips. Most writes trip none, and cost nothing here.
async fn guards(
    ctx: &Ctx,
    tried: &mut Trial,
    checked: &Checked,
    fleet: &FleetEffects,
) -> Result<Vec<pb::GuardFinding>, AdminError> {
    let suspects = std::mem::take(&mut tried.suspects);
    if suspects.is_empty() {
        return Ok(Vec::new());
    }
    let (had, has, references) = tried.guarded();
    let confirmed = &checked.confirmed;
    let find = write_check::tripped_guards(ctx, &had, &has, suspects, references, confirmed, fleet);
    // The states would make the future of each write larger.
    Box::pin(find).await
}

/// Adds the changes to the response of a write. If other writes came between, they are only counted.
fn with_changes(
    ctx: &Ctx,
    mut response: pb::WriteResponse,
    summary: Summary,
    before: &State,
    tried: &Applied,
) -> pb::WriteResponse {
    let in_order =
        summary.revision == tried.state.revision && tried.outcome == Outcome::Committed(summary);
    if in_order {
        response = changes::list(before, tried, Effect::Committed, response);
        write_access::hide_differences(ctx, &mut response);
    } else {
        response.changes_omitted =
            summary.changed + summary.removed + summary.assignments + summary.access;
        response.repeated = response.changes_omitted > 0 && summary.revision <= before.revision;
    }
    response
}

/// Waits for the clients that a change concerns, if the author asks for that. A change that freezes hold needs no wait. The
/// trace of the write waits in the background.
async fn await_clients(
    ctx: &Ctx,
    size: Size,
    find: impl FnOnce() -> Change + Send + 'static,
    (wait, held): (Option<Duration>, Vec<pb::HeldBy>),
) -> Result<Option<pb::WaitResult>, AdminError> {
    if wait.is_some() && !held.is_empty() {
        return Ok(Some(pb::WaitResult { held, ..pb::WaitResult::default() }));
    }
    let change = ctx.deps.work.run(size, find).await?;
    if let Some(trace) = ctx.trace() {
        trace_acknowledgment(&ctx.deps, trace, change.clone());
    }
    let Some(timeout) = wait else { return Ok(None) };
    Ok(Some(wait_for(ctx, change, timeout, Enough::All).await))
}

/// Waits until all clients have a revision.
pub(crate) async fn wait_for_all(
    ctx: &Ctx,
    revision: Revision,
    timeout: Duration,
) -> pb::WaitResult {
    wait_for(ctx, Change::everything(revision), timeout, Enough::All).await
}

/// Commits a transaction.
async fn transact(
    ctx: &Ctx,
    checked: Checked,
    transaction: Transaction,
    size: Size,
) -> Result<Summary, AdminError> {
    let (start, proposed) = (Instant::now(), SystemTime::now());
    let summary = propose(ctx, &checked, transaction, size).await?;
    if let Some(trace) = ctx.trace() {
        trace.committed(proposed, ctx.deps.replica.apply_time(summary.revision));
    }
    ctx.deps.metrics.write_seconds.record(start.elapsed());
    let author = checked.meta.author;
    debug!(
        revision = summary.revision.0,
        changed = summary.changed,
        removed = summary.removed,
        author = truncated(&author),
        "written"
    );
    Ok(summary)
}

/// Proposes a transaction. If the access rules have changed since the rights of the caller were checked, checks
/// them again.
async fn propose(
    ctx: &Ctx,
    checked: &Checked,
    mut transaction: Transaction,
    size: Size,
) -> Result<Summary, AdminError> {
    let (id, content) = (stored_id(checked, ctx.caller()), checked.content.as_deref());
    for is_last in [false, false, true] {
        let expected = transaction.preconditions.clone();
        let again = (!is_last && !ctx.caller().may_everything()).then(|| transaction.clone());
        match (ctx.deps.replica.transact_as(id, content, transaction).await, again) {
            (Ok(Outcome::Committed(summary)), _) => return Ok(summary),
            (Ok(Outcome::Refused(Refusal::AccessChanged { changed, .. })), Some(again)) => {
                // The leader has applied the change. This replica soon follows.
                ctx.deps.catch_up_to_write("nothing was written").await?;
                debug!(%changed, "the access rules have changed during a write");
                transaction = again;
                write_access::authorize_write(ctx, &mut transaction, checked)?;
            }
            (Ok(Outcome::Refused(refusal)), _) => {
                return Err(refused_by(ctx, size, expected, refusal).await);
            }
            // The store knows the ID of the caller and of its request.
            (Err(TransactError::Reused { revision, .. }), _) => {
                let id = checked.request_id;
                return Err(not_committed(&TransactError::Reused { id, revision }));
            }
            (Err(error), _) => return Err(not_committed(&error)),
        }
    }
    Err(AdminError::Unavailable("the access rules change all the time; try again".to_owned()))
}

/// Returns the changes that a transaction would make.
async fn dry_run(
    ctx: &Ctx,
    before: Arc<State>,
    tried: Applied,
    expected: Vec<Precondition>,
    size: Size,
) -> Result<pb::WriteResponse, AdminError> {
    let summary = match tried.outcome {
        Outcome::Committed(summary) => summary,
        Outcome::Refused(refusal) => return Err(refused_by(ctx, size, expected, refusal).await),
    };
    let revision = before.revision;
    let response = respond(&Summary { revision, ..summary });
    let response = pb::WriteResponse { dry_run: true, ..response };
    let list = move || changes::list(&before, &tried, Effect::DryRun, response);
    ctx.deps.work.run(size, list).await
}

/// Waits in the background until the clients of this replica have acknowledged a change, and sends this part of the
/// trace. The part is missing if too many traced writes wait.
fn trace_acknowledgment(deps: &Arc<Deps>, trace: &WriteTrace, change: Change) {
    let Ok(permit) = deps.traced_waits.clone().try_acquire_owned() else { return };
    let (deps, trace) = (Arc::clone(deps), trace.clone());
    // Nobody watches the task: if it panics, it only drops this part of the trace, and its permit.
    tokio::spawn(async move {
        let start = SystemTime::now();
        let is_over = || deps.drain.is_cancelled();
        let waited = deps.waits.wait(&deps.fanout, change, ACKNOWLEDGMENT_TIMEOUT, is_over).await;
        drop(permit);
        trace.acknowledged(start, &waited);
    });
}

/// Returns all expectations that do not hold, as one text. `first` is the one that refused the
/// transaction.
fn all_unmet(state: &State, expected: &[Precondition], first: String, stop: &AtomicBool) -> String {
    let (mut unmet, mut omitted) = (Vec::new(), 0_usize);
    for precondition in expected.iter().take_while(|_| !stop.load(Ordering::Relaxed)) {
        let alone =
            Transaction { preconditions: vec![precondition.clone()], ..Transaction::default() };
        match state.apply(&alone).outcome {
            Outcome::Refused(refusal) if unmet.len() < UNMET_MAX => unmet.push(refusal.to_string()),
            Outcome::Refused(_) => omitted += 1,
            Outcome::Committed(_) => {}
        }
    }
    if !unmet.contains(&first) {
        unmet.insert(0, first);
    }
    if omitted > 0 {
        unmet.push(format!("and {omitted} more"));
    }
    unmet.join("; ")
}

fn manifest(file: pb::File) -> Manifest {
    Manifest { file: file.name, content: file.content }
}

/// Returns the name of the only resource without a name.
fn only_name(name: String) -> Option<String> {
    Some(name).filter(|name| !name.is_empty())
}

/// Returns the parts of a bootstrap that are not stored.
fn left_out(file: &str, parts: &[Omitted]) -> Vec<pb::LeftOut> {
    let show = |part: &Omitted| {
        let (line, column) = part.position.unwrap_or_default();
        pb::LeftOut {
            file: file.to_owned(),
            line,
            column,
            field_path: part.key.clone(),
            entries: part.n_entries as u64,
            reason: part.reason.to_owned(),
        }
    };
    parts.iter().map(show).collect()
}

/// Returns an empty transaction with the options.
pub(crate) fn transaction(checked: &Checked) -> Transaction {
    Transaction {
        preconditions: checked.if_revision.map(Precondition::Revision).into_iter().collect(),
        meta: checked.meta.clone(),
        ..Transaction::default()
    }
}

/// Returns the cost of trying a transaction and computing the differences.
fn size(transaction: &Transaction) -> Size {
    let operations = transaction.upserts.len() + transaction.deletes.len();
    let bytes: usize = transaction.upserts.iter().map(|upsert| upsert.draft.body.len()).sum();
    let few = operations <= SMALL_OPERATIONS_MAX && bytes <= SMALL_BODY_BYTES_MAX;
    Size::of(few && transaction.prune.is_empty())
}

fn respond(summary: &Summary) -> pb::WriteResponse {
    pb::WriteResponse {
        revision: summary.revision.0,
        changed: summary.changed,
        removed: summary.removed,
        unchanged: summary.unchanged,
        assignments: summary.assignments,
        access: summary.access,
        ..pb::WriteResponse::default()
    }
}

pub(crate) fn not_committed(error: &TransactError) -> AdminError {
    let text = error.to_string();
    match error {
        TransactError::TooLarge { .. } => {
            AdminError::TooLarge(format!("{text} (store.transaction_bytes_max)"))
        }
        TransactError::DiskFull { .. } | TransactError::LeaderDiskFull { .. } => {
            AdminError::Exhausted(text)
        }
        TransactError::Forgotten | TransactError::Reused { .. } => AdminError::Precondition(text),
        TransactError::Timeout(_) => AdminError::OutcomeUnknown(format!(
            "{text} (a retry with the same request_id takes effect once)"
        )),
        TransactError::Failed(_) => AdminError::OutcomeUnknown(text),
        TransactError::NoLeader
        | TransactError::Behind(_)
        | TransactError::Busy(_)
        | TransactError::ShutDown
        | TransactError::NotSent(_)
        | TransactError::Secrets(_) => AdminError::Unavailable(text),
    }
}

#[cfg(test)]
mod tests;
