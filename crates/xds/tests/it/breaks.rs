//! Connections that break, at any moment.

use std::time::Duration;

use tokio::net::TcpStream;

use crate::support::*;

/// L11: a connection that is cut, or says nothing, or nonsense, leaves nothing behind.
#[tokio::test]
async fn connections_that_break_are_freed() {
    let config = chancery_xds::Config {
        first_stream_timeout: Duration::from_millis(200),
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
        // An orderly close or a reset: it is over.
        drop(tokio::time::timeout(PATIENCE, read).await.expect("it is still open"));
    }
    let client = server.delta(DELTA_ADS).await;
    client.subscribe(CDS, &[]).await;
    until("the stream is known", async || server.fanout.nodes().await.len() == 1).await;
    drop(client);
    server.until_no_stream().await;
}

/// L11: a connection may break at any moment of a stream's opening.
#[tokio::test]
async fn connections_that_break_while_streams_open_are_freed() {
    let server = Server::start().await;
    for round in 0..200 {
        let stream = TcpStream::connect(server.address).await.unwrap();
        // Dropped, it is reset and not closed.
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
        // Far enough to have sent something, and now and then everything.
        let patience = Duration::from_micros(50 * (round % 20));
        drop(tokio::time::timeout(patience, connection).await);
    }
    server.until_no_stream().await;
}
