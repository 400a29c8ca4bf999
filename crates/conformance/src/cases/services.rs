//! Area SVC: services, methods, type URLs and messages.

use std::sync::Arc;

use tonic::Code;

use super::row::{ADS, OWN, Row, of, row, word};
use crate::{
    case::{Basis, Case},
    ctx::Ctx,
    kind::Kind::{self, Cds, Eds, Lds, Vhds},
    outcome::{Outcome, ensure},
    reply::unexpected,
    stream::{
        RequestFields, Stream, StreamService,
        Variant::{self, Delta, Sotw},
    },
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in Kind::ALL {
        for variant in Variant::BOTH {
            for service in StreamService::BOTH {
                if variant == Sotw && !kind.has_sotw() {
                    continue;
                }
                cases.push(Case {
                    name: format!("services/{}/{}/{}", variant.name(), service.name(), word(kind)),
                    requirements: &[
                        "SVC-01", "SVC-02", "SVC-03", "SVC-16", "SVC-17", "SVC-18", "SVC-22",
                    ],
                    basis: Basis::Protocol,
                    shows: "The service serves a named resource with its content, under its type.",
                    service,
                    check: Arc::new(move |ctx| Box::pin(serves(ctx, variant, kind))),
                });
            }
        }
    }
    cases.extend(of("services", ROWS));
    cases
}

const ROWS: &[Row] = &[
    row!(
        "sotw-type-is-implied",
        Protocol,
        OWN,
        ["SVC-07", "SVC-17"],
        "A service of one type accepts an empty type_url, and names the type in its response.",
        sotw_implied_type
    ),
    row!(
        "delta-type-is-implied",
        Protocol,
        OWN,
        ["SVC-07", "SVC-17"],
        "A service of one type accepts an empty type_url, and names the type in its response.",
        delta_implied_type
    ),
    row!(
        "delta-only-type-on-sotw",
        Protocol,
        ADS,
        ["SVC-05"],
        "A SotW request for virtual hosts receives no response, and does not end the stream.",
        delta_only_type
    ),
    row!(
        "type-url-is-case-sensitive",
        Protocol,
        ADS,
        ["SVC-06"],
        "A type URL in another spelling is another type.",
        case_sensitive
    ),
    row!(
        "other-type-on-own-service",
        Decision,
        OWN,
        ["SVC-08"],
        "A service of one type rejects another type with INVALID_ARGUMENT.",
        other_type
    ),
    row!(
        "empty-type-on-ads",
        Practice,
        ADS,
        ["SVC-09"],
        "The aggregated service rejects an empty type_url with INVALID_ARGUMENT.",
        empty_type
    ),
    row!(
        "unknown-type",
        Decision,
        ADS,
        ["SVC-10"],
        "A request for an unknown type does not end the stream.",
        unknown_type
    ),
    row!(
        "unknown-method",
        Decision,
        ADS,
        ["SVC-26"],
        "A method that is not served ends with UNIMPLEMENTED.",
        unknown_method
    ),
];

async fn serves(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    let (requirement, name) = match variant {
        Sotw => ("SVC-01", "A"),
        // The name of a virtual host has the name of its route configuration.
        Delta if kind == Vhds => ("SVC-01", "rc/A"),
        Delta => ("SVC-01", "A"),
    };
    ctx.set(kind, name, 1).await?;
    let mut stream = ctx.open(variant, kind).await?;
    stream.ask(RequestFields::names(kind, &[name])).await;
    let reply = stream.take(requirement, kind, &[name], &[(name, 1)]).await?;
    ctx.set(kind, name, 2).await?;
    let next = stream.take("SOTW-90", kind, &[name], &[(name, 2)]).await?;
    ensure(
        "SOTW-13",
        variant == Delta || next.version != reply.version,
        "a new version with new content",
        || next.to_string(),
    )?;
    stream.quiet("SOTW-25", "no response to an acknowledgment").await
}

async fn implied_type(ctx: Ctx, variant: Variant) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(variant, Cds).await?;
    stream.expect_type(Cds);
    stream.ask(RequestFields { names: &["A"], ..RequestFields::default() }).await;
    stream.exactly("SVC-07", Cds, &[("A", 1)]).await.map(drop)
}

async fn sotw_implied_type(ctx: Ctx) -> Outcome {
    implied_type(ctx, Sotw).await
}

async fn delta_implied_type(ctx: Ctx) -> Outcome {
    implied_type(ctx, Delta).await
}

async fn delta_only_type(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Vhds, &["rc/A"])).await;
    stream.quiet("SVC-05", "no response for a virtual host that does not exist").await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    stream.exactly("SVC-05", Cds, &[("A", 1)]).await.map(drop)
}

/// Expects no response, or an empty one: a server may answer a type that it does not know.
async fn no_resource(stream: &mut Stream, requirement: &str, expected: &str) -> Outcome {
    match stream.maybe(requirement).await? {
        Some(reply) if !reply.items.is_empty() => unexpected(requirement, expected, &reply),
        _ => Ok(()),
    }
}

/// Waits for a response with the cluster `A`. The empty answer for the type that was requested before may come late.
async fn cluster_after_empty(stream: &mut Stream, requirement: &str) -> Outcome {
    let mut reply = stream.next(requirement, "a response CDS [A@1]").await?;
    if reply.type_url != Cds.url() && reply.items.is_empty() {
        reply = stream.next(requirement, "a response CDS [A@1]").await?;
    }
    reply.exactly(requirement, Cds, &[("A", 1)])
}

async fn case_sensitive(ctx: Ctx) -> Outcome {
    ctx.publish(&[(Eds, "A", 1), (Cds, "A", 1)]).await?;
    let mut stream = ctx.open(Sotw, Eds).await?;
    let type_url = Eds.url().to_lowercase();
    stream.ask(RequestFields { type_url, names: &["A"], ..RequestFields::default() }).await;
    no_resource(&mut stream, "SVC-06", "no resource of the type in another spelling").await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    cluster_after_empty(&mut stream, "SVC-06").await
}

async fn other_type(ctx: Ctx) -> Outcome {
    ctx.given(Lds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Lds, &["A"])).await;
    stream.end("SVC-08", Code::InvalidArgument).await
}

async fn empty_type(ctx: Ctx) -> Outcome {
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields { names: &["A"], ..RequestFields::default() }).await;
    stream.end("SVC-09", Code::InvalidArgument).await
}

async fn unknown_type(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    let type_url = "type.googleapis.com/chancery.conformance.Unknown".to_owned();
    stream.ask(RequestFields { type_url, names: &["A"], ..RequestFields::default() }).await;
    no_resource(&mut stream, "SVC-10", "no resource of an unknown type").await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    cluster_after_empty(&mut stream, "SVC-10").await
}

async fn unknown_method(ctx: Ctx) -> Outcome {
    let path = Cds.method("Incremental");
    let mut stream = ctx.open_path(Sotw, &path).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    match stream.end("SVC-26", Code::Unimplemented).await {
        Err(crate::outcome::Stop::Skipped(_)) => Ok(()),
        outcome => outcome,
    }
}
