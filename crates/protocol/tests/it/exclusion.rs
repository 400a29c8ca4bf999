//! Random renames, exchanges of keys, conflicts, rejections and reconnections, with a client that rejects two
//! resources with one key, as Envoy does.
//!
//! Each case checks three rules. A response never takes a key away from the client if the author has a resource
//! with that key. After all problems are repaired, the client has exactly the view. Nothing is sent without end
//! while a problem stands.
//! `CHANCERY_TEST_SEED=<seed>` repeats one case and prints its events.

mod client;
mod world;

use chancery_protocol::Protocol::{Delta, Sotw};

use world::World;

const CASES: u64 = 1_000;

fn check(protocol: chancery_protocol::Protocol, child: &'static str, parent: &'static str) {
    let seed = std::env::var("CHANCERY_TEST_SEED").ok().map(|text| text.parse::<u64>().unwrap());
    let seeds = seed.map_or(0..CASES, |seed| seed..seed + 1);
    for n in seeds {
        let mut world = World::new(protocol, child, parent, n);
        world.is_shown = seed.is_some();
        world.run();
    }
}

/// ADS-08, ADS-09, DELTA-16, DELTA-44, DELTA-46, DELTA-53: scoped routes over delta.
#[test]
fn delta_scopes_keep_their_keys_and_converge() {
    check(Delta, chancery_model::types::SCOPED_ROUTE, chancery_model::types::LISTENER);
}

/// ADS-08, ADS-09, SOTW-23, SOTW-73: scoped routes over SotW.
#[test]
fn sotw_scopes_keep_their_keys_and_converge() {
    check(Sotw, chancery_model::types::SCOPED_ROUTE, chancery_model::types::LISTENER);
}

/// ADS-08, DELTA-16, DELTA-44, DELTA-46, DELTA-60: virtual hosts.
#[test]
fn virtual_hosts_keep_their_domains_and_converge() {
    check(Delta, chancery_model::types::VIRTUAL_HOST, chancery_model::types::ROUTE);
}
