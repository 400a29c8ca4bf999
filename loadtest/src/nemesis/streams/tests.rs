//! Tests of the clients with correct and with wrong responses.

use chancery_model::Revision;
use chancery_proto::discovery::{Any, Resource};

use super::{
    super::{
        history::{name, value_text},
        linear::Action,
    },
    *,
};

fn client(protocol: Protocol) -> Client {
    let history = Arc::new(History::new());
    for revision in 1..=3 {
        let (operation, _) = history.begin(0, 1, Action::Write);
        history.acked(operation, revision, Some(version(revision)));
    }
    Client {
        id: "client".to_owned(),
        protocol,
        random: Random::new(1),
        history,
        ready: Arc::default(),
        values: ClientValues::default(),
        stay: Duration::ZERO,
        stop: Arc::default(),
        state: State::default(),
    }
}

fn version(revision: u64) -> Version {
    Version { revision: Revision(revision), tag: 1 }
}

/// Returns the register after the write of a revision.
fn body(revision: u64) -> Any {
    let cluster = Cluster { name: name(0), alt_stat_name: value_text(revision - 1) };
    Any { type_url: CLUSTER.to_owned(), value: cluster.encode_to_vec().into() }
}

fn delta(revision: u64) -> DeltaDiscoveryResponse {
    let resource = Resource {
        name: name(0),
        version: version(revision).to_string(),
        resource: Some(body(revision)),
        ..Resource::default()
    };
    DeltaDiscoveryResponse { resources: vec![resource], ..DeltaDiscoveryResponse::default() }
}

fn removal() -> DeltaDiscoveryResponse {
    DeltaDiscoveryResponse { removed_resources: vec![name(0)], ..Default::default() }
}

fn sotw(revision: Option<u64>) -> DiscoveryResponse {
    DiscoveryResponse {
        resources: revision.map(body).into_iter().collect(),
        ..DiscoveryResponse::default()
    }
}

fn broken(client: &Client) -> Vec<Guarantee> {
    client.history.violations().1.into_keys().collect()
}

fn held(client: &Client) -> Vec<u64> {
    client.values.lock().values().copied().collect()
}

#[test]
fn delta_client_tracks_received_and_removed_resources() {
    let mut client = client(Protocol::Delta);
    client.take_delta(delta(1)).unwrap();
    client.take_delta(delta(2)).unwrap();
    assert_eq!(held(&client), [1]);
    client.take_delta(removal()).unwrap();
    assert_eq!((held(&client), client.state.versions.len()), (vec![], 0));
    client.take_delta(delta(3)).unwrap();
    assert_eq!((held(&client), broken(&client)), (vec![2], vec![]));
}

#[test]
fn version_regression_is_found_across_a_removal() {
    let mut client = client(Protocol::Delta);
    client.take_delta(delta(3)).unwrap();
    client.take_delta(delta(2)).unwrap();
    assert_eq!(broken(&client), [Guarantee::Backwards]);

    let mut client = self::client(Protocol::Delta);
    client.take_delta(delta(3)).unwrap();
    client.take_delta(removal()).unwrap();
    client.take_delta(delta(1)).unwrap();
    assert_eq!(broken(&client), [Guarantee::Backwards]);

    let mut client = self::client(Protocol::Sotw);
    client.take_sotw(sotw(Some(3))).unwrap();
    client.take_sotw(sotw(None)).unwrap();
    client.take_sotw(sotw(Some(1))).unwrap();
    assert_eq!(broken(&client), [Guarantee::Backwards]);
}

#[test]
fn resent_delta_resource_is_found() {
    let mut client = client(Protocol::Delta);
    client.take_delta(delta(1)).unwrap();
    client.take_delta(delta(1)).unwrap();
    assert_eq!(broken(&client), [Guarantee::Resent]);
    assert_eq!(client.history.counts().resent_delta, 1);
}

#[test]
fn sotw_client_tracks_the_last_response() {
    let mut client = client(Protocol::Sotw);
    client.take_sotw(sotw(Some(1))).unwrap();
    client.take_sotw(sotw(Some(2))).unwrap();
    assert_eq!(held(&client), [1]);
    client.take_sotw(sotw(None)).unwrap();
    assert_eq!((held(&client), broken(&client)), (vec![], vec![]));
}
