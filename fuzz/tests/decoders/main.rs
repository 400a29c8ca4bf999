//! The short form of the fuzzing: each decoder takes its corpus, and mutations of it by a fixed seed.
//!
//! `cargo xtask fuzz` runs the long form, with coverage.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    sync::{PoisonError, RwLock},
    time::{Duration, Instant},
};

use chancery_fuzz::{corpus, escaped, target, unescaped, warm_up};

/// The number of mutated inputs per decoder.
const MUTATIONS: usize = 10_000;
/// The maximum time for one input. It is generous, because other processes may use the processors.
const TIME_MAX: Duration = Duration::from_secs(5);
/// The tests with long inputs run alone: the memory of their inputs would count for other tests.
static ALONE: RwLock<()> = RwLock::new(());
const SEED: u64 = 0x00c4_a9ce_7e00_0011;

/// Runs the inputs of a target. A failure prints the input.
fn run(name: &str) {
    let _beside_short_ones = ALONE.read().unwrap_or_else(PoisonError::into_inner);
    warm_up();
    let target = target(name).unwrap();
    let inputs = corpus(name).unwrap();
    let mut rng = fastrand::Rng::with_seed(SEED);
    let mutated = (0..MUTATIONS).map(|_| mutated(&inputs, &mut rng));
    for input in inputs.iter().cloned().chain(mutated) {
        let shown = Shown(&input);
        let start = Instant::now();
        target.run(&input);
        let taken = start.elapsed();
        assert!(taken < TIME_MAX, "{name}: an input took {taken:?}");
        drop(shown);
    }
}

/// Prints an input if a panic drops it.
struct Shown<'a>(&'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        use std::io::Write as _;
        if !std::thread::panicking() {
            return;
        }
        let line = escaped(self.0);
        drop(writeln!(std::io::stderr(), "add this line to the corpus:\n{line}"));
    }
}

fn mutated(inputs: &[Vec<u8>], rng: &mut fastrand::Rng) -> Vec<u8> {
    const BYTES: &[u8] = b"\0\x01\x7f\x80\xff\"\\{}[]<>:,-#&*! \n";
    let mut input = rng.choice(inputs).unwrap().clone();
    for _ in 0..rng.usize(1..5) {
        let at = rng.usize(0..=input.len());
        let end = (at + rng.usize(0..32)).min(input.len());
        match rng.u8(0..6) {
            0 if at < input.len() => input[at] ^= 1 << rng.u8(0..8),
            1 if at < input.len() => input[at] = *rng.choice(BYTES).unwrap(),
            2 => input.insert(at, *rng.choice(BYTES).unwrap()),
            3 => drop(input.drain(at..end)),
            4 => {
                let part = input[at..end].repeat(rng.usize(1..8));
                drop(input.splice(at..at, part));
            }
            _ => {
                let other = rng.choice(inputs).unwrap();
                let from = rng.usize(0..=other.len());
                let to = (from + rng.usize(0..64)).min(other.len());
                drop(input.splice(at..end, other[from..to].iter().copied()));
            }
        }
    }
    input
}

macro_rules! decoders {
    ($($test:ident $name:literal)*) => {
        $(
            #[test]
            fn $test() {
                run($name);
            }
        )*

        #[test]
        fn every_target_has_a_test() {
            let tested = [$($name),*];
            let targets = chancery_fuzz::TARGETS.iter().map(|target| target.name);
            assert_eq!(targets.collect::<Vec<_>>(), tested);
        }
    };
}

decoders! {
    sotw_requests_decode_within_bounds "sotw"
    delta_requests_decode_within_bounds "delta"
    mcp_requests_decode_within_bounds "mcp"
    nodes_decode_within_bounds "node"
    rest_requests_decode_within_bounds "rest"
    grpc_messages_decode_within_bounds "framing"
    load_reports_decode_within_bounds "lrs"
    resource_names_decode_within_bounds "names"
    csds_requests_decode_within_bounds "csds"
    json_csds_requests_decode_within_bounds "csds-json"
    admin_requests_decode_within_bounds "admin"
    json_files_decode_within_bounds "file-json"
    yaml_files_decode_within_bounds "file-yaml"
    binary_files_decode_within_bounds "file-pb"
    text_format_files_decode_within_bounds "file-pb-text"
    manifests_decode_within_bounds "manifest"
    bootstraps_decode_within_bounds "bootstrap"
    tokens_decode_within_bounds "token"
    rejection_texts_are_cleaned_within_bounds "rejection"
}

/// The length of a long input in bytes.
const LONG_BYTES: usize = 32 << 10;

/// L14: the memory of an input is proportional to its length. Short inputs do not show this, because the bound of a
/// target has a constant part.
#[test]
fn memory_of_long_inputs_is_bounded() {
    let _alone = ALONE.write().unwrap_or_else(PoisonError::into_inner);
    warm_up();
    for target in chancery_fuzz::TARGETS {
        let inputs = corpus(target.name).unwrap();
        let repeated = inputs.iter().take(10).filter(|input| !input.is_empty());
        let repeated = repeated.map(|input| input.repeat(LONG_BYTES.div_ceil(input.len())));
        for input in repeated.chain(dense(target.name)) {
            let shown = Shown(&input[..input.len().min(100)]);
            target.run(&input);
            drop(shown);
        }
    }
}

/// Returns long inputs of the shortest possible parts, for which the constant part of a bound does not suffice. A
/// request of CSDS has at most 64 KiB.
fn dense(name: &str) -> Vec<Vec<u8>> {
    let (start, parts, end): (&str, &[&str], &str) = match name {
        "file-json" => ("{\"resources\": [0", &[",0", ",[]", ",{\"\":0}", ",\"\""], "]}"),
        "file-yaml" | "manifest" => {
            ("resources:\n", &["- \n", "- 0\n", "- []\n", "- {a: }\n", "- *a\n", "- &a a\n"], "")
        }
        "bootstrap" => ("static_resources:\n  clusters:\n", &["  - \n", "  - {a: }\n"], ""),
        "file-pb-text" => ("", &["resources{}", "nonce:''"], ""),
        "rest" => ("{\"resource_names\": [\"\"", &[",\"\""], "]}"),
        "names" => ("", &["\n", "xdstp:/a/b\n"], ""),
        "csds-json" => ("{\"node_matchers\": [{}", &[",{}"], "]}"),
        // An empty field with a length, of any number.
        _ => ("", &["\n\0", "\x12\0", "\x1a\0", "\"\0", "*\0", "2\0", ":\0"], ""),
    };
    let n_bytes = if name.starts_with("csds") { LONG_BYTES } else { 4 * LONG_BYTES };
    let long = |part: &&str| [start, &part.repeat(n_bytes / part.len()), end].concat().into_bytes();
    parts.iter().map(long).collect()
}

/// The stack of a thread that reads YAML itself, so that all of its processor time counts.
const STACK_BYTES: usize = 32 << 20;
/// The number of inputs of a corpus that grow.
const INPUTS_GROWN: usize = 30;
/// The number of long inputs from each input of a corpus, besides its repetition.
const GROWN: usize = 6;

/// L12: the time for an input is proportional to its length. Parts of the inputs are repeated until the input is long,
/// which shows a cost that grows with the square of the length. Prints the highest cost of each target.
#[test]
fn time_of_long_inputs_is_bounded() {
    let _alone = ALONE.write().unwrap_or_else(PoisonError::into_inner);
    let measure = || {
        chancery_admission::fuzz::read_on_this_thread();
        warm_up();
        let mut rng = fastrand::Rng::with_seed(SEED);
        for target in chancery_fuzz::TARGETS {
            let mut highest = 0.0_f64;
            let inputs = corpus(target.name).unwrap();
            let inputs = inputs.iter().step_by(inputs.len().div_ceil(INPUTS_GROWN));
            let grown = inputs.flat_map(|input| grown(input, &mut rng)).collect::<Vec<_>>();
            for input in grown.into_iter().chain(dense(target.name)) {
                let shown = Shown(&input[..input.len().min(200)]);
                highest = highest.max(target.cost(&input));
                drop(shown);
            }
            println!("{}: at most {highest:.0} steps for each byte", target.name);
        }
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(measure).unwrap();
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Returns long inputs: the input repeated, and with one of its parts repeated between the others.
fn grown(input: &[u8], rng: &mut fastrand::Rng) -> Vec<Vec<u8>> {
    if input.is_empty() {
        return Vec::new();
    }
    let mut grown = vec![input.repeat(LONG_BYTES.div_ceil(input.len()))];
    for _ in 0..GROWN {
        let start = rng.usize(0..input.len());
        let end = (start + rng.usize(1..24)).min(input.len());
        let part = input[start..end].repeat(LONG_BYTES / (end - start));
        grown.push([&input[..start], &part, &input[end..]].concat());
    }
    grown
}

#[test]
fn corpus_line_is_read_as_it_was_written() {
    let all: Vec<u8> = (0..=255).collect();
    for input in [&all[..], b"", b"# no comment", b"a\\'\"\n"] {
        assert_eq!(unescaped(&escaped(input)).unwrap(), input);
        assert!(!escaped(input).starts_with('#') && !escaped(input).contains('\n'));
    }
    for line in ["\\", "\\q", "\\x1", "\\xzz"] {
        assert_eq!(unescaped(line), None, "{line}");
    }
}
