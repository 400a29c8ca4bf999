//! `chancery doctor`: its checks against servers in good and bad states.

use std::{fs, io::Read as _, net::TcpListener, os::unix::fs::PermissionsExt as _};

use chancery_testing::{Ca, rcgen::date_time_ymd, reserve_address};
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    cluster::{eventually, index, joined},
    support::{Done, Server, chancery, run, signal},
    tls_ports::{Certs, on},
};

/// Returns the status and the detail of each check of this name.
fn checks(done: &Done, name: &str) -> Vec<(String, String)> {
    let report: Value = serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{done:?}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let checks = report["checks"].as_array().unwrap().iter();
    let named = checks.filter(|check| check["name"] == name);
    named.map(|check| (text(&check["status"]), text(&check["detail"]))).collect()
}

/// Checks that exactly one check has this name, and its outcome.
fn expect(done: &Done, name: &str, status: &str, detail: &str) {
    let found = checks(done, name);
    let [(found_status, found_detail)] = found.as_slice() else { panic!("{name}: {done:?}") };
    assert!(found_status == status && found_detail.contains(detail), "{name}: {done:?}");
}

/// Checks that these checks could not be made.
fn expect_unknown(done: &Done, names: &[&str]) {
    names.iter().for_each(|name| expect(done, name, "unknown", ""));
}

const OF_CLUSTER: [&str; 9] =
    ["leader", "quorum", "replicas", "lag", "readiness", "disk", "clocks", "ports", "nodes"];

/// Attack 62: a key that others can read is reported.
#[test]
fn healthy_server_passes() {
    let root = tempfile::tempdir().unwrap();
    let certs = Certs::create(root.path());
    let server = certs.start(&root.path().join("data"));
    let admin = format!("https://{}", server.admin);
    let operator = certs.flags("operator");
    let done = on(&admin, &operator, &["doctor", "-o", "json"], "");
    assert_eq!((done.code, done.err.as_str()), (0, ""), "{done:?}");
    for (name, detail) in [
        ("contexts", "there is no contexts file"),
        ("token", "no token is configured"),
        ("certificate", "operator.pem expires in "),
        ("server", "accepts connections"),
        ("tls", "is trusted, and expires in "),
        ("api", "answers"),
        ("clock", "differ by at most 30s"),
        ("version", "have version"),
        ("leader", "replica 1 leads"),
        ("quorum", "1 of 1 voters answer (1 needed)"),
        ("replicas", "1 of 1 replicas answer"),
        ("lag", "no replica lags"),
        ("readiness", "replica 1 is ready"),
        ("clocks", "differ by at most 30s"),
        ("ports", "these ports use TLS: admin, raft, xds"),
    ] {
        expect(&done, name, "ok", detail);
    }
    let text = on(&admin, &operator, &["doctor"], "");
    assert!(text.out.starts_with("ok       contexts     there is no contexts file\n"), "{text:?}");
    // A key and a token that others can read are reported.
    let key = certs.path("operator.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let done = on(&admin, &operator, &["doctor", "-o", "json"], "");
    assert_eq!(done.code, 0, "{done:?}");
    expect(&done, "certificate", "warning", "other users can read or change the private key");
}

#[test]
fn plaintext_server_on_loopback_passes() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(&root.path().join("data"));
    let done = server.run(&["doctor", "-o", "json"]);
    assert_eq!(done.code, 0, "{done:?}");
    expect(&done, "tls", "ok", "stays on this machine");
    expect(&done, "ports", "ok", "no port uses TLS, and all are on loopback addresses");
    // 0.0.0.0 leads to the loopback interface, but is not one of its addresses.
    let remote = server.admin.replace("127.0.0.1", "0.0.0.0");
    let done = on(&remote, &[], &["doctor", "-o", "json"], "");
    expect(&done, "tls", "warning", "is not encrypted");
}

#[test]
fn unreachable_or_silent_server_fails() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_address = silent.local_addr().unwrap().to_string();
    let closed = reserve_address().to_string();
    let done = on(&closed, &[], &["doctor", "-o", "json"], "");
    assert_eq!((done.code, done.err.as_str()), (1, "error: 1 check failed\n"), "{done:?}");
    expect(&done, "server", "failed", "connection refused");
    expect_unknown(&done, &["tls", "api", "clock", "version"]);
    expect_unknown(&done, &OF_CLUSTER);
    let hang = std::thread::spawn(move || {
        let connections: Vec<_> = silent.incoming().take(2).flatten().collect();
        // Reads until the command closes the connection.
        connections.into_iter().for_each(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    });
    let done = on(&silent_address, &[], &["doctor", "-o", "json"], "");
    hang.join().unwrap();
    assert_eq!(done.code, 1, "{done:?}");
    expect(&done, "server", "ok", "accepts connections");
    expect(&done, "api", "failed", "has not answered within 5s");
    expect_unknown(&done, &OF_CLUSTER);
}

/// Each server of a list is checked, and the cluster by the first one that answers.
#[test]
fn each_server_of_a_list_is_checked() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(&root.path().join("data"));
    let list = format!("{},{}", reserve_address(), server.admin);
    let done = on(&list, &[], &["doctor", "-o", "json"], "");
    assert_eq!(done.code, 1, "{done:?}");
    let statuses: Vec<String> =
        checks(&done, "server").into_iter().map(|(status, _)| status).collect();
    assert_eq!(statuses, ["failed", "ok"]);
    expect(&done, "leader", "ok", "replica 1 leads");
}

#[test]
fn wrong_ca_and_refused_certificate_fail() {
    let root = tempfile::tempdir().unwrap();
    let certs = Certs::create(root.path());
    let server = certs.start(&root.path().join("data"));
    let admin = format!("https://{}", server.admin);
    fs::write(certs.path("other.pem"), Ca::new("other").pem()).unwrap();
    let other = ["--ca-cert".to_owned(), certs.path("other.pem")];
    let done = on(&admin, &other, &["doctor", "-o", "json"], "");
    assert_eq!(done.code, 1, "{done:?}");
    expect(&done, "server", "ok", "");
    expect(&done, "tls", "failed", "is not signed by a CA in ");
    expect_unknown(&done, &["api", "clock", "version"]);
    expect_unknown(&done, &OF_CLUSTER);
    let done = on(&admin, &certs.flags("client"), &["doctor", "-o", "json"], "");
    assert_eq!(done.code, 1, "{done:?}");
    expect(&done, "tls", "ok", "is trusted");
    expect(&done, "api", "failed", "does not trust the CA of the client certificate");
    let wrong = ["--ca-cert", "/none"].map(str::to_owned);
    let done = on(&admin, &wrong, &["doctor", "-o", "json"], "");
    expect(&done, "certificate", "failed", "cannot read the CA in /none");
}

#[test]
fn expired_certificates_fail() {
    let root = tempfile::tempdir().unwrap();
    let certs = Certs::create(root.path());
    let ca = Ca::new("expired");
    let sign = |name: &str| {
        let leaf = ca.sign(&["127.0.0.1"], |params| params.not_after = date_time_ymd(2020, 1, 1));
        leaf.write(&certs.0, name);
    };
    fs::write(certs.path("ca.pem"), ca.pem()).unwrap();
    sign("server");
    sign("old");
    let server = certs.start(&root.path().join("data"));
    let admin = format!("https://{}", server.admin);
    let done = on(&admin, &certs.flags("old"), &["doctor", "-o", "json"], "");
    assert_eq!(done.code, 1, "{done:?}");
    expect(&done, "certificate", "failed", "old.pem expired ");
    expect(&done, "tls", "failed", "certificate expired");
    expect_unknown(&done, &OF_CLUSTER);
}

#[test]
fn unusable_settings_fail_and_leave_the_rest_unknown() {
    let root = tempfile::tempdir().unwrap();
    let contexts = root.path().join("contexts.toml");
    fs::write(&contexts, "[contexts.a]\nsever = 'x'\n").unwrap();
    let doctor = |name: &str, value: &str| {
        let mut command = chancery();
        command.args(["doctor", "-o", "json"]).env(name, value);
        let done = run(command, "");
        assert_eq!(done.code, 1, "{done:?}");
        done
    };
    let done = doctor("CHANCERY_CONTEXTS", contexts.to_str().unwrap());
    expect(&done, "contexts", "failed", "did you mean \"server\"?");
    expect_unknown(&done, &["token", "certificate", "server", "tls", "api", "clock", "version"]);
    let done = doctor("CHANCERY_CERT", "cert.pem");
    expect(&done, "settings", "failed", "--cert needs --cert-key");
    expect_unknown(&done, &OF_CLUSTER);
}

#[test]
fn follower_without_leader_fails() {
    let root = tempfile::tempdir().unwrap();
    let replicas = joined(root.path());
    let leader = index(&replicas[0].wait_voters(3)["leader"]);
    let left = &replicas[(leader + 1) % 3];
    eventually("all replicas answer", || (left.run(&["doctor"], "").code == 0).then_some(()));
    let others = || replicas.iter().filter(|other| other.id != left.id);
    others().for_each(|other| signal(other.child.as_ref().unwrap(), Signal::STOP));
    let done = eventually("the loss of the leader is noticed", || {
        let done = left.run(&["doctor", "-o", "json"], "");
        checks(&done, "leader").iter().any(|(status, _)| status == "failed").then_some(done)
    });
    assert_eq!(done.code, 1, "{done:?}");
    expect(&done, "leader", "failed", "has no leader: it accepts no writes");
    expect(&done, "quorum", "failed", "1 of 3 voters answer (2 needed)");
    expect(&done, "readiness", "ok", "is ready");
    others().for_each(|other| signal(other.child.as_ref().unwrap(), Signal::CONT));
}

/// Every replica is asked: a follower without disk space fails the checks of each replica, and a replica that does
/// not answer is named with the reason. Only the leader was asked before a follower became leader and rejected writes.
#[test]
fn follower_without_disk_space_fails_and_silent_replica_is_unknown() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    let leader = index(&replicas[0].wait_voters(3)["leader"]);
    let (full, down) = ((leader + 1) % 3, (leader + 2) % 3);
    replicas[full].terminate();
    replicas[full].environment.push(("CHANCERY_STORE_FREE_BYTES_MIN", "1000000GiB".to_owned()));
    replicas[full].start_and_wait(&[]);
    let id = replicas[full].id;
    let said = format!("replica {id} cannot accept writes as the leader: the disk is nearly full");
    for replica in &replicas {
        let done = eventually("all replicas answer", || {
            let done = replica.run(&["doctor", "-o", "json"], "");
            (checks(&done, "clocks").iter().all(|(status, _)| status == "ok")).then_some(done)
        });
        assert_eq!(done.code, 1, "{done:?}");
        expect(&done, "disk", "failed", &said);
        expect(&done, "ports", "ok", "");
        let check = replica.run(&["cluster", "status", "--check"], "");
        let error = format!("error: replica {id} cannot accept writes: the disk is nearly full");
        assert!(check.code == 1 && check.err.contains(&error), "{check:?}");
        assert!(check.out.contains(&format!("warning: {said}")), "{check:?}");
        let status = replica.json(&["cluster", "status"]);
        let member = &status["members"][full];
        let reason = member["disk_full"].as_str().unwrap_or_default();
        assert!(reason.starts_with("the disk is nearly full"), "{status}");
        let ports: Vec<_> =
            member["ports"].as_array().unwrap().iter().map(|port| &port["name"]).collect();
        assert_eq!(ports, ["raft", "xds", "admin"], "{status}");
    }
    // Leadership does not move to the full replica.
    let done = replicas[leader].run(&["cluster", "transfer-leader", &id.to_string()], "");
    assert!(done.code == 1 && done.err.contains("it would accept no writes"), "{done:?}");
    replicas[down].terminate();
    let done = replicas[leader].run(&["doctor", "-o", "json"], "");
    let silent = format!("replica {} does not answer: ", replicas[down].id);
    expect(&done, "clocks", "unknown", &silent);
    expect(&done, "ports", "unknown", &silent);
    expect(&done, "disk", "failed", &silent);
    expect(&done, "disk", "failed", &said);
    expect(&done, "replicas", "warning", &silent);
    let check = replicas[leader].run(&["cluster", "status", "--check"], "");
    assert!(check.code == 1 && check.err.contains(&silent), "{check:?}");
}
