//! The load balancing policies of real gRPC clients, observed by the servers that answer.

use std::{collections::BTreeMap, path::Path, thread, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{
    grpc_life::with,
    support::{
        chancery::Chancery,
        envoy::Mode,
        grpc::{GrpcClient, GrpcServer, Kind},
        manifests::{CLUSTER, ENDPOINT, TYPES, api_listener, cluster, route},
        report, wait_for,
    },
};

const SERVICE: &str = "greeter.e2e";
const NODE: &str = "grpc-client";
const NAME: &str = "greeter";
const N_USERS: usize = 30;
/// The maximum time for some hundred calls, on a busy machine too.
const CALLS: Duration = Duration::from_secs(90);

/// Returns a list of policies in order of preference.
fn policies<const N: usize>(configs: [Value; N]) -> Value {
    let entry = |config: &Value| json!({"typed_extension_config": {"name": "policy", "typed_config": config}});
    json!({"policies": configs.iter().map(entry).collect::<Vec<_>>()})
}

/// Returns a policy of Envoy, such as `round_robin.v3.RoundRobin`, with its settings.
fn built_in(name: &str, mut settings: Value) -> Value {
    let type_url = format!("type.googleapis.com/envoy.extensions.load_balancing_policies.{name}");
    settings["@type"] = type_url.into();
    settings
}

fn wrr_locality<const N: usize>(children: [Value; N]) -> Value {
    let settings = json!({"endpoint_picking_policy": policies(children)});
    policies([built_in("wrr_locality.v3.WrrLocality", settings)])
}

fn round_robin() -> Value {
    built_in("round_robin.v3.RoundRobin", json!({}))
}

fn sized_ring(size: u32) -> Value {
    let settings = json!({"hash_function": "XX_HASH", "minimum_ring_size": size});
    policies([built_in("ring_hash.v3.RingHash", settings)])
}

/// Returns the resources of a client of one cluster. Each locality has a weight and the ports of its
/// endpoints.
fn service(policy: &Value, localities: &[(u32, &[u16])]) -> [Value; 4] {
    let mut cluster = cluster(Mode::SotwAds, NAME, "1s");
    cluster["load_balancing_policy"] = policy.clone();
    let mut route = route(NAME, NAME);
    route["virtual_hosts"][0]["routes"][0]["route"]["hash_policy"] =
        json!([{"header": {"header_name": "x-user"}}]);
    let endpoint = |port: &u16| {
        json!({"endpoint": {"address": {
            "socket_address": {"address": "127.0.0.1", "port_value": port}
        }}})
    };
    let localities: Vec<Value> = (localities.iter().enumerate())
        .map(|(index, (weight, ports))| {
            json!({
                "locality": {"region": "r", "zone": format!("z{index}")},
                "load_balancing_weight": weight,
                "lb_endpoints": ports.iter().map(endpoint).collect::<Vec<_>>(),
            })
        })
        .collect();
    let assignment = json!({"@type": ENDPOINT, "cluster_name": NAME, "endpoints": localities});
    [api_listener(SERVICE, NAME), route, cluster, assignment]
}

fn servers<const N: usize>(dir: &Path, names: [&str; N]) -> Result<Vec<GrpcServer>> {
    names.iter().map(|name| GrpcServer::start(dir, name)).collect()
}

/// Waits until at least `n_min` calls were made since the last query, and returns their answers.
fn answers(client: &mut GrpcClient, n_min: u64) -> Result<BTreeMap<String, u64>> {
    let mut answers: BTreeMap<String, u64> = BTreeMap::new();
    let mut failed = Vec::new();
    wait_for(&format!("{n_min} answers"), CALLS, || {
        let tally = client.take()?;
        for (answer, n) in tally.answers {
            *answers.entry(answer).or_default() += n;
        }
        failed.extend(tally.failed);
        Ok((answers.values().sum::<u64>() >= n_min || !failed.is_empty()).then_some(()))
    })?;
    ensure!(failed.is_empty(), "calls failed: {failed:?}");
    Ok(answers)
}

/// Waits until all these servers have answered, and drops the answers.
fn wait_for_all(client: &mut GrpcClient, names: &[&str]) -> Result<()> {
    wait_for(&format!("answers of {names:?}"), CALLS, || {
        thread::sleep(Duration::from_millis(90));
        let answers = client.take()?.answers;
        Ok((names.iter().all(|name| answers.iter().any(|(it, _)| it == name))).then_some(()))
    })
}

/// Waits until this server answers, and no other one.
fn wait_for_only(client: &mut GrpcClient, name: &str) -> Result<()> {
    wait_for(&format!("answers of {name:?} only"), CALLS, || {
        thread::sleep(Duration::from_millis(90));
        let answers = client.take()?.answers;
        let is_other = answers.iter().any(|(it, _)| it != name);
        Ok((!is_other && !answers.is_empty()).then_some(()))
    })
}

/// LB-30, LB-31: ring_hash with C-core.
#[test]
fn c_core_keeps_the_server_of_each_header_value() -> Result<()> {
    ring_hash(Kind::Python)
}

/// LB-48: ring_hash with grpc-js, by the legacy policy.
#[test]
fn grpc_js_keeps_the_server_of_each_header_value() -> Result<()> {
    ring_hash(Kind::Node)
}

/// LB-30, LB-31: ring_hash with grpc-go.
#[test]
fn grpc_go_keeps_the_server_of_each_header_value() -> Result<()> {
    ring_hash(Kind::Go)
}

/// All calls with one value of the header reach one server. If a server leaves, only the values of this
/// server move.
fn ring_hash(kind: Kind) -> Result<()> {
    with(kind, |dir| {
        let servers =
            BTreeMap::from_iter(["a", "b", "c"].into_iter().zip(servers(dir, ["a", "b", "c"])?));
        let state = |without: &str| {
            let present = servers.iter().filter(|(name, _)| **name != without);
            let ports: Vec<u16> = present.map(|(_, server)| server.port).collect();
            // With 4 entries at least, each of 3 or 2 servers has 2 entries. No entry is thus added or
            // moved when a server leaves.
            let mut state = service(&sized_ring(4), &[(1, &ports)]);
            if kind == Kind::Node {
                // grpc-js rejects sizes in the new field.
                state[2]["load_balancing_policy"].take();
                state[2]["lb_policy"] = "RING_HASH".into();
                state[2]["ring_hash_lb_config"] = json!({"minimum_ring_size": 4});
            }
            state
        };
        let chancery = Chancery::start(dir)?;
        chancery.publish(&state(""))?;
        let users = N_USERS.to_string();
        let variables = [("CALL_USERS", users.as_str())];
        let mut client =
            GrpcClient::start_with(dir, kind, NODE, chancery.at.xds, &[SERVICE], &variables)?;
        let before = owners(&mut client)?;

        let n_users = |name: &str| before.values().filter(|owner| *owner == name).count();
        let leaves = servers.keys().max_by_key(|name| n_users(name)).context("no server")?;
        chancery.publish(&state(leaves))?;
        wait_for(&format!("no answer of {leaves:?}"), CALLS, || {
            thread::sleep(Duration::from_millis(200));
            let answers = client.take()?.answers;
            let is_gone = answers.iter().all(|(answer, _)| !answer.ends_with(leaves));
            Ok((is_gone && !answers.is_empty()).then_some(()))
        })?;
        let after = owners(&mut client)?;
        let moved = before.iter().filter(|(user, owner)| after[*user] != **owner);
        let moved: Vec<_> = moved.map(|(user, owner)| (user, owner, &after[user])).collect();
        report(&format!("{kind:?}: {} of {N_USERS} values moved with {leaves:?}", moved.len()));
        let is_expected = moved.iter().all(|(_, owner, _)| owner == leaves);
        if !is_expected || moved.len() != n_users(leaves) {
            bail!("{leaves:?} left, and these values moved: {moved:?}");
        }
        chancery.wait_for_node(NODE, "synced", &TYPES)
    })
}

/// LB-15: the differences of grpc-js that `Client::Node` has: ring sizes are rejected, and 17 levels of
/// policies are accepted.
#[test]
fn grpc_js_rejects_ring_sizes_and_accepts_17_levels() -> Result<()> {
    with(Kind::Node, |dir| {
        let server = GrpcServer::start(dir, "a")?;
        let chancery = Chancery::start(dir)?;
        let ports = [server.port];
        let nested = |levels: usize| {
            let leaf = policies([round_robin()]);
            let policy = (1..levels).fold(leaf, |child, _| {
                let settings = json!({"endpoint_picking_policy": child});
                policies([built_in("wrr_locality.v3.WrrLocality", settings)])
            });
            service(&policy, &[(1, &ports)])
        };
        chancery.publish(&nested(1))?;
        let mut client = GrpcClient::start(dir, Kind::Node, NODE, chancery.at.xds, SERVICE)?;
        wait_for_only(&mut client, "a")?;
        let sized = service(&sized_ring(1024), &[(1, &ports)]);
        let text = chancery.publish_rejected(NODE, CLUSTER, &sized)?;
        ensure!(text.contains("min_ring_size must be a number"), "the rejection is {text:?}");
        chancery.publish(&nested(17))?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        let text = chancery.publish_rejected(NODE, CLUSTER, &nested(18))?;
        ensure!(text.contains("recursion depth"), "the rejection is {text:?}");
        Ok(())
    })
}

/// Returns the server of each value of the header. Fails if a value has several servers.
fn owners(client: &mut GrpcClient) -> Result<BTreeMap<String, String>> {
    let mut owners = BTreeMap::new();
    // Every value occurs at least three times.
    for answer in answers(client, 4 * u64::try_from(N_USERS)?)?.into_keys() {
        let (user, owner) = answer.split_once(' ').context("an answer without user")?;
        if let Some(other) = owners.insert(user.to_owned(), owner.to_owned()) {
            bail!("{user} is served by {other} and {owner}");
        }
    }
    ensure!(owners.len() == N_USERS, "only {} values occurred", owners.len());
    Ok(owners)
}

/// LB-47, LB-55: wrr_locality with C-core.
#[test]
fn c_core_distributes_calls_by_locality_weight() -> Result<()> {
    weights(Kind::Python)
}

/// LB-47, LB-55: wrr_locality with grpc-js.
#[test]
fn grpc_js_distributes_calls_by_locality_weight() -> Result<()> {
    weights(Kind::Node)
}

/// LB-47, LB-55: wrr_locality with grpc-go.
#[test]
fn grpc_go_distributes_calls_by_locality_weight() -> Result<()> {
    weights(Kind::Go)
}

/// The share of a locality is its weight, within 5 standard deviations of independent random choices. A
/// correct client exceeds that once in 1.7 million times.
fn weights(kind: Kind) -> Result<()> {
    with(kind, |dir| {
        let servers = servers(dir, ["a", "b"])?;
        let chancery = Chancery::start(dir)?;
        let policy = wrr_locality([round_robin()]);
        let state =
            |a: u32, b: u32| service(&policy, &[(a, &[servers[0].port]), (b, &[servers[1].port])]);
        chancery.publish(&state(1, 1))?;
        let mut client = GrpcClient::start_to(dir, kind, NODE, chancery.at.xds, &[SERVICE; 4])?;
        wait_for_all(&mut client, &["a", "b"])?;
        for (a, b) in [(3, 1), (1, 3)] {
            chancery.publish_and_wait(&state(a, b))?;
            wait_for_all(&mut client, &["a", "b"])?;
            // Each channel acknowledges first, and uses the weights soon afterwards.
            answers(&mut client, 200)?;
            let answers = answers(&mut client, 600)?;
            let (n, n_a) = (answers.values().sum::<u64>(), answers.get("a").copied());
            let expected = f64::from(a) / f64::from(a + b);
            let share = to_f64(n_a.unwrap_or_default())? / to_f64(n)?;
            let bound = 5.0 * (expected * (1.0 - expected) / to_f64(n)?).sqrt();
            report(&format!("{kind:?}: share {share:.3} of {n} calls, weights {a}:{b}"));
            if (share - expected).abs() > bound {
                bail!("the share is {share} instead of {expected} ± {bound}: {answers:?}");
            }
        }
        Ok(())
    })
}

fn to_f64(n: u64) -> Result<f64> {
    Ok(f64::from(u32::try_from(n)?))
}

/// Returns the custom policy of the Go client, which sends all calls to one port, and `round_robin` for
/// clients without it.
fn prefer(port: u16) -> Value {
    let custom = json!({
        "@type": "type.googleapis.com/xds.type.v3.TypedStruct",
        "type_url": "type.googleapis.com/myorg.Prefer",
        "value": {"address": format!("127.0.0.1:{port}")},
    });
    wrr_locality([custom, round_robin()])
}

/// LB-03, LB-07, LB-26: a client that has registered a custom policy uses it with its configuration, and
/// clients without it use the next policy, for the same cluster.
#[test]
fn custom_policy_is_used_only_by_clients_that_have_it() -> Result<()> {
    with(Kind::Go, |dir| {
        let servers = servers(dir, ["a", "b", "c"])?;
        let ports: Vec<u16> = servers.iter().map(|server| server.port).collect();
        let chancery = Chancery::start(dir)?;
        let state = |preferred: u16| service(&prefer(preferred), &[(1, &ports)]);
        chancery.publish(&state(ports[1]))?;
        let xds = chancery.at.xds;
        let variables = [("CUSTOM_POLICY", "1")];
        let mut custom =
            GrpcClient::start_with(dir, Kind::Go, "grpc-custom", xds, &[SERVICE], &variables)?;
        wait_for_only(&mut custom, "b")?;
        chancery.publish(&state(ports[2]))?;
        wait_for_only(&mut custom, "c")?;
        let chosen = answers(&mut custom, 200)?;
        ensure!(chosen.keys().eq(["c"]), "the custom policy chose {chosen:?}");

        for kind in [Kind::Go, Kind::Python, Kind::Node] {
            let node = format!("grpc-plain-{kind:?}");
            let mut plain = GrpcClient::start(dir, kind, &node, xds, SERVICE)?;
            wait_for_all(&mut plain, &["a", "b", "c"])?;
            let answers = answers(&mut plain, 150)?;
            let most = answers.values().max().copied().unwrap_or_default();
            let least = answers.values().min().copied().unwrap_or_default();
            if answers.len() != 3 || most - least > 3 {
                bail!("{kind:?} has no custom policy, and the answers are {answers:?}");
            }
        }
        Ok(())
    })
}
