//! The command `health`: requests the probes of the admin port, for containers without a shell.

use axum::body::{Body, to_bytes};
use chancery_model::Printable;
use clap::Args;
use serde_json::{Value, json};
use tokio::time::timeout;
use tonic::codegen::http;
use tower::ServiceExt;

use super::{
    client::{ANSWER_TIMEOUT, Servers, channel, root_cause},
    connector,
};
use crate::{
    answer::{Answer, Output},
    failure::Failure,
};

/// The maximum size of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct Health {
    /// Check whether the replica is ready to serve clients, instead of whether its process works
    #[arg(long)]
    ready: bool,
}

/// The answer of a server.
struct Probed {
    is_good: bool,
    body: Value,
}

/// Asks the servers in order. Succeeds with the first one whose answer is good.
pub(super) async fn run(
    health: &Health,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let (path, word) = if health.ready {
        ("/readyz?format=json", "ready")
    } else {
        ("/healthz?format=json", "healthy")
    };
    let (mut lines, mut last) = (Vec::new(), None);
    for turn in 0..servers.len() {
        let server = servers.name(turn);
        match probe(server, servers, path).await {
            Ok(Probed { is_good: true, body }) => return show(answer, word, &body),
            Ok(Probed { is_good: false, body }) => {
                let reason = body["message"].as_str().unwrap_or("it gives no reason");
                lines.push(format!("the server at {server} is not {word}: {}", Printable(reason)));
                last = Some(body);
            }
            Err(failure) => lines.extend(failure.lines),
        }
    }
    if let Some(body) = last.filter(|_| answer.output != Output::Text) {
        show(answer, word, &body)?;
    }
    Err(Failure::lines(lines))
}

fn show(answer: &mut Answer<'_>, word: &str, body: &Value) -> Result<(), Failure> {
    match answer.output {
        Output::Text | Output::Wide => answer.text(|out| writeln!(out, "{word}")),
        Output::Json | Output::Sarif => answer.json(body),
        Output::Yaml => answer.yaml(body),
    }
}

async fn probe(server: &str, servers: &Servers, path: &str) -> Result<Probed, Failure> {
    let security = servers.security();
    let failed = |reason: &str| {
        Failure::new(format_args!("the server at {server} could not answer: {reason}"))
    };
    let asked = async {
        let channel = channel(server, security).await?;
        let request = http::Request::get(path).body(tonic::body::Body::empty());
        let request = request.map_err(|error| failed(&error.to_string()))?;
        let because = |error: &tonic::transport::Error| {
            let advice = connector::advice(error).or_else(|| security.last_advice());
            failed(&advice.unwrap_or_else(|| root_cause(error)))
        };
        let response = channel.oneshot(request).await.map_err(|error| because(&error))?;
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(Body::new(body), ANSWER_BYTES_MAX).await;
        let bytes = bytes.map_err(|error| failed(&error.to_string()))?;
        Ok(answered(parts.status, &bytes))
    };
    match timeout(ANSWER_TIMEOUT, asked).await {
        Ok(probed) => probed,
        Err(_) => Err(failed(&format!("it has sent nothing for {ANSWER_TIMEOUT:?}"))),
    }
}

/// Reads an answer. A server of another release, or a proxy, may answer in another way.
fn answered(status: http::StatusCode, body: &[u8]) -> Probed {
    let is_good = status == http::StatusCode::OK;
    let body = serde_json::from_slice(body).ok().filter(Value::is_object);
    let body = body.unwrap_or_else(|| json!({"message": format!("it answered {status}")}));
    Probed { is_good, body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_status_200_is_good_and_another_answer_is_quoted() {
        use http::StatusCode as S;
        for (status, body, is_good, message) in [
            (S::OK, r#"{"ready":true}"#, true, None),
            (S::OK, "ready\n", true, Some("it answered 200 OK")),
            (S::SERVICE_UNAVAILABLE, r#"{"ready":false,"message":"busy"}"#, false, Some("busy")),
            (S::NOT_FOUND, "", false, Some("it answered 404 Not Found")),
        ] {
            let probed = answered(status, body.as_bytes());
            assert_eq!((probed.is_good, probed.body["message"].as_str()), (is_good, message));
        }
    }
}
