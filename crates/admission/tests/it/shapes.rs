//! Whole bootstraps against the verdicts of a real Envoy.
//!
//! `corpus/admission/README.md` describes the shapes. `shapes/misses.txt` explains each disagreement.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use chancery_admission::{Profiles, Validation, ValidationMode, import_bootstrap};
use chancery_model::ScopeName;
use serde_json::Value as Json;

/// The minimum number of shapes, and of those that Envoy rejects.
const SHAPES_MIN: usize = 120;
const REJECTED_MIN: usize = 30;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus/admission/shapes")
}

/// A shape: its name, whether it is in `bad/`, and its content.
struct Shape {
    name: String,
    is_bad: bool,
    content: String,
}

impl Shape {
    /// Returns the first problem that an import reports.
    fn refusal(&self) -> Option<String> {
        let profiles =
            Profiles { call: Some(["envoy".parse().unwrap()].into()), ..Profiles::default() };
        let validation = Validation { profiles, ..Validation::of(ValidationMode::Enforce) };
        let (file, scope) = (format!("{}.yaml", self.name), ScopeName::new("shapes").unwrap());
        import_bootstrap(&file, &self.content, &scope, None, &validation, &Arc::default())
            .err()
            .map(|problems| problems[0].to_string())
    }
}

fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for label in ["bad", "good"] {
        for entry in fs::read_dir(root().join(label)).unwrap() {
            let path = entry.unwrap().path();
            shapes.push(Shape {
                name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
                is_bad: label == "bad",
                content: fs::read_to_string(&path).unwrap(),
            });
        }
    }
    shapes
}

#[test]
fn shapes_are_where_the_verdict_of_envoy_puts_them() {
    let verdicts: Json =
        serde_json::from_str(&fs::read_to_string(root().join("verdicts.json")).unwrap()).unwrap();
    let shapes = shapes();
    for Shape { name, is_bad, content } in &shapes {
        let verdict = verdicts[name]["verdict"].as_str().unwrap_or("none");
        assert_eq!(verdict, if *is_bad { "rejected" } else { "accepted" }, "{name}");
        assert!(content.starts_with(&format!("# shape: {name}\n# like: ")), "{name}");
        assert_eq!(content.contains("\n# mistake: "), *is_bad, "{name}");
    }
    assert_eq!(verdicts.as_object().unwrap().len(), shapes.len());
    let n_bad = shapes.iter().filter(|shape| shape.is_bad).count();
    assert!(shapes.len() >= SHAPES_MIN && n_bad >= REJECTED_MIN, "{n_bad} of {}", shapes.len());
}

#[test]
fn shapes_are_accepted_and_refused_as_by_envoy() {
    let text = fs::read_to_string(root().join("misses.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let explained: BTreeSet<&str> = lines.map(|line| line.split_once(": ").unwrap().0).collect();
    let (mut misses, mut details) = (BTreeSet::new(), String::new());
    let shapes = shapes();
    for shape in &shapes {
        let refusal = shape.refusal();
        if refusal.is_some() != shape.is_bad {
            misses.insert(shape.name.as_str());
            let problem = refusal.as_deref().unwrap_or("is accepted, but Envoy rejects it");
            details.push_str(&format!("{}: {problem}\n", shape.name));
        }
    }
    assert_eq!(misses, explained, "the misses, and those that misses.txt explains:\n{details}");
}
