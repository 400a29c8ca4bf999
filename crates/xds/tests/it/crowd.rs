//! Thousands of idle connections.

#![expect(clippy::print_stdout, reason = "the measured cost is of interest")]

use chancery_xds::Config;

use crate::support::*;

const N: u8 = 20;
const EACH: u8 = 100;

/// T7, OPS-10: thousands of idle connections stay open, cost a bounded amount of memory each, delay
/// nobody, and leave nothing behind. The test runs in a separate process because of its file
/// descriptors and memory.
#[test]
fn thousands_of_idle_connections_use_little_memory_and_delay_no_client() {
    if is_child() {
        return runtime().block_on(crowd());
    }
    let test = "crowd::thousands_of_idle_connections_use_little_memory_and_delay_no_client";
    print!("{}", in_child(test, &[], "ulimit -n 10000"));
}

/// Returns the resident bytes of this process.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
}

async fn crowd() {
    // These clients do not answer probes.
    let config = Config { keepalive_interval: 60 * PATIENCE, ..Config::default() };
    let server = Server::with(config, fanout_config()).await;
    let mut good = Good::start(&server).await;
    let before = resident_bytes();
    let mut idle = Vec::new();
    for from in 0..N {
        for _ in 0..EACH {
            let mut client = Frames::start_small(&server, [127, 0, 1, from], &[]).await;
            client.subscribe(1, "idle").await;
            client.until(DATA).await;
            idle.push(client);
        }
    }
    let n = usize::from(N) * usize::from(EACH);
    server.until_left(n + 1, n + 1).await;
    let each = resident_bytes().saturating_sub(before) / n;
    println!(
        "{n} idle connections with a stream each: {each} bytes each, including the client's part"
    );
    assert!(each < 100 << 10, "{each} bytes each");
    good.is_served(&server).await;
    drop(idle);
    server.until_left(1, 1).await;
    good.is_served(&server).await;
}
