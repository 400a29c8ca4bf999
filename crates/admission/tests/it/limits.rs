//! Hostile inputs: each is admitted or rejected with a text, and none ends the process.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use chancery_admission::{
    BODY_BYTES_MAX, Manifest, Options, Validation, ValidationMode, admit, admit_unless,
    body_to_json, draft_from_body, import_bootstrap,
};
use chancery_model::{ScopeName, Transaction, TypeUrl, types};
use chancery_proto::envoy_pool;
use proptest::prelude::*;
use prost_reflect::{DynamicMessage, prost::Message};
use serde_json::json;

use crate::support::{Rng, message};

fn scope() -> ScopeName {
    ScopeName::new("default").unwrap()
}

fn admit_one(file: &str, content: &str) -> Result<Transaction, String> {
    let manifest = Manifest { file: file.into(), content: content.into() };
    admit(&[manifest], &Options::new(scope())).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        problems.join("\n")
    })
}

#[test]
fn deep_nesting_is_refused_and_does_not_overflow_the_stack() {
    for depth in [50, 100, 127, 128, 1000, 100_000] {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        let (maps, ends) = ("{\"a\":".repeat(depth), "}".repeat(depth));
        for content in [
            format!("{{\"resources\": {open}{close}}}"),
            format!("{{\"resources\": [{maps}1{ends}]}}"),
            format!("resources: {open}{close}"),
            format!("resources: [{maps}1{ends}]"),
            "- ".repeat(depth) + "a",
            "? ".repeat(depth) + "a",
        ] {
            admit_one("a.yaml", &content).unwrap_err();
            admit_one("a.json", &content).unwrap_err();
        }
    }
}

/// A thread per file took 37 s for 400,000 empty files.
#[test]
fn many_empty_files_are_read_on_one_thread() {
    let manifest = Manifest { file: String::new(), content: "# nothing\n".to_owned() };
    let start = Instant::now();
    admit(&vec![manifest; 100_000], &Options::new(scope())).unwrap_err();
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "100,000 empty files took {took:?}");
}

#[test]
fn documents_of_an_input_are_bounded() {
    let problems = admit_one("a.yaml", &"---\na\n".repeat(100_001)).unwrap_err();
    assert_eq!(problems, "a.yaml: the input has more than 100000 documents");
}

#[test]
fn admission_stops_soon_after_cancellation() {
    let one = "- {'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: x}\n";
    let content = format!("resources:\n{}", one.repeat(200_000));
    for file in ["a.yaml", "a.json"] {
        let manifest = Manifest { file: file.into(), content: content.clone() };
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let work = std::thread::spawn(move || {
            admit_unless(&[manifest], &Options::new(scope()), &flag).unwrap_err()
        });
        std::thread::sleep(Duration::from_millis(20));
        stop.store(true, Ordering::Relaxed);
        let start = Instant::now();
        let problems = work.join().unwrap();
        let took = start.elapsed();
        assert!(took < Duration::from_secs(1), "{file}: it went on for {took:?}");
        assert!(!problems.is_empty());
    }
}

/// Each input made validation take minutes or gigabytes: its cost was the product of two parts of the input.
#[test]
fn cost_of_validation_grows_linearly_with_input() {
    let names = |prefix: &str, n: usize| -> Vec<String> {
        (0..n).map(|n| format!("{prefix}{n:0>60}")).collect()
    };
    let chain = json!({"filter_chain_match": {
        "server_names": ["a".repeat(200_000)], "source_ports": (1..20_000).collect::<Vec<u32>>(),
    }});
    let selector = json!({
        "keys": names("k", 10_000), "fallback_keys_subset": names("k", 9_999),
        "fallback_policy": "KEYS_SUBSET",
    });
    let providers = names("p", 2000).into_iter().map(|name| (name, json!({})));
    let rules = names("q", 2000);
    let rules = rules
        .iter()
        .map(|name| json!({"match": {"prefix": "/"}, "requires": {"provider_name": name}}));
    let jwt = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
        "providers": providers.collect::<serde_json::Map<_, _>>(),
        "rules": rules.collect::<Vec<_>>(),
    });
    let unknown = names("field_", 5000).into_iter().map(|name| (name, json!(1)));
    for resource in [
        json!({"@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": "l", "filter_chains": [chain]}),
        json!({"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "c",
            "lb_subset_config": {"subset_selectors": [selector]}}),
        json!({"@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig", "name": "j", "typed_config": jwt}),
        json!({"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "u",
            "x": unknown.collect::<serde_json::Map<_, _>>()}),
    ] {
        drop(admit_one("a.json", &json!({"resources": [resource]}).to_string()));
    }
}

#[test]
fn maximum_depth_is_reported() {
    let said = admit_one(
        "a.yaml",
        &format!("resources: [{}]", "{\"a\": ".repeat(200) + "1" + &"}".repeat(200)),
    );
    let said = said.unwrap_err();
    assert!(said.ends_with("not YAML: nested deeper than 128 levels"), "{said}");
    // The parsers of flow collections and of JSON have their own limits.
    let lists = format!("resources: {}1{}", "[".repeat(300), "]".repeat(300));
    let said = admit_one("a.yaml", &lists).unwrap_err();
    assert_eq!(said, "a.yaml:1:267: document 1: not YAML: nested deeper than 128 levels");
    let lists = format!("{{\"resources\": {}1{}}}", "[".repeat(300), "]".repeat(300));
    for file in ["a.json", "a.yaml"] {
        let said = admit_one(file, &lists).unwrap_err();
        assert_eq!(said, format!("{file}:1:141: not JSON: nested deeper than 128 levels"));
    }
}

#[test]
fn too_deeply_nested_struct_is_rejected() {
    let metadata = |depth: usize| {
        let (open, close) = ("{\"a\":".repeat(depth), "}".repeat(depth));
        format!(
            "{{\"resources\": [{{\"@type\": \"{}\", \"name\": \"web\", \"metadata\": \
             {{\"filter_metadata\": {{\"x\": {open}1{close}}}}}}}]}}",
            types::CLUSTER
        )
    };
    admit_one("a.json", &metadata(20)).unwrap();
    let said = admit_one("a.json", &metadata(60)).unwrap_err();
    let start = "resources[0] Cluster \"web\": metadata.filter_metadata[\"x\"][\"a\"][\"a\"]";
    assert!(said.contains(start) && said.ends_with(": nested deeper than 100 messages"), "{said}");
    // The limit is exactly that of a reader of the encoded message: for maps, for lists, and inside an `Any`.
    let lists = |depth: usize| {
        format!(
            "{{\"resources\": [{{\"@type\": \"{}\", \"name\": \"web\", \"transport_socket\": \
             {{\"typed_config\": {{\"@type\": \"type.googleapis.com/google.protobuf.Struct\", \
             \"value\": {{\"k\": {}1{}}}}}}}}}]}}",
            types::CLUSTER,
            "[".repeat(depth),
            "]".repeat(depth)
        )
    };
    let deepest = |content: &dyn Fn(usize) -> String| {
        (1..70).rev().find(|depth| admit_one("a.json", &content(*depth)).is_ok()).unwrap()
    };
    for content in [&metadata as &dyn Fn(usize) -> String, &lists] {
        let said = admit_one("a.json", &content(deepest(content) + 1)).unwrap_err();
        assert!(!said.contains(".fields"), "the path is that of the manifest: {said}");
    }
}

/// Admission rejects such a body, but the conversion to JSON may get it from elsewhere.
#[test]
fn deeply_nested_any_is_converted_without_stack_overflow() {
    let url = "type.googleapis.com/google.protobuf.Any";
    let field = |key: u8, content: &[u8]| {
        let mut out = vec![key];
        prost_reflect::prost::encoding::encode_varint(content.len() as u64, &mut out);
        [out.as_slice(), content].concat()
    };
    let mut body = Vec::new();
    for _ in 0..3000 {
        body = [field(0x0a, url.as_bytes()), field(0x12, &body)].concat();
    }
    let type_url = TypeUrl::from_static(url);
    let shown = body_to_json(&type_url, &body);
    assert_eq!(shown["value"]["value"]["@type"], url);
    let problem = draft_from_body(&type_url, Some("x"), body.into()).unwrap_err();
    assert!(problem.to_string().ends_with("nested deeper than 100 messages"), "{problem}");
}

#[test]
fn yaml_alias_expansion_is_bounded() {
    let mut nested_aliases = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let last = level - 1;
        let aliases = vec![format!("*a{last}"); 10].join(", ");
        nested_aliases.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    let said = admit_one("a.yaml", &nested_aliases).unwrap_err();
    assert!(
        said.ends_with("document 1: not YAML: the aliases expand to too many values"),
        "{said}"
    );

    // Many aliases of one long text.
    let text = "x".repeat(1 << 20);
    let aliases = vec!["*t"; 5000].join(", ");
    let said = admit_one("a.yaml", &format!("a: &t {text}\nb: [{aliases}]\n")).unwrap_err();
    assert!(said.contains("not YAML: "), "{said}");
    assert!(said.ends_with("too much text") || said.contains("ScalarBytes"), "{said}");
}

/// Returns a document in which each level has ten aliases of the one before: 10^`levels` values.
fn nested_aliases(levels: usize) -> String {
    let mut nested_aliases = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..levels {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        nested_aliases.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    nested_aliases
}

/// The cost of an input is proportional to its length, regardless of the number of its documents and files.
#[test]
fn alias_expansion_is_proportional_to_input_length() {
    let too_many = "the aliases expand to too many values";
    // 11 thousand and 111 thousand values, from a few hundred bytes.
    let said = admit_one("a.yaml", &nested_aliases(4)).unwrap_err();
    assert!(said.contains("a0: unknown key"), "{said}");
    let said = admit_one("a.yaml", &nested_aliases(5)).unwrap_err();
    assert!(said.ends_with(too_many), "{said}");
    let documents = format!("{}---\n", nested_aliases(4)).repeat(10) + "resuorces: []\n";
    let said = admit_one("a.yaml", &documents).unwrap_err();
    assert_eq!(said.matches(too_many).count(), 10, "{said}");
    assert!(said.ends_with("document 11: resuorces: unknown key; did you mean \"resources\"?"));
    let file = |n| Manifest { file: format!("{n}.yaml"), content: nested_aliases(4) };
    let files: Vec<Manifest> = (0..10).map(file).collect();
    let problems = admit(&files, &Options::new(scope())).unwrap_err();
    assert_eq!(problems.iter().filter(|p| p.rule.ends_with(too_many)).count(), 10);
}

/// Real manifests share one block of settings among all their resources.
#[test]
fn resources_can_share_settings_by_yaml_alias() {
    let metadata: Vec<String> = (0..150).map(|n| format!("k{n}: v")).collect();
    let mut content = format!(
        "resources:\n- \"@type\": {0}\n  name: first\n  metadata: &shared\n    filter_metadata: {{a: {{{1}}}}}\n",
        types::CLUSTER,
        metadata.join(", ")
    );
    for n in 0..1000 {
        content.push_str(&format!(
            "- {{\"@type\": {}, name: c{n}, metadata: *shared}}\n",
            types::CLUSTER
        ));
    }
    assert_eq!(admit_one("a.yaml", &content).unwrap().upserts.len(), 1001);
}

#[test]
fn anchors_and_merge_keys_work() {
    let content = format!(
        "resources:\n- &base\n  \"@type\": {0}\n  name: a\n  connect_timeout: 1s\n- <<: *base\n  \
         name: b\n",
        types::CLUSTER
    );
    let transaction = admit_one("a.yaml", &content).unwrap();
    let names: Vec<&str> =
        transaction.upserts.iter().map(|upsert| upsert.draft.key.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn problem_count_is_limited_and_resource_count_is_not() {
    let bad: Vec<String> = (0..5000)
        .map(|n| format!("{{\"@type\": \"{}\", \"name\": \"c{n}\", \"nope\": 1}}", types::CLUSTER))
        .collect();
    let content = format!("{{\"resources\": [{}]}}", bad.join(","));
    let said = admit_one("a.json", &content).unwrap_err();
    assert_eq!(said.lines().count(), 1001);
    assert!(said.ends_with("these are the first 1000 problems; nothing after them was read"));

    let good: Vec<String> = (0..5000)
        .map(|n| format!("- {{\"@type\": {}, name: c{n}, type: EDS}}", types::CLUSTER))
        .collect();
    let content = format!("resources:\n{}\n", good.join("\n"));
    let started = Instant::now();
    assert_eq!(admit_one("a.yaml", &content).unwrap().upserts.len(), 5000);
    // An algorithm with quadratic cost would take minutes.
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

#[test]
fn resource_aliases_and_labels_are_limited() {
    let aliases: Vec<String> = (0..1001).map(|n| n.to_string()).collect();
    let content = format!(
        "resources: [{{resource: {{'@type': {}, name: a}}, aliases: ['{}'], labels: {{a: {}}}}}]",
        types::CLUSTER,
        aliases.join("','"),
        "x".repeat(1025)
    );
    assert_eq!(
        admit_one("a.yaml", &content).unwrap_err(),
        "a.yaml:1:97: document 1: resources[0] Cluster \"a\": aliases: has 1001 entries, at most 1000 \
         are allowed\n\
         a.yaml:1:6015: document 1: resources[0] Cluster \"a\": labels[\"a\"]: is longer than 1024 bytes"
    );
    let thing = TypeUrl::new("type.googleapis.com/acme.Thing").unwrap();
    let body = Bytes::from(vec![0; BODY_BYTES_MAX + 1]);
    let problem = draft_from_body(&thing, Some("t"), body).unwrap_err();
    assert_eq!(
        problem.to_string(),
        "Thing \"t\": has 67108865 bytes, at most 67108864 are allowed"
    );
}

const SEEDS: [&str; 4] = [
    include_str!("data/envoy.json"),
    include_str!("data/grpc.json"),
    include_str!("data/refused.txt"),
    include_str!("data/mixed.yaml"),
];

/// Returns a seed with some places overwritten, removed, inserted or duplicated.
fn mutated(seed: &str, edits: &[(usize, u8, u8)]) -> String {
    let mut bytes = seed.as_bytes().to_vec();
    for (at, kind, byte) in edits {
        let at = at % bytes.len().max(1);
        match kind % 4 {
            _ if bytes.is_empty() => bytes.push(*byte),
            0 => bytes[at] = *byte,
            1 => drop(bytes.drain(at..(at + usize::from(*byte)).min(bytes.len()))),
            2 => bytes.insert(at, b"{}[]:,&*!|>-\"'#%\t\n ?"[usize::from(*byte) % 20]),
            _ => {
                let end = (at + usize::from(*byte)).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn admission_of_arbitrary_text_does_not_panic(
        seed in 0..SEEDS.len(),
        edits in prop::collection::vec((any::<usize>(), any::<u8>(), any::<u8>()), 0..8),
        file in prop::sample::select(vec!["a.yaml", "a.json", "-"]),
    ) {
        let content = mutated(SEEDS[seed], &edits);
        match admit_one(file, &content) {
            Ok(transaction) => for upsert in transaction.upserts {
                let key = upsert.draft.key;
                let again = draft_from_body(&key.type_url, Some(key.name.as_str()), upsert.draft.body);
                prop_assert_eq!(again.unwrap().children, upsert.draft.children);
            },
            Err(said) => prop_assert!(!said.is_empty()),
        }
        let _ = import_bootstrap(file, &content, &scope(), Some("x"), &Validation::of(ValidationMode::Off), &Arc::default());
    }

    #[test]
    fn admission_of_arbitrary_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for type_url in types::KNOWN.iter().map(|known| TypeUrl::from_static(known.url)) {
            let _ = draft_from_body(&type_url, Some("a/b"), Bytes::from(bytes.clone()));
            let _ = body_to_json(&type_url, &bytes);
        }
        let _ = admit_one("-", &String::from_utf8_lossy(&bytes));
    }

    /// SVC-23: a reader of the declared type can read every admitted body.
    #[test]
    fn admitted_body_parses_as_its_declared_type(
        seed in 1..u64::MAX,
        edits in prop::collection::vec((any::<usize>(), any::<u8>()), 0..4),
    ) {
        let mut rng = Rng(seed);
        for known in &types::KNOWN {
            let type_url = TypeUrl::from_static(known.url);
            let of = envoy_pool().get_message_by_name(type_url.message_name()).unwrap();
            let mut body = message(&of, &mut rng, &mut 30).encode_to_vec();
            for (at, byte) in &edits {
                if !body.is_empty() {
                    let at = at % body.len();
                    body[at] = *byte;
                }
            }
            if let Ok(draft) = draft_from_body(&type_url, None, body.into()) {
                prop_assert!(DynamicMessage::decode(of, draft.body).is_ok());
            }
        }
    }
}
