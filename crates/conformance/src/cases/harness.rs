//! The behaviors of the open `xds-test-harness` (2022): 13 outlines, which are 98 scenarios with their types, variants
//! and services.
//!
//! The outlines count versions of resources. This kit counts generations of their content, because a server may choose
//! its own versions.

use std::sync::Arc;

use super::row::{ADS, BOTH, word};
use crate::{
    case::{Basis, Case},
    client::Client,
    ctx::{Ctx, LATE_UPDATES_MAX},
    kind::Kind::{self, Cds, Eds, Lds, Rds},
    outcome::{Outcome, ensure},
    stream::{
        StreamService,
        Variant::{self, Delta, Sotw},
    },
};

type Check = fn(Ctx, Variant, Kind) -> crate::case::Running;

struct Outline {
    name: &'static str,
    requirements: &'static [&'static str],
    shows: &'static str,
    variants: &'static [Variant],
    kinds: &'static [Kind],
    services: &'static [StreamService],
    check: Check,
}

const FULL: &[Kind] = &[Cds, Lds];
const PARTIAL: &[Kind] = &[Rds, Eds];
const FOUR: &[Kind] = &[Cds, Lds, Rds, Eds];

macro_rules! outline {
    ($name:literal, $variants:expr, $kinds:expr, $services:expr, [$($id:literal),+], $shows:literal, $check:expr) => {
        Outline {
            name: $name,
            requirements: &[$($id),+],
            shows: $shows,
            variants: $variants,
            kinds: $kinds,
            services: $services,
            check: |ctx, variant, kind| Box::pin($check(ctx, variant, kind)),
        }
    };
}

const SOTW: &[Outline] = &[
    outline!(
        "wildcard-receives-all",
        &[Sotw],
        FULL,
        BOTH,
        ["SOTW-61", "SOTW-70"],
        "A wildcard request receives all resources in one response.",
        wildcard_all
    ),
    outline!(
        "wildcard-receives-updates",
        &[Sotw],
        FULL,
        BOTH,
        ["SOTW-70", "SOTW-90"],
        "A wildcard client receives all resources again when one of them changes.",
        wildcard_update
    ),
    outline!(
        "wildcard-receives-additions",
        &[Sotw],
        FULL,
        BOTH,
        ["SOTW-70", "SOTW-90"],
        "A wildcard client receives all resources when a new one is created.",
        wildcard_addition
    ),
    outline!(
        "names-receive-only-these",
        &[Sotw, Delta],
        &[Lds, Rds],
        BOTH,
        ["SOTW-41", "SOTW-48", "DELTA-21", "DELTA-56"],
        "A client that names resources receives these and no others.",
        names_only
    ),
    outline!(
        "names-receive-update-full",
        &[Sotw],
        FULL,
        BOTH,
        ["SOTW-70", "SOTW-90"],
        "When a named resource changes, one response has all named resources.",
        names_update_full
    ),
    outline!(
        "names-receive-update",
        &[Sotw],
        PARTIAL,
        BOTH,
        ["SOTW-90"],
        "When a named resource changes, the client receives it.",
        names_update
    ),
    outline!(
        "missing-name-arrives-later-full",
        &[Sotw],
        FULL,
        BOTH,
        ["SOTW-77", "SOTW-70"],
        "A named resource that is created later arrives with all named resources.",
        missing_full
    ),
    outline!(
        "missing-name-arrives-later",
        &[Sotw],
        PARTIAL,
        BOTH,
        ["SOTW-77"],
        "A named resource that is created later arrives.",
        missing
    ),
    outline!(
        "two-types-on-one-stream",
        &[Sotw],
        &[Cds, Rds],
        ADS,
        ["ADS-01", "SOTW-12"],
        "One aggregated stream serves two types independently.",
        two_types
    ),
    outline!(
        "fewer-names-full",
        &[Sotw],
        FULL,
        BOTH,
        ["SOTW-40", "SOTW-46"],
        "After a request with fewer names, an update of a remaining resource arrives.",
        fewer_names_full
    ),
    outline!(
        "fewer-names",
        &[Sotw],
        PARTIAL,
        BOTH,
        ["SOTW-40", "SOTW-46"],
        "After a request with fewer names, only remaining resources arrive.",
        fewer_names
    ),
    outline!(
        "no-names",
        &[Sotw],
        FOUR,
        BOTH,
        ["SOTW-47"],
        "A client that unsubscribes from everything receives nothing more.",
        no_names
    ),
];

const DELTA: &[Outline] = &[
    outline!(
        "names-one-after-the-other",
        &[Delta],
        FOUR,
        BOTH,
        ["DELTA-20", "DELTA-21"],
        "Each added name is answered with its resource.",
        one_after_the_other
    ),
    outline!(
        "update-of-one",
        &[Delta],
        FOUR,
        BOTH,
        ["DELTA-51", "DELTA-52"],
        "When a resource changes, only that one is sent, with a new version.",
        delta_update
    ),
    outline!(
        "missing-name-is-created",
        &[Delta],
        FOUR,
        BOTH,
        ["DELTA-43"],
        "A subscribed name that does not exist is sent after its creation.",
        delta_missing
    ),
    outline!(
        "removal-and-return",
        &[Delta],
        FOUR,
        BOTH,
        ["DELTA-42", "DELTA-43"],
        "A deleted resource is in removed_resources, and is sent after it returns.",
        delta_removal
    ),
    outline!(
        "unsubscribe",
        &[Delta],
        FOUR,
        BOTH,
        ["DELTA-20", "DELTA-23", "DELTA-28"],
        "Changes of unsubscribed resources are not sent.",
        delta_unsubscribe
    ),
    outline!(
        "two-types-on-one-stream",
        &[Delta],
        FOUR,
        ADS,
        ["ADS-01", "DELTA-03"],
        "One aggregated stream serves two types independently.",
        two_types
    ),
];

/// Returns one case per type, variant and service of each outline.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for outline in SOTW.iter().chain(DELTA) {
        for variant in outline.variants {
            for (kind, service) in outline
                .kinds
                .iter()
                .flat_map(|kind| outline.services.iter().map(move |it| (*kind, *it)))
            {
                let (check, variant) = (outline.check, *variant);
                let (of, on) = (word(kind), service.name());
                cases.push(Case {
                    name: format!("harness/{}/{on}/{of}/{}", variant.name(), outline.name),
                    requirements: outline.requirements,
                    basis: Basis::Protocol,
                    shows: outline.shows,
                    service,
                    check: Arc::new(move |ctx| check(ctx, variant, kind)),
                });
            }
        }
    }
    cases
}

/// No response may follow the last acknowledgment.
const ENOUGH: &str = "no response after the last acknowledgment";

fn silent(variant: Variant) -> &'static str {
    if variant == Sotw { "SOTW-25" } else { "DELTA-55" }
}

async fn wildcard_all(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    ctx.given(kind, &["A", "B", "C"]).await?;
    let mut client = Client::open(&ctx, variant, kind).await?;
    client.subscribe(kind, &[]).await;
    client.until("SOTW-61", kind, &[("A", 1), ("B", 1), ("C", 1)]).await?;
    client.one_response("SOTW-70", kind)?;
    client.quiet("SOTW-25", ENOUGH).await
}

async fn wildcard_update(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    ctx.given(kind, &["A", "B", "C"]).await?;
    let mut client = Client::open(&ctx, variant, kind).await?;
    client.subscribe(kind, &[]).await;
    client.until("SOTW-61", kind, &[("A", 1), ("B", 1), ("C", 1)]).await?;
    ctx.set(kind, "A", 2).await?;
    client.until("SOTW-90", kind, &[("A", 2), ("B", 1), ("C", 1)]).await?;
    client.one_response("SOTW-70", kind)?;
    client.quiet("SOTW-25", ENOUGH).await
}

async fn wildcard_addition(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    ctx.given(kind, &["A", "B", "C"]).await?;
    let mut client = Client::open(&ctx, variant, kind).await?;
    client.subscribe(kind, &[]).await;
    client.until("SOTW-61", kind, &[("A", 1), ("B", 1), ("C", 1)]).await?;
    ctx.set(kind, "D", 1).await?;
    client.until("SOTW-90", kind, &[("A", 1), ("B", 1), ("C", 1), ("D", 1)]).await?;
    client.one_response("SOTW-70", kind)?;
    client.quiet("SOTW-25", ENOUGH).await
}

async fn names_only(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    let (supplied, no_others) =
        if variant == Sotw { ("SOTW-41", "SOTW-48") } else { ("DELTA-21", "DELTA-56") };
    ctx.given(kind, &["A", "B", "C", "D"]).await?;
    let mut client = Client::open(&ctx, variant, kind).await?;
    client.subscribe(kind, &["B", "D"]).await;
    client.until(supplied, kind, &[("B", 1), ("D", 1)]).await?;
    client.only(no_others, kind, &["B", "D"])?;
    client.quiet(silent(variant), ENOUGH).await
}

async fn names_update_full(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    ctx.given(kind, &["A", "B", "C", "D"]).await?;
    let mut client = Client::open(&ctx, variant, kind).await?;
    client.subscribe(kind, &["B", "D"]).await;
    client.until("SOTW-41", kind, &[("B", 1), ("D", 1)]).await?;
    ctx.set(kind, "B", 2).await?;
    client.until("SOTW-90", kind, &[("B", 2), ("D", 1)]).await?;
    client.one_response("SOTW-70", kind)?;
    client.quiet("SOTW-25", ENOUGH).await
}

async fn names_update(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    ctx.given(kind, &["A", "B", "C", "D"]).await?;
    let mut client = Client::open(&ctx, variant, kind).await?;
    client.subscribe(kind, &["B", "D"]).await;
    client.until("SOTW-41", kind, &[("B", 1), ("D", 1)]).await?;
    ctx.set(kind, "B", 2).await?;
    client.until("SOTW-90", kind, &[("B", 2)]).await?;
    client.quiet("SOTW-25", ENOUGH).await
}

async fn missing_full(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    ctx.given(kind, &["A", "B"]).await?;
    let mut client = Client::open(&ctx, variant, kind).await?;
    client.subscribe(kind, &["A", "Z"]).await;
    client.until("SOTW-41", kind, &[("A", 1)]).await?;
    ctx.set(kind, "Z", 1).await?;
    client.until("SOTW-77", kind, &[("A", 1), ("Z", 1)]).await?;
    client.one_response("SOTW-70", kind)?;
    client.quiet("SOTW-25", ENOUGH).await
}

async fn missing(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    ctx.given(kind, &["A", "B"]).await?;
    let mut client = Client::open(&ctx, variant, kind).await?;
    client.subscribe(kind, &["A", "Z"]).await;
    client.until("SOTW-41", kind, &[("A", 1)]).await?;
    ctx.set(kind, "Z", 1).await?;
    client.until("SOTW-77", kind, &[("Z", 1)]).await?;
    client.quiet("SOTW-25", ENOUGH).await
}

async fn two_types(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    let other = match kind {
        Cds => Lds,
        Lds => Cds,
        Rds => Eds,
        _ => Rds,
    };
    let supplied = if variant == Sotw { "SOTW-41" } else { "DELTA-21" };
    let all = ["A", "B", "C"].iter().flat_map(|name| [(kind, *name, 1), (other, *name, 1)]);
    ctx.publish(&all.collect::<Vec<_>>()).await?;
    let mut client = Client::open(&ctx, variant, kind).await?;
    client.subscribe(kind, &["B"]).await;
    client.until(supplied, kind, &[("B", 1)]).await?;
    client.subscribe(other, &["B"]).await;
    client.until(supplied, other, &[("B", 1)]).await?;
    ctx.set(kind, "B", 2).await?;
    client.until("ADS-01", kind, &[("B", 2)]).await?;
    ctx.set(other, "B", 2).await?;
    client.until("ADS-01", other, &[("B", 2)]).await?;
    client.quiet(silent(variant), ENOUGH).await
}

async fn fewer_names_full(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    ctx.given(kind, &["A", "B", "C", "D"]).await?;
    let mut client = Client::open(&ctx, variant, kind).await?;
    client.subscribe(kind, &["A", "B", "C"]).await;
    client.until("SOTW-41", kind, &[("A", 1), ("B", 1), ("C", 1)]).await?;
    client.subscribe(kind, &["A"]).await;
    // A server may answer the smaller subscription.
    client.settle("SOTW-46").await?;
    ctx.set(kind, "A", 2).await?;
    client.until("SOTW-46", kind, &[("A", 2)]).await?;
    client.quiet("SOTW-25", ENOUGH).await
}

async fn fewer_names(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    ctx.given(kind, &["A", "B", "C", "D"]).await?;
    let mut client = Client::open(&ctx, variant, kind).await?;
    client.subscribe(kind, &["B", "D"]).await;
    client.until("SOTW-41", kind, &[("B", 1), ("D", 1)]).await?;
    client.subscribe(kind, &["B"]).await;
    client.settle("SOTW-46").await?;
    ctx.set(kind, "B", 2).await?;
    client.until("SOTW-46", kind, &[("B", 2)]).await?;
    client.only("SOTW-46", kind, &["B"])?;
    client.quiet("SOTW-25", ENOUGH).await
}

async fn no_names(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    ctx.given(kind, &["A", "B", "C"]).await?;
    let mut client = Client::open(&ctx, variant, kind).await?;
    client.subscribe(kind, &["A", "B"]).await;
    client.until("SOTW-41", kind, &[("A", 1), ("B", 1)]).await?;
    client.subscribe(kind, &[]).await;
    client.settle("SOTW-47").await?;
    change_unseen(&ctx, &mut client, "SOTW-47", kind, "B").await
}

/// Changes a resource until the client no longer receives the change. Fails after [`LATE_UPDATES_MAX`] changes. A request
/// that ends a subscription has no response, so the case cannot know when the server has read it.
async fn change_unseen(
    ctx: &Ctx,
    client: &mut Client,
    requirement: &str,
    kind: Kind,
    name: &str,
) -> Outcome {
    for generation in 2..LATE_UPDATES_MAX + 2 {
        client.forget(kind);
        ctx.set(kind, name, generation).await?;
        client.settle(requirement).await?;
        if client.only(requirement, kind, &[]).is_ok() {
            return Ok(());
        }
    }
    client.only(requirement, kind, &[])
}

async fn one_after_the_other(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    ctx.given(kind, &["A", "B", "C"]).await?;
    let mut client = Client::open(&ctx, variant, kind).await?;
    client.subscribe(kind, &["A"]).await;
    client.until("DELTA-21", kind, &[("A", 1)]).await?;
    client.subscribe(kind, &["B"]).await;
    client.until("DELTA-21", kind, &[("B", 1)]).await?;
    client.quiet("DELTA-55", ENOUGH).await
}

async fn delta_update(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    ctx.given(kind, &["A", "B", "C"]).await?;
    let mut client = Client::open(&ctx, variant, kind).await?;
    client.subscribe(kind, &["A", "B", "C"]).await;
    client.until("DELTA-21", kind, &[("A", 1), ("B", 1), ("C", 1)]).await?;
    let before = client.version(kind, "A");
    ctx.set(kind, "A", 2).await?;
    client.until("DELTA-52", kind, &[("A", 2), ("B", 1), ("C", 1)]).await?;
    client.alone("DELTA-52", kind, "A")?;
    let after = client.version(kind, "A");
    ensure("DELTA-51", before != after, "a new version with new content", || {
        format!("the version stays {after:?}")
    })?;
    client.quiet("DELTA-55", ENOUGH).await
}

async fn delta_missing(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    ctx.given(kind, &["A"]).await?;
    let mut client = Client::open(&ctx, variant, kind).await?;
    client.subscribe(kind, &["A", "B"]).await;
    client.until("DELTA-21", kind, &[("A", 1)]).await?;
    client.alone("DELTA-52", kind, "A")?;
    client.settle("DELTA-40").await?;
    ctx.set(kind, "B", 1).await?;
    client.until("DELTA-43", kind, &[("B", 1)]).await?;
    client.alone("DELTA-52", kind, "B")?;
    client.quiet("DELTA-55", ENOUGH).await
}

async fn delta_removal(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    ctx.given(kind, &["A", "B"]).await?;
    let mut client = Client::open(&ctx, variant, kind).await?;
    client.subscribe(kind, &["A", "B"]).await;
    client.until("DELTA-21", kind, &[("A", 1), ("B", 1)]).await?;
    ctx.remove(kind, "B").await?;
    client.until_removed("DELTA-42", kind, "B").await?;
    ctx.set(kind, "B", 2).await?;
    client.until("DELTA-43", kind, &[("A", 1), ("B", 2)]).await?;
    client.alone("DELTA-52", kind, "B")?;
    client.quiet("DELTA-55", ENOUGH).await
}

async fn delta_unsubscribe(ctx: Ctx, variant: Variant, kind: Kind) -> Outcome {
    ctx.given(kind, &["A", "B"]).await?;
    let mut client = Client::open(&ctx, variant, kind).await?;
    client.subscribe(kind, &["A", "B"]).await;
    client.until("DELTA-21", kind, &[("A", 1), ("B", 1)]).await?;
    for name in ["B", "A"] {
        client.unsubscribe(kind, name).await;
        client.quiet("DELTA-23", "no response to a request that only unsubscribes").await?;
        for generation in 2..LATE_UPDATES_MAX + 2 {
            ctx.set(kind, name, generation).await?;
            let is_last = generation > LATE_UPDATES_MAX;
            match client.quiet("DELTA-28", "no response for an unsubscribed resource").await {
                Err(stop) if is_last => return Err(stop),
                Err(_) => client.settle("DELTA-28").await?,
                Ok(()) => break,
            }
        }
    }
    Ok(())
}
