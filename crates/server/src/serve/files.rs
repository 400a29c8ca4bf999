//! The limit of open files, of which each connection needs one.
//!
//! Most systems start processes with a soft limit of 1024, and let them raise it. A replica raises
//! it as far as possible. Otherwise it would never reach its own limits of connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{debug, info};

use crate::config::Config;

/// Open files other than connections of clients: those of the store, the listeners and the log.
const OWN_FILES: u64 = 2048;

/// Returns the number of files that a replica with all connections has open.
pub(crate) fn open_files_needed(config: &Config) -> u64 {
    let ports = [config.xds.connections_max, config.admin.connections_max];
    let connections = ports.into_iter().fold(config.raft.connections_max, usize::saturating_add);
    u64::try_from(connections).unwrap_or(u64::MAX).saturating_add(OWN_FILES)
}

/// Raises the limit as far as possible, and logs if that is less than the connections need.
pub(super) fn raise_limit(config: &Config) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let needed = open_files_needed(config);
    // `None` means unlimited. The kernel has its own limit anyway, so that `needed` is requested.
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
            "the limit of open files is lower than connections_max of all ports requires; connections \
             above the limit wait to be accepted (raise it with ulimit -n or LimitNOFILE)"
        );
    }
}
