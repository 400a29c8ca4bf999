//! Area SOTW: what changes cause, and what they do not.

use super::row::{ADS, BOTH, Row, row};
use crate::{
    ctx::Ctx,
    kind::Kind::{Cds, Eds, Lds, Rtds, Srds},
    outcome::{Outcome, ensure},
    stream::{RequestFields, Variant::Sotw},
};

pub(super) const ROWS: &[Row] = &[
    row!(
        "deleted-cluster-is-absent",
        Protocol,
        BOTH,
        ["SOTW-71", "SOTW-84"],
        "The deletion of a cluster is a full response without it.",
        deleted_full
    ),
    row!(
        "last-deletion-is-empty-response",
        Protocol,
        BOTH,
        ["SOTW-71", "SOTW-84"],
        "The deletion of the last listener is an empty response.",
        deleted_last
    ),
    row!(
        "deleted-endpoints-are-silent",
        Protocol,
        BOTH,
        ["SOTW-72", "SOTW-85"],
        "The deletion of endpoints receives no response.",
        deleted_partial
    ),
    row!(
        "recreated-resource-is-sent",
        Decision,
        BOTH,
        ["SOTW-86"],
        "A resource that was deleted and created again is sent again, with the same content.",
        recreated
    ),
    row!(
        "scoped-routes-are-full-state",
        Practice,
        BOTH,
        ["SOTW-68", "SOTW-73"],
        "Scoped routes have a wildcard, and every response has all of them.",
        scoped_full
    ),
    row!(
        "runtime-has-its-resource",
        Practice,
        BOTH,
        ["SOTW-76"],
        "Every response for a runtime layer contains the layer.",
        runtime
    ),
    row!(
        "other-name-is-silent",
        Decision,
        BOTH,
        ["SOTW-90", "SOTW-91"],
        "A change of a resource that is not subscribed receives no response.",
        other_name
    ),
    row!(
        "other-type-is-silent",
        Protocol,
        ADS,
        ["SOTW-12", "SOTW-90", "ADS-01"],
        "A change of one type receives no response of another type.",
        other_type
    ),
    row!(
        "same-content-is-silent",
        Protocol,
        BOTH,
        ["SOTW-13", "SOTW-90"],
        "Publishing the same content again receives no response.",
        same_content
    ),
    row!(
        "changes-of-a-commit-come-together",
        Protocol,
        BOTH,
        ["SOTW-93"],
        "Changes that were published together are in one response.",
        together
    ),
    row!(
        "slow-client-receives-newest",
        Decision,
        BOTH,
        ["SOTW-36", "SOTW-92"],
        "A client that acknowledges late receives the newest state, never an older one after it.",
        slow_client
    ),
    row!(
        "new-stream-starts-afresh",
        Protocol,
        BOTH,
        ["SOTW-66", "SOTW-100"],
        "A new stream receives everything that it requests.",
        new_stream
    ),
    row!(
        "two-streams-have-equal-versions",
        Practice,
        BOTH,
        ["SOTW-11", "SOTW-14"],
        "Two streams with the same subscription receive the same version.",
        equal_versions
    ),
];

async fn deleted_full(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A", "B"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &[])).await;
    stream.take("SOTW-61", Cds, &[], &[("A", 1), ("B", 1)]).await?;
    ctx.remove(Cds, "B").await?;
    stream.take("SOTW-84", Cds, &[], &[("A", 1)]).await.map(drop)
}

async fn deleted_last(ctx: Ctx) -> Outcome {
    ctx.given(Lds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Lds).await?;
    stream.ask(RequestFields::names(Lds, &[])).await;
    stream.take("SOTW-61", Lds, &[], &[("A", 1)]).await?;
    ctx.remove(Lds, "A").await?;
    stream.exactly("SOTW-84", Lds, &[]).await.map(drop)
}

async fn deleted_partial(ctx: Ctx) -> Outcome {
    ctx.given(Eds, &["A", "B"]).await?;
    let mut stream = ctx.open(Sotw, Eds).await?;
    stream.ask(RequestFields::names(Eds, &["A", "B"])).await;
    stream.take("SOTW-41", Eds, &["A", "B"], &[("A", 1), ("B", 1)]).await?;
    ctx.remove(Eds, "B").await?;
    stream.quiet("SOTW-85", "no response for deleted endpoints").await
}

async fn recreated(ctx: Ctx) -> Outcome {
    ctx.given(Eds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Eds).await?;
    stream.ask(RequestFields::names(Eds, &["A"])).await;
    stream.take("SOTW-41", Eds, &["A"], &[("A", 1)]).await?;
    ctx.remove(Eds, "A").await?;
    stream.quiet("SOTW-85", "no response for deleted endpoints").await?;
    ctx.set(Eds, "A", 1).await?;
    stream.exactly("SOTW-86", Eds, &[("A", 1)]).await.map(drop)
}

async fn scoped_full(ctx: Ctx) -> Outcome {
    ctx.given(Srds, &["A", "B"]).await?;
    let mut stream = ctx.open(Sotw, Srds).await?;
    stream.ask(RequestFields::names(Srds, &[])).await;
    stream.take("SOTW-68", Srds, &[], &[("A", 1), ("B", 1)]).await?;
    ctx.set(Srds, "A", 2).await?;
    stream.exactly("SOTW-73", Srds, &[("A", 2), ("B", 1)]).await.map(drop)
}

async fn runtime(ctx: Ctx) -> Outcome {
    ctx.given(Rtds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Rtds).await?;
    stream.ask(RequestFields::names(Rtds, &["A"])).await;
    stream.take("SOTW-76", Rtds, &["A"], &[("A", 1)]).await?;
    ctx.set(Rtds, "A", 2).await?;
    stream.take("SOTW-76", Rtds, &["A"], &[("A", 2)]).await?;
    ctx.remove(Rtds, "A").await?;
    stream.quiet("SOTW-76", "no response without the runtime layer").await
}

async fn other_name(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A", "B"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    stream.take("SOTW-41", Cds, &["A"], &[("A", 1)]).await?;
    ctx.set(Cds, "B", 2).await?;
    stream.quiet("SOTW-91", "no response for a resource that is not subscribed").await
}

async fn other_type(ctx: Ctx) -> Outcome {
    ctx.publish(&[(Cds, "A", 1), (Lds, "A", 1)]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    stream.take("SOTW-41", Cds, &["A"], &[("A", 1)]).await?;
    stream.ask(RequestFields::names(Lds, &["A"])).await;
    let before = stream.take("SOTW-41", Lds, &["A"], &[("A", 1)]).await?;
    ctx.set(Cds, "A", 2).await?;
    stream.take("SOTW-90", Cds, &["A"], &[("A", 2)]).await?;
    stream.quiet("SOTW-90", "no response of a type that has not changed").await?;
    ctx.set(Lds, "A", 2).await?;
    let after = stream.take("ADS-01", Lds, &["A"], &[("A", 2)]).await?;
    ensure("SOTW-13", before.version != after.version, "a new version", || after.to_string())
}

async fn same_content(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    stream.take("SOTW-41", Cds, &["A"], &[("A", 1)]).await?;
    // The state is the same; only other types may have a new version.
    ctx.publish(&[(Lds, "B", 1)]).await?;
    stream.quiet("SOTW-90", "no response without a change").await
}

async fn together(ctx: Ctx) -> Outcome {
    ctx.given(Eds, &["A", "B", "C"]).await?;
    let mut stream = ctx.open(Sotw, Eds).await?;
    stream.ask(RequestFields::names(Eds, &["A", "B", "C"])).await;
    stream.take("SOTW-41", Eds, &["A", "B", "C"], &[("A", 1), ("B", 1), ("C", 1)]).await?;
    ctx.publish(&[(Eds, "A", 2), (Eds, "C", 2)]).await?;
    let reply = stream.next("SOTW-93", "one response with A@2 and C@2").await?;
    let changed = |name| reply.item(name).and_then(|item| item.generation) == Some(2);
    let holds = changed("A") && changed("C");
    ensure("SOTW-93", holds, "one response with A@2 and C@2", || reply.to_string())
}

async fn slow_client(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut stream = ctx.open(Sotw, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["A"])).await;
    let mut pending = stream.exactly("SOTW-41", Cds, &[("A", 1)]).await?;
    for generation in 2..=4 {
        ctx.set(Cds, "A", generation).await?;
    }
    let mut seen = 1;
    loop {
        stream.ack(&pending, &["A"]).await;
        let reply = stream.next("SOTW-36", "a response with A@4").await?;
        let generation = reply.item("A").and_then(|item| item.generation).unwrap_or(0);
        let expected = format!("no generation before {seen}");
        ensure("SOTW-92", generation >= seen, expected, || reply.to_string())?;
        if generation == 4 {
            return Ok(());
        }
        (pending, seen) = (reply, generation);
    }
}

async fn new_stream(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A", "B"]).await?;
    for _ in 0..2 {
        let mut stream = ctx.open(Sotw, Cds).await?;
        stream.ask(RequestFields::names(Cds, &["A", "B"])).await;
        stream.take("SOTW-100", Cds, &["A", "B"], &[("A", 1), ("B", 1)]).await?;
    }
    Ok(())
}

async fn equal_versions(ctx: Ctx) -> Outcome {
    ctx.given(Cds, &["A"]).await?;
    let mut versions = Vec::new();
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = ctx.open(Sotw, Cds).await?;
        stream.ask(RequestFields::names(Cds, &["A"])).await;
        versions.push(stream.take("SOTW-41", Cds, &["A"], &[("A", 1)]).await?.version);
        streams.push(stream);
    }
    ctx.set(Cds, "A", 2).await?;
    for stream in &mut streams {
        versions.push(stream.take("ADS-02", Cds, &["A"], &[("A", 2)]).await?.version);
    }
    let holds =
        versions[0] == versions[1] && versions[2] == versions[3] && versions[0] != versions[2];
    ensure(
        "SOTW-14",
        holds,
        "equal versions on both streams, and a new one after the change",
        || format!("versions {}", versions.join(", ")),
    )
}
