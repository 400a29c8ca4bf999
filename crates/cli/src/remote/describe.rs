//! The command `describe`.

use std::io::{self, Write};

use chancery_admin::json::JsonMessage;
use chancery_admin_proto::v1::{self as pb, admin_client::AdminClient};
use clap::{Args, builder::NonEmptyStringValueParser};

use super::{
    client::refusal,
    connector::Channel,
    fleet::{Extent, check_complete, unanswered},
    parameters::Parameters,
    read::Read,
    references::{unknown_nodes, write_references},
};
use crate::{
    answer::Answer,
    failure::Failure,
    table::Table,
    text::{count, labels, plain, short_type},
    time::timestamp,
    yaml::yaml,
};

/// The arguments of `describe`.
#[derive(Debug, Args)]
pub(crate) struct Describe {
    /// Resource type: an alias or a type URL
    #[arg(value_name = "TYPE")]
    type_name: String,
    /// Name of the resource
    #[arg(value_name = "NAME")]
    name: String,
    /// Show only this scope [default: all]
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    scope: Option<String>,
    #[command(flatten)]
    parameters: Parameters,
    #[command(flatten)]
    read: Read,
    #[command(flatten)]
    extent: Extent,
}

/// Shows the details of one resource.
pub(super) async fn run(
    describe: Describe,
    mut client: AdminClient<Channel>,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let request = pb::DescribeResourceRequest {
        r#type: describe.type_name,
        name: describe.name,
        scope: describe.scope.unwrap_or_default(),
        stale: describe.read.stale,
        local: describe.extent.local,
        dynamic_parameters: describe.parameters.into_map()?,
    };
    let response = client.describe_resource(request).await.map_err(|status| refusal(&status))?;
    let described = response.into_inner();
    let mut bodies = Vec::new();
    for scope in &described.scopes {
        let resource = scope.resource.clone().unwrap_or_default();
        bodies.push(yaml(&resource.to_json()["body"])?);
    }
    answer.show(&described, |out| write_description(&described, &bodies, out))?;
    check_complete(&described.not_asked)
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
        for by in &scope.held {
            let since = by.revision;
            writeln!(
                out,
                "  held      frozen since revision {since}; nodes have the frozen content"
            )?;
        }
        if !resource.variant.is_empty() {
            writeln!(out, "  variant   {}", plain(&resource.variant))?;
        }
        if !resource.labels.is_empty() {
            writeln!(out, "  labels    {}", plain(&labels(&resource.labels)))?;
        }
        if !resource.aliases.is_empty() {
            writeln!(out, "  aliases   {}", plain(&resource.aliases.join(", ")))?;
        }
        if resource.ttl_ms > 0 {
            writeln!(out, "  ttl       {} ms", resource.ttl_ms)?;
        }
        let is_referent = |child: &pb::Child| {
            let same =
                |one: &pb::Reference| one.type_url == child.type_url && one.name == child.name;
            scope.referents.iter().any(same)
        };
        let unknown = unknown_nodes(scope.replicas_not_asked, &described.not_asked);
        write_references("refers to", &scope.referents, scope.referents_omitted, &unknown, out)?;
        for child in scope.children.iter().filter(|child| !is_referent(child)) {
            let here = if child.in_scope { "" } else { " (not in this scope)" };
            writeln!(out, "  needs     {} {:?}{here}", short_type(&child.type_url), child.name)?;
        }
        write_references("used by", &scope.referrers, scope.referrers_omitted, &unknown, out)?;
        if scope.replicas_not_asked > 0 {
            writeln!(out, "  used by   possibly more: {unknown}")?;
        }
        writeln!(out, "  seen by   {}", seen_by(scope, described))?;
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
        let of_this = if is_local(described) { " of this replica" } else { "" };
        writeln!(out, "last rejections of the type by nodes{of_this} that see it")?;
        let mut table = Table::new(["TIME", "NODE", "VERSION", "MESSAGE"]);
        for nack in &described.nacks {
            let (version, message) = (nack.version.clone(), nack.message.clone());
            table.row([timestamp(nack.time_ms), nack.node.clone(), version, message]);
        }
        table.write(out, "  ")?;
    }
    Ok(())
}

/// Returns whether only the contacted replica of several was asked.
fn is_local(described: &pb::DescribeResourceResponse) -> bool {
    described.replicas_not_asked > 0 && described.not_asked.is_empty()
}

fn seen_by(scope: &pb::ResourceInScope, described: &pb::DescribeResourceResponse) -> String {
    let nodes: Vec<String> = scope.nodes.iter().map(|node| plain(node)).collect();
    let more = scope.nodes_total.saturating_sub(nodes.len() as u64);
    let seen = match (nodes.is_empty(), more) {
        (true, _) if is_local(described) => "no connected node of this replica".to_owned(),
        (true, _) if described.replicas_not_asked > 0 => {
            "no connected node of the replicas that answered".to_owned()
        }
        (true, _) => "no connected node".to_owned(),
        (false, 0) => format!("{}: {}", count(scope.nodes_total, "node"), nodes.join(", ")),
        (false, more) => {
            format!("{}: {} and {more} more", count(scope.nodes_total, "node"), nodes.join(", "))
        }
    };
    match (described.replicas_not_asked, described.not_asked.as_slice()) {
        (0, _) => seen,
        (n, []) => format!("{seen}; {} not asked", count(n, "other replica")),
        (_, missing) => format!("{seen}; {}", unanswered(missing)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_other_replicas_are_not_denied() {
        let described = |replicas_not_asked| pb::DescribeResourceResponse {
            replicas_not_asked,
            ..Default::default()
        };
        let mut scope = pb::ResourceInScope::default();
        assert_eq!(seen_by(&scope, &described(0)), "no connected node");
        assert_eq!(
            seen_by(&scope, &described(2)),
            "no connected node of this replica; 2 other replicas not asked"
        );
        scope.nodes = vec!["a".to_owned()];
        scope.nodes_total = 1;
        assert_eq!(seen_by(&scope, &described(0)), "1 node: a");
        assert_eq!(seen_by(&scope, &described(1)), "1 node: a; 1 other replica not asked");
        let (replica_id, message) = (3, "is starting".to_owned());
        let missing = pb::ReplicaNotAsked { replica_id, message, ..Default::default() };
        let asked = pb::DescribeResourceResponse { not_asked: vec![missing], ..described(1) };
        assert_eq!(seen_by(&scope, &asked), "1 node: a; replica 3 is starting");
    }
}
