//! The resources that a test writes, and the ways to write them.

use std::process::Stdio;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, process::Command};

/// The characters of `alt_stat_name`, of which the marker is a part.
const STAT_NAME_CHARS: usize = 200;
/// The approximate size of an encoded endpoint.
const ENDPOINT_BYTES: usize = 22;

/// Writes the resources of a test.
pub trait Writer: Send + Sync {
    /// Prepares the server, and writes the first state.
    fn prepare(&self, resources: Vec<Value>) -> BoxFuture<'_, Result<(), String>>;

    /// Writes changed resources in one transaction.
    fn write(&self, resources: Vec<Value>) -> BoxFuture<'_, Result<(), String>>;

    /// Deletes everything that the test wrote.
    fn clean_up(&self) -> BoxFuture<'_, Result<(), String>>;
}

/// Runs a shell command for each transaction, with the resources as JSON on its standard input.
#[derive(Debug)]
pub struct CommandWriter {
    command: String,
}

impl CommandWriter {
    /// Returns a writer that runs a command.
    #[must_use]
    pub fn new(command: String) -> Self {
        Self { command }
    }

    /// Runs the command. `step` is the value of `CHANCERY_LOADTEST_STEP`.
    async fn run(&self, step: &str, resources: &[Value]) -> Result<(), String> {
        let input = json!({"resources": resources}).to_string();
        run_command(&self.command, &[("CHANCERY_LOADTEST_STEP", step)], input.as_bytes()).await
    }
}

impl Writer for CommandWriter {
    fn prepare(&self, resources: Vec<Value>) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move { self.run("prepare", &resources).await })
    }

    fn write(&self, resources: Vec<Value>) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move { self.run("write", &resources).await })
    }

    fn clean_up(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move { self.run("clean-up", &[]).await })
    }
}

/// Runs a shell command with an input, and waits for its end.
pub(crate) async fn run_command(
    command: &str,
    variables: &[(&str, &str)],
    input: &[u8],
) -> Result<(), String> {
    let mut child = Command::new("sh")
        .args(["-c", command])
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("cannot run `sh`: {error}"))?;
    if let Some(mut pipe) = child.stdin.take() {
        // A command that does not read its input closes the pipe.
        drop(pipe.write_all(input).await);
    }
    let output = child.wait_with_output().await.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().last().unwrap_or_default();
    Err(format!("`{command}` ended with {}: {line}", output.status))
}

/// Returns a cluster of about `n_bytes` bytes that contains a marker.
pub(crate) fn cluster(name: &str, marker: &str, n_bytes: usize) -> Value {
    let stat_name = format!("{marker:x<STAT_NAME_CHARS$}");
    let n = n_bytes.saturating_sub(stat_name.len() + 2 * name.len()) / ENDPOINT_BYTES;
    let endpoint = |n: usize| {
        let address = format!("10.{}.{}.{}", n / 65_536 % 256, n / 256 % 256, n % 256);
        json!({"endpoint": {"address": {"socket_address": {
            "address": address, "port_value": 1024 + n % 60_000,
        }}}})
    };
    let endpoints: Vec<Value> = (0..n.max(1)).map(endpoint).collect();
    json!({
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "alt_stat_name": stat_name,
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn command_reads_resources_and_reports_its_failure() {
        let dir = std::env::temp_dir().join(format!("chancery-writer-{}", std::process::id()));
        let command = format!("cat > {0}; test $CHANCERY_LOADTEST_STEP = write", dir.display());
        let writer = CommandWriter::new(command);
        assert_eq!(writer.write(vec![json!({"name": "a"})]).await, Ok(()));
        let text = std::fs::read_to_string(&dir).unwrap();
        std::fs::remove_file(&dir).unwrap();
        assert_eq!(text, r#"{"resources":[{"name":"a"}]}"#);
        let failing = CommandWriter::new("echo no leader >&2; exit 3".to_owned());
        let error = failing.clean_up().await.unwrap_err();
        assert!(error.ends_with("ended with exit status: 3: no leader"), "{error}");
    }

    #[test]
    fn cluster_has_about_the_wanted_size() {
        let of = |n_bytes| {
            let cluster = cluster("c-1", "m", n_bytes);
            cluster["load_assignment"]["endpoints"][0]["lb_endpoints"].as_array().unwrap().len()
        };
        assert_eq!((of(0), of(1000)), (1, 36));
    }
}
