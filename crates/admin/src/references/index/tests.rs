use std::collections::BTreeSet;

use chancery_admission::{Manifest, Options, admit};
use chancery_model::{
    ResourceDraft, Revision, Transaction, Upsert,
    types::{CLUSTER, ENDPOINT, LISTENER, ROUTE},
};

use super::*;

/// A reproducible sequence of numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn draft(resource: &str) -> ResourceDraft {
    let content = format!("resources: [{resource}]");
    let manifest = Manifest { file: "a.yaml".to_owned(), content };
    let options = Options::new(ScopeName::new("default").unwrap());
    let mut transaction = admit(&[manifest], &options).unwrap();
    transaction.upserts.remove(0).draft
}

fn route(name: &str, clusters: &[String]) -> ResourceDraft {
    let all: Vec<String> = clusters
        .iter()
        .map(|cluster| format!("{{match: {{prefix: /{cluster}}}, route: {{cluster: {cluster}}}}}"))
        .collect();
    let all = all.join(", ");
    draft(&format!(
        "{{'@type': {ROUTE}, name: {name}, virtual_hosts: [{{name: all, domains: ['*'], routes: [{all}]}}]}}"
    ))
}

fn cluster(name: &str, service: &str) -> ResourceDraft {
    draft(&format!(
        "{{'@type': {CLUSTER}, name: {name}, type: EDS, eds_cluster_config: {{eds_config: {{ads: {{}}}}, \
         service_name: {service}}}}}"
    ))
}

fn listener(name: &str, port: u64) -> ResourceDraft {
    draft(&format!(
        "{{'@type': {LISTENER}, name: {name}, address: {{socket_address: {{address: '::', port_value: {port}}}}}}}"
    ))
}

fn key(draft: &ResourceDraft) -> ResourceKey {
    draft.key.clone()
}

/// Returns all references as text, and checks that a lookup finds each of them.
fn content(index: &ReferenceIndex) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (type_url, entries) in &index.by_type {
        for Entry { target, origin, referrer } in entries {
            let origin = origin.as_deref().unwrap();
            let found: Vec<_> = index.referrers(type_url, target.as_str()).collect();
            assert!(found.iter().any(|(of, key)| *of == origin && key.name == *referrer));
            all.insert(format!("{origin:?} {referrer} → {type_url} {target}"));
        }
    }
    all
}

#[test]
fn incremental_index_equals_index_from_scratch() {
    let mut random = Random(7);
    let mut state = State::new(Incarnation(1));
    let mut index = ReferenceIndex::of(&state);
    let mut states = vec![state.clone()];
    let mut n_most = 0;
    for n_steps in 0..120 {
        let mut transaction = Transaction::default();
        for _ in 0..=random.below(4) {
            let scope = if random.below(2) == 0 { "a" } else { ["b", "c"][n_steps % 2] };
            let scope = ScopeName::new(scope).unwrap();
            let name = format!("n{}", random.below(6));
            let mut others = || format!("n{}", random.below(6));
            let draft = match name.as_bytes()[1] % 3 {
                0 => route(&name, &[others(), others()]),
                1 => cluster(&name, &others()),
                _ => listener(&name, 8000 + random.below(3)),
            };
            if random.below(3) == 0 {
                transaction.deletes.push((scope, key(&draft)));
            } else {
                transaction.upserts.push(Upsert { scope, draft });
            }
        }
        if random.below(20) == 0 {
            transaction.prune.push(ScopeName::new("b").unwrap());
        }
        state = state.apply(&transaction).state;
        index = index.advanced(&state);
        assert_eq!(content(&index), content(&ReferenceIndex::of(&state)));
        n_most = n_most.max(index.len());
        states.push(state.clone());
    }
    assert!(n_most > 10, "{n_most} references");
    // An older state is as good as a newer one, also one without the scopes.
    for at in [100, 3, 80, 0, 119] {
        index = index.advanced(&states[at]);
        assert_eq!(content(&index), content(&ReferenceIndex::of(&states[at])), "revision {at}");
    }
}

/// After a restore from a backup, a revision has another content than before.
#[test]
fn index_of_another_incarnation_starts_from_scratch() {
    let scope = ScopeName::new("a").unwrap();
    let state = |incarnation, target: &str| {
        let draft = cluster("web", target);
        let upserts = vec![Upsert { scope: scope.clone(), draft }];
        let transaction = Transaction { upserts, ..Transaction::default() };
        State::new(Incarnation(incarnation)).apply(&transaction).state
    };
    let (old, new) = (state(1, "old"), state(2, "new"));
    assert_eq!(old.revision, new.revision);
    let index = ReferenceIndex::of(&old).advanced(&new);
    let endpoints = TypeUrl::from_static(ENDPOINT);
    assert_eq!(index.referrers(&endpoints, "old").count(), 0);
    assert_eq!(index.referrers(&endpoints, "new").count(), 1);
}

/// Shared names keep the memory of an index small.
#[test]
fn names_of_references_share_memory() {
    let scope = ScopeName::new("a").unwrap();
    let drafts =
        [cluster("web", "web"), route("r1", &["web".into()]), route("r2", &["web".into()])];
    let others = [route("r3", &["none".into()]), route("r4", &["none".into()])];
    let upserts = drafts.into_iter().chain(others);
    let upserts = upserts.map(|draft| Upsert { scope: scope.clone(), draft }).collect();
    let transaction = Transaction { upserts, ..Transaction::default() };
    let state = State::new(Incarnation(1)).apply(&transaction).state;
    let index = ReferenceIndex::of(&state);
    let clusters = TypeUrl::from_static(CLUSTER);
    let addresses = |name: &str| -> BTreeSet<usize> {
        let named = index.by_type[&clusters].iter().filter(|entry| entry.target.as_str() == name);
        named.map(|entry| entry.target.as_str().as_ptr().addr()).collect()
    };
    assert_eq!((addresses("web").len(), addresses("none").len()), (1, 1));
    let own = state.collection(&scope, &clusters).unwrap().resources.keys().next().unwrap();
    assert!(addresses("web").contains(&own.as_str().as_ptr().addr()));
}

#[test]
fn shared_index_follows_the_states_of_its_callers() {
    let scope = ScopeName::new("a").unwrap();
    let upserts = vec![Upsert { scope, draft: route("main", &["web".into()]) }];
    let before = State::new(Incarnation(1));
    let after = before.apply(&Transaction { upserts, ..Transaction::default() }).state;
    let shared = SharedIndex::default();
    assert_eq!(shared.at(&before).len(), 0);
    assert_eq!(shared.at(&after).len(), 1);
    assert_eq!(shared.at(&before).len(), 0);
    assert_eq!((before.revision, after.revision), (Revision(0), Revision(1)));
}
