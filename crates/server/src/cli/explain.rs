//! The command `explain`.

use std::{
    io::{self, Write},
    time::{SystemTime, UNIX_EPOCH},
};

use chancery_proto::admin::v1::{self as pb, admin_client::AdminClient};
use tonic::transport::Channel;

use super::{
    Answer, Failure, args, client::refusal, nodes::write_stream, plain, priority, table::Table,
};

/// Explains why a node does or does not receive a resource.
pub(crate) async fn explain(
    mut client: AdminClient<Channel>,
    explain: args::Explain,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let request = pb::ExplainRequest {
        node: explain.node,
        r#type: explain.type_name.unwrap_or_default(),
        name: explain.name.unwrap_or_default(),
        stale: explain.read.stale,
    };
    let response = client.explain(request).await.map_err(|status| refusal(&status))?.into_inner();
    answer.show(&response, |out| write_text(&response, out))
}

fn write_text(explained: &pb::ExplainResponse, out: &mut dyn Write) -> io::Result<()> {
    for conclusion in &explained.conclusions {
        writeln!(out, "{}", plain(conclusion))?;
    }
    writeln!(out, "\nassignments, in the order in which they are tried")?;
    let mut table = Table::new(["NAME", "PRIORITY", "MATCHES", "WHY NOT"]);
    for trial in &explained.trials {
        let matches = if trial.matched { "yes" } else { "no" };
        let (name, reason) = (trial.name.clone(), trial.reason.clone());
        table.row([name, priority(trial.priority), matches.to_owned(), reason]);
    }
    table.write(out, "  ")?;
    if !explained.scopes.is_empty() {
        writeln!(out, "\nscopes; earlier ones shadow later ones")?;
        let mut table = Table::new(["TEMPLATE", "SCOPE", "RESOURCES", "VERSION", "SHADOWED BY"]);
        for scope in &explained.scopes {
            table.row([
                scope.template.clone(),
                scope.scope.clone(),
                scope.resources.to_string(),
                scope.version.clone(),
                scope.shadowed_by.clone(),
            ]);
        }
        table.write(out, "  ")?;
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    for stream in &explained.streams {
        writeln!(out)?;
        write_stream(stream, now, out)?;
    }
    Ok(())
}
