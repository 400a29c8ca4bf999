//! `resolve` compared with Envoy: generated requests over generated route tables.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use chancery_testing::reserve_port;
use fastrand::Rng;
use serde_json::{Value, json};

use crate::support::{
    STEP,
    chancery::Chancery,
    envoy::{Envoy, Mode},
    http::{self, Answer, Request},
    in_directory,
    manifests::{
        CLUSTER, ENDPOINT, LISTENER, ROUTE, add_on_demand_filter, cluster, connection_manager,
        endpoints, listener_of,
    },
    upstream, wait_for,
};

const NODE: &str = "envoy-resolve";
const VIRTUAL_HOST: &str = "type.googleapis.com/envoy.config.route.v3.VirtualHost";
const MODE: Mode = Mode::DeltaAds;
const TABLES: usize = 60;
const REQUESTS_PER_TABLE: usize = 5;
/// Every table with an index that this divides has its virtual hosts from VHDS.
const VHDS_EVERY: usize = 6;
const CLUSTERS: [&str; 3] = ["one", "two", "three"];

/// The hosts of requests.
const HOSTS: [&str; 8] =
    ["a.test", "A.Test", "b.test", "a.b.test", "c.test:8080", "x-a.test", "other", "a.other:1"];
/// The domains of virtual hosts. They differ without case, too.
const DOMAINS: [&str; 10] = [
    "a.test",
    "*.test",
    "*.b.test",
    "a.*",
    "*-a.test",
    "x-*",
    "c.test:8080",
    "c.test",
    "*",
    "B.Test",
];
const PATHS: [&str; 12] = [
    "/", "/a", "/a/", "/a/1", "/a/b", "/api", "/api/v1", "/apix", "/API/x", "/v2/x", "/A", "/a/xb",
];
const QUERIES: [&str; 6] = ["", "?q=1", "?q=2&r", "?r=", "?q=%31", "?r=x&q=1"];
const VALUES: [&str; 6] = ["1", "abc", "ABC", "5", "", "-3"];

/// A route table with the port of its listener, and the requests to it.
struct Table {
    port: u16,
    requests: Vec<Sent>,
}

/// A request.
struct Sent {
    method: &'static str,
    host: &'static str,
    path: String,
    headers: Vec<(&'static str, &'static str)>,
}

/// The answer of `resolve` equals the behavior of Envoy for 300 requests over 60 route tables: prefixes, paths, regular
/// expressions, headers, query parameters, weighted clusters, redirects, wildcards of virtual hosts, and VHDS.
#[test]
fn resolve_agrees_with_envoy() -> Result<()> {
    in_directory(|dir| {
        let mut rng = Rng::with_seed(35);
        let upstream = upstream::spawn_path()?;
        let mut resources: Vec<Value> =
            CLUSTERS.iter().map(|name| cluster(MODE, name, "5s")).collect();
        resources.extend(CLUSTERS.iter().map(|name| endpoints(name, upstream)));
        let mut tables = Vec::new();
        for index in 0..TABLES {
            let port = reserve_port();
            resources.extend(table(&mut rng, index, port));
            let requests = (0..REQUESTS_PER_TABLE).map(|_| request(&mut rng)).collect();
            tables.push(Table { port, requests });
        }
        let chancery = Chancery::start(dir)?;
        chancery.publish(&resources)?;
        let mut envoy = Envoy::start(dir, MODE, NODE, chancery.at.xds)?;
        for Table { port, .. } in &tables {
            wait_for(&format!("the listener on {port}"), STEP, || {
                http::ask(*port, &Request::new("/")).map(Some)
            })?;
        }
        // The first requests make Envoy request the virtual hosts that they need.
        for table in &tables {
            table.requests.iter().try_for_each(|sent| sent.ask(table.port).map(drop))?;
        }
        chancery.wait_for_node(
            NODE,
            "synced",
            &[LISTENER, ROUTE, CLUSTER, ENDPOINT, VIRTUAL_HOST],
        )?;
        let mut ends = BTreeMap::<String, usize>::new();
        let mut differences = Vec::new();
        for (index, table) in tables.iter().enumerate() {
            for sent in &table.requests {
                let answer = sent.ask(table.port)?;
                let resolved = sent.resolve(chancery.at.admin, table.port)?;
                let kind = resolved["end"]["kind"].as_str().unwrap_or_default().to_owned();
                *ends.entry(kind).or_default() += 1;
                if let Err(error) = compare(sent, &answer, &resolved) {
                    differences.push(format!("table {index}: {error}: {resolved:#}"));
                }
            }
        }
        ensure!(differences.is_empty(), "{}:\n{}", differences.len(), differences.join("\n"));
        // The requests reach every kind of end.
        for (kind, min) in [
            ("clusters", 60),
            ("redirect", 20),
            ("direct response", 10),
            ("no route", 20),
            ("missing resource", 2),
        ] {
            let n = ends.get(kind).copied().unwrap_or_default();
            ensure!(n >= min, "only {n} requests end in {kind:?}: {ends:?}");
        }
        envoy.expect_running()?;
        check_command(&chancery, &tables[1])
    })
}

/// The command has the answer of the HTTP API. It fails for a request that ends nowhere, and for a node that is not
/// connected.
fn check_command(chancery: &Chancery, Table { port, requests }: &Table) -> Result<()> {
    let url = |port: u16| format!("http://127.0.0.1:{port}/");
    for sent in requests {
        let expected = sent.resolve(chancery.at.admin, *port)?;
        let url = format!("http://127.0.0.1:{port}{}", sent.path);
        let host = ("host", sent.host);
        let headers = sent.headers.iter().chain(std::iter::once(&host));
        let headers: Vec<String> =
            headers.map(|(name, value)| format!("--header={name}:{value}")).collect();
        let mut args = vec!["resolve", NODE, "--url", &url, "--method", sent.method];
        args.extend(headers.iter().map(String::as_str));
        match chancery.cli(&args, "") {
            Ok(answer) => ensure!(answer["resolutions"][0] == expected, "{answer}"),
            Err(error) => {
                let is_served = expected["end"]["served"] == true;
                let text = error.to_string();
                ensure!(!is_served && text.contains("does not serve the request"), "{text}");
            }
        }
    }
    for (node, port, expected) in [
        (NODE, reserve_port(), "does not serve the request"),
        ("nobody", *port, "is not connected"),
    ] {
        let done = chancery.cli(&["resolve", node, "--url", &url(port)], "");
        let error = done.err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(error.contains(expected), "{expected:?} was expected: {error:?}");
    }
    Ok(())
}

/// Checks that Envoy's answer is the end of the path.
fn compare(sent: &Sent, answer: &Answer, resolved: &Value) -> Result<()> {
    let shown = || format!("{} {} {:?} got {answer:?}", sent.host, sent.path, sent.headers);
    let undecided = resolved["undecided"].as_array().context("no list of conditions")?;
    ensure!(undecided.is_empty(), "{}: undecided", shown());
    let end = &resolved["end"];
    let route = answer.header("x-route").unwrap_or_default();
    let last = resolved["steps"].as_array().and_then(|steps| steps.last()).context("no steps")?;
    let place = last["place"].as_str().unwrap_or_default();
    let kind = end["kind"].as_str().unwrap_or_default();
    let status = match kind {
        "clusters" => {
            let clusters = end["clusters"].as_array().context("no clusters")?;
            let used = answer.header("x-cluster").unwrap_or_default();
            ensure!(clusters.iter().any(|one| one["name"] == used), "{}: cluster", shown());
            let rewritten = end["rewritten_path"].as_str().unwrap_or_default();
            let path = if rewritten.is_empty() { &sent.path } else { rewritten };
            ensure!(answer.body == path, "{}: path", shown());
            200
        }
        "redirect" => {
            ensure!(answer.header("location") == end["location"].as_str(), "{}: location", shown());
            end["status"].as_u64().unwrap_or_default()
        }
        "direct response" => end["status"].as_u64().unwrap_or_default(),
        "no route" | "missing resource" => 404,
        _ => bail!("{}: unexpected end", shown()),
    };
    ensure!(u64::from(answer.status) == status, "{}: status", shown());
    let is_route = !route.is_empty() && place.ends_with(&format!("{route:?}"));
    ensure!(is_route || status == 404 && route.is_empty(), "{}: route", shown());
    Ok(())
}

impl Sent {
    fn ask(&self, port: u16) -> Result<Answer> {
        let mut headers: String =
            self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        if self.method != "GET" {
            headers.push_str("content-length: 0\r\n");
        }
        http::ask(port, &Request::of(self.method, self.host, &self.path, headers))
    }

    /// Returns the only path of the request.
    fn resolve(&self, admin: u16, port: u16) -> Result<Value> {
        let escaped = |text: &str| {
            let bytes = text.bytes().map(|byte| format!("%{byte:02x}"));
            bytes.collect::<String>()
        };
        let url = escaped(&format!("http://127.0.0.1:{port}{}", self.path));
        let mut query = format!("/v1/resolve?node={NODE}&url={url}&method={}", self.method);
        let host = ("host", self.host);
        for (name, value) in self.headers.iter().chain(std::iter::once(&host)) {
            query.push_str(&format!("&header={}", escaped(&format!("{name}:{value}"))));
        }
        let page = http::get(admin, &query)?;
        let mut response: Value = serde_json::from_str(&page)?;
        let resolutions = response["resolutions"].as_array_mut().context("no paths")?;
        ensure!(resolutions.len() == 1, "several paths: {resolutions:?}");
        Ok(resolutions[0].take())
    }
}

fn request(rng: &mut Rng) -> Sent {
    let method = pick(rng, &["GET", "GET", "POST", "PUT"]);
    let host = pick(rng, &HOSTS);
    let path = format!("{}{}", pick(rng, &PATHS), pick(rng, &QUERIES));
    let mut headers = Vec::new();
    for name in ["x-a", "x-b"] {
        for _ in 0..pick(rng, &[0, 1, 1, 1, 2]) {
            headers.push((name, pick(rng, &VALUES)));
        }
    }
    Sent { method, host, path, headers }
}

fn pick<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.usize(..all.len())]
}

/// Returns the listener, the route configuration and the virtual hosts of a table.
fn table(rng: &mut Rng, index: usize, port: u16) -> Vec<Value> {
    let name = format!("t{index}");
    let mut manager = connection_manager(MODE, &name, &name);
    let mut domains = DOMAINS.to_vec();
    rng.shuffle(&mut domains);
    let groups: Vec<&[&str]> = domains[..rng.usize(5..10)].chunks(rng.usize(1..3)).collect();
    let is_vhds = index.is_multiple_of(VHDS_EVERY);
    let mut hosts = Vec::new();
    for (at, group) in groups.iter().enumerate() {
        let host_name = if is_vhds { format!("{name}/h{at}") } else { format!("h{at}") };
        let routes: Vec<Value> =
            (0..rng.usize(2..6)).map(|n| route(rng, &format!("{name}h{at}r{n}"))).collect();
        hosts.push(json!({"name": host_name, "domains": group, "routes": routes}));
    }
    let mut config = json!({"@type": ROUTE, "name": name, "virtual_hosts": hosts});
    let mut all = Vec::new();
    if is_vhds {
        add_on_demand_filter(&mut manager, json!({}));
        config["vhds"] = json!({"config_source": MODE.config_source()});
        let hosts = config["virtual_hosts"].take();
        config["virtual_hosts"] = json!([]);
        all.extend(hosts.as_array().into_iter().flatten().map(|host| requested(&name, host)));
    }
    manager["strip_any_host_port"] = rng.bool().into();
    all.extend([listener_of(&name, port, &manager), config]);
    all
}

/// Returns a virtual host that Envoy requests by the hosts of its domains.
fn requested(table: &str, host: &Value) -> Value {
    let mut resource = host.clone();
    resource["@type"] = VIRTUAL_HOST.into();
    let domains = host["domains"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let exact = domains.filter(|domain| !domain.contains('*'));
    let aliases: Vec<String> =
        exact.map(|domain| format!("{table}/{}", domain.to_ascii_lowercase())).collect();
    json!({"name": host["name"], "aliases": aliases, "resource": resource})
}

/// Returns a route that adds its name to its responses.
fn route(rng: &mut Rng, name: &str) -> Value {
    let header = |key: &str, value: &str| json!({"header": {"key": key, "value": value}});
    let mut matcher = path_matcher(rng);
    if rng.u8(..10) < 4 {
        matcher["headers"] = json!([header_matcher(rng)]);
    }
    if rng.u8(..10) < 3 {
        let string = pick(rng, &["exact", "prefix", "suffix", "contains"]);
        matcher["query_parameters"] = match rng.u8(..4) {
            0 => json!([{"name": "r", "present_match": true}]),
            1 => json!([{"name": "r", "present_match": false}]),
            2 => json!([{"name": "q", "string_match": {"safe_regex": {"regex": "[12]"}}}]),
            _ => json!([{"name": "q", "string_match": {string: "1"}}]),
        };
    }
    let mut route = json!({"name": name, "match": matcher});
    let cluster = pick(rng, &CLUSTERS);
    let regex = json!({"pattern": {"regex": "^/([a-z]+)"}, "substitution": "/new/\\1"});
    match rng.u8(..12) {
        0 | 1 => route["redirect"] = redirect(rng, &regex),
        2 => {
            let status = pick(rng, &[200, 403, 418]);
            route["direct_response"] =
                json!({"status": status, "body": {"inline_string": "direct"}});
        }
        3 | 4 => {
            let weights = CLUSTERS.map(|name| json!({"name": name, "weight": rng.u32(..3)}));
            let mut weights = weights.to_vec();
            weights.push(json!({"name": cluster, "weight": 1}));
            route["route"] = json!({"weighted_clusters": {"clusters": weights}});
        }
        5 => route["route"] = json!({"cluster": cluster, "prefix_rewrite": "/re"}),
        6 => route["route"] = json!({"cluster": cluster, "regex_rewrite": regex}),
        7 => route["route"] = json!({"cluster_header": "x-c"}),
        _ => route["route"] = json!({"cluster": cluster}),
    }
    if route["route"]["cluster_header"] == "x-c" {
        // No request has the header, so that the route must not match.
        route["match"]["headers"] = json!([{"name": "x-c", "present_match": true}]);
    }
    route["response_headers_to_add"] =
        json!([header("x-route", name), header("x-cluster", "%UPSTREAM_CLUSTER%")]);
    route
}

fn path_matcher(rng: &mut Rng) -> Value {
    let mut matcher = match rng.u8(..10) {
        0..4 => json!({"prefix": pick(rng, &["/", "/a", "/a/", "/api", "/API"])}),
        4..6 => json!({"path": pick(rng, &["/a", "/api/v1", "/A", "/"])}),
        6..9 => {
            let regex = pick(
                rng,
                &[
                    "/a/[0-9]+",
                    "/(api|v2)/.*",
                    "/[^/]+",
                    "(?i)/API.*",
                    "/a.*b",
                    "/a|/api",
                    r"/\w+/\d",
                ],
            );
            return json!({"safe_regex": {"regex": regex}});
        }
        _ => json!({"path_separated_prefix": pick(rng, &["/api", "/a"])}),
    };
    if rng.u8(..4) == 0 {
        matcher["case_sensitive"] = false.into();
    }
    matcher
}

fn header_matcher(rng: &mut Rng) -> Value {
    let value = pick(rng, &["1", "abc", "1,5", "b"]);
    let mut matcher = match rng.u8(..8) {
        0 => json!({"range_match": {"start": -5, "end": 5}}),
        1 => json!({"present_match": rng.bool()}),
        2 => json!({"string_match": {"safe_regex": {"regex": "[a-z]+|5"}}}),
        3 => json!({"string_match": {"exact": value, "ignore_case": true}}),
        4 => json!({"string_match": {"contains": value}}),
        5 => json!({"string_match": {"prefix": value}}),
        6 => json!({"string_match": {"suffix": value, "ignore_case": true}}),
        _ => json!({"string_match": {"exact": value}}),
    };
    matcher["name"] = pick(rng, &["x-a", "x-b", ":method", "X-A"]).into();
    matcher["invert_match"] = (rng.u8(..4) == 0).into();
    matcher["treat_missing_header_as_empty"] = (rng.u8(..4) == 0).into();
    matcher
}

fn redirect(rng: &mut Rng, regex: &Value) -> Value {
    let mut redirect = match rng.u8(..4) {
        0 => json!({"path_redirect": pick(rng, &["/to", "/to?x=y"])}),
        1 => json!({"prefix_rewrite": "/to"}),
        2 => json!({"regex_rewrite": regex}),
        _ => json!({}),
    };
    match rng.u8(..4) {
        0 => redirect["https_redirect"] = true.into(),
        1 => redirect["host_redirect"] = "new.test".into(),
        2 => redirect["port_redirect"] = 8443.into(),
        _ => {}
    }
    redirect["strip_query"] = rng.bool().into();
    let codes =
        ["MOVED_PERMANENTLY", "FOUND", "SEE_OTHER", "TEMPORARY_REDIRECT", "PERMANENT_REDIRECT"];
    redirect["response_code"] = pick(rng, &codes).into();
    redirect
}
