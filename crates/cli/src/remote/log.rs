//! The command `log level`: the filter of a replica's log.

use std::time::Duration;

use chancery_admin::time_limits::LOG_FILTER;
use chancery_admin_proto::v1::{self as pb, log_service_client::LogServiceClient};
use chancery_config::Span;
use clap::Subcommand;

use super::{client::refusal, connector::Channel};
use crate::{answer::Answer, failure::Failure, help::examples, time::time_in};

/// The subcommands of `log`.
#[derive(Debug, Subcommand)]
pub(crate) enum Log {
    /// Show or change the log level of the contacted replica, until it restarts
    ///
    /// FILTER is a level (error, warn, info, debug, trace or off), or levels of modules, as for the key `log.level`. An
    /// empty FILTER returns to the configured one. Libraries such as h2 and openraft log details only at debug and
    /// trace. Run the command for each replica.
    #[command(after_help = examples(&[
        "log level",
        "log level debug --for 10m",
        "log level info,chancery_xds=debug",
        "log level ''",
    ]))]
    Level {
        /// New filter [default: show the present one]
        filter: Option<String>,
        /// Return to the configured filter after this time, from 1s to 24h [default: never]
        #[arg(long = "for", value_name = "TIME", requires = "filter", value_parser = time_in(LOG_FILTER))]
        lasts: Option<Span>,
    },
}

/// Runs a subcommand of `log`.
pub(super) async fn run(
    command: Log,
    channel: Channel,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let Log::Level { filter, lasts } = command;
    let mut client = LogServiceClient::new(channel);
    let result = match filter {
        None => client.get_log_filter(pb::GetLogFilterRequest {}).await,
        Some(filter) => {
            let for_ms = lasts.map(Span::millis);
            client.set_log_filter(pb::SetLogFilterRequest { filter, for_ms }).await
        }
    };
    let filter = result.map_err(|status| refusal(&status))?.into_inner();
    answer.show(&filter, |out| writeln!(out, "{}", describe(&filter)))
}

fn describe(state: &pb::LogFilter) -> String {
    let pb::LogFilter { replica_id, filter, configured, returns_in_ms } = state;
    match returns_in_ms {
        None if filter == configured => {
            format!("replica {replica_id} logs with the configured filter {filter:?}")
        }
        None => format!(
            "replica {replica_id} logs with the filter {filter:?} until it restarts; the configured filter is \
             {configured:?}"
        ),
        Some(ms) => {
            // A remainder of a second is a second.
            let seconds = Span::new(Duration::from_secs(ms.div_ceil(1000)));
            format!(
                "replica {replica_id} logs with the filter {filter:?} for {seconds}, and then with the configured \
                 filter {configured:?}"
            )
        }
    }
}
