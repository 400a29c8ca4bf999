//! Predictions for single resources against the recorded verdicts of Envoy 1.40: clusters and endpoint assignments,
//! and listeners with filters, routes and TLS.
//!
//! Each line of a file has the verdict, the first finding that refuses the resource, and the resource. With
//! `CHANCERY_UPDATE=1`, the tests write the findings. The verdicts come from Envoy, which received each resource
//! alone. No resource of these files ends a version of Envoy that `corpus/admission/clients.txt` names.

use std::{env, fs, path::Path};

use chancery_admission::{Manifest, Options, Problem, Validation, ValidationMode, admit};
use chancery_model::ScopeName;
use serde_json::json;

/// Returns the findings that refuse a resource.
fn refusals(resource: &str) -> Vec<Problem> {
    let resource: serde_json::Value = serde_json::from_str(resource).unwrap();
    let content = json!({"resources": [resource]}).to_string();
    let manifest = Manifest { file: "a.json".to_owned(), content };
    let options = Options {
        validation: Validation::of(ValidationMode::Enforce),
        ..Options::new(ScopeName::new("test").unwrap())
    };
    admit(&[manifest], &options).err().unwrap_or_default()
}

/// Returns the first finding that refuses a resource, as `path: id`.
fn refusal(resource: &str) -> Option<String> {
    let problem = refusals(resource).into_iter().next()?;
    Some(format!("{}: {}", problem.field_path.unwrap_or_default(), problem.id))
}

#[test]
fn cluster_predictions_equal_recorded_verdicts() {
    compare("clusters.txt");
}

#[test]
fn listener_predictions_equal_recorded_verdicts() {
    compare("listeners.txt");
}

/// Some resources end the process of an Envoy, so no file contains them. The rules that refuse them are tested with
/// resources that break another rule, too, which every version of Envoy checks first.
#[test]
fn rules_for_resources_that_end_a_client_refuse_harmless_neighbors() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/data/neighbors.txt");
    for line in fs::read_to_string(&path).unwrap().lines() {
        let (rule, resource) = line.split_once('\t').unwrap();
        let found: Vec<String> = refusals(resource).into_iter().map(|problem| problem.id).collect();
        assert!(found.iter().any(|id| id == rule), "{rule}: {found:?}");
    }
}

/// Compares the predictions for the resources of a file with the verdicts in it.
fn compare(file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/data").join(file);
    let recorded = fs::read_to_string(&path).unwrap();
    let (mut found, mut wrong) = (String::new(), Vec::new());
    for line in recorded.lines() {
        let [verdict, _, resource] = line.splitn(3, '\t').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let refusal = refusal(resource);
        if refusal.is_some() != (verdict == "rejected") {
            wrong.push(format!("{verdict}, but {refusal:?}: {resource}"));
        }
        let finding = refusal.unwrap_or_else(|| "-".to_owned());
        found.push_str(&format!("{verdict}\t{finding}\t{resource}\n"));
    }
    assert!(wrong.is_empty(), "{} wrong predictions:\n{}", wrong.len(), wrong.join("\n"));
    if env::var_os("CHANCERY_UPDATE").is_some() {
        fs::write(&path, &found).unwrap();
        return;
    }
    let changed = found.lines().zip(recorded.lines()).find(|(now, before)| now != before);
    assert_eq!(changed, None, "a finding changed; run this test with CHANCERY_UPDATE=1");
}
