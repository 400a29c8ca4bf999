//! Entry points for the fuzz targets of `fuzz/` and for the benchmarks of `benches/`.

use chancery_model::ResourceDraft;

use crate::{profile::Audience, validate::check};

/// Makes the current thread read YAML and the text format itself, instead of starting a thread for each text.
/// The stack of the current thread must have 16 MiB.
pub fn read_on_this_thread() {
    crate::source::declare_large_stack();
}

/// Validates a resource as one that an Envoy may see, and returns the number of findings.
#[must_use]
pub fn n_findings(draft: &ResourceDraft) -> usize {
    check(Audience::unknown(), &draft.key.type_url, &draft.body).len()
}

/// Returns the number of findings about a resource for five profiles at once: each kind of client.
#[must_use]
pub fn n_findings_for_all(draft: &ResourceDraft) -> usize {
    check(Audience::of_all(), &draft.key.type_url, &draft.body).len()
}
