//! Load tests of a small xDS server, with and without faults.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::{BufMut as _, Bytes, BytesMut};
use chancery_fleet_load::{Phase, Plan, Report, Settings, Writer, run, stream::Target};
use chancery_proto::discovery::{Any, DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};
use futures::future::BoxFuture;
use h2::{RecvStream, SendStream, server::SendResponse};
use prost::Message as _;
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// A fault of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// One client misses the seventh change.
    Lost,
    /// One client receives a resource of others.
    Foreign,
    /// Each client receives the third change twice.
    Twice,
    /// One client receives old content after newer content.
    Older,
    /// One client receives everything 50 ms late.
    Late,
    /// The second address keeps its first state.
    Behind,
}

/// The resources by name, and the names of those that each step changed.
#[derive(Debug, Clone, Default)]
struct Contents {
    steps: Vec<Vec<(String, String)>>,
}

impl Contents {
    /// Returns the state after a step.
    fn at(&self, step: usize) -> BTreeMap<String, String> {
        self.steps.iter().take(step).flatten().cloned().collect()
    }
}

/// A delta server of clusters.
#[derive(Clone)]
struct Server {
    fault: Fault,
    contents: Arc<watch::Sender<Contents>>,
}

impl Server {
    fn new(fault: Fault) -> Self {
        Self { fault, contents: Arc::new(watch::channel(Contents::default()).0) }
    }

    /// Serves clients at an address. `number` is that of the address.
    async fn serve(self, listener: TcpListener, number: usize) {
        let mut connections = JoinSet::new();
        while let Ok((socket, _)) = listener.accept().await {
            let server = self.clone();
            connections.spawn(async move {
                let mut connection = h2::server::handshake(socket).await?;
                let mut streams = JoinSet::new();
                while let Some(stream) = connection.accept().await {
                    let (request, respond) = stream?;
                    streams.spawn(server.clone().stream(request.into_body(), respond, number));
                }
                Ok::<(), h2::Error>(())
            });
        }
    }

    /// Serves a stream until it ends.
    async fn stream(
        self,
        mut requests: RecvStream,
        mut respond: SendResponse<Bytes>,
        number: usize,
    ) -> Option<()> {
        let first = requests.data().await?.ok()?;
        let first = DeltaDiscoveryRequest::decode(first.get(5..)?).ok()?;
        let node = chancery_proto::node::Node::decode(first.node?).ok()?;
        let client: usize = node.id.rsplit('-').next()?.parse().ok()?;
        let mut out = respond.send_response(http::Response::new(()), false).ok()?;
        let mut contents = self.contents.subscribe();
        let is_frozen = self.fault == Fault::Behind && number == 1;
        let mut step =
            contents.borrow_and_update().steps.len().min(if is_frozen { 1 } else { usize::MAX });
        let mut state = contents.borrow().at(step);
        if self.fault == Fault::Foreign && client == 2 {
            state.insert("foreign".to_owned(), "of another fleet".to_owned());
        }
        send(&mut out, &state)?;
        loop {
            tokio::select! {
                changed = contents.changed() => changed.ok()?,
                data = requests.data() => {
                    let data = data?.ok()?;
                    requests.flow_control().release_capacity(data.len()).ok()?;
                }
            }
            while !is_frozen && step < contents.borrow().steps.len() {
                let changes: BTreeMap<_, _> =
                    contents.borrow().steps[step].iter().cloned().collect();
                step += 1;
                match self.fault {
                    Fault::Lost if client == 1 && step == 7 => continue,
                    Fault::Late if client == 1 => {
                        tokio::time::sleep(Duration::from_millis(50)).await
                    }
                    Fault::Twice if step == 3 => send(&mut out, &changes)?,
                    _ => {}
                }
                send(&mut out, &changes)?;
                if self.fault == Fault::Older && client == 1 && step == 9 {
                    let old = contents.borrow().at(1);
                    let old = old.into_iter().filter(|(name, _)| changes.contains_key(name));
                    send(&mut out, &old.collect())?;
                }
            }
        }
    }
}

/// Sends resources as one response.
fn send(out: &mut SendStream<Bytes>, resources: &BTreeMap<String, String>) -> Option<()> {
    let resource = |(name, content): (&String, &String)| Resource {
        name: name.clone(),
        version: content.len().to_string(),
        resource: Some(Any { type_url: CLUSTER.into(), value: Bytes::from(content.clone()) }),
        ..Resource::default()
    };
    let response = DeltaDiscoveryResponse {
        resources: resources.iter().map(resource).collect(),
        type_url: CLUSTER.into(),
        nonce: "n".into(),
        ..DeltaDiscoveryResponse::default()
    };
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(response.encoded_len()).ok()?);
    response.encode(&mut frame).ok()?;
    out.send_data(frame.freeze(), false).ok()
}

impl Writer for Server {
    fn prepare(&self, resources: Vec<Value>) -> BoxFuture<'_, Result<(), String>> {
        self.write(resources)
    }

    fn write(&self, resources: Vec<Value>) -> BoxFuture<'_, Result<(), String>> {
        let named =
            |one: Value| (one["name"].as_str().unwrap_or_default().to_owned(), one.to_string());
        self.contents.send_modify(|contents| {
            contents.steps.push(resources.into_iter().map(named).collect());
        });
        Box::pin(std::future::ready(Ok(())))
    }

    fn clean_up(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Runs a short test of a server with two addresses.
async fn report(fault: Fault) -> Report {
    let server = Server::new(fault);
    let (mut targets, mut names, mut tasks) = (Vec::new(), Vec::new(), JoinSet::new());
    for number in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let at = listener.local_addr().expect("it has an address");
        targets.push(Target::from(at));
        names.push(at.to_string());
        tasks.spawn(server.clone().serve(listener, number));
    }
    let phase = Phase { seconds: 1.0, writes_per_second: 20.0, ..Phase::default() };
    let plan =
        Plan { clients: 6, resources: 5, patience: 1.0, phases: vec![phase], ..Plan::default() };
    let types = vec![CLUSTER.to_owned()];
    let settings = Settings {
        targets,
        names,
        types,
        run: "loadtest-0".to_owned(),
        threads: 2,
        identities: None,
    };
    let writer: Arc<dyn Writer> = Arc::new(server);
    run(plan, settings, Some(writer), std::future::pending(), |_| {}).await.expect("the test runs")
}

#[tokio::test]
async fn server_without_faults_passes() {
    let report = report(Fault::None).await;
    assert!(report.correctness.holds(), "{}", report.text());
    assert_eq!((report.correctness.equal, report.correctness.resources), (6, 5));
    let phase = &report.phases[0];
    assert_eq!((phase.writes, phase.last_client_each_ms.len()), (20, 20));
    assert_eq!(phase.delivery_ms.unwrap().n, 6 * 20);
}

#[tokio::test]
async fn lost_update_is_found_even_if_a_later_one_replaces_it() {
    let report = report(Fault::Lost).await;
    assert_eq!((report.phases[0].replaced, report.correctness.different), (1, 0));
    // The next write of the resource starts 250 ms later.
    assert!(report.phases[0].delivery_ms.unwrap().max >= 250.0, "{}", report.text());
}

#[tokio::test]
async fn resource_of_others_is_found() {
    let found = report(Fault::Foreign).await.correctness;
    assert_eq!((found.different, found.equal), (1, 5));
    assert!(found.examples[0].contains("loadtest-0-2 has another \"foreign\""), "{found:?}");
}

#[tokio::test]
async fn repeated_and_older_resources_are_found() {
    let twice = report(Fault::Twice).await.correctness;
    assert!(!twice.holds() && twice.repeats == 6 && twice.different == 0, "{twice:?}");
    let older = report(Fault::Older).await.correctness;
    assert!(!older.holds() && older.older == 1, "{older:?}");
}

#[tokio::test]
async fn late_client_shows_in_the_time_to_the_last_one() {
    let report = report(Fault::Late).await;
    assert!(report.correctness.holds(), "{}", report.text());
    let phase = &report.phases[0];
    let [first, last] = [phase.first_client_ms, phase.last_client_ms].map(|times| times.unwrap());
    assert!(last.p50 >= 50.0 && last.p50 - first.p50 > 40.0, "{}", report.text());
}

#[tokio::test]
async fn server_that_is_behind_is_found() {
    let found = report(Fault::Behind).await.correctness;
    assert!(!found.holds() && found.different == 3 && found.undelivered > 0, "{found:?}");
    assert_eq!(found.different_servers.len(), 1, "{found:?}");
}
