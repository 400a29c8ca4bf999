//! Sets of clients: the kinds of clients with their versions, as the rules of validation name them.

use std::ops::{BitAnd, BitOr, Sub};

use crate::client_kind::{ClientKind, ClientVersion};

/// The known versions of a kind of client. All of them are releases `1.x`.
pub(crate) struct Known {
    pub(crate) kind: ClientKind,
    /// The name in findings.
    pub(crate) title: &'static str,
    /// The minor versions at which some verdict changes, oldest first. The first one is the oldest known version.
    pub(crate) lines: &'static [u32],
    /// The newest known minor version.
    pub(crate) newest: u32,
    /// The releases whose verdicts were measured.
    pub(crate) measured: &'static [&'static str],
}

/// The known clients. The versions are those of real clients that were measured, and between them those of sources.
pub(crate) const KNOWN: [Known; 5] = [
    Known {
        kind: ClientKind::Envoy,
        title: "Envoy",
        lines: &[36, 37, 38, 39, 40],
        newest: 40,
        measured: &["1.36.4", "1.37.0", "1.38.3", "1.39.3", "1.40.0"],
    },
    Known {
        kind: ClientKind::GrpcCpp,
        title: "C++",
        lines: &[70],
        newest: 85,
        measured: &["1.70.0", "1.85.1"],
    },
    Known {
        kind: ClientKind::GrpcGo,
        title: "Go",
        lines: &[70, 76],
        newest: 85,
        measured: &["1.70.0", "1.75.0", "1.85.0"],
    },
    Known {
        kind: ClientKind::GrpcJava,
        title: "Java",
        lines: &[70, 71, 72, 73, 74, 75, 77, 85],
        newest: 85,
        measured: &["1.70.0", "1.78.0", "1.85.1"],
    },
    Known {
        kind: ClientKind::GrpcNode,
        title: "Node",
        lines: &[14],
        newest: 14,
        measured: &["1.14.1"],
    },
];

impl Known {
    pub(crate) fn of(kind: ClientKind) -> &'static Self {
        let found = KNOWN.iter().find(|known| known.kind == kind);
        found.unwrap_or(&KNOWN[0])
    }

    /// Returns whether a version is between the oldest and the newest known one.
    pub(crate) fn contains(&self, version: ClientVersion) -> bool {
        version.major == 1 && (self.lines[0]..=self.newest).contains(&version.minor)
    }

    /// Returns the known versions as text, such as `1.70 to 1.85 (measured: 1.75.0, 1.85.0)`.
    pub(crate) fn range(&self) -> String {
        let (oldest, newest) = (self.lines[0], self.newest);
        let range = if oldest == newest {
            format!("1.{oldest}")
        } else {
            format!("1.{oldest} to 1.{newest}")
        };
        format!("{range} (measured: {})", self.measured.join(", "))
    }
}

/// A set of clients. Each kind has one bit for each of its lines of versions, in the order of [`KNOWN`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Clients(u32);

pub(crate) const NONE: Clients = Clients(0);
pub(crate) const ENVOY: Clients = Clients::of_kind(0);
pub(crate) const CPP: Clients = Clients::of_kind(1);
pub(crate) const GO: Clients = Clients::of_kind(2);
pub(crate) const JAVA: Clients = Clients::of_kind(3);
pub(crate) const NODE: Clients = Clients::of_kind(4);
/// All gRPC clients.
pub(crate) const GRPC: Clients = Clients(CPP.0 | GO.0 | JAVA.0 | NODE.0);
const SETS: [Clients; 5] = [ENVOY, CPP, GO, JAVA, NODE];

impl Clients {
    /// Returns the number of lines of the kinds before a kind.
    const fn offset(kind: usize) -> usize {
        let (mut at, mut sum) = (0, 0);
        while at < kind {
            sum += KNOWN[at].lines.len();
            at += 1;
        }
        sum
    }

    const fn of_kind(kind: usize) -> Self {
        Self(((1 << KNOWN[kind].lines.len()) - 1) << Self::offset(kind))
    }

    /// Returns the clients of the set from a minor version on. The set has one kind, and the version is one of its lines.
    pub(crate) const fn since(self, minor: u32) -> Self {
        let mut kind = 0;
        while self.0 & Self::of_kind(kind).0 == 0 {
            kind += 1;
        }
        let mut line = 0;
        while KNOWN[kind].lines[line] != minor {
            line += 1;
        }
        Self(self.0 & (u32::MAX << (Self::offset(kind) + line)))
    }

    /// Returns the clients of the set before a minor version.
    pub(crate) const fn until(self, minor: u32) -> Self {
        Self(self.0 & !self.since(minor).0)
    }

    /// Returns the client of a kind and a version. A version that is older than all known ones counts as the oldest, and a newer
    /// one, or an absent one, as the newest.
    pub(crate) fn of(kind: ClientKind, version: Option<ClientVersion>) -> Self {
        let kind = KNOWN.iter().position(|known| known.kind == kind).unwrap_or(0);
        let lines = KNOWN[kind].lines;
        let line = match version {
            None => lines.len() - 1,
            Some(version) => {
                let known = |line: &u32| ClientVersion { major: 1, minor: *line } <= version;
                lines.iter().filter(|line| known(line)).count().saturating_sub(1)
            }
        };
        Self(1 << (Self::offset(kind) + line))
    }

    pub(crate) fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the set if a condition holds, and the empty set otherwise.
    pub(crate) fn when(self, condition: bool) -> Self {
        if condition { self } else { NONE }
    }

    /// Returns the names of the kinds of `seen` in the set, with their versions unless all versions are in the set.
    pub(crate) fn names(self, seen: Self) -> Vec<String> {
        let kinds = KNOWN.iter().zip(SETS).filter(|(_, all)| (self & seen).intersects(*all));
        kinds
            .map(|(known, all)| format!("{}{}", known.title, (self & all).versions(known)))
            .collect()
    }

    /// Returns the versions of the only kind of the set as text, such as ` 1.36 to 1.38`; empty for all.
    fn versions(self, known: &Known) -> String {
        let kind = KNOWN.iter().position(|one| one.kind == known.kind).unwrap_or(0);
        let has = |line: &usize| self.0 & (1 << (Self::offset(kind) + line)) != 0;
        let (lines, mut parts) = (known.lines, Vec::new());
        let mut at = 0;
        while let Some(first) = (at..lines.len()).find(has) {
            let end = (first..lines.len()).find(|line| !has(line)).unwrap_or(lines.len());
            // The last version before the next line.
            let last = lines.get(end).map_or(known.newest, |next| next - 1);
            parts.push(match (first, end) {
                (0, end) if end == lines.len() => return String::new(),
                (first, end) if end == lines.len() => format!("1.{} and later", lines[first]),
                (first, _) if lines[first] == last => format!("1.{last}"),
                (first, _) => format!("1.{} to 1.{last}", lines[first]),
            });
            at = end;
        }
        format!(" {}", parts.join(" and "))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Clients {
        let (name, version) = text.split_once('@').unwrap_or((text, "newest"));
        Clients::of(ClientKind::read(name).unwrap(), ClientVersion::parse(version))
    }

    #[test]
    fn version_counts_as_the_line_before_it() {
        assert!(JAVA.since(74).intersects(of("grpc-java@1.78")));
        assert!(JAVA.until(74).intersects(of("grpc-java@1.73")));
        assert_eq!(of("grpc-java@1.76"), of("grpc-java@1.75"));
        assert_eq!(of("grpc-java"), of("grpc-java@1.85"));
        assert_eq!(of("envoy"), ENVOY.since(40));
        let connected = |version| {
            let (major, minor) = version;
            Clients::of(ClientKind::Envoy, Some(ClientVersion { major, minor }))
        };
        for older in [(0, 1), (1, 2), (1, 35)] {
            assert_eq!(connected(older), ENVOY.until(37), "{older:?}");
        }
        for newer in [(1, 40), (1, 41), (2, 0)] {
            assert_eq!(connected(newer), ENVOY.since(40), "{newer:?}");
        }
    }

    #[test]
    fn names_show_the_versions_of_a_part_of_a_kind() {
        let all = ENVOY | GRPC;
        assert_eq!((GO | JAVA).names(all), ["Go", "Java"]);
        assert_eq!((GO | JAVA).names(JAVA), ["Java"]);
        assert_eq!(ENVOY.until(39).names(all), ["Envoy 1.36 to 1.38"]);
        assert_eq!(JAVA.since(74).names(all), ["Java 1.74 and later"]);
        assert_eq!(JAVA.until(71).names(all), ["Java 1.70"]);
        assert_eq!(
            (ENVOY - ENVOY.since(37).until(39)).names(all),
            ["Envoy 1.36 and 1.39 and later"]
        );
    }
}
