//! Predictions of admission against the verdicts of real clients, over the corpus of resources.
//!
//! `corpus/admission/README.md` describes the cases and the verdicts. The counts are the content of
//! `corpus/admission/matrix.txt`. With `CHANCERY_UPDATE=1`, the test writes this file.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
};

use chancery_admission::{
    ClientProfile, Manifest, Options, Profiles, Validation, ValidationMode, admit,
};
use chancery_model::ScopeName;
use serde_json::Value;

const CLIENTS: [&str; 4] = ["envoy", "grpcio", "grpc-js", "grpc-go"];
const PARTS: [&str; 2] = ["tuning", "held-out"];

/// A case of the corpus.
struct Case {
    name: String,
    /// The directory: `tuning` or `held-out`.
    part: String,
    /// The directory: `bad` or `good`.
    label: String,
    content: String,
}

impl Case {
    /// Returns a line of the head.
    fn head(&self, key: &str) -> Option<&str> {
        let lines = self.content.lines().map_while(|line| line.strip_prefix("# "));
        lines.filter_map(|line| line.split_once(": ")).find(|(k, _)| *k == key).map(|(_, v)| v)
    }

    /// Returns the first problem that admission reports for this client, whose profile is the only one.
    fn refusal(&self, client: &str) -> Option<String> {
        let manifest =
            Manifest { file: format!("{}.yaml", self.name), content: self.content.clone() };
        let profiles = Profiles { call: Some([profile(client)].into()), ..Profiles::default() };
        let options = Options {
            validation: Validation { profiles, ..Validation::of(ValidationMode::Enforce) },
            ..Options::new(ScopeName::new("corpus").unwrap())
        };
        admit(&[manifest], &options).err().map(|problems| problems[0].to_string())
    }
}

/// Returns the profile of a client of the corpus.
fn profile(client: &str) -> ClientProfile {
    let profile = match client {
        "grpcio" => "grpc-cpp",
        "grpc-js" => "grpc-node",
        other => other,
    };
    profile.parse().unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus/admission")
}

/// Returns the paths in a directory, sorted.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for part in PARTS {
        for label in ["bad", "good"] {
            let dirs = entries(&root().join(part).join(label));
            for path in dirs.iter().flat_map(|dir| entries(dir)) {
                cases.push(Case {
                    name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
                    part: part.to_owned(),
                    label: label.to_owned(),
                    content: fs::read_to_string(&path).unwrap(),
                });
            }
        }
    }
    cases
}

fn verdicts() -> Value {
    let text = fs::read_to_string(root().join("verdicts.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Predictions against verdicts of one client in one part.
#[derive(Default)]
struct Matrix {
    predicted: u32,
    missed: u32,
    false_refusals: u32,
    accepted: u32,
}

/// Returns `part` of `whole` in percent, with one digit.
fn percent(part: u32, whole: u32) -> String {
    format!("{:.1} %", f64::from(part) * 100.0 / f64::from(whole.max(1)))
}

#[test]
fn corpus_predictions_match_the_recorded_matrix() {
    let verdicts = verdicts();
    let mut matrices: BTreeMap<(usize, usize), Matrix> = BTreeMap::new();
    let (mut undecoded_bad, mut undecoded_good) = (0, Vec::new());
    let mut details = String::new();
    let mut misses = BTreeSet::new();
    for case in &cases() {
        let is_undecodable =
            CLIENTS.iter().any(|client| verdict(&verdicts, case, client) == "refused by schema");
        if is_undecodable && case.refusal("envoy").is_some() {
            match case.label.as_str() {
                "bad" => undecoded_bad += 1,
                _ => undecoded_good.push(case.name.clone()),
            }
        }
        for (column, client) in CLIENTS.iter().enumerate() {
            let is_rejected = match verdict(&verdicts, case, client) {
                "rejected" | "crashed" => true,
                "accepted" => false,
                _ => continue,
            };
            let row = PARTS.iter().position(|part| *part == case.part).unwrap();
            let matrix = matrices.entry((row, column)).or_default();
            let refusal = case.refusal(client);
            match (&refusal, is_rejected) {
                (Some(_), true) => matrix.predicted += 1,
                (None, false) => matrix.accepted += 1,
                (None, true) => {
                    matrix.missed += 1;
                    misses.insert((case.name.clone(), (*client).to_owned()));
                    details.push_str(&format!("missed {client} {}\n", case.name));
                }
                (Some(problem), false) => {
                    matrix.false_refusals += 1;
                    details.push_str(&format!("false {client} {}: {problem}\n", case.name));
                }
            }
        }
    }
    let mut text =
        "part      client   rejected  predicted           accepted  false refusals\n".to_owned();
    for ((row, column), matrix) in &matrices {
        let rejected = matrix.predicted + matrix.missed;
        let accepted = matrix.accepted + matrix.false_refusals;
        text.push_str(&format!(
            "{:<9} {:<8} {rejected:>8}  {:>9} {:>9} {accepted:>9}  {:>6} {:>7}\n",
            PARTS[*row],
            CLIENTS[*column],
            matrix.predicted,
            percent(matrix.predicted, rejected),
            matrix.false_refusals,
            percent(matrix.false_refusals, accepted),
        ));
    }
    text.push_str(&format!(
        "\nWithout a verdict, because they cannot be decoded: {undecoded_bad} bad cases and {} good ones ({}).\n",
        undecoded_good.len(),
        undecoded_good.join(", "),
    ));
    if env::var_os("CHANCERY_CORPUS_DETAILS").is_some() {
        println!("{details}");
    }
    println!("{text}");
    let path = root().join("matrix.txt");
    if env::var_os("CHANCERY_UPDATE").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let recorded = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(misses, explained(), "the misses, and those that misses.txt explains");
    assert!(recorded == text, "the counts changed; run this test with CHANCERY_UPDATE=1:\n{text}");
}

/// Returns the misses that `misses.txt` explains.
fn explained() -> BTreeSet<(String, String)> {
    let text = fs::read_to_string(root().join("misses.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let of_line = |line: &str| {
        let (head, reason) = line.split_once(": ").unwrap();
        assert!(reason.ends_with('.'), "{line}");
        let (case, clients) = head.split_once(' ').unwrap();
        clients.split(',').map(|client| (case.to_owned(), client.to_owned())).collect::<Vec<_>>()
    };
    lines.flat_map(of_line).collect()
}

fn verdict<'a>(verdicts: &'a Value, case: &Case, client: &str) -> &'a str {
    verdicts[&case.name][client]["verdict"].as_str().unwrap_or("none")
}

#[test]
fn corpus_cases_have_complete_heads_and_verdicts_that_agree_with_their_labels() {
    let verdicts = verdicts();
    let cases = cases();
    let mut wrong = Vec::new();
    let mut n_bad = 0;
    for case in &cases {
        let mut complain = |what: &str| wrong.push(format!("{}: {what}", case.name));
        if case.head("case") != Some(&case.name) {
            complain("the line `case` of the head is not the name of the file");
        }
        for key in ["rule", "ask"] {
            if case.head(key).is_none() {
                complain(&format!("the head has no line `{key}`"));
            }
        }
        let of_clients = CLIENTS.map(|client| verdict(&verdicts, case, client));
        let is_rejected = of_clients.iter().any(|it| ["rejected", "crashed"].contains(it));
        let is_undecodable = of_clients.contains(&"refused by schema");
        if of_clients.contains(&"none") {
            complain("verdicts.json lacks a client");
        }
        if case.label == "bad" {
            n_bad += 1;
            if case.head("message").is_none() || case.head("rejected-by").is_none() {
                complain("the head of a bad case lacks `message` or `rejected-by`");
            }
            if !is_rejected && !is_undecodable {
                complain("no client rejects this bad case");
            }
        } else if is_rejected {
            complain("a client rejects this good case");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let n_good = cases.len() - n_bad;
    assert!(n_bad >= 250 && n_good >= 250, "{n_bad} bad and {n_good} good cases");
}
