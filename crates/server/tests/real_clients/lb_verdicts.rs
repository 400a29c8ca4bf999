//! The verdicts of real gRPC clients on clusters with random load balancing policies, compared with those
//! of `chancery-lb-policy`.
//!
//! `CHANCERY_TEST_SEED=<seed>` repeats a run. `CHANCERY_TEST_LONG=1` asks about 20 times as many clusters.

use std::{env, fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use chancery_lb_policy::{
    Client, Registry, cluster_notes,
    proto::{Cluster, LeastRequestLbConfig, RingHashLbConfig},
};
use chancery_proto::discovery::{Any, DiscoveryResponse};
use prost::Message as _;
use serde_json::json;

use crate::{
    grpc_life::with,
    support::{
        chancery::Chancery,
        grpc::{GrpcClient, Kind, ResourceStatus},
        manifests::{CLUSTER, ROUTE, api_listener},
        report, wait_for,
    },
};

#[path = "../../../lb-policy/tests/it/oracle/random.rs"]
mod random;

const SERVICE: &str = "verdicts.e2e";
const N_CLUSTERS: usize = 250;
const VERDICTS: Duration = Duration::from_secs(60);

/// A way in which a client is known to differ from the specification, and from its profile here.
struct Deviation {
    client: Kind,
    reason: &'static str,
    /// Returns whether it explains a difference, given the rejections of the client and of the
    /// converter. One of the two is `None`.
    explains: fn(&Cluster, Option<&str>, Option<&str>) -> bool,
}

const DEVIATIONS: &[Deviation] = &[
    Deviation {
        client: Kind::Go,
        reason: "grpc-go validates a legacy policy that does not count (LB-46)",
        explains: |cluster, client, _| client.is_some() && !cluster_notes(cluster).is_empty(),
    },
    Deviation {
        client: Kind::Go,
        reason: "grpc-go accepts invalid sizes of the legacy policy RING_HASH",
        explains: |cluster, client, _| {
            let is_legacy = cluster.load_balancing_policy.is_none();
            is_legacy && cluster.lb_policy == Cluster::RING_HASH && client.is_none()
        },
    },
    Deviation {
        client: Kind::Python,
        reason: "C-core accepts a penalty that is infinite or not a number",
        explains: |_, _, here| {
            let text = here.unwrap_or_default();
            text.contains("the penalty is NaN") || text.contains("the penalty is inf")
        },
    },
    Deviation {
        client: Kind::Python,
        reason: "C-core checks the value of a `TypedStruct` whose policy it does not know",
        explains: |_, client, _| client.is_some_and(|text| text.contains("Struct as JSON")),
    },
];

/// LB-13, LB-31, LB-32, LB-36, LB-45, LB-50: C-core.
#[test]
fn c_core_rejects_the_clusters_that_the_converter_rejects() -> Result<()> {
    verdicts(Kind::Python, &Registry::of_client(Client::CCore))
}

/// LB-13, LB-31, LB-32, LB-36, LB-45, LB-50: grpc-go.
#[test]
fn grpc_go_rejects_the_clusters_that_the_converter_rejects() -> Result<()> {
    verdicts(Kind::Go, &Registry::of_client(Client::Go))
}

fn verdicts(kind: Kind, registry: &Registry) -> Result<()> {
    with(kind, |dir| {
        let seed = env::var("CHANCERY_TEST_SEED").map_or(Ok(12), |seed| seed.parse())?;
        let n_batches = if env::var_os("CHANCERY_TEST_LONG").is_some() { 20 } else { 1 };
        let chancery = Chancery::start(dir)?;
        // Chancery stores no malformed messages.
        let mut random = random::Random::new(seed, false);
        let mut rng = fastrand::Rng::with_seed(!seed);
        let mut counts = Counts::default();
        for batch in 0..n_batches {
            let clusters: Vec<Cluster> = (0..N_CLUSTERS)
                .map(|index| random_cluster(&mut random, &mut rng, format!("c-{batch}-{index}")))
                .collect();
            publish(dir, &chancery, &clusters)?;
            let node = format!("verdicts-{batch}");
            let mut client = GrpcClient::start(dir, kind, &node, chancery.at.xds, SERVICE)?;
            let found = wait_for_verdicts(&mut client, &clusters)?;
            for (cluster, found) in clusters.iter().zip(&found) {
                let verdict = registry.convert_cluster(cluster);
                let rejection = found.rejection();
                counts.add(kind, cluster, verdict.map_err(|error| error.to_string()), rejection);
            }
        }
        counts.judge(kind, seed, n_batches * N_CLUSTERS)
    })
}

/// How often the client and the converter agree.
#[derive(Default)]
struct Counts {
    accepted: usize,
    rejected: usize,
    /// The number of differences with a known reason, for each deviation.
    explained: Vec<&'static str>,
    unexplained: Vec<String>,
}

impl Counts {
    fn add<T>(
        &mut self,
        kind: Kind,
        cluster: &Cluster,
        verdict: Result<T, String>,
        rejection: Option<&str>,
    ) {
        match (&verdict, rejection) {
            (Ok(_), None) => self.accepted += 1,
            (Err(_), Some(_)) => self.rejected += 1,
            (verdict, client) => {
                let here = verdict.as_ref().err().map(String::as_str);
                let known = DEVIATIONS.iter().find(|deviation| {
                    deviation.client == kind && (deviation.explains)(cluster, client, here)
                });
                match known {
                    Some(deviation) => self.explained.push(deviation.reason),
                    None => self
                        .unexplained
                        .push(format!("{cluster:?}\n  client: {client:?}\n  here: {here:?}")),
                }
            }
        }
    }

    fn judge(mut self, kind: Kind, seed: u64, n: usize) -> Result<()> {
        self.explained.sort_unstable();
        let mut reasons = Vec::new();
        for group in self.explained.chunk_by(|a, b| a == b) {
            reasons.push(format!("{} × {}", group.len(), group[0]));
        }
        report(&format!(
            "{kind:?}: of {n} clusters, both accept {} and reject {}; known deviations: {reasons:?}",
            self.accepted, self.rejected
        ));
        ensure!(
            self.unexplained.is_empty(),
            "seed {seed}: {} verdicts differ:\n{}",
            self.unexplained.len(),
            self.unexplained.join("\n")
        );
        ensure!(
            self.accepted > n / 6 && self.rejected > n / 6,
            "the clusters are too similar: {} are accepted, {} rejected",
            self.accepted,
            self.rejected
        );
        Ok(())
    }
}

/// Returns a cluster with a random policy, a random legacy policy, or both.
fn random_cluster(random: &mut random::Random, rng: &mut fastrand::Rng, name: String) -> Cluster {
    let mut cluster = Cluster { name, r#type: Cluster::EDS, ..Default::default() };
    let choice = rng.u8(..10);
    if choice > 0 {
        cluster.load_balancing_policy = Some(random.policy());
    }
    if choice > 1 {
        return cluster;
    }
    cluster.lb_policy = rng.i32(0..8);
    if rng.bool() {
        let sizes = [1, 1024, 8_388_608, 8_388_609];
        let mut size = || rng.bool().then(|| sizes[rng.usize(..sizes.len())]);
        cluster.ring_hash_lb_config = Some(RingHashLbConfig {
            minimum_ring_size: size(),
            maximum_ring_size: size(),
            hash_function: rng.i32(0..2),
        });
    } else {
        let choice_count = rng.bool().then(|| rng.u32(1..5));
        cluster.least_request_lb_config = Some(LeastRequestLbConfig { choice_count });
    }
    cluster
}

/// Publishes the clusters, and a route for each, so that one client subscribes to all.
fn publish(dir: &Path, chancery: &Chancery, clusters: &[Cluster]) -> Result<()> {
    let resources = clusters.iter().map(|cluster| {
        let mut value = cluster.encode_to_vec();
        // The cluster also has `eds_cluster_config: {eds_config: {ads: {}}}`.
        value.extend([0x1a, 4, 0x0a, 2, 0x1a, 0]);
        Any { type_url: CLUSTER.to_owned(), value: value.into() }
    });
    let response = DiscoveryResponse {
        type_url: CLUSTER.to_owned(),
        resources: resources.collect(),
        ..Default::default()
    };
    let bodies = dir.join("clusters.pb");
    fs::write(&bodies, response.encode_to_vec())?;
    let routes: Vec<_> = (clusters.iter())
        .map(|cluster| {
            let name = &cluster.name;
            // C-core skips routes whose path does not consist of a service and a method.
            json!({"match": {"path": format!("/verdicts/{name}")}, "route": {"cluster": name}})
        })
        .collect();
    let hosts = json!([{"name": "all", "domains": ["*"], "routes": routes}]);
    let routes = json!({"@type": ROUTE, "name": "routes", "virtual_hosts": hosts});
    let others = dir.join("routes.json");
    fs::write(
        &others,
        json!({"resources": [api_listener(SERVICE, "routes"), routes]}).to_string(),
    )?;
    let [bodies, others] = [bodies, others].map(|path| path.display().to_string());
    // Validation would refuse many of them.
    chancery.cli(&["apply", "-f", &bodies, "-f", &others, "--prune", "--validation=off"], "")?;
    Ok(())
}

/// Waits until the client has accepted or rejected each of these clusters.
fn wait_for_verdicts(client: &mut GrpcClient, clusters: &[Cluster]) -> Result<Vec<ResourceStatus>> {
    wait_for("a verdict on each cluster", VERDICTS, || {
        std::thread::sleep(Duration::from_millis(200));
        let all = client.resource_status()?;
        let mut found = Vec::new();
        for cluster in clusters {
            let status = all.iter().find(|status| {
                status.type_url == CLUSTER && status.name == cluster.name && status.has_verdict()
            });
            match status {
                Some(status) => found.push(status.clone()),
                None => bail!("{} has no verdict, among {} resources", cluster.name, all.len()),
            }
        }
        Ok(Some(found))
    })
    .context("the client has crashed, or does not answer")
}
