//! The command `resolve`: where a request to a node ends.

use std::io::{self, Write};

use chancery_admin_proto::v1::{self as pb, resolve_service_client::ResolveServiceClient};
use clap::Args;

use super::{client::refusal, connector::Channel, fleet::Extent};
use crate::{
    answer::Answer,
    failure::Failure,
    text::{count, plain, short_type},
};

/// The arguments of `resolve`.
#[derive(Debug, Args)]
pub(crate) struct Resolve {
    /// ID of the node
    #[arg(value_name = "NODE")]
    node: String,
    /// URL of the request; its host is also the server name of TLS
    #[arg(long, value_name = "URL")]
    url: String,
    /// Method of the request
    #[arg(long, value_name = "METHOD", default_value = "GET")]
    method: String,
    /// Header of the request; `host:NAME` replaces the host of the URL (repeatable)
    #[arg(long = "header", value_name = "NAME:VALUE")]
    headers: Vec<String>,
    /// Name of the listener [default: the listeners with the port of the URL]
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    #[command(flatten)]
    extent: Extent,
}

/// Runs `resolve`. Fails if the request ends nowhere.
pub(super) async fn run(
    resolve: Resolve,
    channel: Channel,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let request = pb::ResolveRequest {
        node: resolve.node,
        url: resolve.url,
        method: resolve.method,
        header: resolve.headers,
        listener: resolve.listener.unwrap_or_default(),
        local: resolve.extent.local,
    };
    let mut client = ResolveServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    let response = client.resolve(request).await.map_err(|status| refusal(&status))?.into_inner();
    answer.show(&response, |out| write_text(&response, out))?;
    let mut ends = response.resolutions.iter().filter_map(|one| one.end.as_ref());
    if ends.any(|end| end.served) {
        return Ok(());
    }
    Err(Failure::new(format_args!(
        "node {:?} does not serve the request; the answer says where it ends",
        response.node
    )))
}

fn write_text(response: &pb::ResolveResponse, out: &mut dyn Write) -> io::Result<()> {
    for (index, resolution) in response.resolutions.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        write_resolution(resolution, out)?;
    }
    match response.listeners_omitted {
        0 => Ok(()),
        n => {
            writeln!(out, "\n… {} not shown; select one with --listener", count(n, "more listener"))
        }
    }
}

fn write_resolution(resolution: &pb::Resolution, out: &mut dyn Write) -> io::Result<()> {
    for step in &resolution.steps {
        let place = if step.place.is_empty() { "none" } else { &step.place };
        writeln!(out, "{:<13} {}: {}", step.kind, plain(place), plain(&step.result))?;
        for skipped in &step.skipped {
            writeln!(
                out,
                "{:<13}   not {}: {}",
                "",
                plain(&skipped.place),
                plain(&skipped.reason)
            )?;
        }
        if step.skipped_omitted > 0 {
            writeln!(out, "{:<13}   … {} more", "", step.skipped_omitted)?;
        }
    }
    if let Some(end) = &resolution.end {
        write_end(end, out)?;
    }
    if resolution.undecided.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nnot decided; the end may be another one if one of these holds")?;
    for undecided in &resolution.undecided {
        write!(out, "  {}: {}", plain(&undecided.place), plain(&undecided.reason))?;
        if !undecided.otherwise.is_empty() {
            write!(out, "; then: {}", plain(&undecided.otherwise))?;
        }
        writeln!(out)?;
    }
    match resolution.undecided_omitted {
        0 => Ok(()),
        n => writeln!(out, "  … {n} more"),
    }
}

fn write_end(end: &pb::ResolveEnd, out: &mut dyn Write) -> io::Result<()> {
    let message = plain(&end.message);
    let text = match end.kind.as_str() {
        "redirect" => format!("redirect {} to {}", end.status, plain(&end.location)),
        "direct response" => format!("direct response {}", end.status),
        "no route" => format!("404: {message}"),
        "missing resource" => {
            let kind = short_type(&end.missing_type);
            format!(
                "missing resource: the node does not have {kind} {:?}; {message}",
                end.missing_name
            )
        }
        "clusters" | "tcp" => {
            let what = if end.kind == "tcp" { " (TCP, without HTTP)" } else { "" };
            match &end.clusters[..] {
                [one] => format!("cluster {:?}{what}", one.name),
                all => format!("one of {}{what}", count(all.len() as u64, "cluster")),
            }
        }
        kind => format!("{kind}: {message}"),
    };
    writeln!(out, "{:<13} {text}", "end")?;
    for (label, value) in [("path", &end.rewritten_path), ("host", &end.rewritten_host)] {
        if !value.is_empty() {
            writeln!(out, "{:<13}   with the {label} {}", "", plain(value))?;
        }
    }
    let total = end.clusters.iter().map(|cluster| u64::from(cluster.weight)).sum();
    end.clusters.iter().try_for_each(|cluster| write_cluster(cluster, total, 1, out))
}

fn write_cluster(
    cluster: &pb::ResolvedCluster,
    total_weight: u64,
    level: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let indent = "  ".repeat(level);
    let weight = match cluster.weight {
        0 => String::new(),
        weight => format!(", weight {weight} of {total_weight}"),
    };
    let discovery = match cluster.discovery.as_str() {
        "" => String::new(),
        discovery => format!(", {}", plain(discovery)),
    };
    let service = match cluster.service_name.as_str() {
        "" => String::new(),
        name if name == cluster.name => String::new(),
        name => format!(", endpoints {name:?}"),
    };
    writeln!(out, "{indent}cluster {:?}{weight}{discovery}{service}", cluster.name)?;
    if !cluster.missing.is_empty() {
        writeln!(out, "{indent}  {}", plain(&cluster.missing))?;
    }
    for locality in &cluster.localities {
        write_locality(locality, &indent, out)?;
    }
    if cluster.endpoints_omitted > 0 {
        writeln!(out, "{indent}  … {} more", count(cluster.endpoints_omitted, "endpoint"))?;
    }
    cluster.members.iter().try_for_each(|member| write_cluster(member, 0, level + 1, out))
}

fn write_locality(
    locality: &pb::ResolvedLocality,
    indent: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let weight = |weight: u32| match weight {
        0 => String::new(),
        weight => format!(", weight {weight}"),
    };
    let parts = [&locality.region, &locality.zone, &locality.sub_zone];
    let parts: Vec<String> =
        parts.into_iter().filter(|part| !part.is_empty()).map(|part| plain(part)).collect();
    let name = if parts.is_empty() { String::new() } else { format!(", {}", parts.join("/")) };
    let collection = match locality.collection.as_str() {
        "" => String::new(),
        name => format!(", collection {}", plain(name)),
    };
    let own_weight = weight(locality.weight);
    writeln!(out, "{indent}  priority {}{name}{own_weight}{collection}", locality.priority)?;
    for endpoint in &locality.endpoints {
        let health = match endpoint.health.as_str() {
            "UNKNOWN" => String::new(),
            health => format!(", {health}"),
        };
        let (address, its_weight) = (plain(&endpoint.address), weight(endpoint.weight));
        writeln!(out, "{indent}    {address}{health}{its_weight}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step() -> pb::ResolveStep {
        let skipped = pb::SkippedCandidate {
            place: "virtual_hosts[0].routes[0]".to_owned(),
            reason: "\"/cart\" does not match prefix \"/x\"".to_owned(),
        };
        pb::ResolveStep {
            kind: "route".to_owned(),
            place: "virtual_hosts[0].routes[1]".to_owned(),
            result: "one of 2 weighted clusters".to_owned(),
            skipped: vec![skipped],
            skipped_omitted: 3,
        }
    }

    fn clusters() -> Vec<pb::ResolvedCluster> {
        let endpoint = pb::ResolvedEndpoint {
            address: "10.0.0.1:80".to_owned(),
            health: "HEALTHY".to_owned(),
            weight: 2,
        };
        let locality = pb::ResolvedLocality {
            region: "r1".to_owned(),
            zone: "z".to_owned(),
            endpoints: vec![endpoint],
            ..Default::default()
        };
        let web = pb::ResolvedCluster {
            name: "web".to_owned(),
            weight: 30,
            discovery: "EDS".to_owned(),
            service_name: "web-v2".to_owned(),
            localities: vec![locality],
            ..Default::default()
        };
        let lost = pb::ResolvedCluster {
            name: "lost".to_owned(),
            weight: 70,
            missing: "the node has no such cluster".to_owned(),
            ..Default::default()
        };
        vec![web, lost]
    }

    /// The text names the end, the candidates that did not match, and what is not decided.
    #[test]
    fn text_has_steps_end_and_undecided_conditions() {
        let undecided = pb::UndecidedCondition {
            place: "http_filters[0] lua".to_owned(),
            reason: "the filter may answer".to_owned(),
            otherwise: "another end".to_owned(),
        };
        let resolution = pb::Resolution {
            steps: vec![step()],
            end: Some(pb::ResolveEnd {
                kind: "clusters".to_owned(),
                clusters: clusters(),
                rewritten_path: "/new".to_owned(),
                ..Default::default()
            }),
            undecided: vec![undecided],
            ..Default::default()
        };
        let response = pb::ResolveResponse {
            resolutions: vec![resolution],
            listeners_omitted: 1,
            ..Default::default()
        };
        let mut out = Vec::new();
        write_text(&response, &mut out).unwrap();
        let expected = "\
route         virtual_hosts[0].routes[1]: one of 2 weighted clusters
                not virtual_hosts[0].routes[0]: \"/cart\" does not match prefix \"/x\"
                … 3 more
end           one of 2 clusters
                with the path /new
  cluster \"web\", weight 30 of 100, EDS, endpoints \"web-v2\"
    priority 0, r1/z
      10.0.0.1:80, HEALTHY, weight 2
  cluster \"lost\", weight 70 of 100
    the node has no such cluster

not decided; the end may be another one if one of these holds
  http_filters[0] lua: the filter may answer; then: another end

… 1 more listener not shown; select one with --listener
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
