//! The checks of a configuration, and of its replica on this machine.

use std::path::Path;

use chancery_config::{Config, Flags, NamedFiles, load};
use chancery_serve::{check_open_files, fit_open_files, open_files_needed};

use super::check::Check;
use crate::{remote::local_replica::LocalReplica, text::count};

/// Makes the checks `config` and `limits`.
pub(super) fn checks(path: &Path) -> [Check; 2] {
    const NAME: &str = "config";
    let flags = Flags { file: Some(path.to_owned()), values: Vec::new() };
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    match load(&flags, variables, NamedFiles::Check) {
        Ok(loaded) => {
            let config = match loaded.warnings.as_slice() {
                [] => Check::ok(NAME, format!("{} is valid", path.display())),
                [warning, ..] => {
                    Check::warning(NAME, warning.clone(), "see `chancery config check`")
                }
            };
            [config, limits(&loaded.config)]
        }
        Err(refused) => {
            let n = count(refused.n_problems(), "problem");
            let first = refused.errors.first().map(ToString::to_string).unwrap_or_default();
            let detail = format!("{} has {n}, such as {first}", path.display());
            let config = Check::failed(NAME, detail, "see `chancery config check`");
            [config, Check::unknown("limits", "the configuration is not valid")]
        }
    }
}

/// Checks that the process may open a file for each connection.
fn limits(config: &Config) -> Check {
    const NAME: &str = "limits";
    let limit = LocalReplica::find(&config.store.data_dir).and_then(|found| found.open_files_max());
    let needed = open_files_needed(config);
    match limit {
        Err(reason) => Check::unknown(NAME, reason),
        Ok(Some(limit)) if limit < needed => {
            const FIX: &str =
                "raise LimitNOFILE of its service, or lower connections_max of its ports";
            if let Err(reason) = check_open_files(config, limit) {
                return Check::failed(NAME, reason, FIX);
            }
            let mut fitting = config.clone();
            fit_open_files(&mut fitting, limit);
            let xds = fitting.xds.connections_max;
            let text = format!(
                "the replica may open {limit} files, and its connections may need {needed}; it accepts {xds} \
                 connections of clients"
            );
            Check::warning(NAME, text, FIX)
        }
        Ok(Some(limit)) => Check::ok(NAME, format!("the replica may open {limit} files")),
        Ok(None) => Check::ok(NAME, "the replica may open any number of files"),
    }
}
