//! Area ADS: order of types, and the resources that clients wait for while they warm a parent.

use super::row::{ADS, Row, row};
use crate::{
    ctx::Ctx,
    kind::Kind::{self, Cds, Eds, Lds, Rds, Sds},
    outcome::{Outcome, ensure},
    stream::{
        RequestFields, Stream,
        Variant::{self, Delta, Sotw},
    },
};

/// The types of an aggregated stream in the order in which one commit is sent.
const ORDER: [Kind; 4] = [Cds, Eds, Lds, Rds];

pub(super) const ROWS: &[Row] = &[
    row!(
        "sotw/order-of-types",
        Protocol,
        ADS,
        ["ADS-03", "ADS-05", "ADS-06"],
        "One commit arrives in the order clusters, endpoints, listeners, routes.",
        sotw_order
    ),
    row!(
        "delta/order-of-types",
        Protocol,
        ADS,
        ["ADS-03", "ADS-05", "ADS-06"],
        "One commit arrives in the order clusters, endpoints, listeners, routes.",
        delta_order
    ),
    row!(
        "sotw/route-leaves-before-cluster",
        Decision,
        ADS,
        ["ADS-08"],
        "A cluster is removed after the route that no longer refers to it.",
        sotw_removal
    ),
    row!(
        "delta/route-leaves-before-cluster",
        Decision,
        ADS,
        ["ADS-08"],
        "A cluster is removed after the route that no longer refers to it.",
        delta_removal
    ),
    row!(
        "sotw/endpoints-follow-changed-cluster",
        Practice,
        ADS,
        ["ADS-11"],
        "A changed cluster is followed by its endpoints, although these have not changed.",
        sotw_warming
    ),
    row!(
        "delta/endpoints-follow-changed-cluster",
        Practice,
        ADS,
        ["ADS-11"],
        "A changed cluster is followed by its endpoints, although these have not changed.",
        delta_warming
    ),
    row!(
        "sotw/unknown-endpoints-are-normal",
        Practice,
        ADS,
        ["ADS-16", "ADS-20"],
        "A request for endpoints of unknown clusters receives the known ones.",
        sotw_unknown
    ),
    row!(
        "delta/unknown-endpoints-are-normal",
        Practice,
        ADS,
        ["ADS-16", "ADS-20"],
        "A request for endpoints of unknown clusters receives the known ones.",
        delta_unknown
    ),
    row!(
        "sotw/secret-does-not-wait",
        Practice,
        ADS,
        ["ADS-19"],
        "A requested secret is sent although no other type is acknowledged.",
        sotw_secret
    ),
    row!(
        "delta/secret-does-not-wait",
        Practice,
        ADS,
        ["ADS-19"],
        "A requested secret is sent although no other type is acknowledged.",
        delta_secret
    ),
    row!(
        "sotw/acknowledgments-are-independent",
        Protocol,
        ADS,
        ["ADS-01"],
        "A rejection of clusters does not prevent updates of listeners.",
        sotw_independent
    ),
    row!(
        "sotw/two-streams-of-one-node",
        Protocol,
        ADS,
        ["ADS-02"],
        "Two streams of one node receive the same change.",
        sotw_two_streams
    ),
    row!(
        "delta/two-streams-of-one-node",
        Protocol,
        ADS,
        ["ADS-02"],
        "Two streams of one node receive the same change.",
        delta_two_streams
    ),
    row!(
        "sotw/unacknowledged-type-delays-for-a-bounded-time",
        Decision,
        ADS,
        ["ADS-22"],
        "A type that is not acknowledged delays later types for a bounded time only.",
        bounded_delay
    ),
];

/// Opens an aggregated stream that has acknowledged resources of all types of [`ORDER`]. Returns the stream with the
/// subscribed names.
async fn established(ctx: &Ctx, variant: Variant) -> Result<Stream, crate::outcome::Stop> {
    let all: Vec<_> = ORDER.iter().map(|kind| (*kind, name(*kind), 1)).collect();
    ctx.publish(&all).await?;
    let mut stream = ctx.open(variant, Cds).await?;
    for kind in ORDER {
        let names = names(kind);
        stream.ask(RequestFields::names(kind, names)).await;
        stream.take("ADS-23", kind, names, &[(name(kind), 1)]).await?;
    }
    Ok(stream)
}

/// The resource of each type. The route of generation 1 refers to the cluster.
fn name(kind: Kind) -> &'static str {
    if matches!(kind, Cds | Eds) { "cluster-1" } else { "A" }
}

/// The subscription of each type, in either variant.
fn names(kind: Kind) -> &'static [&'static str] {
    match kind {
        // An empty first list is the wildcard that every server knows.
        Cds | Lds => &[],
        Eds => &["cluster-1"],
        _ => &["A"],
    }
}

async fn order(ctx: Ctx, variant: Variant) -> Outcome {
    let mut stream = established(&ctx, variant).await?;
    let all: Vec<_> = ORDER.iter().map(|kind| (*kind, name(*kind), 2)).collect();
    ctx.publish(&all).await?;
    let mut seen: Vec<Kind> = Vec::new();
    let expected = "clusters, endpoints, listeners, routes";
    while seen.len() < ORDER.len() {
        let reply = stream.next("ADS-03", expected).await?;
        let Some(kind) = reply.kind() else { continue };
        let changed = reply.item(name(kind)).and_then(|item| item.generation) == Some(2);
        stream.ack(&reply, names(kind)).await;
        if changed && !seen.contains(&kind) {
            seen.push(kind);
        }
    }
    let labels: Vec<&str> = seen.iter().map(|kind| kind.label()).collect();
    ensure("ADS-03", seen == ORDER, expected, || labels.join(", "))
}

async fn sotw_order(ctx: Ctx) -> Outcome {
    order(ctx, Sotw).await
}

async fn delta_order(ctx: Ctx) -> Outcome {
    order(ctx, Delta).await
}

/// Moves the route from `cluster-1` to `cluster-2`, and removes the first cluster in the same commit.
async fn removal(ctx: Ctx, variant: Variant) -> Outcome {
    let mut stream = established(&ctx, variant).await?;
    ctx.publish(&[
        (Cds, "cluster-1", 0),
        (Cds, "cluster-2", 1),
        (Eds, "cluster-1", 0),
        (Eds, "cluster-2", 1),
        (Rds, "A", 2),
    ])
    .await?;
    let expected = "the new cluster, then the route, then the removal of the old cluster";
    let (mut has_new, mut has_route) = (false, false);
    loop {
        let reply = stream.next("ADS-08", expected).await?;
        let gone = match variant {
            Sotw => reply.kind() == Some(Cds) && reply.item("cluster-1").is_none(),
            Delta => reply.kind() == Some(Cds) && reply.removed.iter().any(|it| it == "cluster-1"),
        };
        let early = || format!("{reply}, before the route");
        ensure("ADS-08", !gone || has_route, expected, early)?;
        has_new |= reply.kind() == Some(Cds) && reply.item("cluster-2").is_some();
        if reply.kind() == Some(Rds) {
            let early = || format!("{reply}, before the cluster to which it refers");
            ensure("ADS-06", has_new, expected, early)?;
            has_route = true;
        }
        if gone {
            return Ok(());
        }
        if let Some(kind) = reply.kind() {
            stream.ack(&reply, names(kind)).await;
        }
        if has_new && reply.kind() == Some(Cds) {
            // A client requests the endpoints of a new cluster.
            stream.ask(RequestFields::names(Eds, &["cluster-1", "cluster-2"])).await;
        }
    }
}

async fn sotw_removal(ctx: Ctx) -> Outcome {
    removal(ctx, Sotw).await
}

async fn delta_removal(ctx: Ctx) -> Outcome {
    removal(ctx, Delta).await
}

async fn warming(ctx: Ctx, variant: Variant) -> Outcome {
    let mut stream = established(&ctx, variant).await?;
    ctx.set(Cds, "cluster-1", 2).await?;
    stream.take("ADS-11", Cds, names(Cds), &[("cluster-1", 2)]).await?;
    stream.take("ADS-11", Eds, names(Eds), &[("cluster-1", 1)]).await.map(drop)
}

async fn sotw_warming(ctx: Ctx) -> Outcome {
    warming(ctx, Sotw).await
}

async fn delta_warming(ctx: Ctx) -> Outcome {
    warming(ctx, Delta).await
}

async fn unknown(ctx: Ctx, variant: Variant) -> Outcome {
    ctx.given(Eds, &["A"]).await?;
    let mut stream = ctx.open(variant, Eds).await?;
    stream.ask(RequestFields::names(Eds, &["A", "unknown"])).await;
    let reply = stream.next("ADS-16", "a response with A").await?;
    let found = reply.item("A").and_then(|item| item.generation);
    ensure("ADS-16", found == Some(1), "a response with A@1", || reply.to_string())
}

async fn sotw_unknown(ctx: Ctx) -> Outcome {
    unknown(ctx, Sotw).await
}

async fn delta_unknown(ctx: Ctx) -> Outcome {
    unknown(ctx, Delta).await
}

async fn secret(ctx: Ctx, variant: Variant) -> Outcome {
    ctx.publish(&[(Cds, "cluster-1", 1), (Sds, "S", 1)]).await?;
    let mut stream = ctx.open(variant, Cds).await?;
    stream.ask(RequestFields::names(Cds, names(Cds))).await;
    stream.exactly("ADS-23", Cds, &[("cluster-1", 1)]).await?;
    stream.ask(RequestFields::names(Sds, &["S"])).await;
    stream.exactly("ADS-19", Sds, &[("S", 1)]).await.map(drop)
}

async fn sotw_secret(ctx: Ctx) -> Outcome {
    secret(ctx, Sotw).await
}

async fn delta_secret(ctx: Ctx) -> Outcome {
    secret(ctx, Delta).await
}

async fn sotw_independent(ctx: Ctx) -> Outcome {
    ctx.publish(&[(Cds, "A", 1), (Lds, "A", 1)]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    let bad = stream.exactly("SOTW-41", Cds, &[("A", 1)]).await?;
    stream.ask(RequestFields::nack(&bad, &["A"], "")).await;
    stream.ask(RequestFields::names(Lds, &["A"])).await;
    stream.take("ADS-01", Lds, &["A"], &[("A", 1)]).await?;
    ctx.set(Lds, "A", 2).await?;
    stream.exactly("ADS-01", Lds, &[("A", 2)]).await.map(drop)
}

async fn two_streams(ctx: Ctx, variant: Variant) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = ctx.open(variant, Cds).await?;
        stream.ask(RequestFields::names(Cds, &["A"])).await;
        stream.take("ADS-02", Cds, &["A"], &[("A", 1)]).await?;
        streams.push(stream);
    }
    ctx.set(Cds, "A", 2).await?;
    for stream in &mut streams {
        stream.take("ADS-02", Cds, &["A"], &[("A", 2)]).await?;
    }
    Ok(())
}

async fn sotw_two_streams(ctx: Ctx) -> Outcome {
    two_streams(ctx, Sotw).await
}

async fn delta_two_streams(ctx: Ctx) -> Outcome {
    two_streams(ctx, Delta).await
}

async fn bounded_delay(ctx: Ctx) -> Outcome {
    let mut stream = established(&ctx, Sotw).await?;
    ctx.publish(&[(Cds, "cluster-1", 2), (Lds, "A", 2)]).await?;
    // Nothing is acknowledged from here on.
    loop {
        let reply = stream.next("ADS-22", "the listener after a bounded time").await?;
        if reply.kind() == Some(Lds) {
            return reply.exactly("ADS-22", Lds, &[("A", 2)]);
        }
    }
}
