//! The certificates and authentication of the ports.

use chancery_audit::{Audit, Port};
use chancery_auth::Authenticator;
use chancery_config::Config;
use chancery_fanout::AccessControl;
use chancery_tls::{PortTls, TlsConfig};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

use super::audit;
use crate::Failure;

/// Reads the certificates of a port, if it uses TLS. A task reads them again when their files change.
pub(super) fn open_tls(
    files: Option<TlsConfig>,
    audit: &Audit,
    port: Port,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Result<Option<PortTls>, Failure> {
    let tls = files.map(PortTls::new).transpose().map_err(Failure::new)?;
    if let Some(tls) = tls.clone() {
        audit::observe_handshakes(audit, &tls, port);
        let stop = stop.clone();
        tasks.spawn(async move { stop.run_until_cancelled(tls.keep_fresh()).await });
    }
    Ok(tls)
}

/// Warns about ports on other addresses than loopback at which every caller may do everything.
pub(super) fn warn_of_open_ports(config: &Config) {
    if config.access.control() == AccessControl::Enforced {
        return;
    }
    for (section, address) in [("xds", config.xds.address), ("admin", config.admin.address)] {
        if !address.ip().is_loopback() {
            warn!(
                %address,
                "every caller that can connect to {section}.address may do everything; to apply access rules, set \
                 access.admins"
            );
        }
    }
}

/// Reads the keys of the issuers of tokens. A task reads them again when they are due.
pub(super) fn open_auth(
    config: &Config,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Result<Authenticator, Failure> {
    let authenticator = Authenticator::new(&config.auth.settings()).map_err(Failure::new)?;
    let (fresh, stop) = (authenticator.clone(), stop.clone());
    tasks.spawn(async move { stop.run_until_cancelled(fresh.keep_fresh()).await });
    Ok(authenticator)
}
