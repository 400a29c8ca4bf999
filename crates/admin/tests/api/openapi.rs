//! The description of the API agrees with its answers.

use serde_json::Value;

use crate::support::{Server, clusters};

/// Returns the differences between a value and its schema. Only an object of unknown content may have other fields.
fn differences(document: &Value, schema: &Value, value: &Value, at: &str, out: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.trim_start_matches("#/components/schemas/");
        let schema = &document["components"]["schemas"][name];
        assert!(schema.is_object(), "{name}");
        return differences(document, schema, value, at, out);
    }
    let is_as_described = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        other => panic!("{at}: the type {other:?}"),
    };
    if !is_as_described {
        out.push(format!("{at}: {value} is not {schema}"));
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        differences(document, &schema["items"], item, &format!("{at}[{index}]"), out);
    }
    let fields = value.as_object().into_iter().flatten();
    for (name, field) in fields {
        let at = format!("{at}.{name}");
        if let Some(described) = schema["properties"].get(name) {
            differences(document, described, field, &at, out);
        } else if let Some(described) = schema.get("additionalProperties") {
            differences(document, described, field, &at, out);
        } else if schema.get("properties").is_some() {
            out.push(format!("{at} is not described"));
        }
    }
}

/// Each operation answers with what its description says: the parameters in its error about an unknown one, errors,
/// and the fields and types of answers without an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_as_the_description_says() {
    let server = Server::start().await;
    server.done("POST", "/v1/apply", &clusters(&["a", "b"], "1s")).await;
    let document = server.done("GET", "/v1/openapi.json", "").await;
    assert_eq!(document["openapi"], "3.1.0");
    let (mut out, mut n_done, mut n_paths) = (Vec::new(), 0, 0);
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            n_paths += 1;
            let method = method.to_uppercase();
            let at = format!("{method} {path}");
            let uri = path.replace("{id}", "n").replace("{revision}", "1");
            let (status, _, text) =
                server.refused(&method, &format!("{uri}?unheard_of=1"), "").await;
            assert_eq!(status, 400, "{at}: {text}");
            let known = text.split_once("known parameters are ").map_or("", |(_, known)| known);
            let mut known: Vec<&str> = known.split(", ").filter(|name| !name.is_empty()).collect();
            let parameters = operation["parameters"].as_array().unwrap();
            let mut described: Vec<&str> = parameters
                .iter()
                .filter(|parameter| parameter["in"] == "query")
                .map(|parameter| parameter["name"].as_str().unwrap())
                .collect();
            known.sort_unstable();
            described.sort_unstable();
            assert_eq!(described, known, "{at}");

            if operation["responses"]["200"]["content"].get("text/event-stream").is_some() {
                // The answer does not end.
                continue;
            }
            let query = match path.as_str() {
                "/v1/describe" | "/v1/blame" => "?type=cds&name=a",
                "/v1/rollback" => "?all=true&to=1",
                "/v1/undo" => "?revision=1",
                "/v1/access/check" => "?verb=nodes",
                "/v1/access/explain" => "?identity=token:x",
                _ => "",
            };
            let body = if path == "/v1/apply" { clusters(&["c"], "1s") } else { String::new() };
            let (status, answer) = server.call(&method, &format!("{uri}{query}"), &body).await;
            let response = if status == 200 { "200" } else { "default" };
            n_done += usize::from(status == 200);
            let schema = &operation["responses"][response]["content"]["application/json"]["schema"];
            differences(&document, schema, &answer, &at, &mut out);
        }
    }
    assert!(out.is_empty(), "{out:#?}");
    assert!(n_paths > 30 && n_done > 15, "{n_done} of {n_paths} operations answered");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_are_listed() {
    let server = Server::start().await;
    let document = server.done("GET", "/v1/openapi.json", "").await;
    let methods = document["paths"].as_object().unwrap().values();
    let n_paths: usize = methods.map(|methods| methods.as_object().unwrap().len()).sum();
    for path in ["/", "/v1"] {
        let listed = server.done("GET", path, "").await;
        assert_eq!(listed["operations"].as_array().unwrap().len(), n_paths);
    }
    server.stop().await;
}
