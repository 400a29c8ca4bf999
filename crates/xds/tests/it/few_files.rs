//! A process without file descriptors for new connections.

use std::{net::TcpStream, time::Duration};

use crate::support::*;

/// L11, T6: without free file descriptors, open streams continue and the accept loop survives. When
/// descriptors are free again, it accepts connections again. The limit applies to the whole process, so
/// the test runs in a separate one.
#[test]
fn accept_loop_survives_file_descriptor_exhaustion() {
    if is_child() {
        return runtime().block_on(run_out_of_files());
    }
    in_child("few_files::accept_loop_survives_file_descriptor_exhaustion", &[], "ulimit -n 64");
}

async fn run_out_of_files() {
    let server = Server::start().await;
    let errors = || server.meter.counter("chancery_xds_accept_errors_total", &[]);
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
    until("accept has failed more than once", async || errors() >= 2).await;
    server.put(CDS, &[("a", "1")]);
    let pushed = good.next().await;
    assert_eq!(names(&pushed), ["a"]);
    good.ack(&pushed).await;
    assert!(errors() < 100, "the accept loop does not pause");

    open.clear();
    let connected = tokio::time::timeout(Duration::from_secs(10), server.delta(DELTA_ADS)).await;
    let mut late = connected.expect("connections are not accepted again");
    late.subscribe(CDS, &[]).await;
    assert_eq!(names(&late.next().await), ["a"]);
    assert!(!server.task.is_finished());
}
