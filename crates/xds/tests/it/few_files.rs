//! A process that has no file left for a connection.

use std::{
    net::TcpStream,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use crate::support::*;

/// Set in the process that has few files.
const CHILD: &str = "CHANCERY_TEST_FEW_FILES";

/// L11: when no file is free, open streams go on and accepting does not end; when files are free
/// again, connections are accepted again. The limit is the process's, so the test has one of its own.
#[test]
fn accepting_outlives_a_lack_of_files() {
    if std::env::var_os(CHILD).is_some() {
        return runtime().block_on(run_out_of_files());
    }
    let test = std::env::current_exe().unwrap();
    let name = "few_files::accepting_outlives_a_lack_of_files";
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""])
        .arg(test)
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}\n{errors}");
}

/// One thread: nothing is accepted while the test does not wait.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn run_out_of_files() {
    let errors = AcceptErrors::default();
    metrics::set_global_recorder(errors.clone()).unwrap();
    let server = Server::start().await;
    let mut good = server.delta(DELTA_ADS).await;
    good.subscribe(CDS, &[]).await;
    let first = good.next().await;
    good.ack(&first).await;

    let mut open = Vec::new();
    let error = loop {
        match TcpStream::connect_timeout(&server.address, PATIENCE) {
            Ok(stream) => open.push(stream),
            Err(error) => break error,
        }
    };
    const EMFILE: i32 = 24;
    assert_eq!(error.raw_os_error(), Some(EMFILE), "{error}");
    assert!(open.len() > 10, "only {} connections", open.len());
    until("accepting has failed more than once", async || errors.count() >= 2).await;
    server.put(CDS, &[("a", "1")]);
    let pushed = good.next().await;
    assert_eq!(names(&pushed), ["a"]);
    good.ack(&pushed).await;
    assert!(errors.count() < 100, "it pauses in between");

    open.clear();
    let connected = tokio::time::timeout(Duration::from_secs(10), server.delta(DELTA_ADS)).await;
    let mut late = connected.expect("connections are not accepted again");
    late.subscribe(CDS, &[]).await;
    assert_eq!(names(&late.next().await), ["a"]);
    assert!(!server.task.is_finished());
}

/// Counts one metric.
#[derive(Clone, Default)]
struct AcceptErrors(Arc<AtomicU64>);

impl AcceptErrors {
    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Recorder for AcceptErrors {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            "chancery_xds_accept_errors_total" => Counter::from_arc(Arc::clone(&self.0)),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
