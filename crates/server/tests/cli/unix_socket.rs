//! The admin API on a UNIX socket.

use std::{fs, os::unix::fs::PermissionsExt};

use crate::{
    support::{Server, chancery},
    tls_ports::Certs,
};

/// The command line and curl-like clients reach the same API, without TLS and without a port.
#[test]
fn command_line_reaches_the_admin_socket() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("admin.sock");
    let path = socket.display().to_string();
    let server = Server::start_with(&root.path().join("data"), &[("CHANCERY_ADMIN_SOCKET", &path)]);
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let of_socket = format!("unix:{path}");
    let manifest =
        "resources:\n- '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: a\n";
    let done = server.run_with_input(&["--server", &of_socket, "apply", "-f", "-"], manifest);
    assert_eq!(done.code, 0, "{done:?}");
    // The socket has no addresses of its clients.
    let history = server.json(&["history"], "");
    assert_eq!(history["entries"][0]["source"], "unix", "{history}");
    let verified = server.run(&["history", "--verify"]);
    assert_eq!(verified.code, 0, "{verified:?}");
    let [by_socket, by_port] = [of_socket.as_str(), &server.admin]
        .map(|address| server.run(&["--server", address, "get", "clusters"]));
    assert_eq!((by_socket.code, &by_socket.out), (0, &by_port.out), "{by_socket:?}");
    assert!(by_socket.out.contains('a'));
    let (code, _) = server.terminate();
    assert_eq!((code, socket.exists()), (Some(0), false));
}

#[test]
fn missing_socket_is_named_with_the_key_that_creates_it() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(&root.path().join("data"));
    let path = format!("unix:{}/none.sock", root.path().display());
    let done = server.run(&["--server", &path, "nodes"]);
    let expected = format!(
        "cannot reach the server at {path}: no such file or directory; check that it is running with admin.socket, and \
         that this user owns the socket"
    );
    assert!(done.code != 0 && done.err.contains(&expected), "{done:?}");
}

/// The probes of the Helm chart, if the admin port requires certificates: the kubelet has none, and the access rules give
/// nothing to the user of the container.
#[test]
fn health_over_the_socket_needs_no_certificate_and_no_right() {
    let root = tempfile::tempdir().unwrap();
    let certs = Certs::create(root.path());
    let socket = root.path().join("admin.sock").display().to_string();
    let mut command = chancery();
    command.args(["serve", "--config", &certs.path("chancery.toml"), "--xds", "127.0.0.1:0"]);
    command.args(["--admin", "127.0.0.1:0", "--raft", "127.0.0.1:0", "--data-dir"]);
    command.arg(root.path().join("data")).env("CHANCERY_STORE_FREE_BYTES_MIN", "64MiB");
    command.env("CHANCERY_ADMIN_SOCKET", &socket);
    command.env("CHANCERY_ACCESS_ADMINS", "spiffe://prod.example/ops/anna");
    let server = Server::spawn(command);
    let on = |address: &str, args: &[&str]| {
        let done = server.run(&[&["--server", address], args].concat());
        (done.code, done.out, done.err)
    };
    let socket = format!("unix:{socket}");
    assert_eq!(on(&socket, &["health"]), (0, "healthy\n".to_owned(), String::new()));
    assert_eq!(on(&socket, &["health", "--ready"]), (0, "ready\n".to_owned(), String::new()));
    let (code, _, error) = on(&socket, &["get"]);
    assert!(code == 1 && error.contains("unix:"), "{error}");
    let port = format!("https://{}", server.admin);
    let (code, _, error) = on(&port, &["--ca-cert", &certs.path("ca.pem"), "health"]);
    assert!(code == 1 && error.contains("certificate"), "{error}");
}
