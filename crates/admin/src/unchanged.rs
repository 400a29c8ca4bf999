//! Entries of manifests that keep the stored resource, because they lack its secrets.
//!
//! The write publishes the stored body again, which changes nothing unless the entry has other labels. The transaction requires the version of the entry, so that the leader refuses a body that was replaced
//! in between.

use std::sync::Arc;

use chancery_admin_proto::v1 as pb;
use chancery_admission::{Manifest, Problem, Unchanged, redacted};
use chancery_model::{Resource, ResourceDraft, State, Target, Transaction, Upsert, Verb};

use crate::{
    AdminError,
    changes::Effect,
    ctx::Ctx,
    error, redact,
    resources::unopened,
    write_access,
    write_input::{Input, reading_size},
    write_options::Checked,
};

/// The way to correct an entry that does not fit the stored resource.
const GET_AGAIN: &str = "give the whole resource with its secrets, or export it again (`chancery export`, `chancery get`)";

/// Adds the stored resources that entries keep to a transaction, and their origins to its input.
pub(crate) async fn keep_stored(
    ctx: &Ctx,
    mut transaction: Box<Transaction>,
    input: &mut Input,
    unchanged: Vec<Unchanged>,
    checked: &Checked,
) -> Result<Box<Transaction>, AdminError> {
    if unchanged.is_empty() {
        return Ok(transaction);
    }
    for Unchanged { scope, draft, origin, .. } in &unchanged {
        transaction.upserts.push(Upsert { scope: scope.clone(), draft: draft.clone() });
        input.origins.push(*origin);
    }
    // Nobody learns what exists where they may not write, or what they may not read: an error tells how the stored
    // resource differs from the entry.
    write_access::authorize_write(ctx, &mut transaction, checked)?;
    for Unchanged { scope, draft, .. } in &unchanged {
        let target = Target::Resource(scope, &draft.key.type_url, &draft.key.name);
        ctx.authorize(Verb::Get, target)?;
    }
    let state = match checked.effect {
        Effect::DryRun => ctx.deps.state(checked.freshness).await?,
        Effect::Committed => ctx.deps.state_to_write().await?,
    };
    let size = reading_size(&input.files);
    let files = std::mem::take(&mut input.files);
    let resolve = move || {
        let resolved = add_bodies(&mut transaction, &state, &files, &unchanged);
        (transaction, files, resolved)
    };
    let (transaction, files, resolved) = ctx.deps.work.run(size, resolve).await?;
    input.files = files;
    resolved.map(|()| transaction)
}

/// Replaces the last drafts of a transaction by the stored resources, or returns all problems.
fn add_bodies(
    transaction: &mut Transaction,
    state: &Arc<State>,
    files: &[Manifest],
    unchanged: &[Unchanged],
) -> Result<(), AdminError> {
    let first = transaction.upserts.len() - unchanged.len();
    let mut problems = Vec::new();
    for (upsert, entry) in transaction.upserts[first..].iter_mut().zip(unchanged) {
        let found = match state.get(&entry.scope, &entry.draft.key) {
            None => Err(format!(
                "keeps a resource that does not exist in scope {:?}, and the entry lacks its secrets; give the whole \
                 resource",
                entry.scope.as_str()
            )),
            Some(stored) => kept(entry, stored)?,
        };
        match found {
            Ok(draft) => upsert.draft = draft,
            Err(rule) => {
                let resource = Some(entry.label());
                let problem = Problem { resource, rule, ..Problem::default() };
                problems.push((Some(entry.origin), problem));
            }
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    let problems = chancery_admission::locate(files, Vec::new(), problems);
    let problems: Vec<pb::Problem> = problems.into_iter().map(error::problem).collect();
    Err(problems.into())
}

/// Returns the draft that keeps a stored resource, or the rule against the entry.
fn kept(entry: &Unchanged, stored: &Resource) -> Result<Result<ResourceDraft, String>, AdminError> {
    let (type_url, version) = (&entry.draft.key.type_url, stored.version());
    if version != entry.version {
        let expected = &entry.version;
        return Ok(Err(format!(
            "keeps version {expected}, but the stored resource has version {version}, so it was changed; {GET_AGAIN}"
        )));
    }
    let body = stored.body().ok_or_else(|| unopened(&entry.scope, type_url))?;
    let value = redacted(type_url, &body).to_vec();
    let shown = redact::body_to_json(&prost_types::Any { type_url: type_url.to_string(), value });
    if let Some(path) = entry.difference(&shown) {
        return Ok(Err(format!(
            "keeps version {version}, but was edited at `{path}`, and it lacks the secrets of the resource; {GET_AGAIN}"
        )));
    }
    let draft = &entry.draft;
    if draft.aliases != stored.aliases() || draft.ttl != stored.ttl() {
        return Ok(Err(format!(
            "keeps version {version}, but has other aliases or another TTL, which would change the version; {GET_AGAIN}"
        )));
    }
    let children = stored.children().to_vec();
    Ok(Ok(ResourceDraft { body, children, ..entry.draft.clone() }))
}
