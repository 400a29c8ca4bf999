//! The ports on which MCP sources connect (MCP-04), one per source.

use std::{net::SocketAddr, time::Duration};

use chancery_config::{Config, convert};
use chancery_mcp::{Direction, Remote, SinkService, Sources};
use chancery_store::Replica;
use chancery_tls::{PortTls, Security};
use tokio::{net::TcpSocket, runtime::Handle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::service::Routes;

use super::{
    critical::CriticalTasks,
    listen,
    ports::{listen_on, take_port},
};
use crate::Failure;

const KIND: listen::Kind = listen::Kind {
    port: "mcp",
    too_many: "the port for this MCP source has too many connections",
    is_for_streams: true,
};
const LIMITS: listen::Limits = listen::Limits {
    header: Duration::from_secs(10),
    idle: Duration::from_secs(60),
    // A source may send nothing for days.
    body: None,
};

/// The sources of MCP, and the ports of those that connect.
pub(super) struct McpSources {
    pub(super) sources: Sources,
    /// The certificates for connections to sources and sinks.
    pub(super) tls: Option<PortTls>,
    connections_max: usize,
    /// The ports that refuse connections until [`Self::listen`].
    bound: Vec<BoundPort>,
}

/// A port that is bound, but refuses connections.
struct BoundPort {
    socket: TcpSocket,
    address: SocketAddr,
    key: String,
    service: SinkService,
}

impl McpSources {
    /// Returns the addresses of the ports on which sources connect.
    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.bound.iter().map(|port| port.address)
    }

    /// Takes the ports, and starts the tasks of all sources. The end of the process waits for `tasks`.
    ///
    /// # Errors
    /// If a port is in use.
    pub(super) fn start(
        config: &Config,
        replica: &Replica,
        tls: Option<PortTls>,
        (critical, tasks): (&mut CriticalTasks, &TaskTracker),
        drain: &CancellationToken,
    ) -> Result<Self, Failure> {
        let (remotes, id) = (convert::mcp_sources(config), config.raft.replica_id);
        let taken = remotes.iter().filter_map(take).collect::<Result<Vec<_>, _>>()?;
        let (sources, started) = Sources::new(remotes, replica, id, tls.as_ref(), drain);
        for (name, task) in started {
            critical.spawn(name, &Handle::current(), drain, tasks.track_future(task));
        }
        let bound = taken.into_iter().zip(sources.listeners());
        let bound = bound.map(|((key, socket, address), (_, service))| BoundPort {
            socket,
            address,
            key,
            service,
        });
        let connections_max = config.mcp.connections_max;
        Ok(Self { bound: bound.collect(), sources, tls, connections_max })
    }

    /// Opens the ports. Returns the tasks that serve them until `stop`, with their names.
    ///
    /// # Errors
    /// If a port cannot accept connections.
    pub(super) fn listen(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<Vec<(String, impl Future<Output = ()> + Send + use<>)>, Failure> {
        let connections_max = self.connections_max;
        let mut tasks = Vec::with_capacity(self.bound.len());
        for BoundPort { socket, address, key, service } in self.bound.drain(..) {
            let listener = listen_on(&key, socket, address)?;
            let router = Routes::new(service).into_axum_router();
            let security = Security::from(self.tls.clone());
            let stop = stop.clone();
            let served =
                listen::serve(listener, KIND, security, router, connections_max, LIMITS, stop);
            tasks.push((format!("the port of {key}"), served));
        }
        Ok(tasks)
    }
}

/// Takes the port of a source that connects.
fn take(remote: &Remote) -> Option<Result<(String, TcpSocket, SocketAddr), Failure>> {
    let Direction::Listen(address) = remote.direction else { return None };
    let key = format!("mcp.sources: listen of the source {:?}", remote.sink.source);
    let taken = take_port(&key, address);
    Some(taken.map(|(socket, address)| (key, socket, address)))
}
