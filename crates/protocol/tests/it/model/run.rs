//! Runs cases, reduces a failing one, and prints how to repeat it.

use std::{
    cell::Cell,
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Once,
};

use chancery_protocol::{DeltaRequest, Protocol};

use crate::model::{
    any,
    client::Which,
    cover::{Breach, Cover, Law},
    naive::{CDS, Change, EDS, LDS, NAMES, OPAQUE, RDS, SCOPES, SRDS, VHDS, references},
    rng::Rng,
    script::{Case, Edit, Event, Profile, simpler, smaller},
    world::World,
};

/// The seed of the short run. It is fixed, so that a failure is due to the change under test.
const SEED: u64 = 0x00c4_a9ce_7e00_0003;

/// The variable with the seed, or with one case of it as `<seed>:<case>`.
const SEED_VARIABLE: &str = "CHANCERY_TEST_SEED";

/// The maximum number of attempts to reduce a failing case.
const ATTEMPTS_MAX: usize = 4_000;

thread_local! {
    /// Whether a panic of this thread is an outcome, so that its message is not printed.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The number of cases and their seed.
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) cases: std::ops::Range<u64>,
    pub(crate) is_whole: bool,
}

impl Plan {
    pub(crate) fn new(short: u64, long: u64) -> Self {
        let is_long = std::env::var_os("CHANCERY_TEST_LONG").is_some();
        let n = if is_long { long } else { short };
        // The standard library's hasher has a random state.
        let random = || std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0_u8);
        let Ok(text) = std::env::var(SEED_VARIABLE) else {
            let seed = if is_long { random() } else { SEED };
            return Self { seed, cases: 0..n, is_whole: true };
        };
        let (seed, case) = text.split_once(':').map_or((&*text, None), |(s, c)| (s, Some(c)));
        let seed = u64::from_str_radix(seed.trim_start_matches("0x"), 16).unwrap();
        match case.map(|case| case.parse::<u64>().unwrap()) {
            Some(case) => Self { seed, cases: case..case + 1, is_whole: false },
            None => Self { seed, cases: 0..n, is_whole: true },
        }
    }
}

/// Runs all cases of one profile.
pub(crate) fn all(profile: Profile, short: u64, long: u64) {
    suppress_panic_messages();
    let plan = Plan::new(short, long);
    let mut cover = Cover::default();
    let mut events = 0;
    for n in plan.cases.clone() {
        let mut seeds = Rng::new(plan.seed ^ n.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let case = Case::new(profile, seeds.next());
        events += case.events.len();
        if let Err(breach) = run(&case, &mut cover, None) {
            let brief = std::env::var_os("CHANCERY_TEST_BRIEF").is_some();
            let case = if brief { case } else { reduced(case, breach.law) };
            let mut log = Vec::new();
            let again = run(&case, &mut Cover::default(), Some(&mut log));
            let breach = again.err().unwrap_or(breach);
            let script: Vec<String> = case.events.iter().map(|e| format!("  {e:?}")).collect();
            panic!(
                "{} is broken: {}\n{profile:?}, {:?}\n{}\n{}\nrepeat it with {SEED_VARIABLE}={:x}:{n}",
                breach.law,
                breach.text,
                case.tuning,
                script.join("\n"),
                log.join("\n"),
                plan.seed,
            );
        }
    }
    let n = plan.cases.end - plan.cases.start;
    say(&format!(
        "model {profile:?}: {n} cases, {events} events, {} responses checked; {SEED_VARIABLE}={:x}",
        cover.of("responses"),
        plan.seed
    ));
    if std::env::var_os("CHANCERY_TEST_COVER").is_some() {
        say(&cover.shown());
    }
    let gaps = cover.gaps(profile, n);
    assert!(gaps.is_empty() || !plan.is_whole, "too rarely exercised: {gaps:?}\n{}", cover.shown());
}

/// Prints to the terminal, whether or not the test fails.
fn say(text: &str) {
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}

/// Suppresses the messages of caught panics. They are shown once, with the case.
fn suppress_panic_messages() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
}

fn run(case: &Case, cover: &mut Cover, log: Option<&mut Vec<String>>) -> Law {
    QUIET.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| play(case, cover, log)));
    QUIET.set(false);
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(Breach { law: "no panic", text: text.unwrap_or_default() })
    })
}

/// Returns the shortest case found that violates the same rule.
fn reduced(mut case: Case, law: &str) -> Case {
    let mut attempts = 0;
    let mut fails = |case: &Case, events: Vec<Event>| {
        attempts += 1;
        let case = Case { events, ..case.clone() };
        let found = attempts < ATTEMPTS_MAX
            && run(&case, &mut Cover::default(), None).is_err_and(|breach| breach.law == law);
        found.then_some(case)
    };
    let mut size = case.events.len().div_ceil(2);
    while size > 0 {
        let shorter = smaller(&case.events, size).find_map(|events| fails(&case, events));
        match shorter {
            Some(shorter) => case = shorter,
            None => size = if size == 1 { 0 } else { size.div_ceil(2) },
        }
    }
    while let Some(next) = simpler(&case.events).into_iter().find_map(|e| fails(&case, e)) {
        case = next;
    }
    case
}

fn play(case: &Case, cover: &mut Cover, log: Option<&mut Vec<String>>) -> Law {
    let mut world = World::new(case, cover, log);
    world.habits()?;
    for event in &case.events {
        step(&mut world, case, event)?;
    }
    if case.events.len().is_multiple_of(3) {
        world.check_silent_client()?;
    }
    world.settle()
}

fn step(world: &mut World<'_>, case: &Case, event: &Event) -> Law {
    match event {
        Event::Commit(edits) => {
            let changes: Vec<Change> = edits.iter().map(change).collect();
            world.commit(&changes)?;
        }
        Event::Move(from, to, and_endpoints) => {
            let changes = movement(world, NAMES[*from], NAMES[*to], *and_endpoints);
            world.commit(&changes)?;
        }
        Event::Assign(scopes) => world.assign(scopes.as_ref())?,
        Event::Poll(room) => drop(world.poll(*room)?),
        Event::Deliver(n) => world.deliver(*n),
        Event::Answer(k) => {
            let ready = world.client.ready(world.now);
            if !ready.is_empty() {
                let newest = case.profile == Profile::AnyDelta && k % 4 == 3;
                let which = if newest { Which::Newest } else { Which::Oldest };
                world.answer(ready[k % ready.len()], which)?;
            }
        }
        Event::Flow => drop(world.flow()?),
        Event::Wait(ms) => world.now += ms,
        Event::Mute(t) => world.client.muted[*t] = true,
        Event::Speak => world.client.muted.fill(false),
        Event::Cut(which) => cut(world, case, *which)?,
        Event::Want(names) => {
            world.client.roots = names.iter().map(|n| NAMES[*n].to_owned()).collect();
        }
        Event::Ask(ask) => {
            let asked = world.ledger.lines[ask.t].asked.clone();
            let request = world.client.any(ask, &asked);
            world.send(ask.t, request)?;
        }
        Event::Replay(n) => {
            if !world.past.is_empty() {
                let (t, request) = world.past[n % world.past.len()].clone();
                world.cover.hit("replayed requests");
                world.send(t, request)?;
            }
        }
    }
    world.habits()
}

fn change(edit: &Edit) -> Change {
    let names = |refs: &[usize]| refs.iter().map(|n| NAMES[*n]).collect::<Vec<_>>().join(",");
    let content = edit.content.as_ref().map(|(digit, refs, n_aliases)| {
        let body = match edit.t {
            CDS | LDS | SRDS => format!("{digit}>{}", names(refs)),
            RDS => format!("{digit}:{}", names(refs)),
            _ => digit.to_string(),
        };
        let aliased = edit.t == VHDS || edit.t == OPAQUE;
        (body, any::aliases(edit.name, if aliased { *n_aliases } else { 0 }))
    });
    Change { scope: edit.scope, t: edit.t, name: NAMES[edit.name].to_owned(), content }
}

/// Returns a make-before-break change as an author would publish it: all in one commit.
fn movement(world: &World<'_>, from: &str, to: &str, and_endpoints: bool) -> Vec<Change> {
    let put = |t, name: &str, body: String| Change {
        scope: 0,
        t,
        name: name.to_owned(),
        content: Some((body, vec![])),
    };
    let mut out = vec![put(CDS, to, format!("0>{to}")), put(EDS, to, "0".to_owned())];
    for (scope, t, item) in world.oracle.content().filter(|(_, t, _)| *t == RDS) {
        let refs: Vec<String> = references(RDS, &item.body).into_iter().map(|(_, n)| n).collect();
        if refs.iter().any(|name| name == from) {
            let body = format!("{}:{to}", &item.body[..1]);
            out.push(Change { scope, ..put(t, &item.name, body) });
        }
    }
    if from != to {
        for scope in 0..SCOPES.len() {
            for t in [CDS, EDS].into_iter().filter(|t| *t == CDS || and_endpoints) {
                out.push(Change { scope, t, name: from.to_owned(), content: None });
            }
        }
    }
    out
}

/// Breaks the stream. A client with habits opens the types that it needs again. For another client,
/// `which` selects the types to open.
fn cut(world: &mut World<'_>, case: &Case, which: usize) -> Law {
    let before = world.asked();
    world.cut(case);
    if case.profile.has_habits() {
        return Ok(());
    }
    for t in 0..before.len() {
        // The order differs from that of the types.
        let t = (t * 5 + which) % before.len();
        if which & (1 << t) == 0 || before[t].is_empty() {
            continue;
        }
        let mut names: Vec<String> = before[t].names.iter().cloned().collect();
        if before[t].wildcard && (!which.is_multiple_of(3) || !names.is_empty()) {
            names.push("*".to_owned());
        }
        world.client.list[t].clone_from(&names);
        let held = world.client.versions(t);
        let versions = if world.ledger.protocol == Protocol::Delta { held } else { Vec::new() };
        let delta = DeltaRequest {
            subscribe: names.into(),
            initial_resource_versions: versions.into(),
            ..DeltaRequest::default()
        };
        let request = world.client.request(t, delta, String::new(), None);
        world.send(t, request)?;
    }
    Ok(())
}
