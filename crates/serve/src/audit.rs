//! The audit log of a replica: its start and end, and the events of ports without requests.

use std::time::Duration;

use chancery_audit::{Audit, Decision, Event, Port, Target};
use chancery_config::Config;
use chancery_fanout::{ClientEventKind, ClientObserver};
use chancery_tls::{HandshakeResult, PortTls};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::Failure;

/// The maximum time to write the queued records at the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens the audit log, and records the start of the replica.
///
/// # Errors
/// Fails if a file is unusable, or a strict audit log does not take the record.
pub(super) async fn start(config: &Config) -> Result<Audit, Failure> {
    let settings = config.audit.settings().map_err(Failure::new)?;
    let audit = Audit::open(&settings).map_err(Failure::new)?;
    let event = Event::internal("start")
        .detail("version", env!("CARGO_PKG_VERSION"))
        .detail("replica_id", config.raft.replica_id);
    audit.record(event).await.map_err(Failure::new)?;
    Ok(audit)
}

/// Records the end of the replica, and closes the audit log.
pub(super) async fn stop<T>(audit: &Audit, ended: &Result<T, Failure>) {
    let decision = match ended {
        Ok(_) => Decision::Allowed,
        Err(_) => Decision::Failed("failure"),
    };
    audit.note(Event { decision, ..Event::internal("stop") });
    audit.close(CLOSE_TIMEOUT).await;
}

/// Starts the task that reads the policy file again when it changes.
pub(super) fn keep_fresh(audit: &Audit, tasks: &TaskTracker, stop: &CancellationToken) {
    let (audit, stop) = (audit.clone(), stop.clone());
    tasks.spawn(async move { stop.run_until_cancelled(audit.keep_fresh()).await });
}

/// Records failed handshakes of a port.
pub(super) fn observe_handshakes(audit: &Audit, tls: &PortTls, port: Port) {
    let audit = audit.clone();
    tls.observe_refusals(Box::new(move |peer, result| {
        // Health checks and port scanners connect and close.
        if result != HandshakeResult::Closed {
            audit.note_stranger(Event::refused(port, "handshake", Some(peer), result.label()));
        }
    }));
}

/// Records refused streams and polls, and the first secrets of streams.
pub(super) fn observe_clients(audit: &Audit) -> ClientObserver {
    let audit = audit.clone();
    ClientObserver::new(move |client| {
        let (verb, decision) = match client.kind {
            ClientEventKind::Unauthenticated(reason) => ("authenticate", Decision::Refused(reason)),
            ClientEventKind::Refused(reason) => ("stream", Decision::Refused(reason)),
            ClientEventKind::SecretsSent => ("secrets.send", Decision::Allowed),
        };
        let mut event = Event {
            decision,
            source: Some(client.peer),
            target: Target { name: client.node.to_owned(), ..Target::default() },
            ..Event::new(Port::Xds, verb)
        };
        if let Some(principal) = client.principal {
            event.principal = principal.to_string();
        }
        match client.kind {
            ClientEventKind::SecretsSent => audit.note(event),
            _ => audit.note_client(event),
        }
    })
}
