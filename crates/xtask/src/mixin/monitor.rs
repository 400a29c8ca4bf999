//! A running Prometheus, and the HTTP requests to it and to replicas.

use std::{
    fmt::Write as _,
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::Value;

use crate::{
    paths::Paths,
    proc::{self, Guard},
    setup,
};

/// The time limit for one step.
pub(super) const STEP: Duration = Duration::from_secs(60);

/// A running Prometheus.
#[derive(Debug)]
pub(super) struct Monitor {
    process: Guard,
    web: String,
}

impl Monitor {
    /// Starts Prometheus, which serves its API at `web`. `dir` has its configuration, and receives its data.
    pub(super) fn start(paths: &Paths, dir: &Path, configuration: &str, web: &str) -> Result<Self> {
        let prometheus = setup::prometheus(paths)?;
        let config = dir.join("prometheus.yml");
        fs::write(&config, configuration).context("write the configuration")?;
        let log = fs::File::create(dir.join("prometheus.log")).context("create a log")?;
        let mut command = proc::leashed(&prometheus);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
            .arg(format!("--web.listen-address={web}"))
            .stdout(Stdio::null())
            .stderr(log);
        let process = Guard::spawn("Prometheus", &mut command)?;
        Ok(Self { process, web: web.to_owned() })
    }

    /// Fails if Prometheus has ended.
    pub(super) fn expect_running(&mut self) -> Result<()> {
        self.process.expect_running()
    }

    /// Returns the client of the API.
    pub(super) fn api(&self) -> Api {
        Api { web: self.web.clone() }
    }
}

/// A client of the API of Prometheus.
#[derive(Debug, Clone)]
pub(super) struct Api {
    web: String,
}

impl Api {
    /// Returns the series that a query finds.
    pub(super) fn query(&self, text: &str) -> Result<Vec<Value>> {
        self.result(text, &format!("/api/v1/query?query={}", encoded(text)))
    }

    /// Returns the series that a query finds in the last `range`.
    pub(super) fn query_range(&self, text: &str, range: Duration) -> Result<Vec<Value>> {
        let now = self.query("time()")?;
        let end = now.get(1).and_then(Value::as_str).map(str::parse::<f64>);
        let end = end.context("Prometheus does not tell the time")?.context("parse the time")?;
        let start = end - range.as_secs_f64();
        let times = format!("start={start}&end={end}&step=5");
        self.result(text, &format!("/api/v1/query_range?query={}&{times}", encoded(text)))
    }

    fn result(&self, text: &str, path: &str) -> Result<Vec<Value>> {
        let answer = self.get(path).with_context(|| text.to_owned())?;
        let result = answer["data"]["result"].as_array().cloned();
        result.ok_or_else(|| anyhow!("{text}: {answer}"))
    }

    /// Returns the answer to `GET path`.
    pub(super) fn get(&self, path: &str) -> Result<Value> {
        serde_json::from_str(&get(&self.web, path)?).context("parse the answer of Prometheus")
    }
}

fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        write!(encoded, "%{byte:02X}").expect("writing to a String cannot fail");
        encoded
    })
}

/// Returns the body of the answer to `GET path`, if the status is 200.
pub(super) fn get(address: &str, path: &str) -> Result<String> {
    get_with(address, path, "", STEP)
}

/// Returns the body of the answer to `GET path` with more header lines, if the status is 200.
pub(super) fn get_with(
    address: &str,
    path: &str,
    headers: &str,
    limit: Duration,
) -> Result<String> {
    let address: SocketAddr = address.parse().context("parse an address")?;
    let mut stream = TcpStream::connect_timeout(&address, limit).context("connect")?;
    stream.set_read_timeout(Some(limit)).context("set a time limit")?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n{headers}\r\n")
        .context("send a request")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("read an answer")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer has no body")?;
    ensure!(head.split(' ').nth(1) == Some("200"), "{path}: {head}\n{body}");
    Ok(body.to_owned())
}

/// Repeats a step until it has a result, for at most [`STEP`].
pub(super) fn eventually<T>(failure: &str, step: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    proc::eventually(STEP, failure, step)
}
