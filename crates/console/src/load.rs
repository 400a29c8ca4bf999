//! The page with the load that clients report.

use chancery_admin_proto::v1 as pb;
use maud::{Markup, html};

use crate::{
    page::{Live, Page, Section},
    parts::{facts, more, or_dash, resource_link, table, time},
    text::{count, number, shell},
};

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// Returns the page.
#[must_use]
pub fn page(pattern: &str, status: &pb::LoadStatus) -> Page {
    let settings = status.settings.clone().unwrap_or_default();
    let total = status.total.unwrap_or_default();
    let command = match pattern {
        "" => "chancery load".to_owned(),
        pattern => format!("chancery load {}", shell(pattern)),
    };
    Page {
        section: Section::Load,
        title: "Load reports".to_owned(),
        command,
        live: Live::Off,
        not_asked: status.not_asked.clone(),
        notes: status.omitted.iter().map(omitted).collect(),
        body: html! {
            form.filters method="get" action="/ui/load" role="search" {
                label { "Cluster (* matches any text)" input type="search" name="cluster" value=(pattern); }
                button type="submit" { "Show" }
            }
            (facts(&[
                ("reports since", time(status.since_ms)),
                ("streams", html! { (number(status.streams)) }),
                ("reports", html! { (number(status.reports)) }),
                ("requests", html! { (number(total.issued)) }),
                ("failed", html! { (number(total.failed)) }),
                ("dropped", html! { (number(total.dropped)) }),
                ("reported clusters", or_dash(&settings.clusters.join(", "))),
                ("interval", html! { (number(settings.interval_ms)) " ms" }),
            ]))
            @if status.clusters.is_empty() { p.empty { "No client has reported the load of such a cluster." } }
            @else { (rows(status)) }
            (more(&status.next, "/ui/load", &[("cluster", pattern)]))
        },
    }
}

fn omitted(one: &pb::OmittedLoad) -> String {
    format!(
        "The replica dropped {} of reports, because a limit was reached.",
        count(one.count, &one.kind)
    )
}

fn rows(status: &pb::LoadStatus) -> Markup {
    let rows = html! {
        @for one in &status.clusters {
            @let sum = one.sum.unwrap_or_default();
            tr {
                th scope="row" { (resource_link(CLUSTER, &one.cluster_name, "")) }
                td.number { (format!("{:.1}", sum.issued_per_second)) }
                td.number { (format!("{:.1}", sum.failed_per_second)) }
                td.number { (number(sum.in_progress)) }
                td.number { (number(sum.dropped)) }
                td.number { (number(one.streams)) }
                td.number { (number(one.reported_ms_ago / 1000)) " s ago" }
            }
        }
    };
    table(
        "Load by cluster",
        &["cluster", "requests/s", "failed/s", "in progress", "dropped", "streams", "last report"],
        &rows,
    )
}
