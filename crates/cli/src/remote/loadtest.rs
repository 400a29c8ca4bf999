//! The command `loadtest`: a load test for the fleet of any xDS server.

use std::{fs, io, io::Write as _, path::PathBuf, sync::Arc};

use chancery_fleet_load::{
    self as fleet_load, ClientKind, Plan, Protocol, Report, SCENARIOS, Settings, Writer,
};
use chancery_model::types;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use self::{goal::Goal, writer::AdminWriter};
use super::{client::Servers, mirror::address};
use crate::{
    answer::{Answer, Output},
    failure::Failure,
    text::plain,
};

mod goal;
mod identities;
mod writer;

/// The arguments of `loadtest`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct LoadTest {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare two reports in JSON, phase by phase
    Compare {
        /// The report before a change
        #[arg(value_name = "BEFORE")]
        before: PathBuf,
        /// The report after it
        #[arg(value_name = "AFTER")]
        after: PathBuf,
    },
    /// Print the scenarios of the program, or one as TOML
    Scenarios {
        /// The name of a scenario
        name: Option<String>,
    },
}

/// The flags of a run. They override the scenario.
#[derive(Debug, Args)]
struct Flags {
    /// Connect the clients to the xDS ports at ADDR, in turn; a comma-separated list
    ///
    /// ADDR is HOST:PORT, or https://HOST:PORT if the port uses TLS. A client whose connection ends uses the next address.
    #[arg(
        long,
        value_name = "ADDR",
        default_value = "127.0.0.1:18000",
        value_delimiter = ',',
        value_parser = address::parse
    )]
    xds: Vec<String>,
    /// Take the plan from a scenario of the program, or from a TOML file
    #[arg(long, value_name = "NAME|FILE")]
    scenario: Option<String>,
    /// Number of clients, each with a stream and a node of its own
    #[arg(long, value_name = "N")]
    clients: Option<usize>,
    /// Number of streams that share a connection
    #[arg(long, value_name = "N")]
    streams_per_connection: Option<usize>,
    /// Protocol variant of the aggregated streams
    #[arg(long, value_enum)]
    protocol: Option<Variant>,
    /// IDs of the nodes, where {n} is the number of the client; for servers to which others write
    #[arg(long, value_name = "ID")]
    node_id: Option<String>,
    /// Client that the nodes describe
    #[arg(long, value_enum)]
    client: Option<Client>,
    /// Types to which the clients subscribe, such as cds,lds
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    types: Option<Vec<String>>,
    /// Subscribe to this name instead of all; repeatable
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// Regions of the nodes, in turn
    #[arg(long, value_name = "REGIONS", value_delimiter = ',')]
    regions: Option<Vec<String>>,
    /// Share of clients that read slowly, from 0 to 1
    #[arg(long, value_name = "SHARE")]
    slow: Option<f64>,
    /// Share of clients that acknowledge a second late
    #[arg(long, value_name = "SHARE")]
    late: Option<f64>,
    /// Share of clients that reject all changes
    #[arg(long, value_name = "SHARE")]
    rejecting: Option<f64>,
    /// Number of resources of the test
    #[arg(long, value_name = "N")]
    resources: Option<usize>,
    /// Approximate size of a resource in bytes
    #[arg(long, value_name = "BYTES")]
    resource_bytes: Option<usize>,
    /// Duration of each phase in seconds
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    /// Writes per second in each phase; 0 if only others write
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Resources that a write changes
    #[arg(long, value_name = "N")]
    changes: Option<usize>,
    /// Connections that end and reconnect per second
    #[arg(long, value_name = "N")]
    reconnects: Option<f64>,
    /// Write with a shell command instead of the admin API
    ///
    /// The command reads the changed resources from its standard input: {"resources": [...]}, each as Envoy reads it in JSON.
    /// CHANCERY_LOADTEST_STEP is `prepare`, `write` or `clean-up`.
    #[arg(long, value_name = "COMMAND")]
    write_command: Option<String>,
    /// Find the largest number of clients that meets a goal for the deliveries, such as p99=100ms
    #[arg(long, value_name = "p50|p90|p99|max=TIME")]
    until: Option<Goal>,
    /// Give each connection a certificate of its own, signed by this CA of clients; PEM
    ///
    /// The subject is the node ID of the connection's first client, with the URI spiffe://loadtest/ID.
    #[arg(long, value_name = "FILE", requires = "client_ca_key")]
    client_ca: Option<PathBuf>,
    /// Key of the CA of clients; PEM
    #[arg(long, value_name = "FILE", requires = "client_ca")]
    client_ca_key: Option<PathBuf>,
    /// Number of threads with clients
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Also write the report as an HTML file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// A protocol variant.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Variant {
    Delta,
    Sotw,
}

/// A kind of client.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Client {
    /// Envoy 1.40
    Envoy,
    /// grpc-go 1.85
    Grpc,
}

impl LoadTest {
    /// Runs the command.
    pub(super) async fn run(
        self,
        servers: &Servers,
        answer: &mut Answer<'_>,
    ) -> Result<(), Failure> {
        match self.command {
            Some(Command::Compare { before, after }) => {
                let text = fleet_load::compare(&report_of(&before)?, &report_of(&after)?);
                let text = text.map_err(Failure::new)?;
                answer.text(|out| writeln!(out, "{text}"))
            }
            Some(Command::Scenarios { name: None }) => answer.text(|out| {
                SCENARIOS.iter().try_for_each(|(name, text)| {
                    let about = text.lines().next().unwrap_or_default().trim_start_matches("# ");
                    writeln!(out, "{name:<8} {about}")
                })
            }),
            Some(Command::Scenarios { name: Some(name) }) => {
                let text = scenario(&name)?;
                answer.text(|out| write!(out, "{text}"))
            }
            None => self.flags.run(servers, answer).await,
        }
    }
}

impl Flags {
    async fn run(self, servers: &Servers, answer: &mut Answer<'_>) -> Result<(), Failure> {
        let plan = self.plan()?;
        plan.check().map_err(Failure::new)?;
        let found = match self.until {
            None => self.one(plan, servers).await?,
            Some(goal) => {
                let run = async |clients| self.one(Plan { clients, ..plan.clone() }, servers).await;
                goal.largest(plan.clients, run, say).await?
            }
        };
        if let Some(path) = &self.report {
            let written = fs::write(path, fleet_load::html(&found));
            written.map_err(|error| {
                Failure::new(format_args!("cannot write {}: {error}", path.display()))
            })?;
        }
        let is_good = found.is_good();
        match answer.output {
            Output::Text | Output::Wide => answer.text(|out| writeln!(out, "{}", found.text()))?,
            Output::Json | Output::Sarif => answer.json(&json(&found)?)?,
            Output::Yaml => answer.yaml(&json(&found)?)?,
        }
        if is_good {
            return Ok(());
        }
        Err(Failure::new("the result is not good: see the report"))
    }

    /// Returns the plan of the scenario with the flags.
    fn plan(&self) -> Result<Plan, Failure> {
        let mut plan = match &self.scenario {
            None => Plan::default(),
            Some(name) => Plan::parse(&scenario(name)?)
                .map_err(|error| Failure::new(format_args!("scenario {name}: {error}")))?,
        };
        fn set<T: Clone>(to: &mut T, from: Option<&T>) {
            if let Some(from) = from {
                from.clone_into(to);
            }
        }
        set(&mut plan.clients, self.clients.as_ref());
        set(&mut plan.streams_per_connection, self.streams_per_connection.as_ref());
        set(&mut plan.node_id, self.node_id.as_ref());
        set(&mut plan.types, self.types.as_ref());
        set(&mut plan.regions, self.regions.as_ref());
        set(&mut plan.slow, self.slow.as_ref());
        set(&mut plan.late, self.late.as_ref());
        set(&mut plan.rejecting, self.rejecting.as_ref());
        set(&mut plan.resources, self.resources.as_ref());
        set(&mut plan.resource_bytes, self.resource_bytes.as_ref());
        plan.names.extend_from_slice(&self.name);
        match self.protocol {
            Some(Variant::Delta) => plan.protocol = Protocol::Delta,
            Some(Variant::Sotw) => plan.protocol = Protocol::Sotw,
            None => {}
        }
        match self.client {
            Some(Client::Envoy) => plan.client = ClientKind::Envoy,
            Some(Client::Grpc) => plan.client = ClientKind::Grpc,
            None => {}
        }
        for phase in &mut plan.phases {
            set(&mut phase.seconds, self.seconds.as_ref());
            set(&mut phase.writes_per_second, self.rate.as_ref());
            set(&mut phase.changes, self.changes.as_ref());
            set(&mut phase.reconnects_per_second, self.reconnects.as_ref());
        }
        Ok(plan)
    }

    /// Runs a plan once.
    async fn one(&self, plan: Plan, servers: &Servers) -> Result<Report, Failure> {
        let run = format!("loadtest-{:08x}", fastrand::u32(..));
        let types = plan.types.iter().map(|name| types::by_alias(name).map(|url| url.to_string()));
        let types = types.collect::<Result<Vec<String>, String>>().map_err(Failure::new)?;
        let mut targets = Vec::new();
        for name in &self.xds {
            let (scheme, address) = address::split(name);
            let link = servers.security().of_scheme(scheme, name)?;
            let found = tokio::net::lookup_host(address).await;
            let found = found.map(|mut all| all.next());
            let at = match found {
                Ok(Some(at)) => at,
                Ok(None) => return Err(Failure::new(format_args!("{address:?} has no address"))),
                Err(error) => {
                    let text = format!("cannot resolve {address:?} of --xds: {error}");
                    return Err(Failure::new(text));
                }
            };
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
            targets.push(link.target(host, at)?);
        }
        let identities = match (&self.client_ca, &self.client_ca_key) {
            (Some(ca), Some(key)) => {
                let ca_of_server = servers.security().files().ca.as_deref();
                Some(identities::identities(ca, key, ca_of_server)?)
            }
            _ => None,
        };
        let writer = self.writer(&plan, &run, servers).await?;
        let names = self.xds.clone();
        let settings = Settings { targets, names, types, run, threads: self.threads, identities };
        fleet_load::run(plan, settings, writer, stopped(), say).await.map_err(Failure::new)
    }

    async fn writer(
        &self,
        plan: &Plan,
        run: &str,
        servers: &Servers,
    ) -> Result<Option<Arc<dyn Writer>>, Failure> {
        if plan.phases.iter().all(|phase| phase.writes_per_second <= 0.0) {
            return Ok(None);
        }
        if let Some(command) = &self.write_command {
            return Ok(Some(Arc::new(fleet_load::CommandWriter::new(command.clone()))));
        }
        if !plan.node_id.is_empty() {
            let text = "node IDs of your own would share the scope of the test with nodes of others; use --write-command, \
                        or --rate 0 if others write";
            return Err(Failure::new(text));
        }
        let client = servers.connect_any().await?;
        Ok(Some(Arc::new(AdminWriter::new(client, run))))
    }
}

/// Writes a line about the progress to standard error.
fn say(text: &str) {
    // The test goes on without anybody who reads its progress.
    drop(writeln!(io::stderr(), "{}", plain(text)));
}

/// Waits for a signal that ends the test. Returns the error of the test.
async fn stopped() -> String {
    let signals = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
    let [Ok(mut interrupt), Ok(mut terminate)] = signals else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    "a signal ended the test, which deleted what it had written".to_owned()
}

/// Returns the text of a scenario of the program, or of a file.
fn scenario(name: &str) -> Result<String, Failure> {
    if let Some((_, text)) = SCENARIOS.iter().find(|(known, _)| *known == name) {
        return Ok((*text).to_owned());
    }
    fs::read_to_string(name).map_err(|error| {
        let known: Vec<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
        Failure::new(format_args!(
            "{name:?} is neither a scenario ({}) nor a file: {error}",
            known.join(", ")
        ))
    })
}

/// Reads a report in JSON.
fn report_of(path: &std::path::Path) -> Result<Report, Failure> {
    let failed = |error: String| Failure::new(format_args!("{}: {error}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    serde_json::from_str(&text)
        .map_err(|error| failed(format!("no report of a load test: {error}")))
}

fn json(report: &Report) -> Result<Value, Failure> {
    serde_json::to_value(report).map_err(Failure::new)
}
