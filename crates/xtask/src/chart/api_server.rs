//! A minimal API server of Kubernetes, in which Helm can look up StatefulSets.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// A running server. Its threads end with the process.
#[derive(Debug)]
pub(super) struct ApiServer {
    address: SocketAddr,
    n_lookups: Arc<AtomicUsize>,
}

impl ApiServer {
    /// Starts a server with StatefulSets, each with its name and specification.
    pub(super) fn start(namespace: &str, sets: &[(&str, Value)]) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listen on a port")?;
        let address = listener.local_addr().context("read the address of a port")?;
        let n_lookups = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&n_lookups);
        let sets: BTreeMap<String, Value> = sets
            .iter()
            .map(|(name, spec)| {
                let set = json!({
                    "apiVersion": "apps/v1", "kind": "StatefulSet",
                    "metadata": {"name": name, "namespace": namespace}, "spec": spec,
                });
                (format!("/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}"), set)
            })
            .collect();
        let sets = Arc::new(sets);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (sets, count) = (Arc::clone(&sets), Arc::clone(&count));
                thread::spawn(move || {
                    let answer = |asked: &str| {
                        if let Some(set) = sets.get(asked) {
                            count.fetch_add(1, Ordering::Relaxed);
                            return Some(set.clone());
                        }
                        discovery(asked)
                    };
                    // A client that ends its connection needs no answer.
                    drop(serve(&stream, answer));
                });
            }
        });
        Ok(Self { address, n_lookups })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns how often a StatefulSet was read.
    pub(super) fn lookups(&self) -> usize {
        self.n_lookups.load(Ordering::Relaxed)
    }
}

/// Answers the requests of one connection.
fn serve(stream: &TcpStream, answer: impl Fn(&str) -> Option<Value>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    while let Some(request) = lines.next().transpose()? {
        while lines.next().transpose()?.is_some_and(|header| !header.is_empty()) {}
        let path = request.split(' ').nth(1).unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        let (status, body) = match answer(path) {
            Some(body) => ("200 OK", body),
            None => (
                "404 Not Found",
                json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}),
            ),
        };
        let body = body.to_string();
        write!(
            &mut &*stream,
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
    }
    Ok(())
}

/// Returns the answer to a question about the API itself.
fn discovery(path: &str) -> Option<Value> {
    let version = json!({"groupVersion": "apps/v1", "version": "v1"});
    Some(match path {
        "/version" => json!({"major": "1", "minor": "35", "gitVersion": "v1.35.0"}),
        "/api" => json!({"kind": "APIVersions", "versions": ["v1"]}),
        "/api/v1" => json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": []}),
        "/apis" => json!({
            "kind": "APIGroupList", "apiVersion": "v1",
            "groups": [{"name": "apps", "versions": [version], "preferredVersion": version}],
        }),
        "/apis/apps/v1" => json!({
            "kind": "APIResourceList", "groupVersion": "apps/v1",
            "resources": [{
                "name": "statefulsets", "singularName": "statefulset", "namespaced": true, "kind": "StatefulSet",
                "verbs": ["get"],
            }],
        }),
        _ => return None,
    })
}
