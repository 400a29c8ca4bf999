//! The kinds of clients, and the versions of clients.

use std::fmt;

/// A kind of client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientKind {
    /// Envoy, of any build.
    Envoy,
    /// gRPC C-core: C++, Python, Ruby, PHP.
    GrpcCpp,
    /// gRPC Go (`google.golang.org/grpc/xds`).
    GrpcGo,
    /// gRPC Java (`grpc-xds`).
    GrpcJava,
    /// gRPC Node (`@grpc/grpc-js-xds`).
    GrpcNode,
}

impl ClientKind {
    pub(crate) const NAMES: [(&'static str, Self); 5] = [
        ("envoy", Self::Envoy),
        ("grpc-cpp", Self::GrpcCpp),
        ("grpc-go", Self::GrpcGo),
        ("grpc-java", Self::GrpcJava),
        ("grpc-node", Self::GrpcNode),
    ];

    pub(crate) fn read(name: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, kind)| *kind).ok_or_else(|| {
            let known: Vec<&str> = Self::NAMES.iter().map(|(name, _)| *name).collect();
            format!("expected {}, found {name:?}", known.join(", "))
        })
    }

    /// Returns the name in profiles.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// The minor version of a client, such as 1.70.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
}

impl ClientVersion {
    /// Reads `1`, `1.70` or `1.70.2-dev`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.strip_prefix('v').unwrap_or(text).split(['.', '-', '+']);
        let major = numbers.next()?.parse().ok()?;
        let minor = match numbers.next() {
            None => 0,
            Some(minor) => minor.parse().ok()?,
        };
        Some(Self { major, minor })
    }
}

impl fmt::Display for ClientVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
