//! Benchmarks of the pure crates: the cost per operation by resources in a view (M) and views (V).
//!
//! The operations are commits, the resolution of views, differences, responses and requests.
//!
//! Invariant 10 of `docs/ARCHITECTURE.md` limits the growth of costs. The cost of an operation does
//! not depend on the resources that it does not touch, except for a factor log M for look-ups. The
//! benchmark therefore checks the ratio of the same operation at two sizes, measured alternately in
//! one run.
//!
//! Invariants:
//! - Each round measures every size of a case, one after the other. A ratio compares sizes of one
//!   round.
//! - Times are CPU times of the thread. Except for full states, each measurement covers at least a
//!   hundred operations.
//! - The measured calls, and their order, are those of the shards.
//! - All states are alive at the same time, so they share the caches.
//!
//! Rejected: criterion and divan. Both complete one case before they start the next, so a ratio of two
//! cases includes all disturbances of the machine in between. Neither checks ratios.

use std::io;

use anyhow::{Result, ensure};

pub mod admission;
mod case;
mod doors;
mod fleet;
mod measure;
pub mod references;
mod report;
mod stopwatch;
mod world;

use measure::Sizes;
use report::Limits;
use stopwatch::Stopwatch;

/// Measure the cost of commits, views, differences, responses and requests
///
/// Exits with 1 if `--check` is given and the growth of a cost exceeds its limit.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "core", max_term_width = 100)]
pub struct Options {
    /// Numbers of resources in the scope that all views share, ascending
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000,1000000")]
    resources: Vec<usize>,
    /// Numbers of views, ascending; each view has a private scope and a session of each kind
    #[arg(long, value_delimiter = ',', default_value = "1,100,10000")]
    views: Vec<usize>,
    /// Number of rounds, in addition to one warm-up round
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    /// Exit with 1 if the growth of a cost exceeds its limit
    #[arg(long)]
    check: bool,
    /// Allowed growth of a cost from the smallest to the largest number of resources, besides log M
    ///
    /// The default allows for a million resources, which do not fit into the caches.
    #[arg(long, default_value_t = 2.5)]
    resources_tolerance: f64,
    /// Allowed growth of the cost per view or session, from the smallest to the largest number of views
    ///
    /// The default allows for the data of 10,000 sessions, which does not fit into the caches.
    #[arg(long, default_value_t = 6.0)]
    views_tolerance: f64,
    /// The flag that `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Measures all cases and prints a table for each. Returns whether the check passed, or was not
/// requested.
///
/// # Errors
/// Fails if the sizes are invalid, or if the output cannot be written.
pub fn run(options: &Options, out: &mut dyn io::Write) -> Result<bool> {
    let Options { resources, views, rounds, .. } = options;
    ensure!(
        resources.is_sorted() && views.is_sorted(),
        "`--resources` and `--views` must be ascending, but are {resources:?} and {views:?}"
    );
    ensure!(
        resources.first().is_some_and(|least| *least >= 2) && views.first().is_some_and(|v| *v > 0),
        "at least 2 resources and 1 view are necessary, but `--resources` is {resources:?} and \
         `--views` is {views:?}"
    );
    ensure!(*rounds > 0, "`--rounds` must be at least 1");
    let sizes = Sizes { resources: resources.clone(), views: views.clone(), rounds: *rounds };
    let watch = Stopwatch::calibrated();
    let samples = measure::measure(&sizes, watch, &mut |progress| {
        // A failure to print progress does not stop the benchmark.
        drop(io::Write::write_fmt(&mut io::stderr(), format_args!("{progress}\n")));
    });
    writeln!(
        out,
        "median (quartiles) of {rounds} rounds, CPU time; excluding {:.0} ns for reading the clock",
        watch.overhead()
    )?;
    let limits = Limits { resources: options.resources_tolerance, views: options.views_tolerance };
    let violations = report::write(&samples, &sizes, limits, out)?;
    writeln!(out)?;
    for line in &violations {
        writeln!(out, "NOT FLAT  {line}")?;
    }
    if violations.is_empty() {
        writeln!(out, "all costs are flat except for log M")?;
    }
    Ok(violations.is_empty() || !options.check)
}
