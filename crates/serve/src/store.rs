//! Opening and closing the store.

use std::{io, time::Duration};

use chancery_config::{Loaded, convert};
use chancery_store::{OpenError, OpenProgress, Replica};
use tokio::time::timeout;
use tracing::{info, warn};

use super::signals::{self, Signals};
use crate::Failure;

/// The maximum time for the store to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time after a signal in which a store that is nearly open may finish opening, to be closed in
/// order. A store that waits for other replicas is given up.
const OPEN_GRACE: Duration = Duration::from_secs(1);

/// The result of opening the store.
pub(super) enum Opened {
    Replica(Replica),
    /// A signal arrived while the store was being opened. The replica, if any, must be closed.
    Ended(Option<Replica>),
}

/// Opens the store. It may wait for other replicas without a limit; a signal ends the wait.
pub(super) async fn open(
    loaded: &Loaded,
    progress: &OpenProgress,
    signals: &mut Signals,
) -> Result<Opened, Failure> {
    let opening = open_and_listen(loaded, progress);
    tokio::pin!(opening);
    let signal = tokio::select! {
        opened = &mut opening => return opened.map(Opened::Replica),
        signal = signals.next() => signal,
    };
    info!(signal, "ending before the store is open");
    tokio::select! {
        opened = timeout(OPEN_GRACE, opening) => match opened {
            Ok(Ok(replica)) => Ok(Opened::Ended(Some(replica))),
            Ok(Err(failure)) => Err(failure),
            // Dropping the future stops all requests to other replicas. This replica has not
            // acknowledged anything.
            Err(_) => Ok(Opened::Ended(None)),
        },
        () = signals.second() => signals::end_now(),
    }
}

/// Opens the store. If the default address is in use, possibly by another replica on the same
/// machine, a cluster of one replica continues without listening.
async fn open_and_listen(loaded: &Loaded, progress: &OpenProgress) -> Result<Replica, Failure> {
    let config = convert::store(&loaded.config);
    let must_listen = loaded.is_given("raft.address") || loaded.config.raft.names_others();
    let (address, source) = match Replica::open_reporting(config.clone(), progress).await {
        Ok(replica) => return Ok(replica),
        Err(OpenError::Listen { address, source }) => (address, source),
        Err(error) => return Err(Failure::new(error)),
    };
    let refused = format!("cannot listen on {address} (raft.address): {source}");
    if must_listen || source.kind() != io::ErrorKind::AddrInUse {
        return Err(Failure::new(refused));
    }
    let alone = chancery_store::Config { listen: None, ..config };
    let replica = Replica::open_reporting(alone, progress).await.map_err(Failure::new)?;
    let status = replica.status();
    if status.voters.len() + status.learners.len() > 1 {
        drop(replica.shutdown().await);
        return Err(Failure::new(format_args!(
            "{refused}; the other replicas of the cluster could not reach this one"
        )));
    }
    warn!(
        "{refused}; continuing as a cluster of one replica, which no other replica can join; set another address \
         (--raft) to add replicas"
    );
    Ok(replica)
}

/// Closes the store within a bounded time.
pub(super) async fn close(replica: &Replica, signals: &mut Signals) -> Result<(), Failure> {
    let closed = tokio::select! {
        closed = timeout(CLOSE_TIMEOUT, replica.shutdown()) => closed,
        () = signals.second() => signals::end_now(),
    };
    match closed {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Failure::new(error)),
        Err(_) => {
            Err(Failure::new(format_args!("the store has not closed within {CLOSE_TIMEOUT:?}")))
        }
    }
}
