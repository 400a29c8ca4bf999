//! The audit log of the admin API: who called which operation, from where, and with which outcome.
//!
//! The table of operations says which are recorded: those that write, change the cluster, or return everything (a backup).
//! Details contain only counts, names, and the texts that the author wrote for others: label, author, reason.

use std::{pin::pin, sync::Arc};

use axum::{extract::Request, middleware::Next, response::Response};
use chancery_admin_proto::v1 as pb;
use chancery_audit::{Decision, Event, Port, Target};
use serde_json::Value;

use crate::{
    AdminError,
    ctx::{Access, Call, Ctx, WriteNotes},
    deps::Deps,
    operation_log,
    origin::Origin,
    write_trace::WriteTrace,
};

/// The maximum number of names in the details of a record.
const NAMES_MAX: usize = 20;

/// Replaces the scope of a record by the scopes that the write concerns.
fn with_scopes(event: Event, notes: &WriteNotes) -> Event {
    let Some(scopes) = notes.take_scopes() else { return event };
    let mut scopes: Vec<String> = scopes.iter().map(|scope| scope.as_str().to_owned()).collect();
    let scope = if scopes.len() == 1 { scopes.remove(0) } else { String::new() };
    Event { target: Target { scope, scopes, ..event.target }, ..event }
}

/// Keeps the origin of a request for its records.
pub(crate) async fn note_origin(mut request: Request, next: Next) -> Response {
    let origin = Origin::of(request.extensions(), request.headers());
    request.extensions_mut().insert(Arc::new(origin));
    next.run(request).await
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
        if !options.labels.is_empty() {
            let labels = options.labels.iter().map(|(key, value)| format!("{key}={value}"));
            let labels: Vec<_> = labels.collect();
            operation = operation.names("labels", labels.iter().map(String::as_str));
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

/// The record of a call: of its operation, if the audit log records that.
pub(crate) struct Record<'a> {
    call: &'a Call,
    operation: Option<Operation>,
    notes: WriteNotes,
}

impl<'a> Record<'a> {
    /// Prepares the record of an operation. A write gets a trace, if it is sampled.
    pub(crate) fn new(call: &'a Call, operation: impl Into<Option<Operation>>) -> Self {
        let operation = operation.into();
        let is_write = operation.as_ref().is_some_and(|one: &Operation| one.kind == Kind::Write);
        let parent = call.origin().traceparent();
        let trace = is_write.then(|| call.deps().tracer.start(parent)).flatten();
        Self { call, operation, notes: WriteNotes::new(trace.map(WriteTrace::new)) }
    }

    /// Returns the context of the operation.
    ///
    /// # Errors
    /// Fails if the caller has no right to it.
    pub(crate) fn permit(&self, access: Access) -> Result<Ctx, AdminError> {
        self.call.permit(access, self.notes.clone())
    }

    /// Runs an operation that is not recorded.
    ///
    /// # Errors
    /// Returns the error of the operation.
    pub(crate) async fn read<T>(
        &self,
        run: impl Future<Output = Result<T, AdminError>>,
    ) -> Result<T, AdminError> {
        run.await
    }

    /// Runs an operation and records its outcome. If the audit log is strict, a record precedes the operation.
    ///
    /// # Errors
    /// Returns the error of the operation. Fails without running it if a strict audit log does not take the record.
    pub(crate) async fn act<T>(
        &self,
        run: impl Future<Output = Result<T, AdminError>>,
    ) -> Result<T, AdminError> {
        self.around(run, |_, event| event).await
    }

    /// Runs a write like [`Self::act`]. The record has the revision and the numbers of changes.
    ///
    /// # Errors
    /// As [`Self::act`].
    pub(crate) async fn write(
        &self,
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
        self.around(run, describe).await
    }

    async fn around<T>(
        &self,
        run: impl Future<Output = Result<T, AdminError>>,
        describe: impl FnOnce(&T, Event) -> Event,
    ) -> Result<T, AdminError> {
        // The future of a write has tens of kilobytes. It stays in one place, whatever is around it.
        let run = pin!(run);
        let Some(operation) = &self.operation else { return run.await };
        let deps = self.call.deps();
        let principal = self.call.principal();
        let event = self.call.origin().add_to(operation.event.clone());
        let event = Event { principal, ..event };
        let is_dry_run = operation.kind == Kind::DryRun;
        let running = Running { deps, notes: &self.notes, event: Some(event.clone()), is_dry_run };
        let result = async {
            // A dry run changes nothing.
            if operation.kind == Kind::Write {
                self.call.count_write()?;
            }
            if deps.audit.is_strict() && !is_dry_run {
                let pending = Event { decision: Decision::Pending, ..event };
                if let Err(error) = deps.audit.record(pending).await {
                    return Ok(Err(error));
                }
            }
            run.await.map(Ok)
        };
        let result = match result.await {
            Ok(Err(error)) => {
                running.end(Decision::Refused("not_audited"), |event| event);
                Err(AdminError::Unavailable(format!("nothing has been written: {error}")))
            }
            Ok(Ok(done)) => {
                running.end(Decision::Allowed, |event| describe(&done, event));
                Ok(done)
            }
            Err(error) => {
                running.end(error.decision(), |event| event);
                Err(error)
            }
        };
        if operation.kind != Kind::Other {
            deps.metrics.on_write(&result);
        }
        result
    }
}

/// A running operation. If the caller leaves before the outcome is known, the record says so.
struct Running<'a> {
    deps: &'a Deps,
    notes: &'a WriteNotes,
    event: Option<Event>,
    is_dry_run: bool,
}

impl Running<'_> {
    fn end(mut self, decision: Decision, add: impl FnOnce(Event) -> Event) {
        self.note(decision, add);
    }

    /// Records the outcome. The number of records of operations that have no effect is limited, so that a caller
    /// cannot displace the records of others. An operation whose outcome is unknown may have an effect.
    fn note(&mut self, decision: Decision, add: impl FnOnce(Event) -> Event) {
        let Some(event) = self.event.take() else { return };
        let event = add(with_scopes(Event { decision, ..now(event) }, self.notes));
        let trace = self.notes.trace.as_ref();
        operation_log::log(&event, self.is_dry_run, trace);
        if let Some(trace) = trace {
            trace.end(&event);
        }
        let has_no_effect = matches!(decision, Decision::Refused(_) | Decision::Failed(_));
        if self.is_dry_run || has_no_effect {
            self.deps.audit.note_without_effect(event)
        } else {
            self.deps.audit.note(event)
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.note(Decision::Unknown("abandoned"), |event| event);
    }
}

fn now(event: Event) -> Event {
    Event { time: std::time::SystemTime::now(), ..event }
}

/// Records a read of secrets. If the audit log is strict, waits until it has the record.
///
/// # Errors
/// Fails if a strict audit log does not take the record. The secrets must then not be returned.
pub(crate) async fn record_secrets_read(
    ctx: &Ctx,
    read: SecretsRead<'_>,
) -> Result<(), AdminError> {
    let (call, audit) = (ctx.call(), &ctx.deps.audit);
    let target = Target {
        scope: read.scope.to_owned(),
        scopes: Vec::new(),
        type_name: "secret".to_owned(),
        name: read.name.to_owned(),
    };
    let event = call.origin().add_to(Event::new(Port::Admin, "secrets.read"));
    let event = Event { principal: call.principal(), target, ..event }
        .detail("operation", read.operation)
        .detail("secrets", read.n_secrets)
        .detail("body", if read.with_bodies { "redacted" } else { "left_out" });
    if audit.is_strict() {
        let pending = Event { decision: Decision::Pending, ..event.clone() };
        if let Err(error) = audit.record(pending).await {
            audit.note(Event { decision: Decision::Refused("not_audited"), ..now(event) });
            return Err(AdminError::Unavailable(format!("no secret was read: {error}")));
        }
    }
    audit.note(now(event));
    Ok(())
}
