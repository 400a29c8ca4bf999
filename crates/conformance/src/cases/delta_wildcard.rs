//! Area DELTA: wildcard subscriptions and their transitions.

use super::row::{BOTH, Row, row};
use crate::{
    ctx::Ctx,
    kind::Kind::{Cds, Eds},
    outcome::{Outcome, Stop, violation},
    reply::Reply,
    stream::{RequestFields, Stream, Variant::Delta},
};

pub(super) const ROWS: &[Row] = &[
    row!(
        "wildcard/by-star",
        Protocol,
        BOTH,
        ["DELTA-30"],
        "The name * subscribes to all clusters, and to later ones.",
        star
    ),
    row!(
        "wildcard/by-empty-lists",
        Protocol,
        BOTH,
        ["DELTA-31", "DELTA-37"],
        "An opening request with empty lists subscribes to all clusters.",
        empty_lists
    ),
    row!(
        "wildcard/names-keep-it",
        Protocol,
        BOTH,
        ["DELTA-31"],
        "A name beside the legacy wildcard keeps the wildcard.",
        name_keeps
    ),
    row!(
        "wildcard/never-returns",
        Protocol,
        BOTH,
        ["DELTA-32", "DELTA-33"],
        "After a subscription to names, an empty request is not a wildcard.",
        never_returns
    ),
    row!(
        "wildcard/not-with-unsubscribe-only",
        Protocol,
        BOTH,
        ["DELTA-34"],
        "An opening request that only unsubscribes starts no wildcard. A later name is answered.",
        unsubscribe_only
    ),
    row!(
        "wildcard/unsubscribe-of-named",
        Protocol,
        BOTH,
        ["DELTA-24"],
        "Unsubscribing a name beside the wildcard is answered with the resource.",
        named_unsubscribe
    ),
    row!(
        "wildcard/unsubscribe-of-missing-named",
        Protocol,
        BOTH,
        ["DELTA-24"],
        "Unsubscribing a missing name beside the wildcard is answered with its removal.",
        missing_unsubscribe
    ),
    row!(
        "wildcard/end-keeps-names",
        Protocol,
        BOTH,
        ["DELTA-36"],
        "After the end of the wildcard, only named resources are sent.",
        end_keeps_names
    ),
    row!(
        "wildcard/empty-view-is-answered",
        Practice,
        BOTH,
        ["DELTA-35"],
        "A wildcard request is answered although there is no resource.",
        empty_view
    ),
    row!(
        "wildcard/not-for-endpoints",
        Protocol,
        BOTH,
        ["DELTA-38"],
        "An opening request with empty lists subscribes to no endpoints. A later name is answered.",
        not_eds
    ),
    row!(
        "wildcard/known-versions-are-not-sent",
        Protocol,
        BOTH,
        ["DELTA-58"],
        "A reconnecting wildcard client receives only what differs from its versions.",
        known_versions
    ),
    row!(
        "wildcard/unknown-versions-are-sent",
        Decision,
        BOTH,
        ["DELTA-59"],
        "A version that the server does not know counts as different.",
        unknown_versions
    ),
    row!(
        "wildcard/deletion",
        Protocol,
        BOTH,
        ["DELTA-42", "DELTA-45"],
        "A wildcard client receives the removal of a deleted cluster.",
        deletion
    ),
];

/// Opens a wildcard stream that has acknowledged A and B in generation 1.
async fn wildcard(ctx: &Ctx, names: &[&str]) -> Result<(Stream, Reply), Stop> {
    ctx.given(Cds, &["A", "B"]).await?;
    let mut stream = ctx.open(Delta, Cds).await?;
    stream.ask(RequestFields::names(Cds, names)).await;
    let requirement = if names.is_empty() { "DELTA-31" } else { "DELTA-30" };
    let reply = stream.take(requirement, Cds, &[], &[("A", 1), ("B", 1)]).await?;
    Ok((stream, reply))
}

async fn star(ctx: Ctx) -> Outcome {
    let (mut stream, _) = wildcard(&ctx, &["*"]).await?;
    ctx.set(Cds, "C", 1).await?;
    stream.exactly("DELTA-30", Cds, &[("C", 1)]).await.map(drop)
}

async fn empty_lists(ctx: Ctx) -> Outcome {
    let (mut stream, _) = wildcard(&ctx, &[]).await?;
    ctx.set(Cds, "C", 1).await?;
    stream.exactly("DELTA-31", Cds, &[("C", 1)]).await.map(drop)
}

async fn name_keeps(ctx: Ctx) -> Outcome {
    let (mut stream, _) = wildcard(&ctx, &[]).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    stream.take("DELTA-21", Cds, &[], &[("A", 1)]).await?;
    ctx.set(Cds, "B", 2).await?;
    stream.exactly("DELTA-31", Cds, &[("B", 2)]).await.map(drop)
}

async fn never_returns(ctx: Ctx) -> Outcome {
    let (mut stream, _) = wildcard(&ctx, &[]).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    stream.take("DELTA-21", Cds, &[], &[("A", 1)]).await?;
    for name in ["*", "A"] {
        stream.ask(RequestFields { unsubscribe: &[name], ..RequestFields::names(Cds, &[]) }).await;
        stream.quiet("DELTA-33", "no response to a request that only unsubscribes").await?;
    }
    stream.ask(RequestFields::names(Cds, &[])).await;
    let expected = ("DELTA-33", "no response, because nothing is subscribed");
    ctx.change_unseen(&mut stream, expected, &[], &[(Cds, "A"), (Cds, "C")]).await
}

async fn unsubscribe_only(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A", "B"]).await?;
    let mut stream = ctx.open(Delta, Cds).await?;
    stream.ask(RequestFields { unsubscribe: &["A"], ..RequestFields::names(Cds, &[]) }).await;
    stream.quiet("DELTA-34", "no response to a request that only unsubscribes").await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    stream.exactly("DELTA-34", Cds, &[("A", 1)]).await.map(drop)
}

async fn named_unsubscribe(ctx: Ctx) -> Outcome {
    let (mut stream, _) = wildcard(&ctx, &["*"]).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    stream.take("DELTA-21", Cds, &[], &[("A", 1)]).await?;
    stream.ask(RequestFields { unsubscribe: &["A"], ..RequestFields::names(Cds, &[]) }).await;
    stream.exactly("DELTA-24", Cds, &[("A", 1)]).await.map(drop)
}

async fn missing_unsubscribe(ctx: Ctx) -> Outcome {
    let (mut stream, _) = wildcard(&ctx, &["*"]).await?;
    stream.ask(RequestFields::names(Cds, &["Z"])).await;
    let reply = stream.removes("DELTA-40", Cds, &["Z"]).await?;
    stream.ack(&reply, &[]).await;
    stream.ask(RequestFields { unsubscribe: &["Z"], ..RequestFields::names(Cds, &[]) }).await;
    stream.removes("DELTA-24", Cds, &["Z"]).await.map(drop)
}

async fn end_keeps_names(ctx: Ctx) -> Outcome {
    let (mut stream, _) = wildcard(&ctx, &["*"]).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    stream.take("DELTA-21", Cds, &[], &[("A", 1)]).await?;
    stream.ask(RequestFields { unsubscribe: &["*"], ..RequestFields::names(Cds, &[]) }).await;
    stream.quiet("DELTA-36", "no response to the end of the wildcard").await?;
    let expected = ("DELTA-36", "no response for a resource that only the wildcard had");
    ctx.change_unseen(&mut stream, expected, &[], &[(Cds, "B")]).await?;
    ctx.set(Cds, "A", 2).await?;
    stream.exactly("DELTA-36", Cds, &[("A", 2)]).await.map(drop)
}

async fn empty_view(ctx: Ctx) -> Outcome {
    // The node is known, and has resources of another type.
    ctx.publish(&[(Eds, "A", 1), (Cds, "A", 0)]).await?;
    let mut stream = ctx.open(Delta, Cds).await?;
    stream.ask(RequestFields::names(Cds, &[])).await;
    let reply = stream.next("DELTA-35", "an empty response").await?;
    if !reply.is_empty() {
        return violation("DELTA-35", "an empty response", reply.to_string());
    }
    Ok(())
}

async fn not_eds(ctx: Ctx) -> Outcome {
    ctx.given(Eds, &["A"]).await?;
    let mut stream = ctx.open(Delta, Eds).await?;
    stream.ask(RequestFields::names(Eds, &[])).await;
    stream.quiet("DELTA-38", "no response to an empty subscription of endpoints").await?;
    stream.ask(RequestFields::names(Eds, &["A"])).await;
    stream.exactly("DELTA-38", Eds, &[("A", 1)]).await.map(drop)
}

async fn known_versions(ctx: Ctx) -> Outcome {
    let (first, reply) = wildcard(&ctx, &["*"]).await?;
    drop(first);
    ctx.set(Cds, "B", 2).await?;
    let mut stream = ctx.open(Delta, Cds).await?;
    let initial: Vec<(&str, String)> =
        reply.items.iter().map(|item| (item.name.as_str(), item.version.clone())).collect();
    stream.ask(RequestFields { initial, ..RequestFields::names(Cds, &["*"]) }).await;
    stream.exactly("DELTA-58", Cds, &[("B", 2)]).await.map(drop)
}

async fn unknown_versions(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Delta, Cds).await?;
    let initial = vec![("A", "of-another-server".to_owned())];
    stream.ask(RequestFields { initial, ..RequestFields::names(Cds, &["*"]) }).await;
    stream.exactly("DELTA-59", Cds, &[("A", 1)]).await.map(drop)
}

async fn deletion(ctx: Ctx) -> Outcome {
    let (mut stream, _) = wildcard(&ctx, &["*"]).await?;
    ctx.remove(Cds, "B").await?;
    stream.removes("DELTA-42", Cds, &["B"]).await.map(drop)
}
