//! `cargo xtask demo`: a control plane with sample resources, and real clients that connect to it.
//!
//! All ports of the control plane require certificates, which `chancery dev certs` creates. The files of the clients
//! come from `chancery bootstrap`, and a context tells the commands where to connect.
//!
//! Invariant: no child process outlives the demo. A [`Guard`] kills its child when it is dropped, and
//! the kernel kills the children if this process is killed.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::{
    http,
    paths::Paths,
    proc::{self, Guard},
    program::{self, Profile},
    say::say,
    setup,
};

/// The time limit for one step: a start, a first answer, or a moved endpoint.
const STEP: Duration = Duration::from_secs(60);

/// The first words of the instructions, which the demo prints once everything runs.
pub(crate) const READY: &str = "the control plane is up";

/// The template files in `deploy/demo`, which the demo fills with its ports.
const FILES: &[&str] = &["resources.yaml", "moved.yaml", "upstream.py", "grpc_client.py"];

/// The first words of the line that `serve` prints when it is ready.
const SERVE_READY: &str = "chancery ready ";

/// Starts everything, prints instructions, and runs until SIGINT or SIGTERM.
pub(crate) fn serve(paths: &Paths, profile: Profile) -> Result<()> {
    let chancery = build(paths, profile)?;
    let stop = stop_flag()?;
    let mut demo =
        Demo::start(paths, &chancery, paths.target.join("demo"), &Ports::usual()?, stop)?;
    say!("{}", demo.instructions(paths));
    while !demo.stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(100));
        demo.replica.expect_running()?;
    }
    say!("stopping");
    demo.end();
    Ok(())
}

/// Builds the program, and checks it like [`check_program`].
pub(crate) fn check(paths: &Paths, profile: Profile) -> Result<()> {
    check_program(paths, &build(paths, profile)?)
}

/// Starts everything with a built program, and checks it with a real Envoy and a real gRPC client.
pub(crate) fn check_program(paths: &Paths, chancery: &Path) -> Result<()> {
    let stop = stop_flag()?;
    let dir = paths.target.join(format!("demo-check-{}", std::process::id()));
    let demo = Demo::start(paths, chancery, dir.clone(), &Ports::free()?, stop)?;
    demo.drive(paths).with_context(|| format!("the logs are in {}", dir.display()))?;
    demo.end();
    fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    say!("demo: Envoy and the gRPC client accepted their config and followed a moved endpoint");
    Ok(())
}

/// Returns a flag that SIGINT and SIGTERM set. Before this call, for example during the build, the
/// signals end the process.
fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("register a signal handler")?;
    }
    Ok(stop)
}

fn build(paths: &Paths, profile: Profile) -> Result<PathBuf> {
    setup::demo_needs(paths)?;
    program::build(paths, profile)
}

/// The ports of one demo: template name, port.
#[derive(Debug)]
struct Ports(Vec<(&'static str, u16)>);

impl Ports {
    const USUAL: &[(&str, u16)] = &[
        ("XDS", 18000),
        ("ADMIN", 18001),
        ("RAFT", 18002),
        ("LISTENER", 10000),
        ("HTTP_A", 18081),
        ("HTTP_B", 18082),
        ("GRPC_A", 18083),
        ("GRPC_B", 18084),
    ];

    /// Returns the usual ports, with a free port instead of each one that is in use.
    fn usual() -> Result<Self> {
        Self::choose(|usual| usual)
    }

    /// Returns free ports.
    fn free() -> Result<Self> {
        Self::choose(|_| 0)
    }

    fn choose(wish: impl Fn(u16) -> u16) -> Result<Self> {
        let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        // The sockets stay bound until all ports are chosen, so that no port is chosen twice.
        let mut listeners = Vec::new();
        let mut ports = Vec::new();
        for (name, usual) in Self::USUAL {
            let listener =
                bind(wish(*usual)).or_else(|_| bind(0)).context("bind a port on 127.0.0.1")?;
            ports.push((*name, listener.local_addr().context("read the bound port")?.port()));
            listeners.push(listener);
        }
        Ok(Self(ports))
    }

    fn get(&self, name: &str) -> Result<u16> {
        self.0
            .iter()
            .find_map(|(known, port)| (*known == name).then_some(*port))
            .ok_or_else(|| anyhow!("no port has the name {name:?}"))
    }

    /// Returns the template with each `{{NAME}}` replaced by its port.
    fn fill(&self, template: &str) -> Result<String> {
        let mut filled = template.to_owned();
        for (name, port) in &self.0 {
            filled = filled.replace(&format!("{{{{{name}}}}}"), &port.to_string());
        }
        match filled.split_once("{{") {
            Some((_, rest)) => {
                bail!("no port has the name {:?}", rest.split("}}").next().unwrap_or(rest))
            }
            None => Ok(filled),
        }
    }
}

/// A running control plane and its upstreams.
struct Demo {
    dir: PathBuf,
    chancery: PathBuf,
    listener: u16,
    stop: Arc<AtomicBool>,
    replica: Guard,
    /// The upstreams, dropped last so that they serve until the end.
    _upstreams: Vec<Guard>,
}

impl Demo {
    fn start(
        paths: &Paths,
        chancery: &Path,
        dir: PathBuf,
        ports: &Ports,
        stop: Arc<AtomicBool>,
    ) -> Result<Self> {
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("clear {}", dir.display()))?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        for file in FILES {
            let template = paths.root.join("deploy/demo").join(file);
            let text = fs::read_to_string(&template)
                .with_context(|| format!("read {}", template.display()))?;
            let filled = ports.fill(&text).with_context(|| format!("fill {file}"))?;
            fs::write(dir.join(file), filled).with_context(|| format!("write {file}"))?;
        }
        say!(
            "starting two upstreams and the control plane; files and logs are in {}",
            dir.display()
        );
        let upstreams = ["a", "b"]
            .map(|name| upstream(paths, &dir, name, ports))
            .into_iter()
            .collect::<Result<Vec<_>>>()?;

        let run = |args: &[&str]| proc::output(command(chancery, &dir).args(args)).map(drop);
        run(&["dev", "certs", "--dir", "certs"])?;
        let address = |name| Ok::<_, anyhow::Error>(format!("127.0.0.1:{}", ports.get(name)?));
        let mut serve = proc::leashed(chancery);
        serve
            .current_dir(&dir)
            .args(["serve", "--config", "certs/chancery.toml", "--data-dir", "data"])
            .args(["--xds", &address("XDS")?, "--admin", &address("ADMIN")?])
            .args(["--raft", &address("RAFT")?])
            .stdin(Stdio::null());
        without_settings(&mut serve);
        let mut replica = Guard::spawn("chancery", logged(&mut serve, &dir, "chancery")?)?;
        let admin = format!("https://{}", address("ADMIN")?);
        run(&[&["context", "set", "demo", "--server", &admin], OPERATOR].concat())?;
        run(&["context", "use", "demo"])?;
        let xds = format!("https://{}", address("XDS")?);
        for (kind, node, cluster, out) in [
            ("envoy", "envoy-demo", "edge", "envoy.yaml"),
            ("grpc", "grpc-demo", "mesh", "grpc-bootstrap.json"),
        ] {
            let client = ["bootstrap", kind, "--node", node, "--cluster", cluster, "--xds", &xds];
            run(&[&client, CLIENT, &["--out", out]].concat())?;
        }
        wait_for("the control plane to be ready", &stop, || {
            replica.expect_running().with_context(|| log_tail(&dir, "chancery"))?;
            Ok(log(&dir, "chancery").contains(SERVE_READY).then_some(()))
        })?;
        let demo = Self {
            dir,
            chancery: chancery.to_owned(),
            listener: ports.get("LISTENER")?,
            stop,
            replica,
            _upstreams: upstreams,
        };
        demo.apply("resources.yaml")?;
        Ok(demo)
    }

    fn apply(&self, file: &str) -> Result<()> {
        let mut apply = command(&self.chancery, &self.dir);
        let output = proc::output(apply.args(["apply", "-f", file]))?;
        say!("chancery apply -f {file}\n{}", output.trim_end());
        Ok(())
    }

    /// Sends a request through Envoy and a call through the gRPC client, before and after the endpoints
    /// move.
    fn drive(&self, paths: &Paths) -> Result<()> {
        say!("starting Envoy and the gRPC client");
        let mut envoy = self.envoy(paths);
        let mut envoy = Guard::spawn("envoy", logged(&mut envoy, &self.dir, "envoy")?)?;
        let mut client = self.grpc_client(paths);
        client.args(["--until", "hello from b", "--seconds", "120"]).stdout(Stdio::piped());
        let mut client = Guard::spawn("the gRPC client", &mut client)?;
        let answers = lines(&mut client)?;

        self.expect_http(&mut envoy, "hello from a")?;
        expect_line(&answers, "hello from a")?;
        self.apply("moved.yaml")?;
        self.expect_http(&mut envoy, "hello from b")?;
        expect_line(&answers, "hello from b")?;
        self.inspect()
    }

    /// Runs commands of the instructions in a shell.
    fn inspect(&self) -> Result<()> {
        let script = format!("set -e\n{}\nchancery nodes\nchancery doctor", self.environment());
        let mut shell = Command::new("sh");
        without_settings(shell.args(["-c", &script]));
        let output = proc::output(&mut shell)?;
        say!("{}", output.trim_end());
        if output.contains("envoy-demo  edge     synced") {
            Ok(())
        } else {
            bail!("`chancery nodes` does not list Envoy as synced")
        }
    }

    fn expect_http(&self, envoy: &mut Guard, answer: &str) -> Result<()> {
        wait_for(&format!("{answer:?} through Envoy"), &self.stop, || {
            envoy.expect_running().with_context(|| log_tail(&self.dir, "envoy"))?;
            let got = http::get(&format!("127.0.0.1:{}", self.listener), "/").ok();
            Ok(got.filter(|got| got.status == 200 && got.body == answer).map(drop))
        })?;
        say!("Envoy answers {answer:?}");
        Ok(())
    }

    fn envoy(&self, paths: &Paths) -> Command {
        let mut envoy = proc::leashed(&paths.clients.join("bin/python"));
        envoy
            .arg("-c")
            .arg(ENVOY)
            .arg("-c")
            .arg(self.dir.join("envoy.yaml"))
            .args(["--disable-hot-restart", "--concurrency", "1"])
            .stdin(Stdio::null());
        envoy
    }

    fn grpc_client(&self, paths: &Paths) -> Command {
        let mut client = proc::leashed(&paths.clients.join("bin/python"));
        client
            .arg(self.dir.join("grpc_client.py"))
            .env("GRPC_XDS_BOOTSTRAP", self.dir.join("grpc-bootstrap.json"))
            .stdin(Stdio::null());
        client
    }

    fn instructions(&self, paths: &Paths) -> String {
        let (dir, clients) = (quoted(&self.dir), quoted(&paths.clients));
        format!(
            "{READY}; Ctrl-C stops it and its upstreams

Start Envoy (delta ADS over mutual TLS) in another terminal:
  {clients}/bin/envoy -c {dir}/envoy.yaml --disable-hot-restart --concurrency 1
  curl http://127.0.0.1:{}/                      # hello from a

Start a proxyless gRPC client (Python), which prints each new answer until Ctrl-C:
  GRPC_XDS_BOOTSTRAP={dir}/grpc-bootstrap.json {clients}/bin/python {dir}/grpc_client.py

Use the commands, with the address and the certificate of the context `demo`:
  {}

Move both services from upstream a to upstream b while the clients run:
  chancery apply -f {dir}/moved.yaml --wait

Inspect the control plane:
  chancery nodes
  chancery node envoy-demo
  chancery get
  chancery explain envoy-demo cluster web
  chancery doctor
",
            self.listener,
            self.environment()
        )
    }

    /// Returns the shell command after which `chancery` needs no connection flags.
    fn environment(&self) -> String {
        let programs = quoted(self.chancery.parent().unwrap_or(Path::new(".")));
        let contexts = quoted(&self.dir.join("contexts.toml"));
        format!("export PATH={programs}:\"$PATH\" CHANCERY_CONTEXTS={contexts}")
    }

    /// Stops the control plane with SIGTERM, and waits up to 5 s for it to drain.
    fn end(mut self) {
        let pid = self.replica.id().to_string();
        // `kill` is a shell builtin here, because a minimal system has no such program.
        if proc::succeeds(Command::new("sh").args(["-c", "kill -TERM \"$0\"", &pid])) {
            let deadline = Instant::now() + Duration::from_secs(5);
            while self.replica.expect_running().is_ok() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// The flags with the certificate of the operator.
const OPERATOR: &[&str] = &[
    "--ca-cert",
    "certs/ca.pem",
    "--cert",
    "certs/operator.pem",
    "--cert-key",
    "certs/operator.key",
];

/// The flags with the certificate of the clients.
const CLIENT: &[&str] =
    &["--ca-cert", "certs/ca.pem", "--cert", "certs/client.pem", "--cert-key", "certs/client.key"];

/// Returns a command line of `chancery` that uses the contexts of the demo.
fn command(chancery: &Path, dir: &Path) -> Command {
    let mut command = Command::new(chancery);
    without_settings(&mut command);
    command.current_dir(dir).env("CHANCERY_CONTEXTS", dir.join("contexts.toml"));
    command
}

/// Removes the variables of Chancery, which would override the files of the demo.
pub(crate) fn without_settings(command: &mut Command) {
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("CHANCERY_") {
            command.env_remove(name);
        }
    }
}

/// Returns a path as a word of a shell command.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+".contains(c));
    if is_plain { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// A Python program that replaces itself with Envoy, so that the started process id is that of Envoy.
pub(crate) const ENVOY: &str = "\
import os, sys, envoy
binary = os.path.join(list(envoy.__path__)[0], '_bin', 'envoy')
os.execv(binary, ['envoy', *sys.argv[1:]])";

fn upstream(paths: &Paths, dir: &Path, name: &str, ports: &Ports) -> Result<Guard> {
    let port = |kind: &str| {
        Ok::<_, anyhow::Error>(ports.get(&format!("{kind}_{}", name.to_uppercase()))?.to_string())
    };
    let mut command = proc::leashed(&paths.clients.join("bin/python"));
    command
        .arg(dir.join("upstream.py"))
        .args(["--name", name, "--http", &port("HTTP")?, "--grpc", &port("GRPC")?])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut upstream = Guard::spawn(&format!("upstream {name}"), &mut command)?;
    let answers = lines(&mut upstream)?;
    expect_line(&answers, "ready").with_context(|| format!("start upstream {name}"))?;
    Ok(upstream)
}

/// Redirects the output of the command to `<name>.log`.
pub(crate) fn logged<'a>(
    command: &'a mut Command,
    dir: &Path,
    name: &str,
) -> Result<&'a mut Command> {
    let path = dir.join(format!("{name}.log"));
    let log = fs::File::create(&path).with_context(|| format!("create {}", path.display()))?;
    let same = log.try_clone().with_context(|| format!("open {} twice", path.display()))?;
    Ok(command.stdout(log).stderr(same))
}

/// Returns a log, as far as it is written.
pub(crate) fn log(dir: &Path, name: &str) -> String {
    fs::read_to_string(dir.join(format!("{name}.log"))).unwrap_or_default()
}

/// Returns the last 20 lines of a log, for an error message.
pub(crate) fn log_tail(dir: &Path, name: &str) -> String {
    let log = log(dir, name);
    let lines: Vec<&str> = log.lines().collect();
    format!("the log of {name} ends with:\n{}", lines[lines.len().saturating_sub(20)..].join("\n"))
}

/// Returns a channel with the lines that a child prints. It holds 64 lines; when it is full, the child
/// blocks.
pub(crate) fn lines(child: &mut Guard) -> Result<mpsc::Receiver<String>> {
    let output = BufReader::new(child.stdout()?);
    let (sender, receiver) = mpsc::sync_channel(64);
    thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Fails unless the next line arrives in time and equals `expected`.
fn expect_line(lines: &mpsc::Receiver<String>, expected: &str) -> Result<()> {
    let line = lines.recv_timeout(STEP).with_context(|| format!("wait for {expected:?}"))?;
    if line != expected {
        bail!("expected {expected:?}, got {line:?}");
    }
    Ok(())
}

/// Calls `poll` until it returns a value, for at most [`STEP`].
fn wait_for<T>(
    what: &str,
    stop: &AtomicBool,
    mut poll: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + STEP;
    loop {
        if let Some(value) = poll()? {
            return Ok(value);
        }
        if stop.load(Ordering::Relaxed) {
            bail!("interrupted while waiting for {what}");
        }
        if Instant::now() > deadline {
            bail!("timed out after {} s while waiting for {what}", STEP.as_secs());
        }
        thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_is_filled_with_ports_and_unknown_name_is_an_error() {
        let ports = Ports(vec![("XDS", 18000), ("HTTP_A", 1)]);
        assert_eq!(ports.fill("a: {{XDS}}, {x: {{HTTP_A}}}").unwrap(), "a: 18000, {x: 1}");
        let error = ports.fill("{{GRPC_Z}}").unwrap_err().to_string();
        assert_eq!(error, "no port has the name \"GRPC_Z\"");
    }

    #[test]
    fn printed_path_is_one_word_of_a_shell() {
        for path in ["/home/a/demo", "/home/a b/it's/$HOME"] {
            let print = format!("printf %s {}", quoted(Path::new(path)));
            assert_eq!(proc::output(Command::new("sh").args(["-c", &print])).unwrap(), path);
        }
    }

    #[test]
    fn chosen_ports_are_distinct() {
        let mut ports: Vec<u16> = Ports::free().unwrap().0.iter().map(|(_, port)| *port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), Ports::USUAL.len());
    }
}
