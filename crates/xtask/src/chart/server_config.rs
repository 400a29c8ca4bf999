//! The check that `chancery config check` accepts the configuration of each replica without warnings.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::render::{Chart, name_of, of_kind};
use crate::proc;

/// Where the chart mounts the certificates of the ports, in `tls`, and the keys of secrets, in `keys`.
const MOUNTS: &str = "/etc/chancery/";
/// The volume of a replica, in which a UNIX socket may be.
const DATA: &str = "\"/data/";
/// A file with a key-encryption key.
const KEY_FILE: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n";
/// The files of `chancery dev certs` that stand for the Secret of each port: tls.crt, tls.key and ca.crt.
const FILES: [(&str, [&str; 3]); 3] = [
    ("xds", ["server.pem", "server.key", "ca.pem"]),
    ("admin", ["server.pem", "server.key", "operators-ca.pem"]),
    ("raft", ["replica.pem", "replica.key", "replicas-ca.pem"]),
];

/// Checks the first and the last replica of each StatefulSet.
pub(super) fn check(chart: &Chart, program: &Path, objects: &[Value]) -> Result<()> {
    let mounts = mounts(chart, program)?;
    for set in of_kind(objects, "StatefulSet") {
        let spec = &set["spec"];
        let first =
            spec["ordinals"]["start"].as_u64().context("the StatefulSet has no first index")?;
        let n = spec["replicas"].as_u64().context("the StatefulSet has no number of replicas")?;
        for index in [first, first + n - 1] {
            let replica = Replica { set, objects, index, mounts: &mounts };
            replica.check(chart, program).with_context(|| format!("{} {index}", name_of(set)))?;
        }
    }
    Ok(())
}

/// Creates the content of the Secrets once, and returns the directory that stands for [`MOUNTS`].
fn mounts(chart: &Chart, program: &Path) -> Result<String> {
    let dir = chart.scratch.join("mounts");
    if !dir.is_dir() {
        let made = chart.scratch.join("certs");
        proc::output(Command::new(program).args(["dev", "certs", "--dir"]).arg(&made))?;
        for (port, files) in FILES {
            let to = dir.join("tls").join(port);
            fs::create_dir_all(&to).with_context(|| format!("create {}", to.display()))?;
            for (from, to) in
                files.into_iter().zip(["tls.crt", "tls.key", "ca.crt"].map(|name| to.join(name)))
            {
                fs::copy(made.join(from), &to)
                    .with_context(|| format!("create {}", to.display()))?;
            }
        }
        let key_file = dir.join("keys/secrets.key");
        fs::create_dir(dir.join("keys")).context("create the directory of keys")?;
        fs::write(&key_file, KEY_FILE).context("write a key file")?;
        fs::set_permissions(&key_file, Permissions::from_mode(0o600))
            .context("protect the keys")?;
    }
    Ok(format!("{}/", dir.display()))
}

/// One pod of a StatefulSet.
struct Replica<'a> {
    set: &'a Value,
    objects: &'a [Value],
    index: u64,
    mounts: &'a str,
}

impl Replica<'_> {
    fn check(&self, chart: &Chart, program: &Path) -> Result<()> {
        let container = &self.set["spec"]["template"]["spec"]["containers"][0];
        let file = chart.scratch.join("chancery.toml");
        let text =
            self.file().replace(MOUNTS, self.mounts).replace(DATA, &format!("\"{}", self.mounts));
        fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
        let mut check = Command::new(program);
        check.env_clear().args(["config", "check", "--config"]).arg(&file);
        let args = container["args"].as_array().context("the container has no arguments")?;
        let args: Vec<_> = args.iter().filter_map(Value::as_str).collect();
        let ["serve", "--config=/etc/chancery/config/chancery.toml", rest @ ..] = args.as_slice()
        else {
            anyhow::bail!("the container runs {args:?}")
        };
        check.args(rest);
        let mut pod_name = String::new();
        for variable in container["env"].as_array().context("the container has no variables")? {
            let name = variable["name"].as_str().unwrap_or_default();
            let value = self.variable(variable).with_context(|| name.to_owned())?;
            if name == "POD_NAME" {
                pod_name.clone_from(&value);
            }
            let value = value.replace("$(POD_NAME)", &pod_name);
            check.env(name, value.replace(MOUNTS, self.mounts));
        }
        let said = proc::output(&mut check)?;
        ensure!(said == "the configuration is valid\n", "`chancery config check` warns:\n{said}");
        Ok(())
    }

    /// Returns the configuration file. That of a user is unknown, and may be empty.
    fn file(&self) -> String {
        let name = format!("{}-config", name_of(self.set).trim_end_matches("-learner"));
        let secret = of_kind(self.objects, "Secret").find(|secret| name_of(secret) == name);
        let text = secret.and_then(|secret| secret["stringData"]["chancery.toml"].as_str());
        text.unwrap_or_default().to_owned()
    }

    fn variable(&self, variable: &Value) -> Result<String> {
        let from = &variable["valueFrom"];
        if let Some(value) = variable["value"].as_str() {
            return Ok(value.to_owned());
        }
        if let Some(path) = from["fieldRef"]["fieldPath"].as_str() {
            return match path {
                "metadata.name" => Ok(format!("{}-{}", name_of(self.set), self.index)),
                "metadata.labels['apps.kubernetes.io/pod-index']" => Ok(self.index.to_string()),
                other => anyhow::bail!("an unknown field {other}"),
            };
        }
        let reference = &from["configMapKeyRef"];
        let map = of_kind(self.objects, "ConfigMap").find(|map| reference["name"] == name_of(map));
        let map = map.context("the ConfigMap does not exist")?;
        let key = reference["key"].as_str().context("the reference has no key")?;
        map["data"][key]
            .as_str()
            .map(str::to_owned)
            .with_context(|| format!("there is no key {key}"))
    }
}
