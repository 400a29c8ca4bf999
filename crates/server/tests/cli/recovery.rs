//! The procedure of `docs/operations.md` for a lost majority, with real processes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
};

use chancery_model::types::CLUSTER;
use chancery_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use chancery_testing::reserve_port;
use prost::Message;
use rustix::process::Signal;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming, transport::Channel};

use crate::{
    cluster::eventually,
    support::{DEADLINE, Server, chancery, clusters, signal},
};

const DELTA: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// Three machines, each with a directory and a replication port.
struct Machines {
    dir: tempfile::TempDir,
    ports: [u16; 3],
}

impl Machines {
    fn new() -> Self {
        let ports = [(); 3].map(|()| reserve_port());
        let dir = tempfile::tempdir().unwrap();
        for name in ["1", "2", "3", "backup"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Self { dir, ports }
    }

    fn path(&self, replica: usize, name: &str) -> PathBuf {
        self.dir.path().join(replica.to_string()).join(name)
    }

    /// Returns a command that an operator runs on the machine of a replica.
    fn command(&self, replica: usize, line: &str) -> Command {
        let mut line = line
            .replace("/var/lib/chancery", &self.path(replica, "chancery").display().to_string())
            .replace("/backup/", &format!("{}/", self.dir.path().join("backup").display()));
        for (other, port) in (1..).zip(self.ports) {
            line = line.replace(&format!("10.0.0.{other}:18002"), &format!("127.0.0.1:{port}"));
        }
        let mut words = line.split_whitespace();
        let mut command = match words.next() {
            Some("chancery") => chancery(),
            Some(program) => Command::new(program),
            None => panic!("{line:?} is no command"),
        };
        command.args(words);
        // The replicas share one machine in this test.
        command.env("CHANCERY_XDS_ADDRESS", "127.0.0.1:0");
        command.env("CHANCERY_ADMIN_ADDRESS", "127.0.0.1:0");
        command.env("CHANCERY_STORE_FREE_BYTES_MIN", "64MiB");
        command.stderr(fs::File::create(self.path(replica, "log")).unwrap());
        command
    }

    fn serve(&self, replica: usize, line: &str) -> Server {
        Server::spawn(self.command(replica, line))
    }

    fn run(&self, replica: usize, line: &str) {
        let status = self.command(replica, line).status().unwrap();
        let log = fs::read_to_string(self.path(replica, "log")).unwrap();
        assert!(status.success(), "{line}: {log}");
    }
}

/// Returns the commands below a heading of the page, each with the replica on whose machine it
/// runs.
fn commands(heading: &str) -> Vec<(usize, String)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let (_, block) = section.split_once("```sh\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let mut replica = 0;
    let mut commands = Vec::new();
    for line in block.lines() {
        match line.strip_prefix("# On the machine of replica ") {
            Some(rest) => replica = rest[..1].parse().unwrap(),
            None => commands.push((replica, line.to_owned())),
        }
    }
    commands
}

fn kill(child: &mut Child) {
    signal(child, Signal::KILL);
    child.wait().unwrap();
}

/// Subscribes to all clusters as a client that holds the given versions. Returns the first
/// response.
async fn resume(server: &Server, held: &BTreeMap<String, String>) -> DeltaDiscoveryResponse {
    let channel = Channel::from_shared(format!("http://{}", server.xds)).unwrap();
    let mut client = tonic::client::Grpc::new(channel.connect().await.unwrap());
    client.ready().await.unwrap();
    let (requests, stream) = tokio::sync::mpsc::channel(4);
    let node = chancery_proto::node::Node { id: "n".into(), ..Default::default() };
    let request = DeltaDiscoveryRequest {
        node: Some(node.encode_to_vec().into()),
        type_url: CLUSTER.to_owned(),
        initial_resource_versions: held.clone(),
        ..Default::default()
    };
    requests.send(request).await.unwrap();
    let codec = tonic_prost::ProstCodec::default();
    let path = http::uri::PathAndQuery::from_static(DELTA);
    let response =
        client.streaming(Request::new(ReceiverStream::new(stream)), path, codec).await.unwrap();
    let mut responses: Streaming<DeltaDiscoveryResponse> = response.into_inner();
    let next = tokio::time::timeout(DEADLINE, responses.message()).await;
    next.expect("a response in time").unwrap().unwrap()
}

fn versions(response: &DeltaDiscoveryResponse) -> BTreeMap<String, String> {
    let resources = response.resources.iter();
    resources.map(|resource| (resource.name.clone(), resource.version.clone())).collect()
}

/// L1, L5: two of three replicas are permanently lost. The commands of the page restore the whole
/// state of the third replica in a cluster that accepts writes. Clients receive only the
/// differences.
#[tokio::test(flavor = "multi_thread")]
async fn documented_recovery_commands_restore_a_cluster_without_majority() {
    let machines = Machines::new();
    let serve = |replica: usize, join: &str| {
        let line = format!(
            "chancery serve --data-dir /var/lib/chancery --replica-id {replica} --raft \
             10.0.0.{replica}:18002 {join}"
        );
        machines.serve(replica, &line)
    };
    let mut first = serve(1, "");
    let mut second = serve(2, "--join 10.0.0.1:18002");
    let third = serve(3, "--join 10.0.0.1:18002");
    let status = |server: &Server| server.json(&["cluster", "status"], "");
    let is_whole = |server: &Server| {
        let voters = &status(server)["voters"];
        (voters.as_array().is_some_and(|voters| voters.len() == 3)).then_some(())
    };
    eventually("three voters", || is_whole(&first));
    second.json(&["apply", "-f", "-"], &clusters(&["a", "b", "c"], "1s"));
    let old_cluster = status(&first)["cluster_id"].clone();
    // The third replica and one of its clients have the write.
    let held = versions(&resume(&third, &BTreeMap::new()).await);
    assert_eq!(held.len(), 3);

    kill(&mut first.child);
    kill(&mut second.child);
    for replica in [1, 2] {
        fs::remove_dir_all(machines.path(replica, "chancery")).unwrap();
    }
    let served = versions(&resume(&third, &BTreeMap::new()).await);
    assert_eq!(served, held, "it continues to serve its state");
    let refused = third.run_with_input(&["apply", "-f", "-"], &clusters(&["d"], "1s"));
    assert_eq!(refused.code, 1, "no write is possible: {refused:?}");
    assert_eq!(third.terminate().0, Some(0));

    let mut servers = BTreeMap::new();
    for (replica, line) in commands("When the majority is lost") {
        if line.starts_with("chancery serve") {
            drop(servers.insert(replica, machines.serve(replica, &line)))
        } else {
            machines.run(replica, &line)
        }
    }
    assert_eq!(servers.keys().copied().collect::<Vec<_>>(), [1, 2, 3], "the page names all three");
    eventually("three voters", || is_whole(&servers[&3]));
    assert_ne!(status(&servers[&1])["cluster_id"], old_cluster);
    let applied = servers[&2].json(&["apply", "-f", "-"], &clusters(&["new"], "1s"));
    assert!(applied["revision"].as_u64().unwrap() > 1 << 32, "{applied}");
    for server in servers.values() {
        eventually("the write", || {
            let got = server.json(&["get"], "");
            (got["resources"].as_array().unwrap().len() == 4).then_some(())
        });
        let all = versions(&resume(server, &BTreeMap::new()).await);
        assert_eq!(all.len(), 4);
        assert!(held.iter().all(|(name, version)| all[name] == *version), "{held:?} {all:?}");
        let differs = versions(&resume(server, &held).await);
        assert_eq!(differs.into_keys().collect::<Vec<_>>(), ["new"], "nothing else is sent");
    }
    for (_, server) in servers {
        assert_eq!(server.terminate().0, Some(0));
    }
}
