//! How many files the process may have open: a connection is one.
//!
//! Most systems start processes with a soft limit of 1024 and let them raise it. A replica does, as far
//! as it may; otherwise its own limits of connections would never be reached.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{debug, info};

/// Files that are none of a client's: the store's, the listeners', the log's.
const OWN_FILES: u64 = 2048;

/// Raises the limit as far as it may be raised, and says if that is less than the connections need.
pub(crate) fn raise_limit(connections_max: usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let needed = u64::try_from(connections_max).unwrap_or(u64::MAX).saturating_add(OWN_FILES);
    // None is unlimited; the kernel has a limit all the same, which is what it takes.
    let wanted = maximum.unwrap_or(needed).max(current.unwrap_or(0));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    let limit = getrlimit(Resource::Nofile).current;
    debug!(?raised, before = current, now = limit, "limit of open files");
    if let Some(limit) = limit
        && limit < needed
    {
        info!(
            limit,
            needed,
            "the limit of open files is less than connections_max of all ports need; connections \
             beyond it wait to be accepted (raise it with ulimit -n or LimitNOFILE)"
        );
    }
}
