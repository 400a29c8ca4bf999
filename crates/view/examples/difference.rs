//! Builds a state, resolves a view of two scopes, and computes the difference after a change.
//!
//! Run it with `cargo run -p chancery-view --example difference`.

#![expect(clippy::print_stdout, reason = "an example shows its result")]

use std::error::Error;

use chancery_model::{
    Incarnation, ResourceDraft, ResourceKey, ResourceName, ScopeName, State, Transaction, TypeUrl,
    Upsert, types,
};
use chancery_view::{Differ, View, difference};

/// Returns an upsert of a cluster in a scope.
fn cluster(scope: &ScopeName, name: &str, body: &'static str) -> Result<Upsert, Box<dyn Error>> {
    let type_url = TypeUrl::from_static(types::CLUSTER);
    let key = ResourceKey { type_url, name: ResourceName::new(name)? };
    Ok(Upsert { scope: scope.clone(), draft: ResourceDraft::new(key, body.into()) })
}

fn main() -> Result<(), Box<dyn Error>> {
    let (own, shared) = (ScopeName::new("team-a")?, ScopeName::new("shared")?);
    let upserts = vec![cluster(&shared, "auth", "shared")?, cluster(&shared, "dns", "shared")?];
    let before = State::new(Incarnation(1));
    let before = before.apply(&Transaction { upserts, ..Transaction::default() }).state;

    // The scope of the team shadows the shared one.
    let upserts = vec![cluster(&own, "auth", "own")?, cluster(&own, "web", "own")?];
    let after = before.apply(&Transaction { upserts, ..Transaction::default() }).state;

    let scopes = [own, shared];
    let type_url = TypeUrl::from_static(types::CLUSTER);
    let [from, to] =
        [&before, &after].map(|state| View::resolve(state, &scopes).of_type(&type_url));
    let difference = difference(&Differ::new(), &from, &to);

    let mut changed: Vec<&str> =
        difference.changed.iter().map(|resource| resource.name().as_str()).collect();
    changed.sort_unstable();
    println!("{} clusters, changed: {}", to.iter().count(), changed.join(", "));
    assert_eq!(changed, ["auth", "web"]);
    assert!(difference.removed.is_empty());
    Ok(())
}
