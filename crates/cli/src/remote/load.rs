//! The commands `load` and `load set`: the load that clients report, and what they report.

use std::io::{self, Write};

use chancery_admin::time_limits::LOAD_REPORT;
use chancery_admin_proto::v1::{
    self as pb, GetLoadRequest, load_service_client::LoadServiceClient,
};
use chancery_config::Span;
use clap::{Args, Subcommand};

use super::{
    client::refusal,
    connector::Channel,
    fleet::{Extent, check_complete},
};
use crate::{
    answer::Answer,
    failure::Failure,
    help::examples,
    table::Table,
    text::count,
    time::{age, now, time_in},
};

/// The arguments of `load`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Load {
    #[command(subcommand)]
    command: Option<LoadCommand>,
    /// Show only clusters whose name matches; `*` matches any characters [default: all]
    #[arg(long, value_name = "PATTERN")]
    cluster: Option<String>,
    /// Also show the localities of each cluster
    #[arg(long)]
    localities: bool,
    /// Also show the localities and the endpoints of each cluster
    #[arg(long)]
    endpoints: bool,
    /// Show at most N clusters
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    #[command(flatten)]
    extent: Extent,
}

/// The subcommands of `load`.
#[derive(Debug, Subcommand)]
enum LoadCommand {
    /// Change what clients report to the contacted replica, until it restarts
    ///
    /// The change takes effect on open streams. Run the command for each replica. The keys of
    /// `[load_reports]` in the configuration apply after a restart.
    #[command(after_help = examples(&[
        "load set --clusters web,cart --interval 5s",
        "load set --clusters '*' --endpoints true",
    ]))]
    Set(Set),
}

/// The arguments of `load set`.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct Set {
    /// Clusters to report, separated by commas; `*` means all, an empty list none
    #[arg(long, value_name = "NAMES")]
    clusters: Option<String>,
    /// Time between two reports of a client, from 1s to 1h
    #[arg(long, value_name = "TIME", value_parser = time_in(LOAD_REPORT))]
    interval: Option<Span>,
    /// Whether clients report the load of each endpoint; only Envoy supports this
    #[arg(long, value_name = "BOOL")]
    endpoints: Option<bool>,
}

/// Runs `load` or its subcommand.
pub(super) async fn run(
    load: Load,
    channel: Channel,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let mut client = LoadServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    if let Some(LoadCommand::Set(set)) = load.command {
        let response = client.set_load_settings(request(set)).await;
        let settings = response.map_err(|status| refusal(&status))?.into_inner();
        return answer.show(&settings, |out| write_settings(&settings, out));
    }
    let request = GetLoadRequest {
        cluster: load.cluster.unwrap_or_default(),
        endpoints: load.endpoints,
        limit: load.limit,
        local: load.extent.local,
        ..GetLoadRequest::default()
    };
    let response = client.get_load(request).await.map_err(|status| refusal(&status))?;
    let status = response.into_inner();
    let localities = load.localities || load.endpoints;
    answer.show(&status, |out| write_status(&status, localities, now(), out))?;
    check_complete(&status.not_asked)
}

fn request(set: Set) -> pb::SetLoadSettingsRequest {
    let names = |list: String| {
        let names = list.split(',').filter(|name| !name.is_empty());
        pb::ClusterNames { names: names.map(str::to_owned).collect() }
    };
    pb::SetLoadSettingsRequest {
        clusters: set.clusters.map(names),
        interval_ms: set.interval.map(Span::millis),
        endpoints: set.endpoints,
    }
}

fn write_settings(settings: &pb::LoadSettings, out: &mut dyn Write) -> io::Result<()> {
    let clusters = match &settings.clusters[..] {
        [] => "no clusters".to_owned(),
        [all] if all == "*" => "all clusters".to_owned(),
        names => names.join(", "),
    };
    let detail = if settings.endpoints { ", with endpoints" } else { "" };
    let interval = Span::new(std::time::Duration::from_millis(settings.interval_ms));
    writeln!(out, "clients report {clusters} every {interval}{detail}")
}

fn write_status(
    status: &pb::LoadStatus,
    localities: bool,
    now: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    write_settings(&status.settings.clone().unwrap_or_default(), out)?;
    let replicas = match status.replicas {
        0 | 1 => format!("replica {}", status.replica_id),
        n => format!("{n} replicas"),
    };
    let others = match status.replicas_not_asked {
        0 => String::new(),
        n => format!("; the clients of {} are not included", count(n, "other replica")),
    };
    writeln!(
        out,
        "{replicas}: {} on {} in {}{others}",
        count(status.reports, "report"),
        count(status.streams, "open stream"),
        age(status.since_ms, now),
    )?;
    for omitted in &status.omitted {
        writeln!(out, "not kept: {} (kind {})", count(omitted.count, "item"), omitted.kind)?;
    }
    let mut table = Table::new([
        "CLUSTER",
        "PART",
        "IN PROGRESS",
        "PER SECOND",
        "ISSUED",
        "SUCCEEDED",
        "FAILED",
        "DROPPED",
        "AGE",
    ]);
    for cluster in &status.clusters {
        let name = match cluster.cluster_service_name.as_str() {
            "" => cluster.cluster_name.clone(),
            service => format!("{} ({service})", cluster.cluster_name),
        };
        let sum = cluster.sum.unwrap_or_default();
        let dropped = sum.dropped.to_string();
        let reported = age(now.saturating_sub(cluster.reported_ms_ago), now);
        row(&mut table, name, String::new(), &sum, [dropped, reported]);
        for locality in cluster.localities.iter().filter(|_| localities) {
            let sum = locality.sum.unwrap_or_default();
            row(&mut table, String::new(), place(locality), &sum, Default::default());
            for endpoint in &locality.endpoints {
                let pb::EndpointLoad { issued, succeeded, failed, .. } = *endpoint;
                table.row([
                    String::new(),
                    endpoint.address.clone(),
                    String::new(),
                    String::new(),
                    issued.to_string(),
                    succeeded.to_string(),
                    failed.to_string(),
                    String::new(),
                    String::new(),
                ]);
            }
        }
    }
    if status.clusters.is_empty() {
        writeln!(out, "no cluster has reported load")?
    } else {
        table.write(out, "")?
    }
    match status.clusters_omitted {
        0 => Ok(()),
        n => writeln!(out, "{} not shown; use --cluster or --limit", count(n, "cluster")),
    }
}

fn row(table: &mut Table, name: String, part: String, sum: &pb::LoadSum, rest: [String; 2]) {
    let [dropped, reported] = rest;
    table.row([
        name,
        part,
        sum.in_progress.to_string(),
        format!("{:.1}", sum.succeeded_per_second + sum.failed_per_second),
        sum.issued.to_string(),
        sum.succeeded.to_string(),
        sum.failed.to_string(),
        dropped,
        reported,
    ]);
}

/// Returns the locality with its priority, if that is not 0.
fn place(locality: &pb::LocalityLoad) -> String {
    let place = format!("{}/{}/{}", locality.region, locality.zone, locality.sub_zone);
    match locality.priority {
        0 => place,
        priority => format!("{place} (priority {priority})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> pb::LoadStatus {
        let sum = pb::LoadSum {
            succeeded: 90,
            failed: 10,
            issued: 101,
            in_progress: 1,
            succeeded_per_second: 9.0,
            failed_per_second: 1.0,
            dropped: 2,
            ..pb::LoadSum::default()
        };
        let endpoint = pb::EndpointLoad {
            address: "10.0.0.1:80".into(),
            succeeded: 90,
            ..pb::EndpointLoad::default()
        };
        let locality = pb::LocalityLoad {
            region: "r".into(),
            zone: "z".into(),
            priority: 1,
            sum: Some(sum),
            endpoints: vec![endpoint],
            ..pb::LocalityLoad::default()
        };
        let cluster = pb::ClusterLoad {
            cluster_name: "web".into(),
            cluster_service_name: "web-eds".into(),
            sum: Some(sum),
            localities: vec![locality],
            reported_ms_ago: 3000,
            ..pb::ClusterLoad::default()
        };
        let clusters = vec!["*".to_owned()];
        pb::LoadStatus {
            replica_id: 1,
            replicas_not_asked: 2,
            settings: Some(pb::LoadSettings { clusters, interval_ms: 10_000, endpoints: true }),
            since_ms: 1000,
            streams: 1,
            reports: 10,
            clusters: vec![cluster],
            clusters_omitted: 4,
            omitted: vec![pb::OmittedLoad { kind: "metric".into(), count: 5 }],
            ..pb::LoadStatus::default()
        }
    }

    #[test]
    fn load_table_names_what_it_does_not_cover() {
        let mut out = Vec::new();
        write_status(&status(), true, 61_000, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        // The widths of columns are tested in `table.rs`.
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        let expected = [
            "clients report all clusters every 10s, with endpoints",
            "replica 1: 10 reports on 1 open stream in 60s; the clients of 2 other replicas are not included",
            "not kept: 5 items (kind metric)",
            "CLUSTER PART IN PROGRESS PER SECOND ISSUED SUCCEEDED FAILED DROPPED AGE",
            "web (web-eds) - 1 10.0 101 90 10 2 3s",
            "- r/z/ (priority 1) 1 10.0 101 90 10 - -",
            "- 10.0.0.1:80 - - 0 90 0 - -",
            "4 clusters not shown; use --cluster or --limit",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn empty_list_of_clusters_is_a_change() {
        let set = |clusters: Option<&str>| {
            let clusters = clusters.map(str::to_owned);
            request(Set { clusters, interval: None, endpoints: None }).clusters.map(|c| c.names)
        };
        assert_eq!(set(None), None);
        assert_eq!(set(Some("")), Some(vec![]));
        assert_eq!(set(Some("a,b")), Some(vec!["a".to_owned(), "b".to_owned()]));
    }
}
