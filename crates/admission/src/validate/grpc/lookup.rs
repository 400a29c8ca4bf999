//! The cluster specifier plugin of the route lookup service (GRPCV-30). Envoy does not have its message.

use std::collections::{HashMap, HashSet};

use prost::Message as _;
use prost_types::Duration;

use super::rules::{At, CPP, Clients, DURATION, GO, Rules, SECONDS_MAX};

const ID: &str = "grpc.specifier_plugin";

/// `grpc.lookup.v1.RouteLookupClusterSpecifier`.
#[derive(Clone, PartialEq, prost::Message)]
struct Specifier {
    #[prost(message, optional, tag = "1")]
    config: Option<Config>,
}

/// `grpc.lookup.v1.RouteLookupConfig`.
#[derive(Clone, PartialEq, prost::Message)]
struct Config {
    #[prost(message, repeated, tag = "2")]
    builders: Vec<Builder>,
    #[prost(string, tag = "3")]
    lookup_service: String,
    #[prost(message, optional, tag = "4")]
    lookup_service_timeout: Option<Duration>,
    #[prost(message, optional, tag = "5")]
    max_age: Option<Duration>,
    #[prost(message, optional, tag = "6")]
    stale_age: Option<Duration>,
    #[prost(int64, tag = "7")]
    cache_size_bytes: i64,
}

/// `grpc.lookup.v1.GrpcKeyBuilder`.
#[derive(Clone, PartialEq, prost::Message)]
struct Builder {
    #[prost(message, repeated, tag = "1")]
    names: Vec<Name>,
    #[prost(message, repeated, tag = "2")]
    headers: Vec<Header>,
    #[prost(message, optional, tag = "3")]
    extra_keys: Option<ExtraKeys>,
    #[prost(map = "string, string", tag = "4")]
    constant_keys: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
struct Name {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "2")]
    method: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Header {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, repeated, tag = "2")]
    names: Vec<String>,
    #[prost(bool, tag = "3")]
    required_match: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ExtraKeys {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(string, tag = "2")]
    service: String,
    #[prost(string, tag = "3")]
    method: String,
}

/// Checks the encoded message of the plugin. `at` is the place of the `Any`, whose fields have no places of their
/// own.
pub(super) fn check(body: &[u8], at: &At<'_>, rules: &mut Rules) {
    let rule = "gRPC clients (Go) reject this plugin, unless their program imports the package balancer/rls";
    rules.note(at, GO, ID, rule);
    let mut refuse = |clients, reason: &str| rules.refuse(at, clients, ID, reason, "");
    let Ok(specifier) = Specifier::decode(body) else {
        return refuse(CPP | GO, "the message of the plugin cannot be decoded");
    };
    let Some(config) = specifier.config else {
        return refuse(CPP | GO, "route_lookup_config is missing");
    };
    let ages = [&config.lookup_service_timeout, &config.max_age, &config.stale_age];
    let is_valid = |age: &Duration| {
        (0..=SECONDS_MAX).contains(&age.seconds) && (0..=999_999_999).contains(&age.nanos)
    };
    if !ages.into_iter().flatten().all(is_valid) {
        refuse(CPP, DURATION);
    }
    if config.lookup_service.is_empty() {
        refuse(CPP | GO, "route_lookup_config.lookup_service is empty");
    }
    if config.cache_size_bytes <= 0 {
        refuse(CPP | GO, "route_lookup_config.cache_size_bytes must be greater than 0");
    }
    if config.builders.is_empty() {
        refuse(CPP | GO, "route_lookup_config.grpc_keybuilders is empty");
    }
    // Go reads a duration of 0 as an absent one.
    let is_zero = |age: &Option<Duration>| age.is_none_or(|age| age == Duration::default());
    let (max, stale) = (&config.max_age, &config.stale_age);
    let cpp = CPP.when(stale.is_some() && max.is_none());
    let clients = cpp | GO.when(!is_zero(stale) && is_zero(max));
    refuse(clients, "route_lookup_config has stale_age without max_age");
    let mut names = HashSet::new();
    for builder in &config.builders {
        self::names(builder, &mut names, &mut refuse);
        keys(builder, &mut refuse);
    }
}

/// Checks the names of the methods to which a key builder applies.
fn names<'b>(
    builder: &'b Builder,
    names: &mut HashSet<&'b Name>,
    refuse: &mut impl FnMut(Clients, &str),
) {
    if builder.names.is_empty() {
        refuse(CPP | GO, "a key builder has no names");
    }
    for name in &builder.names {
        if name.service.is_empty() {
            refuse(CPP | GO, "a name of a key builder has no service");
        }
        if name.method.contains('/') {
            refuse(GO, "the method of a name of a key builder has a slash");
        }
        if !names.insert(name) {
            refuse(CPP | GO, "two key builders have the same name");
        }
    }
}

/// Checks the keys of a key builder. Go does not compare the extra keys with each other.
fn keys(builder: &Builder, refuse: &mut impl FnMut(Clients, &str)) {
    const REPEATED: &str = "a key builder has a key twice";
    let mut seen: HashSet<&str> = builder.constant_keys.keys().map(String::as_str).collect();
    for header in &builder.headers {
        if header.required_match {
            refuse(CPP | GO, "a header of a key builder has required_match");
        }
        if header.names.is_empty() || header.names.iter().any(String::is_empty) {
            refuse(CPP, "a header of a key builder has an empty name, or no names");
        }
        if !seen.insert(&header.key) {
            refuse(CPP | GO, REPEATED);
        }
    }
    if seen.contains("") {
        refuse(CPP | GO, "a key of a key builder is empty");
    }
    let Some(ExtraKeys { host, service, method }) = &builder.extra_keys else { return };
    let mut extra: HashSet<&str> = HashSet::new();
    for key in [host, service, method].into_iter().filter(|key| !key.is_empty()) {
        if seen.contains(key.as_str()) {
            refuse(CPP | GO, REPEATED);
        } else if !extra.insert(key) {
            refuse(CPP, REPEATED);
        }
    }
}
