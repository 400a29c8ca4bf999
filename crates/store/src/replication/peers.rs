//! The connections to other replicas.

use std::{collections::HashMap, fmt, net::SocketAddr, sync::Arc, time::Duration};

use chancery_raft_proto::v1::{self as pb, replication_client::ReplicationClient};
use chancery_tls::HANDSHAKE_TIMEOUT;
use parking_lot::Mutex;
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use crate::{
    format::{
        identity::Identity,
        raft::{LogId, Peer, StoredMembership},
        raft_codec::log_id_to_proto,
    },
    replication::{acknowledged::Acknowledged, codec, connection, refusal_log::Refusals, tls::Tls},
};

/// The maximum time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The time after which the client sends a keepalive ping.
///
/// After a partition, pings detect dead connections earlier than TCP does.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum time for the answer to a keepalive ping.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(2);
/// The same on a connection for snapshots, where an answer may wait behind all data in transit. `transfer`
/// detects a stalled snapshot.
const BULK_KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(600);

/// The connection to a replica that a call uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// Heartbeats, votes and other short calls.
    Control,
    /// Entries and writes.
    Data,
    /// Snapshots.
    Bulk,
    /// Questions, whose answers may be long.
    Questions,
}

impl Lane {
    fn keepalive_timeout(self) -> Duration {
        match self {
            Self::Control | Self::Data | Self::Questions => KEEPALIVE_TIMEOUT,
            Self::Bulk => BULK_KEEPALIVE_TIMEOUT,
        }
    }
}

/// The connections to other replicas, by address. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Peers(Arc<Shared>);

struct Shared {
    message_bytes_max: usize,
    /// `None`: connections are not encrypted.
    tls: Option<Tls>,
    channels: Mutex<HashMap<(String, Lane), Channel>>,
    /// The current members. openraft keeps a connection when the address of a member changes.
    members: Mutex<Members>,
    acknowledged: Acknowledged,
    refusals: Refusals,
}

/// The current members.
#[derive(Default)]
struct Members {
    /// The entry that established the membership; `None` before there is one.
    id: Option<LogId>,
    peers: HashMap<u64, Peer>,
}

/// A client of one replica.
pub(crate) type Client = ReplicationClient<Channel>;

impl Peers {
    /// Creates an instance without connections. `message_bytes_max` is the maximum length of a message in
    /// bytes.
    pub(crate) fn new(message_bytes_max: usize, tls: Option<Tls>) -> Self {
        let (channels, members) = (Mutex::default(), Mutex::default());
        let (acknowledged, refusals) = (Acknowledged::default(), Refusals::default());
        Self(Arc::new(Shared { message_bytes_max, tls, channels, members, acknowledged, refusals }))
    }

    /// Returns the certificates; `None` if connections are not encrypted.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.0.tls.as_ref()
    }

    /// Sets the members and their addresses, and drops the connections to all other addresses.
    pub(crate) fn update(&self, membership: &StoredMembership) {
        let mut members = self.0.members.lock();
        if members.id == *membership.log_id() {
            return;
        }
        let peers: HashMap<u64, Peer> =
            membership.nodes().map(|(id, peer)| (*id, peer.clone())).collect();
        let known = |address: &String| peers.values().any(|peer| peer.address == *address);
        self.0.channels.lock().retain(|(address, _), _| known(address));
        self.0.acknowledged.retain(membership);
        *members = Members { id: *membership.log_id(), peers };
    }

    /// Returns the log entries that other replicas acknowledged to this one.
    pub(crate) fn acknowledged(&self) -> &Acknowledged {
        &self.0.acknowledged
    }

    /// Returns the header of a call of this replica to a member.
    pub(crate) fn header(&self, identity: Identity, to: u64) -> pb::Header {
        let members = self.0.members.lock();
        pb::Header {
            to_instance: members.peers.get(&to).map_or(0, |peer| peer.instance),
            membership_id: members.id.as_ref().map(log_id_to_proto),
            ..codec::header(identity, to)
        }
    }

    /// Returns a member; `None` if the membership does not name it.
    pub(crate) fn member(&self, id: u64) -> Option<Peer> {
        self.0.members.lock().peers.get(&id).cloned()
    }

    /// Returns the log of calls that other replicas refused.
    pub(crate) fn refusals(&self) -> &Refusals {
        &self.0.refusals
    }

    /// Returns a client of the replica at `address`. The client connects on first use, and again after the
    /// connection breaks. The caller must be on the runtime of the store, here and when it uses the client.
    pub(crate) fn client(&self, address: &str, lane: Lane) -> Result<Client, Status> {
        let mut channels = self.0.channels.lock();
        let channel = match channels.get(&(address.to_owned(), lane)) {
            Some(channel) => channel.clone(),
            None => {
                let channel = self.connect(address, None, lane)?;
                channels.insert((address.to_owned(), lane), channel.clone());
                channel
            }
        };
        Ok(self.client_of(channel))
    }

    /// Returns a client of one of the replicas to which the name in `address` resolves. The connection ends with the
    /// client.
    pub(crate) fn client_at(&self, address: &str, at: SocketAddr) -> Result<Client, Status> {
        Ok(self.client_of(self.connect(address, Some(at), Lane::Control)?))
    }

    fn client_of(&self, channel: Channel) -> Client {
        let max = self.0.message_bytes_max;
        ReplicationClient::new(channel)
            .max_decoding_message_size(max)
            .max_encoding_message_size(max)
    }

    fn connect(
        &self,
        address: &str,
        at: Option<SocketAddr>,
        lane: Lane,
    ) -> Result<Channel, Status> {
        let authority = match (at, &self.0.tls) {
            (Some(at), None) => at.to_string(),
            // The certificate of the replica has the name.
            _ => address.to_owned(),
        };
        let endpoint = Endpoint::from_shared(format!("http://{authority}")).map_err(|error| {
            Status::invalid_argument(format!(
                "{address:?} is not the address of a replica: {error}"
            ))
        })?;
        let connect_timeout = match self.0.tls {
            Some(_) => CONNECT_TIMEOUT + HANDSHAKE_TIMEOUT,
            None => CONNECT_TIMEOUT,
        };
        let endpoint = endpoint
            .connect_timeout(connect_timeout)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(lane.keepalive_timeout())
            .keep_alive_while_idle(true)
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(8 << 20);
        Ok(match &self.0.tls {
            Some(tls) => connection::connect_lazily(&endpoint, address, at, tls),
            None => endpoint.connect_lazy(),
        })
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").finish_non_exhaustive()
    }
}
