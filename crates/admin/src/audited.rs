//! The audit log of the admin API: who called which operation, from where, and with which outcome.
//!
//! Each operation that writes, changes the cluster, or returns everything (a backup) calls [`Service::audited`].
//! Details contain only counts, names, and the texts that the author wrote for others: label, author, reason.

use std::{cell::RefCell, collections::BTreeSet, net::SocketAddr, pin::pin};

use axum::{
    extract::{ConnectInfo, Request},
    middleware::Next,
    response::Response,
};
use chancery_audit::{Decision, Event, Port, Target, source_text};
use chancery_model::{ScopeName, Transaction};
use chancery_proto::admin::v1 as pb;
use chancery_trace::TraceParent;
use http::{Extensions, HeaderMap, header};
use serde_json::Value;

use crate::{AdminError, operation_log, service::Service, write_trace::WriteTrace};

/// The header of W3C Trace Context.
const TRACEPARENT: &str = "traceparent";

/// The maximum number of names in the details of a record.
const NAMES_MAX: usize = 20;

tokio::task_local! {
    /// The caller of the request that the present task serves.
    static CALLER: Caller;
    /// The scopes of the write that the present task makes; `None` until they are known.
    static SCOPES: RefCell<Option<BTreeSet<ScopeName>>>;
}

/// Records the scopes of a write for its record. A request names a scope only for resources without one of their own.
pub(crate) fn note_scopes(transaction: &Transaction) {
    let all = (transaction.upserts.iter().map(|one| &one.scope))
        .chain(transaction.deletes.iter().map(|(scope, _)| scope))
        .chain(&transaction.prune);
    let mut scopes = BTreeSet::new();
    let mut last = None;
    // Most transactions name the same scope many times in a row.
    for scope in all {
        if last != Some(scope) {
            last = Some(scope);
            scopes.insert(scope.clone());
        }
    }
    // Only an operation that is recorded has a place for them.
    let _ = SCOPES.try_with(|noted| noted.replace(Some(scopes)));
}

/// Replaces the scope of a record by the scopes that the write concerns.
fn with_scopes(event: Event) -> Event {
    let Some(scopes) = SCOPES.try_with(RefCell::take).ok().flatten() else { return event };
    let mut scopes: Vec<String> = scopes.iter().map(|scope| scope.as_str().to_owned()).collect();
    let scope = if scopes.len() == 1 { scopes.remove(0) } else { String::new() };
    Event { target: Target { scope, scopes, ..event.target }, ..event }
}

/// The caller of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller {
    source: Option<SocketAddr>,
    user_agent: String,
    /// The trace of the caller, which a write continues.
    traceparent: Option<TraceParent>,
}

impl Caller {
    /// Returns the caller of a request. The server that accepted the connection adds its address.
    pub(crate) fn of(extensions: &Extensions, headers: &HeaderMap) -> Self {
        let source = extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
        let user_agent = headers.get(header::USER_AGENT);
        let user_agent = user_agent.map(|value| String::from_utf8_lossy(value.as_bytes()));
        let user_agent = user_agent.unwrap_or_default().into_owned();
        // Several headers contradict each other.
        let mut parents = headers.get_all(TRACEPARENT).iter();
        let traceparent = match (parents.next(), parents.next()) {
            (Some(parent), None) => parent.to_str().ok().and_then(TraceParent::parse),
            _ => None,
        };
        Self { source, user_agent, traceparent }
    }

    /// Adds the caller to an event.
    pub(crate) fn add_to(self, event: Event) -> Event {
        let Self { source, user_agent, .. } = self;
        Event { source, user_agent, ..event }
    }
}

/// Returns the address of the caller of the present request; empty if it has none.
pub(crate) fn source() -> String {
    let source = CALLER.try_with(|caller| caller.source).ok().flatten();
    source.map(source_text).unwrap_or_default()
}

/// Keeps the caller while its request is served.
pub(crate) async fn identify(request: Request, next: Next) -> Response {
    let caller = Caller::of(request.extensions(), request.headers());
    CALLER.scope(caller, next.run(request)).await
}

/// An operation that the audit log records.
#[derive(Debug)]
pub(crate) struct Operation {
    event: Event,
    kind: Kind,
}

/// The effect of an operation on the state of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It commits a transaction.
    Write,
    /// It tries a transaction.
    DryRun,
    /// It does something else.
    Other,
}

impl Operation {
    /// Creates an operation with a verb of a closed set.
    pub(crate) fn new(verb: &'static str) -> Self {
        Self { event: Event::new(Port::Admin, verb), kind: Kind::Other }
    }

    /// Creates a write.
    pub(crate) fn write(
        verb: &'static str,
        scope: &str,
        options: Option<&pb::WriteOptions>,
    ) -> Self {
        let mut operation = Self::new(verb);
        operation.event.target.scope = scope.to_owned();
        operation.kind = Kind::Write;
        let Some(options) = options else { return operation };
        if options.dry_run {
            operation.kind = Kind::DryRun;
        }
        operation.event.request_id.clone_from(&options.request_id);
        if options.dry_run {
            operation = operation.detail("dry_run", true);
        }
        for (key, text) in [
            ("label", &options.label),
            ("author", &options.author),
            ("reason", &options.reason),
            ("validation", &options.validation),
        ] {
            if !text.is_empty() {
                operation = operation.detail(key, text.as_str());
            }
        }
        match options.confirm.as_slice() {
            [] => operation,
            guards => operation.names("confirm", guards.iter().map(String::as_str)),
        }
    }

    /// Sets the object of the operation.
    pub(crate) fn target(mut self, type_name: &str, name: impl Into<String>) -> Self {
        let target =
            Target { type_name: type_name.to_owned(), name: name.into(), ..self.event.target };
        self.event.target = target;
        self
    }

    /// Adds a detail. It must not be secret.
    pub(crate) fn detail(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.event = self.event.detail(key, value);
        self
    }

    /// Adds the first names of a list.
    pub(crate) fn names<'a>(
        self,
        key: &'static str,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let names: Vec<Value> = names.into_iter().take(NAMES_MAX).map(Value::from).collect();
        self.detail(key, names)
    }
}

/// A read of secrets. No read shows their values.
#[derive(Debug)]
pub(crate) struct SecretsRead<'a> {
    pub(crate) operation: &'static str,
    /// The scope and the name in the request; empty if it has none.
    pub(crate) scope: &'a str,
    pub(crate) name: &'a str,
    pub(crate) n_secrets: usize,
    pub(crate) with_bodies: bool,
}

/// The record of a running operation. If the caller leaves before the outcome is known, the record says so.
struct Running<'a> {
    service: &'a Service,
    event: Option<Event>,
    is_dry_run: bool,
}

impl Running<'_> {
    /// Records the outcome. The number of records of operations that have no effect is limited, so that a caller
    /// cannot displace the records of others. An operation whose outcome is unknown may have an effect.
    fn note(&self, event: Event) {
        let has_no_effect = matches!(event.decision, Decision::Refused(_) | Decision::Failed(_));
        if self.is_dry_run || has_no_effect {
            self.service.audit.note_without_effect(event)
        } else {
            self.service.audit.note(event)
        }
    }

    fn end(mut self, decision: Decision, add: impl FnOnce(Event) -> Event) {
        if let Some(event) = self.event.take() {
            let event = add(with_scopes(Event { decision, ..now(event) }));
            operation_log::log(&event, self.is_dry_run);
            self.note(event);
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            let decision = Decision::Unknown("abandoned");
            let event = with_scopes(Event { decision, ..now(event) });
            operation_log::log(&event, self.is_dry_run);
            self.note(event);
        }
    }
}

fn now(event: Event) -> Event {
    Event { time: std::time::SystemTime::now(), ..event }
}

impl Service {
    /// Runs an operation and records its outcome. If the audit log is strict, a record precedes the operation.
    ///
    /// # Errors
    /// Returns the error of the operation. Fails without running it if a strict audit log does not take the record.
    pub(crate) async fn audited<T>(
        &self,
        operation: Operation,
        run: impl Future<Output = Result<T, AdminError>>,
    ) -> Result<T, AdminError> {
        self.audited_with(operation, run, |_, event| event).await
    }

    /// Runs a write like [`Self::audited`]. The record has the revision and the numbers of changes.
    pub(crate) async fn audited_write(
        &self,
        operation: Operation,
        run: impl Future<Output = Result<pb::WriteResponse, AdminError>>,
    ) -> Result<pb::WriteResponse, AdminError> {
        let describe = |response: &pb::WriteResponse, event: Event| {
            event
                .detail("revision", response.revision)
                .detail("changed", response.changed)
                .detail("removed", response.removed)
                .detail("assignments", response.assignments)
                .detail("access", response.access)
        };
        // The future of a write has tens of kilobytes. It stays in one place, whatever is around it.
        let run = pin!(run);
        let parent = CALLER.try_with(|caller| caller.traceparent).ok().flatten();
        let is_write = operation.kind == Kind::Write;
        let Some(trace) = is_write.then(|| self.tracer.start(parent)).flatten() else {
            return self.audited_with(operation, run, describe).await;
        };
        let verb = operation.event.verb;
        WriteTrace::new(trace).around(verb, self.audited_with(operation, run, describe)).await
    }

    /// Records a read of secrets. If the audit log is strict, waits until it has the record.
    ///
    /// # Errors
    /// Fails if a strict audit log does not take the record. The secrets must then not be returned.
    pub(crate) async fn record_secrets_read(
        &self,
        read: SecretsRead<'_>,
    ) -> Result<(), AdminError> {
        let caller = CALLER.try_with(Caller::clone).unwrap_or_default();
        let event = caller.add_to(Event::new(Port::Admin, "secrets.read"));
        let target = Target {
            scope: read.scope.to_owned(),
            scopes: Vec::new(),
            type_name: "secret".to_owned(),
            name: read.name.to_owned(),
        };
        let principal = self.caller.identity.principal.to_string();
        let event = Event { principal, target, ..event }
            .detail("operation", read.operation)
            .detail("secrets", read.n_secrets)
            .detail("body", if read.with_bodies { "redacted" } else { "left_out" });
        if self.audit.is_strict() {
            let pending = Event { decision: Decision::Pending, ..event.clone() };
            if let Err(error) = self.audit.record(pending).await {
                self.audit.note(Event { decision: Decision::Refused("not_audited"), ..now(event) });
                return Err(AdminError::Unavailable(format!("no secret was read: {error}")));
            }
        }
        self.audit.note(now(event));
        Ok(())
    }

    async fn audited_with<T>(
        &self,
        operation: Operation,
        run: impl Future<Output = Result<T, AdminError>>,
        describe: impl FnOnce(&T, Event) -> Event,
    ) -> Result<T, AdminError> {
        let run = pin!(run);
        SCOPES.scope(RefCell::default(), self.recorded(operation, run, describe)).await
    }

    async fn recorded<T>(
        &self,
        operation: Operation,
        run: impl Future<Output = Result<T, AdminError>>,
        describe: impl FnOnce(&T, Event) -> Event,
    ) -> Result<T, AdminError> {
        let caller = CALLER.try_with(Caller::clone).unwrap_or_default();
        let principal = self.caller.identity.principal.to_string();
        let event = Event { principal, ..caller.add_to(operation.event) };
        let is_dry_run = operation.kind == Kind::DryRun;
        let running = Running { service: self, event: Some(event.clone()), is_dry_run };
        // A dry run changes nothing.
        let is_counted = operation.kind == Kind::Write;
        if is_counted && let Err(error) = self.count_write() {
            running.end(error.decision(), |event| event);
            return Err(error);
        }
        if self.audit.is_strict() && operation.kind != Kind::DryRun {
            let pending = Event { decision: Decision::Pending, ..event };
            if let Err(error) = self.audit.record(pending).await {
                running.end(Decision::Refused("not_audited"), |event| event);
                return Err(AdminError::Unavailable(format!("nothing has been written: {error}")));
            }
        }
        let result = run.await;
        match &result {
            Ok(done) => running.end(Decision::Allowed, |event| describe(done, event)),
            Err(error) => running.end(error.decision(), |event| event),
        }
        result
    }
}

impl AdminError {
    /// Returns the decision in the audit log.
    pub(crate) fn decision(&self) -> Decision {
        match self {
            Self::Input(_) => Decision::Refused("input"),
            Self::Parameter(_) => Decision::Refused("parameter"),
            Self::NotFound(_) => Decision::Refused("not_found"),
            Self::Precondition(_) => Decision::Refused("precondition"),
            Self::TooLarge(_) => Decision::Refused("too_large"),
            Self::Method(_) => Decision::Refused("method"),
            Self::Unauthenticated(_) => Decision::Refused("unauthenticated"),
            Self::Forbidden(_) => Decision::Refused("forbidden"),
            Self::Unavailable(_) => Decision::Failed("unavailable"),
            Self::OutcomeUnknown(_) => Decision::Unknown("outcome_unknown"),
            Self::Quota(_) => Decision::Refused("quota"),
            Self::Busy { reason, .. } => Decision::Refused(reason),
            Self::Exhausted(_) => Decision::Failed("disk_full"),
            Self::Internal(_) => Decision::Failed("internal"),
        }
    }
}
