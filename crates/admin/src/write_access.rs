//! The rights that a write needs.

use std::{collections::BTreeSet, iter, sync::Arc};

use chancery_model::{
    AccessOp, AccessRule, FreezeTarget, Identity, IdentityPattern, IdentityQuota, Precondition,
    Principal, ScopeName, Target, Transaction, TypeUrl, Verb,
};

use chancery_admin_proto::v1 as pb;

use crate::{
    AdminError,
    caller::Rights,
    ctx::{Ctx, shown},
    write_options::Checked,
};

/// The maximum number of missing rights in an error.
const MISSING_MAX: usize = 20;

/// Checks whether the caller may write a transaction, and sets its author. The transaction then fails if the access
/// rules change before it commits.
///
/// # Errors
/// Fails with all missing rights. It does not tell whether anything exists.
pub(crate) fn authorize_write(
    ctx: &Ctx,
    transaction: &mut Transaction,
    checked: &Checked,
) -> Result<(), AdminError> {
    ctx.note_scopes(transaction);
    if ctx.caller().may_everything() {
        set_author(ctx, transaction);
        return Ok(());
    }
    let access = Arc::clone(&ctx.deps.replica.state().access);
    let rights = access.rights_of(&ctx.caller().identity);
    let mut missing = BTreeSet::new();
    let mut need = |verb: Verb, target: Target<'_>| {
        if !rights.permits(verb, target) {
            missing.insert(format!("{verb}{}", shown(target)));
        }
    };
    let touched: BTreeSet<&ScopeName> = transaction.scopes().collect();
    for upsert in &transaction.upserts {
        let key = &upsert.draft.key;
        for name in iter::once(&key.name).chain(&upsert.draft.aliases) {
            need(Verb::Apply, Target::Resource(&upsert.scope, &key.type_url, name));
        }
    }
    for (scope, key) in &transaction.deletes {
        need(Verb::Delete, Target::Resource(scope, &key.type_url, &key.name));
    }
    for scope in &transaction.prune {
        need(Verb::Prune, Target::Scope(scope));
    }
    if checked.is_forced() {
        touched.iter().for_each(|scope| need(Verb::Force, Target::Scope(scope)));
    }
    if !transaction.assignments.is_empty() {
        need(Verb::Assign, Target::Cluster);
    }
    transaction.access.iter().for_each(|op| rights_of_op(op, transaction, &touched, &mut need));
    if !transaction.keys.is_empty() {
        need(Verb::KeysWrite, Target::Cluster);
    }
    let moves_forced = checked.is_forced() && !transaction.assignments.is_empty();
    if moves_forced && !rights.permits_somewhere(Verb::Force) {
        missing.insert(format!("{} a change of assignments", Verb::Force));
    }
    missing.extend(transaction.access.iter().filter_map(|op| escalation(ctx, op)));
    if !missing.is_empty() {
        let n = missing.len();
        let mut listed: Vec<String> = missing.into_iter().take(MISSING_MAX).collect();
        if n > listed.len() {
            listed.push(format!("and {} more", n - listed.len()));
        }
        return Err(ctx.denied(&listed.join(", ")));
    }
    transaction.preconditions.retain(|one| !matches!(one, Precondition::Access(_)));
    transaction.preconditions.push(Precondition::Access(access.changed));
    set_author(ctx, transaction);
    Ok(())
}

/// Passes the rights that an operation of a transaction needs to `need`. `touched` are the scopes of the transaction.
fn rights_of_op(
    op: &AccessOp,
    transaction: &Transaction,
    touched: &BTreeSet<&ScopeName>,
    need: &mut impl FnMut(Verb, Target<'_>),
) {
    match op {
        AccessOp::PutRule(_)
        | AccessOp::DeleteRule(_)
        | AccessOp::PutQuota(_)
        | AccessOp::DeleteQuota(_) => need(Verb::AccessWrite, Target::Cluster),
        AccessOp::AddToken(_) | AccessOp::DeleteToken(_) => need(Verb::Tokens, Target::Cluster),
        AccessOp::Freeze { target, .. } | AccessOp::Thaw { target, .. } => match target {
            FreezeTarget::All => need(Verb::FreezeAll, Target::Cluster),
            FreezeTarget::Scope(scope) => need(Verb::Freeze, Target::Scope(scope)),
        },
        AccessOp::OverrideFreezes => {
            touched.iter().for_each(|scope| need(Verb::FreezeOverride, Target::Scope(scope)));
            if !transaction.assignments.is_empty() {
                need(Verb::FreezeAll, Target::Cluster);
            }
        }
    }
}

/// Removes all differences from a change, and their numbers.
macro_rules! hide {
    ($message:ident, $change:expr) => {
        *$change = pb::$message {
            differences: Vec::new(),
            differences_omitted: 0,
            unified: String::new(),
            unified_lines_omitted: 0,
            ..std::mem::take($change)
        }
    };
}

/// Removes the differences of what the caller may not read from the answer to a dry run.
pub(crate) fn hide_differences(ctx: &Ctx, response: &mut pb::WriteResponse) {
    for change in &mut response.changes {
        let key = (ScopeName::new(&change.scope), TypeUrl::new(&change.type_url));
        let (Ok(scope), Ok(type_url)) = key else { continue };
        if !ctx.may(Verb::Get, Target::Type(&scope, &type_url)) {
            hide!(Change, change);
        }
    }
    if !ctx.may(Verb::Assignments, Target::Cluster) {
        for change in &mut response.assignment_changes {
            hide!(AssignmentChange, change);
        }
    }
    for change in &mut response.access_changes {
        let verb = if change.object == "token" { Verb::Tokens } else { Verb::AccessRead };
        if !ctx.may(verb, Target::Cluster) {
            hide!(AccessChange, change);
        }
    }
}

/// Sets the author to the caller. A name that the caller gives is added: as another author with the right `impersonate`,
/// and as a claim without it. Without access rules, a caller that has proved no identity names the author itself.
fn set_author(ctx: &Ctx, transaction: &mut Transaction) {
    let is_anonymous = ctx.caller().identity.principal.is_anonymous();
    if ctx.caller().rights == Rights::NotEnforced && is_anonymous {
        return;
    }
    let who = ctx.caller().identity.principal.as_str();
    let named = std::mem::take(&mut transaction.meta.author);
    let is_checked = named.starts_with(&format!("{who} for "));
    let claim = |named: &str| format!("{who} (claims {})", named.replace(['(', ')'], " "));
    // A write may pass here twice.
    let is_claim = named
        .strip_prefix(&format!("{who} (claims "))
        .and_then(|named| named.strip_suffix(')'))
        .is_some_and(|claimed| !claimed.contains(['(', ')']));
    let may_name = || ctx.authorize(Verb::Impersonate, Target::Cluster).is_ok();
    transaction.meta.author = match named.as_str() {
        named if is_checked && may_name() => named.to_owned(),
        named if !named.is_empty() && named != who && may_name() => {
            format!("{who} for {named}")
        }
        "" => who.to_owned(),
        named if named == who || is_claim => named.to_owned(),
        named => claim(named),
    };
}

/// Returns the right that a change of an access rule or a token needs beyond its verb: nobody gives or takes away
/// rights that they do not have. So whoever changes or deletes a rule or a token could have written it as it was.
/// Only an administrator changes a quota, a rule that takes rights away, or a rule with a quota for the caller or for many.
fn escalation(ctx: &Ctx, op: &AccessOp) -> Option<String> {
    let access = Arc::clone(&ctx.deps.replica.state().access);
    let caller = &ctx.caller().identity;
    let rule_of = |name: &str| access.rules.iter().find(|rule| &*rule.name == name);
    let protected = |name: &str| {
        let rule = rule_of(name)?;
        let what = protection(rule, caller)?;
        Some(format!(
            "change the access rule {:?}, which {what} (only access.admins may)",
            rule.name
        ))
    };
    let takes_from_many = |rule: &AccessRule| {
        let what = if refuses(rule) {
            "take rights away from"
        } else if limits(rule) {
            "set a quota for"
        } else {
            return None;
        };
        let pattern = pattern_of(rule)?;
        Some(format!("{what} all identities {pattern:?} (only access.admins may)"))
    };
    let as_it_was = |name: &str| {
        let missing = access.escalation(caller, rule_of(name)?)?;
        Some(format!(
            "change the access rule {name:?}, which gives the right to {missing}, which it does not have"
        ))
    };
    let give = |missing: String| format!("give the right to {missing}, which it does not have");
    match op {
        AccessOp::PutRule(rule) => protected(&rule.name)
            .or_else(|| takes_from_many(rule))
            .or_else(|| access.escalation(caller, rule).map(give))
            .or_else(|| as_it_was(&rule.name)),
        AccessOp::DeleteRule(name) => protected(name).or_else(|| as_it_was(name)),
        AccessOp::AddToken(token) if is_admin(ctx, &token.name) => {
            Some("create a token of an administrator (only access.admins may)".to_owned())
        }
        AccessOp::AddToken(token) => {
            let principal = Principal::token(&token.name).ok()?;
            let mut rules = access.rules_of(&principal);
            rules.find_map(|rule| access.escalation(caller, rule)).map(give)
        }
        AccessOp::PutQuota(_) | AccessOp::DeleteQuota(_) => {
            Some("change quotas (only access.admins may)".to_owned())
        }
        AccessOp::Freeze { .. } | AccessOp::Thaw { .. } | AccessOp::OverrideFreezes => None,
        AccessOp::DeleteToken(digest) => {
            let token = access.token(digest)?;
            if is_admin(ctx, &token.name) {
                let text = "delete a token of an administrator (only access.admins may)";
                return Some(text.to_owned());
            }
            let principal = Principal::token(&token.name).ok()?;
            if principal == caller.principal {
                return None;
            }
            let mut rules = access.rules_of(&principal);
            let missing = rules.find_map(|rule| access.escalation(caller, rule))?;
            let name = &token.name;
            Some(format!(
                "delete the token {name:?}, which has the right to {missing}, which it does not have"
            ))
        }
    }
}

/// Returns whether the configuration names the tokens of this name as administrators.
fn is_admin(ctx: &Ctx, token: &str) -> bool {
    let principal = Principal::token(token);
    principal.is_ok_and(|one| ctx.deps.access.rights_of(&one) == Rights::Admin)
}

/// Returns whether a rule takes rights that other rules give.
fn refuses(rule: &AccessRule) -> bool {
    rule.refuse || !rule.deny.is_empty()
}

/// Returns the identity of a rule that stands for many.
fn pattern_of(rule: &AccessRule) -> Option<&str> {
    let mut patterns = rule.identities.iter().map(IdentityPattern::as_str);
    patterns.find(|one| one.contains(['*', '{']) || *one == "anonymous")
}

/// Returns why only an administrator may change a rule; `None` if others may.
fn protection(rule: &AccessRule, caller: &Identity) -> Option<&'static str> {
    if refuses(rule) {
        Some("takes rights away")
    } else if !limits(rule) {
        None
    } else if rule.identities.iter().any(|one| one.matches(&caller.principal)) {
        Some("has a quota for its author")
    } else {
        pattern_of(rule).map(|_| "has a quota for many identities")
    }
}

/// Returns whether a rule limits its identities, whatever other rules give.
fn limits(rule: &AccessRule) -> bool {
    rule.quota != IdentityQuota::default()
}
