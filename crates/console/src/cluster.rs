//! The page about the replicas: members, leader, lag, disk, clocks and certificates.

use chancery_admin_proto::v1 as pb;
use maud::{Markup, html};

use crate::{
    page::{Live, Page, Section},
    parts::{facts, or_dash, state, table, time},
    text::{bytes, number},
};

/// Returns the page.
#[must_use]
pub fn page(status: &pb::ClusterStatus) -> Page {
    Page {
        section: Section::Cluster,
        title: "Cluster".to_owned(),
        command: "chancery cluster status\nchancery doctor".to_owned(),
        live: Live::On,
        not_asked: Vec::new(),
        notes: missing(status),
        body: html! {
            div data-part="cluster" {
                p.sentence { (verdict(status)) }
                @if !status.warnings.is_empty() {
                    ul { @for warning in &status.warnings { li { (warning) } } }
                }
                h2 { "Replicas" }
                (members(status))
                h2 { "Ports and certificates" }
                (ports(&status.members))
                h2 { "This replica" }
                (own(status))
            }
        },
    }
}

fn missing(status: &pb::ClusterStatus) -> Vec<String> {
    let down = status.members.iter().filter(|member| !member.up);
    down.map(|member| {
        format!("Replica {} does not answer: {}", member.replica_id, member.unanswered)
    })
    .collect()
}

fn verdict(status: &pb::ClusterStatus) -> String {
    let leader = match status.leader {
        Some(leader) => format!("Replica {leader} leads."),
        None => "The cluster has no leader, so nobody can write.".to_owned(),
    };
    format!(
        "{} of {} voters answer, and a majority needs {}. {leader}",
        status.voters_up,
        status.voters.len(),
        status.quorum
    )
}

fn members(status: &pb::ClusterStatus) -> Markup {
    let rows = html! {
        @for member in &status.members {
            tr {
                th scope="row" { (member.replica_id) @if member.replica_id == status.replica_id { " (this one)" } }
                td { (state(&member.state)) @if member.drained { " drained" } }
                td { (member.role) }
                td.number { @if member.up { (member.revision) } @else { span.none { "–" } } }
                td.number { @if let Some(lag) = member.lag { (number(lag)) } @else { span.none { "–" } } }
                td.number {
                    @if let Some(free) = member.free_bytes { (bytes(free)) }
                    @if let Some(min) = member.free_bytes_min { " (minimum " (bytes(min)) ")" }
                }
                td.number { @if let Some(offset) = member.clock_offset_ms { (offset) " ms" } @else { span.none { "–" } } }
                td { (or_dash(&member.version)) }
                td.cause { (or_dash(&problem(member))) }
            }
        }
    };
    table(
        "Members",
        &[
            "replica",
            "state",
            "role",
            "revision",
            "lag (entries)",
            "free disk",
            "clock",
            "version",
            "problem",
        ],
        &rows,
    )
}

fn problem(member: &pb::MemberStatus) -> String {
    let all = [&member.failure, &member.state_alarm, &member.disk_full, &member.unanswered];
    let all: Vec<&str> =
        all.into_iter().filter(|text| !text.is_empty()).map(String::as_str).collect();
    all.join("; ")
}

fn ports(members: &[pb::MemberStatus]) -> Markup {
    let date = |seconds: Option<i64>| {
        let ms = seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or_default();
        time(ms.saturating_mul(1000))
    };
    let rows = html! {
        @for member in members {
            @for port in &member.ports {
                tr {
                    th scope="row" { (member.replica_id) }
                    td { (port.name) }
                    td { (port.address) }
                    td { @if port.tls { "TLS" } @else { "no TLS" } }
                    td { (date(port.certificate_not_before)) }
                    td { (date(port.certificate_not_after)) }
                }
            }
        }
    };
    table(
        "Ports",
        &["replica", "port", "address", "encryption", "certificate from", "certificate until"],
        &rows,
    )
}

fn own(status: &pb::ClusterStatus) -> Markup {
    facts(&[
        ("replica", html! { (status.replica_id) }),
        ("cluster", or_dash(&status.cluster_id)),
        ("term", html! { (status.term) }),
        ("revision", html! { (number(status.revision)) }),
        (
            "applied, committed, last log index",
            html! {
                (number(status.applied_index)) ", " (number(status.committed_index)) ", " (number(status.last_log_index))
            },
        ),
        ("data on disk", html! { (bytes(status.disk_bytes)) }),
        (
            "resources in scopes",
            html! { (number(status.resources)) " in " (number(status.scopes)) },
        ),
        ("streams", html! { (number(status.streams)) }),
        ("accepts streams", html! { @if status.ready { "yes" } @else { "no" } }),
        ("failure", or_dash(&status.failure)),
    ])
}
