//! The drain that an operator orders, for polls, load reports and sinks of MCP.

use std::time::Duration;

use chancery_xds::Config;
use prost::Message;
use tokio::{io::AsyncWriteExt, net::TcpStream, time::Instant};
use tonic::Code;

use crate::{
    lrs::{self, LRS},
    mcp::{self, SOURCE},
    support::*,
};

const N: u32 = 4;
/// The time of the drain. The last of [`N`] connections ends after three quarters of it.
const OVER: Duration = Duration::from_secs(2);
const DRAINED: &str = "draining: an operator drains this replica; connect to another one";

/// Orders a drain, and waits until the port refuses connections.
async fn drain(server: &Server) -> Instant {
    let begun = Instant::now();
    server.fanout.drain_orders().set(Some(OVER));
    until("the port is closed", async || TcpStream::connect(server.address).await.is_err()).await;
    begun
}

/// Ends the drain, and waits until the port accepts connections.
async fn undrain(server: &Server) {
    server.fanout.drain_orders().set(None);
    until("the port is open", async || TcpStream::connect(server.address).await.is_ok()).await;
}

/// Waits for the ends of streams, of which each has its own connection. The ends are spread over the drain.
async fn expect_paced_ends<Q, R>(mut clients: Vec<Client<Q, R>>, begun: Instant)
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    let ends = clients.iter_mut().map(async |client| {
        let status = client.end().await;
        assert_eq!((status.code(), status.message()), (Code::Unavailable, DRAINED));
        begun.elapsed()
    });
    let mut ends = futures::future::join_all(ends).await;
    ends.sort_unstable();
    assert_eq!(ends.len(), N as usize);
    for (at, end) in (0..).zip(&ends) {
        assert!(*end >= OVER * at / N, "{ends:?}");
    }
}

/// OPS-15, REST-13: idle connections close at once, held polls are answered in turn, and a poll that was on its way
/// receives 503.
#[tokio::test]
async fn ordered_drain_ends_polls() {
    let config = Config { poll_hold: PATIENCE, ..rest_config() };
    let server = Server::with(config, fanout_config()).await;
    server.put(CDS, &[("a", "1")]);
    let mut idle = Http1::connect(&server).await;
    let (version, _) = idle.post(REST_CDS, &poll("", &[])).await.content();
    let mut begun_poll = Http1::connect(&server).await;
    let body = poll("", &[]);
    let head = format!("POST {REST_CDS} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n", body.len());
    begun_poll.0.write_all(head.as_bytes()).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..N {
        let mut client = Http1::connect(&server).await;
        client.send(REST_CDS, &poll(&version, &[])).await;
        held.push(client);
    }
    let n_held = async || server.meter.gauge("chancery_xds_held_polls");
    until("the polls are held", async || n_held().await > f64::from(N) - 0.5).await;

    let begun = drain(&server).await;
    assert!(idle.is_closed().await);
    begun_poll.0.write_all(format!("\r\n{body}").as_bytes()).await.unwrap();
    let refused = begun_poll.reply().await;
    assert_eq!((refused.status, refused.error().as_str()), (503, DRAINED));
    assert_eq!(refused.headers["connection"], "close");
    let replies = held.iter_mut().map(async |client| {
        let reply = client.reply().await;
        reply.expect_not_modified();
        assert_eq!(reply.headers["connection"], "close");
        assert!(client.is_closed().await);
        begun.elapsed()
    });
    let ends = futures::future::join_all(replies).await;
    let last = ends.iter().max().unwrap();
    // The connections without a held poll may have had the last turns.
    assert!(*last >= OVER / 3, "{ends:?}");
    undrain(&server).await;
    Http1::connect(&server).await.post(REST_CDS, &poll("", &[])).await.content();
}

/// OPS-15, LRS-01: streams of load reports end in turn, and new ones are accepted after the drain.
#[tokio::test]
async fn ordered_drain_ends_load_reports_in_turn() {
    let one = lrs::Reporting::start(&["*"]).await;
    let mut clients = Vec::new();
    for _ in 0..N {
        let mut client = one.open().await;
        client.send(lrs::hello("envoy", &[])).await;
        client.next().await;
        clients.push(client);
    }
    let begun = drain(&one.server).await;
    expect_paced_ends(clients, begun).await;
    one.server.until_no_stream().await;
    undrain(&one.server).await;
    let mut client: lrs::Lrs = Client::open(one.server.channel().await, LRS).await.unwrap();
    client.send(lrs::hello("envoy", &[])).await;
    client.next().await;
}

/// OPS-15, MCP-01: streams of sinks end in turn, and new ones are accepted after the drain.
#[tokio::test]
async fn ordered_drain_ends_sinks_of_mcp_in_turn() {
    let server = Server::start().await;
    let mut clients = Vec::new();
    for n in 0..N {
        clients.push(connected_sink(&server, &format!("sink-{n}")).await);
    }
    let begun = drain(&server).await;
    expect_paced_ends(clients, begun).await;
    server.until_no_stream().await;
    undrain(&server).await;
    connected_sink(&server, "sink-0").await;
}

/// Returns a sink that has accepted its first response.
async fn connected_sink(server: &Server, id: &str) -> mcp::Sink {
    let mut client: mcp::Sink = Client::open(server.channel().await, SOURCE).await.unwrap();
    client.send(mcp::request(id)).await;
    let first = client.next().await;
    client.send(mcp::ack(&first)).await;
    client
}
