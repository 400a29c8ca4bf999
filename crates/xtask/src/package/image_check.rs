//! The check of the image: equal digests, other tools can read it, and a container runtime runs a replica from it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{image, release::Release};
use crate::{
    http,
    paths::Paths,
    proc::{self, Guard},
    say::say,
};

/// The time limit of the start and of the end of the replica.
const STEP: Duration = Duration::from_secs(60);

/// The files of the image. Anything else, such as a shell, would be a mistake.
const FILES: &[&str] = &[
    "chancery",
    "etc/group",
    "etc/nsswitch.conf",
    "etc/passwd",
    "etc/ssl/certs/ca-certificates.crt",
];

/// Checks the image of this program.
pub(super) fn run(paths: &Paths, release: &Release, program: &[u8]) -> Result<()> {
    say!("checking the image");
    let scratch = super::scratch::fresh_dir(paths, "image-check")?;
    let layout = scratch.join("layout");
    let digest = image::write(release, program, &layout)?;
    let again = image::layout(release, program)?;
    ensure!(
        digest == again.digest,
        "the image of one program has two digests: {digest}, then {}",
        again.digest
    );
    let name = format!("{}:{}", layout.display(), release.version);
    inspect(&name, release, &digest)?;
    let archive = scratch.join("image.tar");
    fs::write(&archive, again.tree.tar("", release.epoch)?)
        .with_context(|| format!("write {}", archive.display()))?;
    inspect_as_docker(&archive, release)?;
    let bundle = scratch.join("bundle");
    let mut unpack = Command::new("umoci");
    proc::output(unpack.args(["unpack", "--image", &name]).arg(&bundle))?;
    let found = files(&bundle.join("rootfs"))?;
    ensure!(found == FILES, "the image contains {found:?} instead of {FILES:?}");
    serve(&bundle)?;
    fs::remove_dir_all(&scratch).with_context(|| format!("remove {}", scratch.display()))?;
    say!("the image {digest} is correct, and a replica started and ended in a container");
    Ok(())
}

/// Checks that skopeo reads the same digest, labels and user.
fn inspect(name: &str, release: &Release, digest: &str) -> Result<()> {
    let skopeo = |flags: &[&str]| {
        let mut skopeo = Command::new("skopeo");
        let output = proc::output(skopeo.arg("inspect").args(flags).arg(format!("oci:{name}")))?;
        serde_json::from_str::<Value>(&output).context("parse the output of skopeo")
    };
    let image = skopeo(&[])?;
    let labels = &image["Labels"];
    ensure!(image["Digest"] == digest, "skopeo reads the digest {}, not {digest}", image["Digest"]);
    for (label, value) in [("version", &release.version), ("revision", &release.revision)] {
        let label = format!("org.opencontainers.image.{label}");
        ensure!(labels[&label] == **value, "the label {label} is {}, not {value}", labels[&label]);
    }
    let config = skopeo(&["--config"])?;
    let process = &config["config"];
    ensure!(process["User"] == "65532:65532", "the image runs as {}", process["User"]);
    ensure!(process["StopSignal"] == "SIGTERM", "the image stops by {}", process["StopSignal"]);
    Ok(())
}

/// Checks that the archive has the image in the form that Docker reads without the image store of containerd.
fn inspect_as_docker(archive: &Path, release: &Release) -> Result<()> {
    let name = format!("docker-archive:{}:{}", archive.display(), image::tag(release));
    let mut skopeo = Command::new("skopeo");
    let config = proc::output(skopeo.args(["inspect", "--config"]).arg(&name))?;
    let config: Value = serde_json::from_str(&config).context("parse the output of skopeo")?;
    let user = &config["config"]["User"];
    ensure!(user == "65532:65532", "as an archive of Docker, the image runs as {user}");
    Ok(())
}

/// Returns the files of the root file system, sorted.
fn files(root: &Path) -> Result<Vec<String>> {
    let mut dirs = vec![PathBuf::new()];
    let mut files = Vec::new();
    while let Some(dir) = dirs.pop() {
        let list = root.join(&dir);
        let entries = fs::read_dir(&list).with_context(|| format!("list {}", list.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("list {}", list.display()))?;
            let path = dir.join(entry.file_name());
            if entry.file_type().context("read the type of a file")?.is_dir() {
                dirs.push(path)
            } else {
                files.push(path.display().to_string())
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Runs a replica in a container with a read-only root, until it is ready, and ends it by the signal of the image.
fn serve(bundle: &Path) -> Result<()> {
    let path = bundle.join("config.json");
    let config = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let config: Value = serde_json::from_str(&config).context("parse the configuration of runc")?;
    let data = bundle.join("data");
    proc::run(Command::new("cp").arg("-a").arg(bundle.join("rootfs/data")).arg(&data))?;
    let restricted = restricted(config, &data)?;
    fs::write(&path, restricted.to_string())
        .with_context(|| format!("write {}", path.display()))?;
    let mut runc = Command::new("runc");
    runc.arg("--root").arg(bundle.join("runc")).args(["run", "--bundle"]).arg(bundle);
    runc.arg(format!("chancery-check-{}", std::process::id()));
    runc.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut container = Guard::spawn("the container", &mut runc)?;
    let admin = ready_address(container.stdout()?)?;
    let answer = http::get(&admin, "/readyz")?;
    ensure!(answer.status == 200, "/readyz returned {}: {}", answer.status, answer.body);
    // runc passes the signal to the replica.
    let pid = container.id().to_string();
    proc::run(Command::new("sh").args(["-c", "kill -TERM \"$0\"", &pid]))?;
    let status = container.wait_for(STEP)?;
    ensure!(status.success(), "the replica ended after SIGTERM with {status}");
    Ok(())
}

/// Restricts the container like the Helm chart: no capability, no new privileges, and a read-only root.
///
/// The container shares the network of this machine, so that the check can reach its ports.
fn restricted(mut config: Value, data: &Path) -> Result<Value> {
    let process = &mut config["process"];
    ensure!(process["args"] == json!(["/chancery", "serve"]), "args: {}", process["args"]);
    ensure!(process["user"]["uid"] == 65532, "the user is {}", process["user"]);
    let free = ["--xds", "--admin", "--raft"].map(|flag| [flag, "127.0.0.1:0"]).concat();
    let args = process["args"].as_array_mut().context("the process has no arguments")?;
    args.extend(free.into_iter().map(Value::from));
    process["terminal"] = json!(false);
    process["noNewPrivileges"] = json!(true);
    process["capabilities"] = json!({});
    config["root"]["readonly"] = json!(true);
    let mounts = config["mounts"].as_array_mut().context("the container has no mounts")?;
    mounts.retain(|mount| mount["destination"] != "/data");
    mounts.push(json!({
        "destination": "/data", "type": "bind", "source": data, "options": ["bind", "rw"],
    }));
    let namespaces = config["linux"]["namespaces"].as_array_mut();
    namespaces
        .context("the container has no namespaces")?
        .retain(|space| space["type"] != "network");
    Ok(config)
}

/// Waits for the line that a ready replica prints, and returns the address of its admin port.
fn ready_address(output: impl std::io::Read + Send + 'static) -> Result<String> {
    let (sender, lines) = mpsc::sync_channel(64);
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let deadline = Instant::now() + STEP;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = lines.recv_timeout(left).context("the replica did not become ready")?;
        let address = line
            .strip_prefix("chancery ready ")
            .and_then(|line| line.split(' ').find_map(|field| field.strip_prefix("admin=")));
        if let Some(address) = address {
            return Ok(address.to_owned());
        }
    }
}
