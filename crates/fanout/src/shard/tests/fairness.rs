//! Who takes much does not hold up who takes little: counted in turns, of one step each.

use chancery_model::types::{CLUSTER, ENDPOINT};
use chancery_protocol::DeltaRequest;

use super::desk::{Client, Desk, text};
use crate::{Config, event::Event};

/// A shard that does one step of each kind in a turn, and cuts responses short.
fn desk() -> Desk {
    let session =
        chancery_protocol::Config { response_bytes_target: 4 << 10, ..Default::default() };
    Desk::with(Config { turn_work_max: 1, session, ..Config::default() })
}

/// A client that has all there is for it, of one endpoint.
fn settled(desk: &mut Desk) -> Client {
    desk.put("default", ENDPOINT, &[("x", "1")]);
    let mut client = desk.subscribe("small", ENDPOINT, &["x"]);
    let first = desk.read(&mut client);
    assert_eq!(text(&first), "x=1");
    desk.ack(&client, &first[0]);
    desk.settle();
    client
}

/// Turns until the client is handed something; in each, `meanwhile` is done first.
fn turns_until(
    desk: &mut Desk,
    client: &mut Client,
    mut meanwhile: impl FnMut(&mut Desk),
) -> usize {
    for turns in 1..100 {
        meanwhile(desk);
        desk.turn();
        if let Some(response) = client.take() {
            desk.ack(client, &response);
            return turns;
        }
    }
    panic!("nothing came in 100 turns");
}

/// Issue 3: one client takes 100,000 resources; another one's update waits for one part of that.
#[test]
fn a_huge_sync_does_not_hold_up_a_small_update() {
    let mut desk = desk();
    let mut small = settled(&mut desk);
    let names: Vec<String> = (0..100_000).map(|n| format!("c{n:06}")).collect();
    let clusters: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    desk.put("default", CLUSTER, &clusters);
    desk.settle();
    let mut huge = desk.subscribe("huge", CLUSTER, &[]);
    let mut got = 0;
    let mut rounds = 0;
    while got < names.len() {
        rounds += 1;
        let version = (rounds + 1).to_string();
        desk.put("default", ENDPOINT, &[("x", &version)]);
        let turns = turns_until(&mut desk, &mut small, |desk| {
            // It takes and acknowledges whatever there is at once, and so always wants more.
            if let Some(part) = huge.take() {
                got += part.resources.len();
                desk.ack(&huge, &part);
            }
        });
        assert!(turns <= 4, "the update waited for {turns} turns, in round {rounds}");
    }
    assert!(rounds > 50, "{rounds} rounds: the sync was over too soon to show anything");
}

/// OPS-17: clients that connect all at once are served in their turn, type by type; who is connected
/// already goes on being served.
#[test]
fn many_clients_that_connect_do_not_hold_up_a_small_update() {
    let mut desk = desk();
    let mut small = settled(&mut desk);
    desk.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
    desk.settle();
    let mut many: Vec<Client> = (0..1000).map(|_| desk.open()).collect();
    let mut round = 1;
    for (type_url, names) in [(CLUSTER, vec![]), (ENDPOINT, vec!["y".to_owned()])] {
        for (n, client) in many.iter().enumerate() {
            let type_url = type_url.to_owned();
            let request =
                DeltaRequest { type_url, subscribe: names.clone().into(), ..Default::default() };
            desk.send(client, Some(&format!("n{n}")), request);
        }
        assert_eq!(desk.shard.queue.len(), 1000);
        while desk.shard.queue.len() > 1 {
            round += 1;
            desk.put("default", ENDPOINT, &[("x", &round.to_string())]);
            let turns = turns_until(&mut desk, &mut small, |_| {});
            assert!(turns <= 4, "the update waited for {turns} turns, in round {round}");
        }
        let served = many.iter_mut().filter_map(Client::take).count();
        assert_eq!(served, many.len(), "and they are served all the same");
        // They ask for the next message.
        assert!(many.iter_mut().filter_map(Client::take).next().is_none());
        desk.settle();
    }
    assert!(round > 200, "{round} rounds: they were served too soon to show anything");
}

/// A commit that concerns a thousand streams holds up nobody's own update by more than the telling of
/// it, which costs an eighth of a step for each.
#[test]
fn a_commit_for_many_does_not_hold_up_who_was_waiting() {
    let mut desk = desk();
    let mut many: Vec<Client> = Vec::new();
    for n in 0..200 {
        let mut client = desk.subscribe(&format!("n{n}"), CLUSTER, &[]);
        let first = desk.read(&mut client);
        desk.ack(&client, &first[0]);
        many.push(client);
    }
    let mut small = settled(&mut desk);
    desk.put("default", ENDPOINT, &[("x", "2")]);
    desk.put("default", CLUSTER, &[("a", "1")]);
    let turns = turns_until(&mut desk, &mut small, |_| {});
    assert!(turns <= 2, "its update waited for {turns} turns");
    for client in &mut many {
        assert_eq!(text(&desk.read(client)), "a=1");
    }
}

/// Questions about all streams are answered a page at a time, and a page is all that a turn does of them.
#[tokio::test]
async fn questions_about_all_streams_are_answered_in_pages() {
    let mut desk = Desk::with(Config { turn_work_max: 10, ..Config::default() });
    let _clients: Vec<Client> =
        (0..95).map(|n| desk.subscribe(&format!("n{n}"), CLUSTER, &[])).collect();
    desk.settle();
    let mut from = Some(0);
    let (mut pages, mut found) = (0, 0);
    while let Some(at) = from {
        let (reply, answer) = tokio::sync::oneshot::channel();
        desk.post(Event::Status { from: at, reply });
        // What comes behind it is for the next turn.
        desk.post(Event::Status { from: 0, reply: tokio::sync::oneshot::channel().0 });
        desk.turn();
        assert_eq!(desk.n_events(), 1, "a page is a whole turn's work");
        desk.events.updates.clear();
        let page = answer.await.unwrap();
        assert!(page.items.len() <= 10);
        (pages, found, from) = (pages + 1, found + page.items.len(), page.next);
    }
    assert_eq!(found, 95);
    assert!(pages >= 10, "{pages} pages");
}
