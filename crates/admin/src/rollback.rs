//! Rollback to an earlier revision, and undo of one revision.

use std::sync::Arc;

use bytes::Bytes;
use chancery_admin_proto::v1 as pb;
use chancery_admission::{Problem, check_again};
use chancery_model::{
    AccessOp, Change, Precondition, Quota, Refusal, Resource, ResourceDraft, ResourceKey, Revision,
    ScopeName, State, Target, Transaction, Upsert, Verb,
};
use chancery_store::{Past, PastError, Selection};
use prost::Message;

use crate::{
    AdminError,
    ctx::Ctx,
    deps::Freshness,
    item_changes::{assignment_changes, named},
    past::{RECORDS_MAX, past},
    record::Operation,
    resources::{given, parse_type, stored_name},
    revisions::{Compared, compare, entry_of, kind_of},
    work::Size,
    write::{self, external_findings, took_effect, transaction},
    write_access::authorize_write,
    write_input::Input,
    write_options::{Checked, check},
    write_profiles::{refused, validation_of},
};

/// The maximum number of conflicts in an error.
const CONFLICTS_MAX: usize = 20;

/// Returns the record of [`rollback`].
pub(crate) fn record_rollback(request: &pb::RollbackRequest) -> Operation {
    Operation::write("rollback", &request.scope, request.options.as_ref())
        .target(&request.r#type, request.name.as_str())
        .detail("to", request.to.unwrap_or_default())
        .detail("all", request.all)
}

/// Restores a resource, a scope or everything from an earlier revision.
pub(crate) async fn rollback(
    ctx: &Ctx,
    request: pb::RollbackRequest,
) -> Result<pb::WriteResponse, AdminError> {
    let content = content(&pb::RollbackRequest { options: None, ..request.clone() });
    let pb::RollbackRequest { to, scope, all, r#type, name, options } = request;
    let refuse = |text: &str| Err(AdminError::Parameter(text.to_owned()));
    match (scope.is_empty(), all, r#type.is_empty(), name.is_empty()) {
        (true, false, _, _) => return refuse("name the scope to roll back, or all scopes (--all)"),
        (false, true, _, _) => return refuse("name either a scope or all scopes (--all)"),
        (_, true, false, _) => return refuse("a type needs a scope"),
        (_, _, true, false) => return refuse("a name needs a type"),
        _ => {}
    }
    let Some(to) = to.map(Revision) else { return refuse("name the revision to restore (to)") };
    let freshness = Freshness::of(options.as_ref().is_some_and(|options| options.stale));
    let mut checked = check(options, ctx.source())?;
    checked.content = Some(content);
    let scope = given(&scope).map(ScopeName::new).transpose()?;
    let type_url = given(&r#type).map(parse_type).transpose()?;
    let past = past(ctx, freshness).await?;
    let name = match (&type_url, given(&name)) {
        (Some(type_url), Some(name)) => {
            Some(stored_name(past.state(), scope.as_ref(), type_url, name)?)
        }
        _ => None,
    };
    let what = match (&scope, &type_url) {
        (None, _) => "everything".to_owned(),
        (Some(scope), None) => format!("scope {scope}"),
        (Some(scope), Some(type_url)) => match &name {
            Some(name) => format!("{} in scope {scope}", key_of(type_url, name)),
            None => format!("all resources of {} in scope {scope}", type_url.shown_name()),
        },
    };
    set_reason(&mut checked, &format!("rollback of {what} to revision {to}"));
    let caller = ctx.clone();
    let read = move || {
        let plan = |checked: &Checked| {
            let selection = Selection { scope, type_url, name };
            let newest = past.state().revision;
            let compared = compare(&past, [newest, to], &selection)?;
            authorize(&caller, checked, &compared)?;
            compared.check_found(&caller, &past, &selection)?;
            check_revision(checked, past.state(), &selection)?;
            let planned = restoring(transaction(checked), past.state(), &compared)?;
            check_items(checked, &past, planned)
        };
        let planned = plan(&checked);
        (planned, checked)
    };
    let (planned, checked) = ctx.deps.work.run(Size::Large, read).await?;
    commit(ctx, planned, checked).await
}

/// Checks the expected revision of a scope. The store does not do so for a rollback without changes, which names no scope.
fn check_revision(
    checked: &Checked,
    state: &State,
    selection: &Selection,
) -> Result<(), AdminError> {
    let (Some(expected), Some(scope)) = (checked.if_revision, &selection.scope) else {
        return Ok(());
    };
    let changed = state.scopes.get(scope).map(|scope| scope.changed);
    let Some(changed) = changed.filter(|changed| *changed > expected) else { return Ok(()) };
    Err(Refusal::RevisionBehind { expected, scope: Some(scope.clone()), changed }.into())
}

/// Checks that the access rules and quotas are those of the expected revision, if a transaction restores some. The store
/// checks the revision only for scopes and assignments.
fn check_items(checked: &Checked, past: &Past, planned: Planned) -> Result<Planned, AdminError> {
    let now = past.state();
    let Some(expected) = checked.if_revision.filter(|expected| *expected < now.revision) else {
        return Ok(planned);
    };
    if planned.transaction.access.is_empty() {
        return Ok(planned);
    }
    let then = past.differing(expected, &Selection::default(), RECORDS_MAX)?;
    let then = past.state_at(expected, &then);
    let what = match () {
        () if then.access.rules != now.access.rules => "access rules",
        () if then.quotas.rules != now.quotas.rules => "quotas",
        () => return Ok(planned),
    };
    Err(AdminError::Precondition(format!(
        "cannot restore access rules or quotas: the {what} have changed since revision {expected}; nothing was written; \
         look at the changes with `chancery diff --from {expected}`"
    )))
}

fn key_of(type_url: &chancery_model::TypeUrl, name: &chancery_model::ResourceName) -> ResourceKey {
    ResourceKey { type_url: type_url.clone(), name: name.clone() }
}

/// Returns the record of [`undo`].
pub(crate) fn record_undo(request: &pb::UndoRequest) -> Operation {
    Operation::write("undo", "", request.options.as_ref())
        .detail("undone_revision", request.revision)
}

/// Undoes the changes of one revision, and keeps later changes.
pub(crate) async fn undo(
    ctx: &Ctx,
    request: pb::UndoRequest,
) -> Result<pb::WriteResponse, AdminError> {
    let content = content(&pb::UndoRequest { options: None, ..request.clone() });
    if request.revision == 0 {
        let text = "cannot undo revision 0: it does not exist, because revisions begin at 1";
        return Err(AdminError::Parameter(text.to_owned()));
    }
    let freshness = Freshness::of(request.options.as_ref().is_some_and(|options| options.stale));
    let mut checked = check(request.options, ctx.source())?;
    checked.content = Some(content);
    let revision = Revision(request.revision);
    let past = past(ctx, freshness).await?;
    let previous = entry_of(ctx, revision)?.previous();
    set_reason(&mut checked, &format!("undo of revision {revision}"));
    let caller = ctx.clone();
    let read = move || {
        let plan = |checked: &Checked| {
            let compared = compare(&past, [revision, previous], &Selection::default());
            let compared = compared.map_err(|error| match error {
                PastError::TooMany { .. } => AdminError::Precondition(format!(
                    "cannot undo revision {revision}: later revisions replaced too many records for one answer; \
                     roll back one scope with `chancery rollback SCOPE --to`"
                )),
                error => error.into(),
            })?;
            if compared.is_empty() {
                return Err(AdminError::Precondition(format!(
                    "cannot undo revision {revision}: it changed no resources, assignments, access rules or quotas; \
                     if it began a freeze, run `chancery thaw`"
                )));
            }
            authorize(&caller, checked, &compared)?;
            let compared = without_conflicts(&past, revision, compared)?;
            let planned = restoring(transaction(checked), past.state(), &compared)?;
            check_items(checked, &past, planned)
        };
        let planned = plan(&checked);
        (planned, checked)
    };
    let (planned, checked) = ctx.deps.work.run(Size::Large, read).await?;
    commit(ctx, planned, checked).await
}

/// Checks whether the caller may write all changes of a comparison. Later errors may then name the changed objects.
pub(crate) fn authorize(
    ctx: &Ctx,
    checked: &Checked,
    compared: &Compared,
) -> Result<(), AdminError> {
    if ctx.caller().may_everything() {
        return Ok(());
    }
    let mut needed = restoring_items(transaction(checked), compared);
    for Change { scope, key, resource, .. } in &compared.changes {
        let scope = scope.clone();
        match resource {
            None => needed.deletes.push((scope, key.clone())),
            Some(resource) => {
                let draft = ResourceDraft::new(key.clone(), Bytes::new());
                let draft = ResourceDraft { aliases: resource.aliases().to_vec(), ..draft };
                needed.upserts.push(Upsert { scope, draft });
            }
        }
    }
    let Err(denied) = authorize_write(ctx, &mut needed, checked) else { return Ok(()) };
    // The error names only what the caller may read.
    let may_read = |one: &Change| {
        ctx.may(Verb::Get, Target::Resource(&one.scope, &one.key.type_url, &one.key.name))
    };
    let n_resources = compared.changes.iter().filter(|one| !may_read(one)).count();
    let may_read_items = (needed.assignments.is_empty()
        || ctx.may(Verb::Assignments, Target::Cluster))
        && (needed.access.is_empty() || ctx.may(Verb::AccessRead, Target::Cluster));
    if n_resources == 0 && may_read_items {
        return Err(denied);
    }
    Err(ctx.denied("write everything that this operation restores, part of which it may not read"))
}

/// Returns the bytes that identify a retry. The transaction cannot, because it depends on the state.
fn content(request: &impl Message) -> Vec<u8> {
    request.encode_to_vec()
}

/// Puts the operation before the reason of the caller.
pub(crate) fn set_reason(checked: &mut Checked, what: &str) {
    let given = std::mem::take(&mut checked.meta.reason);
    checked.meta.reason =
        if given.is_empty() { what.to_owned() } else { format!("{what}: {given}") };
}

/// A transaction that restores earlier content, and the quotas of the content with which it was compared.
pub(crate) struct Planned {
    pub(crate) transaction: Transaction,
    quotas: Arc<Vec<Quota>>,
}

/// Checks the resources of a transaction again, and commits it.
pub(crate) async fn commit(
    ctx: &Ctx,
    planned: Result<Planned, AdminError>,
    checked: Checked,
) -> Result<pb::WriteResponse, AdminError> {
    let (transaction, quotas) = match planned {
        Err(_) if took_effect(ctx, &checked).await? => (transaction(&checked), None),
        planned => {
            let Planned { transaction, quotas } = planned?;
            (transaction, Some(quotas))
        }
    };
    let access = ctx.deps.replica.state().access.changed;
    let is_old = |one: &Precondition| matches!(one, Precondition::Access(read) if *read < access);
    if transaction.preconditions.iter().any(is_old) {
        return Err(AdminError::Precondition(format!(
            "cannot restore access rules or quotas: the access rules changed at revision {access}, after the content was \
             compared; nothing was written; run the command again"
        )));
    }
    let (validation, _) = validation_of(ctx, checked.validation).await;
    let check = move || {
        let found = check_again(&transaction.upserts, &validation);
        found.map(|warnings| (transaction, warnings)).map_err(|all| refused(&validation, all))
    };
    let (mut transaction, mut warnings): (Transaction, Vec<Problem>) =
        ctx.deps.work.run(Size::Large, check).await??;
    warnings.extend(external_findings(ctx, &mut transaction, &checked).await?);
    // The store has no precondition for quotas. Most changes since the comparison are found here.
    let is_quota = |op: &AccessOp| matches!(op, AccessOp::PutQuota(_) | AccessOp::DeleteQuota(_));
    if let Some(compared) = quotas
        && compared != ctx.deps.replica.state().quotas.rules
        && transaction.access.iter().any(is_quota)
        && !took_effect(ctx, &checked).await?
    {
        return Err(AdminError::Precondition(
            "cannot restore quotas: the quotas changed after the server compared the content; nothing was written; run the \
             command again"
                .to_owned(),
        ));
    }
    write::commit(ctx, transaction, checked, Input { warnings, ..Input::default() }).await
}

/// Returns the transaction that applies the differences of a comparison with the newest state. It takes effect only if its
/// scopes have not changed since.
pub(crate) fn restoring(
    transaction: Transaction,
    newest: &State,
    compared: &Compared,
) -> Result<Planned, AdminError> {
    let mut transaction = restoring_items(transaction, compared);
    for Change { scope, key, resource, .. } in &compared.changes {
        match resource {
            None => transaction.deletes.push((scope.clone(), key.clone())),
            Some(resource) => {
                let draft = draft_of(scope, key, resource)?;
                transaction.upserts.push(Upsert { scope: scope.clone(), draft });
            }
        }
    }
    transaction.preconditions.push(Precondition::Revision(newest.revision));
    if !transaction.access.is_empty() {
        transaction.preconditions.push(Precondition::Access(newest.access.changed));
    }
    Ok(Planned { transaction, quotas: Arc::clone(&newest.quotas.rules) })
}

/// Adds the operations on assignments, access rules and quotas that a comparison needs.
fn restoring_items(mut transaction: Transaction, compared: &Compared) -> Transaction {
    let Compared { before, after, .. } = compared;
    transaction.assignments = assignment_changes(&before.assignments, &after.assignments);
    let rules = named(&before.access.rules, &after.access.rules, |rule| &rule.name);
    let rules = rules.into_iter().map(|(name, (_, new))| match new {
        Some(new) => AccessOp::PutRule(Box::new(new.clone())),
        None => AccessOp::DeleteRule(name),
    });
    let quotas = named(&before.quotas.rules, &after.quotas.rules, |quota| &quota.name);
    let quotas = quotas.into_iter().map(|(name, (_, new))| match new {
        Some(new) => AccessOp::PutQuota(Box::new(new.clone())),
        None => AccessOp::DeleteQuota(name),
    });
    transaction.access = rules.chain(quotas).collect();
    transaction
}

/// Returns the draft that publishes a resource again.
fn draft_of(
    scope: &ScopeName,
    key: &ResourceKey,
    resource: &Resource,
) -> Result<ResourceDraft, AdminError> {
    let body = resource.body().ok_or_else(|| {
        AdminError::Precondition(format!(
            "cannot restore {key} in scope {scope:?}: this replica cannot decrypt it; check `chancery keys status`, or use \
             another replica"
        ))
    })?;
    let labels = resource.labels().map(|(label, value)| (label.to_owned(), value.to_owned()));
    Ok(ResourceDraft {
        aliases: resource.aliases().to_vec(),
        ttl: resource.ttl(),
        labels: labels.collect(),
        children: resource.children().to_vec(),
        ..ResourceDraft::new(key.clone(), body)
    })
}

/// Returns the changes that undo a revision on top of the newest content.
///
/// # Errors
/// Fails with all parts that a later revision has changed to something else.
fn without_conflicts(
    past: &Past,
    revision: Revision,
    compared: Compared,
) -> Result<Compared, AdminError> {
    let Compared { before: then, after: wanted, changes } = compared;
    let newest = past.state();
    let mut conflicts = Vec::new();
    let mut kept = Vec::new();
    for change in changes {
        let Change { scope, key, resource, .. } = &change;
        let now = newest.get(scope, key).map(|now| &**now);
        let of_revision = then.get(scope, key).map(|then| &**then);
        if kind_of(of_revision, now).is_none() {
            kept.push(change);
        } else if kind_of(resource.as_deref(), now).is_some() {
            // A lookup takes long.
            let is_listed = conflicts.len() < CONFLICTS_MAX;
            let later = if is_listed { past.next_change(revision, scope, key)? } else { None };
            let by = later.map_or_else(String::new, |later| format!(" (revision {later})"));
            conflicts.push(format!("{key} in scope {scope:?}{by}"));
        }
    }
    let mut after = newest.clone();
    undo_items(&mut after, newest, &then, &wanted, &mut conflicts);
    if conflicts.is_empty() {
        return Ok(Compared { before: newest.clone(), after, changes: kept });
    }
    let n = conflicts.len();
    conflicts.truncate(CONFLICTS_MAX);
    if n > conflicts.len() {
        conflicts.push(format!("and {} more", n - CONFLICTS_MAX));
    }
    Err(AdminError::Precondition(format!(
        "cannot undo revision {revision}: later revisions changed {}; undo those first, or use `chancery rollback`, which \
         also discards later changes",
        conflicts.join(", ")
    )))
}

/// Undoes the changes of assignments, access rules and quotas from `wanted` to `then`.
fn undo_items(
    after: &mut State,
    newest: &State,
    then: &State,
    wanted: &State,
    conflicts: &mut Vec<String>,
) {
    let mut assignments = newest.assignments.rules.clone();
    let [of_then, of_wanted] = [then, wanted].map(|state| &state.assignments.rules[..]);
    undo_list("assignment", &mut assignments, of_then, of_wanted, |one| &one.name, conflicts);
    let changed = newest.revision;
    after.assignments = chancery_model::Assignments { changed, rules: assignments }.into();
    let mut access = chancery_model::Access::clone(&newest.access);
    let [of_then, of_wanted] = [then, wanted].map(|state| &state.access.rules[..]);
    undo_list("access rule", &mut access.rules, of_then, of_wanted, |one| &one.name, conflicts);
    after.access = access.into();
    let mut quotas = Vec::clone(&newest.quotas.rules);
    let [of_then, of_wanted] = [then, wanted].map(|state| &state.quotas.rules[..]);
    undo_list("quota", &mut quotas, of_then, of_wanted, |one| &one.name, conflicts);
    after.load_quotas(quotas);
}

fn undo_list<T: PartialEq + Clone>(
    what: &str,
    items: &mut Vec<T>,
    then: &[T],
    wanted: &[T],
    name: impl Fn(&T) -> &Arc<str>,
    conflicts: &mut Vec<String>,
) {
    for (of, (then, wanted)) in named(then, wanted, &name) {
        let now = items.iter().find(|item| *name(item) == of);
        if now == then {
            items.retain(|item| *name(item) != of);
            items.extend(wanted.cloned());
        } else if now != wanted {
            conflicts.push(format!("the {what} {of:?}"));
        }
    }
}
