//! The clients that are connected: to this replica, and to the others, as they were last listed.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use chancery_admin_proto::v1 as pb;
use chancery_admission::{ConnectedClient, ConnectedClients};
use chancery_fanout::{ClientGroup, Fanout};
use chancery_model::Revision;
use chancery_store::{Answers, Question, Replica};
use tokio::sync::Mutex as AsyncMutex;

use crate::fleet_messages::{CLIENTS, LIMITS, add_clients, failed, not_asked};

/// The maximum number of groups of clients that are read on a thread that serves requests.
const INLINE_GROUPS_MAX: usize = 500;
/// The maximum age of a list: of the clients of this replica if they form more than [`INLINE_GROUPS_MAX`] groups, and of
/// the clients of other replicas.
const CLIENTS_AGE_MAX: Duration = Duration::from_secs(10);
/// The maximum age of the numbers of clients of this replica.
const COUNTS_AGE_MAX: Duration = Duration::from_secs(1);
/// The age from which a write lets the clients of other replicas be listed again, without waiting for the list.
const RENEWAL_AGE: Duration = Duration::from_secs(1);

/// The clients of each scope in the latest lists.
#[derive(Clone, Default)]
pub(crate) struct KnownClients(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// The clients of this replica, with the version of their groups.
    here: Mutex<Option<(u64, Listed<ConnectedClients>)>>,
    /// Locked while the clients of this replica are listed.
    listing: Arc<AsyncMutex<()>>,
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
    /// Returns the clients of this replica. If they form more than [`INLINE_GROUPS_MAX`] groups, the list may be
    /// [`CLIENTS_AGE_MAX`] old.
    pub(crate) async fn here(&self, fanout: &Fanout) -> Arc<ConnectedClients> {
        self.here_within(fanout, CLIENTS_AGE_MAX).await
    }

    /// Returns the clients of this replica at the time of the call.
    pub(crate) async fn here_now(&self, fanout: &Fanout) -> Arc<ConnectedClients> {
        self.here_within(fanout, Duration::ZERO).await
    }

    async fn here_within(&self, fanout: &Fanout, age_max: Duration) -> Arc<ConnectedClients> {
        if let Some(clients) = self.listed(fanout, age_max) {
            return clients;
        }
        // Clients choose their user agents, so there may be as many groups as streams.
        if fanout.clients_version().1 <= INLINE_GROUPS_MAX {
            return self.list(fanout);
        }
        let listing = Arc::clone(&self.0.listing).lock_owned().await;
        // Another write may have listed them meanwhile.
        if let Some(clients) = self.listed(fanout, age_max) {
            return clients;
        }
        let (this, fanout) = (self.clone(), fanout.clone());
        let list = move || {
            // Held until the work is done, also if the caller is gone.
            let _listing = listing;
            this.list(&fanout)
        };
        // While the replica shuts down, nothing is known about its clients.
        tokio::task::spawn_blocking(list).await.unwrap_or_default()
    }

    /// Returns the clients of this replica in the latest list, if it is current or may be that old.
    fn listed(&self, fanout: &Fanout, age_max: Duration) -> Option<Arc<ConnectedClients>> {
        let (version, n_groups) = fanout.clients_version();
        let known = self.0.here.lock().ok()?;
        let (of, (time, clients)) = known.as_ref()?;
        let is_recent = n_groups > INLINE_GROUPS_MAX && time.elapsed() < age_max;
        // The numbers of clients change without a new version.
        let is_current = *of == version && time.elapsed() < COUNTS_AGE_MAX;
        (is_current || is_recent).then(|| Arc::clone(clients))
    }

    fn list(&self, fanout: &Fanout) -> Arc<ConnectedClients> {
        let time = Instant::now();
        let (version, groups) = fanout.clients();
        let clients = Arc::new(by_scope(&groups));
        let Ok(mut known) = self.0.here.lock() else { return clients };
        if known.as_ref().is_none_or(|(of, _)| *of <= version) {
            let old = known.replace((version, (time, Arc::clone(&clients))));
            drop(known);
            drop(old);
        }
        clients
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
                match self::latest(&self.0.elsewhere) {
                    Some((age, known)) if age <= RENEWAL_AGE => known,
                    _ => self.ask(replica).await,
                }
            }
        }
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
fn by_scope(groups: &[(Arc<ClientGroup>, u64)]) -> ConnectedClients {
    let mut clients = ConnectedClients::new();
    for (group, n) in groups {
        let client = ConnectedClient::of_user_agent(&group.user_agent);
        for scope in &group.scopes {
            *clients.entry(scope.clone()).or_default().entry(client).or_default() += n;
        }
    }
    clients
}
