//! The groups of planted bugs: which list, and what is run against it.

/// A list of planted bugs, and the tests that have to catch them.
#[derive(Debug)]
pub(crate) struct Group {
    /// What it is called on the command line.
    pub(crate) name: &'static str,
    /// What its bugs are about, for the page.
    pub(crate) about: &'static str,
    /// Its list.
    pub(crate) list: &'static str,
    /// The number of its first bug.
    pub(crate) first: u32,
    /// In the order in which they are run.
    pub(crate) suites: &'static [Suite],
    /// So many suites are run for each bug that names no tests; each of the others only for what those before
    /// it do not catch.
    pub(crate) always: usize,
    /// Its crates are linked with RocksDB.
    pub(crate) needs_rocksdb: bool,
}

/// Tests that are run together.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) package: &'static str,
    pub(crate) arguments: &'static [&'static str],
    /// Its name on the page.
    pub(crate) name: &'static str,
}

const fn suite(
    package: &'static str,
    arguments: &'static [&'static str],
    name: &'static str,
) -> Suite {
    Suite { package, arguments, name }
}

/// All of them.
pub(crate) const GROUPS: [Group; 3] = [
    Group {
        name: "protocol",
        about: "What clients are sent. Most are pitfalls of other servers. Each is tried by the transcripts \
                first and by the model\nnext, and the first suite that catches it is named.",
        list: "crates/xtask/src/mutants/protocol.txt",
        first: 1,
        suites: &[
            suite("chancery-protocol", &["--test", "transcript"], "transcript"),
            suite("chancery-protocol", &["--test", "model"], "model"),
            suite("chancery-view", &["--lib", "--tests"], "view"),
            suite("chancery-model", &["--lib", "--tests"], "types"),
            suite("chancery-protocol", &["--lib"], "protocol"),
        ],
        always: 1,
        needs_rocksdb: false,
    },
    Group {
        name: "store",
        about: "What replicas keep, and what they agree on. `store` and `fanout` are the tests inside these \
                crates, `replicas` those of\nwhole replicas (`crates/store/tests`). A resume that skips \
                removals is number 17 above.",
        list: "crates/xtask/src/mutants/store.txt",
        first: 201,
        suites: &[
            suite("chancery-store", &["--lib"], "store"),
            suite("chancery-fanout", &["--lib"], "fanout"),
            suite("chancery-store", &["--test", "it"], "replicas"),
        ],
        always: 0,
        needs_rocksdb: true,
    },
    Group {
        name: "server",
        about: "Clients, limits, the admin port and the command line. `… unit` are the tests inside a \
                crate, `cli` those of\nthe program as a process, `real` those with real clients.",
        list: "crates/xtask/src/mutants/server.txt",
        first: 300,
        suites: &[
            suite("chancery-fanout", &["--lib"], "fanout unit"),
            suite("chancery-xds", &["--lib"], "xds unit"),
            suite("chancery-xds", &["--test", "it"], "xds"),
            suite("chancery-admission", &["--lib", "--tests"], "admission"),
            suite("chancery-admin", &["--lib"], "admin unit"),
            suite("chancery-admin", &["--test", "api"], "admin"),
            suite("chancery-server", &["--bins"], "server unit"),
            suite("chancery-server", &["--test", "cli"], "cli"),
            suite("chancery-server", &["--test", "real_clients"], "real"),
        ],
        always: 0,
        needs_rocksdb: true,
    },
];

impl Group {
    /// The suite of that name.
    pub(crate) fn suite(&self, name: &str) -> Option<&'static Suite> {
        let suites: &'static [Suite] = self.suites;
        suites.iter().find(|suite| suite.name == name)
    }
}
