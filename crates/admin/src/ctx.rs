//! A request and its caller, before and after the check of the caller's rights.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chancery_auth::{IdentityRates, RateExceeded};
use chancery_model::{
    AccessOp, Collection, IdentityQuota, Principal, Scope, ScopeName, State, Target, Transaction,
    Verb,
};
use http::Extensions;
use parking_lot::Mutex;

use crate::{
    AdminError,
    caller::{Caller, Rights, rate_exceeded},
    deps::{Deps, Freshness},
    metrics::refused,
    origin::Origin,
    write_trace::WriteTrace,
};

/// The right that an operation needs before it does any work. Operations on scopes check further rights when they know
/// their targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// No right: the answer tells callers about themselves, or about the program.
    Open,
    /// A right that concerns the whole cluster.
    Cluster(Verb),
    /// A right in any scope.
    Somewhere(Verb),
    /// A right to write anything.
    AnyWrite,
}

/// A request that needs a right.
pub(crate) trait Needs {
    const NEEDS: Access;
}

/// An authenticated request. The rights of its caller are not checked yet.
#[derive(Clone)]
pub(crate) struct Call {
    deps: Arc<Deps>,
    caller: Arc<Caller>,
    origin: Arc<Origin>,
}

impl Call {
    /// Creates the call of a caller that was authenticated elsewhere.
    pub(crate) fn new(deps: Arc<Deps>, caller: Caller) -> Self {
        Self { deps, caller: Arc::new(caller), origin: Arc::default() }
    }

    /// Returns the call of a request. A request that was not authenticated has no rights.
    pub(crate) fn of(deps: &Arc<Deps>, extensions: &Extensions) -> Self {
        let caller = extensions.get::<Arc<Caller>>().cloned();
        Self {
            deps: Arc::clone(deps),
            caller: caller.unwrap_or_else(|| Arc::new(Caller::nobody())),
            origin: extensions.get::<Arc<Origin>>().cloned().unwrap_or_default(),
        }
    }

    pub(crate) fn deps(&self) -> &Arc<Deps> {
        &self.deps
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Checks the right that an operation needs. Only this creates the context without which no operation runs.
    ///
    /// # Errors
    /// Fails if the caller has no such right.
    pub(crate) fn permit(&self, access: Access, write: WriteNotes) -> Result<Ctx, AdminError> {
        let ctx = Ctx { deps: Arc::clone(&self.deps), call: self.clone(), write };
        match access {
            Access::Open => {}
            Access::Cluster(verb) => ctx.authorize(verb, Target::Cluster)?,
            Access::Somewhere(verb) => ctx.authorize_somewhere(verb)?,
            Access::AnyWrite => ctx.authorize_any_write()?,
        }
        Ok(ctx)
    }

    /// Returns the name of the caller, for records.
    pub(crate) fn principal(&self) -> String {
        self.caller.identity.principal.to_string()
    }

    /// Counts a write of the caller.
    ///
    /// # Errors
    /// Fails if the access rules of the caller allow fewer writes per second.
    pub(crate) fn count_write(&self) -> Result<(), AdminError> {
        self.count(IdentityRates::write)
    }

    /// Counts a further message of a stream of the caller. The first one counts as the call.
    ///
    /// # Errors
    /// Fails if the access rules of the caller allow fewer requests per second.
    pub(crate) fn count_message(&self) -> Result<(), AdminError> {
        self.count(IdentityRates::request)
    }

    /// Counts an action of the caller. Administrators have no limit.
    fn count(
        &self,
        take: fn(&IdentityRates, &Principal, &IdentityQuota) -> Result<(), RateExceeded>,
    ) -> Result<(), AdminError> {
        let auth = self.deps.access.auth.as_ref();
        let Some(auth) = auth.filter(|_| !self.caller.may_everything()) else { return Ok(()) };
        let principal = &self.caller.identity.principal;
        let quota = self.deps.replica.state().access.quota_of(principal);
        take(auth.rates(), principal, &quota).map_err(|exceeded| rate_exceeded(&exceeded))
    }
}

/// The facts that a write and its record share.
#[derive(Debug, Clone, Default)]
pub(crate) struct WriteNotes {
    /// The trace of the write, if it is traced.
    pub(crate) trace: Option<WriteTrace>,
    /// The scopes of the write; `None` until they are known.
    scopes: Arc<Mutex<Option<BTreeSet<ScopeName>>>>,
}

impl WriteNotes {
    /// Returns the notes of an operation that may be traced.
    pub(crate) fn new(trace: Option<WriteTrace>) -> Self {
        Self { trace, scopes: Arc::default() }
    }

    /// Returns the scopes that were noted.
    pub(crate) fn take_scopes(&self) -> Option<BTreeSet<ScopeName>> {
        self.scopes.lock().take()
    }
}

/// The context of an operation: its caller, who has the right that the operation needs, and what it works with. A clone
/// is cheap.
#[derive(Clone)]
pub(crate) struct Ctx {
    pub(crate) deps: Arc<Deps>,
    call: Call,
    write: WriteNotes,
}

impl Ctx {
    pub(crate) fn caller(&self) -> &Caller {
        &self.call.caller
    }

    /// Returns the address of the caller; empty if it has none.
    pub(crate) fn source(&self) -> String {
        self.call.origin.source()
    }

    /// Returns the trace of the write, if it is traced.
    pub(crate) fn trace(&self) -> Option<&WriteTrace> {
        self.write.trace.as_ref()
    }

    pub(crate) fn call(&self) -> &Call {
        &self.call
    }

    /// Notes the scopes of a write for its record. A request names a scope only for resources without one of their own.
    pub(crate) fn note_scopes(&self, transaction: &Transaction) {
        let mut scopes = BTreeSet::new();
        let mut last = None;
        // Most transactions name the same scope many times in a row.
        for scope in transaction.scopes() {
            if last != Some(scope) {
                last = Some(scope);
                scopes.insert(scope.clone());
            }
        }
        for op in &transaction.access {
            if let AccessOp::Freeze { target, .. } | AccessOp::Thaw { target, .. } = op {
                scopes.extend(target.scope().cloned());
            }
        }
        *self.write.scopes.lock() = Some(scopes);
    }

    /// Returns the state and the part of it that the caller may read. Only the whole state may reach the index of the
    /// references, which all requests share.
    pub(crate) async fn states(
        &self,
        freshness: Freshness,
    ) -> Result<(Arc<State>, Arc<State>), AdminError> {
        let state = self.deps.state(freshness).await?;
        let visible = self.visible(&state);
        Ok((state, visible))
    }

    /// Returns the part that the caller may read of what clients receive in a state.
    pub(crate) fn visible_to_clients(&self, state: &Arc<State>) -> Arc<State> {
        if state.freezes.is_empty() {
            return self.visible(state);
        }
        self.visible(&Arc::new(state.served()))
    }

    /// Checks whether the caller may use an operation.
    ///
    /// # Errors
    /// Fails if the caller may not. The text does not tell whether the target exists.
    pub(crate) fn authorize(&self, verb: Verb, target: Target<'_>) -> Result<(), AdminError> {
        if self.may(verb, target) {
            Ok(())
        } else {
            Err(self.denied(&format!("{verb}{}", shown(target))))
        }
    }

    /// Returns whether the caller may use an operation.
    pub(crate) fn may(&self, verb: Verb, target: Target<'_>) -> bool {
        let caller = self.caller();
        let access = &self.deps.replica.state().access;
        match caller.rights {
            Rights::NotEnforced => true,
            // The call may be older than the deletion of its token.
            Rights::Admin => access.has_token_of(&caller.identity),
            Rights::Rules => access.permits(&caller.identity, verb, target),
        }
    }

    /// Checks whether the caller may use an operation on any target, before work is done for it.
    ///
    /// # Errors
    /// Fails if the caller may not.
    fn authorize_somewhere(&self, verb: Verb) -> Result<(), AdminError> {
        if self.may_somewhere(verb) { Ok(()) } else { Err(self.denied(verb.name())) }
    }

    /// Returns whether the caller may use an operation on any target.
    pub(crate) fn may_somewhere(&self, verb: Verb) -> bool {
        let caller = self.caller();
        let access = &self.deps.replica.state().access;
        caller.may_everything() || access.permits_somewhere(&caller.identity, verb)
    }

    /// Returns the error for an operation that the caller may not use, and counts it.
    pub(crate) fn denied(&self, what: &str) -> AdminError {
        refused("denied");
        let who = &self.caller().identity.principal;
        AdminError::Forbidden(format!(
            "{who} has no right to {what}; `chancery whoami` shows the rights"
        ))
    }

    /// Returns the part of a state that the caller may read. What it may not read looks as if it did not exist.
    pub(crate) fn visible(&self, state: &Arc<State>) -> Arc<State> {
        let caller = self.caller();
        if caller.may_everything() {
            return Arc::clone(state);
        }
        let rights = state.access.rights_of(&caller.identity);
        let may_get = |target| rights.permits(Verb::Get, target);
        let visible = state.scopes.iter().filter_map(|(name, scope)| {
            if may_get(Target::Scope(name)) {
                return Some((name.clone(), Arc::clone(scope)));
            }
            let types = scope.types.iter().filter(|(url, _)| may_get(Target::Type(name, url)));
            let types: BTreeMap<_, Arc<Collection>> =
                types.map(|(url, all)| (url.clone(), Arc::clone(all))).collect();
            let scope = || Arc::new(Scope { types: types.clone(), changed: scope.changed });
            (!types.is_empty()).then(|| (name.clone(), scope()))
        });
        let scopes = visible.collect();
        Arc::new(State { scopes, ..State::clone(state) })
    }

    /// Checks whether the caller may write anything.
    ///
    /// # Errors
    /// Fails if the caller may not.
    fn authorize_any_write(&self) -> Result<(), AdminError> {
        let verbs = [Verb::Assign, Verb::AccessWrite, Verb::Prune, Verb::Freeze, Verb::FreezeAll];
        if verbs.into_iter().any(|verb| self.may_somewhere(verb)) {
            return Ok(());
        }
        self.authorize_somewhere(Verb::Apply)
    }
}

/// Returns a target as a part of a sentence.
pub(crate) fn shown(target: Target<'_>) -> String {
    match target {
        Target::Cluster => String::new(),
        Target::Scope(scope) => format!(" everything in scope {scope:?}"),
        Target::Type(scope, type_url) => format!(" {} in scope {scope:?}", type_url.short_name()),
        Target::Resource(scope, type_url, name) => {
            format!(" {} {:?} in scope {scope:?}", type_url.short_name(), name.base())
        }
    }
}
