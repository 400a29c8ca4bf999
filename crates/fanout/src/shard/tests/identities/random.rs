//! Random cases.

use chancery_protocol::ErrorDetail;

use super::{
    world::{Stream, World, node},
    *,
};

/// The number of random cases.
const CASES: u64 = 10_000;
const STEPS: usize = 10;

const COLLECTION: &str = "istio/networking/v1alpha3/gateways";
const TYPES: [&str; 6] = [CLUSTER, CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET];
const IDENTITIES: [&str; 4] = ["token:a", "token:b", "anonymous", "jwt:a/token:a"];
const SCOPES: [&str; 4] = ["one", "two", "three", "own/{metadata.team}"];
const NAMES: [&str; 3] = ["x", "y", "z"];

/// Pseudo-random numbers from a seed (splitmix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n as u64).unwrap()
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    /// Returns some of the elements, often most of them.
    fn some<'a>(&mut self, of: &[&'a str]) -> Vec<&'a str> {
        of.iter().copied().filter(|_| self.below(3) > 0).collect()
    }
}

struct Case {
    rng: Rng,
    world: World,
    streams: Vec<Stream>,
    /// The number of streams that ended because the rights of their client changed.
    n_ended: usize,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let access = if rng.below(4) == 0 { AccessControl::Off } else { AccessControl::Enforced };
        let mut world = World::new(access);
        world.seed = seed;
        let rules = IDENTITIES.map(|one| world.rule(one, &scopes_to_read(&mut rng)));
        let access = rules.into_iter().map(|rule| AccessOp::PutRule(Box::new(rule))).collect();
        let scopes = assigned_scopes(&mut rng);
        let transaction = Transaction { access, ..world.assignment("any", "*", &scopes) };
        world.apply(&transaction);
        for name in &NAMES[..2] {
            world.put(rng.one(&["one", "two"]), CLUSTER, name);
        }
        Self { rng, world, streams: Vec::new(), n_ended: 0 }
    }

    fn step(&mut self) {
        match self.rng.below(24) {
            0..=3 => self.open(),
            4..=5 => self.reconnect(),
            6..=9 => self.read(),
            10..=12 if !self.streams.is_empty() => {
                let at = self.rng.below(self.streams.len());
                let stream = self.streams.swap_remove(at);
                self.world.close(stream);
            }
            10..=14 => {
                let (scope, type_url) = (self.scope(), self.rng.one(&TYPES));
                self.world.delete(&scope, type_url, self.rng.one(&NAMES));
            }
            15..=16 => self.put(),
            17..=20 => self.place(),
            21 => self.world.harness.ms += [100, 1_500, 6_000, 16_000][self.rng.below(4)],
            22 => self.subscribe(),
            _ => self.adopt(),
        }
        for stream in &mut self.streams {
            self.world.note_scopes(stream);
        }
        if self.rng.below(4) == 0 {
            self.check_contents();
        }
    }

    fn scope(&mut self) -> String {
        self.rng.one(&["one", "two", "three", "own/red", "own/blue"]).to_owned()
    }

    fn node(&mut self) -> Node {
        let mut node = node("n");
        node.client_features = vec!["xds.config.supports-resource-ttl".to_owned()];
        if self.rng.below(3) > 0 {
            node.metadata.insert("team".into(), self.rng.one(&["red", "blue"]).into());
        }
        node
    }

    fn open(&mut self) {
        let protocol =
            [Protocol::Sotw, Protocol::Sotw, Protocol::Delta, Protocol::Mcp][self.rng.below(4)];
        let only = protocol != Protocol::Mcp && self.rng.below(8) == 0;
        let only = only.then(|| self.rng.one(&TYPES));
        let (identity, node) = (self.rng.one(&IDENTITIES), self.node());
        let mut stream = self.world.open_with(protocol, only, identity, node);
        let types = match (protocol, only) {
            (Protocol::Mcp, _) => vec![COLLECTION],
            (_, Some(only)) => vec![only],
            (_, None) => [vec![CLUSTER], self.rng.some(&TYPES[2..])].concat(),
        };
        for type_url in types {
            let is_named = [ENDPOINT, ROUTE, SECRET].contains(&type_url) || self.rng.below(4) == 0;
            let names = if is_named { self.rng.some(&NAMES) } else { Vec::new() };
            // Any client can guess the versions of any other one.
            let seen = self.world.versions.iter().rev();
            let seen = seen.filter(|(of, _)| of == type_url).nth(self.rng.below(3));
            let version = seen.map_or(String::new(), |(_, version)| version.clone());
            self.world.request(&stream, type_url, &names, &version);
        }
        self.world.note_scopes(&mut stream);
        self.streams.push(stream);
    }

    /// Replaces a stream by another one with the same node and version. Clusters are deleted meanwhile, and rights and
    /// assignments may change.
    fn reconnect(&mut self) {
        let Some(at) = self.any() else { return };
        let mut stream = self.streams.swap_remove(at);
        drop(self.world.read(&mut stream));
        let own = stream.identity.principal.to_string();
        let (node, version) = (Node::clone(&stream.node), stream.versions.get(CLUSTER).cloned());
        self.world.close(stream);
        for (scope, name) in self.world.present(CLUSTER) {
            if self.rng.below(2) == 0 {
                self.world.delete(&scope, CLUSTER, &name);
            }
        }
        if self.rng.below(3) == 0 {
            self.place();
        }
        let identity = if self.rng.below(2) == 0 { &own } else { self.rng.one(&IDENTITIES) };
        let stream = self.world.open_with(Protocol::Sotw, None, identity, node);
        self.world.request(&stream, CLUSTER, &[], &version.unwrap_or_default());
        self.streams.push(stream);
        self.put();
    }

    fn read(&mut self) {
        let Some(at) = self.any() else { return };
        let stream = &mut self.streams[at];
        match self.rng.below(4) {
            0 => drop(self.world.take(stream)),
            1 => {
                drop(self.world.take(stream));
                if let Some((type_url, version, nonce)) = stream.unanswered.pop() {
                    let error = ErrorDetail { code: 13, message: "no".to_owned() };
                    self.world.answer(stream, &type_url, &version, &nonce, Some(error));
                }
            }
            _ => drop(self.world.read(stream)),
        }
        if let Some(end) = &stream.end {
            self.n_ended += usize::from(end.code == EndCode::AccessChanged);
            drop(self.streams.swap_remove(at));
            self.world.settle();
        }
    }

    fn put(&mut self) {
        let (scope, name) = (self.scope(), self.rng.one(&NAMES));
        let type_url = self.rng.one(&[&TYPES[..], &[COLLECTION]].concat());
        let ttl = (self.rng.below(4) == 0).then_some(Duration::from_secs(4));
        self.world.put_with(&scope, type_url, name, ttl);
    }

    /// Changes a rule, the assignment, or both in one write.
    fn place(&mut self) {
        let (identity, scopes) = (self.rng.one(&IDENTITIES), scopes_to_read(&mut self.rng));
        let mut rule = self.world.rule(identity, &scopes);
        if self.rng.below(3) == 0 {
            let scopes = rule.read[self.rng.below(rule.read.len())..].to_vec();
            rule.secrets = SecretsGrant { scopes, names: Vec::new() };
        }
        let access = vec![AccessOp::PutRule(Box::new(rule))];
        let scopes = assigned_scopes(&mut self.rng);
        let assigned = self.world.assignment("any", "*", &scopes);
        let transaction = match self.rng.below(3) {
            0 => Transaction { access, ..Transaction::default() },
            1 => assigned,
            _ => Transaction { access, ..assigned },
        };
        self.world.apply(&transaction);
    }

    fn subscribe(&mut self) {
        let Some(at) = self.any() else { return };
        let stream = &self.streams[at];
        if stream.protocol != Protocol::Mcp {
            let names = self.rng.some(&NAMES);
            self.world.request(stream, CLUSTER, &names, "");
        }
    }

    fn adopt(&mut self) {
        let Some(at) = self.any() else { return };
        let node = self.node();
        let stream = &mut self.streams[at];
        if stream.protocol != Protocol::Mcp {
            self.world.adopt(stream, node);
            self.world.request(stream, CLUSTER, &[], "");
        }
    }

    fn check_contents(&mut self) {
        let Some(at) = self.any() else { return };
        self.world.check_contents(&self.streams[at], CLUSTER);
    }

    fn any(&mut self) -> Option<usize> {
        (!self.streams.is_empty()).then(|| self.rng.below(self.streams.len()))
    }
}

fn scopes_to_read(rng: &mut Rng) -> Vec<&'static str> {
    let scopes = rng.some(&SCOPES);
    if scopes.is_empty() || rng.below(4) == 0 { vec!["**"] } else { scopes }
}

fn assigned_scopes(rng: &mut Rng) -> Vec<&'static str> {
    let mut scopes = rng.some(&SCOPES[..3]);
    if rng.below(4) == 0 {
        scopes.push("own/{metadata.team}");
    }
    scopes.truncate(2);
    if scopes.is_empty() { vec!["one"] } else { scopes }
}

/// T3: 10,000 cases with random rights, scopes, assignments and ends of streams. No client receives a byte that belongs
/// to another one.
#[test]
fn random_clients_with_one_node_id_receive_nothing_of_each_other() {
    /// Returns how often removed resources were sent to their own client, and how often a stream ended because the
    /// rights of its client changed.
    fn run(seeds: impl Iterator<Item = u64>) -> (usize, usize) {
        let counts = seeds.map(|seed| {
            let mut case = Case::new(seed);
            (0..STEPS).for_each(|_| case.step());
            while let Some(mut stream) = case.streams.pop() {
                case.world.read(&mut stream);
            }
            (case.world.n_resumed, case.n_ended)
        });
        counts.fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1))
    }
    let (a, b) = std::thread::scope(|threads| {
        let even = threads.spawn(|| run((0..CASES).step_by(2)));
        (run((1..CASES).step_by(2)), even.join().unwrap())
    });
    // Otherwise the cases would not exercise what they are for.
    assert!(a.0 + b.0 > 200, "{} removed resources were sent to their own client", a.0 + b.0);
    assert!(a.1 + b.1 > 100, "{} streams have ended", a.1 + b.1);
}
