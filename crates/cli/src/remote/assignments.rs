//! The commands `assignments list` and `assignments delete`.

use chancery_admin::json::JsonMessage;
use chancery_admin_proto::v1::{self as pb, admin_client::AdminClient};
use clap::Subcommand;
use serde_json::json;

use super::{
    client::{Servers, refusal},
    connector::Channel,
    read::Read,
    write::{Body, Request, Write},
};
use crate::{
    answer::{Answer, Output},
    failure::Failure,
    help::write_help,
    table::Table,
    text::priority,
};

/// The subcommands of `assignments`.
#[derive(Debug, Subcommand)]
pub(crate) enum Assignments {
    /// List the assignments in the order in which they are tried
    List {
        #[command(flatten)]
        read: Read,
    },
    /// Delete an assignment
    #[command(after_help = write_help(&["assignments delete edge"]))]
    Delete {
        /// Name of the assignment
        name: String,
        #[command(flatten)]
        write: Write,
    },
}

/// Runs a subcommand.
pub(super) async fn run(
    command: Assignments,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    match command {
        Assignments::List { read } => list(read, servers.connect_any().await?, answer).await,
        Assignments::Delete { name, write } => {
            let body =
                |options| Body::DeleteAssignment(pb::DeleteAssignmentRequest { name, options });
            Request::new(&write, body)?.run(servers, answer).await
        }
    }
}

/// Shows the assignments.
async fn list(
    read: Read,
    mut client: AdminClient<Channel>,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let response = client
        .list_assignments(pb::ListAssignmentsRequest { stale: read.stale, ..Default::default() })
        .await;
    let list = response.map_err(|status| refusal(&status))?.into_inner();
    if answer.output == Output::Yaml {
        // The output is a manifest that can be applied again.
        let mut json = list.to_json();
        return answer.yaml(&json!({"assignments": json["assignments"].take()}));
    }
    answer.show(&list, |out| {
        if list.assignments.is_empty() {
            return writeln!(out, "no assignments: no node receives a response");
        }
        let mut table = Table::new(["NAME", "PRIORITY", "MATCH", "SCOPES"]);
        for assignment in &list.assignments {
            table.row([
                assignment.name.clone(),
                priority(assignment.priority),
                match_text(&assignment.r#match.clone().unwrap_or_default()),
                assignment.scopes.join(" "),
            ]);
        }
        table.write(out, "")
    })
}

fn match_text(matcher: &pb::NodeMatch) -> String {
    let locality = matcher.locality.clone().unwrap_or_default();
    let mut parts: Vec<String> = [
        ("id", &matcher.id),
        ("cluster", &matcher.cluster),
        ("region", &locality.region),
        ("zone", &locality.zone),
        ("sub_zone", &locality.sub_zone),
    ]
    .into_iter()
    .filter_map(|(what, value)| Some(format!("{what}={}", value.as_ref()?)))
    .collect();
    parts.extend(matcher.metadata.iter().map(|(path, value)| format!("metadata.{path}={value}")));
    if parts.is_empty() { "every node".to_owned() } else { parts.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matcher_is_shown_as_text() {
        assert_eq!(match_text(&pb::NodeMatch::default()), "every node");
        let matcher = pb::NodeMatch {
            id: Some("edge-*".into()),
            locality: Some(pb::LocalityMatch { zone: Some("a".into()), ..Default::default() }),
            metadata: [("mesh".to_owned(), "m1".to_owned())].into(),
            ..Default::default()
        };
        assert_eq!(match_text(&matcher), "id=edge-* zone=a metadata.mesh=m1");
    }
}
