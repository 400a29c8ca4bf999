//! What is admitted, and as what.

use chancery_admission::{Manifest, Options, Prune, admit, body_to_json};
use chancery_model::{ScopeName, Transaction};

fn options() -> Options {
    Options::new(ScopeName::new("default").unwrap())
}

fn manifest(file: &str, content: &str) -> Manifest {
    Manifest { file: file.to_owned(), content: content.to_owned() }
}

fn admitted(content: &str) -> Transaction {
    admit(&[manifest("a.yaml", content)], &options()).unwrap_or_else(|problems| {
        panic!("{}", problems.iter().map(|p| format!("{p}\n")).collect::<String>())
    })
}

fn children(transaction: &Transaction) -> Vec<String> {
    let drafts = transaction.upserts.iter().map(|upsert| &upsert.draft);
    drafts
        .map(|draft| {
            let children: Vec<String> = draft.children.iter().map(ToString::to_string).collect();
            format!("{} -> [{}]", draft.key, children.join(", "))
        })
        .collect()
}

/// Configurations that real Envoys and gRPC clients were run with.
#[test]
fn recorded_resources_are_admitted_with_their_children() {
    let transaction = admitted(include_str!("data/envoy.json"));
    assert_eq!(
        children(&transaction),
        [
            "envoy.config.cluster.v3.Cluster \"ca\" -> [envoy.config.endpoint.v3.ClusterLoadAssignment \"ca\"]",
            "envoy.config.endpoint.v3.ClusterLoadAssignment \"ca\" -> []",
            "envoy.config.listener.v3.Listener \"l\" -> [envoy.config.route.v3.RouteConfiguration \"r\"]",
            "envoy.config.route.v3.RouteConfiguration \"r\" -> []",
        ]
    );
    let transaction = admitted(include_str!("data/grpc.json"));
    println!("{:#?}", children(&transaction));
    for upsert in &transaction.upserts {
        println!("{}", body_to_json(&upsert.draft.key.type_url, &upsert.draft.body));
    }
}
