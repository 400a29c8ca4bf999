//! The findings of gRPC clients, and what their rules share.

use std::net::IpAddr;

use super::catalog;
pub(super) use crate::clients::{CPP, Clients, GO, GRPC as ALL, JAVA, NODE, NONE};
use crate::{
    node::shown,
    problem::{Fault, Severity, shortened},
    profile::Audience,
    validate::{
        findings::{Step, has_space, path_of},
        tree::Message,
    },
};

/// The place of a message in a resource.
#[derive(Clone, Copy)]
pub(super) struct At<'p> {
    parent: Option<&'p At<'p>>,
    step: Step<'p>,
}

impl<'p> At<'p> {
    /// Returns the place of the resource.
    pub(super) fn root() -> Self {
        Self { parent: None, step: Step::Field("") }
    }

    pub(super) fn field<'q>(&'q self, name: &'q str) -> At<'q> {
        At { parent: Some(self), step: Step::Field(name) }
    }

    pub(super) fn index<'q>(&'q self, index: usize) -> At<'q> {
        At { parent: Some(self), step: Step::Index(index) }
    }

    pub(super) fn key<'q>(&'q self, key: &'q str) -> At<'q> {
        At { parent: Some(self), step: Step::Key(key) }
    }

    /// Returns the path.
    pub(super) fn text(&self) -> String {
        shortened(path_of(&self.steps()))
    }

    fn steps(&self) -> Vec<Step<'_>> {
        let mut steps = Vec::new();
        let mut at = self;
        while let Some(parent) = at.parent {
            steps.push(at.step);
            at = parent;
        }
        steps.reverse();
        steps
    }
}

/// Collects the findings about one resource.
pub(super) struct Rules {
    audience: Audience,
    /// No finding refuses the resource.
    is_capped: bool,
    /// The clients that read the part that is being checked.
    readers: Clients,
    /// The word for the resource in findings.
    noun: &'static str,
    faults: Vec<Fault>,
}

impl Rules {
    pub(super) fn new(audience: Audience, is_capped: bool, noun: &'static str) -> Self {
        Self { audience, is_capped, readers: ALL, noun, faults: Vec::new() }
    }

    /// Runs the checks of a part that only some clients read.
    pub(super) fn only(&mut self, clients: Clients, check: impl FnOnce(&mut Self)) {
        let outer = self.readers;
        self.readers = outer & clients;
        check(self);
        self.readers = outer;
    }

    /// Returns the clients that see the resource.
    pub(super) fn seen_by(&self, clients: Clients) -> Clients {
        clients & self.readers & self.audience.seen()
    }

    /// Records that clients reject the resource. `reason` is a clause that names the defect.
    /// `fix` is an imperative or empty.
    pub(super) fn refuse(
        &mut self,
        at: &At<'_>,
        clients: Clients,
        id: &'static str,
        reason: impl AsRef<str>,
        fix: &str,
    ) {
        let noun = self.noun;
        self.put(at, clients, id, Severity::Error, fix, |subject| {
            format!("{subject} would reject this {noun}, because {}", reason.as_ref())
        });
    }

    /// Records that clients accept the resource, but not what it protects from. Such a resource is refused.
    pub(super) fn refuse_ignored(
        &mut self,
        at: &At<'_>,
        clients: Clients,
        id: &'static str,
        reason: impl AsRef<str>,
        fix: &str,
    ) {
        let noun = self.noun;
        self.put(at, clients, id, Severity::Error, fix, |subject| {
            format!("{subject} would accept this {noun}, but ignore {}", reason.as_ref())
        });
    }

    /// Records that clients accept the resource, and what then happens to their calls.
    pub(super) fn effect(
        &mut self,
        at: &At<'_>,
        clients: Clients,
        id: &'static str,
        effect: impl AsRef<str>,
        fix: &str,
    ) {
        let noun = self.noun;
        self.put(at, clients, id, Severity::Effect, fix, |subject| {
            format!("{subject} would accept this {noun}, but {}", effect.as_ref())
        });
    }

    fn put(
        &mut self,
        at: &At<'_>,
        clients: Clients,
        id: &'static str,
        severity: Severity,
        fix: &str,
        rule: impl FnOnce(&str) -> String,
    ) {
        let clients = clients & self.readers;
        let seen = self.seen_by(clients);
        if seen == NONE {
            return;
        }
        debug_assert!(catalog::covers(id, clients), "{id} concerns other clients: {clients:?}");
        let is_refused = !self.is_capped && clients.intersects(self.audience.refusing());
        let severity = if is_refused { severity } else { Severity::Warning };
        let names = clients.names(seen);
        let subject = if names.len() == 1 { "a gRPC client" } else { "gRPC clients" };
        let rule = rule(&format!("{subject} ({})", names.join(", ")));
        self.add(at, clients, id, rule, fix, severity);
    }

    /// Records what the author should know for some clients.
    pub(super) fn note(
        &mut self,
        at: &At<'_>,
        clients: Clients,
        id: &'static str,
        rule: impl Into<String>,
    ) {
        if self.seen_by(clients) != NONE {
            self.add(at, NONE, id, rule.into(), "", Severity::Warning);
        }
    }

    fn add(
        &mut self,
        at: &At<'_>,
        clients: Clients,
        id: &'static str,
        rule: String,
        fix: &str,
        severity: Severity,
    ) {
        if has_space(&mut self.faults, severity) {
            let (path, id, fix) = (at.text(), id.into(), fix.to_owned());
            self.faults.push(Fault { path, rule, id, fix, severity, clients });
        }
    }

    /// Returns the findings.
    pub(super) fn into_faults(self) -> Vec<Fault> {
        self.faults
    }
}

/// The maximum of a signed number of 32 bits, as which Java reads unsigned ones.
pub(super) const SIGNED_MAX: u64 = i32::MAX as u64;

/// The seconds of the longest valid duration of protobuf.
pub(super) const SECONDS_MAX: i64 = 315_576_000_000;

/// Returns whether a duration is valid and not negative.
pub(super) fn is_duration(message: &Message<'_>) -> bool {
    let part = |field| i64::from_le_bytes(message.bits(field).to_le_bytes());
    (0..=SECONDS_MAX).contains(&part("seconds")) && (0..=999_999_999).contains(&part("nanos"))
}

/// Returns whether Java can convert a duration to nanoseconds of 64 bits. It accepts a negative duration.
pub(super) fn is_duration_of_java(message: &Message<'_>) -> bool {
    let part = |field| i64::from_le_bytes(message.bits(field).to_le_bytes());
    fits_java(part("seconds"), part("nanos"))
}

fn fits_java(seconds: i64, nanos: i64) -> bool {
    let all = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    nanos.abs() <= 999_999_999
        && seconds.signum() * nanos.signum() >= 0
        && i64::try_from(all).is_ok()
}

/// The reason of a refusal because of a duration.
pub(super) const DURATION: &str =
    "the duration must have 0 to 315576000000 seconds and 0 to 999999999 nanoseconds";

/// Reads an IP address. An IPv6 address may have a zone.
pub(super) fn ip(text: &str) -> Option<IpAddr> {
    match text.split_once('%') {
        Some((ip, zone)) if !zone.is_empty() => ip.parse().ok().filter(IpAddr::is_ipv6),
        _ => text.parse().ok(),
    }
}

/// Returns whether a source of configuration is the server that sent the resource.
pub(super) fn is_own_source(source: Option<&Message<'_>>) -> bool {
    source.is_some_and(|source| source.has("ads") || source.has("self"))
}

/// The name of the type of an extension, and whether its configuration is a `TypedStruct`.
pub(super) struct Extension<'m> {
    pub(super) name: &'m str,
    pub(super) is_struct: bool,
}

/// Returns the type of an extension. The type of a `TypedStruct` is the one that it names.
pub(super) fn extension<'m>(any: &Message<'m>) -> Extension<'m> {
    let name = |url: &'m str| url.rsplit('/').next().unwrap_or(url);
    let outer = name(any.text("type_url"));
    match (outer, any.content.as_deref()) {
        ("xds.type.v3.TypedStruct" | "udpa.type.v1.TypedStruct", Some(content)) => {
            Extension { name: name(content.text("type_url")), is_struct: true }
        }
        _ => Extension { name: outer, is_struct: false },
    }
}

/// Returns why C-core rejects the type URL of a `TypedStruct`: it needs a name behind a `/`.
pub(super) fn bad_struct_url(any: &Message<'_>) -> Option<String> {
    let outer = any.text("type_url").rsplit('/').next();
    let is_struct = matches!(outer, Some("xds.type.v3.TypedStruct" | "udpa.type.v1.TypedStruct"));
    let url = any.content.as_deref()?.text("type_url");
    let has_name = url.rsplit_once('/').is_some_and(|(_, name)| !name.is_empty());
    let reason = || format!("{} is not a type URL, such as type.googleapis.com/NAME", shown(url));
    (is_struct && !has_name).then(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_of_java_fits_64_bits_of_nanoseconds() {
        for (seconds, nanos, expected) in [
            (0, 0, true),
            (-1, -1, true),
            (1, -1, false),
            (0, 1_000_000_000, false),
            (9_223_372_036, 0, true),
            (9_223_372_037, 0, false),
        ] {
            assert_eq!(fits_java(seconds, nanos), expected, "{seconds} {nanos}");
        }
    }
}
