//! The clients that are connected, as they were last listed: to this replica, and to the others.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use chancery_admin_proto::v1 as pb;
use chancery_admission::{ClientProfile, ConnectedClients};
use chancery_fanout::ClientGroup;
use chancery_model::Revision;
use chancery_store::{Answers, Question, Replica};
use tokio::sync::Mutex as AsyncMutex;

use crate::fleet_messages::{CLIENTS, LIMITS, add_clients, failed, not_asked};

/// The maximum age of a list: of the clients of this replica with more streams than `INLINE_STREAMS_MAX`, and of the
/// clients of other replicas.
const CLIENTS_AGE_MAX: Duration = Duration::from_secs(10);
/// The age from which a write lets the clients of other replicas be listed again, without waiting for the list.
const RENEWAL_AGE: Duration = Duration::from_secs(1);

/// The clients of each scope in the latest lists.
#[derive(Clone, Default)]
pub(crate) struct KnownClients(Arc<Shared>);

#[derive(Default)]
struct Shared {
    here: Mutex<Option<Listed<ConnectedClients>>>,
    elsewhere: Mutex<Option<Listed<ClientsElsewhere>>>,
    /// Locked while the other replicas are asked.
    asking: AsyncMutex<()>,
}

/// The time of a list, and its clients.
type Listed<T> = (Instant, Arc<T>);

/// The clients of the other replicas.
#[derive(Debug, Default)]
pub(crate) struct ClientsElsewhere {
    pub(crate) clients: Arc<ConnectedClients>,
    /// The replicas whose clients are not known.
    pub(crate) not_asked: Vec<pb::ReplicaNotAsked>,
}

impl KnownClients {
    /// Returns the clients of this replica in the latest list, unless it is too old.
    pub(crate) fn recent(&self) -> Option<Arc<ConnectedClients>> {
        let (age, clients) = latest(&self.0.here)?;
        (age <= CLIENTS_AGE_MAX).then_some(clients)
    }

    pub(crate) fn put(&self, clients: &Arc<ConnectedClients>) {
        put(&self.0.here, clients);
    }

    /// Returns the clients of the other replicas. A write waits for their answers only if the latest ones are too
    /// old.
    pub(crate) async fn elsewhere(&self, replica: &Replica) -> Arc<ClientsElsewhere> {
        if replica.n_members() < 2 {
            return Arc::default();
        }
        let latest = latest(&self.0.elsewhere);
        match latest {
            Some((age, known)) if age <= CLIENTS_AGE_MAX => {
                if age > RENEWAL_AGE {
                    let (this, replica) = (self.clone(), replica.clone());
                    tokio::spawn(async move {
                        if let Ok(_asking) = this.0.asking.try_lock() {
                            drop(this.ask(&replica).await);
                        }
                    });
                }
                known
            }
            _ => {
                let _asking = self.0.asking.lock().await;
                // Another write may have asked meanwhile.
                match self.answered() {
                    Some((age, known)) if age <= RENEWAL_AGE => known,
                    _ => self.ask(replica).await,
                }
            }
        }
    }

    /// Returns the latest clients of the other replicas, and their age.
    pub(crate) fn answered(&self) -> Option<(Duration, Arc<ClientsElsewhere>)> {
        latest(&self.0.elsewhere)
    }

    async fn ask(&self, replica: &Replica) -> Arc<ClientsElsewhere> {
        // The clients do not depend on the state.
        let question = Question { kind: CLIENTS, body: Bytes::new(), revision: Revision(0) };
        let answers = replica.ask_all(question, LIMITS).await;
        let merged = tokio::task::spawn_blocking(move || merge(answers)).await;
        let clients = Arc::new(merged.unwrap_or_default());
        put(&self.0.elsewhere, &clients);
        clients
    }
}

fn latest<T>(list: &Mutex<Option<Listed<T>>>) -> Option<(Duration, Arc<T>)> {
    let list = list.lock().ok()?;
    let (time, clients) = list.as_ref()?;
    Some((time.elapsed(), Arc::clone(clients)))
}

fn put<T>(list: &Mutex<Option<Listed<T>>>, clients: &Arc<T>) {
    if let Ok(mut list) = list.lock() {
        *list = Some((Instant::now(), Arc::clone(clients)));
    }
}

fn merge(answers: Answers) -> ClientsElsewhere {
    let mut not_asked: Vec<_> = answers.unanswered.iter().map(not_asked).collect();
    let mut clients = ConnectedClients::new();
    for (replica_id, pages) in answers.answered {
        let added = pages.into_iter().try_for_each(|page| add_clients(&mut clients, page));
        not_asked.extend(added.err().map(|reason| failed(replica_id, &reason)));
    }
    ClientsElsewhere { clients: Arc::new(clients), not_asked }
}

/// Returns the clients of each scope.
pub(crate) fn by_scope(groups: &BTreeSet<ClientGroup>) -> ConnectedClients {
    let mut clients = ConnectedClients::new();
    for group in groups {
        let profile = ClientProfile::of_user_agent(&group.user_agent);
        for scope in &group.scopes {
            match clients.get_mut(scope) {
                Some(profiles) => drop(profiles.insert(profile)),
                None => drop(clients.insert(scope.clone(), BTreeSet::from([profile]))),
            }
        }
    }
    clients
}
