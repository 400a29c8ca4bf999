//! The cost of the index of references, and of the check of a write, by the number of resources.
//!
//! Each of M routes refers to two of M clusters. A step changes one route. A round measures all sizes in
//! turn, and a ratio compares sizes of one round. Times are CPU times of one thread.

use std::io;

use anyhow::{Context as _, Result, ensure};
use chancery_admin::bench::References;
use chancery_admission::{Manifest, ValidationMode};
use chancery_model::{Incarnation, ScopeName, State, Transaction, Upsert};

use crate::{
    admission::{admit, on_large_stack},
    report::Spread,
    stopwatch::{Stopwatch, Tally, float},
};

/// Measure the cost of the index of references
///
/// Exits with 1 if `--check` is given and a cost grows with the number of resources.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "references", max_term_width = 100)]
pub struct Options {
    /// Numbers of routes, and of clusters, ascending
    #[arg(long, value_delimiter = ',', default_value = "1000,100000")]
    resources: Vec<usize>,
    /// Number of rounds, in addition to one warm-up round
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    /// Exit with 1 if a cost grows by more than `--tolerance` and log M
    #[arg(long)]
    check: bool,
    /// Allowed growth of a cost from the smallest to the largest number of resources, besides log M
    #[arg(long, default_value_t = 2.5)]
    tolerance: f64,
    /// The flag that `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The number of changed routes in a round, each in a transaction of its own.
const STEPS: usize = 200;
/// The number of resources in each transaction that fills a state.
const BATCH: usize = 5000;
const CASES: [&str; 3] = ["apply the write", "check its references", "update the index"];

/// A state with its index, and the changes of a round.
struct Fleet {
    state: State,
    index: References,
    resources: usize,
}

/// Measures all sizes and prints a table. Returns whether the check passed, or was not requested.
///
/// # Errors
/// Fails if the sizes are invalid, or if the output cannot be written.
pub fn run(options: &Options, out: &mut (dyn io::Write + Send)) -> Result<bool> {
    let Options { resources, rounds, .. } = options;
    ensure!(
        resources.is_sorted() && resources.first().is_some_and(|least| *least >= 2),
        "`--resources` must be ascending and at least 2, but is {resources:?}"
    );
    ensure!(*rounds > 0, "`--rounds` must be at least 1");
    on_large_stack(|| measure(options, out))
}

fn measure(options: &Options, out: &mut dyn io::Write) -> Result<bool> {
    let watch = Stopwatch::calibrated();
    let fleets = options.resources.iter().map(|n| Fleet::new(*n));
    let mut fleets = fleets.collect::<Result<Vec<Fleet>>>()?;
    // The nanoseconds of each case, by size and round.
    let mut samples: Vec<[Vec<f64>; 3]> = vec![Default::default(); fleets.len()];
    for round in 0..=options.rounds {
        for (fleet, samples) in fleets.iter_mut().zip(&mut samples) {
            let times = fleet.round(round, watch)?;
            // The first round is the warm-up.
            if round > 0 {
                samples.iter_mut().zip(times).for_each(|(all, time)| all.push(time));
            }
        }
    }
    let rounds = options.rounds;
    writeln!(out, "median (quartiles) of {rounds} rounds; CPU time of one changed route, in us")?;
    let sizes = options.resources.iter().zip(&fleets);
    for (resources, fleet) in sizes {
        let n = fleet.index.n_references();
        writeln!(
            out,
            "  M = {resources}: {resources} clusters, {resources} routes, {n} references"
        )?;
    }
    let (Some(least), Some(most)) = (options.resources.first(), options.resources.last()) else {
        return Ok(false);
    };
    let limit = options.tolerance * float(*most).ln() / float(*least).ln();
    let mut is_flat = true;
    for (case, name) in CASES.iter().enumerate() {
        writeln!(out, "\n{name}")?;
        for (resources, samples) in options.resources.iter().zip(&samples) {
            let spread = Spread::of(&samples[case]).context("no rounds")?;
            let [median, low, high] = [spread.median, spread.low, spread.high].map(|it| it / 1e3);
            writeln!(out, "  M = {resources:<8} {median:>8.1} ({low:.1} to {high:.1})")?;
        }
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else { continue };
        let ratios: Vec<f64> = last[case].iter().zip(&first[case]).map(|(b, a)| b / a).collect();
        let ratio = Spread::of(&ratios).context("no rounds")?;
        let Spread { median, low, high } = ratio;
        writeln!(out, "  M = {most} to {least}: {median:.2} ({low:.2} to {high:.2})")?;
        if median > limit {
            is_flat = false;
            writeln!(out, "NOT FLAT  {name}: grows by {median:.2}, at most {limit:.2} is allowed")?;
        }
    }
    Ok(is_flat || !options.check)
}

impl Fleet {
    fn new(resources: usize) -> Result<Self> {
        let mut state = State::new(Incarnation(7));
        for from in (0..resources).step_by(BATCH) {
            let to = (from + BATCH).min(resources);
            let text = (from..to).map(|n| format!("{}{}", cluster(n), route(n, resources, 0)));
            state = state.apply(&transaction(&text.collect::<String>())?).state;
        }
        let index = References::of(&state);
        Ok(Self { state, index, resources })
    }

    /// Changes routes, and returns the nanoseconds of each case per change.
    fn round(&mut self, round: usize, watch: Stopwatch) -> Result<[f64; 3]> {
        let changes = (0..STEPS).map(|step| {
            let step = round * STEPS + step;
            let mixed = (step as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            let n = usize::try_from(mixed).unwrap_or(usize::MAX) % self.resources;
            transaction(&route(n, self.resources, step + 1))
        });
        let changes = changes.collect::<Result<Vec<Transaction>>>()?;
        let [mut apply, mut check, mut update] = [Tally::default(); 3];
        for change in &changes {
            let applied = watch.time(&mut apply, 1, || self.state.apply(change));
            let index = self.index.clone();
            self.index = watch.time(&mut update, 1, || index.advanced(&applied.state));
            let n = watch.time(&mut check, 1, || self.index.n_dangling(&self.state, &applied));
            ensure!(n == 0, "a change leaves {n} references dangling");
            self.state = applied.state;
        }
        let per_op = |tally: Tally| tally.per_op().context("no changes");
        Ok([per_op(apply)?, per_op(check)?, per_op(update)?])
    }
}

fn cluster(n: usize) -> String {
    format!(
        r#"
- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: cluster-{n:07}
  load_assignment: {{cluster_name: cluster-{n:07}}}
"#
    )
}

/// Returns a route to the cluster of the same number and to another one, which depends on `change`.
fn route(n: usize, resources: usize, change: usize) -> String {
    let other = (n + 1 + change % (resources - 1)) % resources;
    format!(
        r#"
- "@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
  name: route-{n:07}
  virtual_hosts:
  - name: all
    domains: ["*"]
    routes:
    - {{match: {{prefix: /a}}, route: {{cluster: cluster-{n:07}}}}}
    - {{match: {{prefix: /}}, route: {{cluster: cluster-{other:07}, timeout: {change}s}}}}
"#
    )
}

fn transaction(resources: &str) -> Result<Transaction> {
    let content = format!("resources:{resources}");
    let manifest = Manifest { file: "references.yaml".to_owned(), content };
    let drafts = admit(&manifest, ValidationMode::Off)?;
    let scope = ScopeName::new("default")?;
    let upserts = drafts.into_iter().map(|draft| Upsert { scope: scope.clone(), draft });
    Ok(Transaction { upserts: upserts.collect(), ..Transaction::default() })
}
