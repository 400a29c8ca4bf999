//! The configuration of a replica: one TOML file in which every key has a default. Environment
//! variables (`CHANCERY_<SECTION>_<KEY>`) override the file, and flags override both.
//!
//! No other module reads the environment for settings of a replica. Errors name the key, the value,
//! its source and the rule.

mod access;
mod admin;
mod audit;
mod auth;
mod bounds;
pub mod convert;
#[cfg(test)]
mod docs_page;
mod entry;
mod error;
mod guards;
mod load;
mod load_reports;
mod log;
mod manual;
mod mcp;
mod named_files;
mod otel_variables;
mod raft;
mod read_text;
mod refused;
mod render;
mod rules;
mod schema;
mod secrets;
mod section;
mod shutdown;
mod source_file;
mod store;
mod suggestions;
mod tls;
mod trace;
mod types;
mod units;
mod unknown_variables;
mod users;
mod validation;
mod xds;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

pub use admin::ConsoleMode;
pub use error::{ConfigError, Source};
pub use load::{FlagValue, Flags, Loaded, list, load};
pub use log::LogFormat;
pub use manual::manual;
pub use named_files::{NamedFiles, read_descriptor_set};
pub use read_text::{read_bytes, read_text};
pub use refused::Refused;
pub use rules::{LISTEN_RULE, log_level_rules};
pub use schema::schema;
use section::Key;
pub use trace::endpoint_rule;
pub use types::configured_types;
pub use units::Span;

/// Declares the structure of the whole configuration, and the table of its sections.
macro_rules! configuration {
    ($($section:ident: $type:ty,)+) => {
        /// The whole configuration.
        #[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
        #[serde(default)]
        #[expect(missing_docs, reason = "the types of the sections have the descriptions")]
        pub struct Config {
            $(pub $section: $type,)+
        }

        impl Config {
            /// The sections with their keys, in the order in which they are printed.
            const SECTIONS: &'static [(&'static str, &'static [Key])] =
                &[$((stringify!($section), <$type>::KEYS)),+];
        }
    };
}

configuration! {
    store: store::Store,
    raft: raft::Raft,
    xds: xds::Xds,
    load_reports: load_reports::LoadReports,
    mcp: mcp::Mcp,
    admin: admin::Admin,
    auth: auth::Auth,
    access: access::Access,
    guards: guards::Guards,
    validation: validation::Validation,
    references: validation::References,
    secrets: secrets::SecretsSection,
    audit: audit::Audit,
    log: log::Log,
    trace: trace::Trace,
    shutdown: shutdown::Shutdown,
}

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}
