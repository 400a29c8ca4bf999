//! Client profiles: the clients for which the resources of a scope are checked.
//!
//! The configuration or a call can declare the clients of a scope. Otherwise, the connected clients count. If
//! no client is connected either, resources are checked for Envoy.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
    sync::Arc,
};

use chancery_model::ScopeName;

pub use crate::client_kind::{ClientKind, ClientVersion};
use crate::clients::{Clients, ENVOY, GRPC, Known, NONE};

/// A kind of client, with its version if it is known. `Display` and `FromStr` use the form
/// `grpc-go@1.70`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientProfile {
    /// The implementation of xDS.
    pub kind: ClientKind,
    /// The version; `None` stands for a recent version.
    pub version: Option<ClientVersion>,
}

impl ClientProfile {
    /// Returns a kind of client without a version.
    #[must_use]
    pub fn of(kind: ClientKind) -> Self {
        Self { kind, version: None }
    }

    /// Returns the set of this client alone.
    fn clients(self) -> Clients {
        Clients::of(self.kind, self.version)
    }

    /// Returns the profile of a client with this user agent: `name/version`. An unknown user
    /// agent counts as Envoy, because the rules of Envoy are those of the API.
    ///
    /// C-core reports the version of its core and that of the language: `C-core 58.0.0 Python 1.85.1`.
    #[must_use]
    pub fn of_user_agent(user_agent: &str) -> Self {
        Self::of_known_user_agent(user_agent).unwrap_or(Self::of(ClientKind::Envoy))
    }

    /// Returns the profile of a client with this user agent; `None` if it names no known kind of client.
    #[must_use]
    pub fn of_known_user_agent(user_agent: &str) -> Option<Self> {
        let (name, version) = user_agent.split_once('/').unwrap_or((user_agent, ""));
        let version = ClientVersion::parse(version.rsplit(' ').next().unwrap_or_default());
        let kind = match name {
            name if name.starts_with("gRPC C-core") => ClientKind::GrpcCpp,
            name if name.starts_with("gRPC Go") => ClientKind::GrpcGo,
            name if name.starts_with("gRPC Java") => ClientKind::GrpcJava,
            name if name.starts_with("gRPC Node") => ClientKind::GrpcNode,
            "envoy" => return Some(Self { kind: ClientKind::Envoy, version }),
            _ => return None,
        };
        // C-core has version numbers of its own.
        let version = version.filter(|version| version.major == 1);
        Some(Self { kind, version })
    }
}

impl fmt::Display for ClientProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        match self.version {
            Some(version) => write!(f, "@{version}"),
            None => Ok(()),
        }
    }
}

impl FromStr for ClientProfile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, version) = match text.split_once('@') {
            Some((name, version)) => (name, Some(version)),
            None => (text, None),
        };
        let kind = ClientKind::read(name)?;
        let known = Known::of(kind);
        let read = |version| {
            let read = ClientVersion::parse(version).filter(|version| known.contains(*version));
            read.ok_or_else(|| {
                let range = known.range();
                format!(
                    "the version {version:?} of {name} is unknown; the known versions are {range}"
                )
            })
        };
        Ok(Self { kind, version: version.map(read).transpose()? })
    }
}

/// The origin of the clients of a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileSource {
    /// The configuration or the call names the clients.
    Declared,
    /// The clients are connected to this replica or to others.
    Connected,
    /// Nothing is known about the clients: Envoy is assumed.
    Assumed,
}

impl ProfileSource {
    /// Returns the word for the source in answers.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Connected => "connected",
            Self::Assumed => "assumed",
        }
    }
}

/// Connected clients of one release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectedClient {
    /// The kind and the minor version.
    pub profile: ClientProfile,
    /// The third number of the version.
    pub patch: Option<u32>,
}

impl ConnectedClient {
    /// Returns the client with this user agent; see [`ClientProfile::of_user_agent`].
    #[must_use]
    pub fn of_user_agent(user_agent: &str) -> Self {
        let profile = ClientProfile::of_user_agent(user_agent);
        let version = user_agent.rsplit(['/', ' ']).next().unwrap_or_default();
        let is_digit = |c: char| c.is_ascii_digit();
        let patch = profile.version.and_then(|_| {
            let patch = version.split(['.', '-', '+']).nth(2)?;
            patch.trim_end_matches(|c| !is_digit(c)).parse().ok()
        });
        Self { profile, patch }
    }

    /// Returns the client of the text that `Display` formats, whatever its version is.
    ///
    /// # Errors
    /// If the kind of client is not known, or the version is malformed.
    pub fn read(text: &str) -> Result<Self, String> {
        let (name, version) = match text.split_once('@') {
            Some((name, version)) => (name, Some(version)),
            None => (text, None),
        };
        let kind = ClientKind::read(name)?;
        let malformed = || format!("{text:?} is not a client with a version");
        let number = |part: &str| part.parse().map_err(|_| malformed());
        let (version, patch) = match version {
            None => (None, None),
            Some(text) => {
                let mut parts = text.split('.');
                let (major, minor) = parts.next().zip(parts.next()).ok_or_else(malformed)?;
                let version = ClientVersion { major: number(major)?, minor: number(minor)? };
                (Some(version), parts.next().map(number).transpose()?)
            }
        };
        Ok(Self { profile: ClientProfile { kind, version }, patch })
    }

    /// Returns the name in findings, such as `Envoy 1.37.0`.
    fn title(self) -> String {
        let kind = Known::of(self.profile.kind);
        let title = if kind.kind == ClientKind::Envoy {
            kind.title.to_owned()
        } else {
            format!("gRPC {}", kind.title)
        };
        match (self.profile.version, self.patch) {
            (None, _) => title,
            (Some(version), None) => format!("{title} {version}"),
            (Some(version), Some(patch)) => format!("{title} {version}.{patch}"),
        }
    }
}

impl fmt::Display for ConnectedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.profile.fmt(f)?;
        match self.patch {
            Some(patch) => write!(f, ".{patch}"),
            None => Ok(()),
        }
    }
}

/// The clients of each scope, as connected streams show them, with their number.
pub type ConnectedClients = BTreeMap<ScopeName, BTreeMap<ConnectedClient, u64>>;

/// The maximum number of releases that a finding names.
const RELEASES_MAX: usize = 3;

/// The clients of all scopes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Profiles {
    /// The clients of this call, which replace all others.
    pub call: Option<Arc<[ClientProfile]>>,
    /// The declared clients of scopes.
    pub scopes: Arc<BTreeMap<ScopeName, Vec<ClientProfile>>>,
    /// The declared clients of all other scopes.
    pub default: Option<Arc<[ClientProfile]>>,
    /// The clients that are connected to this replica.
    pub connected: Arc<ConnectedClients>,
    /// The clients that are connected to other replicas, as far as known.
    pub connected_elsewhere: Arc<ConnectedClients>,
    /// The number of replicas whose clients are not known.
    pub n_unknown_replicas: usize,
}

impl Profiles {
    /// Returns the declared clients of a scope.
    fn declared(&self, scope: &ScopeName) -> Option<&[ClientProfile]> {
        let of_scope = || self.scopes.get(scope).map(Vec::as_slice);
        self.call.as_deref().or_else(of_scope).or(self.default.as_deref())
    }

    fn connected(&self, scope: &ScopeName) -> impl Iterator<Item = &ClientProfile> {
        self.counted(scope).map(|(client, _)| &client.profile)
    }

    fn counted(&self, scope: &ScopeName) -> impl Iterator<Item = (&ConnectedClient, &u64)> {
        let all = [&self.connected, &self.connected_elsewhere].into_iter();
        all.filter_map(|clients| clients.get(scope)).flatten()
    }

    /// Returns how many of the connected nodes of a scope are in a set, with their releases:
    /// `2 of 340 connected nodes (Envoy 1.37.0)`. `None` without any.
    pub(crate) fn connected_nodes(&self, scope: &ScopeName, clients: Clients) -> Option<String> {
        let (mut n_all, mut n, mut releases) = (0, 0, BTreeSet::new());
        for (client, count) in self.counted(scope) {
            n_all += count;
            if clients.intersects(client.profile.clients()) {
                n += count;
                releases.insert(client.title());
            }
        }
        if n == 0 {
            return None;
        }
        let more = releases.len().saturating_sub(RELEASES_MAX);
        let mut names: Vec<String> = releases.into_iter().take(RELEASES_MAX).collect();
        if more > 0 {
            names.push(format!("{more} more"));
        }
        let nodes = if n_all == 1 { "node" } else { "nodes" };
        Some(format!("{n} of {n_all} connected {nodes} ({})", names.join(", ")))
    }

    /// Returns the clients for which the resources of a scope are checked, and their origin.
    #[must_use]
    pub fn of_scope(&self, scope: &ScopeName) -> (ProfileSource, Vec<ClientProfile>) {
        if let Some(declared) = self.declared(scope) {
            return (ProfileSource::Declared, declared.to_vec());
        }
        let connected: BTreeSet<ClientProfile> = self.connected(scope).copied().collect();
        if connected.is_empty() {
            (ProfileSource::Assumed, vec![ClientProfile::of(ClientKind::Envoy)])
        } else {
            (ProfileSource::Connected, connected.into_iter().collect())
        }
    }

    /// Returns the treatment of findings about a resource of a scope.
    pub(crate) fn audience(&self, scope: &ScopeName) -> Audience {
        let mut audience = Audience::default();
        if let Some(declared) = self.declared(scope) {
            declared.iter().for_each(|profile| audience.add(*profile, Treatment::Refuse));
            self.connected(scope).for_each(|profile| audience.add(*profile, Treatment::Warn));
            return audience;
        }
        self.connected(scope).for_each(|profile| audience.add(*profile, Treatment::Refuse));
        let is_known = audience != Audience::default();
        // A replica that was not asked may have clients of any kind.
        let envoy = if is_known && self.n_unknown_replicas == 0 {
            Treatment::Warn
        } else {
            Treatment::Refuse
        };
        if envoy > audience.envoy() {
            audience.put(ClientProfile::of(ClientKind::Envoy), envoy);
        }
        audience.has_envoy |= envoy == Treatment::Refuse;
        audience.is_assumed = !is_known;
        audience
    }
}

/// The treatment of a finding about a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Treatment {
    /// The client does not see the resource.
    #[default]
    Ignore,
    /// The finding does not refuse the resource.
    Warn,
    /// The finding refuses the resource.
    Refuse,
}

/// The clients that see a resource, with the treatment of the findings about each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Audience {
    /// The clients that see the resource, or may see it.
    seen: Clients,
    /// The clients whose findings refuse the resource.
    refusing: Clients,
    /// An Envoy sees the resource, or may see it.
    pub(crate) has_envoy: bool,
    /// Nothing is known about the clients.
    pub(crate) is_assumed: bool,
}

impl Audience {
    /// Returns the audience of a resource that only gRPC clients can use, in a scope whose clients are unknown.
    pub(crate) fn of_unknown_grpc() -> Self {
        let newest =
            [ClientKind::GrpcCpp, ClientKind::GrpcGo, ClientKind::GrpcJava, ClientKind::GrpcNode];
        let seen = newest.map(|kind| ClientProfile::of(kind).clients());
        Self { seen: seen.into_iter().fold(NONE, |all, one| all | one), ..Self::default() }
    }

    /// Returns the audience of a scope without declared or connected clients: Envoy is assumed.
    pub(crate) fn unknown() -> Self {
        let mut audience = Self { has_envoy: true, is_assumed: true, ..Self::default() };
        audience.put(ClientProfile::of(ClientKind::Envoy), Treatment::Refuse);
        audience
    }

    /// Returns the audience of one client of each kind, for measurements.
    pub(crate) fn of_all() -> Self {
        let mut audience = Self::default();
        for (_, kind) in ClientKind::NAMES {
            audience.add(ClientProfile::of(kind), Treatment::Refuse);
        }
        audience
    }

    fn add(&mut self, profile: ClientProfile, treatment: Treatment) {
        self.put(profile, treatment);
        self.has_envoy |= profile.kind == ClientKind::Envoy;
    }

    fn put(&mut self, profile: ClientProfile, treatment: Treatment) {
        let client = profile.clients();
        self.seen = self.seen | client.when(treatment >= Treatment::Warn);
        self.refusing = self.refusing | client.when(treatment == Treatment::Refuse);
    }

    /// Returns the strictest treatment of a finding about Envoy.
    pub(crate) fn envoy(&self) -> Treatment {
        if self.refusing.intersects(ENVOY) {
            Treatment::Refuse
        } else if self.seen.intersects(ENVOY) {
            Treatment::Warn
        } else {
            Treatment::Ignore
        }
    }

    /// Returns whether a gRPC client sees the resource.
    pub(crate) fn has_grpc(&self) -> bool {
        self.seen.intersects(GRPC)
    }

    /// Returns the clients that see the resource.
    pub(crate) fn seen(&self) -> Clients {
        self.seen
    }

    /// Returns the clients whose findings refuse the resource.
    pub(crate) fn refusing(&self) -> Clients {
        self.refusing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::{GO, JAVA, NODE};

    fn scope(name: &str) -> ScopeName {
        ScopeName::new(name).unwrap()
    }

    fn profile(text: &str) -> ClientProfile {
        text.parse().unwrap()
    }

    #[test]
    fn profile_is_a_name_with_an_optional_version() {
        for text in ["envoy", "envoy@1.40", "grpc-cpp", "grpc-go@1.70", "grpc-java", "grpc-node"] {
            assert_eq!(profile(text).to_string(), text);
        }
        assert_eq!(profile("grpc-go@1.70.2-dev").to_string(), "grpc-go@1.70");
        let refused = |text: &str| text.parse::<ClientProfile>().unwrap_err();
        assert!(refused("grpc").starts_with("expected envoy, grpc-cpp"), "{}", refused("grpc"));
        for unknown in ["envoy@0.1", "envoy@1.35", "envoy@1.41", "envoy@1", "envoy@new", "envoy@"] {
            let expected = format!(
                "the version {:?} of envoy is unknown; the known versions are 1.36 to 1.40 (measured: 1.36.4, \
                 1.37.0, 1.38.3, 1.39.3, 1.40.0)",
                unknown.split_once('@').unwrap().1
            );
            assert_eq!(refused(unknown), expected);
        }
        assert!(refused("grpc-java@1.69").contains("known versions are 1.70 to 1.85"));
        assert!(refused("grpc-java@1.86").contains("known versions are 1.70 to 1.85"));
    }

    /// The user agents are those that real clients report.
    #[test]
    fn user_agent_gives_kind_and_version() {
        for (user_agent, expected) in [
            ("envoy/1.40.2", "envoy@1.40"),
            ("gRPC C-core linux Python/C-core 58.0.0 Python 1.85.1", "grpc-cpp@1.85"),
            ("gRPC C-core linux/C-core 58.0.0", "grpc-cpp"),
            ("gRPC Go/1.85.0", "grpc-go@1.85"),
            ("gRPC Java/1.71.0-SNAPSHOT", "grpc-java@1.71"),
            ("gRPC Node Pure JS/1.14.1", "grpc-node@1.14"),
            ("gRPC Rust tonic-xds/0.1.0-alpha.4", "envoy"),
            ("", "envoy"),
        ] {
            assert_eq!(ClientProfile::of_user_agent(user_agent).to_string(), expected);
        }
        for user_agent in ["gRPC Rust tonic-xds/0.1.0-alpha.4", "Envoy/1.40.0", "envoys/1.40.0", ""]
        {
            assert_eq!(ClientProfile::of_known_user_agent(user_agent), None, "{user_agent}");
        }
    }

    fn profiles(declared: &[&str], connected: &[&str], n_unknown_replicas: usize) -> Profiles {
        let declared: Vec<ClientProfile> = declared.iter().map(|text| profile(text)).collect();
        let scopes = (!declared.is_empty()).then(|| (scope("a"), declared));
        let count = |text: &&str| (ConnectedClient { profile: profile(text), patch: None }, 1);
        let connected = (scope("a"), connected.iter().map(count).collect());
        Profiles {
            scopes: Arc::new(scopes.into_iter().collect()),
            connected: Arc::new(BTreeMap::from([connected])),
            n_unknown_replicas,
            ..Profiles::default()
        }
    }

    #[test]
    fn declared_clients_refuse_and_other_connected_clients_warn() {
        let audience = profiles(&["grpc-go@1.70"], &["envoy@1.40", "grpc-go@1.85"], 0);
        let audience = audience.audience(&scope("a"));
        assert_eq!(audience.envoy(), Treatment::Warn);
        assert_eq!(audience.refusing(), GO.until(76));
        assert_eq!(audience.seen(), GO | ENVOY.since(40));
    }

    #[test]
    fn unknown_clients_count_as_envoy() {
        for other_replicas in [0, 2] {
            let audience = profiles(&[], &[], other_replicas).audience(&scope("a"));
            assert_eq!((audience.envoy(), audience.has_grpc()), (Treatment::Refuse, false));
            assert!(audience.is_assumed);
        }
    }

    /// A replica that did not answer may have an Envoy.
    #[test]
    fn connected_grpc_clients_leave_envoy_rules_as_warnings_on_a_single_replica() {
        for (other_replicas, expected) in [(0, Treatment::Warn), (2, Treatment::Refuse)] {
            let audience = profiles(&[], &["grpc-node"], other_replicas).audience(&scope("a"));
            assert_eq!((audience.envoy(), audience.refusing() & GRPC), (expected, NODE));
            assert_eq!(audience.has_envoy, other_replicas > 0);
            assert!(!audience.is_assumed);
        }
    }

    #[test]
    fn clients_of_other_replicas_count_like_those_of_this_one() {
        let here = profiles(&[], &["grpc-go@1.85"], 0);
        let elsewhere = profiles(&[], &["envoy@1.40", "grpc-go@1.70", "grpc-go@1.85"], 0);
        let all = Profiles { connected_elsewhere: elsewhere.connected, ..here };
        let audience = all.audience(&scope("a"));
        assert_eq!(audience.refusing(), GO | ENVOY.since(40));
        let profiles: Vec<String> =
            all.of_scope(&scope("a")).1.iter().map(ToString::to_string).collect();
        assert_eq!(profiles, ["envoy@1.40", "grpc-go@1.70", "grpc-go@1.85"]);
    }

    #[test]
    fn connected_nodes_in_a_set_are_counted_with_their_releases() {
        let agents = [
            ("envoy/1.37.0", 2),
            ("envoy/1.40.1", 338),
            ("gRPC Java/1.71.0-SNAPSHOT", 3),
            ("gRPC C-core linux/C-core 58.0.0", 1),
        ];
        let clients = agents.map(|(agent, n)| (ConnectedClient::of_user_agent(agent), n));
        for (client, _) in clients {
            assert_eq!(ConnectedClient::read(&client.to_string()), Ok(client));
        }
        assert_eq!(
            ConnectedClient::read("envoy@1.20.3").unwrap().to_string(),
            "envoy@1.20.3",
            "an unknown version of a connected client"
        );
        assert!(
            ConnectedClient::read("telnet").is_err() && ConnectedClient::read("envoy@x").is_err()
        );
        let connected = BTreeMap::from([(scope("a"), clients.into())]);
        let profiles = Profiles { connected: Arc::new(connected), ..Profiles::default() };
        let of = |clients| profiles.connected_nodes(&scope("a"), clients);
        assert_eq!(of(ENVOY.until(39)).unwrap(), "2 of 344 connected nodes (Envoy 1.37.0)");
        assert_eq!(of(JAVA.until(72)).unwrap(), "3 of 344 connected nodes (gRPC Java 1.71.0)");
        assert_eq!(
            of(ENVOY | GRPC).unwrap(),
            "344 of 344 connected nodes (Envoy 1.37.0, Envoy 1.40.1, gRPC C++, 1 more)"
        );
        assert_eq!(of(GO), None);
        assert_eq!(profiles.connected_nodes(&scope("b"), ENVOY), None);
    }

    #[test]
    fn profiles_of_call_replace_those_of_scope_and_default() {
        let mut all = profiles(&["grpc-go"], &["envoy"], 0);
        all.default = Some([profile("grpc-java")].into());
        let of = |all: &Profiles, name| {
            let (source, found) = all.of_scope(&scope(name));
            format!("{} {found:?}", source.word())
        };
        let shown = |text| format!("declared {:?}", [profile(text)]);
        assert_eq!(of(&all, "a"), shown("grpc-go"));
        assert_eq!(of(&all, "b"), shown("grpc-java"));
        all.call = Some([profile("envoy")].into());
        assert_eq!(of(&all, "a"), shown("envoy"));
    }
}
