//! Clients of a frozen scope, in a worker process.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use chancery_fleet_load::stream::Target;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::{
    stats::count,
    wildcard_clients::{Expected, WildcardClients},
};

const PATIENCE: Duration = Duration::from_secs(180);
/// The pause between two looks at the clients.
const PAUSE: Duration = Duration::from_millis(20);

/// The clients of a frozen scope.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) xds: SocketAddr,
    pub(crate) clients: usize,
    /// The number of clusters that the freeze holds. Each client also has the next cluster, of another scope.
    pub(crate) held: usize,
}

/// Connected clients of a frozen scope. Dropping this value closes their connections.
#[derive(Debug, Default)]
pub(crate) struct HeldClients(Option<WildcardClients>);

impl HeldClients {
    /// Closes all connections, connects the clients, and waits until each has received its first response.
    pub(crate) async fn connect(&mut self, load: Load) -> Result<()> {
        self.0 = None;
        let expected = Expected::clusters(load.held + 1);
        let target = Target::new(load.xds, None)?;
        let clients = WildcardClients::connect(target, load.clients, 1, expected).await?;
        let start = Instant::now();
        while clients.totals().responses < count(load.clients) {
            ensure!(
                start.elapsed() < PATIENCE,
                "{} of {} clients have a first response; {}",
                clients.totals().responses,
                load.clients,
                clients.complaints().join("; ")
            );
            sleep(PAUSE).await;
        }
        self.0 = Some(clients);
        Ok(())
    }

    /// Returns the number of resources that the clients have received.
    pub(crate) fn received(&self) -> Result<u64> {
        Ok(self.0.as_ref().context("no client is connected")?.totals().resources)
    }

    /// Waits until all clients have acknowledged all resources.
    pub(crate) async fn synced(&self) -> Result<()> {
        let clients = self.0.as_ref().context("no client is connected")?;
        clients.synced(PATIENCE).await?;
        ensure!(clients.totals().wrong == 0, "{}", clients.complaints().join("; "));
        Ok(())
    }
}
