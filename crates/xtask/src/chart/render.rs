//! Renderings of the chart.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::PathBuf,
    process::{Command, Output},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::{
    paths::Paths,
    proc,
    setup::{self, ChartTools},
};

/// The directory of the chart.
pub(super) const CHART: &str = "deploy/helm/chancery";
/// The oldest version of Kubernetes that the chart supports, and the newest one with known schemas.
pub(super) const KUBERNETES: &str = "1.28,1.37";
/// The minimum number of files with values.
pub(super) const CASES_MIN: usize = 12;
/// The release and the namespace of all renderings.
pub(super) const RELEASE: &str = "release";
pub(super) const NAMESPACE: &str = "shop";

/// A directory for temporary files, which is removed at the end.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new(paths: &Paths) -> Result<Self> {
        let dir = paths.target.join(format!("chart-{}", std::process::id()));
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// The chart, with the tools that render it.
#[derive(Debug)]
pub(super) struct Chart {
    pub(super) dir: PathBuf,
    pub(super) tools: ChartTools,
    pub(super) scratch: PathBuf,
}

/// A file with values, and its renderings.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) values: PathBuf,
    pub(super) manifest: String,
    pub(super) notes: String,
}

impl Chart {
    /// Installs the tools. Temporary files go into `scratch`.
    pub(super) fn new(paths: &Paths, scratch: &Scratch) -> Result<Self> {
        let tools = setup::chart_tools(paths)?;
        Ok(Self { dir: paths.root.join(CHART), tools, scratch: scratch.0.clone() })
    }

    /// Renders the chart with each file of values.
    pub(super) fn cases(&self) -> Result<Vec<Case>> {
        let dir = self.dir.join("ci");
        let entries = fs::read_dir(&dir).with_context(|| format!("read {}", dir.display()))?;
        let files = entries.map(|entry| entry.map(|entry| entry.path()));
        let mut files = files.collect::<Result<Vec<_>, _>>().context("list the values")?;
        files.retain(|file| file.extension() == Some(OsStr::new("yaml")));
        files.sort();
        ensure!(files.len() >= CASES_MIN, "{} has {} files of values", dir.display(), files.len());
        files.into_iter().map(|file| self.case(file)).collect()
    }

    fn case(&self, values: PathBuf) -> Result<Case> {
        let name = values.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let with = [OsStr::new("-f"), values.as_os_str()];
        let manifest = succeeded(self.helm("template", RELEASE).args(with))?;
        let mut install = self.helm("install", RELEASE);
        let installed = succeeded(install.arg("--dry-run=client").args(with))?;
        let (_, notes) = installed.split_once("\nNOTES:\n").context("the chart prints no notes")?;
        Ok(Case { name, manifest, notes: notes.to_owned(), values })
    }

    /// Returns a call of Helm that depends on nothing of this machine.
    pub(super) fn helm(&self, action: &str, release: &str) -> Command {
        let mut helm = Command::new(&self.tools.helm);
        helm.env_clear().env("HOME", &self.scratch).env("KUBECONFIG", "/dev/null");
        helm.args([action, release]).arg(&self.dir).args(["--namespace", NAMESPACE]);
        helm
    }

    pub(super) fn lint(&self, case: &Case) -> Result<()> {
        let mut helm = Command::new(&self.tools.helm);
        helm.env_clear().env("HOME", &self.scratch).args(["lint", "--strict", "--quiet"]);
        helm.arg(&self.dir).arg("-f").arg(&case.values);
        succeeded(&mut helm).map(drop)
    }

    /// Returns the objects that the chart creates with one of the files of values and further arguments.
    pub(super) fn objects(&self, paths: &Paths, values: &str, args: &[&str]) -> Result<Vec<Value>> {
        let file = self.dir.join("ci").join(values);
        let mut helm = self.helm("template", RELEASE);
        let manifest = succeeded(helm.arg("-f").arg(file).args(args))?;
        let mut objects = self.validate_texts(paths, &[("one", &manifest)])?;
        objects.remove("one").context("the manifest was not validated")
    }

    pub(super) fn validate(
        &self,
        paths: &Paths,
        cases: &[Case],
    ) -> Result<BTreeMap<String, Vec<Value>>> {
        let texts = cases.iter().map(|case| (case.name.as_str(), case.manifest.as_str()));
        self.validate_texts(paths, &texts.collect::<Vec<_>>())
    }

    /// Validates manifests, and returns their objects by name.
    pub(super) fn validate_texts(
        &self,
        paths: &Paths,
        texts: &[(&str, &str)],
    ) -> Result<BTreeMap<String, Vec<Value>>> {
        let source = paths.root.join("crates/xtask/src/chart");
        let mut python = Command::new(&self.tools.python);
        python.arg(source.join("validate.py")).arg(KUBERNETES).arg(source.join("crds.json"));
        python.current_dir(&self.scratch);
        for (name, text) in texts {
            let file = self.scratch.join(name);
            fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
            python.arg(name);
        }
        serde_json::from_str(&proc::output(&mut python)?).context("read the validated objects")
    }
}

/// Runs the command, and returns its standard output.
pub(super) fn succeeded(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } = command.output().context("start helm")?;
    if !status.success() {
        let [stdout, stderr] =
            [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        bail!("{} failed: {status}\n{stdout}{stderr}", proc::shown(command));
    }
    String::from_utf8(stdout).context("the output of helm is not UTF-8")
}

/// Returns the objects of a kind.
pub(super) fn of_kind<'a>(objects: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

/// Returns the name of an object, for messages and lookups.
pub(super) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}
