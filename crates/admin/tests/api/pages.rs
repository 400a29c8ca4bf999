//! Pages of lists: `limit`, `cursor` and `next`.

use std::collections::BTreeSet;

use chancery_admin_proto::v1 as pb;
use chancery_load::Report;
use chancery_model::types::CLUSTER;
use chancery_proto::lrs::{ClusterStats, LoadStatsRequest};
use prost::Message;
use serde_json::{Value, json};
use tonic::Code;

use crate::support::{Client, Server, clusters, eventually};

/// The lists with cursors that only the list has made, and the field with their items.
const LISTS: [(&str, &str); 9] = [
    ("/v1/resources?", "resources"),
    ("/v1/assignments?", "assignments"),
    ("/v1/history?", "entries"),
    ("/v1/access?", "rules"),
    ("/v1/tokens?", "tokens"),
    ("/v1/quotas?", "quotas"),
    ("/v1/analyze?", "findings"),
    ("/v1/load?", "clusters"),
    ("/v1/freezes?", "freezes"),
];

/// Returns the pages of a list. `between` runs after each page.
async fn pages(
    server: &Server,
    uri: &str,
    field: &str,
    limit: usize,
    mut between: impl AsyncFnMut(usize),
) -> Vec<Vec<Value>> {
    let (mut pages, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.done("GET", &format!("{uri}&limit={limit}&cursor={cursor}"), "").await;
        let items = page[field].as_array().unwrap().clone();
        assert!(items.len() <= limit, "{uri}: {page}");
        pages.push(items);
        cursor = page["next"].as_str().unwrap().to_owned();
        if cursor.is_empty() {
            return pages;
        }
        assert_eq!(pages.last().unwrap().len(), limit, "{uri}: {page}");
        between(pages.len()).await;
    }
}

/// Fills all lists with 7 items or more.
async fn fill(server: &Server) {
    for scope in ["a", "b/c", "d"] {
        let uri = format!("/v1/apply?scope={scope}");
        server.done("POST", &uri, &clusters(&["x", "y", "z é \\\""], "1s")).await;
    }
    let variant = |value: &str| {
        let cluster = json!({"@type": CLUSTER, "name": "web", "connect_timeout": "1s"});
        let constraint = json!({"constraint": {"key": "env", "value": value}});
        json!({"dynamic_parameter_constraints": constraint, "resource": cluster})
    };
    let names = ["n1", "n2", "n3", "n4", "n5", "n6", "n7"];
    let assignments = names.iter().enumerate().map(|(n, name)| {
        json!({"name": name, "priority": (n as i64 % 3) - 1, "match": {"id": name}, "scopes": ["a"]})
    });
    let rules = names.map(|name| json!({"name": name, "identities": ["token:x"], "read": ["a"]}));
    let quotas = names.map(|name| json!({"name": name, "scopes": [name], "max_resources": 9}));
    let variants = ["prod", "test", "dev"].map(variant);
    let manifest = json!({
        "resources": variants,
        "assignments": assignments.collect::<Vec<_>>(),
        "access": rules,
        "quotas": quotas,
    });
    server.done("POST", "/v1/apply", &manifest.to_string()).await;
    for name in ["t1", "t1", "t2", "t3", "t4", "t5", "t6"] {
        server.done("POST", &format!("/v1/tokens?name={name}"), "").await;
    }
    for name in ["f6", "f5", "f4/a", "f3", "f2", "f1"] {
        server.done("POST", &format!("/v1/freeze?scope={name}"), "").await;
    }
    server.done("POST", "/v1/freeze?all=true", "").await;
    let stats = |cluster: &str, service: &str| ClusterStats {
        cluster_name: cluster.to_owned(),
        cluster_service_name: service.to_owned(),
        load_report_interval: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        ..ClusterStats::default()
    };
    let services = ["", "s", "t"].into_iter();
    let cluster_stats = services.flat_map(|one| ["a", "b", "c"].map(|name| stats(name, one)));
    let request = LoadStatsRequest { node: None, cluster_stats: cluster_stats.collect() };
    let report = Report::new(request.encode_to_vec().into()).unwrap();
    server.reports.open("anonymous", "n").report(report).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_each_list_are_the_list() {
    let server = Server::start().await;
    fill(&server).await;
    let view = "/v1/resources?type=cds&view_of_node=n1";
    let mut client = Client::open(&server, "n1");
    client.subscribe(CLUSTER).await;
    let response = client.response().await;
    client.answer(&response, None).await;
    let filtered = [
        ("/v1/resources?type=cds&scope=b/c", "resources"),
        ("/v1/resources?type=cds&name=web", "resources"),
        (view, "resources"),
        ("/v1/analyze?scope=d", "findings"),
        ("/v1/load?cluster=b", "clusters"),
    ];
    for (uri, field) in LISTS.into_iter().chain(filtered) {
        let whole = server.done("GET", uri, "").await;
        assert_eq!(whole["next"], "", "{uri}: {whole}");
        let mut whole = whole[field].as_array().unwrap().clone();
        let is_part = LISTS.iter().all(|(list, _)| *list != uri);
        assert!(whole.len() >= if is_part { 3 } else { 7 }, "{uri}: {whole:?}");
        for limit in [1, 3, whole.len(), whole.len() + 1] {
            let mut pages = pages(&server, uri, field, limit, async |_| {}).await.concat();
            if field == "clusters" {
                // The time since the last report goes on.
                for one in whole.iter_mut().chain(&mut pages) {
                    one["reported_ms_ago"] = json!(0);
                }
            }
            assert_eq!(pages, whole, "{uri} with {limit}");
        }
    }
    server.stop().await;
}

/// Resources and tokens come and go between pages, also the last one of a page. Each page says its revision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn surviving_items_are_listed_once_during_writes() {
    let server = Server::start().await;
    let names: Vec<String> = (0..40).map(|n| format!("c{n:02}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    server.done("POST", "/v1/apply", &clusters(&all, "1s")).await;
    let name = |item: &Value| item["name"].as_str().unwrap().to_owned();
    let change = async |n_pages: usize| {
        // The last item of the page, and one of a later page, disappear; new ones appear before and after.
        let last = n_pages * 5 - 1;
        let (gone, later) = (&all[last.min(39)], &all[(last + 3).min(39)]);
        let uri = format!("/v1/resources?type=cds&name={gone}");
        server.call("DELETE", &uri, "").await;
        server.call("DELETE", &format!("/v1/resources?type=cds&name={later}"), "").await;
        let new = [format!("a{n_pages}"), format!("d{n_pages}")];
        server.done("POST", "/v1/apply", &clusters(&[&new[0], &new[1]], "1s")).await;
    };
    let listed: Vec<String> = pages(&server, "/v1/resources?", "resources", 5, change)
        .await
        .iter()
        .flatten()
        .map(name)
        .collect();
    let once: BTreeSet<&String> = listed.iter().collect();
    assert_eq!(once.len(), listed.len(), "{listed:?}");
    let left = server.done("GET", "/v1/resources", "").await;
    let survivors: Vec<String> = left["resources"].as_array().unwrap().iter().map(name).collect();
    let survivors: Vec<&String> = survivors.iter().filter(|one| names.contains(one)).collect();
    assert!(survivors.len() > 15 && survivors.len() < 35, "{survivors:?}");
    assert!(survivors.iter().all(|one| once.contains(one)), "{survivors:?} {listed:?}");

    // Newer revisions do not move older ones.
    let newest = server.done("GET", "/v1/history?limit=2", "").await;
    server.done("POST", "/v1/apply", &clusters(&["new"], "1s")).await;
    let next = newest["next"].as_str().unwrap();
    let older = server.done("GET", &format!("/v1/history?limit=1&cursor={next}"), "").await;
    let revision = |list: &Value, at: usize| list["entries"][at]["revision"].as_u64().unwrap();
    assert_eq!(revision(&newest, 1), revision(&older, 0) + 1);

    let first = server.done("GET", "/v1/resources?limit=1", "").await;
    server.done("POST", "/v1/apply", &clusters(&["newer"], "1s")).await;
    let next = first["next"].as_str().unwrap();
    let second = server.done("GET", &format!("/v1/resources?limit=1&cursor={next}"), "").await;
    assert_eq!(second["revision"].as_u64().unwrap(), first["revision"].as_u64().unwrap() + 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_cursor_and_limit_are_refused() {
    let server = Server::start().await;
    fill(&server).await;
    let made = server.done("GET", "/v1/resources?limit=1", "").await;
    let made = made["next"].as_str().unwrap();
    let (long, cut) = ("A".repeat(20_000), &made[..made.len() - 3]);
    // A server without sources of MCP lists none.
    for (uri, _) in LISTS.into_iter().chain([("/v1/mcp?", "sources")]) {
        for cursor in ["x", "1", "%00", "..%2F..", "bnVsbA", "W10", "eyJhIjoxfQ", cut, &long] {
            let uri = format!("{uri}limit=1&cursor={cursor}");
            let (status, code, text) = server.refused("GET", &uri, "").await;
            assert_eq!((status, code.as_str()), (400, "INVALID_ARGUMENT"), "{uri}: {text}");
            assert!(text.starts_with("the cursor is invalid: no list has made it; use"), "{text}");
        }
        if uri != "/v1/resources?" {
            let uri = format!("{uri}cursor={made}");
            let (_, _, text) = server.refused("GET", &uri, "").await;
            assert!(text.contains("it continues the list \"resources\", not \""), "{text}");
        }
        let (_, _, text) = server.refused("GET", &format!("{uri}limit=10001"), "").await;
        assert_eq!(text, "the limit is 10001; at most 10000 items are listed at a time");
    }
    let cursor = "x".to_owned();
    let request = pb::ListResourcesRequest { cursor, ..Default::default() };
    let refused = server.grpc().list_resources(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    server.stop().await;
}

/// Every piece of a page has the cursor of the next page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_in_several_pieces_has_one_cursor() {
    let server = Server::start().await;
    let names: Vec<String> = (0..500).map(|n| format!("c{n:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    server.done("POST", "/v1/apply", &clusters(&names, "1s")).await;
    let (mut listed, mut cursors, mut n_pieces) = (Vec::new(), BTreeSet::new(), 0);
    let mut cursor = String::new();
    loop {
        let request = pb::ListResourcesRequest { limit: 450, cursor, ..Default::default() };
        let mut pieces = server.grpc().list_resources(request).await.unwrap().into_inner();
        let mut of_page = BTreeSet::new();
        while let Some(piece) = pieces.message().await.unwrap() {
            n_pieces += 1;
            of_page.insert(piece.next);
            listed.extend(piece.resources.into_iter().map(|one| one.name));
        }
        assert_eq!(of_page.len(), 1, "{of_page:?}");
        cursor = of_page.pop_first().unwrap();
        cursors.insert(cursor.clone());
        if cursor.is_empty() {
            break;
        }
    }
    assert_eq!(
        (listed, cursors.len(), n_pieces),
        (names.iter().map(|one| (*one).to_owned()).collect(), 2, 4)
    );
    server.stop().await;
}

/// The page of a replica ended at its limit only, so that a page with long IDs was too large for another replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_of_long_node_ids_ends_before_its_limit() {
    let server = Server::start().await;
    let id = |n: usize| format!("{n:03}{}", "x".repeat(200_000));
    let mut clients = Vec::new();
    for n in 0..70 {
        let mut client = Client::open(&server, &id(n));
        client.subscribe(CLUSTER).await;
        clients.push(client);
    }
    let all = 70;
    eventually(
        async || {
            let counted = server.done("GET", "/v1/nodes?count=true", "").await;
            let counts = counted["counts"].as_object().unwrap();
            (counts.values().map(|n| n.as_u64().unwrap()).sum::<u64>() == all).then_some(())
        },
        "all nodes are connected",
    )
    .await;
    for state in ["", "pending"] {
        let (mut listed, mut cursor, mut n_pages) = (Vec::new(), String::new(), 0);
        loop {
            let request = pb::ListNodesRequest {
                limit: 1000,
                state: state.to_owned(),
                cursor,
                ..Default::default()
            };
            let mut pieces = server.grpc().list_nodes(request).await.unwrap().into_inner();
            let (mut n_bytes, mut next) = (0, String::new());
            while let Some(piece) = pieces.message().await.unwrap() {
                n_bytes += piece.encoded_len();
                next = piece.next;
                listed.extend(piece.nodes.into_iter().map(|node| node.id[..3].to_owned()));
            }
            assert!(n_bytes < 14 << 20, "{n_bytes} bytes");
            n_pages += 1;
            cursor = next;
            if cursor.is_empty() {
                break;
            }
        }
        let ids: Vec<String> = (0..70).map(|n| format!("{n:03}")).collect();
        assert_eq!((listed, n_pages), (ids, 2), "{state}");
    }
    server.stop().await;
}
