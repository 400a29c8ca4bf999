//! `chancery.admin.v1.AccessService`: access rules, tokens, and the rights of the caller.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use chancery_auth::new_token;
use chancery_fanout::AccessControl;
use chancery_model::{AccessOp, Identity, Principal, ResourceName, ScopeName, Target, Token, Verb};
use chancery_proto::admin::v1::{self as pb, access_service_server::AccessService};
use tonic::{Request, Response, Status};

use crate::{
    AdminError,
    access_messages::{id_of, show_client_grants, show_grants, show_quota, show_rule, show_token},
    audited::Operation,
    caller::Rights,
    nodes::{millis, streams_of},
    resources::parse_type,
    service::{Freshness, Service},
    write::transaction,
    write_input::Input,
    write_options::{Checked, check},
};

/// The validity of a token without another one.
const TOKEN_DEFAULT: Duration = Duration::from_secs(90 * 24 * 3600);
/// The maximum validity of a token.
const TOKEN_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// The access service.
#[derive(Clone)]
pub(crate) struct GrpcAccess(pub(crate) Service);

impl GrpcAccess {
    fn of<T>(&self, request: Request<T>) -> (Service, T) {
        let service = self.0.of(request.extensions());
        (service, request.into_inner())
    }
}

#[tonic::async_trait]
impl AccessService for GrpcAccess {
    async fn who_am_i(
        &self,
        request: Request<pb::WhoAmIRequest>,
    ) -> Result<Response<pb::WhoAmIResponse>, Status> {
        Ok(Response::new(self.of(request).0.who_am_i()))
    }

    async fn check_access(
        &self,
        request: Request<pb::CheckAccessRequest>,
    ) -> Result<Response<pb::CheckAccessResponse>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.check_access(&request)?))
    }

    async fn list_access(
        &self,
        request: Request<pb::ListAccessRequest>,
    ) -> Result<Response<pb::ListAccessResponse>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.list_access(request).await?))
    }

    async fn delete_access(
        &self,
        request: Request<pb::DeleteAccessRequest>,
    ) -> Result<Response<pb::WriteResponse>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.delete_access(request).await?))
    }

    async fn explain_access(
        &self,
        request: Request<pb::ExplainAccessRequest>,
    ) -> Result<Response<pb::ExplainAccessResponse>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.explain_access(request).await?))
    }

    async fn create_token(
        &self,
        request: Request<pb::CreateTokenRequest>,
    ) -> Result<Response<pb::CreateTokenResponse>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.create_token(request).await?))
    }

    async fn list_tokens(
        &self,
        request: Request<pb::ListTokensRequest>,
    ) -> Result<Response<pb::ListTokensResponse>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.list_tokens(request).await?))
    }

    async fn delete_token(
        &self,
        request: Request<pb::DeleteTokenRequest>,
    ) -> Result<Response<pb::WriteResponse>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.delete_token(request).await?))
    }

    async fn list_quotas(
        &self,
        request: Request<pb::ListQuotasRequest>,
    ) -> Result<Response<pb::ListQuotasResponse>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.list_quotas(request).await?))
    }

    async fn delete_quota(
        &self,
        request: Request<pb::DeleteQuotaRequest>,
    ) -> Result<Response<pb::WriteResponse>, Status> {
        let (service, request) = self.of(request);
        Ok(Response::new(service.delete_quota(request).await?))
    }
}

impl Service {
    /// Returns the identity of the caller, and its rights.
    pub(crate) fn who_am_i(&self) -> pb::WhoAmIResponse {
        let access = Arc::clone(&self.replica.state().access);
        let identity = &self.caller.identity;
        let verbs = if self.caller.may_everything() {
            Verb::ALL.iter().copied().collect()
        } else {
            access.verbs_of(identity)
        };
        pb::WhoAmIResponse {
            identity: identity.principal.to_string(),
            enforced: self.access.control == AccessControl::Enforced,
            admin: self.caller.rights == Rights::Admin,
            rules: access.rules_of(&identity.principal).map(|rule| rule.name.to_string()).collect(),
            verbs: verbs.into_iter().map(|verb| verb.name().to_owned()).collect(),
            grants: if self.caller.may_everything() {
                Vec::new()
            } else {
                show_grants(&access, identity)
            },
            client_grants: show_client_grants(&access, identity),
        }
    }

    /// Returns whether an identity may use an operation.
    pub(crate) fn check_access(
        &self,
        request: &pb::CheckAccessRequest,
    ) -> Result<pb::CheckAccessResponse, AdminError> {
        let verb = Verb::of_name(&request.verb).ok_or_else(|| {
            let known: Vec<_> = Verb::ALL.iter().map(|verb| verb.name()).collect();
            let (verb, known) = (&request.verb, known.join(", "));
            AdminError::Parameter(format!("the verb {verb:?} is unknown; known are {known}"))
        })?;
        let (identity, rights) = match request.identity.as_str() {
            "" => (self.caller.identity.clone(), self.caller.rights),
            text => {
                self.authorize(Verb::AccessRead, Target::Cluster)?;
                let identity = identity(text)?;
                let rights = self.access.rights_of(&identity.principal);
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
            (true, Some(scope), Some(type_url), Some(name)) => {
                Target::Resource(scope, type_url, name)
            }
            (true, _, None, Some(_)) => return needs("a name needs a type"),
        };
        let access = Arc::clone(&self.replica.state().access);
        let allowed = rights != Rights::Rules || access.permits(&identity, verb, target);
        let enforced = self.access.control == AccessControl::Enforced;
        Ok(pb::CheckAccessResponse { identity: identity.principal.to_string(), allowed, enforced })
    }

    /// Returns the access rules.
    pub(crate) async fn list_access(
        &self,
        request: pb::ListAccessRequest,
    ) -> Result<pb::ListAccessResponse, AdminError> {
        self.authorize(Verb::AccessRead, Target::Cluster)?;
        let state = self.state(Freshness::of(request.stale)).await?;
        let rules = state.access.rules.iter().map(show_rule).collect();
        Ok(pb::ListAccessResponse { revision: state.revision.0, rules })
    }

    /// Deletes an access rule.
    pub(crate) async fn delete_access(
        &self,
        request: pb::DeleteAccessRequest,
    ) -> Result<pb::WriteResponse, AdminError> {
        let name = request.name;
        let operation = Operation::write("access.delete", "", request.options.as_ref());
        let delete = async {
            self.authorize(Verb::AccessWrite, Target::Cluster)?;
            let op = AccessOp::DeleteRule(name.as_str().into());
            let response = self.change_access(check(request.options)?, vec![op]).await?;
            match response.access {
                0 => Err(AdminError::NotFound(format!("there is no access rule {name:?}"))),
                _ => Ok(response),
            }
        };
        self.audited_write(operation.target("access", name.as_str()), delete).await
    }

    /// Returns the quotas and their use.
    pub(crate) async fn list_quotas(
        &self,
        request: pb::ListQuotasRequest,
    ) -> Result<pb::ListQuotasResponse, AdminError> {
        self.authorize(Verb::AccessRead, Target::Cluster)?;
        let state = self.state(Freshness::of(request.stale)).await?;
        let quotas = state.quotas.iter().map(|(quota, used)| show_quota(quota, used)).collect();
        Ok(pb::ListQuotasResponse { revision: state.revision.0, quotas })
    }

    pub(crate) async fn delete_quota(
        &self,
        request: pb::DeleteQuotaRequest,
    ) -> Result<pb::WriteResponse, AdminError> {
        let name = request.name;
        let operation = Operation::write("quota.delete", "", request.options.as_ref());
        let delete = async {
            self.authorize(Verb::AccessWrite, Target::Cluster)?;
            let op = AccessOp::DeleteQuota(name.as_str().into());
            let response = self.change_access(check(request.options)?, vec![op]).await?;
            match response.access {
                0 => Err(AdminError::NotFound(format!("there is no quota {name:?}"))),
                _ => Ok(response),
            }
        };
        self.audited_write(operation.target("quota", name.as_str()), delete).await
    }

    async fn change_access(
        &self,
        checked: Checked,
        access: Vec<AccessOp>,
    ) -> Result<pb::WriteResponse, AdminError> {
        let transaction = chancery_model::Transaction { access, ..transaction(&checked) };
        let result = self.commit(transaction, checked, Input::default()).await;
        self.metrics.on_write(&result);
        result
    }

    /// Explains the decision about a client. The answer about a connected node shows its assignment and values of its
    /// metadata, so it needs the right to read nodes.
    pub(crate) async fn explain_access(
        &self,
        request: pb::ExplainAccessRequest,
    ) -> Result<pb::ExplainAccessResponse, AdminError> {
        self.authorize(Verb::AccessRead, Target::Cluster)?;
        if !request.node.is_empty() {
            self.authorize(Verb::Nodes, Target::Cluster)?;
        }
        let identity = identity(&request.identity)?;
        let state = self.replica.state();
        let access = &state.access;
        let node = match request.node.as_str() {
            "" => None,
            id => {
                let streams = self.streams().await?;
                let streams = streams_of(&streams, id);
                let stream = streams.last().ok_or_else(|| self.not_connected(id))?;
                let assignment = state.assignments.for_node(&stream.node);
                let scopes = assignment.map(|one| one.scopes_for(&stream.node)).unwrap_or_default();
                let unresolved = assignment.and_then(|one| one.unresolved(&stream.node));
                let unresolved = unresolved.map(|template| template.as_str());
                let decision = access.decide_stream(&identity, &stream.node, &scopes, unresolved);
                Some(pb::NodeDecision {
                    id: id.to_owned(),
                    assignment: assignment.map(|one| one.name.to_string()).unwrap_or_default(),
                    scopes: scopes.iter().map(ToString::to_string).collect(),
                    allowed: decision.is_ok(),
                    reason: decision.err().map(|refusal| refusal.to_string()).unwrap_or_default(),
                })
            }
        };
        let (verbs, grants) = match self.access.rights_of(&identity.principal) {
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
            enforced: self.access.control == AccessControl::Enforced,
            client_grants: show_client_grants(access, &identity),
            node,
            grants,
        })
    }

    pub(crate) async fn create_token(
        &self,
        request: pb::CreateTokenRequest,
    ) -> Result<pb::CreateTokenResponse, AdminError> {
        let operation = Operation::write("token.create", "", None);
        let operation = operation.target("token", request.name.as_str());
        self.audited(operation, self.try_create_token(request)).await
    }

    async fn try_create_token(
        &self,
        request: pb::CreateTokenRequest,
    ) -> Result<pb::CreateTokenResponse, AdminError> {
        self.authorize(Verb::Tokens, Target::Cluster)?;
        let valid = match request.valid_seconds {
            0 => TOKEN_DEFAULT,
            seconds => Duration::from_secs(seconds),
        };
        if valid > TOKEN_MAX {
            let (given, max) = (valid.as_secs() / 86_400, TOKEN_MAX.as_secs() / 86_400);
            return Err(AdminError::Parameter(format!(
                "the token would be valid for {given} days, at most {max} are allowed"
            )));
        }
        let new =
            new_token(&request.name).map_err(|error| AdminError::Parameter(error.to_string()))?;
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
        let response = self.change_access(check(None)?, vec![AccessOp::AddToken(token)]).await?;
        info.revision = response.revision;
        Ok(pb::CreateTokenResponse { token: new.text.clone(), info: Some(info) })
    }

    /// Returns the tokens.
    pub(crate) async fn list_tokens(
        &self,
        request: pb::ListTokensRequest,
    ) -> Result<pb::ListTokensResponse, AdminError> {
        self.authorize(Verb::Tokens, Target::Cluster)?;
        let state = self.state(Freshness::of(request.stale)).await?;
        let tokens = state.access.tokens.iter().map(show_token).collect();
        Ok(pb::ListTokensResponse { tokens })
    }

    pub(crate) async fn delete_token(
        &self,
        request: pb::DeleteTokenRequest,
    ) -> Result<pb::WriteResponse, AdminError> {
        let operation = Operation::write("token.delete", "", None);
        let operation = operation.target("token", request.name.as_str());
        self.audited_write(operation, self.try_delete_token(request)).await
    }

    async fn try_delete_token(
        &self,
        request: pb::DeleteTokenRequest,
    ) -> Result<pb::WriteResponse, AdminError> {
        self.authorize(Verb::Tokens, Target::Cluster)?;
        let state = self.state_to_write().await?;
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
        self.change_access(check(None)?, ops).await
    }
}

fn identity(text: &str) -> Result<Identity, AdminError> {
    let principal =
        Principal::new(text).map_err(|error| AdminError::Parameter(error.to_string()))?;
    Ok(Identity { principal, token: None })
}
