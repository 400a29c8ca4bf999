//! Clients whose network is gone: nothing arrives from them any more, not even that they have gone.

use std::{process::Command, time::Duration};

use chancery_testing::{Lack, skip};
use chancery_xds::Config;

use crate::support::*;

const TEST: &str = "lost::a_client_whose_network_is_gone_is_freed";

/// OPS-14, L11: packets to a client vanish, so that the kernel of neither side says that a connection
/// is over. A client that is owed nothing is found by a probe, and one that is being sent something
/// as well. Needs a network of its own; where that is not allowed, the tests of probes in `silent`
/// have to do.
#[test]
fn a_client_whose_network_is_gone_is_freed() {
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
        keepalive_interval: Duration::from_millis(700),
        keepalive_timeout: Duration::from_millis(700),
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
    until("both are given up", async || server.ends("keepalive") == 2).await;
    good.is_served(&server).await;
    server.until_left(1, 1).await;
    // They have not been told, and could not be.
    drop((idle, busy));
}
