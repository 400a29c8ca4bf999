//! The differential walk over a real server: clients of SotW, delta, REST and files hold the same resources after
//! the same random steps.
//!
//! The client of files reads what `chancery mirror` writes. Each client follows the references of the resources that
//! it has accepted, so a change of references changes its subscriptions. Steps also change the subscriptions to runtime
//! layers, and the encoding of the files. Some content is bad: the clients reject it. Before a comparison,
//! bad content is replaced.
//!
//! `CHANCERY_TEST_SEED=<seed>` repeats the steps of a walk. `CHANCERY_TEST_LONG=1` takes 10,000 steps from a new seed.

mod content;
mod files;
mod rest;
mod streams;

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, RandomState},
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Instant,
};

use chancery_model::types;
use chancery_testing::reserve_address;

use crate::support::{DEADLINE, Server, chancery, http_post};
use content::{
    Held, Key, NAMED, NAMES, Published, TYPES, admitted_json, difference, followed, is_named,
    manifest, short, wanted,
};
use files::{ENCODINGS, Files};
use rest::Rest;
use streams::Stream;

/// The seed and the steps of the short form.
const SEED: u64 = 0x00c4_a9ce_7e00_0012;
const STEPS: usize = 200;
/// The steps of the long form.
const LONG_STEPS: usize = 10_000;

struct Walk {
    rng: fastrand::Rng,
    server: Server,
    data: PathBuf,
    /// The published resources.
    content: BTreeMap<Key, Published>,
    /// The names of the runtime to which all clients subscribe.
    included: BTreeSet<String>,
    sotw: Stream,
    delta: Stream,
    rest: Rest,
    files: Files,
    /// Whether there was bad content since the last comparison.
    was_bad: bool,
    /// The number of the last content.
    number: u64,
    n_compared: usize,
    n_restarts: usize,
    /// The events since the last comparison.
    log: Vec<String>,
}

/// Starts the replica on the given addresses.
fn serve(data: &Path, xds: &str, admin: &str) -> Server {
    let mut command = chancery();
    command.args(["serve", "--raft", "127.0.0.1:0", "--xds", xds, "--admin", admin, "--data-dir"]);
    command.arg(data).env("CHANCERY_STORE_FREE_BYTES_MIN", "64MiB").stderr(Stdio::null());
    // A client that subscribes to a deleted route table looks like one with a listener that drains.
    command.env("CHANCERY_XDS_DRAIN_HOLD", "1s");
    Server::spawn(command)
}

impl Walk {
    async fn start(seed: u64, directory: &Path) -> Self {
        let data = directory.join("data");
        let server = serve(&data, &reserve_address().to_string(), &reserve_address().to_string());
        Self {
            rng: fastrand::Rng::with_seed(seed),
            data,
            content: BTreeMap::new(),
            included: BTreeSet::new(),
            sotw: Stream::open(&server.xds, true).await,
            delta: Stream::open(&server.xds, false).await,
            rest: Rest::new(&server.xds),
            files: Files::start(&server.xds, &directory.join("files")),
            server,
            was_bad: false,
            number: 0,
            n_compared: 0,
            n_restarts: 0,
            log: Vec::new(),
        }
    }

    /// Takes one step.
    async fn step(&mut self) -> Result<(), String> {
        match self.rng.u32(0..1000) {
            0..430 => {
                for _ in 0..self.rng.usize(1..4) {
                    self.edit();
                }
                self.publish();
            }
            430..550 => self.sotw.pump().await?,
            550..670 => self.delta.pump().await?,
            670..770 => self.rest.poll(),
            770..830 => drop(self.files.read()?),
            830..865 => self.reconnect(true).await,
            865..900 => self.reconnect(false).await,
            900..912 => {
                self.log.push("the poller restarts".to_owned());
                self.rest.restart();
            }
            912..925 => {
                self.log.push("the client of the files restarts".to_owned());
                self.files.forget();
            }
            925..937 => self.restart_mirror(),
            937..950 => self.subscribe().await,
            950..953 => self.restart_server().await,
            _ => return self.settle().await,
        }
        Ok(())
    }

    /// Changes or removes a resource.
    fn edit(&mut self) {
        let type_url = TYPES[self.rng.usize(0..TYPES.len())];
        let key = (type_url, NAMES[self.rng.usize(0..NAMES.len())].to_owned());
        if self.rng.u32(0..4) == 0 {
            self.log.push(format!("remove {}/{}", short(key.0), key.1));
            self.content.remove(&key);
            return;
        }
        let is_bad = self.rng.u32(0..6) == 0;
        let refers = self.rng.usize(0..NAMES.len() + 1);
        let published = self.another(is_bad, NAMES.get(refers).copied());
        self.was_bad |= is_bad;
        self.log.push(format!(
            "publish {}/{}: {} with a reference to {:?}",
            short(key.0),
            key.1,
            published.mark,
            published.refers
        ));
        self.content.insert(key, published);
    }

    /// Returns content that was never published.
    fn another(&mut self, is_bad: bool, refers: Option<&str>) -> Published {
        self.number += 1;
        Published::new(self.number, is_bad, refers)
    }

    fn publish(&self) {
        // A transaction needs a resource or an assignment.
        let mut all = manifest(&self.content);
        all["resources"].as_array_mut().unwrap().push(serde_json::json!({
            "@type": types::SECRET, "name": "unused", "generic_secret": {}
        }));
        let (status, body) =
            http_post(&self.server.admin, "/v1/apply?prune=true&confirm=all", &all.to_string());
        assert_eq!(status, 200, "{body}");
    }

    async fn reconnect(&mut self, is_sotw: bool) {
        let is_restart = self.rng.u32(0..3) == 0;
        let stream = if is_sotw { &mut self.sotw } else { &mut self.delta };
        self.log.push(format!("reconnect, SotW {is_sotw}, restart {is_restart}"));
        stream.reconnect(is_restart).await;
    }

    fn restart_mirror(&mut self) {
        let encoding = self.rng.usize(0..ENCODINGS.len());
        self.log.push(format!("kill the mirror, next encoding {}", ENCODINGS[encoding].0));
        self.files.restart(encoding, &self.included);
    }

    /// Subscribes to a runtime layer or unsubscribes from it.
    async fn subscribe(&mut self) {
        let name = NAMES[self.rng.usize(0..NAMES.len())];
        if !self.included.remove(name) {
            self.included.insert(name.to_owned());
        }
        self.log.push(format!("subscribe to the runtime layers {:?}", self.included));
        self.sotw.include(&self.included).await;
        self.delta.include(&self.included).await;
        self.rest.include(&self.included);
        self.restart_mirror();
    }

    /// Kills the server and starts it again on the same addresses.
    async fn restart_server(&mut self) {
        self.log.push("kill the server".to_owned());
        let (xds, admin) = (self.server.xds.clone(), self.server.admin.clone());
        self.server.child.kill().unwrap();
        self.server.child.wait().unwrap();
        self.server = serve(&self.data, &xds, &admin);
        self.n_restarts += 1;
        self.sotw.reconnect(false).await;
        self.delta.reconnect(false).await;
    }

    /// Returns whether rejections, comparisons and mirror starts were frequent enough for a walk of `steps` steps.
    fn is_exercised(&self, steps: usize) -> bool {
        let rejections = [self.sotw.n_nacks, self.delta.n_nacks, self.rest.n_rejected];
        rejections.iter().all(|n| *n >= steps / 100)
            && self.n_compared >= steps / 25
            && self.files.n_started > steps / 100
    }

    /// Replaces bad content, waits until all clients are current, and compares them.
    async fn settle(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.was_bad) {
            let mut good = self.content.clone();
            for published in good.values_mut().filter(|it| it.is_bad()) {
                *published = self.another(false, published.refers.as_deref());
            }
            // A client may still reject content that was deleted. Until it accepts another content of the same
            // name, removals wait (ADS-09). So every name gets new content, and every client requests every name.
            for type_url in TYPES {
                for name in NAMES {
                    let published = self.another(false, Some(name));
                    self.content.insert((type_url, name.to_owned()), published);
                }
            }
            self.publish();
            self.compare().await?;
            self.content = good;
        }
        self.publish();
        self.compare().await?;
        self.log.clear();
        Ok(())
    }

    /// Waits until all clients hold what is published.
    async fn compare(&mut self) -> Result<(), String> {
        let all = admitted_json(&manifest(&self.content));
        let expected = followed(&all, &self.included);
        let paths = self.paths(&expected);
        let start = Instant::now();
        loop {
            self.sotw.pump().await?;
            self.delta.pump().await?;
            self.rest.poll();
            // No response of SotW and REST, and no file, reports the removal of a resource that is requested by its name
            // (SOTW-85). No response reports the removal of a runtime layer (DELTA-48).
            let silent = |held: &Held, is_silent: fn(&str) -> bool| -> Held {
                let kept =
                    held.iter().filter(|(key, _)| !is_silent(key.0) || all.contains_key(*key));
                kept.map(|(key, body)| (key.clone(), body.clone())).collect()
            };
            let found = [
                ("SotW", silent(&self.sotw.held, is_named)),
                ("delta", silent(&self.delta.held, |it| it == types::RUNTIME)),
                ("REST", silent(&self.rest.held, is_named)),
                ("files", silent(self.files.read()?, is_named)),
            ];
            let mut differences: Vec<String> = found
                .iter()
                .filter_map(|(name, held)| {
                    let lines = difference(held, &expected)?;
                    Some(format!("the client of {name} differs:\n{lines}"))
                })
                .collect();
            if self.files.paths != paths {
                let found = &self.files.paths;
                differences.push(format!("the files are {found:?}, expected {paths:?}"));
            }
            if differences.is_empty() {
                self.n_compared += 1;
                return Ok(());
            }
            if start.elapsed() > DEADLINE {
                return Err(format!(
                    "after {DEADLINE:?}, {}\nthe end of the mirror's output:\n{}",
                    differences.join("\n"),
                    self.files.output()
                ));
            }
        }
    }

    /// Returns the paths of the files for the expected resources, without their extension.
    fn paths(&self, expected: &Held) -> BTreeSet<String> {
        let mut paths = BTreeSet::from(["cds".to_owned(), "lds".to_owned()]);
        for type_url in NAMED {
            let names = wanted(expected, &self.included, type_url);
            paths.extend(names.iter().map(|name| format!("{}/{name}", short(type_url))));
        }
        paths
    }
}

/// SOTW-92, DELTA-52, REST-12, FS-14: clients of SotW, delta, REST and files end in the same state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_all_doors_end_in_the_same_state() {
    let is_long = std::env::var_os("CHANCERY_TEST_LONG").is_some();
    let seed = match std::env::var("CHANCERY_TEST_SEED") {
        Ok(text) => u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap(),
        Err(_) if is_long => RandomState::new().hash_one(0_u8),
        Err(_) => SEED,
    };
    let steps = if is_long { LONG_STEPS } else { STEPS };
    let start = Instant::now();
    let directory = tempfile::tempdir().unwrap();
    let mut walk = Walk::start(seed, directory.path()).await;
    let (mut step, mut is_last) = (0, false);
    while !is_last {
        // A walk continues until it is exercised, for at most twice its steps. The last step is a comparison.
        is_last = step >= steps && (walk.is_exercised(steps) || step >= 2 * steps);
        step += 1;
        let taken = if is_last { walk.settle().await } else { walk.step().await };
        if let Err(problem) = taken {
            panic!(
                "step {step} of the walk with CHANCERY_TEST_SEED={seed:x}: {problem}\nevents since the last \
                 comparison:\n  {}",
                walk.log.join("\n  ")
            );
        }
    }
    let text = format!(
        "walk: {step} steps in {:.0?}, {} comparisons of 4 clients; rejections: SotW {}, delta {}, REST {}; starts of \
         the mirror: {}; restarts of the server: {}; CHANCERY_TEST_SEED={seed:x}",
        start.elapsed(),
        walk.n_compared,
        walk.sotw.n_nacks,
        walk.delta.n_nacks,
        walk.rest.n_rejected,
        walk.files.n_started,
        walk.n_restarts,
    );
    drop(writeln!(std::io::stderr().lock(), "{text}"));
    assert!(walk.is_exercised(steps), "too rarely exercised: {text}");
}
