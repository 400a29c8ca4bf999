//! `compare`: the cost of the program, in turns with the program of an earlier revision.
//!
//! Machines differ, and one machine differs from hour to hour. Only two programs that run in turns can be compared. A cost
//! that grows by a few percent with each change is otherwise seen by nobody.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::{
    paths::Paths,
    proc,
    program::{self, Profile},
    say::say,
};

const ROUNDS: usize = 3;
/// The maximum ratio of a cost to that of the earlier program.
const RATIO_MAX: f64 = 1.1;
/// The runs of the load test in each turn, and their costs, which are in µs of CPU time.
const RUNS: [(&[&str], Read); 3] = [
    (&["writes", "--rounds", "1", "--seconds", "4", "--writers", "1,256"], writes),
    (&["fanout", "--rounds", "1", "--updates", "300"], fanout),
    (&["etcd", "--rounds", "1", "--seconds", "4"], etcd),
];

/// Returns the names and values of the costs in the findings of a run.
type Read = fn(&Value) -> Vec<(String, Option<f64>)>;

/// The costs of the two programs by name, a pair for each round.
type Costs = BTreeMap<String, Vec<(f64, f64)>>;

/// Compares the present program with that of a revision. The exit code is 1 if a cost grew by more than a tenth.
pub(crate) fn run(paths: &Paths, args: &[&str]) -> Result<ExitCode> {
    let (revision, rounds) = match args {
        [revision] => (revision, ROUNDS),
        [revision, "--rounds", text] => {
            let rounds = text.parse().ok().filter(|rounds| *rounds > 0);
            (
                revision,
                rounds.with_context(|| format!("--rounds: {text:?} is not a number above 0"))?,
            )
        }
        _ => bail!("compare needs a revision, and takes --rounds N"),
    };
    let before = program_of(paths, revision)?;
    let dir = paths.target.join("compare");
    let now = keep(&program::build(paths, Profile::Release)?, &dir.join("now"))?;
    let mut cargo = paths.cargo("build");
    proc::run(cargo.args(["--release", "--quiet", "--package", "chancery-loadtest"]))?;
    let loadtest = paths.target.join("release/loadtest");
    let mut costs = Costs::new();
    for round in 0..rounds {
        let turn = |program: &Path| measure(&loadtest, program);
        // Each program is first in every second round.
        let (old, new) = if round % 2 == 0 {
            let old = turn(&before)?;
            (old, turn(&now)?)
        } else {
            let new = turn(&now)?;
            (turn(&before)?, new)
        };
        for (name, old) in old {
            let new = new.get(&name).with_context(|| format!("the present build has no {name}"))?;
            costs.entry(name).or_default().push((old, *new));
        }
        say!("round {} of {rounds}", round + 1);
    }
    let (table, worst) = shown(&costs);
    say!("{table}");
    if worst > RATIO_MAX {
        say!("a cost grew by more than {:.0} %", (RATIO_MAX - 1.0) * 100.0);
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the program of a revision in a copy of the repository, unless an earlier call has.
pub(crate) fn program_of(paths: &Paths, revision: &str) -> Result<PathBuf> {
    let git = |dir: &Path, args: &[&str]| {
        proc::output(
            Command::new("git").current_dir(dir).args(["-c", "safe.directory=*"]).args(args),
        )
    };
    let commit = format!("{revision}^{{commit}}");
    let commit =
        git(&paths.root, &["rev-parse", "--verify", "--quiet", "--end-of-options", &commit]);
    let commit = commit.with_context(|| format!("{revision:?} is not a revision"))?;
    let commit = commit.trim();
    let dir = paths.target.join("compare").join(commit);
    if dir.join("chancery").is_file() {
        return Ok(dir.join("chancery"));
    }
    let tree = dir.join("tree");
    if tree.exists() {
        fs::remove_dir_all(&tree).with_context(|| format!("remove {}", tree.display()))?;
    }
    fs::create_dir_all(&tree).with_context(|| format!("create {}", tree.display()))?;
    let from = paths.root.to_str().context("the path of the workspace is not UTF-8")?;
    git(&tree, &["clone", "--quiet", "--shared", "--no-checkout", from, "."])?;
    git(&tree, &["checkout", "--quiet", "--detach", commit])?;
    let of_tree = Paths {
        root: tree.clone(),
        cache: paths.cache.clone(),
        target: paths.target.clone(),
        rocksdb: paths.rocksdb.clone(),
        clients: paths.clients.clone(),
    };
    let program = keep(&program::build(&of_tree, Profile::Release)?, &dir)?;
    fs::remove_dir_all(&tree).with_context(|| format!("remove {}", tree.display()))?;
    Ok(program)
}

/// Copies a program, because the next build replaces it.
fn keep(program: &Path, dir: &Path) -> Result<PathBuf> {
    let kept = dir.join("chancery");
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    fs::copy(program, &kept).with_context(|| format!("copy {}", program.display()))?;
    Ok(kept)
}

/// Returns the costs of a program in one turn.
fn measure(loadtest: &Path, program: &Path) -> Result<BTreeMap<String, f64>> {
    let mut costs = BTreeMap::new();
    for (args, read) in RUNS {
        let mut command = Command::new(loadtest);
        command.args(args).args(["-o", "json", "--chancery"]).arg(program).stdin(Stdio::null());
        let output = command.stderr(Stdio::inherit()).output();
        let output = output.with_context(|| format!("start {}", proc::shown(&command)))?;
        // It exits with 1 if a limit of the load test does not hold. Only the costs count here.
        ensure!(
            matches!(output.status.code(), Some(0 | 1)),
            "{} failed: {}",
            proc::shown(&command),
            output.status
        );
        let report: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("read the output of {}", proc::shown(&command)))?;
        for (name, cost) in read(&report["findings"]) {
            // The ratio to a cost of 0 would say nothing.
            let Some(cost) = cost.filter(|cost| *cost > 0.0) else {
                bail!("{} did not measure: {name}", proc::shown(&command))
            };
            costs.insert(name, cost);
        }
    }
    Ok(costs)
}

fn writes(findings: &Value) -> Vec<(String, Option<f64>)> {
    let turns = findings["writers"].as_array().into_iter().flatten();
    let cost = |turn: &Value| {
        let name = format!("write, {} writers", turn["writers"]);
        (name, turn["cpu_us_per_write"]["median"].as_f64())
    };
    turns.map(cost).collect()
}

fn fanout(findings: &Value) -> Vec<(String, Option<f64>)> {
    let sizes = findings["sizes"].as_array().into_iter().flatten();
    let cost = |size: &Value| {
        let name = format!("delivery, {} resources", size["resources"]);
        (name, size["cpu_us"]["median"].as_f64())
    };
    sizes.map(cost).collect()
}

fn etcd(findings: &Value) -> Vec<(String, Option<f64>)> {
    let cost = |writers: &str| {
        let name = format!("write, three replicas, {writers} writers");
        (name, findings["chancery"][writers]["cpu_us"]["median"].as_f64())
    };
    vec![cost("one"), cost("many")]
}

/// Returns the costs as a table, and the largest of the medians of their ratios.
fn shown(costs: &Costs) -> (String, f64) {
    let mut table = "µs of CPU time, median (min to max)\n".to_owned();
    let mut worst: f64 = 0.0;
    for (name, pairs) in costs {
        let old = Spread::of(pairs.iter().map(|(old, _)| *old));
        let new = Spread::of(pairs.iter().map(|(_, new)| *new));
        let ratio = Spread::of(pairs.iter().map(|(old, new)| new / old));
        worst = worst.max(ratio.median);
        let mark = if ratio.median > RATIO_MAX { "  more than before" } else { "" };
        let Spread { median, min, max } = ratio;
        // Writing to a string cannot fail.
        let _ = writeln!(
            table,
            "{name:<36} before {}, now {}, ratio {median:.2} ({min:.2} to {max:.2}){mark}",
            old.shown(),
            new.shown()
        );
    }
    (table, worst)
}

/// The spread of measured values.
#[derive(Debug, Clone, Copy)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    /// Returns the spread of at least one value.
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |n: usize| values.get(n).copied().unwrap_or(f64::NAN);
        let (low, high) = (at((values.len().max(1) - 1) / 2), at(values.len() / 2));
        Self { median: f64::midpoint(low, high), min: at(0), max: at(values.len().max(1) - 1) }
    }

    fn shown(self) -> String {
        format!("{:.0} ({:.0} to {:.0})", self.median, self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_that_of_each_round() {
        // The machine was twice as slow in the second round.
        let pairs = vec![(10.0, 11.0), (20.0, 24.0), (10.0, 13.0)];
        let costs = Costs::from([("a".to_owned(), pairs), ("b".to_owned(), vec![(4.0, 3.0)])]);
        let (table, worst) = shown(&costs);
        assert!((worst - 1.2).abs() < 1e-9, "{worst}");
        assert!(
            table.contains("before 10 (10 to 20), now 13 (11 to 24), ratio 1.20 (1.10 to 1.30)"),
            "{table}"
        );
        assert_eq!(table.matches("more than before").count(), 1, "{table}");
    }

    #[test]
    fn costs_are_read_from_the_findings() {
        let turn = |writers: u64, cost: f64| serde_json::json!({"writers": writers, "cpu_us_per_write": {"median": cost}});
        let findings = serde_json::json!({"writers": [turn(1, 700.0), turn(256, 300.0)]});
        let expected = [("write, 1 writers", 700.0), ("write, 256 writers", 300.0)];
        assert_eq!(writes(&findings), expected.map(|(name, cost)| (name.to_owned(), Some(cost))));
        assert_eq!(etcd(&findings)[0].1, None, "a missing cost is not zero");
    }
}
