//! What the pure crates cost per operation, by the number of resources in a view (M) and by the
//! number of views (V): a commit, the views after it, their differences, responses, requests.
//!
//! The promise (invariant 10 of `docs/ARCHITECTURE.md`) is about growth: no operation costs more
//! because there is more that it does not touch, but for a factor log M where it looks something up. So
//! what is judged is the ratio of the same operation at two sizes, taken in turns within one run.
//!
//! Invariants:
//! - Every size of a case is measured in every round, one after the other; a ratio is one of a round.
//! - Time is this thread's on a CPU, and each reading of the clock is for a hundred operations or more.
//! - Nothing is measured that the shards would not do: the same calls, in the same order.
//! - All states are alive at the same time, so that none has the caches to itself.
//!
//! Rejected: criterion and divan. Both measure a case to its end before they begin with the next, so
//! that a ratio of two cases has all that happened to the machine in between in it; and neither judges
//! ratios.

use std::io;

use anyhow::{Result, ensure};

mod case;
mod fleet;
mod measure;
mod report;
mod stopwatch;
mod world;

use measure::Sizes;
use report::Limits;
use stopwatch::Stopwatch;

/// Cost of commits, views, differences, responses and requests, by resources and views.
///
/// Exit code: 0, or with --check 1 if a cost grows by more than it may.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "core", max_term_width = 100)]
pub struct Options {
    /// Numbers of resources in the scope that all views share, ascending.
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000,1000000")]
    resources: Vec<usize>,
    /// Numbers of views, each with a scope of its own and a session of each kind, ascending.
    #[arg(long, value_delimiter = ',', default_value = "1,100,10000")]
    views: Vec<usize>,
    /// Rounds, after one that warms up.
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    /// Exit with 1 if a cost grows by more than it may.
    #[arg(long)]
    check: bool,
    /// How much a cost may grow by from the smallest number of resources to the largest, besides
    /// log M: a million resources are in no cache.
    #[arg(long, default_value_t = 2.5)]
    resources_tolerance: f64,
    /// How much the cost per view or session may grow by from the smallest number of views to the
    /// largest: what one session touches is in the caches, what 10,000 touch is not.
    #[arg(long, default_value_t = 6.0)]
    views_tolerance: f64,
    /// cargo's own.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Measures, and prints a table for each case. Says whether every cost grows as it may, or nobody
/// asked.
///
/// # Errors
/// If the sizes make no sense, or nothing can be printed.
pub fn run(options: &Options, out: &mut dyn io::Write) -> Result<bool> {
    let Options { resources, views, rounds, .. } = options;
    ensure!(resources.is_sorted() && views.is_sorted(), "the sizes are not ascending");
    ensure!(
        resources.first().is_some_and(|least| *least >= 2) && views.first().is_some_and(|v| *v > 0),
        "at least 2 resources and 1 view are needed"
    );
    ensure!(*rounds > 0, "there is nothing to do");
    let sizes = Sizes { resources: resources.clone(), views: views.clone(), rounds: *rounds };
    let watch = Stopwatch::calibrated();
    let samples = measure::measure(&sizes, watch, &mut |progress| {
        // Progress that nobody can read is no reason to stop.
        drop(io::Write::write_fmt(&mut io::stderr(), format_args!("{progress}\n")));
    });
    writeln!(
        out,
        "median (quartiles) of {rounds} rounds, CPU time; reading the clock, {:.0} ns, is left out",
        watch.overhead()
    )?;
    let limits = Limits { resources: options.resources_tolerance, views: options.views_tolerance };
    let broken = report::write(&samples, &sizes, limits, out)?;
    writeln!(out)?;
    for line in &broken {
        writeln!(out, "NOT FLAT  {line}")?;
    }
    if broken.is_empty() {
        writeln!(out, "flat but for log M: all of it")?;
    }
    Ok(broken.is_empty() || !options.check)
}
