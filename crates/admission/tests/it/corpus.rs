//! Predictions of admission against the verdicts of real clients, over the corpus of resources.
//!
//! `corpus/admission/README.md` describes the cases and the verdicts. The counts are the content of
//! `corpus/admission/matrix.txt`. With `CHANCERY_UPDATE=1`, the test writes this file.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    num::NonZero,
    path::{Path, PathBuf},
    thread,
};

use chancery_admission::{
    ClientProfile, Manifest, Options, Profiles, Validation, ValidationMode, admit, lint,
};
use chancery_model::ScopeName;

const PARTS: [&str; 2] = ["tuning", "held-out"];

/// A line of `clients.txt`: one version of a client.
#[derive(Debug)]
struct Client {
    name: String,
    /// The name and the version: `grpc-java@1.85.1`.
    key: String,
    profile: ClientProfile,
}

/// Returns the table of clients.
fn clients() -> Vec<Client> {
    let text = fs::read_to_string(root().join("clients.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let client = |line: &str| {
        let (name, version) = line.split_once(' ').unwrap();
        let kind = match name {
            "grpcio" => "grpc-cpp",
            "grpc-js" => "grpc-node",
            other => other,
        };
        Client {
            name: name.to_owned(),
            key: format!("{name}@{version}"),
            profile: format!("{kind}@{version}").parse().unwrap(),
        }
    };
    lines.map(client).collect()
}

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

    fn manifest(&self) -> Manifest {
        Manifest { file: format!("{}.yaml", self.name), content: self.content.clone() }
    }

    /// Returns the first problem that refuses the case for this client, whose profile is the only one.
    fn refusal(&self, client: &Client) -> Option<String> {
        admit(&[self.manifest()], &options(client)).err().map(|problems| problems[0].to_string())
    }

    /// Returns whether there is any finding for this client, whether it refuses the case or not.
    fn is_reported(&self, client: &Client) -> bool {
        !lint(&[self.manifest()], &options(client)).is_empty()
    }
}

fn options(client: &Client) -> Options {
    let profiles = Profiles { call: Some([client.profile].into()), ..Profiles::default() };
    Options {
        validation: Validation { profiles, ..Validation::of(ValidationMode::Enforce) },
        ..Options::new(ScopeName::new("corpus").unwrap())
    }
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

/// The verdict of each client by the name of the case and the key of the client.
struct Verdicts(BTreeMap<String, BTreeMap<String, String>>);

impl Verdicts {
    /// Reads `verdicts.json`, in which clients with the same verdict on a case share a group.
    fn read() -> Self {
        let text = fs::read_to_string(root().join("verdicts.json")).unwrap();
        let file: BTreeMap<String, Vec<BTreeMap<String, String>>> =
            serde_json::from_str(&text).unwrap();
        let of_group = |group: &BTreeMap<String, String>| {
            let words = group["clients"].split(' ');
            let keys = words.flat_map(|word| {
                let (name, versions) = word.split_once('@').unwrap();
                versions.split(',').map(move |version| format!("{name}@{version}"))
            });
            keys.map(|key| (key, group["verdict"].clone())).collect::<Vec<_>>()
        };
        let of_case = |groups: Vec<_>| groups.iter().flat_map(of_group).collect();
        Self(file.into_iter().map(|(case, groups)| (case, of_case(groups))).collect())
    }

    /// Returns the verdict, or `none` if the case is not meant for the client.
    fn of(&self, case: &Case, client: &Client) -> &str {
        let of_case = self.0.get(&case.name);
        of_case.and_then(|verdicts| verdicts.get(&client.key)).map_or("none", String::as_str)
    }
}

/// Predictions against verdicts of one client in one part.
#[derive(Default)]
struct Matrix {
    predicted: u32,
    missed: u32,
    false_refusals: u32,
    accepted: u32,
    /// The accepted cases with which traffic fails, and how many of them admission reports.
    failing: u32,
    reported: u32,
}

/// Returns `part` of `whole` in percent, with one digit.
fn percent(part: u32, whole: u32) -> String {
    format!("{:.1} %", f64::from(part) * 100.0 / f64::from(whole.max(1)))
}

/// The counts of all clients and parts, and the cases behind them.
#[derive(Default)]
struct Outcome {
    matrices: BTreeMap<(usize, usize), Matrix>,
    /// The missed rejections, by case and key of the client.
    misses: BTreeSet<(String, String)>,
    details: String,
    undecoded_bad: u32,
    undecoded_good: Vec<String>,
}

impl Outcome {
    /// Compares all cases, on all processors.
    fn of_all(cases: &[Case], clients: &[Client], verdicts: &Verdicts) -> Self {
        let n_threads = thread::available_parallelism().map_or(1, NonZero::get);
        let chunks = cases.chunks(cases.len().div_ceil(n_threads));
        thread::scope(|scope| {
            let threads: Vec<_> =
                chunks.map(|chunk| scope.spawn(|| Self::of(chunk, clients, verdicts))).collect();
            let outcomes = threads.into_iter().map(|thread| thread.join().unwrap());
            outcomes.fold(Self::default(), Self::merged)
        })
    }

    fn merged(mut self, other: Self) -> Self {
        for (place, matrix) in other.matrices {
            let sum = self.matrices.entry(place).or_default();
            sum.predicted += matrix.predicted;
            sum.missed += matrix.missed;
            sum.false_refusals += matrix.false_refusals;
            sum.accepted += matrix.accepted;
            sum.failing += matrix.failing;
            sum.reported += matrix.reported;
        }
        self.misses.extend(other.misses);
        self.details.push_str(&other.details);
        self.undecoded_bad += other.undecoded_bad;
        self.undecoded_good.extend(other.undecoded_good);
        self
    }

    fn of(cases: &[Case], clients: &[Client], verdicts: &Verdicts) -> Self {
        let mut outcome = Self::default();
        for case in cases {
            let is_undecodable =
                clients.iter().any(|client| verdicts.of(case, client) == "refused by schema");
            if is_undecodable && case.refusal(&clients[0]).is_some() {
                match case.label.as_str() {
                    "bad" => outcome.undecoded_bad += 1,
                    _ => outcome.undecoded_good.push(case.name.clone()),
                }
            }
            for (column, client) in clients.iter().enumerate() {
                outcome.add(case, (column, client), verdicts.of(case, client));
            }
        }
        outcome
    }

    fn add(&mut self, case: &Case, (column, client): (usize, &Client), verdict: &str) {
        let row = PARTS.iter().position(|part| *part == case.part).unwrap();
        let matrix = self.matrices.entry((row, column)).or_default();
        let refusal = match verdict {
            "rejected" | "works" | "fails" | "accepted" => case.refusal(client),
            _ => return,
        };
        match (verdict, refusal) {
            ("rejected", Some(_)) => matrix.predicted += 1,
            ("rejected", None) => {
                matrix.missed += 1;
                self.misses.insert((case.name.clone(), client.key.clone()));
                self.details.push_str(&format!("missed {} {}\n", client.key, case.name));
            }
            ("fails", refusal) => {
                matrix.failing += 1;
                if refusal.is_some() || case.is_reported(client) {
                    matrix.reported += 1;
                } else {
                    self.details.push_str(&format!("silent {} {}\n", client.key, case.name));
                }
            }
            (_, None) => matrix.accepted += 1,
            (_, Some(problem)) => {
                matrix.false_refusals += 1;
                self.details.push_str(&format!("false {} {}: {problem}\n", client.key, case.name));
            }
        }
    }

    /// Returns the content of `matrix.txt`.
    fn render(&self, clients: &[Client]) -> String {
        let mut text = "part      client            rejected  predicted           accepted  false refusals      \
                        fails  reported\n"
            .to_owned();
        for ((row, column), matrix) in &self.matrices {
            let rejected = matrix.predicted + matrix.missed;
            let accepted = matrix.accepted + matrix.false_refusals;
            text.push_str(&format!(
                "{:<9} {:<17} {rejected:>8}  {:>9} {:>9} {accepted:>9}  {:>6} {:>7}  {:>9}  {:>8}\n",
                PARTS[*row],
                clients[*column].key,
                matrix.predicted,
                percent(matrix.predicted, rejected),
                matrix.false_refusals,
                percent(matrix.false_refusals, accepted),
                matrix.failing,
                matrix.reported,
            ));
        }
        text.push_str(&format!(
            "\nWithout a verdict, because they cannot be decoded: {} bad cases and {} good ones ({}).\n",
            self.undecoded_bad,
            self.undecoded_good.len(),
            self.undecoded_good.join(", "),
        ));
        text
    }
}

#[test]
fn corpus_predictions_match_the_recorded_matrix() {
    let clients = clients();
    let outcome = Outcome::of_all(&cases(), &clients, &Verdicts::read());
    let text = outcome.render(&clients);
    if env::var_os("CHANCERY_CORPUS_DETAILS").is_some() {
        println!("{}", outcome.details);
    }
    println!("{text}");
    let path = root().join("matrix.txt");
    if env::var_os("CHANCERY_UPDATE").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let recorded = fs::read_to_string(&path).unwrap_or_default();
    let explained = explained(&outcome.misses);
    assert_eq!(outcome.misses, explained, "the misses, and those that misses.txt explains");
    assert!(recorded == text, "the counts changed; run this test with CHANCERY_UPDATE=1:\n{text}");
}

/// Returns the misses that `misses.txt` explains. A client without a version stands for all versions that miss the case.
fn explained(misses: &BTreeSet<(String, String)>) -> BTreeSet<(String, String)> {
    let text = fs::read_to_string(root().join("misses.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut explained = BTreeSet::new();
    for line in lines {
        let (head, reason) = line.split_once(": ").unwrap();
        assert!(reason.ends_with('.'), "{line}");
        let (case, words) = head.split_once(' ').unwrap();
        for word in words.split(',') {
            let is_named = |key: &str| key == word || key.starts_with(&format!("{word}@"));
            let mut named: Vec<_> = misses
                .iter()
                .filter(|(name, key)| name == case && is_named(key))
                .cloned()
                .collect();
            if named.is_empty() {
                named.push((case.to_owned(), word.to_owned()));
            }
            explained.extend(named);
        }
    }
    explained
}

#[test]
fn corpus_cases_have_complete_heads_and_verdicts_that_agree_with_their_labels() {
    let (verdicts, clients, cases) = (Verdicts::read(), clients(), cases());
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
        let of_clients: Vec<&str> = clients.iter().map(|it| verdicts.of(case, it)).collect();
        if of_clients.iter().any(|it| ["ends", "hangs"].contains(it)) {
            complain(
                "it ends a client or stops it; remove the case, and describe it in the README",
            );
        }
        // Old versions may lack a verdict, but the last line of a client is its newest version.
        let lacks_newest = clients.iter().enumerate().any(|(number, client)| {
            let versions =
                || clients.iter().zip(&of_clients).filter(|(it, _)| it.name == client.name);
            let has_any = versions().any(|(_, verdict)| *verdict != "none");
            let is_newest = clients.get(number + 1).is_none_or(|next| next.name != client.name);
            is_newest && has_any && of_clients[number] == "none"
        });
        if lacks_newest || of_clients.iter().all(|it| *it == "none") {
            complain("verdicts.json lacks a client");
        }
        let is_rejected = of_clients.contains(&"rejected");
        let is_undecodable = of_clients.contains(&"refused by schema");
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
