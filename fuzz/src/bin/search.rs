//! Searches for inputs that break a target, with libFuzzer. `cargo xtask fuzz` builds and starts it.
//!
//! The variable `CHANCERY_FUZZ_TARGET` selects the target. The program reports each new peak of the memory.

#![no_main]

use std::{
    io::Write as _,
    sync::{
        LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use chancery_fuzz::{Target, target};

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("CHANCERY_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| panic!("`CHANCERY_FUZZ_TARGET`: no target is named {name:?}"))
});

static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Prepares the process. `cargo xtask fuzz` starts it with a main thread of a large stack. A thread for each
/// input would take longer than most inputs.
fn prepare() {
    chancery_admission::fuzz::read_on_this_thread();
    chancery_fuzz::warm_up();
}

libfuzzer_sys::fuzz_target!(init: prepare(), |input: &[u8]| {
    let peak = TARGET.run(input);
    if peak > PEAK.fetch_max(peak, Ordering::Relaxed) {
        drop(writeln!(std::io::stderr(), "peak: {peak} bytes of memory for {} bytes", input.len()));
    }
});
