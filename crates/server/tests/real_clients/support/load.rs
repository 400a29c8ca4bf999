//! Continuous HTTP load, with a record of every failure.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use super::{
    STEP,
    http::{Connection, Request},
    wait_for,
};

const THREADS: usize = 2;
const PAUSE: Duration = Duration::from_millis(1);
/// The maximum number of failures whose text is kept. All failures are counted.
const WORDS_MAX: usize = 20;

/// The results of the requests.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    /// The number of requests by answer.
    pub(crate) answers: BTreeMap<String, u64>,
    /// The number of requests without a status of 200.
    pub(crate) n_failed: u64,
    /// The first failures, each with the time since the start of the load.
    pub(crate) failures: Vec<String>,
    /// The times of the first and the last failure since the start of the load.
    failed_between: Option<(Duration, Duration)>,
}

impl Tally {
    pub(crate) fn n_answered(&self) -> u64 {
        self.answers.values().sum()
    }

    /// Returns the time between the first and the last failure.
    pub(crate) fn outage(&self) -> Duration {
        self.failed_between.map_or(Duration::ZERO, |(first, last)| last - first)
    }
}

/// Requests from [`THREADS`] keep-alive connections. The load ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Load {
    port: u16,
    shared: Arc<Shared>,
    threads: Vec<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    request: Request,
    start: Instant,
    stop: AtomicBool,
    tally: Mutex<Tally>,
}

impl Load {
    pub(crate) fn start(port: u16) -> Self {
        Self::start_with(port, Request::new("/"))
    }

    /// Starts a load that repeats the given request.
    pub(crate) fn start_with(port: u16, request: Request) -> Self {
        let shared = Arc::new(Shared {
            request,
            start: Instant::now(),
            stop: AtomicBool::new(false),
            tally: Mutex::default(),
        });
        let threads = (0..THREADS)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.run(port))
            })
            .collect();
        Self { port, shared, threads }
    }

    pub(crate) fn tally(&self) -> Tally {
        self.shared.tally().clone()
    }

    /// Resets the tally, so that the next part is judged separately, and returns it.
    pub(crate) fn take(&self) -> Tally {
        std::mem::take(&mut *self.shared.tally())
    }

    /// Waits until requests are answered with `answer`, and with no other answer.
    pub(crate) fn wait_for_only(&self, answer: &str) -> Result<()> {
        let mut seen = self.tally().answers;
        wait_for(&format!("only {answer:?} on port {}", self.port), STEP, || {
            thread::sleep(Duration::from_millis(90));
            let now = self.tally().answers;
            let is_new = |name: &str| now.get(name) > seen.get(name);
            let is_only = is_new(answer) && !now.keys().any(|name| name != answer && is_new(name));
            let is_settled = is_only.then_some(());
            seen = now;
            Ok(is_settled)
        })
    }

    /// Waits for `n` more answers.
    pub(crate) fn wait_for_more(&self, n: u64) -> Result<()> {
        let goal = self.tally().n_answered() + n;
        wait_for(&format!("{n} more answers on port {}", self.port), STEP, || {
            Ok((self.tally().n_answered() >= goal).then_some(()))
        })
    }

    /// Stops the load. Fails if any request failed, or if there were fewer than `n_min`.
    pub(crate) fn finish_without_failure(mut self, n_min: u64) -> Result<Tally> {
        self.join();
        let tally = self.tally();
        if tally.n_failed > 0 {
            bail!(
                "{} of {} requests failed on port {}: {:#?}",
                tally.n_failed,
                tally.n_failed + tally.n_answered(),
                self.port,
                tally.failures
            );
        }
        if tally.n_answered() < n_min {
            bail!(
                "only {} requests on port {}, at least {n_min} were expected",
                tally.n_answered(),
                self.port
            );
        }
        Ok(tally)
    }

    fn join(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.join();
    }
}

impl Shared {
    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, port: u16) {
        let mut connection = None;
        while !self.stop.load(Ordering::Relaxed) {
            let result = send(port, &self.request, &mut connection);
            let mut tally = self.tally();
            match result {
                Ok(answer) => *tally.answers.entry(answer).or_default() += 1,
                Err(error) => {
                    connection = None;
                    tally.n_failed += 1;
                    let at = self.start.elapsed();
                    let first = tally.failed_between.map_or(at, |(first, _)| first);
                    tally.failed_between = Some((first, at));
                    if tally.failures.len() < WORDS_MAX {
                        tally.failures.push(format!("at {at:.2?}: {error:#}"));
                    }
                }
            }
            drop(tally);
            thread::sleep(PAUSE);
        }
    }
}

/// Sends one request, on the open connection if there is one.
fn send(port: u16, request: &Request, connection: &mut Option<Connection>) -> Result<String> {
    if let Some(mut open) = connection.take()
        && let Some(answer) = open.get(request)?
    {
        return judge(answer, open, connection);
    }
    // There was no open connection, or it was closed while it was idle.
    let mut open = Connection::open(port)?;
    match open.get(request)? {
        Some(answer) => judge(answer, open, connection),
        None => bail!("a new connection was closed without an answer"),
    }
}

fn judge(
    answer: super::http::Answer,
    open: Connection,
    connection: &mut Option<Connection>,
) -> Result<String> {
    if !answer.closes {
        *connection = Some(open);
    }
    if answer.status != 200 {
        bail!("status {}: {}", answer.status, answer.body);
    }
    Ok(answer.body)
}
