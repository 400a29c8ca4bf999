//! Area SOTW: wildcard subscriptions and their transitions.

use super::row::{ADS, BOTH, Row, row};
use crate::{
    ctx::Ctx,
    kind::Kind::{Cds, Eds, Lds, Rds},
    outcome::{Outcome, ensure},
    stream::{RequestFields, Variant::Sotw},
};

pub(super) const ROWS: &[Row] = &[
    row!(
        "wildcard/by-star",
        Protocol,
        BOTH,
        ["SOTW-60"],
        "The name * subscribes to all clusters.",
        star
    ),
    row!(
        "wildcard/star-ends-the-legacy-rule",
        Protocol,
        BOTH,
        ["SOTW-62"],
        "After a request for *, an empty list subscribes to nothing.",
        star_then_empty
    ),
    row!(
        "wildcard/name-beside-wildcard",
        Protocol,
        BOTH,
        ["SOTW-63", "SOTW-67"],
        "A name beside the wildcard keeps the wildcard.",
        add_name
    ),
    row!(
        "wildcard/ends-with-names",
        Protocol,
        BOTH,
        ["SOTW-64"],
        "A request with names only ends the wildcard.",
        end_wildcard
    ),
    row!(
        "wildcard/empty-list-after-names",
        Protocol,
        BOTH,
        ["SOTW-47", "SOTW-62", "SOTW-65"],
        "An empty list after names subscribes to nothing, although the first list was empty.",
        full_circle
    ),
    row!(
        "wildcard/missing-name-beside-wildcard",
        Protocol,
        BOTH,
        ["SOTW-67", "SOTW-77"],
        "A missing name beside the wildcard arrives when it is created.",
        missing_beside
    ),
    row!(
        "wildcard/is-per-stream",
        Protocol,
        BOTH,
        ["SOTW-66"],
        "A new stream may start with the legacy wildcard again.",
        per_stream
    ),
    row!(
        "wildcard/is-per-type",
        Protocol,
        ADS,
        ["SOTW-66"],
        "A legacy wildcard of one type does not affect another type.",
        per_type
    ),
    row!(
        "wildcard/not-for-endpoints",
        Practice,
        BOTH,
        ["SOTW-68"],
        "An empty first list subscribes to no endpoints. A later name is answered.",
        not_eds
    ),
    row!(
        "wildcard/not-for-routes",
        Practice,
        BOTH,
        ["SOTW-68"],
        "An empty first list subscribes to no routes. A later name is answered.",
        not_rds
    ),
    row!(
        "wildcard/empty-view-is-answered",
        Practice,
        BOTH,
        ["SOTW-69"],
        "A wildcard request is answered although there is no resource.",
        empty_view
    ),
];

async fn star(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A", "B"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["*"])).await;
    stream.take("SOTW-60", Cds, &["*"], &[("A", 1), ("B", 1)]).await?;
    ctx.set(Cds, "C", 1).await?;
    stream.take("SOTW-60", Cds, &["*"], &[("A", 1), ("B", 1), ("C", 1)]).await.map(drop)
}

async fn star_then_empty(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["*"])).await;
    let reply = stream.exactly("SOTW-60", Cds, &[("A", 1)]).await?;
    stream.ask(RequestFields::ack(&reply, &[])).await;
    stream.quiet("SOTW-62", "no response to an empty list after *").await?;
    let expected = ("SOTW-62", "no response after an empty list");
    ctx.change_unseen(&mut stream, expected, &[], &[(Cds, "A")]).await
}

async fn add_name(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A", "B"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &[])).await;
    let reply = stream.exactly("SOTW-61", Cds, &[("A", 1), ("B", 1)]).await?;
    stream.ask(RequestFields::ack(&reply, &["*", "A"])).await;
    let both = [("A", 1), ("B", 1)];
    stream.take("SOTW-63", Cds, &["*", "A"], &both).await?;
    ctx.set(Cds, "B", 2).await?;
    stream.exactly("SOTW-63", Cds, &[("A", 1), ("B", 2)]).await.map(drop)
}

async fn end_wildcard(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A", "B"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["*", "A"])).await;
    let reply = stream.exactly("SOTW-67", Cds, &[("A", 1), ("B", 1)]).await?;
    stream.ask(RequestFields::ack(&reply, &["A"])).await;
    // A server may answer the smaller subscription.
    if let Some(reply) = stream.maybe("SOTW-64").await? {
        reply.exactly("SOTW-64", Cds, &[("A", 1)])?;
        stream.ack(&reply, &["A"]).await;
    }
    let expected = ("SOTW-64", "no response for a resource that only the wildcard had");
    ctx.change_unseen(&mut stream, expected, &["A"], &[(Cds, "B")]).await?;
    ctx.set(Cds, "A", 2).await?;
    stream.exactly("SOTW-64", Cds, &[("A", 2)]).await.map(drop)
}

async fn full_circle(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A", "B"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &[])).await;
    let both = [("A", 1), ("B", 1)];
    let first = stream.exactly("SOTW-61", Cds, &both).await?;
    stream.ask(RequestFields::ack(&first, &["*", "A"])).await;
    // Awaited without the quiet time: a late response would look like one to the empty list.
    let mut last = stream.take("SOTW-63", Cds, &["*", "A"], &both).await?;
    for names in [&["A"][..], &[]] {
        stream.ask(RequestFields::ack(&last, names)).await;
        if let Some(reply) = stream.maybe("SOTW-65").await? {
            ensure("SOTW-47", !names.is_empty(), "no response to an empty list", || {
                reply.to_string()
            })?;
            stream.ack(&reply, names).await;
            last = reply;
        }
    }
    let expected = ("SOTW-65", "no response, because nothing is subscribed");
    ctx.change_unseen(&mut stream, expected, &[], &[(Cds, "A"), (Cds, "B")]).await
}

async fn missing_beside(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["*", "Z"])).await;
    stream.take("SOTW-67", Cds, &["*", "Z"], &[("A", 1)]).await?;
    ctx.set(Cds, "Z", 1).await?;
    stream.exactly("SOTW-77", Cds, &[("A", 1), ("Z", 1)]).await.map(drop)
}

async fn per_stream(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A", "B"]).await?;
    let mut first = ctx.open(Sotw, Cds).await?;
    first.ask(RequestFields::names(Cds, &["A"])).await;
    let named = first.take("SOTW-41", Cds, &["A"], &[("A", 1)]).await?;
    drop(first);
    let mut second = ctx.open(Sotw, Cds).await?;
    second.ask(RequestFields { version: &named.version, ..RequestFields::names(Cds, &[]) }).await;
    second.exactly("SOTW-66", Cds, &[("A", 1), ("B", 1)]).await.map(drop)
}

async fn per_type(ctx: Ctx) -> Outcome {
    ctx.publish(&[(Cds, "A", 1), (Lds, "A", 1), (Lds, "B", 1)]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    stream.take("SOTW-41", Cds, &["A"], &[("A", 1)]).await?;
    stream.ask(RequestFields::names(Lds, &[])).await;
    stream.exactly("SOTW-66", Lds, &[("A", 1), ("B", 1)]).await.map(drop)
}

async fn not_eds(ctx: Ctx) -> Outcome {
    ctx.given(Eds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Eds).await?;
    stream.ask(RequestFields::names(Eds, &[])).await;
    stream.quiet("SOTW-68", "no response to an empty list of endpoints").await?;
    stream.ask(RequestFields::names(Eds, &["A"])).await;
    stream.exactly("SOTW-68", Eds, &[("A", 1)]).await.map(drop)
}

async fn not_rds(ctx: Ctx) -> Outcome {
    ctx.given(Rds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Rds).await?;
    stream.ask(RequestFields::names(Rds, &[])).await;
    stream.quiet("SOTW-68", "no response to an empty list of routes").await?;
    stream.ask(RequestFields::names(Rds, &["A"])).await;
    stream.exactly("SOTW-68", Rds, &[("A", 1)]).await.map(drop)
}

async fn empty_view(ctx: Ctx) -> Outcome {
    // The node is known, and has resources of another type.
    ctx.publish(&[(Eds, "A", 1), (Cds, "A", 0)]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &[])).await;
    stream.exactly("SOTW-69", Cds, &[]).await.map(drop)
}
