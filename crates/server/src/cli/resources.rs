//! The commands `get` and `describe`.

use std::io::{self, Write};

use chancery_admin::json::JsonMessage;
use chancery_proto::admin::v1::{self as pb, admin_client::AdminClient};
use tonic::transport::Channel;

use super::{
    Answer, Failure,
    args::{Describe, Get, Output},
    client::refusal,
    count,
    manifest::{manifest, yaml},
    plain, printable_json, short_type,
    table::Table,
    time::timestamp,
};

/// Shows resources. Text output is a manifest if the command names a resource, and a table
/// otherwise.
pub(crate) async fn get(
    mut client: AdminClient<Channel>,
    get: Get,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let is_table = answer.output == Output::Text && get.name.is_none();
    let what = not_found(&get);
    let named = get.name.is_some();
    let request = pb::ListResourcesRequest {
        r#type: get.type_name.unwrap_or_default(),
        name: get.name.unwrap_or_default(),
        scope: get.scope.unwrap_or_default(),
        view_of_node: get.node.unwrap_or_default(),
        without_body: is_table,
        stale: get.read.stale,
    };
    let response = client.list_resources(request).await.map_err(|status| refusal(&status))?;
    let mut pieces = response.into_inner();
    let mut list = pb::ListResourcesResponse::default();
    while let Some(piece) = pieces.message().await.map_err(|status| refusal(&status))? {
        list.revision = piece.revision;
        list.resources.extend(piece.resources);
    }
    if named && list.resources.is_empty() {
        return Err(Failure::new(what));
    }
    match answer.output {
        Output::Json => write_json(&list, answer.out)?,
        Output::Text if is_table => answer.text(|out| write_table(&list, out))?,
        Output::Text | Output::Yaml => {
            answer.out.write_all(manifest(&list.resources)?.as_bytes())?
        }
    }
    Ok(())
}

fn not_found(get: &Get) -> String {
    let place = match (&get.scope, &get.node) {
        (Some(scope), None) => format!("in scope {scope}"),
        (None, Some(node)) => format!("in the view of node {node:?}"),
        (Some(scope), Some(node)) => format!("in scope {scope} as node {node:?} sees it"),
        (None, None) => "in any scope".to_owned(),
    };
    let type_name = get.type_name.as_deref().unwrap_or_default();
    format!("{type_name} {:?} does not exist {place}", get.name.as_deref().unwrap_or_default())
}

/// Writes JSON with one resource per line. A list of 100,000 resources is thus written without a
/// second copy in memory.
fn write_json(list: &pb::ListResourcesResponse, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{{\"revision\": {}, \"resources\": [", list.revision)?;
    for (index, resource) in list.resources.iter().enumerate() {
        let separator = if index == 0 { "" } else { "," };
        write!(out, "{separator}\n{}", printable_json(&resource.to_json().to_string()))?;
    }
    writeln!(out, "]}}")
}

fn write_table(list: &pb::ListResourcesResponse, out: &mut dyn Write) -> io::Result<()> {
    if list.resources.is_empty() {
        return writeln!(out, "no resources (revision {})", list.revision);
    }
    let mut table = Table::new(["TYPE", "NAME", "SCOPE", "VERSION", "BYTES", "LABELS"]);
    for resource in &list.resources {
        table.row([
            short_type(&resource.type_url),
            resource.name.clone(),
            resource.scope.clone(),
            resource.version.clone(),
            resource.bytes.to_string(),
            labels(resource),
        ]);
    }
    table.write(out, "")
}

fn labels(resource: &pb::Resource) -> String {
    let labels: Vec<String> =
        resource.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    labels.join(",")
}

/// Shows the details of one resource.
pub(crate) async fn describe(
    mut client: AdminClient<Channel>,
    describe: Describe,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let request = pb::DescribeResourceRequest {
        r#type: describe.type_name,
        name: describe.name,
        scope: describe.scope.unwrap_or_default(),
        stale: describe.read.stale,
    };
    let response = client.describe_resource(request).await.map_err(|status| refusal(&status))?;
    let described = response.into_inner();
    let mut bodies = Vec::new();
    for scope in &described.scopes {
        let resource = scope.resource.clone().unwrap_or_default();
        bodies.push(yaml(&resource.to_json()["body"])?);
    }
    answer.show(&described, |out| write_description(&described, &bodies, out))
}

fn write_description(
    described: &pb::DescribeResourceResponse,
    bodies: &[String],
    out: &mut dyn Write,
) -> io::Result<()> {
    writeln!(out, "{} {:?}", short_type(&described.type_url), described.name)?;
    for (scope, body) in described.scopes.iter().zip(bodies) {
        let Some(resource) = &scope.resource else { continue };
        writeln!(out, "scope {}", resource.scope)?;
        let (version, bytes) = (&resource.version, resource.bytes);
        writeln!(out, "  version   {version} (revision {}), {bytes} bytes", resource.revision)?;
        if !resource.labels.is_empty() {
            writeln!(out, "  labels    {}", plain(&labels(resource)))?;
        }
        if !resource.aliases.is_empty() {
            writeln!(out, "  aliases   {}", plain(&resource.aliases.join(", ")))?;
        }
        if resource.ttl_ms > 0 {
            writeln!(out, "  ttl       {} ms", resource.ttl_ms)?;
        }
        for child in &scope.children {
            let here = if child.in_scope { "" } else { " (not in this scope)" };
            writeln!(out, "  needs     {} {:?}{here}", short_type(&child.type_url), child.name)?;
        }
        writeln!(out, "  seen by   {}", seen_by(scope))?;
        if scope.nodes_shadowed > 0 {
            let nodes = count(scope.nodes_shadowed, "node");
            writeln!(out, "  shadowed  for {nodes}, by an earlier scope")?;
        }
        writeln!(out, "  body")?;
        for line in body.lines() {
            writeln!(out, "    {line}")?;
        }
    }
    if !described.nacks.is_empty() {
        writeln!(out, "last rejections of the type by nodes that see it")?;
        let mut table = Table::new(["TIME", "NODE", "VERSION", "MESSAGE"]);
        for nack in &described.nacks {
            let (version, message) = (nack.version.clone(), nack.message.clone());
            table.row([timestamp(nack.time_ms), nack.node.clone(), version, message]);
        }
        table.write(out, "  ")?;
    }
    Ok(())
}

fn seen_by(scope: &pb::ResourceInScope) -> String {
    let nodes: Vec<String> = scope.nodes.iter().map(|node| plain(node)).collect();
    let more = scope.nodes_total.saturating_sub(nodes.len() as u64);
    match (nodes.is_empty(), more) {
        (true, _) => "no connected node".to_owned(),
        (false, 0) => format!("{}: {}", count(scope.nodes_total, "node"), nodes.join(", ")),
        (false, more) => {
            format!("{}: {} and {more} more", count(scope.nodes_total, "node"), nodes.join(", "))
        }
    }
}
