//! Connections that break at any moment.

use std::time::Duration;

use tokio::net::TcpStream;

use crate::support::*;

/// L11: a connection that is cut, sends nothing, or sends garbage leaves nothing behind.
#[tokio::test]
async fn broken_connections_are_freed() {
    let config = chancery_xds::Config {
        // The correct client has to open its stream in this time, too.
        first_stream_timeout: Duration::from_secs(2),
        close_timeout: Duration::from_millis(200),
        ..chancery_xds::Config::default()
    };
    let server = Server::with(config, fanout_config()).await;
    let mut nonsense = TcpStream::connect(server.address).await.unwrap();
    let mut mute = TcpStream::connect(server.address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut nonsense, b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    for stream in [&mut nonsense, &mut mute] {
        let mut rest = Vec::new();
        let read = tokio::io::AsyncReadExt::read_to_end(stream, &mut rest);
        // The result may be an orderly close or a reset.
        drop(tokio::time::timeout(PATIENCE, read).await.expect("the connection is still open"));
    }
    let client = server.delta(DELTA_ADS).await;
    client.subscribe(CDS, &[]).await;
    until("the stream is open", async || server.fanout.nodes().await.len() == 1).await;
    drop(client);
    server.until_no_stream().await;
}

/// L11: a connection that breaks at any moment while streams open leaves nothing behind.
#[tokio::test]
async fn connections_broken_during_stream_opening_are_freed() {
    let server = Server::start().await;
    for round in 0..200 {
        let stream = TcpStream::connect(server.address).await.unwrap();
        // Dropping the socket resets the connection instead of closing it.
        stream.set_zero_linger().unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        let mut client = client.ready().await.unwrap();
        let mut open = Vec::new();
        for _ in 0..5 {
            let (response, mut send) =
                client.send_request(grpc(DELTA_ADS).body(()).unwrap(), false).unwrap();
            send.send_data(subscription("breaks"), false).unwrap();
            open.push((response, send));
        }
        // The time varies, so that some rounds send a part and some send everything.
        let patience = Duration::from_micros(50 * (round % 20));
        drop(tokio::time::timeout(patience, connection).await);
    }
    server.until_no_stream().await;
}
