//! Watches over HTTP: server-sent events, as a browser reads and resumes them, and the limit of watches.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use chancery_admin_proto::v1::{
    WatchEvent, WatchRequest, watch_service_client::WatchServiceClient,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tonic::{Streaming, transport::Channel};

use crate::{
    cluster::{Replica, eventually, index, joined, run_at},
    support::{DEADLINE, Server, chancery, clusters, http, http_get, run},
    watch::{Over, newest_revision, servers},
};

/// The maximum number of watches of a replica.
const WATCHES_MAX: usize = 256;

/// A server-sent event.
#[derive(Debug)]
struct SentEvent {
    id: String,
    kind: String,
    data: Value,
}

/// A stream of server-sent events over HTTP/1.1.
struct EventSource {
    stream: BufReader<TcpStream>,
    /// The received text that no event has taken yet.
    text: String,
}

/// Returns an error for a body that ends early.
fn ended() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

impl EventSource {
    /// Requests the events at a path. A browser sends the ID of the last event that it has received.
    fn open(admin: &str, path: &str, last: Option<&str>) -> io::Result<Self> {
        let mut stream = TcpStream::connect(admin)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        let last = last.map_or(String::new(), |id| format!("last-event-id: {id}\r\n"));
        let accept = "accept: text/event-stream";
        stream.write_all(
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{accept}\r\n{last}\r\n").as_bytes(),
        )?;
        let mut source = Self { stream: BufReader::new(stream), text: String::new() };
        let head = source.head()?;
        let expected = ["content-type: text/event-stream", "transfer-encoding: chunked"];
        let is_stream = head[0] == "HTTP/1.1 200 OK"
            && expected.iter().all(|header| head.iter().any(|line| line == header));
        if is_stream { Ok(source) } else { Err(io::Error::other(format!("{head:?}"))) }
    }

    fn head(&mut self) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line)? == 0 {
                return Err(ended());
            }
            match line.trim_end() {
                "" => return Ok(lines),
                line => lines.push(line.to_owned()),
            }
        }
    }

    /// Reads the next chunk of the body.
    fn read_chunk(&mut self) -> io::Result<()> {
        let mut size = String::new();
        self.stream.read_line(&mut size)?;
        let size = usize::from_str_radix(size.trim_end(), 16).map_err(|_| ended())?;
        if size == 0 {
            return Err(ended());
        }
        let mut chunk = vec![0; size + 2];
        self.stream.read_exact(&mut chunk)?;
        chunk.truncate(size);
        self.text.push_str(&String::from_utf8(chunk).unwrap());
        Ok(())
    }

    /// Returns the next event.
    fn next(&mut self) -> io::Result<SentEvent> {
        let end = loop {
            match self.text.find("\n\n") {
                Some(end) => break end,
                None => self.read_chunk()?,
            }
        };
        let event: String = self.text.drain(..end + 2).collect();
        let field = |name: &str| {
            let mut lines = event.lines().filter_map(|line| line.strip_prefix(name));
            lines.next().unwrap_or_else(|| panic!("no {name} in {event:?}")).to_owned()
        };
        let data = serde_json::from_str(&field("data: ")).unwrap();
        Ok(SentEvent { id: field("id: "), kind: field("event: "), data })
    }
}

/// A browser that watches the revisions. When it loses its stream, it resumes at another replica, with the same path and
/// the ID of its last event.
struct Browser {
    servers: Vec<String>,
    path: String,
    last: Option<String>,
    seen: Vec<u64>,
    shared: Arc<Shared>,
}

/// The parts of a browser that a test uses while the browser reads.
#[derive(Default)]
struct Shared {
    /// The number of seen revisions.
    n_seen: AtomicUsize,
    /// Whether the browser stops before the next event.
    is_over: AtomicBool,
}

impl Browser {
    fn take(&mut self, event: &SentEvent) {
        assert_eq!(event.id, event.data["revision"].to_string(), "{event:?}");
        if event.kind == "revision" {
            let revision = event.data["made"]["entry"]["revision"].as_u64().unwrap();
            let next = self.seen.last().map_or(1, |last| last + 1);
            assert_eq!(revision, next, "each revision once, in order");
            self.seen.push(revision);
            self.shared.n_seen.store(self.seen.len(), Ordering::Relaxed);
        } else {
            assert_eq!(event.kind, "progress", "{event:?}");
        }
        self.last = Some(event.id.clone());
    }

    /// Reads `n` events. Stops early when the test is over, and fails if the stream ends.
    fn read(&mut self, at: usize, n: usize) -> io::Result<()> {
        let mut source = EventSource::open(&self.servers[at], &self.path, self.last.as_deref())?;
        for _ in 0..n {
            if self.shared.is_over.load(Ordering::Relaxed) {
                return Ok(());
            }
            let event = source.next()?;
            self.take(&event);
        }
        Ok(())
    }
}

/// Browsers lose their streams, and replicas end, while revisions are written. With `Last-Event-ID`, no revision is lost
/// or repeated, whichever replica has the next stream, and although the path still has the first position.
#[test]
fn server_sent_events_resume_after_the_last_event_id_on_any_replica() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    let all = servers(&replicas);
    let mut browser = Browser {
        servers: replicas.each_ref().map(|replica| replica.admin.clone()).into(),
        path: "/v1/watch?kind=revisions&after_revision=0".to_owned(),
        last: None,
        seen: Vec::new(),
        shared: Arc::default(),
    };
    let shared = Arc::clone(&browser.shared);
    let is_over = AtomicBool::new(false);
    let n_streams = if std::env::var_os("CHANCERY_TEST_LONG").is_some() { 100 } else { 20 };
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let mut command = chancery();
                command.args(["apply", "-f", "-", "--server", &all]);
                // A write may fail while no replica leads.
                drop(run(command, &clusters(&["web"], &format!("{}s", n + 1))));
            }
        });
        let over = Over(&is_over);
        for n in 0..n_streams {
            let at = n % 3;
            if n % 10 != 5 {
                // The stream starts after some time on a replica that was down.
                eventually("a stream", || browser.read(at, 3).ok());
                continue;
            }
            // The replica ends while the browser reads from it.
            let before = browser.seen.len();
            thread::scope(|scope| {
                let reading = scope.spawn(|| {
                    // The stream may not open on a replica that has just started.
                    eventually("the stream ends with its replica", || {
                        let end = browser.read(at, usize::MAX);
                        (browser.seen.len() > before).then_some(end)
                    })
                });
                let over = Over(&shared.is_over);
                eventually("the stream has a revision", || {
                    (shared.n_seen.load(Ordering::Relaxed) > before).then_some(())
                });
                let leader = index(&replicas[(at + 1) % 3].wait_voters(3)["leader"]);
                for killed in BTreeSet::from([at, leader]) {
                    replicas[killed].kill();
                    replicas[killed].start_and_wait(&[]);
                }
                let end = reading.join().unwrap();
                assert!(end.is_err(), "the stream has ended with its replica");
                drop(over);
            });
            shared.is_over.store(false, Ordering::Relaxed);
        }
        drop(over);
    });
    let newest = newest_revision(&replicas[1]);
    let start = Instant::now();
    while browser.seen.last() < Some(&newest) {
        assert!(start.elapsed() < DEADLINE, "{newest} does not follow {:?}", browser.seen.last());
        // The first event is the position.
        browser.read(1, 2).unwrap();
    }
}

/// A stream begins with its position, so that a browser that has received nothing else resumes there.
#[test]
fn server_sent_events_begin_with_the_position() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(&root.path().join("data"));
    server.json(&["apply", "-f", "-"], &clusters(&["web"], "1s"));
    let mut source = EventSource::open(&server.admin, "/v1/watch", None).unwrap();
    let first = source.next().unwrap();
    assert_eq!((first.id.as_str(), first.kind.as_str()), ("1", "progress"), "{first:?}");
    drop(source);
    for n in 2..4 {
        server.json(&["apply", "-f", "-"], &clusters(&["web"], &format!("{n}s")));
    }
    let mut source = EventSource::open(&server.admin, "/v1/watch", Some(&first.id)).unwrap();
    let ids = [(); 3].map(|()| source.next().unwrap()).map(|event| (event.id, event.kind));
    let ids = ids.each_ref().map(|(id, kind)| (id.as_str(), kind.as_str()));
    assert_eq!(ids, [("1", "progress"), ("2", "revision"), ("3", "revision")]);

    // The ID has no position of clients, and does not name the known leader.
    let member = source.next().unwrap();
    let expected = json!({"kind": "leader", "replica_id": 1, "role": ""});
    assert_eq!((member.kind.as_str(), &member.data["member"]), ("member", &expected));
    let missed = source.next().unwrap();
    assert_eq!(missed.kind, "missed", "{missed:?}");
    assert_eq!(missed.data["missed"]["replica_id"], 1, "{missed:?}");
}

/// A position that is ambiguous, or that does not consist of digits, is refused.
#[test]
fn invalid_positions_of_server_sent_events_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(&root.path().join("data"));
    for id in ["two", "-1", "+0", "0, 0", "0\r\nlast-event-id: 0", ""] {
        let error = EventSource::open(&server.admin, "/v1/watch", Some(id)).err();
        let error = error.unwrap_or_else(|| panic!("{id:?} was accepted"));
        assert!(error.to_string().contains("400 Bad Request"), "{id:?}: {error}");
    }
    for (query, text) in [
        ("%2B0", r#"the parameter after_revision is \"+0\"; it must be a whole number from 0"#),
        ("-0", r#"the parameter after_revision is \"-0\"; it must be a whole number from 0"#),
        ("0&after_revision=0", "the parameter after_revision is given 2 times"),
    ] {
        let (status, body) = http_get(&server.admin, &format!("/v1/watch?after_revision={query}"));
        assert!(status == 400 && body.contains(text), "{query}: {status} {body}");
    }
    let twice =
        "GET /v1/watch HTTP/1.0\r\nhost: localhost\r\nlast-event-id: 0\r\nLast-Event-ID: 0\r\n\r\n";
    let (status, body) = http(&server.admin, twice);
    let text = "the header `Last-Event-ID` occurs 2 times; send it once";
    assert!(status == 400 && body.contains(text), "{status} {body}");
}

/// A replica that has just joined does not know the members yet: those that it finds are not new.
#[test]
fn joining_replica_reports_no_peer_as_added() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    let leader = index(&replicas[0].wait_voters(3)["leader"]);
    let at = (leader + 1) % 3;
    replicas[at].kill();
    fs::remove_dir_all(&replicas[at].directory).unwrap();
    let join = replicas[leader].raft.clone();
    replicas[at].start(&["--join", &join]);
    let path = "/v1/watch?kind=members&after_revision=0";
    let mut source = eventually("the replica answers", || {
        EventSource::open(&replicas[at].admin, path, None).ok()
    });
    replicas[at].wait_ready();
    replicas[at].wait_voters(3);
    let mut n_progress = 0;
    // The second notification follows all changes by seconds.
    while n_progress < 2 {
        let event = source.next().unwrap();
        n_progress += usize::from(event.kind == "progress");
        let is_change =
            ["added", "removed"].iter().any(|kind| event.data["member"]["kind"] == *kind);
        assert!(!is_change, "{event:?}");
    }
}

/// Opens watches on one connection.
async fn watches(admin: &str, n: usize, request: &WatchRequest) -> Vec<Streaming<WatchEvent>> {
    let channel = Channel::from_shared(format!("http://{admin}")).unwrap().connect().await.unwrap();
    let client = WatchServiceClient::new(channel);
    let mut streams = Vec::new();
    for _ in 0..n {
        let mut stream = client.clone().watch(request.clone()).await.unwrap().into_inner();
        stream.message().await.unwrap().expect("a position");
        streams.push(stream);
    }
    streams
}

/// The watch beyond the maximum is refused at once, over gRPC, HTTP and by the command, and is possible when another one
/// ends. The replica answers other questions meanwhile.
#[test]
fn watches_beyond_the_maximum_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let replicas = joined(root.path());
    let Replica { admin, .. } = &replicas[1];
    let runtime = Runtime::new().unwrap();
    let mut open = Vec::new();
    for _ in 0..8 {
        let request = WatchRequest::default();
        open.extend(runtime.block_on(watches(admin, WATCHES_MAX / 8, &request)));
    }
    let text = "this replica serves 256 watches, which is the maximum; end one, or watch on another replica";
    for args in [&["watch"][..], &["watch", "--after", "0"], &["history", "--follow"]] {
        let done = run_at(admin, args, "");
        assert!(done.code == 1 && done.err == format!("error: {text}\n"), "{args:?}: {done:?}");
    }
    let refused = || EventSource::open(admin, "/v1/watch", None).err().unwrap().to_string();
    assert!(refused().contains("429 Too Many Requests"), "{}", refused());

    // All watches ask the other replicas for events, and other questions have answers.
    for replica in &replicas {
        eventually("a complete answer", || {
            let done = replica.run(&["nodes", "-o", "json"], "");
            let nodes: Value = serde_json::from_str(&done.out).ok()?;
            let is_complete = nodes["replicas"] == 3 && nodes["not_asked"] == json!([]);
            (done.code == 0 && is_complete).then_some(())
        });
    }
    let done = replicas[2].run(&["apply", "-f", "-"], &clusters(&["web"], "1s"));
    assert_eq!(done.code, 0, "{done:?}");
    let all_receive = async {
        for stream in &mut open {
            while stream.message().await.unwrap().expect("a stream").revision != 1 {}
        }
    };
    let received = runtime.block_on(async { tokio::time::timeout(DEADLINE, all_receive).await });
    received.expect("each watch has the revision");
    drop(open.pop());
    let stream = eventually("a free place", || EventSource::open(admin, "/v1/watch", None).ok());
    assert!(refused().contains("429 Too Many Requests"));
    drop(stream);
}
