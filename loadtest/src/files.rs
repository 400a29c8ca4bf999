//! Idle connections to replicas that may open few files.
//!
//! Three replicas run with a low limit of open files. Connections from other addresses arrive at all of their ports, as
//! fast as the client can open them, and stay open: silent ones, ones with the start of HTTP/2, ones with half a
//! header, and ones that have made a request. Meanwhile an author writes through each replica in turn, and health
//! checks go on. Then the connections end, and all replicas must have the same state and no failure.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    author::Author,
    cluster::Cluster,
    common::Common,
    process::Process,
    report::{Findings, Gate, say},
    resource,
    server::{self, Ports},
    stats::{count, float},
};

const REPLICAS: usize = 3;
/// The number of addresses from which connections come, other than those of the author and the health checks.
const ADDRESSES: usize = 8;
/// The maximum time of an attempt: connections may wait to be accepted.
const ATTEMPT: Duration = Duration::from_secs(10);
/// The maximum time of a health check, as that of Kubernetes.
const HEALTH: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);
/// Open files of this process other than the connections.
const OWN_FILES: u64 = 500;
/// The bytes that connections send before they stay idle.
const GREETINGS: [&[u8]; 4] = [
    b"",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    b"GET /healthz HTTP/1.1\r\nhost:",
    b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
];

/// Flood three replicas that may open few files with idle connections
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Limits of open files of each replica
    #[arg(long, value_delimiter = ',', default_values_t = [256, 1024, 20_000])]
    files: Vec<u64>,
    /// Connection attempts for each limit, to all ports of all replicas
    #[arg(long, default_value_t = 50_000)]
    attempts: usize,
    /// Concurrent attempts
    #[arg(long, default_value_t = 64)]
    concurrent: usize,
}

/// The measurements with one limit of open files.
#[derive(Debug, Default, Serialize)]
struct Row {
    files: u64,
    attempts: BTreeMap<&'static str, usize>,
    seconds: f64,
    /// The highest number of open files of a replica, of several samples.
    open_files_max: u64,
    writes: u64,
    failed_writes: u64,
    write_max_ms: f64,
    health_checks: u64,
    failed_health_checks: u64,
    health_max_ms: f64,
    /// The replicas that have failed or differ.
    broken_replicas: u64,
    /// The first errors.
    errors: Vec<String>,
}

/// The counts of one kind of operation.
#[derive(Debug, Default)]
struct Counts {
    done: AtomicU64,
    failed: AtomicU64,
    max_micros: AtomicU64,
    errors: parking_lot::Mutex<Vec<String>>,
}

impl Counts {
    fn note(&self, since: Instant, result: Result<()>) {
        self.done.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.max_micros.fetch_max(micros, Ordering::Relaxed);
        if let Err(error) = result {
            self.failed.fetch_add(1, Ordering::Relaxed);
            self.errors.lock().push(format!("{error:#}"));
        }
    }

    fn max_ms(&self) -> f64 {
        float(self.max_micros.load(Ordering::Relaxed)) / 1e3
    }
}

impl Args {
    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(self.concurrent > 0, "--concurrent must be greater than 0");
        let own = raise_own_limit(self.attempts)?;
        let mut rows = Vec::new();
        for files in &self.files {
            let dir = dir.join(files.to_string());
            let row = self.row(common, &dir, *files, own).await;
            let row = row.with_context(|| format!("with a limit of {files} files"))?;
            say!("{files} files: {:.0} s", row.seconds);
            rows.push(row);
        }
        findings(&rows)
    }

    /// Measures one limit.
    async fn row(&self, common: &Common, dir: &Path, files: u64, own: usize) -> Result<Row> {
        let cluster = Cluster::start_with_files(common, dir, REPLICAS, "", Some(files)).await?;
        let ports = cluster.ports();
        let processes: Vec<Process> = cluster.servers().map(server::Server::process).collect();
        let (stop, writes, health) = <(Arc<AtomicBool>, Arc<Counts>, Arc<Counts>)>::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(write(ports.clone(), Arc::clone(&stop), Arc::clone(&writes)));
        for at in &ports {
            tasks.spawn(check(at.admin, Arc::clone(&stop), Arc::clone(&health)));
        }
        let since = Instant::now();
        let mut attempts = BTreeMap::new();
        let mut held = std::collections::VecDeque::new();
        let mut open_files_max = 0;
        let mut under_way = JoinSet::new();
        let targets: Vec<SocketAddr> =
            ports.iter().flat_map(|at| [at.xds, at.admin, at.raft]).collect();
        for n in 0..self.attempts {
            if under_way.len() >= self.concurrent {
                take(&mut under_way, &mut attempts, &mut held).await?;
            }
            while held.len() + self.concurrent >= own {
                held.pop_front();
            }
            let target = targets[n % targets.len()];
            under_way.spawn(connect(n, target));
            if n % 500 == 0 {
                open_files_max = open_files_max.max(open_files(&processes)?);
            }
        }
        while !under_way.is_empty() {
            take(&mut under_way, &mut attempts, &mut held).await?;
        }
        // Writes and checks go on while all connections are idle.
        sleep(Duration::from_secs(5)).await;
        open_files_max = open_files_max.max(open_files(&processes)?);
        let seconds = since.elapsed().as_secs_f64();
        drop(held);
        stop.store(true, Ordering::Relaxed);
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        let broken_replicas = broken(&cluster).await;
        let mut errors = writes.errors.lock().clone();
        errors.extend(health.errors.lock().clone());
        errors.truncate(5);
        Ok(Row {
            files,
            attempts,
            seconds,
            open_files_max,
            writes: writes.done.load(Ordering::Relaxed),
            failed_writes: writes.failed.load(Ordering::Relaxed),
            write_max_ms: writes.max_ms(),
            health_checks: health.done.load(Ordering::Relaxed),
            failed_health_checks: health.failed.load(Ordering::Relaxed),
            health_max_ms: health.max_ms(),
            broken_replicas,
            errors,
        })
    }
}

/// Raises the limit of open files of this process as far as possible. Returns how many connections it may hold.
fn raise_own_limit(attempts: usize) -> Result<usize> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(count(attempts) + 2 * OWN_FILES);
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })?;
    ensure!(wanted > 2 * OWN_FILES, "the limit of open files of the load test is {wanted}");
    Ok(usize::try_from(wanted - OWN_FILES)?)
}

/// Waits for an attempt.
async fn take(
    under_way: &mut JoinSet<(&'static str, Option<TcpStream>)>,
    attempts: &mut BTreeMap<&'static str, usize>,
    held: &mut std::collections::VecDeque<TcpStream>,
) -> Result<()> {
    if let Some(ended) = under_way.join_next().await {
        let (outcome, stream) = ended?;
        *attempts.entry(outcome).or_default() += 1;
        held.extend(stream);
    }
    Ok(())
}

/// Opens a connection, and leaves it idle.
async fn connect(n: usize, target: SocketAddr) -> (&'static str, Option<TcpStream>) {
    let host = u8::try_from(n % ADDRESSES).unwrap_or(0);
    let from = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2 + host), 0));
    let attempt = async {
        let socket = TcpSocket::new_v4()?;
        socket.bind(from)?;
        let mut stream = socket.connect(target).await?;
        // Three ports for each replica, so each one gets every greeting.
        stream.write_all(GREETINGS[n / 9 % GREETINGS.len()]).await?;
        Ok::<_, std::io::Error>(stream)
    };
    match timeout(ATTEMPT, attempt).await {
        Ok(Ok(stream)) => ("connected", Some(stream)),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionReset => ("closed", None),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ("closed", None),
        Ok(Err(_)) => ("failed", None),
        Err(_) => ("waited", None),
    }
}

/// Writes through each replica in turn.
async fn write(ports: Vec<Ports>, stop: Arc<AtomicBool>, counts: Arc<Counts>) -> Result<()> {
    let mut authors = Vec::new();
    for at in &ports {
        authors.push(Author::connect(at.admin).await?);
    }
    let mut generation = 0;
    while !stop.load(Ordering::Relaxed) {
        for author in &mut authors {
            generation += 1;
            let manifest = resource::manifest("default", vec![resource::cluster(1, generation)]);
            let since = Instant::now();
            let written = author.apply(&[manifest]).await;
            counts.note(since, written.map(drop).context("a write"));
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Checks the health of a replica, each time over another connection.
async fn check(admin: SocketAddr, stop: Arc<AtomicBool>, counts: Arc<Counts>) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        for path in ["/healthz", "/readyz"] {
            let since = Instant::now();
            let checked = timeout(HEALTH, server::get(admin, path)).await;
            let checked = match checked {
                Ok(answered) => answered.map(drop),
                Err(elapsed) => Err(elapsed.into()),
            };
            counts.note(since, checked.context(path));
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Returns the highest number of open files of several processes.
fn open_files(processes: &[Process]) -> Result<u64> {
    let mut max = 0;
    for process in processes {
        max = max.max(fs::read_dir(format!("/proc/{}/fd", process.id()))?.count());
    }
    Ok(count(max))
}

/// Returns the number of replicas that have failed. Waits until the others agree.
async fn broken(cluster: &Cluster) -> u64 {
    let mut n_broken = 0;
    for server in cluster.servers() {
        let failed = async {
            let mut author = Author::connect(server.admin).await?;
            let status = author.cluster().await?;
            Ok::<_, anyhow::Error>(status.members.iter().any(|member| !member.failure.is_empty()))
        };
        n_broken += u64::from(failed.await.unwrap_or(true));
    }
    if n_broken == 0 && cluster.whole().await.is_err() {
        n_broken = count(REPLICAS);
    }
    n_broken
}

fn findings(rows: &[Row]) -> Result<Findings> {
    let mut text = String::new();
    for row in rows {
        writeln!(
            text,
            "{} files: at most {} open; attempts {:?} in {:.0} s; {} writes, at most {:.0} ms; {} health checks, at \
             most {:.0} ms",
            row.files,
            row.open_files_max,
            row.attempts,
            row.seconds,
            row.writes,
            row.write_max_ms,
            row.health_checks,
            row.health_max_ms
        )?;
        for error in &row.errors {
            writeln!(text, "  {error}")?;
        }
    }
    let sum = |of: fn(&Row) -> u64| rows.iter().map(of).sum::<u64>();
    let share = rows.iter().map(|row| float(row.open_files_max) / float(row.files.max(1)));
    let gates = vec![
        Gate::none("writes that failed", sum(|row| row.failed_writes)),
        Gate::none("health checks that failed", sum(|row| row.failed_health_checks)),
        Gate::none("replicas that failed or differ", sum(|row| row.broken_replicas)),
        Gate::at_most("open files, as a share of the limit", share.fold(0.0, f64::max), 0.95),
    ];
    let data = serde_json::json!({ "rows": rows });
    Ok(Findings { text, data, gates })
}
