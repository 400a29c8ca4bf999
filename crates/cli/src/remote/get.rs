//! The command `get`.

use std::io::{self, Write};

use chancery_admin::json::JsonMessage;
use chancery_admin_proto::v1::{self as pb, admin_client::AdminClient};
use clap::{Args, builder::NonEmptyStringValueParser};
use serde_json::json;

use super::{
    client::refusal,
    connector::Channel,
    manifest::manifest,
    parameters::{Parameters, shortened, with_variant},
    read::Read,
};
use crate::{
    answer::{Answer, Output},
    failure::Failure,
    progress::reading,
    table::Table,
    text::{labels, plain, printable_json, short_type},
};

/// The arguments of `get`.
#[derive(Debug, Args)]
pub(crate) struct Get {
    /// Resource type: an alias or a type URL
    #[arg(value_name = "TYPE")]
    type_name: Option<String>,
    /// Name of the resource
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Show only this scope [default: all]
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    scope: Option<String>,
    /// Show only what this connected node sees
    #[arg(long, value_name = "ID")]
    node: Option<String>,
    /// Show the resources as they were at this revision [default: the newest]
    #[arg(long, value_name = "REVISION", conflicts_with = "node")]
    revision: Option<u64>,
    #[command(flatten)]
    parameters: Parameters,
    /// Show at most N resources [default: all]
    ///
    /// They are ordered by scope, then type, then name. If there are more, the output ends with the cursor for --cursor.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: Option<u32>,
    /// Show the resources after those of an earlier command with --limit [default: from the first]
    ///
    /// The server reads the newest revision for each command. Resources that exist all the time are shown once.
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
    #[command(flatten)]
    read: Read,
}

/// Shows resources. Text output is a manifest if the command names a resource, and a table
/// otherwise.
pub(super) async fn run(
    get: Get,
    mut client: AdminClient<Channel>,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let is_text = matches!(answer.output, Output::Text | Output::Wide);
    let is_table = is_text && get.name.is_none();
    let what = not_found(&get);
    let named = get.name.is_some();
    let request = pb::ListResourcesRequest {
        r#type: get.type_name.unwrap_or_default(),
        name: get.name.unwrap_or_default(),
        scope: get.scope.unwrap_or_default(),
        view_of_node: get.node.unwrap_or_default(),
        without_body: is_table,
        stale: get.read.stale,
        dynamic_parameters: get.parameters.into_map()?,
        limit: get.limit.unwrap_or_default(),
        cursor: get.cursor.unwrap_or_default(),
        revision: get.revision,
    };
    let list = reading("reading resources", async |stage| {
        let response = client.list_resources(request).await.map_err(|status| refusal(&status))?;
        let mut pieces = response.into_inner();
        let mut list = pb::ListResourcesResponse::default();
        while let Some(mut piece) = pieces.message().await.map_err(|status| refusal(&status))? {
            list.resources.append(&mut piece.resources);
            stage.set(list.resources.len() as u64, 0, "resources");
            list = pb::ListResourcesResponse { resources: list.resources, ..piece };
        }
        Ok(list)
    });
    let list = list.await?;
    if named && list.resources.is_empty() {
        return Err(Failure::new(what));
    }
    match answer.output {
        Output::Json | Output::Sarif => write_json(&list, answer.out)?,
        Output::Text if is_table => answer.text(|out| write_table(&list, shortened, out))?,
        Output::Wide if is_table => answer.text(|out| write_table(&list, str::to_owned, out))?,
        Output::Text | Output::Wide | Output::Yaml => {
            answer.out.write_all(manifest(&list.resources)?.as_bytes())?;
            if !list.next.is_empty() {
                // `apply --prune` rejects a page.
                writeln!(answer.out, "next: {}", json!(list.next))?;
                writeln!(answer.out, "# more resources: --cursor {}", list.next)?;
            }
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
    let next = json!(list.next);
    write!(out, "{{\"revision\": {}, \"next\": {next}, \"resources\": [", list.revision)?;
    for (index, resource) in list.resources.iter().enumerate() {
        let separator = if index == 0 { "" } else { "," };
        write!(out, "{separator}\n{}", printable_json(&resource.to_json().to_string()))?;
    }
    writeln!(out, "]}}")
}

/// Writes a table. `shown` is the form of the constraints of a variant.
fn write_table(
    list: &pb::ListResourcesResponse,
    shown: impl Fn(&str) -> String,
    out: &mut dyn Write,
) -> io::Result<()> {
    if list.resources.is_empty() {
        return writeln!(out, "no resources (revision {})", list.revision);
    }
    let mut table = Table::new(["TYPE", "NAME", "SCOPE", "VERSION", "BYTES", "LABELS"]);
    for resource in &list.resources {
        table.row([
            short_type(&resource.type_url),
            with_variant(&resource.name, &shown(&resource.variant)),
            resource.scope.clone(),
            resource.version.clone(),
            resource.bytes.to_string(),
            labels(&resource.labels),
        ]);
    }
    table.write(out, "")?;
    match list.next.as_str() {
        "" => Ok(()),
        next => writeln!(out, "more resources: --cursor {}", plain(next)),
    }
}
