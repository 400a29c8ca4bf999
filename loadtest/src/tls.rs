//! The cost of mutual TLS, compared with plaintext in one run.
//!
//! Three measurements follow one another: the server CPU of a delivery (`fanout`), the server memory of an idle client
//! (`idle`), and the time until thousands of clients that reconnect at once are current (the clients of `storm`). Each
//! has a server of either kind. In the reconnects, server and clients use all CPUs, and their CPU time is reported.

use std::{fmt::Write as _, path::Path};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::{
    author::Author,
    certificates::Security,
    common::Common,
    fanout,
    host::Pinning,
    idle,
    report::{Findings, Gate, say},
    resource::Content,
    server::{Launch, Server},
    stats::{Latencies, Spread},
    storm::clients::Load,
    worker::{Order, Worker},
};

/// Compare mutual TLS with plaintext: CPU per delivery, memory per idle client, reconnects
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Clusters of about 1 KB that each client sees
    #[arg(long, default_value_t = 100)]
    resources: usize,
    /// Wildcard delta streams that receive each update, each with its own connection
    #[arg(long, default_value_t = 100)]
    streams: usize,
    /// Updates per turn
    #[arg(long, default_value_t = 300)]
    updates: usize,
    /// Rounds of each measurement
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Idle clients of each kind
    #[arg(long, default_value_t = 4000)]
    idle_clients: usize,
    /// Maximum wait for stable RSS, in seconds
    #[arg(long, default_value_t = 15)]
    settle_seconds: u64,
    /// Clients that reconnect at once: one quarter is new to delta, one quarter resumes a wildcard,
    /// one quarter resumes names, and one quarter speaks SotW
    #[arg(long, default_value_t = 4000)]
    clients: usize,
    /// Maximum ratio of the CPU per delivery to that of plaintext
    #[arg(long, default_value_t = 1.5)]
    ratio_max: f64,
    /// Maximum KB of RSS that an idle client with its own connection takes more than with plaintext
    #[arg(long, default_value_t = 12.0)]
    kb_max: f64,
    /// Maximum seconds until all reconnecting clients with mutual TLS are current
    #[arg(long, default_value_t = 5.0)]
    seconds_max: f64,
    /// Let server and clients run on any CPU, instead of one CPU for each of them
    #[arg(long)]
    no_pin: bool,
}

/// The reconnects at one server.
#[derive(Debug, Serialize)]
struct Reconnects {
    security: Security,
    /// Seconds until the last client was current.
    seconds: Spread,
    /// The CPU seconds of the server and of the clients until then.
    server_cpu: Spread,
    clients_cpu: Spread,
    /// The times until a client was current, in the last round.
    last: Latencies,
}

/// A server and the process with its clients.
struct Side {
    security: Security,
    server: Server,
    worker: Worker,
    order: Order,
    /// By round.
    seconds: Vec<f64>,
    server_cpu: Vec<f64>,
    clients_cpu: Vec<f64>,
    last: Latencies,
}

impl Args {
    pub(crate) fn pinning(&self) -> Result<Pinning> {
        if self.no_pin { Ok(Pinning::NONE) } else { Pinning::apart() }
    }

    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        let deliveries = self.fanout().run(common, &dir.join("deliveries")).await?;
        let idle = self.idle(common, &dir.join("idle")).await?;
        common.pinning.undo()?;
        let reconnects = self.reconnects(common, &dir.join("reconnects")).await?;
        let mut all = Findings {
            text: String::new(),
            data: serde_json::json!({
                "deliveries": deliveries.data, "idle": idle.data, "reconnects": reconnects.data,
            }),
            gates: Vec::new(),
        };
        for findings in [deliveries, idle, reconnects] {
            writeln!(all.text, "{}\n", findings.text.trim_end())?;
            all.gates.extend(findings.gates);
        }
        Ok(all)
    }

    fn fanout(&self) -> fanout::Args {
        fanout::Args {
            content: Content::Clusters,
            compares_tls: true,
            resources: vec![self.resources],
            streams: self.streams,
            streams_per_connection: 1,
            updates: self.updates,
            rounds: self.rounds,
            ratio_max: self.ratio_max,
            no_pin: self.no_pin,
        }
    }

    async fn idle(&self, common: &Common, dir: &Path) -> Result<Findings> {
        let idle = idle::Args {
            clients: self.idle_clients,
            resources: self.resources,
            rounds: self.rounds,
            settle_seconds: self.settle_seconds,
            kb_max: f64::INFINITY,
            no_pin: self.no_pin,
        };
        let plaintext = idle.rows(common, &dir.join("plaintext"), Security::Plaintext).await?;
        let tls = idle.rows(common, &dir.join("tls"), Security::MutualTls).await?;
        let (mut text, mut gates) = (String::new(), Vec::new());
        writeln!(text, "{} idle clients of each kind, KB of RSS each", self.idle_clients)?;
        for (plaintext, tls) in plaintext.iter().zip(&tls) {
            let more = tls.kb_each.median - plaintext.kb_each.median;
            writeln!(
                text,
                "  {:<42} plaintext {:.1}, mutual TLS {:.1}, difference {more:.1}",
                tls.kind.text(),
                plaintext.kb_each,
                tls.kb_each
            )?;
            let what = match tls.kind {
                idle::Kind::Connected => {
                    "KB of RSS per connection without a stream, more than with plaintext"
                }
                idle::Kind::Subscribed => {
                    "KB of RSS per subscribed connection, more than with plaintext"
                }
                idle::Kind::SubscribedTogether => continue,
            };
            gates.push(Gate::at_most(what, more, self.kb_max));
        }
        let data = serde_json::json!({"plaintext": plaintext, "mutual_tls": tls});
        Ok(Findings { text, data, gates })
    }

    async fn reconnects(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(self.clients > 0, "--clients must be above 0");
        let mut sides = Vec::new();
        for security in [Security::Plaintext, Security::MutualTls] {
            let dir = dir.join(sides.len().to_string());
            sides.push(self.side(common, &dir, security).await?);
        }
        for round in 1..=self.rounds {
            for side in &mut sides {
                side.reconnect().await?;
                say!("{}, round {round} of {}: {}", side.security, self.rounds, side.last);
            }
        }
        let (mut text, mut gates, mut rows) = (String::new(), Vec::new(), Vec::new());
        writeln!(
            text,
            "{} clients that reconnect at once, views of {} resources",
            self.clients, self.resources
        )?;
        for side in sides {
            let row = side.row().context("there are no rounds")?;
            writeln!(text, "  {}: the last is current after {:.2} s", row.security, row.seconds)?;
            writeln!(
                text,
                "    CPU of the server {:.2} s, of the clients {:.2} s; last round: {}",
                row.server_cpu, row.clients_cpu, row.last
            )?;
            if row.security == Security::MutualTls {
                let what = "seconds until all clients with mutual TLS are current, median";
                gates.push(Gate::at_most(what, row.seconds.median, self.seconds_max));
            }
            rows.push(row);
        }
        Ok(Findings { text, data: serde_json::json!(rows), gates })
    }

    async fn side(&self, common: &Common, dir: &Path, security: Security) -> Result<Side> {
        let (config, tls) = security.prepare(dir)?;
        let server = Launch::new(&common.binary, dir, None, &config)?.start().await?;
        let mut author = Author::connect(server.admin).await?;
        let load = Load::publish(&mut author, server.xds, self.clients, self.resources).await?;
        let order = Order::Storm(Load { tls, ..load });
        let mut worker = Worker::start(0)?;
        let last: Latencies = worker.ask(&order).await?;
        say!("{security}: {} clients connected: {last}", self.clients);
        let (seconds, server_cpu, clients_cpu) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Side { security, server, worker, order, seconds, server_cpu, clients_cpu, last })
    }
}

impl Side {
    /// Closes all connections and connects all clients at once.
    async fn reconnect(&mut self) -> Result<()> {
        let (server, clients) = (self.server.process(), self.worker.process());
        let (server_before, clients_before) = (server.cpu_time()?, clients.cpu_time()?);
        self.last = self.worker.ask(&self.order).await?;
        self.seconds.push(self.last.max_ms / 1e3);
        let (server, clients) = (server.cpu_time()?, clients.cpu_time()?);
        self.server_cpu.push((server - server_before).total().as_secs_f64());
        self.clients_cpu.push((clients - clients_before).total().as_secs_f64());
        Ok(())
    }

    fn row(self) -> Option<Reconnects> {
        Some(Reconnects {
            security: self.security,
            seconds: Spread::of(&self.seconds)?,
            server_cpu: Spread::of(&self.server_cpu)?,
            clients_cpu: Spread::of(&self.clients_cpu)?,
            last: self.last,
        })
    }
}
