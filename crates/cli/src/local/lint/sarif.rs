//! Findings as SARIF 2.1.0.

use std::fmt::Write;

use chancery_admission::{Problem, Severity};
use serde_json::{Value, json};

/// The rule of problems in the structure of a manifest, which have no ID.
const STRUCTURE: &str = "manifest.structure";

/// Returns a log with one run.
pub(super) fn log(problems: &[Problem]) -> Value {
    let mut rules: Vec<&str> = problems.iter().map(rule).collect();
    rules.sort_unstable();
    rules.dedup();
    let results: Vec<Value> = problems.iter().map(|problem| result(problem, &rules)).collect();
    let rules: Vec<Value> = rules.iter().map(|id| json!({ "id": id })).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "chancery",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    })
}

fn rule(problem: &Problem) -> &str {
    if problem.id.is_empty() { STRUCTURE } else { &problem.id }
}

fn result(problem: &Problem, rules: &[&str]) -> Value {
    let mut text = String::new();
    for part in [&problem.resource, &problem.field_path].into_iter().flatten() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{part}: ");
    }
    text.push_str(&problem.rule);
    if !problem.fix.is_empty() {
        let _ = write!(text, "; {}", problem.fix);
    }
    let id = rule(problem);
    let mut result = json!({
        "ruleId": id,
        "ruleIndex": rules.iter().position(|known| *known == id),
        // SARIF has no level of its own for effects.
        "level": if problem.severity == Severity::Warning { "warning" } else { "error" },
        "message": {"text": text},
    });
    if !problem.file.is_empty() {
        let mut place = json!({"artifactLocation": {"uri": uri(&problem.file)}});
        if let Some((line, column)) = problem.position {
            place["region"] = json!({"startLine": line, "startColumn": column});
        }
        result["locations"] = json!([{"physicalLocation": place}]);
    }
    result
}

/// Returns a file name as a URI reference.
fn uri(file: &str) -> String {
    let mut uri = match file {
        "-" => return "stdin".to_owned(),
        file if file.starts_with('/') => "file://".to_owned(),
        _ => String::new(),
    };
    for byte in file.bytes() {
        let _ = match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                write!(uri, "{}", char::from(byte))
            }
            _ => write!(uri, "%{byte:02X}"),
        };
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_become_uris() {
        assert_eq!(uri("mesh/a b.yaml"), "mesh/a%20b.yaml");
        assert_eq!(uri("/etc/ä.yaml"), "file:///etc/%C3%A4.yaml");
        assert_eq!(uri("-"), "stdin");
    }

    #[test]
    fn problem_without_a_place_has_no_location() {
        let problem = Problem { rule: "bad".into(), ..Problem::default() };
        let log = log(&[problem]);
        let result = &log["runs"][0]["results"][0];
        assert_eq!(result["ruleId"], STRUCTURE);
        assert!(result["locations"].is_null(), "{result}");
    }
}
