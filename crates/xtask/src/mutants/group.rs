//! The groups of planted bugs: the list and the test suites of each.

/// A list of planted bugs, and the suites whose tests catch them.
#[derive(Debug)]
pub(crate) struct Group {
    /// The name on the command line.
    pub(crate) name: &'static str,
    /// The path of the list.
    pub(crate) list: &'static str,
    /// The number of the first bug.
    pub(crate) first: u32,
    /// The suites that its bugs name.
    pub(crate) suites: &'static [Suite],
    /// Whether the crates are linked with RocksDB.
    pub(crate) needs_rocksdb: bool,
}

/// Tests that run together.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) package: &'static str,
    pub(crate) arguments: &'static [&'static str],
    /// The name in the list.
    pub(crate) name: &'static str,
}

const fn suite(
    package: &'static str,
    arguments: &'static [&'static str],
    name: &'static str,
) -> Suite {
    Suite { package, arguments, name }
}

/// All groups.
pub(crate) const GROUPS: [Group; 3] = [
    Group {
        name: "protocol",
        list: "crates/xtask/src/mutants/protocol.txt",
        first: 1,
        suites: &[
            suite("chancery-protocol", &["--test", "it"], "it"),
            suite("chancery-view", &["--lib", "--tests"], "view"),
            suite("chancery-model", &["--lib", "--tests"], "types"),
            suite("chancery-protocol", &["--lib"], "protocol"),
        ],
        needs_rocksdb: false,
    },
    Group {
        name: "store",
        list: "crates/xtask/src/mutants/store.txt",
        first: 201,
        suites: &[
            suite("chancery-store", &["--lib"], "store"),
            suite("chancery-fanout", &["--lib"], "fanout"),
            suite("chancery-store", &["--test", "it"], "replicas"),
        ],
        needs_rocksdb: true,
    },
    Group {
        name: "server",
        list: "crates/xtask/src/mutants/server.txt",
        first: 300,
        suites: &[
            suite("chancery-protocol", &["--lib"], "protocol"),
            suite("chancery-fanout", &["--lib"], "fanout unit"),
            suite("chancery-audit", &["--lib"], "audit"),
            suite("chancery-diff", &["--lib"], "diff"),
            suite("chancery-load", &["--lib"], "load"),
            suite("chancery-net", &["--lib"], "net"),
            suite("chancery-mcp", &["--test", "sink"], "mcp sink"),
            suite("chancery-lb-policy", &["--test", "it"], "lb policy"),
            suite("chancery-tls", &["--lib"], "tls unit"),
            suite("chancery-auth", &["--test", "it"], "auth"),
            suite("chancery-xds", &["--lib"], "xds unit"),
            suite("chancery-xds", &["--test", "it"], "xds"),
            suite("chancery-secrets", &["--lib"], "secrets"),
            suite("chancery-admission", &["--lib", "--tests"], "admission"),
            suite("chancery-admin", &["--lib"], "admin unit"),
            suite("chancery-admin", &["--test", "api"], "admin"),
            suite("chancery-conformance", &["--lib"], "kit unit"),
            suite("chancery-conformance", &["--test", "faults"], "kit"),
            suite("chancery-config", &["--lib"], "config unit"),
            suite("chancery-serve", &["--lib"], "serve unit"),
            suite("chancery-cli", &["--lib"], "cli unit"),
            suite("chancery-server", &["--test", "cli"], "cli"),
            suite("chancery-server", &["--test", "real_clients"], "real"),
        ],
        needs_rocksdb: true,
    },
];

/// The name of the target with a library's unit tests.
pub(crate) const LIB: &str = "lib";

impl Suite {
    /// Returns whether the suite runs the tests of a target: [`LIB`], or an integration test.
    pub(crate) fn has_target(&self, target: &str) -> bool {
        match self.arguments {
            ["--lib"] => target == LIB,
            ["--test", name] => target == *name,
            _ => true,
        }
    }
}

impl Group {
    /// Returns the suite with this name.
    pub(crate) fn suite(&self, name: &str) -> Option<&'static Suite> {
        let suites: &'static [Suite] = self.suites;
        suites.iter().find(|suite| suite.name == name)
    }
}
