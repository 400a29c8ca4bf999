//! The bootstrap of Envoy, and the files that Envoy watches for changes.
//!
//! Envoy reads the files of inline certificates once. It follows changes of secrets that it receives by SDS, and
//! these may come from a file (`path_config_source`). Such a file names the files with the certificate, the CA or
//! the token. Envoy reads them again when another file is moved over them.

use std::path::Path;

use super::client::{Client, Server, Tls, is_ip};

const BOOTSTRAP: &str = include_str!("envoy.yaml");
const TLS: &str = include_str!("envoy-tls.yaml");
const OWN_CERT: &str = include_str!("envoy-own.yaml");
const TOKEN_FILTER: &str = include_str!("envoy-token-filter.yaml");
const CERT: &str = include_str!("envoy-cert.yaml");
const CA: &str = include_str!("envoy-ca.yaml");
const TOKEN: &str = include_str!("envoy-token.yaml");

/// A file of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Bootstrap,
    Cert,
    Ca,
    Token,
}

impl Part {
    /// Returns the end of the file's name without extension.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Bootstrap => "",
            Self::Cert => "-cert",
            Self::Ca => "-ca",
            Self::Token => "-token",
        }
    }
}

/// Returns the files, the bootstrap first. `place` returns the absolute path of a file.
pub(crate) fn files(client: &Client, place: impl Fn(Part) -> String) -> Vec<(Part, String)> {
    let place = |part| quoted(&place(part));
    let file = |path: &Path| quoted(&path.display().to_string());
    let (mut secrets, mut filter, mut tls) = (Vec::new(), String::new(), String::new());
    if let Some(Tls { server_name, ca, cert_and_key }) = &client.tls {
        let mut own = String::new();
        if let Some((cert, key)) = cert_and_key {
            secrets.push((Part::Cert, fill(CERT, &[("CERT", file(cert)), ("KEY", file(key))])));
            own = fill(OWN_CERT, &[("CERT", place(Part::Cert))]);
        }
        if let Some(ca) = ca {
            secrets.push((Part::Ca, fill(CA, &[("CA", file(ca))])));
        }
        let names: Vec<&str> = match server_name {
            Some(name) => vec![name.as_str()],
            None => client.servers.iter().map(|server| server.host.as_str()).collect(),
        };
        tls = fill(
            TLS,
            &[("SNI", sni(&names)), ("OWN", own), ("SAN", sans(&names)), ("CA", place(Part::Ca))],
        );
    }
    if let Some(token) = &client.token_file {
        secrets.push((Part::Token, fill(TOKEN, &[("TOKEN", file(token))])));
        filter = fill(TOKEN_FILTER, &[("TOKEN", place(Part::Token))]);
    }
    let how = match (tls.is_empty(), secrets.iter().any(|(part, _)| *part == Part::Cert)) {
        (true, _) => "",
        (false, false) => " over TLS",
        (false, true) => " over mutual TLS",
    };
    let how = if secrets.is_empty() {
        how.to_owned()
    } else {
        format!("{how}. Envoy reads changed files without a restart")
    };
    // By default, Envoy uses only the IPv6 addresses of a name that has both kinds, such as `localhost`.
    let discovery = if client.servers.iter().all(|server| is_ip(&server.host)) {
        "STATIC"
    } else {
        "STRICT_DNS\n    dns_lookup_family: ALL"
    };
    let bootstrap = fill(
        BOOTSTRAP,
        &[
            ("HOW", how),
            ("NODE", node(client)),
            ("DISCOVERY", discovery.to_owned()),
            ("ENDPOINTS", client.servers.iter().map(endpoint).collect()),
            ("TOKEN", filter),
            ("TLS", tls),
        ],
    );
    [vec![(Part::Bootstrap, bootstrap)], secrets].concat()
}

fn endpoint(Server { host, port }: &Server) -> String {
    let address = format!("{{address: {}, port_value: {port}}}", scalar(host));
    format!("        - endpoint: {{address: {{socket_address: {address}}}}}\n")
}

/// Returns the line that sets the name in the handshake. An IP address is not allowed there (RFC 6066).
fn sni(names: &[&str]) -> String {
    match names {
        _ if names.iter().any(|name| is_ip(name)) => String::new(),
        [name] => format!("        sni: {}\n", scalar(name)),
        _ => "        auto_host_sni: true\n".to_owned(),
    }
}

/// Returns the lines with the names of servers, of which a certificate must have one. Servers may have the same host.
fn sans(names: &[&str]) -> String {
    let mut lines = String::new();
    for (at, name) in names.iter().enumerate() {
        if !names[..at].contains(name) {
            let kind = if is_ip(name) { "IP_ADDRESS" } else { "DNS" };
            let name = scalar(name);
            lines += &format!("              - {{san_type: {kind}, matcher: {{exact: {name}}}}}\n");
        }
    }
    lines
}

fn node(client: &Client) -> String {
    let mut node = format!("{{id: {}, cluster: {}", scalar(&client.node), scalar(&client.cluster));
    if !client.metadata.is_empty() {
        let field = |(key, value): &(String, String)| format!("{}: {}", quoted(key), quoted(value));
        let fields: Vec<String> = client.metadata.iter().map(field).collect();
        node.push_str(&format!(", metadata: {{{}}}", fields.join(", ")));
    }
    node + "}"
}

/// Returns a template with a value for each `${NAME}`. The value of a name that is alone in its line contains whole
/// lines.
fn fill(template: &str, values: &[(&str, String)]) -> String {
    let value = |name: &str| {
        let found = values.iter().find(|(known, _)| *known == name);
        found.map_or("", |(_, value)| value)
    };
    let mut out = String::new();
    for line in template.split_inclusive('\n') {
        let alone = line.trim().strip_prefix("${").and_then(|line| line.strip_suffix('}'));
        if let Some(name) = alone.filter(|name| !name.contains('}')) {
            out.push_str(value(name));
            continue;
        }
        let mut rest = line;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after.split_once('}').unwrap_or((after, ""));
            out.push_str(before);
            out.push_str(value(name));
            rest = after;
        }
        out.push_str(rest);
    }
    out
}

/// Returns a text as a YAML scalar, with quotes only where they are necessary.
fn scalar(text: &str) -> String {
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    let is_word = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .contains(&text.to_ascii_lowercase().as_str());
    if is_plain && !is_word { text.to_owned() } else { quoted(text) }
}

/// Returns a text in double quotes. The escapes of JSON are those of YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn server(host: &str) -> Server {
        Server { host: host.into(), port: 18000 }
    }

    fn client() -> Client {
        Client {
            node: "envoy-1".into(),
            cluster: "no".into(),
            metadata: vec![("a \"b\"".into(), "${HOST}".into()), ("n".into(), "1".into())],
            servers: vec![server("xds.example")],
            tls: None,
            token_file: None,
        }
    }

    fn parsed(client: &Client) -> Vec<(Part, Value)> {
        let files = files(client, |part| format!("/out/envoy{}.yaml", part.suffix()));
        files
            .into_iter()
            .map(|(part, text)| (part, serde_saphyr::from_str(&text).unwrap()))
            .collect()
    }

    #[test]
    fn values_keep_their_text() {
        let files = parsed(&client());
        let [(Part::Bootstrap, bootstrap)] = files.as_slice() else { panic!("{files:?}") };
        let metadata = json!({"a \"b\"": "${HOST}", "n": "1"});
        let node = json!({"id": "envoy-1", "cluster": "no", "metadata": metadata});
        assert_eq!(bootstrap["node"], node);
        let cluster = &bootstrap["static_resources"]["clusters"][0];
        assert_eq!(cluster["type"], "STRICT_DNS");
        assert!(cluster["transport_socket"].is_null(), "{cluster}");
    }

    #[test]
    fn server_by_address_is_verified_by_its_address() {
        let tls = Tls { server_name: None, ca: Some("/ca".into()), cert_and_key: None };
        let client = Client { servers: vec![server("::1")], tls: Some(tls), ..client() };
        let files = parsed(&client);
        let [(_, bootstrap), (Part::Ca, ca)] = files.as_slice() else { panic!("{files:?}") };
        let cluster = &bootstrap["static_resources"]["clusters"][0];
        assert_eq!(cluster["type"], "STATIC");
        let tls = &cluster["transport_socket"]["typed_config"];
        assert!(tls["sni"].is_null(), "{tls}");
        let context = &tls["common_tls_context"]["combined_validation_context"];
        let names = &context["default_validation_context"]["match_typed_subject_alt_names"];
        assert_eq!(*names, json!([{"san_type": "IP_ADDRESS", "matcher": {"exact": "::1"}}]));
        assert_eq!(ca["resources"][0]["validation_context"]["trusted_ca"]["filename"], "/ca");
    }

    /// Each replica of a list is an endpoint, and has its own name.
    #[test]
    fn every_server_is_an_endpoint_with_its_name() {
        for (hosts, kind, sni) in [
            (["a.example", "b.example"], "STRICT_DNS", json!(true)),
            (["10.0.0.1", "10.0.0.2"], "STATIC", json!(null)),
            (["a.example", "10.0.0.2"], "STRICT_DNS", json!(null)),
        ] {
            let tls = Tls { server_name: None, ca: Some("/ca".into()), cert_and_key: None };
            let servers = hosts.map(server).to_vec();
            let (_, bootstrap) = parsed(&Client { servers, tls: Some(tls), ..client() }).remove(0);
            let cluster = &bootstrap["static_resources"]["clusters"][0];
            assert_eq!(cluster["type"], kind);
            let endpoints = &cluster["load_assignment"]["endpoints"][0]["lb_endpoints"];
            let address = |host: &str| json!({"address": host, "port_value": 18000});
            let endpoint =
                |host: &str| json!({"endpoint": {"address": {"socket_address": address(host)}}});
            assert_eq!(*endpoints, json!(hosts.map(endpoint)));
            let tls = &cluster["transport_socket"]["typed_config"];
            assert_eq!((&tls["auto_host_sni"], &tls["sni"]), (&sni, &json!(null)), "{hosts:?}");
            let context = &tls["common_tls_context"]["combined_validation_context"];
            let names = &context["default_validation_context"]["match_typed_subject_alt_names"];
            let exact: Vec<&Value> =
                names.as_array().unwrap().iter().map(|name| &name["matcher"]["exact"]).collect();
            assert_eq!(exact, hosts, "{names}");
        }
    }

    /// One name for all servers replaces theirs. Ports of one host need its name once.
    #[test]
    fn servers_with_one_name_are_verified_by_it() {
        let servers = vec![server("10.0.0.1"), Server { port: 1, ..server("10.0.0.1") }];
        for (server_name, exact) in [(Some("lb.example"), "lb.example"), (None, "10.0.0.1")] {
            let server_name = server_name.map(str::to_owned);
            let tls = Tls { server_name, ca: Some("/ca".into()), cert_and_key: None };
            let servers = servers.clone();
            let (_, bootstrap) = parsed(&Client { servers, tls: Some(tls), ..client() }).remove(0);
            let tls =
                &bootstrap["static_resources"]["clusters"][0]["transport_socket"]["typed_config"];
            let context = &tls["common_tls_context"]["combined_validation_context"];
            let names = &context["default_validation_context"]["match_typed_subject_alt_names"];
            assert_eq!(names.as_array().unwrap().len(), 1, "{names}");
            assert_eq!(names[0]["matcher"]["exact"], exact);
            assert_eq!(tls["sni"].as_str(), Some(exact).filter(|name| *name == "lb.example"));
        }
    }
}
