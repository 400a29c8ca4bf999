//! The command `explain`.

use std::io::{self, Write};

use chancery_admin_proto::v1::{self as pb, admin_client::AdminClient};
use clap::Args;

use super::{
    client::refusal,
    connector::Channel,
    fleet::{Extent, check_complete, unanswered},
    parameters::{Parameters, with_variant},
    read::Read,
    references::write_references,
    stream::write_stream,
};
use crate::{
    answer::Answer,
    exit::Exit,
    failure::Failure,
    table::Table,
    text::{count, plain, priority},
    time::now,
};

/// The arguments of `explain`.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// ID of the node
    #[arg(value_name = "NODE")]
    node: String,
    /// Resource type: an alias or a type URL
    #[arg(value_name = "TYPE")]
    type_name: Option<String>,
    /// Name of the resource
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    parameters: Parameters,
    #[command(flatten)]
    read: Read,
    #[command(flatten)]
    extent: Extent,
}

/// Explains why a node does or does not receive a resource.
pub(super) async fn run(
    explain: Explain,
    mut client: AdminClient<Channel>,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let request = pb::ExplainRequest {
        node: explain.node,
        r#type: explain.type_name.unwrap_or_default(),
        name: explain.name.unwrap_or_default(),
        stale: explain.read.stale,
        local: explain.extent.local,
        dynamic_parameters: explain.parameters.into_map()?,
    };
    let response = client.explain(request).await.map_err(|status| refusal(&status))?.into_inner();
    answer.show(&response, |out| write_text(&response, out))?;
    if depends_on_unknown(&response) {
        Err(Failure::with_exit(Exit::NotAllAsked, not_connected(&response)))
    } else {
        check_complete(&response.not_asked)
    }
}

/// Returns whether values that are unknown for a node without a stream may change the scopes of the node.
fn depends_on_unknown(explained: &pb::ExplainResponse) -> bool {
    explained.trials.iter().any(|trial| trial.unknown)
        || explained.scopes.iter().any(|scope| scope.unknown)
}

fn not_connected(explained: &pb::ExplainResponse) -> String {
    let others = match (explained.replicas_not_asked, explained.not_asked.as_slice()) {
        (0, _) => String::new(),
        (n, []) => format!(" to this replica; {} not asked", count(n, "other replica")),
        (_, missing) => format!("; {}", unanswered(missing)),
    };
    format!("incomplete: node {:?} is not connected{others}", explained.node)
}

fn write_text(explained: &pb::ExplainResponse, out: &mut dyn Write) -> io::Result<()> {
    for conclusion in &explained.conclusions {
        writeln!(out, "{}", plain(conclusion))?;
    }
    writeln!(out, "\nassignments, in the order in which they are tried")?;
    let mut table = Table::new(["NAME", "PRIORITY", "MATCHES", "WHY NOT"]);
    for trial in &explained.trials {
        let matches = match (trial.matched, trial.unknown) {
            (true, _) => "yes",
            (false, true) => "unknown",
            (false, false) => "no",
        };
        let (name, reason) = (trial.name.clone(), trial.reason.clone());
        table.row([name, priority(trial.priority), matches.to_owned(), reason]);
    }
    table.write(out, "  ")?;
    if !explained.scopes.is_empty() {
        writeln!(out, "\nscopes; earlier ones shadow later ones")?;
        let mut table = Table::new(["TEMPLATE", "SCOPE", "RESOURCES", "VERSION", "SHADOWED BY"]);
        for scope in &explained.scopes {
            let known = |text: String| if scope.unknown { "unknown".to_owned() } else { text };
            table.row([
                scope.template.clone(),
                known(scope.scope.clone()),
                known(scope.resources.to_string()),
                with_variant(&scope.version, &scope.variant),
                scope.shadowed_by.clone(),
            ]);
        }
        table.write(out, "  ")?;
    }
    if !explained.referents.is_empty() || !explained.referrers.is_empty() {
        writeln!(out, "\nreferences in the view of the node")?;
        let (referents, referrers) = (&explained.referents, &explained.referrers);
        write_references("refers to", referents, explained.referents_omitted, "", out)?;
        write_references("used by", referrers, explained.referrers_omitted, "", out)?;
    }
    let now = now();
    for stream in &explained.streams {
        writeln!(out)?;
        write_stream(stream, now, out)?;
    }
    Ok(())
}
