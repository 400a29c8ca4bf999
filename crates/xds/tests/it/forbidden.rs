//! Secrets that a client may not receive, which look like secrets that do not exist.

use chancery_model::{Transaction, types::SECRET};
use chancery_proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use prost::Message;
use serde_json::json;

use crate::{
    access::{Guarded, Setup, rule},
    support::*,
};

const REST_SDS: &str = "/v3/discovery:secrets";
/// The streams that transport secrets. Of each pair, the first one is SotW.
const STREAMS: [(&str, &str); 2] = [
    (SOTW_ADS, DELTA_ADS),
    (
        "/envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets",
        "/envoy.service.secret.v3.SecretDiscoveryService/DeltaSecrets",
    ),
];

/// Starts a server with a secret of the client, one of the same scope that the client may not receive, and one of a
/// scope outside its view.
async fn start(theirs: &str, elsewhere: &str) -> Guarded {
    let guarded = Guarded::start_as(Setup {
        rule: Some(rule("r", &["default"], &["default"])),
        resource_errors: true,
        ..Setup::default()
    })
    .await;
    guarded.server.put(SECRET, &[("n1-key", "own"), (theirs, "theirs")]);
    let upserts = vec![upsert("elsewhere", SECRET, elsewhere, "theirs")];
    guarded.server.apply(&Transaction { upserts, ..Transaction::default() });
    guarded
}

/// Returns the first response of a stream, or the first one with resources.
async fn first<Q, R>(
    mut stream: Client<Q, R>,
    needs_resources: bool,
    has_resources: fn(&R) -> bool,
) -> R
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    loop {
        let response = stream.next().await;
        if !needs_resources || has_resources(&response) {
            return response;
        }
    }
}

/// Returns the first response of a SotW stream. If the client names nothing, it then subscribes to its own secret, and
/// the response is the first one with it.
async fn sotw(guarded: &Guarded, path: &'static str, asked: &[&str]) -> DiscoveryResponse {
    let stream: Client<DiscoveryRequest, DiscoveryResponse> =
        guarded.open(path, Some(&guarded.token)).await.unwrap();
    stream.subscribe(SECRET, asked).await;
    if is_all(asked) {
        stream.subscribe(SECRET, &["n1-key"]).await;
    }
    first(stream, is_all(asked), |response| !response.resources.is_empty()).await
}

async fn delta(guarded: &Guarded, path: &'static str, asked: &[&str]) -> DeltaDiscoveryResponse {
    let stream: Client<DeltaDiscoveryRequest, DeltaDiscoveryResponse> =
        guarded.open(path, Some(&guarded.token)).await.unwrap();
    stream.subscribe(SECRET, asked).await;
    if is_all(asked) {
        stream.subscribe(SECRET, &["n1-key"]).await;
    }
    first(stream, is_all(asked), |response| !response.resources.is_empty()).await
}

/// Returns whether a request has no names: a subscription to everything, for the types that have one.
fn is_all(asked: &[&str]) -> bool {
    asked.is_empty() || asked == ["*"]
}

/// Attacks 20 to 22, and property (d): the answers about a secret that the client may not receive, and about one of a
/// scope outside its view, equal those about a secret that does not exist. This holds for every byte, on every protocol.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forbidden_and_absent_secrets_have_equal_answers() {
    // Both servers have the same history, except for the names of what the client may not receive.
    let forbidden = start("n2-key", "n1-far").await;
    let absent = start("n3-key", "n1-off").await;
    let asked: [&[&str]; 6] = [
        &["n2-key"],
        &["n1-far"],
        &["n1-key", "n2-key", "n1-far", "none"],
        &[],
        &["*"],
        &["*", "n2-key"],
    ];
    for names in asked {
        for (of_sotw, of_delta) in STREAMS {
            let found = sotw(&forbidden, of_sotw, names).await;
            assert_eq!(found, sotw(&absent, of_sotw, names).await, "{of_sotw} {names:?}");
            assert!(found.resources.len() <= 1, "{of_sotw} {names:?}: {found:?}");
            let has_own = names.contains(&"n1-key") || is_all(names);
            assert_eq!(found.resources.len(), usize::from(has_own), "{of_sotw} {names:?}");
            let found = delta(&forbidden, of_delta, names).await;
            assert_eq!(found, delta(&absent, of_delta, names).await, "{of_delta} {names:?}");
            let text = String::from_utf8_lossy(&found.encode_to_vec()).into_owned();
            assert!(!text.contains("theirs"), "{of_delta} {names:?}: {text}");
            assert_eq!(found.resources.len(), usize::from(has_own), "{of_delta} {names:?}");
        }
        let body = json!({"resource_names": names, "node": {"id": "n1"}}).to_string();
        let poll = async |guarded: &Guarded| {
            let mut client = Http1::connect(&guarded.server).await;
            let mut reply = client.post_as(REST_SDS, &body, &guarded.token).await;
            reply.headers.remove("date");
            (reply.status, reply.headers, String::from_utf8(reply.body).unwrap())
        };
        let found = poll(&forbidden).await;
        assert_eq!(found, poll(&absent).await, "{names:?}");
        assert!(!found.2.contains("theirs"), "{names:?}: {found:?}");
    }
}

/// Attacks 20 to 22: a secret that a client may not receive looks like one that does not exist, on
/// streams and polls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forbidden_secret_looks_absent() {
    let guarded = Guarded::start(Some(rule("r", &["default"], &["default"]))).await;
    guarded.server.put(SECRET, &[("n1-key", "own"), ("n2-key", "theirs")]);
    let mut stream = guarded.delta(DELTA_ADS, Some(&guarded.token)).await.unwrap();
    stream.subscribe(SECRET, &["n1-key", "n2-key", "none"]).await;
    let (mut found, mut absent) = (Vec::new(), Vec::new());
    while found.len() + absent.len() < 3 {
        let response = stream.next().await;
        found.extend(names(&response).into_iter().map(str::to_owned));
        absent.extend(response.removed_resources.iter().map(ToString::to_string));
        stream.ack(&response).await;
    }
    absent.sort();
    assert_eq!(
        (found, absent),
        (vec!["n1-key".to_owned()], vec!["n2-key".to_owned(), "none".to_owned()])
    );

    // A change of the forbidden secret is not visible, and one of the own secret is.
    guarded.server.put(SECRET, &[("n2-key", "theirs, changed")]);
    guarded.server.put(SECRET, &[("n1-key", "own, changed")]);
    let response = stream.next().await;
    assert_eq!(names(&response), ["n1-key"]);
    stream.ack(&response).await;
    guarded.server.delete(SECRET, &["n2-key"]);
    guarded.server.delete(SECRET, &["n1-key"]);
    let response = stream.next().await;
    assert_eq!(response.removed_resources, ["n1-key"]);

    // Without the right for secrets, all secrets look absent.
    let without = Guarded::start(Some(rule("r", &["default"], &[]))).await;
    without.server.put(SECRET, &[("n1-key", "own")]);
    let mut stream = without.delta(DELTA_ADS, Some(&without.token)).await.unwrap();
    stream.subscribe(SECRET, &["n1-key"]).await;
    let response = stream.next().await;
    assert_eq!((response.resources.len(), response.removed_resources.len()), (0, 1));
}
