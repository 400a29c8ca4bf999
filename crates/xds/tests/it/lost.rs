//! Clients whose network is gone: no packets arrive from them, not even for the end of the connection.

use std::{process::Command, time::Duration};

use chancery_testing::{Lack, skip};
use chancery_xds::Config;

use crate::support::*;

const TEST: &str = "lost::client_with_lost_network_is_freed";

/// OPS-14, L11: packets to a client vanish, so neither kernel reports the end of the connection. Probes
/// detect a client without pending data, and a client with pending data. The test needs a network
/// namespace; where that is not permitted, the tests of probes in `silent` have to suffice.
#[test]
fn client_with_lost_network_is_freed() {
    if is_child() {
        return runtime().block_on(lose_the_network());
    }
    let unshare: &[&str] = match [&["unshare", "-n"][..], &["unshare", "-rn"][..]]
        .into_iter()
        .find(|words| has_own_network(words))
    {
        Some(words) => words,
        None => return skip(Lack::Network, "a network namespace is not permitted"),
    };
    in_child(TEST, unshare, "ip link set lo up");
}

fn has_own_network(unshare: &[&str]) -> bool {
    let ready = "ip link set lo up && ip route add blackhole 127.0.0.2/32 table local";
    Command::new(unshare[0])
        .args(&unshare[1..])
        .args(["sh", "-c", ready])
        .output()
        .is_ok_and(|output| output.status.success())
}

async fn lose_the_network() {
    let config = Config {
        // The correct client meets these times even after a pause of the machine.
        keepalive_interval: Duration::from_millis(400),
        keepalive_timeout: Duration::from_millis(1600),
        ..Config::default()
    };
    let server = Server::with(config, fanout_config()).await;
    let mut good = Good::start(&server).await;
    let (mut idle, mut busy) = (
        Frames::start_small(&server, [127, 0, 0, 2], &[]).await,
        Frames::start_small(&server, [127, 0, 0, 2], &[]).await,
    );
    for (client, id) in [(&mut idle, "idle"), (&mut busy, "busy")] {
        client.subscribe(1, id).await;
        client.until(DATA).await;
    }
    server.until_left(3, 3).await;
    let route = ["route", "add", "blackhole", "127.0.0.2/32", "table", "local"];
    assert!(Command::new("ip").args(route).status().unwrap().success());
    server.put(CDS, &[("a", &"x".repeat(40_000))]);
    until("both connections are closed", async || server.ends("keepalive") >= 2).await;
    good.is_served(&server).await;
    server.until_left(1, 1).await;
    // No packet could tell these clients about the end.
    drop((idle, busy));
}
