//! Area DYN: dynamic parameters, which select one variant of a resource.

use std::sync::Arc;

use super::row::{BOTH, Row, of, row};
use crate::{
    case::{Basis, Case, Running},
    ctx::Ctx,
    kind::Kind::{Cds, Eds},
    outcome::{Outcome, Stop, ensure},
    stream::{
        RequestFields, Stream, StreamService,
        Variant::{self, Delta, Sotw},
    },
};

/// The variants of most cases.
const PROD: (&str, u32) = ("A[env=prod]", 1);
const TEST: (&str, u32) = ("A[env=test]", 2);

/// A case of both variants of the protocol: name, requirements, sentence, function.
type Shared = (&'static str, &'static [&'static str], &'static str, fn(Ctx, Variant) -> Running);

const SHARED: [Shared; 8] = [
    (
        "matching-variant-is-sent",
        &["DYN-03", "DYN-04"],
        "A name with parameters receives the variant that matches them, with its constraints.",
        |ctx, variant| Box::pin(matching(ctx, variant)),
    ),
    (
        "other-parameters-have-no-effect",
        &["DYN-03"],
        "Parameters that no constraint mentions do not matter.",
        |ctx, variant| Box::pin(others(ctx, variant)),
    ),
    (
        "no-variant-matches",
        &["DYN-03"],
        "A name with parameters that no variant matches receives none, and later the first one that does.",
        |ctx, variant| Box::pin(mismatch(ctx, variant)),
    ),
    (
        "two-sets-of-parameters",
        &["DYN-01", "DYN-10"],
        "A client may subscribe to one name with two sets of parameters, beside a plain name.",
        |ctx, variant| Box::pin(two_sets(ctx, variant)),
    ),
    (
        "plain-name-has-no-parameters",
        &["DYN-09"],
        "A plain name receives the variant for clients without parameters.",
        |ctx, variant| Box::pin(plain(ctx, variant)),
    ),
    (
        "wildcard-with-parameters",
        &["DYN-03", "DYN-04"],
        "A wildcard with parameters receives the matching variants, and all resources without constraints.",
        |ctx, variant| Box::pin(wildcard(ctx, variant)),
    ),
    (
        "change-of-other-variant-is-silent",
        &["DYN-02", "DYN-03"],
        "A change of another variant of the name receives no response.",
        |ctx, variant| Box::pin(other_variant(ctx, variant)),
    ),
    (
        "rejection-concerns-one-variant",
        &["DYN-02"],
        "After the rejection of one variant, another variant of the name is still updated.",
        |ctx, variant| Box::pin(rejection(ctx, variant)),
    ),
];

/// Returns the cases of both variants of the protocol, and those of delta.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = of("delta-dynamic", DELTA);
    for (variant, service) in
        Variant::BOTH.into_iter().flat_map(|it| StreamService::BOTH.map(|service| (it, service)))
    {
        for (name, requirements, shows, check) in SHARED {
            cases.push(Case {
                name: format!("{}-dynamic/{}/{name}", variant.name(), service.name()),
                requirements,
                basis: Basis::Protocol,
                shows,
                service,
                check: Arc::new(move |ctx| check(ctx, variant)),
            });
        }
    }
    cases
}

const DELTA: &[Row] = &[
    row!(
        "removed-variant-has-constraints",
        Protocol,
        BOTH,
        ["DYN-08", "DELTA-73"],
        "The removal of a variant names its constraints, in removed_resource_names.",
        removal
    ),
    row!(
        "unsubscribe-needs-equal-parameters",
        Protocol,
        BOTH,
        ["DYN-12"],
        "Only the same name with the same parameters ends a subscription.",
        unsubscribe
    ),
];

/// Opens a stream with the variants `prod` and `test`, and subscribes to names.
async fn subscribed(ctx: &Ctx, variant: Variant, names: &[&str]) -> Result<Stream, Stop> {
    ctx.publish(&[(Eds, PROD.0, PROD.1), (Eds, TEST.0, TEST.1), (Eds, "B", 3)]).await?;
    let mut stream = ctx.open(variant, Eds).await?;
    stream.ask(RequestFields::names(Eds, names)).await;
    Ok(stream)
}

async fn matching(ctx: Ctx, variant: Variant) -> Outcome {
    let names = ["A[env=prod]"];
    let mut stream = subscribed(&ctx, variant, &names).await?;
    stream.take("DYN-04", Eds, &names, &[PROD]).await?;
    ctx.set(Eds, PROD.0, 4).await?;
    stream.exactly("DYN-03", Eds, &[(PROD.0, 4)]).await.map(drop)
}

async fn others(ctx: Ctx, variant: Variant) -> Outcome {
    let mut stream = subscribed(&ctx, variant, &["A[env=test,zone=x]"]).await?;
    stream.exactly("DYN-03", Eds, &[TEST]).await.map(drop)
}

async fn mismatch(ctx: Ctx, variant: Variant) -> Outcome {
    let names = ["A[env=qa]"];
    let mut stream = subscribed(&ctx, variant, &names).await?;
    // A server may say that nothing matches.
    if let Some(reply) = stream.maybe("DYN-03").await? {
        ensure("DYN-03", reply.items.is_empty(), "no variant", || reply.to_string())?;
        stream.ack(&reply, &names).await;
    }
    ctx.set(Eds, "A[env=qa]", 5).await?;
    loop {
        let reply = stream.next("DYN-03", "a response with A[env=qa]@5").await?;
        // A slow server may send the empty response to the subscription only after the change.
        if !reply.items.is_empty() {
            return reply.exactly("DYN-03", Eds, &[("A[env=qa]", 5)]);
        }
        stream.ack(&reply, &names).await;
    }
}

async fn two_sets(ctx: Ctx, variant: Variant) -> Outcome {
    let names = ["A[env=prod]", "A[env=test]", "B"];
    let mut stream = subscribed(&ctx, variant, &names).await?;
    stream.exactly("DYN-10", Eds, &[PROD, TEST, ("B", 3)]).await.map(drop)
}

async fn plain(ctx: Ctx, variant: Variant) -> Outcome {
    ctx.publish(&[(Eds, PROD.0, PROD.1), (Eds, "A[!env]", 2)]).await?;
    let mut stream = ctx.open(variant, Eds).await?;
    stream.ask(RequestFields::names(Eds, &["A"])).await;
    let reply = stream.next("DYN-09", "a response with the variant A[!env]@2").await?;
    // A server that knows of locators on this stream may send constraints.
    let holds = reply.items.len() == 1 && reply.items[0].generation == Some(2);
    ensure("DYN-09", holds, "the variant A[!env]@2", || reply.to_string())
}

async fn wildcard(ctx: Ctx, variant: Variant) -> Outcome {
    ctx.publish(&[(Cds, PROD.0, PROD.1), (Cds, TEST.0, TEST.1), (Cds, "B", 3)]).await?;
    let mut stream = ctx.open(variant, Cds).await?;
    stream.ask(RequestFields::names(Cds, &["*[env=prod]"])).await;
    stream.exactly("DYN-03", Cds, &[PROD, ("B", 3)]).await.map(drop)
}

async fn other_variant(ctx: Ctx, variant: Variant) -> Outcome {
    let names = ["A[env=prod]"];
    let mut stream = subscribed(&ctx, variant, &names).await?;
    stream.take("DYN-03", Eds, &names, &[PROD]).await?;
    ctx.set(Eds, TEST.0, 4).await?;
    stream.quiet("DYN-03", "no response for another variant").await
}

async fn rejection(ctx: Ctx, variant: Variant) -> Outcome {
    let names = ["A[env=prod]", "A[env=test]"];
    let mut stream = subscribed(&ctx, variant, &names).await?;
    let accepted = stream.take("DYN-10", Eds, &names, &[PROD, TEST]).await?;
    ctx.set(Eds, PROD.0, 3).await?;
    let rejected = stream.next("DYN-03", "a response with A[env=prod]@3").await?;
    let sent = rejected.item(PROD.0).and_then(|item| item.generation);
    ensure("DYN-03", sent == Some(3), "A[env=prod]@3", || rejected.to_string())?;
    let repeated: &[&str] = if variant == Sotw { &names } else { &[] };
    stream.ask(RequestFields::nack(&rejected, repeated, &accepted.version)).await;
    ctx.set(Eds, TEST.0, 4).await?;
    let next = stream.next("DYN-02", "a response with A[env=test]@4").await?;
    let sent = next.item(TEST.0).and_then(|item| item.generation);
    ensure("DYN-02", sent == Some(4), "A[env=test]@4", || next.to_string())
}

async fn removal(ctx: Ctx) -> Outcome {
    let names = ["A[env=prod]"];
    let mut stream = subscribed(&ctx, Delta, &names).await?;
    stream.take("DYN-04", Eds, &names, &[PROD]).await?;
    ctx.remove(Eds, PROD.0).await?;
    stream.removes("DYN-08", Eds, &[PROD.0]).await.map(drop)
}

async fn unsubscribe(ctx: Ctx) -> Outcome {
    let names = ["A[env=prod]", "A[env=test]"];
    let mut stream = subscribed(&ctx, Delta, &names).await?;
    stream.take("DYN-10", Eds, &names, &[PROD, TEST]).await?;
    let other = ["A[env=prod,zone=x]", "A[env=test]"];
    stream.ask(RequestFields { unsubscribe: &other, ..RequestFields::names(Eds, &[]) }).await;
    stream.quiet("DYN-12", "no response to unsubscribing").await?;
    // The response to this request shows that the server has read the previous one.
    stream.ask(RequestFields::names(Eds, &["B"])).await;
    stream.take("DYN-12", Eds, &[], &[("B", 3)]).await?;
    ctx.publish(&[(Eds, PROD.0, 3), (Eds, TEST.0, 4)]).await?;
    stream.exactly("DYN-12", Eds, &[(PROD.0, 3)]).await.map(drop)
}
