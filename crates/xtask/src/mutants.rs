//! Planted bugs: each is put into a copy of the pure crates, whose tests have to catch it.
//!
//! The list is data (`mutants.txt`), the result a page (`docs/mutants.md`). The tree is never edited: the copy is
//! in the target directory. A planted bug whose text is no longer found exactly once is an error,
//! which `verify` sees without running anything.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{paths::Paths, proc, say::say};

mod list;

use list::Mutant;

/// The list.
const LIST: &str = "crates/xtask/mutants.txt";

/// The page.
const PAGE: &str = "docs/mutants.md";

/// The crates that are copied, those that others need first.
const CRATES: &[&str] = &["model", "view", "protocol"];

/// What a suite may take, its compilation included; a core that never comes to rest is caught by this.
const SUITE_MAX: Duration = Duration::from_secs(300);

/// The suites in the order in which they are run: package, arguments, name in the table.
const SUITES: &[(&str, &[&str], &str)] = &[
    ("chancery-protocol", &["--test", "transcript"], "transcript"),
    ("chancery-protocol", &["--test", "model"], "model"),
    ("chancery-view", &["--lib", "--tests"], "view"),
    ("chancery-model", &["--lib", "--tests"], "types"),
    ("chancery-protocol", &["--lib"], "protocol"),
];

/// So many suites are always run; each of the others only for what those before it do not catch.
const SUITES_ALWAYS: usize = 1;

/// Of one planted bug: the tests that caught it, by suite.
type Catches = Vec<(&'static str, BTreeSet<String>)>;

/// Plants the bugs, all or one, and writes the page if all were planted.
pub(crate) fn run(paths: &Paths, only: Option<u32>) -> Result<()> {
    let mutants = load(paths)?;
    let odd = not_plantable(paths, &mutants)?;
    ensure!(odd.is_empty(), "planted bugs:\n{}", odd.join("\n"));
    let known = known_catches(paths)?;
    let copy = Copy::new(paths)?;
    say!("mutants: the tests pass as they are");
    let failing = copy.failing(paths)?;
    ensure!(failing.is_empty(), "these fail without a planted bug: {failing:?}");
    let wanted = mutants.iter().filter(|mutant| only.is_none_or(|only| only == mutant.number));
    let mut rows = Vec::new();
    let mut survivors = Vec::new();
    for mutant in wanted {
        let original = copy.plant(paths, mutant)?;
        let caught = copy.failing(paths);
        copy.restore(mutant, &original)?;
        let caught = caught.with_context(|| format!("mutant {}", mutant.number))?;
        // The tests that the page names, as long as they still catch it.
        let named = known.iter().find(|(number, _)| *number == mutant.number);
        let named = named.map_or("", |(_, tests)| tests);
        let tests = caught.iter().filter_map(|(suite, failed)| {
            let shown = |test: &String| format!("`{suite}: {test}`");
            let kept = failed.iter().map(shown).find(|test| named.contains(test.as_str()));
            kept.or_else(|| failed.first().map(shown))
        });
        let tests = tests.collect::<Vec<_>>().join(", ");
        if tests.is_empty() {
            say!("mutant {}: {}: caught by NOTHING", mutant.number, mutant.breaks);
            survivors.push(mutant.number);
        } else {
            say!("mutant {}: {}: caught by {tests}", mutant.number, mutant.breaks);
            rows.push((mutant, tests));
        }
    }
    ensure!(!rows.is_empty() || !survivors.is_empty(), "no mutant has this number");
    if !survivors.is_empty() {
        bail!("no test catches the mutants {survivors:?}: strengthen one");
    }
    if only.is_none() {
        let page = paths.root.join(PAGE);
        fs::write(&page, shown(&rows)).with_context(|| format!("write {}", page.display()))?;
        say!("all {} mutants are caught; wrote {PAGE}", rows.len());
    }
    Ok(())
}

/// Whether each bug can still be planted, and the page lists all. Runs nothing.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let mutants = load(paths)?;
    let mut complaints = not_plantable(paths, &mutants)?;
    let listed: BTreeSet<u32> =
        known_catches(paths)?.into_iter().map(|(number, _)| number).collect();
    let there: BTreeSet<u32> = mutants.iter().map(|mutant| mutant.number).collect();
    if listed != there {
        let odd: Vec<_> = listed.symmetric_difference(&there).collect();
        complaints.push(format!(
            "{PAGE} and {LIST} differ in {odd:?}; `cargo xtask mutants` writes the page"
        ));
    }
    ensure!(complaints.is_empty(), "planted bugs:\n{}", complaints.join("\n"));
    Ok(())
}

/// The bugs whose text is not found exactly once.
fn not_plantable(paths: &Paths, mutants: &[Mutant]) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for mutant in mutants {
        let path = paths.root.join(&mutant.file);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        complaints.extend(mutant.planted(&text).err().map(|error| error.to_string()));
    }
    Ok(complaints)
}

fn load(paths: &Paths) -> Result<Vec<Mutant>> {
    let path = paths.root.join(LIST);
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    list::parse(&text).with_context(|| LIST.to_owned())
}

/// The copy of the pure crates in which bugs are planted.
struct Copy {
    dir: PathBuf,
}

impl Copy {
    fn new(paths: &Paths) -> Result<Self> {
        let dir = paths.target.join("mutants");
        // What was built there stays; the sources are copied anew.
        for name in CRATES {
            let to = dir.join("crates").join(name);
            if to.exists() {
                fs::remove_dir_all(&to).with_context(|| format!("remove {}", to.display()))?;
            }
            copy_dir(&paths.root.join("crates").join(name), &to)?;
        }
        fs::copy(paths.root.join("Cargo.lock"), dir.join("Cargo.lock"))
            .context("copy Cargo.lock")?;
        let manifest =
            fs::read_to_string(paths.root.join("Cargo.toml")).context("read Cargo.toml")?;
        ensure!(manifest.contains("members = ["), "Cargo.toml names no members");
        let manifest: String =
            (manifest.lines())
                .map(|line| {
                    if line.starts_with("members = [") { "members = [\"crates/*\"]" } else { line }
                })
                .map(|line| format!("{line}\n"))
                .collect();
        fs::write(dir.join("Cargo.toml"), manifest).context("write Cargo.toml")?;
        // The encoding of messages is tested against generated code, which is no pure crate.
        let protocol = dir.join("crates/protocol");
        fs::remove_file(protocol.join("tests/wire.rs")).context("leave out wire.rs")?;
        let path = protocol.join("Cargo.toml");
        let manifest = fs::read_to_string(&path).context("read the protocol's Cargo.toml")?;
        let kept = manifest.lines().filter(|line| !line.starts_with("chancery-proto."));
        let kept: String = kept.map(|line| format!("{line}\n")).collect();
        fs::write(&path, kept).context("write the protocol's Cargo.toml")?;
        Ok(Self { dir })
    }

    /// Plants a bug; returns the file as it was.
    fn plant(&self, paths: &Paths, mutant: &Mutant) -> Result<String> {
        let source = paths.root.join(&mutant.file);
        let text =
            fs::read_to_string(&source).with_context(|| format!("read {}", source.display()))?;
        let planted = mutant.planted(&text)?;
        self.write(mutant, &planted)?;
        Ok(text)
    }

    fn restore(&self, mutant: &Mutant, original: &str) -> Result<()> {
        self.write(mutant, original)
    }

    fn write(&self, mutant: &Mutant, text: &str) -> Result<()> {
        let path = self.dir.join(&mutant.file);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }

    /// The tests that fail, of the suites that are always run, or else of the first other one that has
    /// some; nothing if all pass.
    fn failing(&self, paths: &Paths) -> Result<Catches> {
        let mut caught = Catches::new();
        for (at, (package, arguments, name)) in SUITES.iter().enumerate() {
            if at >= SUITES_ALWAYS && !caught.is_empty() {
                break;
            }
            let mut cargo = paths.plain_cargo();
            cargo.args(["test", "--offline", "--no-fail-fast", "--quiet", "--package", package]);
            cargo.args(*arguments).current_dir(&self.dir);
            cargo.env("CARGO_TARGET_DIR", self.dir.join("target"));
            // The counterexample is not wanted at its smallest.
            cargo.env("CHANCERY_TEST_BRIEF", "1").env_remove("CHANCERY_TEST_LONG");
            let failed: BTreeSet<String> = match proc::bounded(&mut cargo, SUITE_MAX)? {
                proc::Ran::Succeeded => continue,
                proc::Ran::TooLong => BTreeSet::from(["no end".to_owned()]),
                proc::Ran::Failed(output) => {
                    let compiles = !output.contains("error: could not compile");
                    ensure!(compiles, "it does not compile:\n{output}");
                    let failed = failed_tests(&output).map(str::to_owned).collect();
                    ensure!(failed != BTreeSet::new(), "{name} has no failing test:\n{output}");
                    failed
                }
            };
            caught.push((name, failed));
        }
        Ok(caught)
    }
}

/// The names below `failures:` at the end of what libtest prints.
fn failed_tests(output: &str) -> impl Iterator<Item = &str> {
    let names = output.rsplit_once("\nfailures:\n").map_or("", |(_, names)| names);
    names.lines().skip_while(|line| line.is_empty()).map_while(|line| line.strip_prefix("    "))
}

fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_dir(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)
                .with_context(|| format!("copy {}", target.display()))?;
        }
    }
    Ok(())
}

/// The page.
fn shown(rows: &[(&Mutant, String)]) -> String {
    let mut page = String::from(
        "# Planted bugs\n\nBugs that are put into a copy of the pure crates, one at a time, and the test that catches \
         each. Most are pitfalls of\nother servers. `cargo xtask mutants` plants them all and writes this page; \
         `crates/xtask/mutants.txt` has the changes.\nEach is tried by the transcripts first and by the model next, \
         and the first suite that catches it is named.\n\n| number | pitfall, requirement | what is wrong | caught by |\n\
         |---|---|---|---|\n",
    );
    for (mutant, tests) in rows {
        let Mutant { number, why, breaks, .. } = mutant;
        let _ = writeln!(page, "| {number} | {why} | {breaks} | {tests} |");
    }
    page
}

/// What the page says: number and tests.
fn known_catches(paths: &Paths) -> Result<Vec<(u32, String)>> {
    let path = paths.root.join(PAGE);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let number = cells.next()?.parse().ok()?;
        let test = cells.last()?.strip_suffix(" |")?;
        Some((number, test.to_owned()))
    });
    Ok(rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_tests_are_read_from_the_end_of_the_output() {
        let output = "x\n\nfailures:\n\n---- a::b stdout ----\nno\n\n\nfailures:\n    a::b\n    c\n\ntest result\n";
        assert_eq!(failed_tests(output).collect::<Vec<_>>(), ["a::b", "c"]);
        assert_eq!(failed_tests("all good\n").count(), 0);
    }
}
