//! The limit of open files, of which each connection needs one.
//!
//! Most systems start processes with a soft limit of 1024, and let them raise it. A replica raises it as far as
//! possible. Otherwise it would never reach its own limits of connections.
//!
//! If the limit is still too low for all connections, each port gets a share of it, after a reserve for the store. So
//! clients of one port never take the files that the store or another port needs.

use chancery_config::Config;
use chancery_net::{connections_for, sockets_max};
use chancery_store::table_files_max;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{debug, info};

use crate::Failure;

/// Open files other than connections of clients, if the limit is high enough for all connections: those of the store,
/// the listeners and the log, and the sockets of all ports that have no slot ([`sockets_max`]).
const OWN_FILES: u64 = 2048;
/// The same without the tables of the store, if the limit is lower: listeners, the log, the write-ahead log, threads,
/// connections to other replicas, and files that are read for a moment.
const OWN_FILES_LEAST: u64 = 112;
/// The minimum share of a port, in sockets.
const PORT_LEAST: u64 = 14;
/// The same for the admin port and its UNIX socket: operators and health checks need a slot among many other
/// connections.
const ADMIN_PORT_LEAST: u64 = 32;
/// The minimum share of a port for an MCP source, in sockets.
const MCP_PORT_LEAST: u64 = 6;

/// Returns the number of files that a replica with all connections has open.
pub fn open_files_needed(config: &Config) -> u64 {
    let n_admin = n_admin_ports(config);
    let admin = config.admin.connections_max.saturating_mul(n_admin);
    let mcp = config.mcp.connections_max.saturating_mul(config.mcp.listening().count());
    let ports = [config.raft.connections_max, admin, mcp];
    let connections = ports.into_iter().fold(config.xds.connections_max, usize::saturating_add);
    number(connections).saturating_add(OWN_FILES)
}

/// Returns the smallest limit of open files with which a replica starts.
pub(crate) fn open_files_least(config: &Config) -> u64 {
    let n_mcp = number(config.mcp.listening().count());
    OWN_FILES_LEAST
        + u64::from(table_files_max(Some(0)))
        + 2 * PORT_LEAST
        + number(n_admin_ports(config)) * ADMIN_PORT_LEAST
        + n_mcp.saturating_mul(MCP_PORT_LEAST)
}

/// Lowers the limits of connections of all ports, so that the replica needs at most `limit` files. One address keeps its
/// share of the xDS port. Returns whether any limit is lower.
pub fn fit(config: &mut Config, limit: u64) -> bool {
    if limit >= open_files_needed(config) {
        return false;
    }
    let reserve = OWN_FILES_LEAST + u64::from(table_files_max(Some(limit)));
    let all = limit.saturating_sub(reserve);
    let (n_admin, n_mcp) = (n_admin_ports(config), config.mcp.listening().count());
    let mut left = all;
    let mut lower = |connections_max: &mut usize, n_ports: usize, least: u64, parts: u64| {
        let n_ports = number(n_ports).max(1);
        let share = (all / parts / n_ports).max(least);
        let sockets = share.min(number(sockets_max(*connections_max)));
        *connections_max =
            connections_for(usize::try_from(sockets).unwrap_or(usize::MAX)).min(*connections_max);
        left = left.saturating_sub(number(sockets_max(*connections_max)) * n_ports);
        left
    };
    lower(&mut config.raft.connections_max, 1, PORT_LEAST, 8);
    let mut left = lower(&mut config.admin.connections_max, n_admin, ADMIN_PORT_LEAST, 8);
    if n_mcp > 0 {
        left = lower(&mut config.mcp.connections_max, n_mcp, MCP_PORT_LEAST, 8);
    }
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    let configured = config.xds.connections_max;
    config.xds.connections_max = configured.min(connections_for(left));
    config.xds.connections_per_peer_max = peer_share(config, configured);
    true
}

/// Returns the maximum number of connections of one address: the same share of `connections_max` as that of the
/// `configured` maximum, and at least one.
fn peer_share(config: &Config, configured: usize) -> usize {
    let xds = &config.xds;
    let (peer, now) = (number(xds.connections_per_peer_max), number(xds.connections_max));
    let share = u128::from(peer) * u128::from(now) / u128::from(number(configured).max(1));
    usize::try_from(share).map_or(xds.connections_max, |share| share.max(1))
}

/// The limit of open files, if it is too low for all connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct LowLimit {
    limit: u64,
    needed: u64,
}

/// Raises the limit as far as possible. If it is still lower than the connections need, lowers the limits of
/// connections.
///
/// # Errors
/// Fails if the limit is too low for a replica.
pub(super) fn raise_limit(config: &mut Config) -> Result<Option<LowLimit>, Failure> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let needed = open_files_needed(config);
    // `None` means unlimited. The kernel has its own limit anyway, so that `needed` is requested.
    let wanted = maximum.unwrap_or(needed).max(current.unwrap_or(0));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    let limit = getrlimit(Resource::Nofile).current;
    debug!(?raised, before = current, now = limit, "limit of open files");
    let Some(limit) = limit else { return Ok(None) };
    check(config, limit).map_err(Failure::new)?;
    Ok(fit(config, limit).then_some(LowLimit { limit, needed }))
}

impl LowLimit {
    /// Logs the limits of connections that follow from it.
    pub(super) fn log(self, config: &Config) {
        let Self { limit, needed } = self;
        info!(
            limit,
            needed,
            xds = config.xds.connections_max,
            xds_per_peer = config.xds.connections_per_peer_max,
            admin = config.admin.connections_max,
            raft = config.raft.connections_max,
            "the limit of open files is lower than connections_max of all ports requires; the ports accept fewer \
             connections (raise it with ulimit -n or LimitNOFILE)"
        );
    }
}

/// Checks that a replica can start with this limit of open files.
///
/// # Errors
/// Returns the reason if it cannot.
pub fn check(config: &Config, limit: u64) -> Result<(), String> {
    let least = open_files_least(config);
    if limit >= least {
        return Ok(());
    }
    Err(format!(
        "the limit of open files is {limit}, but a replica with this configuration needs at least {least}, and {} for \
         all connections; raise it with ulimit -n or LimitNOFILE",
        open_files_needed(config)
    ))
}

/// Returns the highest limit of open files that this process can have; `None` if it has none.
pub fn highest_limit() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    Some(maximum?.max(current?))
}

/// Returns the number of ports for the admin API: TCP, and the UNIX socket.
fn n_admin_ports(config: &Config) -> usize {
    1 + usize::from(config.admin.socket().is_some())
}

fn number(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the maximum number of open files of a replica.
    fn open_files_max(config: &Config, limit: u64) -> u64 {
        let ports = [
            (config.xds.connections_max, 1),
            (config.raft.connections_max, 1),
            (config.admin.connections_max, n_admin_ports(config)),
            (config.mcp.connections_max, config.mcp.listening().count()),
        ];
        let sockets = ports.map(|(max, n)| number(sockets_max(max)) * number(n));
        let tables = u64::from(table_files_max(Some(limit)));
        sockets.iter().sum::<u64>() + OWN_FILES_LEAST + tables
    }

    #[test]
    fn address_keeps_its_share_of_a_lowered_xds_port() {
        let configured = Config::default();
        let (all, peer) = (configured.xds.connections_max, configured.xds.connections_per_peer_max);
        for limit in [open_files_least(&configured), 256, 1024, 20_000, 100_000] {
            let mut config = configured.clone();
            assert!(fit(&mut config, limit), "{limit}");
            let xds = &config.xds;
            assert_eq!(xds.connections_per_peer_max, xds.connections_max * peer / all, "{limit}");
            assert!(xds.connections_per_peer_max < xds.connections_max, "{limit}");
        }
        // An address has at least one connection.
        let mut config = configured.clone();
        config.xds.connections_per_peer_max = 10;
        fit(&mut config, 1024);
        assert_eq!(config.xds.connections_per_peer_max, 1);
        let mut enough = configured.clone();
        assert!(!fit(&mut enough, 200_000) && enough == configured);
    }

    #[test]
    fn ports_share_a_low_limit_of_open_files_after_a_reserve() {
        let mut configured = Config::default();
        for socket in ["", "/run/admin.sock"] {
            configured.admin.socket = socket.to_owned();
            let least = open_files_least(&configured);
            for limit in (least..3000).chain((3000..=120_000).step_by(997)) {
                let mut config = configured.clone();
                let is_lower = fit(&mut config, limit);
                assert_eq!(is_lower, limit < open_files_needed(&configured), "{limit}");
                assert!(open_files_max(&config, limit) <= limit, "{limit}");
                assert!(is_lower || config == configured);
                for max in [config.xds.connections_max, config.admin.connections_max] {
                    assert!(max >= 8, "{limit}: {max}");
                }
            }
            assert!(check(&configured, least).is_ok());
            let error = check(&configured, least - 1).unwrap_err();
            let values = [least - 1, least, open_files_needed(&configured)];
            assert!(values.iter().all(|value| error.contains(&value.to_string())), "{error}");
        }
    }
}
