//! Rejected manifests and their error texts, which are part of the user interface.

use chancery_admission::{Manifest, Options, admit};
use chancery_model::ScopeName;

/// Returns the problems of a manifest, one per line.
fn problems(file: &str, content: &str) -> String {
    let manifest = Manifest { file: file.to_owned(), content: content.to_owned() };
    let options = Options::new(ScopeName::new("default").unwrap());
    match admit(&[manifest], &options) {
        Ok(_) => "ADMITTED".to_owned(),
        Err(problems) => problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    }
}

/// DELTA-64: within one input, a name or alias belongs to one resource of its type.
/// XDSTP-02, XDSTP-06 to -08, XDSTP-12: structured names that no resource may have.
///
/// A case in the data file has a title after `=== `, a manifest, a line `+++ says`, and the problems.
#[test]
fn mistake_in_manifest_is_reported_with_its_location() {
    let cases = include_str!("data/refused.txt");
    let mut wrong = String::new();
    let mut n = 0;
    for case in cases.split("\n=== ").skip(1) {
        let (title, rest) = case.split_once('\n').unwrap();
        let (content, expected) = rest.split_once("\n+++ says\n").unwrap();
        let file = if title.ends_with("(JSON)") { "web.json" } else { "web.yaml" };
        let said = problems(file, &format!("{content}\n"));
        n += 1;
        if said != expected.trim_end() {
            wrong.push_str(&format!("\n=== {title}\n{content}\n+++ says\n{said}\n"));
        }
    }
    assert!(n >= 50, "{n} cases");
    assert!(wrong.is_empty(), "{wrong}");
}
