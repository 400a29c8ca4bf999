//! A run: the fleet in its threads, the phases, and the checks at the end.

use std::{
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use chancery_tls::ClientTls;
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{sleep, sleep_until},
};

use crate::{
    client::{Group, Shared},
    correctness,
    measures::{Times, record, times},
    plan::{Phase, Plan, to_f64},
    report::{Generator, Report},
    stream::Target,
    writer::{Writer, cluster, run_command},
};

/// The interval of the check whether a thread is late.
const TICK: Duration = Duration::from_millis(10);
/// The interval at which the run looks for progress.
const POLL: Duration = Duration::from_millis(20);
/// The transactions of a test that are on their way at the same time.
const IN_FLIGHT_MAX: usize = 1000;
/// The time for all clients to receive their first state, in addition to a millisecond per client.
const FIRST_STATE: Duration = Duration::from_secs(60);
/// The open files of a test in addition to its connections.
const FILES: u64 = 100;
/// The resources of the first state that one transaction writes.
const FIRST_STATE_BATCH: usize = 1000;

/// The server under test, and the threads of the clients.
#[expect(missing_debug_implementations, reason = "functions have no text")]
pub struct Settings {
    /// The addresses of the xDS ports. Clients use them in turn.
    pub targets: Vec<Target>,
    /// The addresses, as the report shows them.
    pub names: Vec<String>,
    /// The type URLs to which the clients subscribe.
    pub types: Vec<String>,
    /// The ID of the run, which is the prefix of the node IDs and resources.
    pub run: String,
    /// The number of threads with clients.
    pub threads: usize,
    /// The TLS settings of each client; `None` if all have those of the targets.
    pub identities: Option<Identities>,
}

/// Makes the TLS settings of the client with a node ID. An error is the reason in words. The clients of a connection
/// have the identity of the first.
pub type Identities = Box<dyn Fn(&str) -> Result<ClientTls, String>>;

/// The load of a thread with clients.
#[derive(Debug)]
struct ThreadLoad {
    lags: Times,
    cpu: Duration,
    wall: Duration,
}

/// The threads of a fleet.
struct Threads {
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<ThreadLoad>>,
    reconnects: Vec<Arc<Notify>>,
}

/// Runs a load test, and passes its progress to `say`. The writer is `None` if others write. When `stop` ends, with the
/// reason, the test deletes what it wrote, and fails.
///
/// # Errors
/// Fails if the plan is wrong, the first state cannot be written, no client gets its first state, or `stop` ends.
pub async fn run(
    plan: Plan,
    settings: Settings,
    writer: Option<Arc<dyn Writer>>,
    stop: impl Future<Output = String>,
    say: impl Fn(&str),
) -> Result<Report, String> {
    plan.check()?;
    if plan.has_writes() && writer.is_none() {
        return Err("the plan writes, but there is no way to write".to_owned());
    }
    raise_open_files(&plan)?;
    let n_threads = settings.threads.max(1);
    let Settings { targets, names, types, run, identities, .. } = settings;
    let shared = Shared::new(plan, run, types, targets);
    if let Some(identities) = identities {
        say("making a certificate for each connection");
        shared.identify(&*identities)?;
    }
    let done = tokio::select! {
        done = with_writer(&shared, n_threads, writer.as_ref(), &say) => done,
        reason = stop => Err(reason),
    };
    let cleaned = match &writer {
        Some(writer) if shared.n_resources() > 0 => writer.clean_up().await,
        _ => Ok(()),
    };
    let left =
        cleaned.err().map(|error| format!("cannot delete the resources of the test: {error}"));
    match (done, left) {
        (Ok((generator, correctness)), left) => {
            Ok(Report { left, ..Report::new(&shared, names, generator, correctness) })
        }
        (Err(error), None) => Err(error),
        (Err(error), Some(left)) => Err(format!("{error}; {left}")),
    }
}

/// Raises the limit of open files as far as possible.
///
/// # Errors
/// Fails if the connections of the plan need more.
fn raise_open_files(plan: &Plan) -> Result<(), String> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let reason = raised.err().map(|error| format!(" ({error})")).unwrap_or_default();
    let Some(limit) = getrlimit(Resource::Nofile).current else { return Ok(()) };
    let n_connections = plan.clients.div_ceil(plan.streams_per_connection);
    let needed = u64::try_from(n_connections).unwrap_or(u64::MAX).saturating_add(FILES);
    if needed > limit {
        return Err(format!(
            "{n_connections} connections need {needed} open files, but the limit is {limit}{reason}; raise it with `ulimit -n`, \
             or share connections (--streams-per-connection)"
        ));
    }
    Ok(())
}

/// Runs everything between the first write and the deletion.
async fn with_writer(
    shared: &Arc<Shared>,
    n_threads: usize,
    writer: Option<&Arc<dyn Writer>>,
    say: &impl Fn(&str),
) -> Result<(Generator, correctness::Correctness), String> {
    if let Some(writer) = writer.filter(|_| shared.n_resources() > 0) {
        say(&format!("writing {} resources", shared.n_resources()));
        let first: Vec<Value> = (1..=shared.n_resources()).map(|n| resource(shared, n)).collect();
        let mut batches = first.chunks(FIRST_STATE_BATCH);
        let batch = batches.next().unwrap_or_default().to_vec();
        let failed = |error| format!("cannot write the first state: {error}");
        writer.prepare(batch).await.map_err(failed)?;
        for batch in batches {
            writer.write(batch.to_vec()).await.map_err(failed)?;
        }
    }
    let threads = Threads::start(shared, n_threads);
    let outcome = phases(shared, &threads, writer, say).await;
    let generator = Generator::new(shared, &threads.end());
    outcome.map(|correctness| (generator, correctness))
}

/// Runs the phases with a connected fleet, and then compares all clients.
async fn phases(
    shared: &Arc<Shared>,
    threads: &Threads,
    writer: Option<&Arc<dyn Writer>>,
    say: &impl Fn(&str),
) -> Result<correctness::Correctness, String> {
    let n = shared.n_clients();
    say(&format!("connecting {n} clients"));
    let patience = FIRST_STATE + Duration::from_millis(u64::try_from(n).unwrap_or(u64::MAX));
    let n_ready = wait_for_clients(shared, n, patience).await;
    if n_ready == 0 {
        let errors = shared.measures.lock().errors.clone();
        let errors: Vec<String> = errors.into_keys().take(3).collect();
        let why = if errors.is_empty() { "nothing arrived".to_owned() } else { errors.join("; ") };
        return Err(format!("no client has received a first state within {patience:?}: {why}"));
    }
    if n_ready < n {
        say(&format!("only {n_ready} of {n} clients have their first state"));
    }
    for phase in &shared.plan.phases {
        shared.measures.lock().begin_phase();
        say(&format!("phase {}: {} s", phase.name, phase.seconds));
        run_phase(shared, threads, phase, writer).await?;
    }
    shared.measures.lock().end_phase(Instant::now());
    let patience = Duration::from_secs_f64(shared.plan.patience);
    let deadline = Instant::now() + patience;
    while shared.measures.lock().n_incomplete() > 0 && Instant::now() < deadline {
        sleep(POLL).await;
    }
    say("comparing all clients with new ones");
    Ok(correctness::check(shared, patience).await)
}

/// Waits until `n` clients have their first state. Returns the number of those that have.
async fn wait_for_clients(shared: &Shared, n: usize, patience: Duration) -> usize {
    let deadline = Instant::now() + patience;
    loop {
        let clients = shared.clients.iter().take(n);
        let n_ready = clients.filter(|client| client.lock().is_established()).count();
        if n_ready == n || Instant::now() > deadline {
            return n_ready;
        }
        sleep(POLL).await;
    }
}

/// Runs a phase: the writes at their times, the reconnections, and the command.
async fn run_phase(
    shared: &Arc<Shared>,
    threads: &Threads,
    phase: &Phase,
    writer: Option<&Arc<dyn Writer>>,
) -> Result<(), String> {
    if let Some(command) = &phase.command {
        let name = [("CHANCERY_LOADTEST_PHASE", phase.name.as_str())];
        run_command(command, &name, &[]).await?;
    }
    threads.reconnect(phase.reconnect);
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(phase.seconds);
    let writes = async {
        match writer.filter(|_| phase.writes_per_second > 0.0) {
            Some(writer) => write(shared, phase, writer, start, end).await,
            None => sleep_until(end.into()).await,
        }
    };
    let reconnects = async {
        let per_second = phase.reconnects_per_second;
        let period = (per_second > 0.0).then(|| Duration::from_secs_f64(1.0 / per_second));
        let times = std::iter::successors(Some(start), |at| Some(*at + period?));
        for at in times.skip(1).take_while(|at| *at < end) {
            sleep_until(at.into()).await;
            threads.reconnect_one();
        }
    };
    tokio::join!(writes, reconnects);
    Ok(())
}

/// Starts the writes of a phase at their times, whether or not earlier ones have ended.
async fn write(
    shared: &Arc<Shared>,
    phase: &Phase,
    writer: &Arc<dyn Writer>,
    start: Instant,
    end: Instant,
) {
    let mut running = JoinSet::new();
    let period = 1.0 / phase.writes_per_second;
    for n in 0.. {
        let at = start + Duration::from_secs_f64(to_f64(n) * period);
        if at >= end {
            break;
        }
        sleep_until(at.into()).await;
        while running.len() >= IN_FLIGHT_MAX {
            running.join_next().await;
        }
        while running.try_join_next().is_some() {}
        let writes: Vec<u32> = {
            let mut measures = shared.measures.lock();
            (0..phase.changes).map(|_| measures.schedule(at)).collect()
        };
        let of_write =
            |write: &u32| resource(shared, usize::try_from(*write).unwrap_or(usize::MAX));
        let resources: Vec<Value> = writes.iter().map(of_write).collect();
        let (shared, writer) = (Arc::clone(shared), Arc::clone(writer));
        running.spawn(async move {
            let answer = writer.write(resources).await;
            shared.measures.lock().answered(&writes, answer);
        });
    }
    while running.join_next().await.is_some() {}
}

/// Returns the resource that a write changes, with the content of the write.
fn resource(shared: &Shared, write: usize) -> Value {
    let n = (write - 1) % shared.n_resources().max(1);
    let marker = shared.markers.of(u32::try_from(write).unwrap_or(u32::MAX));
    cluster(&format!("{}-{n}", shared.run), &marker, shared.plan.resource_bytes)
}

impl Threads {
    /// Starts the threads, and connects the clients.
    fn start(shared: &Arc<Shared>, n_threads: usize) -> Self {
        let per_connection = shared.plan.streams_per_connection;
        let n_groups = shared.n_clients().div_ceil(per_connection);
        let reconnects: Vec<Arc<Notify>> = (0..n_groups).map(|_| Arc::default()).collect();
        let (stop, stopped) = watch::channel(false);
        let thread = |thread: usize| {
            let groups = (thread..n_groups).step_by(n_threads).map(|n| Group {
                clients: n * per_connection..shared.n_clients().min((n + 1) * per_connection),
                reconnect: Arc::clone(&reconnects[n]),
            });
            let (groups, shared): (Vec<Group>, _) = (groups.collect(), Arc::clone(shared));
            let stopped = stopped.clone();
            std::thread::spawn(move || run_thread(&shared, groups, stopped))
        };
        let threads = (0..n_threads).map(thread).collect();
        Self { stop, threads, reconnects }
    }

    /// Ends a share of the connections, which then reconnect.
    fn reconnect(&self, share: f64) {
        let mut taken = 0.0;
        for one in &self.reconnects {
            taken += share;
            if taken >= 1.0 - 1e-9 {
                taken -= 1.0;
                one.notify_one();
            }
        }
    }

    /// Ends a connection, which then reconnects.
    fn reconnect_one(&self) {
        if let Some(one) = fastrand::choice(&self.reconnects) {
            one.notify_one();
        }
    }

    /// Ends the threads, and returns their loads.
    fn end(self) -> Vec<(Times, f64)> {
        self.stop.send_replace(true);
        let loads = self.threads.into_iter().filter_map(|thread| thread.join().ok());
        loads
            .map(|load| {
                let share = load.cpu.as_secs_f64() / load.wall.as_secs_f64().max(1e-9);
                (load.lags, share)
            })
            .collect()
    }
}

/// Runs connections until the end of the test, and measures whether the thread is late.
fn run_thread(
    shared: &Arc<Shared>,
    groups: Vec<Group>,
    mut stopped: watch::Receiver<bool>,
) -> ThreadLoad {
    let lags = Arc::new(Mutex::new(times()));
    let start = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    if let Ok(runtime) = runtime {
        let lags = Arc::clone(&lags);
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for group in groups {
                let targets = shared.targets_of(&group, &shared.targets);
                tasks.spawn(Arc::clone(shared).keep(group, targets));
            }
            tasks.spawn(async move {
                loop {
                    let wanted = Instant::now() + TICK;
                    sleep_until(wanted.into()).await;
                    record(&mut lags.lock(), wanted.elapsed());
                }
            });
            drop(stopped.wait_for(|stopped| *stopped).await);
        });
    }
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(cpu.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(cpu.tv_nsec).unwrap_or_default();
    let lags = lags.lock().clone();
    ThreadLoad { lags, cpu: Duration::new(seconds, nanos), wall: start.elapsed() }
}
