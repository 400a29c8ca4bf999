//! The findings of gRPC clients, and what their rules share.

use std::ops::{BitAnd, BitOr, Sub};

use crate::{
    node::shown,
    problem::{Fault, Severity, shortened},
    profile::{Audience, ClientVersion, Treatment},
    validate::{
        findings::{Step, has_space, path_of},
        tree::Message,
    },
};

/// A set of gRPC clients. The bits have the positions of [`Audience::GRPC`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Clients(u8);

pub(super) const NONE: Clients = Clients(0);
pub(super) const CPP: Clients = Clients(1);
pub(super) const GO: Clients = Clients(2);
pub(super) const JAVA: Clients = Clients(4);
pub(super) const NODE: Clients = Clients(8);
pub(super) const ALL: Clients = Clients(15);

/// The names of the clients in findings, by position.
const TITLES: [&str; 4] = ["C++", "Go", "Java", "Node"];

impl Clients {
    /// Returns the client at a position of [`Audience::GRPC`].
    pub(super) fn at(position: usize) -> Self {
        Self(1 << position)
    }

    pub(super) fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the set if a condition holds, and the empty set otherwise.
    pub(super) fn when(self, condition: bool) -> Self {
        if condition { self } else { NONE }
    }
}

impl BitOr for Clients {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Clients {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Sub for Clients {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// Returns the clients whose position satisfies a condition.
fn all(condition: impl Fn(usize) -> bool) -> Clients {
    let positions = (0..TITLES.len()).filter(|at| condition(*at));
    positions.fold(NONE, |found, at| found | Clients::at(at))
}

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

    /// Returns the clients whose version is at least this one, or unknown.
    pub(super) fn since(&self, clients: Clients, major: u32, minor: u32) -> Clients {
        let version = ClientVersion { major, minor };
        clients & all(|at| self.audience.version(at).is_none_or(|own| own >= version))
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
        self.with(clients, Treatment::Warn)
    }

    fn with(&self, clients: Clients, treatment: Treatment) -> Clients {
        clients & self.readers & all(|at| self.audience.grpc(at) >= treatment)
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
        let clients = self.seen_by(clients);
        if clients == NONE {
            return;
        }
        let is_refused = !self.is_capped && self.with(clients, Treatment::Refuse) != NONE;
        let severity = if is_refused { Severity::Error } else { Severity::Warning };
        let names: Vec<&str> = TITLES
            .into_iter()
            .enumerate()
            .filter(|(at, _)| clients.contains(Clients::at(*at)))
            .map(|(_, title)| title)
            .collect();
        let subject = if names.len() == 1 { "a gRPC client" } else { "gRPC clients" };
        let (names, noun, reason) = (names.join(", "), self.noun, reason.as_ref());
        let rule = format!("{subject} ({names}) would reject this {noun}, because {reason}");
        self.add(at, id, rule, fix, severity);
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
            self.add(at, id, rule.into(), "", Severity::Warning);
        }
    }

    fn add(&mut self, at: &At<'_>, id: &'static str, rule: String, fix: &str, severity: Severity) {
        if has_space(&mut self.faults, severity) {
            let path = at.text();
            self.faults.push(Fault { path, rule, id: id.into(), fix: fix.to_owned(), severity });
        }
    }

    /// Returns the findings.
    pub(super) fn into_faults(self) -> Vec<Fault> {
        self.faults
    }
}

/// The seconds of the longest valid duration of protobuf.
pub(super) const SECONDS_MAX: i64 = 315_576_000_000;

/// Returns whether a duration is valid and not negative.
pub(super) fn is_duration(message: &Message<'_>) -> bool {
    let part = |field| i64::from_le_bytes(message.bits(field).to_le_bytes());
    (0..=SECONDS_MAX).contains(&part("seconds")) && (0..=999_999_999).contains(&part("nanos"))
}

/// The reason of a refusal because of a duration.
pub(super) const DURATION: &str =
    "the duration must have 0 to 315576000000 seconds and 0 to 999999999 nanoseconds";

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
