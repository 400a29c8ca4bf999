//! Fuzz targets: the decoders of everything that clients and authors send.
//!
//! A target decodes one input. It fails if the decoder panics, breaks its contract, or takes more memory or
//! processor time than its bounds. `cargo xtask fuzz` searches for such inputs with libFuzzer. The tests replay the
//! corpus and mutations of it.

mod corpus;
mod cost;
mod files;
mod names;
mod requests;
mod targets;

use std::{
    cell::Cell,
    sync::{Mutex, MutexGuard, PoisonError},
};

use peak_alloc::PeakAlloc;

pub use corpus::{corpus, escaped, unescaped, write_corpus};
pub use targets::{TARGETS, target};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Fills what stays in memory for all inputs: the descriptors of Envoy's API, and shared names. Measures a step.
pub fn warm_up() {
    cost::steps(|| {});
    names::read(b"xdstp://a/envoy.config.cluster.v3.Cluster/x", &|| {});
    files::manifest(
        b"resources: [{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: x}]",
    );
}

/// A target calls this function before it compares a decoded input with another source. The memory that the
/// comparison takes does not count.
type Decoded<'a> = &'a dyn Fn();

/// A decoder with its bounds.
#[derive(Debug)]
pub struct Target {
    /// The name in commands, and of the file of its corpus.
    pub name: &'static str,
    /// Decodes an input. Returns the number of bytes that the decoder received.
    decode: fn(&[u8], Decoded<'_>) -> usize,
    /// The maximum length of an input in the search. Longer inputs reach no further code.
    pub input_bytes_max: usize,
    /// The memory that an input may take at once: a constant, and bytes for each byte of input.
    memory: (usize, usize),
    /// The maximum number of steps for each byte of an input, see [`Target::cost`].
    steps_per_byte: f64,
}

/// The number of runs of which the shortest counts.
const RUNS: usize = 3;
/// The number of steps that any input may take, besides those for its bytes.
const STEPS_MIN: f64 = 2e6;

impl Target {
    /// Decodes an input, and returns the number of steps for each byte. A step is the processor time that a checksum
    /// takes for one byte. The calling thread needs a stack of 16 MiB. It must call `read_on_this_thread` of
    /// `chancery_admission` first, so that files are read on this thread.
    ///
    /// # Panics
    /// If the decoder breaks its contract, or takes more steps than its bound.
    pub fn cost(&self, input: &[u8]) -> f64 {
        let _one = one();
        self.shortest(input)
    }

    /// Returns the steps for each byte in the shortest of several runs.
    fn shortest(&self, input: &[u8]) -> f64 {
        let mut shortest = f64::INFINITY;
        let mut len = 0;
        for _ in 0..RUNS {
            let steps = cost::steps(|| len = (self.decode)(input, &|| {}));
            shortest = shortest.min(steps);
            if shortest <= self.steps_max(len) {
                break;
            }
        }
        let (name, max) = (self.name, self.steps_max(len));
        assert!(shortest <= max, "{name}: {shortest:.0} steps for {len} bytes, at most {max:.0}");
        shortest / as_f64(len.max(1))
    }

    fn steps_max(&self, len: usize) -> f64 {
        STEPS_MIN + self.steps_per_byte * as_f64(len)
    }

    /// Decodes an input, and returns the peak of the memory that this takes, in bytes.
    ///
    /// # Panics
    /// If the decoder breaks its contract, or takes more memory or steps than its bounds.
    pub fn run(&self, input: &[u8]) -> usize {
        let _one = one();
        let before = MEMORY.current_usage();
        MEMORY.reset_peak_usage();
        let decoded_peak = Cell::new(None);
        let mut len = 0;
        let decoded = || decoded_peak.set(Some(MEMORY.peak_usage()));
        let steps = cost::steps(|| len = (self.decode)(input, &decoded));
        let peak = decoded_peak.get().unwrap_or_else(|| MEMORY.peak_usage());
        let peak = peak.saturating_sub(before);
        let (floor, per_byte) = self.memory;
        let max = floor + per_byte * len;
        assert!(
            peak <= max,
            "{}: {peak} bytes of memory for {len} bytes, at most {max}",
            self.name
        );
        if steps > self.steps_max(len) {
            // The shortest of several runs counts.
            self.shortest(input);
        }
        peak
    }
}

/// Waits until no other thread decodes. The peak of the memory belongs to the process.
fn one() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn as_f64(n: usize) -> f64 {
    u32::try_from(n).map_or(f64::INFINITY, f64::from)
}
