//! `cargo xtask dist`: all files of a release, and their check.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{
    archive::{Tree, gzip, sha256},
    deb,
    dependencies::{self, Dependency},
    image, notices,
    release::Release,
    sbom,
};
use crate::{
    paths::Paths,
    proc,
    say::say,
    setup::{self, ChartTools},
};

/// The files of a release, by name.
type Files = BTreeMap<String, Vec<u8>>;

/// The list of checksums. A release signs this file, which covers all others.
const SUMS: &str = "SHA256SUMS";
/// The shells with completion scripts, and the paths of these below the prefix.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "share/bash-completion/completions/chancery"),
    ("zsh", "share/zsh/vendor-completions/_chancery"),
    ("fish", "share/fish/vendor_completions.d/chancery.fish"),
];
const UNITS: &[&str] = &["chancery.service", "chancery-backup.service", "chancery-backup.timer"];

/// The variables of the unit.
const DEFAULT: &str = "deploy/debian/default";

/// Writes all files into a directory, and returns the directory.
pub(super) fn write(paths: &Paths, release: &Release, program: &Path) -> Result<PathBuf> {
    let files = Sources::read(paths, release, program)?.files()?;
    let dir = super::scratch::fresh_dir(paths, "dist")?;
    write_all(&dir, &files)?;
    Ok(dir)
}

/// Writes all files twice and compares them, and reads them with the tools of their formats.
pub(super) fn check(paths: &Paths, release: &Release, program: &Path) -> Result<()> {
    say!("checking the files of a release");
    let files = Sources::read(paths, release, program)?.files()?;
    let again = Sources::read(paths, release, program)?.files()?;
    let differing: Vec<_> =
        files.keys().filter(|name| files.get(*name) != again.get(*name)).collect();
    ensure!(differing.is_empty(), "two runs wrote different files: {differing:?}");
    let dir = super::scratch::fresh_dir(paths, "dist-check")?;
    write_all(&dir, &files)?;
    proc::output(Command::new("sha256sum").current_dir(&dir).args(["--check", "--strict", SUMS]))?;
    let deb = proc::output(
        Command::new("dpkg-deb").arg("--contents").arg(dir.join(deb::file_name(release))),
    )?;
    for path in ["usr/bin/chancery", "usr/lib/systemd/system/chancery.service"] {
        ensure!(deb.contains(path), "the Debian package lacks {path}:\n{deb}");
    }
    check_md5sums(&dir, release)?;
    check_archive(&dir, release)?;
    check_variables(paths, program)?;
    let chart = dir.join(format!("chancery-{}.tgz", release.version));
    let tools = setup::chart_tools(paths)?;
    check_chart(&tools, &chart)?;
    fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    say!("the {} files of the release are correct, and two runs wrote equal bytes", files.len());
    Ok(())
}

/// Unpacks the Debian package, and compares its files with its checksums.
fn check_md5sums(dir: &Path, release: &Release) -> Result<()> {
    let unpacked = dir.join("deb");
    let mut dpkg = Command::new("dpkg-deb");
    proc::output(dpkg.arg("--raw-extract").arg(dir.join(deb::file_name(release))).arg(&unpacked))?;
    let mut md5sum = Command::new("md5sum");
    let checked = md5sum.current_dir(&unpacked).args(["--check", "--strict", "DEBIAN/md5sums"]);
    let checked = proc::output(checked)?;
    ensure!(checked.contains("usr/bin/chancery: OK"), "md5sums lacks the program:\n{checked}");
    Ok(())
}

/// Unpacks the archive, and runs the program in it.
fn check_archive(dir: &Path, release: &Release) -> Result<()> {
    let name = format!("chancery-{}-x86_64-linux", release.version);
    let mut tar = Command::new("tar");
    proc::output(tar.current_dir(dir).args(["-xzf", &format!("{name}.tar.gz")]))?;
    let version =
        proc::output(Command::new(dir.join(&name).join("bin/chancery")).arg("--version"))?;
    let expected = format!("chancery {}", release.version);
    ensure!(version.trim() == expected, "the program prints {version:?} instead of {expected:?}");
    Ok(())
}

/// Checks that the program accepts the variables that `/etc/default/chancery` suggests.
fn check_variables(paths: &Paths, program: &Path) -> Result<()> {
    let file =
        fs::read_to_string(paths.root.join(DEFAULT)).with_context(|| format!("read {DEFAULT}"))?;
    let variables = suggested(&file)?;
    let mut check = Command::new(program);
    let printed = proc::output(check.env_clear().envs(variables).args(["config", "check"]))?;
    let expected = "the configuration is valid\n";
    ensure!(
        printed == expected,
        "with the variables of {DEFAULT}, `config check` prints:\n{printed}"
    );
    Ok(())
}

/// Returns the variables in the comments of the file, with their values.
fn suggested(file: &str) -> Result<Vec<(&str, &str)>> {
    let lines = file.lines().filter_map(|line| line.strip_prefix('#')?.split_once('='));
    let variables: Vec<_> = lines.filter(|(name, _)| !name.contains(' ')).collect();
    ensure!(!variables.is_empty(), "{DEFAULT} suggests no variable");
    for (name, _) in &variables {
        let is_known = name.starts_with("CHANCERY_") || *name == "TOKIO_WORKER_THREADS";
        ensure!(
            is_known,
            "{DEFAULT} suggests {name}, which has no effect; write CHANCERY_SECTION_KEY"
        );
    }
    Ok(variables)
}

fn check_chart(tools: &ChartTools, chart: &Path) -> Result<()> {
    let mut helm = Command::new(&tools.helm);
    helm.args(["template", "release"]).arg(chart).args(["--set", "image.repository=chancery"]);
    helm.args(
        ["raft", "xds", "admin"].map(|port| format!("--set=tls.{port}.existingSecret={port}")),
    );
    let objects = proc::output(&mut helm)?;
    ensure!(objects.contains("kind: StatefulSet"), "the packed chart has no StatefulSet");
    Ok(())
}

fn write_all(dir: &Path, files: &Files) -> Result<()> {
    for (name, content) in files {
        fs::write(dir.join(name), content).with_context(|| format!("write {name}"))?;
    }
    Ok(())
}

/// The contents of a release.
struct Sources<'a> {
    paths: &'a Paths,
    release: &'a Release,
    program: Vec<u8>,
    /// The completion scripts, and the manual pages in `share/man`, by path.
    generated: Files,
    /// The JSON schema of the configuration.
    schema: Vec<u8>,
    dependencies: Vec<Dependency>,
    notices: String,
}

impl<'a> Sources<'a> {
    /// Reads the program, and runs it to write completions, manual pages and the schema of the configuration.
    fn read(paths: &'a Paths, release: &'a Release, program: &Path) -> Result<Self> {
        let run =
            |args: &[&str]| proc::output(Command::new(program).args(args)).map(String::into_bytes);
        let mut generated = Files::new();
        for &(shell, path) in COMPLETIONS {
            generated.insert(path.to_owned(), run(&["completions", shell])?);
        }
        let pages = super::scratch::fresh_dir(paths, "man")?;
        proc::output(Command::new(program).arg("man").arg(&pages))?;
        for entry in fs::read_dir(&pages).context("list the manual pages")? {
            let path = entry.context("list the manual pages")?.path();
            let section = path.extension().and_then(|section| section.to_str()).unwrap_or("1");
            let name = path.file_name().context("a page has no name")?.to_string_lossy();
            let page = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            generated.insert(format!("share/man/man{section}/{name}.gz"), gzip(&page)?);
        }
        ensure!(
            generated.contains_key("share/man/man1/chancery.1.gz"),
            "the program wrote no manual page chancery.1"
        );
        let dependencies = dependencies::contained(paths)?;
        Ok(Self {
            paths,
            release,
            program: fs::read(program).with_context(|| format!("read {}", program.display()))?,
            generated,
            schema: run(&["config", "schema"])?,
            notices: notices::write(&dependencies)?,
            dependencies,
        })
    }

    /// Returns all files, with their checksums.
    fn files(&self) -> Result<Files> {
        let (version, epoch) = (&self.release.version, self.release.epoch);
        let name = |suffix: &str| format!("chancery-{version}-{suffix}");
        let archive = format!("chancery-{version}-x86_64-linux");
        let image = image::layout(self.release, &self.program)?;
        let mut files = Files::from([
            (format!("{archive}.tar.gz"), self.archive()?.tar_gz(&format!("{archive}/"), epoch)?),
            (deb::file_name(self.release), deb::write(self.paths, self.release, &self.deb()?)?),
            (name("image-amd64.tar"), image.tree.tar("", epoch)?),
            (format!("chancery-{version}.tgz"), self.chart()?.tar_gz("chancery/", epoch)?),
            (name("mixin.tar.gz"), self.tracked("deploy/mixin")?.tar_gz("chancery-mixin/", epoch)?),
            (name("proto.tar.gz"), self.tracked("proto")?.tar_gz("proto/", epoch)?),
            (name("config.schema.json"), self.schema.clone()),
            (name("sbom.cdx.json"), sbom::write(self.release, &self.dependencies)?),
        ]);
        let sums = files.iter().map(|(name, content)| format!("{}  {name}\n", sha256(content)));
        let sums: String = sums.collect();
        files.insert(SUMS.to_owned(), sums.into_bytes());
        Ok(files)
    }

    /// Returns the archive for systems without a package manager of Debian.
    fn archive(&self) -> Result<Tree> {
        let mut tree = Tree::default();
        tree.file("bin/chancery", 0o755, self.program.as_slice());
        for (path, content) in &self.generated {
            tree.file(path, 0o644, content.as_slice());
        }
        for name in ["LICENSE", "README.md"] {
            tree.file(name, 0o644, self.source(name)?);
        }
        tree.file("NOTICES", 0o644, self.notices.as_str());
        for name in UNITS.iter().chain(&["chancery.sysusers", "chancery.toml"]) {
            tree.file(
                &format!("systemd/{name}"),
                0o644,
                self.source(&format!("deploy/systemd/{name}"))?,
            );
        }
        Ok(tree)
    }

    /// Returns the files of the Debian package, by their paths below the root.
    fn deb(&self) -> Result<Tree> {
        let mut tree = Tree::default();
        tree.file("usr/bin/chancery", 0o755, self.program.as_slice());
        for (path, content) in &self.generated {
            tree.file(&format!("usr/{path}"), 0o644, content.as_slice());
        }
        for unit in UNITS {
            let content = self.source(&format!("deploy/systemd/{unit}"))?;
            tree.file(&format!("usr/lib/systemd/system/{unit}"), 0o644, content);
        }
        for (path, source) in [
            ("usr/lib/sysusers.d/chancery.conf", "deploy/systemd/chancery.sysusers"),
            ("usr/share/doc/chancery/examples/chancery.toml", "deploy/systemd/chancery.toml"),
            ("etc/default/chancery", DEFAULT),
        ] {
            tree.file(path, 0o644, self.source(source)?);
        }
        let copyright =
            format!("{}\n{}", String::from_utf8_lossy(&self.source("LICENSE")?), self.notices);
        tree.file("usr/share/doc/chancery/copyright", 0o644, copyright);
        Ok(tree)
    }

    /// Returns the chart without the values of its checks.
    fn chart(&self) -> Result<Tree> {
        self.tracked_except("deploy/helm/chancery", "ci/")
    }

    fn tracked(&self, dir: &str) -> Result<Tree> {
        self.tracked_except(dir, "/")
    }

    /// Returns the files of a directory that git tracks, by their paths below it, except those with the given beginning.
    fn tracked_except(&self, dir: &str, except: &str) -> Result<Tree> {
        let mut git = Command::new("git");
        git.current_dir(&self.paths.root).args(["-c", "safe.directory=*", "ls-files", "-z", dir]);
        let mut tree = Tree::default();
        for path in proc::output(&mut git)?.split_terminator('\0') {
            let Some(below) = path.strip_prefix(dir).and_then(|path| path.strip_prefix('/')) else {
                bail!("git lists {path} below {dir}")
            };
            if !below.starts_with(except) {
                tree.file(below, 0o644, self.source(path)?);
            }
        }
        Ok(tree)
    }

    fn source(&self, path: &str) -> Result<Vec<u8>> {
        fs::read(self.paths.root.join(path)).with_context(|| format!("read {path}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_without_effect_is_refused() {
        let file = "# Text with A=b.\n#TOKIO_WORKER_THREADS=4\n#CHANCERY_LOG_LEVEL=info\n";
        let expected = [("TOKIO_WORKER_THREADS", "4"), ("CHANCERY_LOG_LEVEL", "info")];
        assert_eq!(suggested(file).unwrap(), expected);
        let refused = suggested(&file.replace("CHANCERY_LOG_LEVEL", "RUST_LOG")).unwrap_err();
        let expected = "deploy/debian/default suggests RUST_LOG, which has no effect; write CHANCERY_SECTION_KEY";
        assert_eq!(refused.to_string(), expected);
    }
}
