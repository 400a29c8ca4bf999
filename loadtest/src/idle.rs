//! The memory cost of idle clients: RSS per connection and per stream.
//!
//! The test takes the kinds in turns: it opens the clients, waits until RSS is stable, and closes
//! them. The cost of a client is the rise of RSS, divided by the number of clients.

use std::{
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use chancery_fleet_load::stream::{self, Target, Windows};
use serde::Serialize;
use tokio::{task::JoinSet, time::sleep};

use crate::{
    author::Author,
    certificates::Security,
    common::Common,
    host::{Pinning, mb},
    memory::at_rest,
    report::{Findings, Gate, say},
    server::Server,
    stats::{Spread, count, float},
    wildcard_clients::{Expected, WildcardClients},
};

const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);
const CONNECTIONS: &str = "chancery_xds_connections";
/// The number of streams per connection, for clients that share connections.
const TOGETHER: usize = 100;

/// Measure server memory per idle client
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Clients of each kind
    #[arg(long, default_value_t = 4000)]
    pub(crate) clients: usize,
    /// Clusters of about 1 KB that each subscribed client receives
    #[arg(long, default_value_t = 10)]
    pub(crate) resources: usize,
    /// Rounds; each opens every kind once
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Maximum wait for stable RSS, in seconds; the server closes a connection without streams
    /// after 30
    #[arg(long, default_value_t = 15)]
    pub(crate) settle_seconds: u64,
    /// Maximum KB of RSS per subscribed client with its own connection
    #[arg(long, default_value_t = 64.0)]
    pub(crate) kb_max: f64,
    /// Let server and clients run on any CPU, instead of one CPU for each of them
    #[arg(long)]
    pub(crate) no_pin: bool,
}

/// The kinds of idle clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// The client connects and opens no stream.
    Connected,
    /// The client opens a stream on its own connection, subscribes, and acknowledges everything.
    Subscribed,
    /// The same, with many streams per connection.
    SubscribedTogether,
}

/// The cost of one kind.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) kind: Kind,
    pub(crate) kb_each: Spread,
    with_mb: Spread,
}

/// Open clients. Dropping them closes their connections.
enum Idle {
    Connections { _tasks: JoinSet<()> },
    Streams { _clients: WildcardClients },
}

impl Kind {
    const ALL: [Self; 3] = [Self::Connected, Self::Subscribed, Self::SubscribedTogether];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Connected => "connection without a stream",
            Self::Subscribed => "subscribed stream with its own connection",
            Self::SubscribedTogether => "subscribed stream, 100 per connection",
        }
    }
}

impl Args {
    pub(crate) fn pinning(&self) -> Result<Pinning> {
        if self.no_pin { Ok(Pinning::NONE) } else { Pinning::apart() }
    }

    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        self.findings(&self.rows(common, dir, Security::Plaintext).await?)
    }

    /// Measures every kind of client at one server.
    pub(crate) async fn rows(
        &self,
        common: &Common,
        dir: &Path,
        security: Security,
    ) -> Result<Vec<Row>> {
        ensure!(
            self.rounds > 0 && self.clients > 0 && self.resources > 0,
            "--rounds, --clients and --resources must be above 0"
        );
        let (server, target) = security.start(common, dir, common.pinning.server).await?;
        Author::connect(server.admin).await?.load(0, self.resources).await?;
        let mut found = Kind::ALL.map(|kind| (kind, Vec::new(), Vec::new()));
        for round in 1..=self.rounds {
            for (kind, each, with) in &mut found {
                let before = self.rest(&server).await?;
                let idle = self.open(&target, *kind).await?;
                let rss = self.rest(&server).await?;
                drop(idle);
                gone(&server).await?;
                each.push((float(rss) - float(before)) / float(count(self.clients)) / 1e3);
                with.push(mb(rss));
            }
            say!("{security}, round {round} of {}", self.rounds);
        }
        server.kill().await?;
        found
            .into_iter()
            .map(|(kind, each, with)| {
                let kb_each = Spread::of(&each).context("no rounds")?;
                Ok(Row { kind, kb_each, with_mb: Spread::of(&with).context("no rounds")? })
            })
            .collect()
    }

    async fn open(&self, target: &Target, kind: Kind) -> Result<Idle> {
        let together = match kind {
            Kind::Connected => {
                let mut tasks = JoinSet::new();
                for _ in 0..self.clients {
                    let (sender, connection) =
                        stream::connect(target.clone(), Windows::ENVOY).await?;
                    tasks.spawn(async move {
                        let _sender = sender;
                        // The server may close the connection, because it is idle.
                        drop(connection.await);
                    });
                }
                return Ok(Idle::Connections { _tasks: tasks });
            }
            Kind::Subscribed => 1,
            Kind::SubscribedTogether => TOGETHER,
        };
        let expected = Expected::clusters(self.resources);
        let clients =
            WildcardClients::connect(target.clone(), self.clients, together, expected).await?;
        clients.synced(PATIENCE).await?;
        Ok(Idle::Streams { _clients: clients })
    }

    async fn rest(&self, server: &Server) -> Result<u64> {
        at_rest(server.process(), Duration::from_secs(self.settle_seconds)).await
    }

    fn findings(&self, rows: &[Row]) -> Result<Findings> {
        let mut text = String::new();
        writeln!(text, "{} clients of each kind, {} rounds", self.clients, self.rounds)?;
        let mut gates = Vec::new();
        for row in rows {
            let Row { kind, kb_each, with_mb } = row;
            writeln!(
                text,
                "  {:<42} {kb_each:.1} KB each; RSS with them {with_mb:.1} MB",
                kind.text()
            )?;
            if *kind == Kind::Subscribed {
                gates.push(Gate::at_most(
                    "KB of RSS per subscribed stream with its own connection, median",
                    kb_each.median,
                    self.kb_max,
                ));
            }
        }
        Ok(Findings { text, data: serde_json::json!({ "kinds": rows }), gates })
    }
}

/// Waits until the server counts no connections.
async fn gone(server: &Server) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let connections = server.metrics().await?.sum(CONNECTIONS)?;
        if connections < 0.5 {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "the server still counts {connections} connections of clients that have left"
        );
        sleep(POLL).await;
    }
}
