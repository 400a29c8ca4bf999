//! The commands `history`, `assignments list` and `version`.

use chancery_admin::json::JsonMessage;
use chancery_proto::admin::v1::{self as pb, admin_client::AdminClient};
use serde_json::json;
use tonic::transport::Channel;

use super::{
    Answer, Failure,
    args::{History, Output, Read},
    client::refusal,
    plain, priority,
    table::Table,
    time::timestamp,
};

/// The version of this program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Shows the newest revisions.
pub(crate) async fn history(
    mut client: AdminClient<Channel>,
    history: History,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let request = pb::ListHistoryRequest { limit: history.limit, stale: history.read.stale };
    let response = client.list_history(request).await.map_err(|status| refusal(&status))?;
    let history = response.into_inner();
    answer.show(&history, |out| {
        if history.entries.is_empty() {
            return writeln!(out, "no revisions");
        }
        let headings =
            ["REVISION", "TIME", "AUTHOR", "CHANGED", "REMOVED", "ASSIGNMENTS", "LABEL", "REASON"];
        let mut table = Table::new(headings);
        for entry in &history.entries {
            table.row([
                entry.revision.to_string(),
                timestamp(entry.time_ms),
                entry.author.clone(),
                entry.changed.to_string(),
                entry.removed.to_string(),
                entry.assignments.to_string(),
                entry.label.clone(),
                entry.reason.clone(),
            ]);
        }
        table.write(out, "")
    })
}

/// Shows the assignments.
pub(crate) async fn assignments(
    mut client: AdminClient<Channel>,
    read: Read,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let response = client.list_assignments(pb::ListAssignmentsRequest { stale: read.stale }).await;
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

/// Shows the version of this program, and of the server if it is reachable.
pub(crate) async fn version(
    client: Option<AdminClient<Channel>>,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let server = match client {
        Some(mut client) => client.get_version(pb::GetVersionRequest {}).await.ok(),
        None => None,
    };
    let server = server.map(|response| response.into_inner().version);
    match answer.output {
        Output::Text => {
            writeln!(answer.out, "chancery {VERSION}")?;
            if let Some(server) = server {
                writeln!(answer.out, "server {}", plain(&server))?;
            }
            Ok(())
        }
        Output::Json => answer.json(&json!({"version": VERSION, "server_version": server})),
        Output::Yaml => answer.yaml(&json!({"version": VERSION, "server_version": server})),
    }
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
