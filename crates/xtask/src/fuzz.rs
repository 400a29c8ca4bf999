//! `fuzz`: searches with libFuzzer for inputs that break a decoder of client input.
//!
//! The stable compiler can add the coverage counters that libFuzzer needs, by a pass of LLVM. Sanitizers need
//! a nightly compiler. The product has no `unsafe` code, so they would find little.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    paths::{Paths, target_cpu},
    proc,
    say::say,
};

const PACKAGE: &str = "chancery-fuzz";

/// The compiler flags for coverage counters, and for the operands of comparisons.
const COVERAGE: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// The maximum time for one input, in seconds. Other processes may use the processors.
const INPUT_SECONDS_MAX: u32 = 10;

/// The stack size of the search in KiB. The main thread reads YAML, whose reader needs a large stack.
const STACK_KB: usize = 16 << 10;

/// The maximum memory of the whole process, in MB. The descriptors of Envoy take a hundred.
const PROCESS_MB_MAX: u32 = 1024;

/// The parsed arguments of the command.
#[derive(Debug, PartialEq, Eq)]
struct Call<'a> {
    /// The targets; empty for all.
    targets: Vec<&'a str>,
    /// The end of the search of each target, as a flag of libFuzzer.
    end: String,
    /// Whether the corpus in the repository is replaced by a minimal one with the same coverage.
    is_minimizing: bool,
}

impl<'a> Call<'a> {
    fn parse(args: &[&'a str]) -> Result<Self> {
        let (mut targets, mut end) = (Vec::new(), "-max_total_time=60".to_owned());
        let mut is_minimizing = false;
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "--minimize" => is_minimizing = true,
                "--runs" | "--seconds" => {
                    let value = args.next().with_context(|| format!("{arg} needs a number"))?;
                    let number: u64 = value
                        .parse()
                        .with_context(|| format!("{arg}: {value:?} is not a number"))?;
                    let flag = if *arg == "--runs" { "-runs" } else { "-max_total_time" };
                    end = format!("{flag}={number}");
                }
                flag if flag.starts_with('-') => {
                    bail!(
                        "unknown flag {flag:?} of fuzz: the flags are --runs, --seconds and --minimize"
                    )
                }
                target => targets.push(target),
            }
        }
        Ok(Self { targets, end, is_minimizing })
    }
}

/// Builds the targets, and searches each of the wanted ones.
pub(crate) fn run(paths: &Paths, args: &[&str]) -> Result<()> {
    let call = Call::parse(args)?;
    let list = corpus(paths, &["list"])?;
    let known =
        list.lines().map(|line| line.split_once(' ').context("the list of targets is damaged"));
    let known = known.collect::<Result<Vec<_>>>()?;
    for target in &call.targets {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        ensure!(names.contains(target), "no target is named {target:?}: {}", names.join(", "));
    }
    let search = build(paths)?;
    let mut failures = 0;
    for (target, input_bytes_max) in known {
        if call.targets.is_empty() || call.targets.contains(&target) {
            let search = Search::new(paths, &search, target, input_bytes_max)?;
            failures += u32::from(!search.run(&call.end)?);
            if call.is_minimizing {
                search.minimize()?;
            }
        }
    }
    ensure!(failures == 0, "{failures} targets have failed");
    Ok(())
}

/// Runs the program that converts corpora.
fn corpus(paths: &Paths, args: &[&str]) -> Result<String> {
    let mut cargo = paths.cargo("run");
    cargo.args(["--quiet", "--package", PACKAGE, "--bin", "corpus", "--"]).args(args);
    proc::output(&mut cargo)
}

/// Builds the search with coverage counters, for this machine. Returns the path of the program.
fn build(paths: &Paths) -> Result<PathBuf> {
    let compiler = proc::output(Command::new("rustc").arg("-vV"))?;
    let host = compiler.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("`rustc -vV` names no host")?;
    let config = paths.root.join(".cargo/config.toml");
    let config =
        fs::read_to_string(&config).with_context(|| format!("read {}", config.display()))?;
    say!("building the fuzz targets with coverage; the first build takes minutes");
    let mut cargo = paths.cargo("build");
    // With `--target`, the flags do not apply to build scripts.
    cargo.args(["--package", PACKAGE, "--features", "search", "--bin", "search"]);
    cargo.args(["--profile", "fuzz", "--target", host]);
    cargo.env("RUSTFLAGS", format!("-Ctarget-cpu={} {COVERAGE}", target_cpu(&config)?));
    proc::run(&mut cargo)?;
    Ok(paths.target.join(host).join("fuzz/search"))
}

/// The search of one target.
struct Search<'a> {
    paths: &'a Paths,
    program: &'a Path,
    target: &'a str,
    input_bytes_max: &'a str,
    /// The directory with the inputs of earlier searches, and failing inputs beside it.
    dir: PathBuf,
}

impl<'a> Search<'a> {
    fn new(
        paths: &'a Paths,
        program: &'a Path,
        target: &'a str,
        input_bytes_max: &'a str,
    ) -> Result<Self> {
        let dir = paths.target.join("fuzz-corpus").join(target);
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let search = Self { paths, program, target, input_bytes_max, dir };
        corpus(paths, &["unpack", target, &search.dir.display().to_string()])?;
        Ok(search)
    }

    /// Runs libFuzzer. Its output is in a file. Returns whether no input has failed.
    fn run(&self, end: &str) -> Result<bool> {
        let log = self.dir.with_extension("log");
        let output = fs::File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let mut search = self.search();
        search.arg(&self.dir).arg(end).arg(format!("-max_len={}", self.input_bytes_max));
        search.arg(format!("-timeout={INPUT_SECONDS_MAX}"));
        search.arg(format!("-rss_limit_mb={PROCESS_MB_MAX}"));
        search.arg(format!("-dict={}", self.paths.root.join("fuzz/tokens.dict").display()));
        search.arg(format!("-artifact_prefix={}-", self.dir.display()));
        search.arg("-print_final_stats=1");
        search.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        let status = proc::status(&mut search)?;
        let text = fs::read(&log).with_context(|| format!("read {}", log.display()))?;
        let text = String::from_utf8_lossy(&text);
        say!("{}: {}", self.target, summary(&text));
        if status.success() {
            return Ok(true);
        }
        say!("{} has failed: {status}; the output is in {}", self.target, log.display());
        if let Some(path) = text.lines().find_map(|line| line.split_once("Test unit written to ")) {
            let input = fs::read(path.1).with_context(|| format!("read {}", path.1))?;
            say!("after the fix, add this line to fuzz/corpus/{}.txt:", self.target);
            say!("{}", input.escape_ascii());
        }
        Ok(false)
    }

    /// Returns the command of the program, without arguments.
    fn search(&self) -> Command {
        let mut shell = proc::leashed(Path::new("sh"));
        let script = format!("ulimit -s {STACK_KB} && exec \"$0\" \"$@\"");
        shell.args(["-c", &script]).arg(self.program).env("CHANCERY_FUZZ_TARGET", self.target);
        shell
    }

    /// Replaces the corpus in the repository by a minimal one.
    fn minimize(&self) -> Result<()> {
        let minimal = self.dir.with_extension("min");
        if minimal.exists() {
            fs::remove_dir_all(&minimal)
                .with_context(|| format!("remove {}", minimal.display()))?;
        }
        fs::create_dir_all(&minimal).with_context(|| format!("create {}", minimal.display()))?;
        let mut merge = self.search();
        merge.args(["-set_cover_merge=1", &format!("-max_len={}", self.input_bytes_max)]);
        merge.args([&minimal, &self.dir]);
        proc::output(&mut merge)?;
        corpus(self.paths, &["pack", self.target, &minimal.display().to_string()])?;
        Ok(())
    }
}

/// Returns the figures of a search from the output of libFuzzer.
fn summary(output: &str) -> String {
    let value = |name: &str| {
        let line = output.lines().rev().find_map(|line| line.strip_prefix(name));
        line.map_or("?", str::trim)
    };
    let status = output.lines().rev().find(|line| line.contains(" cov: ")).unwrap_or_default();
    let after = |name: &str| {
        let mut words = status.split_whitespace().skip_while(|word| *word != name);
        words.nth(1).unwrap_or("?")
    };
    format!(
        "{} inputs, {} per second, coverage {}, corpus {}, largest peak {}, process {} MB",
        value("stat::number_of_executed_units:"),
        value("stat::average_exec_per_sec:"),
        after("cov:"),
        after("corp:"),
        value("peak:"),
        value("stat::peak_rss_mb:"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_select_targets_and_end() {
        let call = Call::parse(&["sotw", "--runs", "100", "--minimize"]).unwrap();
        let end = "-runs=100".to_owned();
        assert_eq!(call, Call { targets: vec!["sotw"], end, is_minimizing: true });
        assert_eq!(Call::parse(&[]).unwrap().end, "-max_total_time=60");
        let error = |args: &[&str]| Call::parse(args).unwrap_err().to_string();
        assert_eq!(error(&["--runs"]), "--runs needs a number");
        assert_eq!(error(&["--seconds", "x"]), "--seconds: \"x\" is not a number");
        assert!(error(&["--fast"]).starts_with("unknown flag \"--fast\""));
    }

    #[test]
    fn summary_has_the_last_figures() {
        let output = "peak: 7 bytes of memory for 1 bytes\n#2 INITED cov: 1 ft: 2 corp: 1/1b\n\
            peak: 9 bytes of memory for 2 bytes\n#9 REDUCE cov: 12 ft: 30 corp: 5/20b lim: 4\n\
            stat::number_of_executed_units: 90\nstat::average_exec_per_sec:     30\n\
            stat::peak_rss_mb:              44\n";
        assert_eq!(
            summary(output),
            "90 inputs, 30 per second, coverage 12, corpus 5/20b, largest peak 9 bytes of memory for 2 \
             bytes, process 44 MB"
        );
        assert!(summary("").starts_with("? inputs"));
    }
}
