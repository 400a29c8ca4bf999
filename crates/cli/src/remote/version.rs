//! The command `version`.

use chancery_admin_proto::v1::{self as pb, admin_client::AdminClient};
use serde_json::json;

use super::{client::VERSION, connector::Channel};
use crate::{
    answer::{Answer, Output},
    failure::Failure,
    text::plain,
};

/// Shows the version of this program, and of the server if it is reachable.
pub(super) async fn run(
    client: Option<AdminClient<Channel>>,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let server = match client {
        Some(mut client) => client.get_version(pb::GetVersionRequest {}).await.ok(),
        None => None,
    };
    let server = server.map(|response| response.into_inner().version);
    match answer.output {
        Output::Text | Output::Wide => {
            writeln!(answer.out, "chancery {VERSION}")?;
            if let Some(server) = server {
                writeln!(answer.out, "server {}", plain(&server))?;
            }
            Ok(())
        }
        Output::Json | Output::Sarif => {
            answer.json(&json!({"version": VERSION, "server_version": server}))
        }
        Output::Yaml => answer.yaml(&json!({"version": VERSION, "server_version": server})),
    }
}
