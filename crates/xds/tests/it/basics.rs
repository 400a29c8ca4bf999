//! What every client does: subscribe, be answered, acknowledge, be told of changes.

use crate::support::*;

/// DELTA-05, SVC-02: a wildcard client gets everything, then what changes and nothing else.
#[tokio::test]
async fn a_delta_client_gets_everything_once_and_then_only_changes() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "1"), ("b", "1"), ("c", "1")]);
    let mut client = server.delta(DELTA_ADS).await;
    client.subscribe(CDS, &[]).await;
    let first = client.next().await;
    assert_eq!(names(&first), ["a", "b", "c"]);
    assert_eq!(first.type_url, CDS);
    client.ack(&first).await;

    server.put(CDS, &[("b", "2"), ("c", "1")]);
    let second = client.next().await;
    assert_eq!(names(&second), ["b"]);
    assert_eq!(second.resources[0].resource.as_ref().unwrap().value, "2");
    assert_ne!(second.nonce, first.nonce);
    client.ack(&second).await;

    server.delete(CDS, &["a"]);
    let third = client.next().await;
    assert_eq!((names(&third), &third.removed_resources[..]), (vec![], &["a".to_owned()][..]));
}

/// SOTW-70, -84: a full-state type is sent whole, and a deletion is its absence.
#[tokio::test]
async fn a_sotw_client_gets_the_whole_state_of_a_full_state_type() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "a1"), ("b", "b1")]);
    let mut client = server.sotw(SOTW_ADS).await;
    client.subscribe(CDS, &[]).await;
    let first = client.next().await;
    assert_eq!(bodies(&first), ["a1", "b1"]);
    client.ack(&first, &[]).await;
    server.put(CDS, &[("a", "a2")]);
    let second = client.next().await;
    assert_eq!(bodies(&second), ["a2", "b1"]);
    assert_ne!(second.version_info, first.version_info);
}
