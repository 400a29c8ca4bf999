//! The answers of the replicas, compared with the clients. A replica that is cut off answers for its own clients.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::Duration,
};

use chancery_model::types::CLUSTER;
use serde_json::Value;

use crate::{
    cluster::Replica,
    scripted::{Client, Record},
    support::http_get,
};

use super::{Marks, World};

/// The states of a client that have one word at any time. Near 10 s, a client that does not answer has either.
const SILENT_FROM: Duration = Duration::from_secs(12);
const PENDING_TO: Duration = Duration::from_secs(9);

/// The maximum number of nodes that `describe` lists.
const NODES_LISTED_MAX: usize = 100;

/// The states in the order from good to bad.
const STATES: [&str; 6] = ["synced", "waiting", "pending", "silent", "rejected", "unassigned"];

/// The truth about one stream.
struct Stream {
    id: String,
    /// The number of the replica.
    replica_id: usize,
    state: &'static str,
    /// Whether the client has not acknowledged everything.
    is_behind: bool,
    record: Record,
}

/// The truth about the part of the fleet that a replica reaches.
struct Truth<'a> {
    streams: Vec<Stream>,
    disconnected: BTreeSet<String>,
    /// The numbers of the replicas that do not answer.
    missing: BTreeSet<usize>,
    /// Whether this replica lacks the newest revision.
    lacks_revision: bool,
    /// The published content, as far as the replica knows it.
    published: &'a Marks,
}

fn is_unassigned(world: &World, client: &Client) -> bool {
    client.id.starts_with(world.unassigned)
}

/// Returns the state of a client, as the client itself knows it.
fn state(world: &World, client: &Client, record: &Record) -> &'static str {
    if is_unassigned(world, client) {
        return "unassigned";
    }
    let of_type = |(type_url, names): &(&'static str, Vec<&'static str>)| {
        let held = record.held.get(type_url);
        let has = |name: &&&str| held.is_some_and(|held| held.contains_key(**name));
        if let Some(received) = record.unanswered.get(type_url) {
            match received.at.map(|at| at.elapsed()) {
                Some(age) if age > SILENT_FROM => "silent",
                Some(age) if age > PENDING_TO => "pending or silent",
                _ => "pending",
            }
        } else if record.rejected.contains_key(type_url) {
            "rejected"
        } else if names.iter().filter(has).count() < names.len() {
            "waiting"
        } else {
            "synced"
        }
    };
    let rank = |state: &&str| STATES.iter().position(|one| one == state).unwrap_or(2);
    client.types.iter().map(of_type).max_by_key(rank).unwrap_or("synced")
}

impl<'a> Truth<'a> {
    /// Returns the truth that a replica can know.
    fn of(world: &'a World, asked: usize) -> Self {
        let reached = world.reached_by(asked);
        let cut_off = world.cut_off.as_ref().filter(|cut| cut.at == asked);
        let lacks_revision = cut_off.is_some_and(|cut| cut.revision < world.revision);
        let (mut streams, mut known) = (Vec::new(), BTreeSet::new());
        for client in world.clients.values() {
            let record = client.record().clone();
            if record.visited.iter().any(|at| reached.contains(at)) {
                known.insert(client.id.clone());
            }
            let Some(at) = record.connected.filter(|at| reached.contains(at)) else {
                continue;
            };
            let is_assigned = !is_unassigned(world, client);
            streams.push(Stream {
                id: client.id.clone(),
                replica_id: at + 1,
                state: state(world, client, &record),
                is_behind: is_assigned
                    && (lacks_revision
                        || !(record.unanswered.is_empty() && record.rejected.is_empty())),
                record,
            });
        }
        for stream in &streams {
            known.remove(&stream.id);
        }
        Self {
            streams,
            disconnected: known,
            missing: (0..3).filter(|at| !reached.contains(at)).map(|at| at + 1).collect(),
            lacks_revision,
            published: cut_off.map_or(&world.published, |cut| &cut.published),
        }
    }

    fn of_node<'s>(&'s self, id: &'s str) -> impl Iterator<Item = &'s Stream> {
        self.streams.iter().filter(move |stream| stream.id == id)
    }

    fn ids(&self, select: impl Fn(&Stream) -> bool) -> BTreeSet<String> {
        self.streams.iter().filter(|stream| select(stream)).map(|one| one.id.clone()).collect()
    }
}

/// The answer to a command, or to the same question over HTTP.
struct Answer {
    /// The exit code; `None` for an answer of success over HTTP, which does not have one.
    code: Option<i32>,
    json: Value,
    text: String,
}

impl Answer {
    fn of_command(replica: &Replica, args: &[&str]) -> Self {
        let done = replica.run(&[args, &["-o", "json"]].concat(), "");
        let json = serde_json::from_str(&done.out).unwrap_or_default();
        Self { code: Some(done.code), json, text: format!("{done:?}") }
    }

    fn of_http(replica: &Replica, path: &str) -> Self {
        let (status, body) = http_get(&replica.admin, path);
        let json: Value = serde_json::from_str(&body).unwrap_or_default();
        // The exit code of a command with this answer.
        let is_whole = numbers(&json["error"]["not_asked"], "replica_id").is_empty();
        let code = (status != 200).then_some(if is_whole { 1 } else { 4 });
        Self { code, json, text: format!("{path}: {status}: {body}") }
    }
}

/// Asks a replica six questions, with commands or over HTTP. Without the others, a replica reads only its own state.
fn ask(
    replica: &Replica,
    (is_by_command, is_stale): (bool, bool),
    revision: u64,
    (id, name): (&str, &str),
) -> Vec<Answer> {
    if is_by_command {
        let revision = revision.to_string();
        let stale: &[&str] = if is_stale { &["--stale"] } else { &[] };
        let commands: [&[&str]; 6] = [
            &["nodes"],
            &["node", id],
            &["nodes", "--behind", &revision],
            &["wait", &revision, "--timeout", "500ms"],
            &[&["explain", id, "cds", name], stale].concat(),
            &[&["describe", "cds", name], stale].concat(),
        ];
        return at_once(commands, |args| Answer::of_command(replica, args));
    }
    let paths = [
        "/v1/nodes".to_owned(),
        format!("/v1/nodes/{id}"),
        format!("/v1/nodes?behind={revision}"),
        format!("/v1/wait?revision={revision}&timeout=500ms"),
        format!("/v1/explain?node={id}&type=cds&name={name}&stale={is_stale}"),
        format!("/v1/describe?type=cds&name={name}&stale={is_stale}"),
    ];
    at_once(paths, |path| Answer::of_http(replica, &path))
}

/// Asks all questions at the same time: each takes seconds while a replica hangs.
fn at_once<T: Send>(questions: [T; 6], ask: impl Fn(T) -> Answer + Sync) -> Vec<Answer> {
    thread::scope(|scope| {
        let asking = questions.map(|question| scope.spawn(|| ask(question)));
        asking.map(|asking| asking.join().unwrap()).into()
    })
}

/// Returns the first difference between the truth and the answers of the replicas that run. One replica that does not
/// serve the node is asked with commands, which are slow to start. All others are asked over HTTP.
pub(super) fn difference(world: &World, subject: (&str, &str), number: usize) -> Option<String> {
    let (id, name) = subject;
    let asked: Vec<usize> = (0..3).filter(|at| !world.missing.contains(at)).collect();
    let serves = |at: &usize| {
        let mut clients = world.clients.values().filter(|client| client.id == id);
        clients.any(|client| client.record().connected == Some(*at))
    };
    let others: Vec<usize> = asked.iter().copied().filter(|at| !serves(at)).collect();
    let by_command = if others.is_empty() { &asked } else { &others };
    let by_command = by_command[number % by_command.len()];
    let answers: Vec<(usize, Vec<Answer>)> = thread::scope(|scope| {
        let asking: Vec<_> = asked
            .iter()
            .map(|&at| {
                let replica = &world.fleet.replicas[at];
                let how = (at == by_command, world.is_cut_off(at));
                (at, scope.spawn(move || ask(replica, how, world.revision, subject)))
            })
            .collect();
        asking.into_iter().map(|(at, asking)| (at, asking.join().unwrap())).collect()
    });
    answers.iter().find_map(|(at, answers)| {
        let [nodes, node, behind, wait, explain, describe] = answers.as_slice() else {
            unreachable!("one answer for each command")
        };
        let truth = Truth::of(world, *at);
        let checked = check_nodes(&truth, nodes)
            .and_then(|()| check_node(&truth, id, node))
            .and_then(|()| check_behind(&truth, behind))
            .and_then(|()| check_wait(&truth, wait))
            .and_then(|()| check_explain(&truth, subject, explain))
            .and_then(|()| check_describe(&truth, name, describe));
        checked.err().map(|text| format!("replica {}: {text}", at + 1))
    })
}

fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    answer: &Answer,
    shown: &T,
    truth: &T,
) -> Result<(), String> {
    if shown == truth {
        return Ok(());
    }
    Err(format!("{what}: {shown:?} instead of {truth:?}: {}", answer.text))
}

/// Compares an exit code, if the answer has one.
fn same_code(what: &str, answer: &Answer, expected: i32) -> Result<(), String> {
    answer.code.map_or(Ok(()), |code| same(what, answer, &code, &expected))
}

fn texts(list: &Value, field: &str) -> BTreeSet<String> {
    let texts = list.as_array().into_iter().flatten().filter_map(|one| one[field].as_str());
    texts.map(str::to_owned).collect()
}

fn numbers(list: &Value, field: &str) -> BTreeSet<usize> {
    let numbers = list.as_array().into_iter().flatten().filter_map(|one| one[field].as_u64());
    numbers.map(|n| usize::try_from(n).unwrap()).collect()
}

/// Compares the replicas that an answer names because they did not answer. Each has a reason.
fn check_missing(truth: &Truth<'_>, answer: &Answer) -> Result<(), String> {
    let missing = &answer.json["not_asked"];
    same("not asked", answer, &numbers(missing, "replica_id"), &truth.missing)?;
    let mut all = missing.as_array().into_iter().flatten();
    let has_reason = |one: &Value| {
        let reason = one["message"].as_str().unwrap_or_default();
        let reasons = ["did not answer within", "cannot be reached", "was not asked in time"];
        reasons.iter().any(|text| reason.contains(text))
    };
    match all.find(|one| !has_reason(one)) {
        None => Ok(()),
        Some(one) => Err(format!("no reason: {one}")),
    }
}

/// Compares what an answer says about its completeness.
fn check_complete(truth: &Truth<'_>, answer: &Answer, code: i32) -> Result<(), String> {
    check_missing(truth, answer)?;
    let expected = if truth.missing.is_empty() { code } else { 4 };
    same_code("exit code", answer, expected)
}

fn check_nodes(truth: &Truth<'_>, answer: &Answer) -> Result<(), String> {
    check_complete(truth, answer, 0)?;
    let nodes = &answer.json["nodes"];
    same("nodes", answer, &texts(nodes, "id"), &truth.ids(|_| true))?;
    same("disconnected", answer, &texts(&answer.json["disconnected"], "id"), &truth.disconnected)?;
    for node in nodes.as_array().unwrap() {
        check_streams(truth, node, answer)?;
    }
    Ok(())
}

/// Compares the streams of a node.
fn check_streams(truth: &Truth<'_>, node: &Value, answer: &Answer) -> Result<(), String> {
    let id = node["id"].as_str().unwrap_or_default();
    let rank = |stream: &&Stream| STATES.iter().position(|one| *one == stream.state).unwrap_or(2);
    let Some(worst) = truth.of_node(id).max_by_key(rank) else {
        return Err(format!("node {id} is not connected: {node}"));
    };
    let shown = node["condition"]["state"].as_str().unwrap_or_default();
    if !worst.state.split(" or ").any(|state| state == shown) {
        return Err(format!("the state of {id} is {:?}: {node}", worst.state));
    }
    let n = truth.of_node(id).count();
    let n_duplicates = if n > 1 { n } else { 0 };
    same("duplicates", answer, &node["duplicates"], &n_duplicates.into())?;
    let streams = node["streams"].as_array().cloned().unwrap_or_default();
    same("streams", answer, &streams.len(), &n)?;
    for shown in streams {
        let is_it = |stream: &&Stream| shown["replica_id"] == stream.replica_id;
        let Some(stream) = truth.of_node(id).find(is_it) else {
            return Err(format!("no stream of {id} to that replica: {shown}"));
        };
        for subscription in shown["subscriptions"].as_array().into_iter().flatten() {
            let type_url = subscription["type_url"].as_str().unwrap_or_default();
            let accepted = stream.record.accepted.get(type_url).cloned().unwrap_or_default();
            let is_here = stream.record.accepted_here.contains(type_url);
            // A new stream shows the version that the client reported once it knows that nothing has to be sent.
            let is_open = !is_here && subscription["acked_version"] == "";
            if subscription["acked_version"] != accepted && !is_open {
                return Err(format!("{id} has accepted {accepted:?}: {subscription}"));
            }
            let is_rejected = subscription["nack_message"] != "";
            if is_rejected != stream.record.rejected.contains_key(type_url) {
                return Err(format!("the rejections of {id} are others: {subscription}"));
            }
        }
    }
    Ok(())
}

fn check_node(truth: &Truth<'_>, id: &str, answer: &Answer) -> Result<(), String> {
    if truth.of_node(id).next().is_some() {
        check_complete(truth, answer, 0)?;
        return check_streams(truth, &answer.json, answer);
    }
    if truth.disconnected.contains(id) {
        check_complete(truth, answer, 0)?;
        return same("state", answer, &answer.json["condition"]["state"], &"disconnected".into());
    }
    // A replica that does not answer may have the node.
    let missing = &answer.json["error"]["not_asked"];
    same("not asked", answer, &numbers(missing, "replica_id"), &truth.missing)?;
    same_code("an unknown node", answer, if truth.missing.is_empty() { 1 } else { 4 })
}

fn check_behind(truth: &Truth<'_>, answer: &Answer) -> Result<(), String> {
    check_complete(truth, answer, 0)?;
    let shown = texts(&answer.json["nodes"], "id");
    same("nodes behind", answer, &shown, &truth.ids(|stream| stream.is_behind))
}

fn check_wait(truth: &Truth<'_>, answer: &Answer) -> Result<(), String> {
    if truth.lacks_revision {
        // The replica knows nothing about the clients that could have the revision.
        let wait = &answer.json;
        check_missing(truth, answer)?;
        same("a complete wait", answer, &wait["complete"], &false.into())?;
        same("enough", answer, &wait["enough"], &false.into())?;
        return same_code("exit code of the wait", answer, 4);
    }
    let assigned = || truth.streams.iter().filter(|one| one.state != "unassigned");
    let (asked, n_behind) = (assigned().count(), assigned().filter(|one| one.is_behind).count());
    let code = match (asked, n_behind) {
        _ if n_behind > 0 => 1,
        _ if !truth.missing.is_empty() => 4,
        (0, _) => 3,
        _ => 0,
    };
    same_code("exit code of the wait", answer, code)?;
    let wait = &answer.json;
    same("asked", answer, &wait["asked"], &asked.into())?;
    same("acknowledged", answer, &wait["acknowledged"], &(asked - n_behind).into())?;
    let open = truth.ids(|one| one.is_behind && one.state != "unassigned");
    same("unsettled", answer, &texts(&wait["unsettled"], "node"), &open)?;
    check_missing(truth, answer)
}

/// Compares the cluster that a node sees with the one that its client holds.
fn check_explain(
    truth: &Truth<'_>,
    (id, name): (&str, &str),
    answer: &Answer,
) -> Result<(), String> {
    let explained = &answer.json;
    check_missing(truth, answer)?;
    if !truth.missing.is_empty() {
        same_code("exit code of explain", answer, 4)?;
    }
    let streams: Vec<&Stream> = truth.of_node(id).collect();
    same("connected", answer, &explained["connected"], &(!streams.is_empty()).into())?;
    let [stream] = streams.as_slice() else { return Ok(()) };
    let seen = explained["scopes"].as_array().into_iter().flatten().find(|scope| {
        scope["version"] != "" && scope["shadowed_by"] == "" && scope["unknown"] == false
    });
    let key =
        |scope: &Value| (scope["scope"].as_str().unwrap_or_default().to_owned(), name.to_owned());
    let mark = seen.and_then(|scope| truth.published.get(&key(scope)).copied());
    let held = stream.record.mark(name);
    let conclusions = explained["conclusions"].to_string();
    let is_acknowledged = conclusions.contains(&format!("The client has acknowledged {name} "));
    let has_all = ["synced", "waiting"].contains(&stream.state);
    if has_all {
        same("mark", answer, &mark, &held)?;
        same("acknowledged", answer, &is_acknowledged, &held.is_some())?;
    }
    if is_acknowledged && stream.state != "unassigned" {
        same("acknowledged mark", answer, &mark, &held)?;
    }
    let is_rejected = conclusions.contains(&format!("The client rejects {name} "));
    if is_rejected != (stream.state == "rejected" && held != mark && mark.is_some()) {
        return Err(format!("the rejection of {id} is another: {explained}"));
    }
    Ok(())
}

/// Compares the nodes that see a cluster with the clients that hold it.
fn check_describe(truth: &Truth<'_>, name: &str, answer: &Answer) -> Result<(), String> {
    let of_name = truth.published.iter().filter(|((_, one), _)| one == name);
    let marks: BTreeMap<&str, i64> =
        of_name.map(|((scope, _), mark)| (scope.as_str(), *mark)).collect();
    if marks.is_empty() {
        return same("an unknown cluster", answer, &answer.code, &Some(1));
    }
    check_complete(truth, answer, 0)?;
    let scopes = answer.json["scopes"].as_array().cloned().unwrap_or_default();
    let shown: BTreeSet<&str> =
        scopes.iter().filter_map(|one| one["resource"]["scope"].as_str()).collect();
    same("scopes", answer, &shown, &marks.keys().copied().collect())?;
    let settled = truth.ids(|one| ["synced", "waiting"].contains(&one.state));
    let unsettled = truth.ids(|one| !["synced", "waiting"].contains(&one.state));
    let settled: BTreeSet<String> = settled.difference(&unsettled).cloned().collect();
    for one in &scopes {
        let mark = marks[one["resource"]["scope"].as_str().unwrap_or_default()];
        let nodes = one["nodes"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let nodes: BTreeSet<String> =
            nodes.filter(|id| settled.contains(*id)).map(str::to_owned).collect();
        let holds = |stream: &Stream| {
            settled.contains(&stream.id)
                && stream.record.held.get(CLUSTER).and_then(|held| held.get(name)) == Some(&mark)
        };
        let mut holders = truth.ids(holds);
        if one["nodes"].as_array().is_some_and(|listed| listed.len() == NODES_LISTED_MAX) {
            // The answer omits further nodes.
            holders.retain(|id| nodes.contains(id));
        }
        same("the nodes that see it", answer, &nodes, &holders)?;
    }
    Ok(())
}
