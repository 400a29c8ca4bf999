//! `chancery bootstrap`: its values and its files. Real clients start from them in `real_clients/bootstraps.rs`.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    support::{Done, chancery, run},
    tls_ports::Certs,
};

fn bootstrap(args: &[&str]) -> Done {
    let mut command = chancery();
    // The certificate of the caller is never the one of the client.
    command.env("CHANCERY_CA_CERT", "/caller").env("CHANCERY_TOKEN_FILE", "/caller");
    command.arg("bootstrap").args(args);
    run(command, "")
}

#[test]
fn grpc_bootstrap_has_the_credentials_of_the_client() {
    let root = tempfile::tempdir().unwrap();
    let certs = Certs::create(root.path());
    fs::write(certs.path("token"), "a.b.c").unwrap();
    let [ca, cert, key, token] =
        ["ca.pem", "client.pem", "client.key", "token"].map(|name| certs.path(name));
    let files = ["--ca-cert", &ca, "--cert", &cert, "--cert-key", &key, "--token-file", &token];
    let args = [
        "grpc",
        "--node",
        "web-1",
        "--cluster",
        "web",
        "--metadata",
        "team=shop",
        "n=1=2",
        "--xds",
        "https://xds.example:1",
    ];
    let done = bootstrap(&[args.as_slice(), &files].concat());
    assert_eq!((done.code, done.err.as_str()), (0, ""), "{done:?}");
    let tls = json!({"type": "tls", "config": {"ca_certificate_file": ca, "certificate_file": cert,
        "private_key_file": key, "refresh_interval": "60s"}});
    let expected = json!({
        "xds_servers": [{
            "server_uri": "xds.example:1",
            "channel_creds": [tls],
            "call_creds": [{"type": "jwt_token_file", "config": {"jwt_token_file": token}}],
            "server_features": ["xds_v3"],
        }],
        "node": {"id": "web-1", "cluster": "web", "metadata": {"team": "shop", "n": "1=2"}},
        "server_listener_resource_name_template": "grpc/server?xds.resource.listening_address=%s",
    });
    assert_eq!(serde_json::from_str::<Value>(&done.out).unwrap(), expected);
    let plain = bootstrap(&["grpc", "--node", "web-1", "--xds", "[::1]:1"]);
    let plain: Value = serde_json::from_str(&plain.out).unwrap();
    let server = &plain["xds_servers"][0];
    assert_eq!(
        (&server["server_uri"], &server["channel_creds"]),
        (&json!("[::1]:1"), &json!([{"type": "insecure"}]))
    );
    assert!(server["call_creds"].is_null() && plain["node"]["cluster"] == "web-1", "{plain}");
}

#[test]
fn every_address_of_a_list_is_a_server() {
    let list = "10.0.0.1:18000,xds.example:1,[::1]:18000";
    let done = bootstrap(&["grpc", "--node", "web-1", "--xds", list]);
    let made: Value = serde_json::from_str(&done.out).unwrap();
    let servers = made["xds_servers"].as_array().unwrap();
    let uris: Vec<&str> = servers.iter().map(|it| it["server_uri"].as_str().unwrap()).collect();
    assert_eq!(uris.join(","), list);
    assert!(servers.iter().all(|it| it["server_features"] == json!(["xds_v3"])), "{made}");
    // The flag may also be repeated.
    let done = bootstrap(&["envoy", "--node", "n", "--xds", "a.example:1", "--xds", "10.0.0.2:2"]);
    let made: Value = serde_saphyr::from_str(&done.out).unwrap();
    let cluster = &made["static_resources"]["clusters"][0];
    let endpoints = &cluster["load_assignment"]["endpoints"][0]["lb_endpoints"];
    let port =
        |at: usize| endpoints[at]["endpoint"]["address"]["socket_address"]["port_value"].as_u64();
    assert_eq!((port(0), port(1), port(2)), (Some(1), Some(2), None), "{made}");
}

/// Checks that a command fails with this exit code, and with an error that contains this text.
fn expect_refusal(code: i32, args: &[&str], expected: &str) {
    let done = bootstrap(args);
    assert_eq!((done.code, done.out.as_str()), (code, ""), "{args:?}: {done:?}");
    assert!(done.err.contains(expected) && !done.err.contains("hush"), "{args:?}: {done:?}");
}

#[test]
fn wrong_values_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let certs = Certs::create(root.path());
    let (ca, cert, token) = (certs.path("ca.pem"), certs.path("client.pem"), certs.path("token"));
    fs::write(&token, "hush").unwrap();
    let address = "expected HOST:PORT or https://HOST:PORT";
    for (args, expected) in [
        (["--xds", "h"].as_slice(), address),
        (&["--xds", "https://h:0"], address),
        (&["--xds", "me@h:1"], address),
        (&["--xds", "h:1,h:2,h:1"], "--xds has h:1 twice"),
        (&["--xds", "h:1,"], address),
        (&["--xds", "h:1,https://i:1"], "addresses with and without https://"),
        (&["--metadata", "a"], "expected KEY=VALUE"),
        (&["--metadata", "a=1", "a=2"], "--metadata has the key \"a\" twice"),
        (&["--xds", "https://h:1"], "Envoy verifies no server without CAs"),
        (&["--ca-cert", &ca], "name the bootstrap with --out"),
        (&["--cert", &cert], "--cert needs --cert-key"),
        (&["--server-name", "a"], "--server-name has no effect without TLS"),
        (&["--ca-cert", &ca, "--server-name", "a b"], "is not a valid server name"),
        (&["--xds", "h:1", "--token-file", &token], "without encryption"),
        (&["--xds", "localhost:1,h:1", "--token-file", &token], "send its token to h without"),
    ] {
        expect_refusal(2, &[["envoy", "--node", "n"].as_slice(), args].concat(), expected);
    }
    expect_refusal(2, &["envoy"], "--node");
    expect_refusal(2, &["envoy", "--node", ""], "--node");
    let args = ["grpc", "--node", "n", "--token-file", &token];
    expect_refusal(2, &args, "gRPC clients send no token without TLS");
}

#[test]
fn unusable_files_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let certs = Certs::create(root.path());
    let path = |name: &str| certs.path(name);
    fs::write(path("bearer"), "Bearer hush\n").unwrap();
    fs::write(path("line"), "hush\n").unwrap();
    let (ca, cert, wrong_key) = (path("ca.pem"), path("client.pem"), path("server.key"));
    let (bearer, line, out) = (path("bearer"), path("line"), path("out.yaml"));
    for (args, expected) in [
        (["envoy", "--token-file", &bearer, "--out", &out].as_slice(), "has white space between"),
        (&["grpc", "--ca-cert", &wrong_key], "cannot read the CA in "),
        (&["grpc", "--ca-cert", &ca, "--token-file", &line], "begins or ends with white space"),
        (
            &["grpc", "--ca-cert", &ca, "--cert", &cert, "--cert-key", &wrong_key],
            "does not belong to the certificate",
        ),
    ] {
        expect_refusal(1, &[args, &["--node", "n"]].concat(), expected);
    }
    assert!(!Path::new(&out).exists());
    // Files of another machine are only a warning.
    let done = bootstrap(&["grpc", "--node", "n", "--ca-cert", "/none/ca.pem"]);
    let warning = "warning: /none/ca.pem does not exist on this machine; the client needs it under this path\n";
    assert_eq!((done.code, done.err.as_str()), (0, warning), "{done:?}");
}

#[test]
fn no_file_is_overwritten_without_force() {
    let root = tempfile::tempdir().unwrap();
    let certs = Certs::create(root.path());
    let (ca, out) = (certs.path("ca.pem"), root.path().join("edge.yaml").display().to_string());
    let args = ["envoy", "--node", "n", "--ca-cert", &ca, "--out", &out];
    let secret = root.path().join("edge-ca.yaml");
    fs::write(&secret, "before").unwrap();
    let done = bootstrap(&args);
    let expected = format!(
        "error: {} exists, and is not overwritten; choose another name, or use --force\n",
        secret.display()
    );
    assert_eq!((done.code, done.err), (1, expected));
    assert!(!Path::new(&out).exists());
    let done = bootstrap(&[args.as_slice(), &["--force"]].concat());
    assert_eq!((done.code, done.err.as_str()), (0, ""), "{done:?}");
    assert_eq!(done.out, format!("wrote {out}\nwrote {}\n", secret.display()));
    assert!(fs::read_to_string(&secret).unwrap().contains(&ca));
    assert_eq!(bootstrap(&args).code, 1);
}
