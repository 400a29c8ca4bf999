//! `chancery.admin.v1.AccessService`: access rules, tokens, and the rights of the caller.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use chancery_admin_proto::v1 as pb;
use chancery_audit::duration_text;
use chancery_auth::new_token;
use chancery_fanout::AccessControl;
use chancery_model::{AccessOp, Identity, Principal, ResourceName, ScopeName, Target, Token, Verb};

use crate::{
    AdminError,
    access_messages::{id_of, show_client_grants, show_grants, show_quota, show_rule, show_token},
    caller::Rights,
    ctx::Ctx,
    deps::Freshness,
    found_node::find_node,
    page::Page,
    record::Operation,
    resources::parse_type,
    time_limits::TOKEN,
    times::millis,
    write,
    write::transaction,
    write_input::Input,
    write_options::{Checked, check},
};

/// The validity of a token without another one.
const TOKEN_DEFAULT: Duration = Duration::from_secs(90 * 24 * 3600);

/// Returns the identity of the caller, and its rights.
pub(crate) fn who_am_i(ctx: &Ctx) -> pb::WhoAmIResponse {
    let access = Arc::clone(&ctx.deps.replica.state().access);
    let identity = &ctx.caller().identity;
    let verbs = if ctx.caller().may_everything() {
        Verb::ALL.iter().copied().collect()
    } else {
        access.verbs_of(identity)
    };
    pb::WhoAmIResponse {
        identity: identity.principal.to_string(),
        enforced: ctx.deps.access.control == AccessControl::Enforced,
        admin: ctx.caller().rights == Rights::Admin,
        rules: access.rules_of(&identity.principal).map(|rule| rule.name.to_string()).collect(),
        verbs: verbs.into_iter().map(|verb| verb.name().to_owned()).collect(),
        grants: if ctx.caller().may_everything() {
            Vec::new()
        } else {
            show_grants(&access, identity)
        },
        client_grants: show_client_grants(&access, identity),
    }
}

/// Returns whether an identity may use an operation.
pub(crate) fn check_access(
    ctx: &Ctx,
    request: &pb::CheckAccessRequest,
) -> Result<pb::CheckAccessResponse, AdminError> {
    let verb = Verb::of_name(&request.verb).ok_or_else(|| {
        let known: Vec<_> = Verb::ALL.iter().map(|verb| verb.name()).collect();
        let (verb, known) = (&request.verb, known.join(", "));
        AdminError::Parameter(format!("the verb {verb:?} is unknown; known are {known}"))
    })?;
    let (identity, rights) = match request.identity.as_str() {
        "" => (ctx.caller().identity.clone(), ctx.caller().rights),
        text => {
            ctx.authorize(Verb::AccessRead, Target::Cluster)?;
            let identity = identity(text)?;
            let rights = ctx.deps.access.rights_of(&identity.principal);
            (identity, rights)
        }
    };
    let scope = match request.scope.as_str() {
        "" => None,
        name => Some(ScopeName::new(name)?),
    };
    let type_url = match request.r#type.as_str() {
        "" => None,
        text => Some(parse_type(text)?),
    };
    let name = match request.name.as_str() {
        "" => None,
        name => Some(ResourceName::canonical(name)?),
    };
    let needs = |text: &str| Err(AdminError::Parameter(text.to_owned()));
    let target = match (verb.is_scoped(), &scope, &type_url, &name) {
        (false, None, None, None) => Target::Cluster,
        (false, ..) => return needs("the verb concerns the whole cluster; name no scope"),
        (true, None, ..) => return needs("the verb concerns a scope; name one"),
        (true, Some(scope), None, None) => Target::Scope(scope),
        (true, Some(scope), Some(type_url), None) => Target::Type(scope, type_url),
        (true, Some(scope), Some(type_url), Some(name)) => Target::Resource(scope, type_url, name),
        (true, _, None, Some(_)) => return needs("a name needs a type"),
    };
    let access = Arc::clone(&ctx.deps.replica.state().access);
    let allowed = rights != Rights::Rules || access.permits(&identity, verb, target);
    let enforced = ctx.deps.access.control == AccessControl::Enforced;
    Ok(pb::CheckAccessResponse { identity: identity.principal.to_string(), allowed, enforced })
}

/// Returns the access rules.
pub(crate) async fn list_access(
    ctx: &Ctx,
    request: pb::ListAccessRequest,
) -> Result<pb::ListAccessResponse, AdminError> {
    let page = Page::parse_or_all("access", request.limit, &request.cursor)?;
    let state = ctx.deps.state(Freshness::of(request.stale)).await?;
    let (rules, next) = page.of(&state.access.rules, |rule| rule.name.to_string());
    let rules = rules.into_iter().map(show_rule).collect();
    Ok(pb::ListAccessResponse { revision: state.revision.0, rules, next })
}

/// Returns the record of [`delete_access`].
pub(crate) fn record_delete_access(request: &pb::DeleteAccessRequest) -> Operation {
    Operation::write("access.delete", "", request.options.as_ref())
        .target("access", request.name.as_str())
}

/// Deletes an access rule.
pub(crate) async fn delete_access(
    ctx: &Ctx,
    request: pb::DeleteAccessRequest,
) -> Result<pb::WriteResponse, AdminError> {
    let name = request.name;
    let op = AccessOp::DeleteRule(name.as_str().into());
    let response = change_access(ctx, check(request.options, ctx.source())?, vec![op]).await?;
    match response.access {
        0 => Err(AdminError::NotFound(format!("there is no access rule {name:?}"))),
        _ => Ok(response),
    }
}

/// Returns the quotas and their use.
pub(crate) async fn list_quotas(
    ctx: &Ctx,
    request: pb::ListQuotasRequest,
) -> Result<pb::ListQuotasResponse, AdminError> {
    let page = Page::parse_or_all("quotas", request.limit, &request.cursor)?;
    let state = ctx.deps.state(Freshness::of(request.stale)).await?;
    let (quotas, next) = page.of(state.quotas.iter(), |(quota, _)| quota.name.to_string());
    let quotas = quotas.into_iter().map(|(quota, used)| show_quota(quota, used)).collect();
    Ok(pb::ListQuotasResponse { revision: state.revision.0, quotas, next })
}

/// Returns the record of [`delete_quota`].
pub(crate) fn record_delete_quota(request: &pb::DeleteQuotaRequest) -> Operation {
    Operation::write("quota.delete", "", request.options.as_ref())
        .target("quota", request.name.as_str())
}

/// Deletes a quota.
pub(crate) async fn delete_quota(
    ctx: &Ctx,
    request: pb::DeleteQuotaRequest,
) -> Result<pb::WriteResponse, AdminError> {
    let name = request.name;
    let op = AccessOp::DeleteQuota(name.as_str().into());
    let response = change_access(ctx, check(request.options, ctx.source())?, vec![op]).await?;
    match response.access {
        0 => Err(AdminError::NotFound(format!("there is no quota {name:?}"))),
        _ => Ok(response),
    }
}

async fn change_access(
    ctx: &Ctx,
    checked: Checked,
    access: Vec<AccessOp>,
) -> Result<pb::WriteResponse, AdminError> {
    let transaction = chancery_model::Transaction { access, ..transaction(&checked) };
    write::commit(ctx, transaction, checked, Input::default()).await
}

/// Explains the decision about a client. The answer about a connected node shows its assignment and values of its
/// metadata, so it needs the right to read nodes.
pub(crate) async fn explain_access(
    ctx: &Ctx,
    request: pb::ExplainAccessRequest,
) -> Result<pb::ExplainAccessResponse, AdminError> {
    if !request.node.is_empty() {
        ctx.authorize(Verb::Nodes, Target::Cluster)?;
    }
    let identity = identity(&request.identity)?;
    let state = ctx.deps.replica.state();
    let access = &state.access;
    let node = match request.node.as_str() {
        "" => None,
        id => {
            let node = find_node(ctx, id).await?.node;
            let assignment = state.assignments.for_node(&node);
            let scopes = assignment.map(|one| one.scopes_for(&node)).unwrap_or_default();
            let unresolved = assignment.and_then(|one| one.unresolved(&node));
            let unresolved = unresolved.map(|template| template.as_str());
            let decision = access.decide_stream(&identity, &node, &scopes, unresolved);
            Some(pb::NodeDecision {
                id: id.to_owned(),
                assignment: assignment.map(|one| one.name.to_string()).unwrap_or_default(),
                scopes: scopes.iter().map(ToString::to_string).collect(),
                allowed: decision.is_ok(),
                reason: decision.err().map(|refusal| refusal.to_string()).unwrap_or_default(),
            })
        }
    };
    let (verbs, grants) = match ctx.deps.access.rights_of(&identity.principal) {
        Rights::Rules => (access.verbs_of(&identity), show_grants(access, &identity)),
        // Without access rules, the answer shows what the stored rules would give.
        Rights::NotEnforced => {
            (Verb::ALL.iter().copied().collect(), show_grants(access, &identity))
        }
        Rights::Admin => (Verb::ALL.iter().copied().collect(), Vec::new()),
    };
    Ok(pb::ExplainAccessResponse {
        rules: access.rules_of(&identity.principal).map(|rule| rule.name.to_string()).collect(),
        verbs: verbs.into_iter().map(|verb| verb.name().to_owned()).collect(),
        identity: identity.principal.to_string(),
        enforced: ctx.deps.access.control == AccessControl::Enforced,
        client_grants: show_client_grants(access, &identity),
        node,
        grants,
    })
}

/// Returns the record of an operation on tokens.
pub(crate) fn record_token(verb: &'static str, name: &str) -> Operation {
    Operation::write(verb, "", None).target("token", name)
}

/// Creates a token.
pub(crate) async fn create_token(
    ctx: &Ctx,
    request: pb::CreateTokenRequest,
) -> Result<pb::CreateTokenResponse, AdminError> {
    let valid = match request.valid_seconds {
        0 => TOKEN_DEFAULT,
        seconds => Duration::from_secs(seconds),
    };
    if !TOKEN.contains(&valid) {
        let [valid, max] = [valid, *TOKEN.end()].map(duration_text);
        return Err(AdminError::Parameter(format!(
            "invalid `valid_seconds`: {valid} exceeds the maximum of {max}"
        )));
    }
    let new = new_token(&request.name).map_err(|error| AdminError::Parameter(error.to_string()))?;
    let created_ms = millis(SystemTime::now());
    let valid_ms = u64::try_from(valid.as_millis()).unwrap_or(u64::MAX);
    let token = Token {
        name: request.name.as_str().into(),
        digest: new.digest,
        created_ms,
        expires_ms: created_ms.saturating_add(valid_ms),
        revision: chancery_model::Revision(0),
    };
    let mut info = show_token(&token);
    let response =
        change_access(ctx, check(None, ctx.source())?, vec![AccessOp::AddToken(token)]).await?;
    info.revision = response.revision;
    Ok(pb::CreateTokenResponse { token: new.text.clone(), info: Some(info) })
}

/// Returns the tokens.
pub(crate) async fn list_tokens(
    ctx: &Ctx,
    request: pb::ListTokensRequest,
) -> Result<pb::ListTokensResponse, AdminError> {
    let page = Page::parse_or_all("tokens", request.limit, &request.cursor)?;
    let state = ctx.deps.state(Freshness::of(request.stale)).await?;
    let key = |token: &&Token| (token.name.to_string(), id_of(&token.digest));
    let (tokens, next) = page.of(&state.access.tokens, key);
    let tokens = tokens.into_iter().map(show_token).collect();
    Ok(pb::ListTokensResponse { tokens, next, revision: state.revision.0 })
}

/// Deletes tokens.
pub(crate) async fn delete_token(
    ctx: &Ctx,
    request: pb::DeleteTokenRequest,
) -> Result<pb::WriteResponse, AdminError> {
    let state = ctx.deps.state_to_write().await?;
    let is_meant = |token: &&Token| {
        *token.name == *request.name
            && (request.id.is_empty() || id_of(&token.digest) == request.id)
    };
    let tokens = state.access.tokens.iter().filter(is_meant);
    let ops: Vec<_> = tokens.map(|token| AccessOp::DeleteToken(token.digest)).collect();
    if ops.is_empty() {
        let (name, id) = (&request.name, &request.id);
        let with = if id.is_empty() { String::new() } else { format!(" with the ID {id:?}") };
        return Err(AdminError::NotFound(format!("there is no token {name:?}{with}")));
    }
    change_access(ctx, check(None, ctx.source())?, ops).await
}

fn identity(text: &str) -> Result<Identity, AdminError> {
    let principal =
        Principal::new(text).map_err(|error| AdminError::Parameter(error.to_string()))?;
    Ok(Identity { principal, token: None })
}
