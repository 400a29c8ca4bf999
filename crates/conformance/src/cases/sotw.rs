//! Area SOTW: requests, acknowledgments, names and absence.

use tonic::Code;

use super::row::{ADS, BOTH, Row, row};
use crate::{
    ctx::Ctx,
    kind::Kind::{self, Cds, Eds, Lds, Rds},
    outcome::{Outcome, ensure, violation},
    stream::{RequestFields, Stream, Variant::Sotw},
};

pub(super) const ROWS: &[Row] = &[
    row!(
        "node-only-in-first-request",
        Protocol,
        ADS,
        ["SOTW-02"],
        "The node of the first request counts for all types of the stream.",
        node_once
    ),
    row!(
        "node-changes",
        Decision,
        BOTH,
        ["SOTW-03"],
        "A request with another node id ends the stream with INVALID_ARGUMENT.",
        node_changes
    ),
    row!(
        "node-is-missing",
        Decision,
        BOTH,
        ["SOTW-06"],
        "A first request without a node ends the stream with INVALID_ARGUMENT.",
        node_missing
    ),
    row!(
        "unknown-nonce-opens",
        Practice,
        BOTH,
        ["SOTW-05"],
        "The first request of a type is answered, whatever its nonce.",
        unknown_nonce
    ),
    row!(
        "version-in-first-request",
        Practice,
        BOTH,
        ["SOTW-04", "SOTW-102"],
        "A first request by names is answered, even with the current version.",
        version_first
    ),
    row!(
        "unknown-version-in-first-request",
        Decision,
        BOTH,
        ["SOTW-105"],
        "A first request with an unknown version is answered.",
        unknown_version
    ),
    row!(
        "last-of-several-requests-counts",
        Practice,
        BOTH,
        ["SOTW-08", "SOTW-33"],
        "If further requests precede the first response, the last one decides the names.",
        several_requests
    ),
    row!(
        "types-in-any-order",
        Protocol,
        ADS,
        ["SOTW-01", "SOTW-106", "ADS-23"],
        "Types open in any order: routes and endpoints before listeners and clusters.",
        any_order
    ),
    row!(
        "acknowledgment-is-silent",
        Protocol,
        BOTH,
        ["SOTW-25", "SOTW-50"],
        "An acknowledgment, and its repetition, receive no response.",
        ack_silent
    ),
    row!(
        "order-and-duplicates-mean-nothing",
        Protocol,
        BOTH,
        ["SOTW-40"],
        "The same names in another order, or twice, are the same subscription.",
        order
    ),
    row!(
        "old-version-is-no-rejection",
        Practice,
        BOTH,
        ["SOTW-20", "SOTW-22"],
        "The last nonce with an older version receives no response.",
        old_version
    ),
    row!(
        "rejection-is-not-repeated",
        Protocol,
        BOTH,
        ["SOTW-20", "SOTW-23"],
        "A rejected response is not sent again.",
        nack_silent
    ),
    row!(
        "rejection-without-text",
        Protocol,
        BOTH,
        ["SOTW-20", "SOTW-23"],
        "An error_detail without code and text is a rejection.",
        nack_empty
    ),
    row!(
        "correction-follows-rejection",
        Protocol,
        BOTH,
        ["SOTW-27"],
        "After a rejection, changed content is sent and can be acknowledged.",
        correction
    ),
    row!(
        "rejection-adds-names",
        Protocol,
        BOTH,
        ["SOTW-26"],
        "A rejection may add names, which are answered.",
        nack_names
    ),
    row!(
        "return-to-accepted-content",
        Decision,
        BOTH,
        ["SOTW-24"],
        "After a rejection, a return to the accepted content is sent.",
        nack_return
    ),
    row!(
        "stale-nonce-is-silent",
        Protocol,
        BOTH,
        ["SOTW-34"],
        "A request with the nonce of an earlier response receives no response.",
        stale
    ),
    row!(
        "empty-nonce-adds-names",
        Practice,
        BOTH,
        ["SOTW-37"],
        "A request without a nonce after a response changes the names.",
        empty_nonce
    ),
    row!(
        "added-name-is-answered",
        Protocol,
        BOTH,
        ["SOTW-42", "SOTW-43", "SOTW-45"],
        "An added name is answered, although nothing has changed.",
        added
    ),
    row!(
        "added-name-receives-full-state",
        Protocol,
        BOTH,
        ["SOTW-43", "SOTW-70"],
        "For clusters, the answer to an added name has all named clusters.",
        added_full
    ),
    row!(
        "returning-name-is-answered",
        Practice,
        BOTH,
        ["SOTW-44", "ADS-18"],
        "A name that was dropped and added again is sent again.",
        returning
    ),
    row!(
        "dropped-name-is-silent",
        Protocol,
        BOTH,
        ["SOTW-46"],
        "Dropping a name receives no response, and changes of the resource are not sent.",
        dropped
    ),
    row!(
        "many-names",
        Protocol,
        BOTH,
        ["SOTW-41", "SOTW-49"],
        "One request may name hundreds of resources.",
        many_names
    ),
    row!(
        "missing-name-is-silent",
        Decision,
        BOTH,
        ["SOTW-79", "SOTW-81"],
        "The server sends nothing for a name that does not exist, alone or beside another name.",
        missing_silent
    ),
    row!(
        "missing-cluster-is-answered",
        Decision,
        BOTH,
        ["SOTW-80"],
        "An opening request for a cluster that does not exist receives an empty response.",
        missing_full
    ),
    row!(
        "half-close",
        Decision,
        BOTH,
        ["SOTW-111"],
        "After the client's half-close, the stream ends with OK.",
        half_close
    ),
];

/// Opens a stream that has acknowledged these resources of one type in generation 1.
async fn established(
    ctx: &Ctx,
    kind: Kind,
    names: &[&str],
) -> Result<Stream, crate::outcome::Stop> {
    ctx.given(kind, names).await?;
    let mut stream = ctx.open(Sotw, kind).await?;
    stream.ask(RequestFields::names(kind, names)).await;
    let all: Vec<(&str, u32)> = names.iter().map(|name| (*name, 1)).collect();
    stream.take("SOTW-41", kind, names, &all).await?;
    Ok(stream)
}

async fn node_once(ctx: Ctx) -> Outcome {
    ctx.publish(&[(Cds, "A", 1), (Lds, "B", 1)]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    stream.take("SOTW-41", Cds, &["A"], &[("A", 1)]).await?;
    stream.ask(RequestFields::names(Lds, &["B"])).await;
    stream.exactly("SOTW-02", Lds, &[("B", 1)]).await.map(drop)
}

async fn node_changes(ctx: Ctx) -> Outcome {
    let mut stream = established(&ctx, Cds, &["A"]).await?;
    let other = ctx.node_named(&format!("{}-other", ctx.node_id()));
    stream
        .ask(RequestFields { node: Some(Some(other)), ..RequestFields::names(Cds, &["A"]) })
        .await;
    stream.end("SOTW-03", Code::InvalidArgument).await
}

async fn node_missing(ctx: Ctx) -> Outcome {
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields { node: Some(None), ..RequestFields::names(Cds, &["A"]) }).await;
    stream.end("SOTW-06", Code::InvalidArgument).await
}

async fn unknown_nonce(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream
        .ask(RequestFields { nonce: "of-another-stream", ..RequestFields::names(Cds, &["A"]) })
        .await;
    stream.exactly("SOTW-05", Cds, &[("A", 1)]).await.map(drop)
}

async fn version_first(ctx: Ctx) -> Outcome {
    ctx.given(Eds, &["A"]).await?;
    let mut first = ctx.open(Sotw, Eds).await?;
    first.ask(RequestFields::names(Eds, &["A"])).await;
    let reply = first.take("SOTW-41", Eds, &["A"], &[("A", 1)]).await?;
    drop(first);
    let mut second = ctx.open(Sotw, Eds).await?;
    second
        .ask(RequestFields { version: &reply.version, ..RequestFields::names(Eds, &["A"]) })
        .await;
    let again = second.exactly("SOTW-102", Eds, &[("A", 1)]).await?;
    ensure(
        "SOTW-14",
        again.version == reply.version,
        "the same version for the same content",
        || format!("versions {:?} and {:?}", reply.version, again.version),
    )
}

async fn unknown_version(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream
        .ask(RequestFields { version: "of-another-server", ..RequestFields::names(Cds, &["A"]) })
        .await;
    stream.exactly("SOTW-105", Cds, &[("A", 1)]).await.map(drop)
}

async fn several_requests(ctx: Ctx) -> Outcome {
    let names = ["A", "B", "C"];
    ctx.given(Cds, &names).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    for n in 1..=names.len() {
        stream.ask(RequestFields::names(Cds, &names[..n])).await;
    }
    // The server may have answered earlier requests before it saw the last.
    loop {
        let reply = stream.next("SOTW-08", "a response with A, B and C").await?;
        stream.ack(&reply, &names).await;
        if reply.items.len() == names.len() {
            return reply.exactly("SOTW-08", Cds, &[("A", 1), ("B", 1), ("C", 1)]);
        }
    }
}

async fn any_order(ctx: Ctx) -> Outcome {
    let kinds = [Rds, Eds, Lds, Cds];
    let all: Vec<_> = kinds.iter().map(|kind| (*kind, "A", 1)).collect();
    ctx.publish(&all).await?;
    let mut stream = ctx.open(Sotw, Rds).await?;
    for kind in kinds {
        stream.ask(RequestFields::names(kind, &["A"])).await;
        stream.take("SOTW-106", kind, &["A"], &[("A", 1)]).await?;
    }
    Ok(())
}

async fn ack_silent(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    let reply = stream.take("SOTW-41", Cds, &["A"], &[("A", 1)]).await?;
    stream.quiet("SOTW-25", "no response to an acknowledgment").await?;
    stream.ack(&reply, &["A"]).await;
    stream.quiet("SOTW-50", "no response to a repeated acknowledgment").await
}

async fn order(ctx: Ctx) -> Outcome {
    ctx.given(Eds, &["A", "B"]).await?;
    let mut stream = ctx.open(Sotw, Eds).await?;
    stream.ask(RequestFields::names(Eds, &["A", "B"])).await;
    let reply = stream.exactly("SOTW-41", Eds, &[("A", 1), ("B", 1)]).await?;
    stream.ack(&reply, &["B", "A", "B"]).await;
    stream.quiet("SOTW-40", "no response to the same names in another order").await?;
    ctx.set(Eds, "B", 2).await?;
    let reply = stream.next("SOTW-40", "the changed resource, once").await?;
    let changed = reply.item("B").and_then(|item| item.generation);
    ensure("SOTW-40", changed == Some(2), "B@2", || reply.to_string())
}

async fn old_version(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    let first = stream.take("SOTW-41", Cds, &["A"], &[("A", 1)]).await?;
    ctx.set(Cds, "A", 2).await?;
    let second = stream.exactly("SOTW-90", Cds, &[("A", 2)]).await?;
    stream
        .ask(RequestFields { version: &first.version, ..RequestFields::ack(&second, &["A"]) })
        .await;
    stream.quiet("SOTW-22", "no response to the last nonce with an older version").await
}

async fn rejected(ctx: &Ctx, error: (i32, &str)) -> Result<Stream, crate::outcome::Stop> {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    let first = stream.take("SOTW-41", Cds, &["A"], &[("A", 1)]).await?;
    ctx.set(Cds, "A", 2).await?;
    let bad = stream.exactly("SOTW-90", Cds, &[("A", 2)]).await?;
    stream
        .ask(RequestFields {
            error: Some(error),
            ..RequestFields::nack(&bad, &["A"], &first.version)
        })
        .await;
    stream.quiet("SOTW-23", "no response to a rejection").await?;
    Ok(stream)
}

async fn nack_silent(ctx: Ctx) -> Outcome {
    rejected(&ctx, (3, "rejected")).await.map(drop)
}

async fn nack_empty(ctx: Ctx) -> Outcome {
    rejected(&ctx, (0, "")).await.map(drop)
}

async fn correction(ctx: Ctx) -> Outcome {
    let mut stream = rejected(&ctx, (3, "rejected")).await?;
    ctx.set(Cds, "A", 3).await?;
    stream.take("SOTW-27", Cds, &["A"], &[("A", 3)]).await?;
    stream.quiet("SOTW-25", "no response to an acknowledgment").await
}

async fn nack_return(ctx: Ctx) -> Outcome {
    let mut stream = rejected(&ctx, (3, "rejected")).await?;
    ctx.set(Cds, "A", 1).await?;
    stream.exactly("SOTW-24", Cds, &[("A", 1)]).await.map(drop)
}

async fn nack_names(ctx: Ctx) -> Outcome {
    ctx.given(Eds, &["A", "B"]).await?;
    let mut stream = ctx.open(Sotw, Eds).await?;
    stream.ask(RequestFields::names(Eds, &["A"])).await;
    let bad = stream.exactly("SOTW-41", Eds, &[("A", 1)]).await?;
    stream.ask(RequestFields::nack(&bad, &["A", "B"], "")).await;
    let reply = stream.next("SOTW-26", "a response with B").await?;
    let added = reply.item("B").and_then(|item| item.generation);
    ensure("SOTW-26", added == Some(1), "B@1", || reply.to_string())
}

async fn stale(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    let first = stream.take("SOTW-41", Cds, &["A"], &[("A", 1)]).await?;
    ctx.set(Cds, "A", 2).await?;
    let second = stream.exactly("SOTW-90", Cds, &[("A", 2)]).await?;
    stream.ask(RequestFields::ack(&first, &["A"])).await;
    stream.quiet("SOTW-34", "no response to a stale nonce").await?;
    stream.ack(&second, &["A"]).await;
    stream.quiet("SOTW-25", "no response to an acknowledgment").await
}

async fn empty_nonce(ctx: Ctx) -> Outcome {
    let mut stream = established(&ctx, Eds, &["A"]).await?;
    ctx.given(Eds, &["B"]).await?;
    stream.ask(RequestFields::names(Eds, &["A", "B"])).await;
    let reply = stream.next("SOTW-37", "a response with B").await?;
    let added = reply.item("B").and_then(|item| item.generation);
    ensure("SOTW-37", added == Some(1), "B@1", || reply.to_string())
}

async fn added(ctx: Ctx) -> Outcome {
    ctx.given(Eds, &["A", "B"]).await?;
    let mut stream = ctx.open(Sotw, Eds).await?;
    stream.ask(RequestFields::names(Eds, &["A"])).await;
    let first = stream.take("SOTW-41", Eds, &["A"], &[("A", 1)]).await?;
    stream.ask(RequestFields::ack(&first, &["A", "B"])).await;
    let reply = stream.next("SOTW-42", "a response with B").await?;
    let added = reply.item("B").and_then(|item| item.generation);
    ensure("SOTW-42", added == Some(1), "B@1", || reply.to_string())
}

async fn added_full(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A", "B", "C"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    let first = stream.take("SOTW-41", Cds, &["A"], &[("A", 1)]).await?;
    stream.ask(RequestFields::ack(&first, &["A", "B"])).await;
    stream.exactly("SOTW-43", Cds, &[("A", 1), ("B", 1)]).await.map(drop)
}

async fn returning(ctx: Ctx) -> Outcome {
    ctx.given(Rds, &["A", "B"]).await?;
    let mut stream = ctx.open(Sotw, Rds).await?;
    stream.ask(RequestFields::names(Rds, &["A", "B"])).await;
    let first = stream.take("SOTW-41", Rds, &["A", "B"], &[("A", 1), ("B", 1)]).await?;
    stream.ask(RequestFields::ack(&first, &["A"])).await;
    stream.quiet("SOTW-46", "no response to a request that only drops a name").await?;
    stream.ask(RequestFields::ack(&first, &["A", "B"])).await;
    let reply = stream.next("SOTW-44", "a response with B").await?;
    let returned = reply.item("B").and_then(|item| item.generation);
    ensure("SOTW-44", returned == Some(1), "B@1", || reply.to_string())
}

async fn dropped(ctx: Ctx) -> Outcome {
    ctx.given(Eds, &["A", "B"]).await?;
    let mut stream = ctx.open(Sotw, Eds).await?;
    stream.ask(RequestFields::names(Eds, &["A", "B"])).await;
    let first = stream.take("SOTW-41", Eds, &["A", "B"], &[("A", 1), ("B", 1)]).await?;
    stream.ask(RequestFields::ack(&first, &["A"])).await;
    stream.quiet("SOTW-46", "no response to a request that only drops a name").await?;
    let expected = ("SOTW-46", "no response for a dropped name");
    ctx.change_unseen(&mut stream, expected, &["A"], &[(Eds, "B")]).await
}

async fn many_names(ctx: Ctx) -> Outcome {
    let names: Vec<String> = (0..300).map(|n| format!("r{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    ctx.given(Eds, &names).await?;
    let mut stream = ctx.open(Sotw, Eds).await?;
    stream.ask(RequestFields::names(Eds, &names)).await;
    let mut n_received = 0;
    while n_received < names.len() {
        let expected = "all 300 named resources, each once";
        let reply = stream.next("SOTW-49", expected).await?;
        stream.ack(&reply, &names).await;
        n_received += reply.items.len();
        if n_received > names.len() {
            return violation("SOTW-49", expected, format!("{n_received} resources"));
        }
    }
    Ok(())
}

async fn missing_silent(ctx: Ctx) -> Outcome {
    ctx.given(Eds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Eds).await?;
    stream.ask(RequestFields::names(Eds, &["missing"])).await;
    stream.quiet("SOTW-79", "no response for a name that does not exist").await?;
    stream.ask(RequestFields::names(Eds, &["missing", "A"])).await;
    stream.exactly("SOTW-79", Eds, &[("A", 1)]).await.map(drop)
}

async fn missing_full(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["missing"])).await;
    stream.exactly("SOTW-80", Cds, &[]).await.map(drop)
}

async fn half_close(ctx: Ctx) -> Outcome {
    let mut stream = established(&ctx, Cds, &["A"]).await?;
    stream.half_close();
    stream.end("SOTW-111", Code::Ok).await
}
