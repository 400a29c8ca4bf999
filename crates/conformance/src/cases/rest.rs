//! Area REST: polling with JSON.

use http::{Method, StatusCode};
use serde_json::json;

use super::row::{ADS, Row, row};
use crate::{
    ctx::Ctx,
    kind::Kind::{self, Cds, Eds},
    outcome::{Outcome, Stop, ensure, violation},
    rest::{Poll, Polled, send},
};

pub(super) const ROWS: &[Row] = &[
    row!(
        "each-type",
        Protocol,
        ADS,
        ["REST-01", "REST-02", "REST-17", "REST-21", "REST-25"],
        "Each type with a SotW method has its path, which serves the named resource in JSON.",
        each_type
    ),
    row!("http2", Decision, ADS, ["REST-23"], "Polls work over HTTP/2 too.", http2),
    row!(
        "both-spellings",
        Practice,
        ADS,
        ["REST-03", "REST-06", "REST-21"],
        "Requests may use either spelling of field names, unknown fields, and no content type.",
        spellings
    ),
    row!(
        "contradicting-type",
        Practice,
        ADS,
        ["REST-08"],
        "A type_url is optional, and one that contradicts the path is answered with 400.",
        contradiction
    ),
    row!(
        "unserved-paths",
        Protocol,
        ADS,
        ["REST-09", "DELTA-74", "SVC-26"],
        "Aggregated, delta and delta-only discovery have no REST path: 404.",
        unserved
    ),
    row!(
        "current-version-is-304",
        Practice,
        ADS,
        ["REST-10", "REST-11"],
        "A poll with the current version receives 304 without a body.",
        not_modified
    ),
    row!(
        "change-is-sent",
        Protocol,
        ADS,
        ["REST-11", "REST-13"],
        "A poll with an earlier version receives the changed resource.",
        change
    ),
    row!(
        "added-name-is-a-change",
        Decision,
        ADS,
        ["REST-12"],
        "A poll with the current version and a further name receives both resources.",
        added_name
    ),
    row!(
        "empty-list-of-clusters",
        Protocol,
        ADS,
        ["REST-18"],
        "A poll for clusters without names receives all of them.",
        wildcard
    ),
    row!(
        "empty-list-of-endpoints",
        Decision,
        ADS,
        ["REST-19"],
        "A poll for endpoints without names receives none of them.",
        no_wildcard
    ),
    row!(
        "errors",
        Decision,
        ADS,
        ["REST-20"],
        "Malformed JSON is answered with 400, another HTTP method with 405.",
        errors
    ),
    row!(
        "repeated-version",
        Practice,
        ADS,
        ["REST-15"],
        "A client that repeats an old version receives the response again.",
        repeated
    ),
];

/// Sends a poll that must be answered with 200.
async fn ok(ctx: &Ctx, requirement: &str, poll: Poll<'_>) -> Result<Polled, Stop> {
    let path = poll.path.to_owned();
    let polled = match send(ctx, poll).await {
        Err(Stop::Failed(failed)) if failed.requirement == "REST-01" => {
            return Err(Stop::Skipped(format!(
                "the server has no REST at {path}: {}",
                failed.observed
            )));
        }
        polled => polled?,
    };
    match polled.status {
        StatusCode::OK => Ok(polled),
        StatusCode::NOT_FOUND => {
            Err(Stop::Skipped(format!("the server does not serve the REST path {path}")))
        }
        _ => violation(requirement, "status 200", polled.to_string()),
    }
}

fn has(polled: &Polled, requirement: &str, kind: Kind, expected: &[(&str, u32)]) -> Outcome {
    let found = polled.resources(kind);
    let wanted: Vec<(String, Option<u32>)> =
        expected.iter().map(|(name, generation)| ((*name).to_owned(), Some(*generation))).collect();
    let text = format!("a response {}", crate::reply::listed(kind, expected));
    ensure(requirement, found == wanted, text, || polled.to_string())
}

/// Fails unless a poll for A receives it in generation 1.
async fn serves(ctx: &Ctx, kind: Kind) -> Outcome {
    let polled = ok(ctx, "REST-01", Poll::new(ctx, kind, &["A"], "")).await?;
    has(&polled, "REST-17", kind, &[("A", 1)])
}

async fn each_type(ctx: Ctx) -> Outcome {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.rest_path().is_some()) {
        ctx.publish(&[(kind, "A", 1), (kind, "B", 1)]).await?;
        let polled = ok(&ctx, "REST-01", Poll::new(&ctx, kind, &["A"], "")).await?;
        has(&polled, "REST-17", kind, &[("A", 1)])?;
        let is_json = polled.content_type.starts_with("application/json");
        ensure("REST-21", is_json, "content-type application/json", || {
            polled.content_type.clone()
        })?;
        ensure("REST-25", !polled.version().is_empty(), "a version_info", || polled.to_string())?;
        let url = polled.text("type_url", "typeUrl");
        ensure("REST-25", url == kind.url(), format!("type_url {:?}", kind.url()), || url.clone())?;
    }
    Ok(())
}

async fn http2(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    ok(&ctx, "REST-01", Poll::new(&ctx, Cds, &["A"], "")).await?;
    let poll = Poll { is_http2: true, ..Poll::new(&ctx, Cds, &["A"], "") };
    let polled = send(&ctx, poll).await.or_else(|stop| match stop {
        Stop::Failed(failed) => violation("REST-23", "a response over HTTP/2", failed.observed),
        other => Err(other),
    })?;
    has(&polled, "REST-23", Cds, &[("A", 1)])
}

async fn spellings(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    ok(&ctx, "REST-01", Poll::new(&ctx, Cds, &["A"], "")).await?;
    let body = json!({
        "versionInfo": "", "resourceNames": [ctx.full("A")], "fieldOfTheFuture": {"x": [1]},
        "node": {"id": ctx.node_id(), "cluster": "conformance", "userAgentName": "kit"},
    });
    let polled = ok(&ctx, "REST-03", Poll { content_type: false, ..Poll::with(Cds, body) }).await?;
    has(&polled, "REST-03", Cds, &[("A", 1)])
}

async fn contradiction(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    serves(&ctx, Cds).await?;
    for (url, status) in [(Cds.url(), StatusCode::OK), (Eds.url(), StatusCode::BAD_REQUEST)] {
        let body = json!({
            "type_url": url, "resource_names": [ctx.full("A")],
            "node": {"id": ctx.node_id(), "cluster": "conformance"},
        });
        let poll = Poll::with(Cds, body);
        let polled = match status {
            StatusCode::OK => ok(&ctx, "REST-08", poll).await?,
            _ => send(&ctx, poll).await?,
        };
        let expected = format!("status {status} for type_url {url:?}");
        ensure("REST-08", polled.status == status, expected, || polled.to_string())?;
    }
    Ok(())
}

async fn unserved(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    serves(&ctx, Cds).await?;
    let poll = Poll::new(&ctx, Cds, &["A"], "");
    for path in [
        "/v3/discovery:aggregated",
        "/v3/discovery:virtual_hosts",
        "/v3/discovery:locality_endpoints",
        "/v3/delta_discovery:clusters",
        "/v3/discovery:no-such-type",
    ] {
        let polled = send(&ctx, Poll { path, ..poll.clone() }).await?;
        let holds = polled.status == StatusCode::NOT_FOUND;
        ensure("REST-09", holds, format!("status 404 for {path}"), || polled.to_string())?;
    }
    Ok(())
}

async fn not_modified(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let first = ok(&ctx, "REST-01", Poll::new(&ctx, Cds, &[], "")).await?;
    has(&first, "REST-18", Cds, &[("A", 1)])?;
    let version = first.version();
    let polled = send(&ctx, Poll::new(&ctx, Cds, &[], &version)).await?;
    let holds = polled.status == StatusCode::NOT_MODIFIED && polled.body.is_empty();
    ensure("REST-10", holds, "status 304 without a body", || polled.to_string())
}

async fn change(ctx: Ctx) -> Outcome {
    ctx.given(Eds, &["A"]).await?;
    let first = ok(&ctx, "REST-01", Poll::new(&ctx, Eds, &["A"], "")).await?;
    ctx.set(Eds, "A", 2).await?;
    let second = ok(&ctx, "REST-11", Poll::new(&ctx, Eds, &["A"], &first.version())).await?;
    has(&second, "REST-11", Eds, &[("A", 2)])?;
    let holds = first.version() != second.version();
    ensure("REST-11", holds, "a new version_info", || second.to_string())
}

async fn added_name(ctx: Ctx) -> Outcome {
    ctx.given(Eds, &["A", "B"]).await?;
    let version = ok(&ctx, "REST-01", Poll::new(&ctx, Eds, &["A"], "")).await?.version();
    let polled = send(&ctx, Poll::new(&ctx, Eds, &["A", "B"], &version)).await?;
    has(&polled, "REST-12", Eds, &[("A", 1), ("B", 1)])
}

async fn wildcard(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A", "B"]).await?;
    let polled = ok(&ctx, "REST-01", Poll::new(&ctx, Cds, &[], "")).await?;
    has(&polled, "REST-18", Cds, &[("A", 1), ("B", 1)])
}

async fn no_wildcard(ctx: Ctx) -> Outcome {
    ctx.given(Eds, &["A"]).await?;
    serves(&ctx, Eds).await?;
    let polled = send(&ctx, Poll::new(&ctx, Eds, &[], "")).await?;
    let allowed = [StatusCode::OK, StatusCode::NOT_MODIFIED].contains(&polled.status);
    let holds = allowed && polled.resources(Eds).is_empty();
    ensure("REST-19", holds, "status 304, or 200 without resources", || polled.to_string())
}

async fn errors(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    serves(&ctx, Cds).await?;
    let poll = Poll::new(&ctx, Cds, &["A"], "");
    let malformed = Poll { body: "{".to_owned(), ..poll.clone() };
    let get = Poll { method: Method::GET, body: String::new(), ..poll };
    for (poll, status) in
        [(malformed, StatusCode::BAD_REQUEST), (get, StatusCode::METHOD_NOT_ALLOWED)]
    {
        let expected = format!("status {status} for {} {:?}", poll.method, poll.body);
        let polled = send(&ctx, poll).await?;
        ensure("REST-20", polled.status == status, expected, || polled.to_string())?;
    }
    Ok(())
}

async fn repeated(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let version = ok(&ctx, "REST-01", Poll::new(&ctx, Cds, &[], "")).await?.version();
    ctx.set(Cds, "A", 2).await?;
    for _ in 0..3 {
        let polled = ok(&ctx, "REST-15", Poll::new(&ctx, Cds, &[], &version)).await?;
        has(&polled, "REST-15", Cds, &[("A", 2)])?;
    }
    Ok(())
}
