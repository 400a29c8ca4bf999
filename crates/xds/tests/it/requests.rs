//! Requests that are invalid, unusual or numerous: each affects at most its own stream.

use bytes::Bytes;
use chancery_model::types::LISTENER as LDS;
use chancery_proto::discovery::{DeltaDiscoveryRequest, DiscoveryRequest, Status};
use http::{Request, StatusCode};
use prost::Message;
use tonic::Code;

use crate::support::*;

/// SVC-26: requests that are not served are rejected in their own protocol: a gRPC status, or an HTTP
/// status.
#[tokio::test]
async fn unserved_request_is_rejected_in_its_own_protocol() {
    let server = Server::start().await;
    let unknown = format!("{ADS}/FetchEverything");
    let raw = call(&server, grpc(&unknown).body(()).unwrap()).await;
    assert_eq!(raw.response.status(), StatusCode::OK);
    assert_eq!(raw.response.headers()["grpc-status"], "12");
    let message = raw.response.headers()["grpc-message"].to_str().unwrap();
    assert!(message.contains("FetchEverything"), "{message}");
    for (path, status) in [
        (SOTW_ADS, StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ("/v3/discovery:virtual_hosts", StatusCode::NOT_FOUND),
        ("/", StatusCode::NOT_FOUND),
    ] {
        let request = Request::post(format!("http://chancery{path}"))
            .header("content-type", "application/json")
            .body(())
            .unwrap();
        assert_eq!(call(&server, request).await.response.status(), status, "{path}");
    }
    let get = Request::get(format!("http://chancery{SOTW_ADS}"))
        .header("content-type", "application/grpc")
        .body(())
        .unwrap();
    let response = call(&server, get).await.response;
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(response.headers()["allow"], "POST");
}

/// The server sends response headers before the client has sent anything.
#[tokio::test]
async fn response_headers_are_sent_before_the_first_request() {
    let server = Server::start().await;
    let raw = call(&server, grpc(DELTA_ADS).body(()).unwrap()).await;
    assert_eq!(raw.response.status(), StatusCode::OK);
    assert_eq!(raw.response.headers()["content-type"], "application/grpc");
    drop(raw);
    server.until_no_stream().await;
}

/// OPS-20: malformed bytes end their stream with an explanation, and no other stream.
#[tokio::test]
async fn malformed_input_ends_its_own_stream_only() {
    let server = Server::start().await;
    let mut good = Good::start(&server).await;
    let cases: [(&str, Bytes, i32, &str); 6] = [
        ("garbage", framed(0, &[0xff; 40]), 3, "malformed DeltaDiscoveryRequest: "),
        ("no UTF-8", framed(0, b"\x12\x02\xc3\x28"), 3, "malformed DeltaDiscoveryRequest: "),
        (
            "an unknown flag",
            framed(7, b""),
            13,
            "a message has the flag 7, only 0 and 1 are defined",
        ),
        (
            "compressed, undeclared",
            framed(1, b"xx"),
            13,
            "a message is marked as compressed, but no grpc-encoding was declared",
        ),
        (
            "too long",
            Bytes::from_static(b"\0\xff\xff\xff\xff"),
            8,
            "a request of 4294967295 bytes exceeds the limit of 67108864 bytes (request_bytes_max)",
        ),
        ("a broken node", framed(0, b"\x0a\x02\xff\xff"), 3, "malformed node: "),
    ];
    for (what, bytes, code, text) in cases {
        let mut raw = call(&server, grpc(DELTA_ADS).body(()).unwrap()).await;
        raw.send.send_data(bytes, false).unwrap();
        let status = raw.status().await;
        assert_eq!(status.0, code, "{what}: {status:?}");
        assert!(status.1.starts_with(text), "{what}: {status:?}");
    }
    let request = grpc(DELTA_ADS).header("grpc-encoding", "gzip").body(()).unwrap();
    let mut raw = call(&server, request).await;
    assert_eq!(raw.response.headers()["grpc-accept-encoding"], "identity");
    raw.send.send_data(framed(1, b"xx"), false).unwrap();
    let text = "compressed requests are not supported; send grpc-encoding: identity";
    assert_eq!(raw.status().await, (12, text.to_owned()));

    let mut raw = call(&server, grpc(DELTA_ADS).body(()).unwrap()).await;
    raw.send.send_data(Bytes::from_static(b"\0\0\0"), true).unwrap();
    let text = "the request stream ended inside a message, after 3 of 5 bytes";
    assert_eq!(raw.status().await, (13, text.to_owned()));

    good.is_served(&server).await;
    server.until_left(1, 1).await;
}

/// SOTW-06, SOTW-03: a client identifies itself in the first request, and keeps its identity.
#[tokio::test]
async fn request_without_node_identity_is_rejected() {
    let server = Server::start().await;
    let request =
        |node| DiscoveryRequest { type_url: CDS.into(), node, ..DiscoveryRequest::default() };
    for (id, text) in [(None, "has to carry a node"), (Some(""), "node.id is empty")] {
        let mut client = server.sotw(SOTW_ADS).await;
        client.send(request(id.and_then(node))).await;
        let status = client.end().await;
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(text), "{status}");
    }
    let mut client = server.sotw(SOTW_ADS).await;
    client.send(request(node("n1"))).await;
    let first = client.next().await;
    client.ack(&first, &[]).await;
    client.send(request(node("n2"))).await;
    let status = client.end().await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("\"n1\"") && status.message().contains("\"n2\""), "{status}");
}

/// OPS-20, L11: requests with random damage, on every kind of stream, affect no other client.
#[tokio::test]
async fn damaged_requests_affect_no_other_client() {
    let server = Server::start().await;
    server.put(EDS, &[("x", "1")]);
    let mut good = Good::start(&server).await;
    let whole = DeltaDiscoveryRequest {
        type_url: EDS.into(),
        node: node("n1"),
        resource_names_subscribe: vec!["x".into(), "*".into(), "xdstp://a/b/c?d=e".into()],
        resource_names_unsubscribe: vec!["y".into()],
        initial_resource_versions: [("x".to_owned(), "1-00000000".to_owned())].into(),
        response_nonce: "1".into(),
        error_detail: Some(Status { code: 3, message: "no".into(), details: vec![] }),
        ..DeltaDiscoveryRequest::default()
    }
    .encode_to_vec();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |n: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % u64::try_from(n).unwrap()).unwrap()
    };
    let mut client = http2(&server).await;
    for round in 0..400 {
        if round % 4 == 0 {
            // After more refusals, a connection delays the next ones.
            client = http2(&server).await;
        }
        let path = [DELTA_ADS, SOTW_ADS, DELTA_CDS, SOTW_CDS][round % 4];
        client = client.ready().await.unwrap();
        let (response, mut send) =
            client.send_request(grpc(path).body(()).unwrap(), false).unwrap();
        for _ in 0..3 {
            let mut bytes = whole.clone();
            for _ in 0..below(4) {
                let at = below(bytes.len());
                bytes[at] = u8::try_from(below(256)).unwrap();
            }
            bytes.truncate(bytes.len() - below(2) * below(bytes.len()));
            // The server may have rejected the stream already.
            drop(send.send_data(framed(0, &bytes), false));
        }
        drop(send.send_data(Bytes::new(), true));
        let raw = Raw::new(send, response.await.unwrap(), client.clone());
        let trailers = raw.trailers().await;
        assert!(trailers.contains_key("grpc-status"), "{trailers:?}");
    }
    drop(client);
    server.until_left(1, 1).await;
    good.is_served(&server).await;
}

/// `grpc-timeout` limits the duration of the stream.
#[tokio::test]
async fn a_stream_ends_at_the_deadline_that_its_client_set() {
    let server = Server::start().await;
    let mut good = Good::start(&server).await;
    let request = grpc(DELTA_ADS).header("grpc-timeout", "300m").body(()).unwrap();
    let mut raw = call(&server, request).await;
    // After a pause of the machine, the stream may have ended already.
    drop(raw.send.send_data(subscription("hurried"), false));
    assert_eq!(raw.status().await, (4, "the grpc-timeout of 0.3 s has expired".to_owned()));
    let ends = || server.meter.counter("chancery_xds_stream_ends_total", &[("reason", "deadline")]);
    until("the end is counted", async || ends() == 1).await;
    let request = grpc(DELTA_ADS).header("grpc-timeout", "soon").body(()).unwrap();
    let text = "grpc-timeout is \"soon\", it has to be up to 8 digits and one of H, M, S, m, u, n";
    assert_eq!(call(&server, request).await.status().await, (3, text.to_owned()));
    // A very long timeout does no harm, and leaves nothing behind.
    let request = grpc(DELTA_ADS).header("grpc-timeout", "99999999H").body(()).unwrap();
    let mut raw = call(&server, request).await;
    raw.send.send_data(subscription("patient"), false).unwrap();
    raw.next().await;
    drop(raw);
    good.is_served(&server).await;
    server.until_left(1, 1).await;
}

/// SOTW-02, CLI-E-05: Envoy's large node in every request is read once.
#[tokio::test]
async fn large_node_in_every_request_is_accepted() {
    let server = Server::start().await;
    let mut good = Good::start(&server).await;
    let extension = |n: usize| ("x".repeat(110) + &n.to_string(), "y".repeat(10));
    let node = large_node("envoy", (0..500).map(extension));
    assert!(node.len() > 61_000, "{} bytes", node.len());
    let mut client = server.delta(DELTA_ADS).await;
    for n in 0..200 {
        client
            .send(DeltaDiscoveryRequest {
                type_url: EDS.into(),
                node: Some(node.clone()),
                resource_names_subscribe: vec![format!("e{n}")],
                ..DeltaDiscoveryRequest::default()
            })
            .await;
    }
    let mut seen = 0;
    while seen < 200 {
        let response = client.next().await;
        seen += response.removed_resources.len();
        client.ack(&response).await;
    }
    good.is_served(&server).await;
    drop(client);
    server.until_left(1, 1).await;
}

/// SOTW-34, SOTW-50, DELTA-14: answers to responses that were never sent, or are no longer the last, change
/// nothing, however many there are.
#[tokio::test]
async fn stale_nonces_and_floods_of_acks_are_ignored() {
    let server = Server::start().await;
    let mut good = Good::start(&server).await;
    let mut delta = server.delta(DELTA_ADS).await;
    delta.subscribe(CDS, &[]).await;
    let first = delta.next().await;
    delta.ack(&first).await;
    let mut sotw = server.sotw(SOTW_ADS).await;
    sotw.subscribe(CDS, &[]).await;
    let first_sotw = sotw.next().await;
    sotw.ack(&first_sotw, &[]).await;
    for round in 0..5000 {
        let response_nonce = match round % 3 {
            0 => "never sent".to_owned(),
            1 => format!("{round}"),
            _ => first.nonce.clone(),
        };
        let (type_url, nonce) = (CDS.to_owned(), response_nonce.clone());
        let request = DeltaDiscoveryRequest { type_url, response_nonce, ..Default::default() };
        delta.send(request).await;
        let type_url = CDS.to_owned();
        // A SotW request without its nonce would be a new subscription.
        let request = DiscoveryRequest { type_url, response_nonce: nonce, ..Default::default() };
        sotw.send(request).await;
    }
    let requests = || server.meter.counter("chancery_xds_requests_total", &[("type", "cluster")]);
    until("all have been handled", async || requests() >= 10_000).await;
    let acks = || server.meter.counter("chancery_xds_acks_total", &[("type", "cluster")]);
    assert!(acks() <= 4, "{} requests counted as ACKs", acks());
    server.put(CDS, &[("a", "1")]);
    assert_eq!(names(&delta.next().await), ["a"]);
    assert_eq!(bodies(&sotw.next().await), ["1"]);
    good.is_served(&server).await;
    drop((delta, sotw));
    server.until_left(1, 1).await;
}

/// SOTW-28, T9: of many rejections with huge messages, one is kept, truncated, and none is answered.
#[tokio::test]
async fn flood_of_rejections_keeps_one_truncated_message() {
    let server = Server::start().await;
    let mut good = Good::start(&server).await;
    server.put(CDS, &[("bad", "1")]);
    let mut client = server.delta(DELTA_ADS).await;
    client.subscribe(CDS, &[]).await;
    let first = client.next().await;
    let message = "é".repeat(500_000);
    for _ in 0..20 {
        client
            .send(DeltaDiscoveryRequest {
                type_url: CDS.into(),
                response_nonce: first.nonce.clone(),
                error_detail: Some(Status { code: 3, message: message.clone(), details: vec![] }),
                ..DeltaDiscoveryRequest::default()
            })
            .await;
    }
    until("all have been read", async || server.hits("nack_message_bytes") == 20).await;
    until("one is kept", async || {
        let nodes = server.fanout.nodes().await;
        let nacks: Vec<_> = nodes.iter().flat_map(|node| &node.nacks).collect();
        // The end of a truncated text may be a part of a secret.
        matches!(&nacks[..], [nack] if nack.message == "é".repeat(2048 - 64))
    })
    .await;
    // Clusters go before listeners.
    server.put(LDS, &[("l", "1")]);
    client.subscribe(LDS, &[]).await;
    assert_eq!(client.next().await.type_url, LDS, "the same clusters are sent again");
    let nacks = server.meter.counter("chancery_xds_nacks_total", &[("type", "cluster")]);
    assert_eq!(nacks, 1, "each response can be rejected once");
    good.is_served(&server).await;
    drop(client);
    server.until_left(1, 1).await;
}

/// T9: endless changes of subscriptions, with existing, missing and repeated names, cost only the
/// current subscriptions.
#[tokio::test]
async fn subscription_churn_does_not_leak_memory() {
    let server = Server::start().await;
    let all: Vec<String> = (0..1000).map(|n| format!("e{n}")).collect();
    server.put(EDS, &all[..500].iter().map(|name| (name.as_str(), "1")).collect::<Vec<_>>());
    let mut good = Good::start(&server).await;
    let mut client = server.delta(DELTA_ADS).await;
    client.subscribe(EDS, &["e0"]).await;
    let sender = client.requests.clone().unwrap();
    let churn = tokio::spawn(async move {
        for _ in 0..20 {
            let twice = [all.clone(), all.clone()].concat();
            for (subscribe, unsubscribe) in [(twice.clone(), vec![]), (vec![], twice)] {
                let request = DeltaDiscoveryRequest {
                    type_url: EDS.into(),
                    resource_names_subscribe: subscribe,
                    resource_names_unsubscribe: unsubscribe,
                    ..DeltaDiscoveryRequest::default()
                };
                if sender.send(request).await.is_err() {
                    return;
                }
            }
        }
        let last = DeltaDiscoveryRequest {
            type_url: EDS.into(),
            resource_names_subscribe: vec!["the end".to_owned()],
            ..DeltaDiscoveryRequest::default()
        };
        drop(sender.send(last).await);
    });
    good.is_served(&server).await;
    loop {
        let response = client.next().await;
        client.ack(&response).await;
        if response.removed_resources.contains(&"the end".to_owned()) {
            break;
        }
    }
    churn.await.unwrap();
    let nodes = server.fanout.nodes().await;
    let churned = nodes.iter().find(|node| node.node.id == "n1").unwrap();
    assert_eq!(churned.subscriptions[0].n_names, 1, "{:?}", churned.subscriptions);
    good.is_served(&server).await;
    drop(client);
    server.until_left(1, 1).await;
}
