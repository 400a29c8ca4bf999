//! A replica as a separate process, and commands that connect to it.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::mpsc::sync_channel,
    thread,
    time::Duration,
};

use serde_json::Value;

pub(crate) use chancery_testing::{DEADLINE, KillOnDrop, eventually};

/// The maximum duration of a command. A command that has lost its server retries for up to two minutes.
const COMMAND_MAX: Duration = Duration::from_secs(240);

/// Returns the binary without environment variables that could change its behavior.
pub(crate) fn chancery() -> Command {
    of_program(Path::new(env!("CARGO_BIN_EXE_chancery")))
}

/// Returns a command for a program of any release, with the environment of [`chancery`].
pub(crate) fn of_program(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("USER", "tester").stdin(Stdio::null());
    command
}

/// Returns the binary, started by another program.
fn by(program: &[&str]) -> Command {
    let [name, args @ ..] = program else { return chancery() };
    let mut command = Command::new(name);
    command.args(args).arg(env!("CARGO_BIN_EXE_chancery"));
    command.env_clear().env("USER", "tester").stdin(Stdio::null());
    command
}

/// A running replica.
pub(crate) struct Server {
    pub(crate) child: KillOnDrop,
    pub(crate) xds: String,
    pub(crate) admin: String,
    stdout: BufReader<ChildStdout>,
}

impl Server {
    pub(crate) fn start(data_dir: &Path) -> Self {
        Self::start_with(data_dir, &[])
    }

    /// Starts a replica with environment variables for its configuration.
    pub(crate) fn start_with(data_dir: &Path, environment: &[(&str, &str)]) -> Self {
        Self::start_by(&[], data_dir, environment)
    }

    /// Starts a replica by another program. The binary and its arguments follow the arguments of
    /// that program.
    pub(crate) fn start_by(
        program: &[&str],
        data_dir: &Path,
        environment: &[(&str, &str)],
    ) -> Self {
        let log = File::create(data_dir.with_extension("log")).unwrap();
        let mut command = by(program);
        command
            .args(["serve", "--xds", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--raft"])
            .args(["127.0.0.1:0", "--data-dir"])
            .arg(data_dir)
            .env("CHANCERY_STORE_FREE_BYTES_MIN", "64MiB")
            .envs(environment.iter().copied())
            .stderr(log);
        Self::spawn(command)
    }

    /// Runs a command that starts a replica. Returns when the replica is ready.
    pub(crate) fn spawn(mut command: Command) -> Self {
        command.stdout(Stdio::piped());
        let mut child = KillOnDrop(command.spawn().unwrap());
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut server = Self { child, xds: String::new(), admin: String::new(), stdout };
        server.wait_for_next_start();
        server
    }

    /// Waits until the process prints its next ready line, and takes over the addresses.
    pub(crate) fn wait_for_next_start(&mut self) {
        let mut line = String::new();
        // Records of an audit log may precede the addresses.
        while !line.contains("xds=") {
            line.clear();
            assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "the replica has ended");
        }
        let address = |name: &str| {
            let word = line.split_whitespace().find_map(|word| word.strip_prefix(name));
            word.unwrap_or_else(|| panic!("no {name} in {line:?}")).to_owned()
        };
        (self.xds, self.admin) = (address("xds="), address("admin="));
    }

    /// Runs a command that connects to this replica.
    pub(crate) fn run(&self, args: &[&str]) -> Done {
        self.run_with_input(args, "")
    }

    /// Runs a command with standard input.
    pub(crate) fn run_with_input(&self, args: &[&str], input: &str) -> Done {
        let mut command = chancery();
        command.args(args).env("CHANCERY_SERVER", &self.admin);
        run(command, input)
    }

    /// Returns the JSON output of a command that succeeds.
    pub(crate) fn json(&self, args: &[&str], input: &str) -> Value {
        let args = [args, ["-o", "json"].as_slice()].concat();
        let done = self.run_with_input(&args, input);
        assert_eq!(done.code, 0, "{args:?}: {done:?}");
        serde_json::from_str(&done.out).unwrap()
    }

    /// Sends SIGTERM. Returns the exit code and the rest of standard output.
    pub(crate) fn terminate(mut self) -> (Option<i32>, String) {
        signal(&self.child, rustix::process::Signal::TERM);
        let status = eventually("the replica ends", || self.child.try_wait().unwrap());
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        (status.code(), rest)
    }
}

pub(crate) fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs a command to its end.
pub(crate) fn run(mut command: Command, input: &str) -> Done {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that does not read its input may already have ended.
    drop(stdin.write_all(input.as_bytes()));
    drop(stdin);
    let pid = rustix::process::Pid::from_child(&child);
    let (sender, ended) = sync_channel(1);
    thread::spawn(move || sender.send(child.wait_with_output()));
    let Ok(output) = ended.recv_timeout(COMMAND_MAX) else {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        panic!("not within {COMMAND_MAX:?}: {command:?}");
    };
    let Output { status, stdout, stderr } = output.unwrap();
    // Whether a command shows its progress depends on the speed of the machine.
    let is_result = |line: &&str| !line.starts_with("progress: ");
    let stderr = String::from_utf8(stderr).unwrap();
    Done {
        code: status.code().unwrap(),
        out: String::from_utf8(stdout).unwrap(),
        err: stderr.split_inclusive('\n').filter(is_result).collect(),
    }
}

/// Returns the complete lines of a log. A replica may be writing the last line.
pub(crate) fn log_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap();
    text.rsplit_once('\n').map(|(lines, _)| lines.to_owned()).unwrap_or_default()
}

/// Waits until a log has a text, and returns its lines. A replica writes a line some time after the event.
pub(crate) fn logged(log: &Path, text: &str) -> String {
    let what = format!("{text:?} in {}", log.display());
    eventually(&what, || Some(log_lines(log)).filter(|lines| lines.contains(text)))
}

/// Returns a manifest with clusters.
pub(crate) fn clusters(names: &[&str], timeout: &str) -> String {
    let cluster = |name: &&str| {
        format!(
            "- \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: {name}\n  \
             connect_timeout: {timeout}\n"
        )
    };
    format!("resources:\n{}", names.iter().map(cluster).collect::<String>())
}

/// Returns the status and the body of a `GET` request.
pub(crate) fn http_get(admin: &str, path: &str) -> (u16, String) {
    // The answer of HTTP/1.0 has no chunks.
    http(admin, &format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n"))
}

/// Returns the status and the body of the answer to a `POST` request with JSON.
pub(crate) fn http_post(address: &str, path: &str, json: &str) -> (u16, String) {
    http_post_as(address, path, None, json)
}

/// [`http_post`], with a token.
pub(crate) fn http_post_as(
    address: &str,
    path: &str,
    token: Option<&str>,
    json: &str,
) -> (u16, String) {
    let token = token.map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
    let (len, of) = (json.len(), "content-type: application/json\r\ncontent-length");
    let headers = format!("host: localhost\r\n{token}{of}: {len}");
    http(address, &format!("POST {path} HTTP/1.0\r\n{headers}\r\n\r\n{json}"))
}

/// Sends a request, and returns the status and the body of the answer.
pub(crate) fn http(address: &str, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split_whitespace().nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, body.to_owned())
}
