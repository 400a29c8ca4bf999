//! Area DELTA: subscriptions, acknowledgments, removals and reconnects.

use super::row::{ADS, BOTH, Row, row};
use crate::{
    ctx::Ctx,
    kind::Kind::{self, Cds, Eds, Lds, Vhds},
    outcome::{Outcome, Stop, ensure},
    reply::Reply,
    stream::{RequestFields, Stream, Variant::Delta},
};

pub(super) const ROWS: &[Row] = &[
    row!(
        "unknown-nonce-opens",
        Practice,
        BOTH,
        ["DELTA-05"],
        "The first request of a type is answered, whatever its nonce.",
        unknown_nonce
    ),
    row!(
        "spontaneous-request-is-no-acknowledgment",
        Protocol,
        BOTH,
        ["DELTA-12", "DELTA-26"],
        "A request without a nonce and without changes receives no response.",
        spontaneous
    ),
    row!(
        "acknowledgment-is-silent",
        Protocol,
        BOTH,
        ["DELTA-11", "DELTA-26"],
        "An acknowledgment receives no response.",
        ack_silent
    ),
    row!(
        "stale-nonce-changes-subscription",
        Protocol,
        BOTH,
        ["DELTA-14"],
        "A request with an unknown nonce may subscribe.",
        stale_subscribes
    ),
    row!(
        "acknowledgment-changes-subscription",
        Practice,
        BOTH,
        ["DELTA-01", "DELTA-15"],
        "An acknowledgment may subscribe at the same time.",
        ack_subscribes
    ),
    row!(
        "rejection-is-not-repeated",
        Protocol,
        BOTH,
        ["DELTA-11", "DELTA-16"],
        "A rejected resource is not sent again.",
        nack_silent
    ),
    row!(
        "correction-follows-rejection",
        Practice,
        BOTH,
        ["DELTA-16", "DELTA-17"],
        "After a rejection, only the resource that changes is sent.",
        correction
    ),
    row!(
        "return-to-accepted-content",
        Decision,
        BOTH,
        ["DELTA-18"],
        "After a rejection, a return to the accepted content is sent.",
        nack_return
    ),
    row!(
        "subscribe-wins",
        Decision,
        BOTH,
        ["DELTA-20"],
        "A name in both lists of a request is subscribed.",
        both_lists
    ),
    row!(
        "repeated-subscribe-is-answered",
        Protocol,
        BOTH,
        ["DELTA-21"],
        "A repeated subscription is answered, although nothing has changed.",
        repeated
    ),
    row!(
        "named-resource-in-initial-versions",
        Practice,
        BOTH,
        ["DELTA-22"],
        "A named resource is sent, although the client reports its version.",
        initial_named
    ),
    row!(
        "phantom-unsubscribe",
        Protocol,
        BOTH,
        ["DELTA-23", "DELTA-25"],
        "Unsubscribing names that were never subscribed changes nothing.",
        phantom
    ),
    row!(
        "unsubscribed-resource-is-forgotten",
        Protocol,
        BOTH,
        ["DELTA-27", "DELTA-28"],
        "After unsubscribing and subscribing again, the resource is sent.",
        resubscribe
    ),
    row!(
        "missing-name-is-reported",
        Protocol,
        BOTH,
        ["DELTA-40"],
        "A name that does not exist is reported in removed_resources, once.",
        missing_once
    ),
    row!(
        "removal-is-sent-once",
        Protocol,
        BOTH,
        ["DELTA-42", "DELTA-44"],
        "A deletion is reported once.",
        removal_once
    ),
    row!(
        "vanished-initial-resource",
        Practice,
        BOTH,
        ["DELTA-46"],
        "A resource that was deleted between two streams is reported as removed.",
        vanished
    ),
    row!(
        "later-initial-versions-are-ignored",
        Protocol,
        BOTH,
        ["DELTA-57"],
        "Versions in a later request do not prevent responses.",
        later_initial
    ),
    row!(
        "new-stream-starts-afresh",
        Protocol,
        BOTH,
        ["DELTA-04", "DELTA-70"],
        "A new stream does not inherit the subscriptions of an earlier stream.",
        new_stream
    ),
    row!(
        "changes-of-a-commit",
        Protocol,
        BOTH,
        ["DELTA-52"],
        "Changes, creations and deletions that were published together all arrive.",
        commit
    ),
    row!(
        "two-types",
        Protocol,
        ADS,
        ["DELTA-03"],
        "A rejection of one type does not affect another type.",
        two_types
    ),
    row!(
        "virtual-host-by-name",
        Protocol,
        BOTH,
        ["DELTA-60", "DELTA-62"],
        "A virtual host is sent under the name that the client subscribed.",
        vhds_named
    ),
    row!(
        "virtual-hosts-of-the-namespace",
        Practice,
        BOTH,
        ["DELTA-61"],
        "An empty first request for virtual hosts receives all of them.",
        vhds_all
    ),
    row!(
        "missing-virtual-host",
        Protocol,
        BOTH,
        ["DELTA-63"],
        "A missing virtual host is reported as a resource without content, with an alias.",
        vhds_missing
    ),
    row!(
        "cluster-on-demand",
        Practice,
        BOTH,
        ["DELTA-68"],
        "A missing cluster beside a wildcard is reported at once, and sent when it is created.",
        on_demand
    ),
];

/// Opens a stream that has acknowledged these resources of one type in generation 1.
async fn established(ctx: &Ctx, kind: Kind, names: &[&str]) -> Result<(Stream, Reply), Stop> {
    ctx.given(kind, names).await?;
    let mut stream = ctx.open(Delta, kind).await?;
    stream.ask(RequestFields::names(kind, names)).await;
    let all: Vec<(&str, u32)> = names.iter().map(|name| (*name, 1)).collect();
    let reply = stream.take("DELTA-21", kind, names, &all).await?;
    Ok((stream, reply))
}

async fn unknown_nonce(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Delta, Cds).await?;
    stream
        .ask(RequestFields { nonce: "of-another-stream", ..RequestFields::names(Cds, &["A"]) })
        .await;
    stream.exactly("DELTA-05", Cds, &[("A", 1)]).await.map(drop)
}

async fn spontaneous(ctx: Ctx) -> Outcome {
    let (mut stream, _) = established(&ctx, Cds, &["A"]).await?;
    stream.ask(RequestFields::names(Cds, &[])).await;
    stream.quiet("DELTA-26", "no response to a request without changes").await?;
    ctx.set(Cds, "A", 2).await?;
    stream.exactly("DELTA-26", Cds, &[("A", 2)]).await.map(drop)
}

async fn ack_silent(ctx: Ctx) -> Outcome {
    let (mut stream, reply) = established(&ctx, Cds, &["A", "B"]).await?;
    stream.quiet("DELTA-11", "no response to an acknowledgment").await?;
    stream.ack(&reply, &[]).await;
    stream.quiet("DELTA-26", "no response to a repeated acknowledgment").await
}

async fn stale_subscribes(ctx: Ctx) -> Outcome {
    let (mut stream, _) = established(&ctx, Cds, &["A"]).await?;
    ctx.set(Cds, "B", 1).await?;
    stream.ask(RequestFields { nonce: "stale", ..RequestFields::names(Cds, &["B"]) }).await;
    stream.exactly("DELTA-14", Cds, &[("B", 1)]).await.map(drop)
}

async fn ack_subscribes(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A", "B"]).await?;
    let mut stream = ctx.open(Delta, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    let reply = stream.exactly("DELTA-21", Cds, &[("A", 1)]).await?;
    stream.ask(RequestFields::ack(&reply, &["B"])).await;
    stream.take("DELTA-15", Cds, &[], &[("B", 1)]).await?;
    ctx.set(Cds, "A", 2).await?;
    stream.exactly("DELTA-01", Cds, &[("A", 2)]).await.map(drop)
}

/// Opens a stream that has rejected the change of A from generation 1 to 2.
async fn rejected(ctx: &Ctx) -> Result<Stream, Stop> {
    let (mut stream, _) = established(ctx, Cds, &["A", "B"]).await?;
    ctx.set(Cds, "A", 2).await?;
    let bad = stream.exactly("DELTA-52", Cds, &[("A", 2)]).await?;
    stream.ask(RequestFields::nack(&bad, &[], "")).await;
    stream.quiet("DELTA-16", "no response to a rejection").await?;
    Ok(stream)
}

async fn nack_silent(ctx: Ctx) -> Outcome {
    rejected(&ctx).await.map(drop)
}

async fn correction(ctx: Ctx) -> Outcome {
    let mut stream = rejected(&ctx).await?;
    ctx.set(Cds, "B", 2).await?;
    stream.take("DELTA-17", Cds, &[], &[("B", 2)]).await?;
    ctx.set(Cds, "A", 3).await?;
    stream.take("DELTA-16", Cds, &[], &[("A", 3)]).await?;
    stream.quiet("DELTA-11", "no response to an acknowledgment").await
}

async fn nack_return(ctx: Ctx) -> Outcome {
    let mut stream = rejected(&ctx).await?;
    ctx.set(Cds, "A", 1).await?;
    stream.exactly("DELTA-18", Cds, &[("A", 1)]).await.map(drop)
}

async fn both_lists(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Delta, Cds).await?;
    stream.ask(RequestFields { unsubscribe: &["A"], ..RequestFields::names(Cds, &["A"]) }).await;
    stream.take("DELTA-20", Cds, &[], &[("A", 1)]).await?;
    ctx.set(Cds, "A", 2).await?;
    stream.exactly("DELTA-20", Cds, &[("A", 2)]).await.map(drop)
}

async fn repeated(ctx: Ctx) -> Outcome {
    let (mut stream, _) = established(&ctx, Cds, &["A", "B"]).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    stream.exactly("DELTA-21", Cds, &[("A", 1)]).await.map(drop)
}

async fn initial_named(ctx: Ctx) -> Outcome {
    let (first, reply) = established(&ctx, Eds, &["A"]).await?;
    drop(first);
    let version = reply.items[0].version.clone();
    let mut stream = ctx.open(Delta, Eds).await?;
    stream
        .ask(RequestFields { initial: vec![("A", version)], ..RequestFields::names(Eds, &["A"]) })
        .await;
    stream.exactly("DELTA-22", Eds, &[("A", 1)]).await.map(drop)
}

async fn phantom(ctx: Ctx) -> Outcome {
    let (mut stream, _) = established(&ctx, Cds, &["A"]).await?;
    stream
        .ask(RequestFields { unsubscribe: &["never", "B"], ..RequestFields::names(Cds, &[]) })
        .await;
    stream.quiet("DELTA-25", "no response, because the names were never subscribed").await?;
    ctx.set(Cds, "A", 2).await?;
    stream.exactly("DELTA-25", Cds, &[("A", 2)]).await.map(drop)
}

async fn resubscribe(ctx: Ctx) -> Outcome {
    let (mut stream, _) = established(&ctx, Cds, &["A", "B"]).await?;
    stream.ask(RequestFields { unsubscribe: &["A"], ..RequestFields::names(Cds, &[]) }).await;
    stream.quiet("DELTA-23", "no response to a request that only unsubscribes").await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    stream.exactly("DELTA-27", Cds, &[("A", 1)]).await.map(drop)
}

async fn missing_once(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Delta, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["missing"])).await;
    let reply = stream.removes("DELTA-40", Cds, &["missing"]).await?;
    stream.ack(&reply, &[]).await;
    ctx.set(Cds, "A", 2).await?;
    stream.quiet("DELTA-40", "one report of a missing name").await
}

async fn removal_once(ctx: Ctx) -> Outcome {
    let (mut stream, _) = established(&ctx, Eds, &["A", "B"]).await?;
    ctx.remove(Eds, "A").await?;
    let reply = stream.removes("DELTA-42", Eds, &["A"]).await?;
    stream.ack(&reply, &[]).await;
    ctx.set(Eds, "B", 2).await?;
    stream.take("DELTA-44", Eds, &[], &[("B", 2)]).await?;
    stream.quiet("DELTA-44", "one report of a removal").await
}

async fn vanished(ctx: Ctx) -> Outcome {
    let (first, reply) = established(&ctx, Cds, &["A", "B"]).await?;
    drop(first);
    let version = |name: &str| reply.item(name).map_or(String::new(), |item| item.version.clone());
    ctx.remove(Cds, "B").await?;
    let mut stream = ctx.open(Delta, Cds).await?;
    let initial = vec![("A", version("A")), ("B", version("B"))];
    stream.ask(RequestFields { initial, ..RequestFields::names(Cds, &["*"]) }).await;
    let reply = stream.next("DELTA-46", "a response that removes B").await?;
    if !reply.is_empty() {
        return reply.removes("DELTA-46", Cds, &["B"]);
    }
    // A server may answer at once, and remove clusters only after the types that may refer to them.
    stream.ack(&reply, &[]).await;
    stream.removes("DELTA-46", Cds, &["B"]).await.map(drop)
}

async fn later_initial(ctx: Ctx) -> Outcome {
    let (mut stream, reply) = established(&ctx, Cds, &["A"]).await?;
    let version = reply.items[0].version.clone();
    ctx.given(Cds, &["B"]).await?;
    let initial = vec![("A", version), ("B", "anything".to_owned()), ("C", "gone".to_owned())];
    stream.ask(RequestFields { initial, ..RequestFields::names(Cds, &["B"]) }).await;
    stream.exactly("DELTA-57", Cds, &[("B", 1)]).await.map(drop)
}

async fn new_stream(ctx: Ctx) -> Outcome {
    let (first, _) = established(&ctx, Cds, &["A", "B"]).await?;
    drop(first);
    let mut stream = ctx.open(Delta, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    stream.take("DELTA-70", Cds, &[], &[("A", 1)]).await?;
    ctx.set(Cds, "B", 2).await?;
    stream.quiet("DELTA-04", "no response for a subscription of an earlier stream").await
}

async fn commit(ctx: Ctx) -> Outcome {
    let (mut stream, _) = established(&ctx, Eds, &["A", "B"]).await?;
    stream.ask(RequestFields::names(Eds, &["C"])).await;
    let reply = stream.removes("DELTA-40", Eds, &["C"]).await?;
    stream.ack(&reply, &[]).await;
    ctx.publish(&[(Eds, "A", 2), (Eds, "B", 0), (Eds, "C", 1)]).await?;
    let mut seen: Vec<String> = Vec::new();
    let wanted = ["A@2", "C@1", "-B"];
    while wanted.iter().any(|change| !seen.iter().any(|it| it == change)) {
        let reply = stream.next("DELTA-52", "A@2, C@1 and the removal of B").await?;
        let shown =
            |item: &crate::reply::Item| format!("{}@{}", item.name, item.generation.unwrap_or(0));
        seen.extend(reply.items.iter().map(shown));
        seen.extend(reply.removed.iter().map(|name| format!("-{name}")));
        stream.ack(&reply, &[]).await;
    }
    ensure("DELTA-52", seen.len() == wanted.len(), "each change once", || seen.join(" "))
}

async fn two_types(ctx: Ctx) -> Outcome {
    ctx.publish(&[(Cds, "A", 1), (Lds, "A", 1)]).await?;
    let mut stream = ctx.open(Delta, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    let bad = stream.exactly("DELTA-21", Cds, &[("A", 1)]).await?;
    stream.ask(RequestFields::nack(&bad, &[], "")).await;
    stream.ask(RequestFields::names(Lds, &["A"])).await;
    stream.take("DELTA-03", Lds, &[], &[("A", 1)]).await?;
    ctx.set(Lds, "A", 2).await?;
    stream.exactly("DELTA-03", Lds, &[("A", 2)]).await.map(drop)
}

async fn vhds_named(ctx: Ctx) -> Outcome {
    ctx.given(Vhds, &["rc/a.example", "rc/b.example"]).await?;
    let mut stream = ctx.open(Delta, Vhds).await?;
    stream.ask(RequestFields::names(Vhds, &["rc/a.example"])).await;
    stream.exactly("DELTA-62", Vhds, &[("rc/a.example", 1)]).await.map(drop)
}

async fn vhds_all(ctx: Ctx) -> Outcome {
    ctx.given(Vhds, &["rc/a.example", "rc/b.example"]).await?;
    let mut stream = ctx.open(Delta, Vhds).await?;
    stream.ask(RequestFields::names(Vhds, &[])).await;
    let all = [("rc/a.example", 1), ("rc/b.example", 1)];
    stream.exactly("DELTA-61", Vhds, &all).await.map(drop)
}

async fn vhds_missing(ctx: Ctx) -> Outcome {
    ctx.given(Vhds, &["rc/a.example"]).await?;
    let mut stream = ctx.open(Delta, Vhds).await?;
    stream.ask(RequestFields::names(Vhds, &["rc/missing.example"])).await;
    let expected = "rc/missing.example without content, with itself as an alias";
    let reply = stream.next("DELTA-63", expected).await?;
    let holds = reply.items.iter().any(|item| {
        !item.has_body && item.aliases.iter().any(|alias| alias == "rc/missing.example")
    });
    ensure("DELTA-63", holds && reply.items.len() == 1, expected, || reply.to_string())
}

async fn on_demand(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Delta, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["*"])).await;
    stream.take("DELTA-30", Cds, &[], &[("A", 1)]).await?;
    stream.ask(RequestFields::names(Cds, &["Z"])).await;
    let reply = stream.removes("DELTA-68", Cds, &["Z"]).await?;
    stream.ack(&reply, &[]).await;
    ctx.set(Cds, "Z", 1).await?;
    stream.exactly("DELTA-68", Cds, &[("Z", 1)]).await.map(drop)
}
