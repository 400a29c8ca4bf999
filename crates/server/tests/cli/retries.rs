//! Servers that hang, and answers that are lost.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use tonic::{service::Routes, transport::server::TcpIncoming};

use crate::support::{DEADLINE, Done, Server, chancery, clusters, run};

fn with(servers: &[&str], args: &[&str], input: &str) -> Done {
    let mut command = chancery();
    command.args(args).env("CHANCERY_SERVER", servers.join(","));
    run(command, input)
}

fn revision(admin: &str) -> u64 {
    let done = with(&[admin], &["get", "-o", "json"], "");
    let list: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    list["revision"].as_u64().unwrap()
}

/// More bytes than a command sends before a write, and fewer than the write.
const SMALL: usize = 4 << 10;

/// Starts a proxy for one connection to a server. It returns nothing to the client after more than
/// [`SMALL`] bytes were sent, and breaks the connection when the server has committed the write.
fn cut_when_written(admin: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let admin = admin.to_owned();
    thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        drop(listener);
        let server = TcpStream::connect(&admin).unwrap();
        let silent = Arc::new(AtomicBool::new(false));
        let back = (server.try_clone().unwrap(), client.try_clone().unwrap(), silent.clone());
        let back = thread::spawn(move || {
            let (mut server, mut client, silent) = back;
            copy(&mut server, |bytes| {
                if !silent.load(Ordering::SeqCst) {
                    // The write fails if the client has closed the connection, which does not
                    // matter here.
                    drop(client.write_all(bytes));
                }
            });
        });
        let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let mut sent = 0;
        let there = thread::spawn(move || {
            copy(&mut from, |bytes| {
                sent += bytes.len();
                silent.fetch_or(sent > SMALL, Ordering::SeqCst);
                drop(to.write_all(bytes));
            });
        });
        let start = Instant::now();
        while revision(&admin) == 0 && start.elapsed() < DEADLINE {
            thread::sleep(Duration::from_millis(20));
        }
        for side in [&client, &server] {
            drop(side.shutdown(Shutdown::Both));
        }
        there.join().unwrap();
        back.join().unwrap();
    });
    address
}

fn copy(from: &mut TcpStream, mut to: impl FnMut(&[u8])) {
    let mut buffer = [0; 16 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        to(&buffer[..n]);
    }
}

/// Starts a server that answers every request like a replica without a leader answers a write.
fn without_leader() -> String {
    let (tell, told) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap().to_string()).unwrap();
            let answer = || async {
                [
                    ("content-type", "application/grpc"),
                    ("grpc-status", "14"),
                    ("grpc-message", "no leader; nothing has been written"),
                    ("chancery-written", "no"),
                ]
            };
            let routes = Routes::from(axum::Router::new().fallback(answer));
            let server = tonic::transport::Server::builder().add_routes(routes);
            server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        });
    });
    told.recv().unwrap()
}

/// The first attempt is written and its answer is lost. The other attempts reach a replica without
/// a leader, which reports that it has written nothing.
#[test]
fn write_with_unknown_outcome_is_not_reported_as_unwritten() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let (cut, idle) = (cut_when_written(&server.admin), without_leader());
    let names: Vec<String> = (0..200).map(|n| format!("cluster-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let manifest = clusters(&names, "1s");
    assert!(manifest.len() > 2 * SMALL);
    let lost = with(&[&cut, &idle, &idle], &["apply", "-f", "-"], &manifest);
    assert_eq!((lost.code, lost.out.as_str()), (1, ""), "{lost:?}");
    let lines: Vec<&str> = lost.err.lines().collect();
    let may = format!(
        "error: the write may have taken effect, or may still take effect: attempt 1, at {cut}: "
    );
    assert!(lines[0].starts_with(&may), "{lost:?}");
    let last =
        format!("error: attempt 3, at {idle}: the server could not answer: no leader; nothing");
    assert!(lines[1].starts_with(&last), "{lost:?}");
    let (_, id) = lines[2].split_once("--request-id ").unwrap();
    let id = &id[..32];

    let again = ["apply", "-f", "-", "--request-id", id];
    let again = server.json(&again, &manifest);
    assert_eq!((&again["revision"], &again["changed"]), (&1.into(), &200.into()));
    let history = server.json(&["history"], "");
    assert_eq!(history["entries"].as_array().unwrap().len(), 1, "it took effect once");

    // If the outcome is known, the message does not mention a possible write.
    let known = with(&[&idle, &idle], &["apply", "-f", "-"], &manifest);
    let said = "error: the server could not answer: no leader; nothing has been written\n";
    assert_eq!((known.code, known.err.as_str()), (1, said));
    assert_eq!(server.terminate().0, Some(0));
}

/// A stopped server accepts connections but sends nothing. The command continues with the next
/// server.
#[test]
fn hanging_server_is_skipped() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    // The operating system accepts its connections.
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let hung_address = hung.local_addr().unwrap().to_string();
    let servers = [hung_address.as_str(), server.admin.as_str()];
    let file = directory.path().join("backup").display().to_string();
    let manifest = clusters(&["a"], "1s");
    let commands: [&[&str]; 5] =
        [&["get"], &["history"], &["cluster", "status"], &["backup", &file], &["apply", "-f", "-"]];
    thread::scope(|scope| {
        for args in commands {
            let (servers, manifest) = (&servers, &manifest);
            scope.spawn(move || {
                let done = with(servers, args, manifest);
                assert_eq!((done.code, done.err.as_str()), (0, ""), "{args:?}");
            });
        }
    });
    let nobody = with(&[&hung_address, &hung_address], &["get"], "");
    let said = format!(
        "error: the server at {hung_address} accepts connections, but has not answered within 5s\n"
    );
    assert_eq!((nobody.code, nobody.err), (1, said.repeat(2)));
    drop(hung);
    assert_eq!(server.terminate().0, Some(0));
}
