//! The command `can-i`: whether an identity may do something.

use chancery_admin_proto::v1 as pb;
use clap::Args;

use super::{access::client, client::refusal, connector::Channel};
use crate::{answer::Answer, failure::Failure};

/// The arguments of `can-i`.
#[derive(Debug, Args)]
pub(crate) struct CanI {
    /// Operation, such as `apply` or `members`
    verb: String,
    /// Scope, for operations that concern a scope
    scope: Option<String>,
    /// Type of the resource [default: all types]
    r#type: Option<String>,
    /// Name of the resource [default: all names]
    name: Option<String>,
    /// Check this identity instead of the caller
    #[arg(long = "as", value_name = "IDENTITY")]
    identity: Option<String>,
}

/// Runs `can-i`. Fails if the answer is no.
pub(super) async fn run(
    question: CanI,
    channel: Channel,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let request = pb::CheckAccessRequest {
        verb: question.verb,
        scope: question.scope.unwrap_or_default(),
        r#type: question.r#type.unwrap_or_default(),
        name: question.name.unwrap_or_default(),
        identity: question.identity.unwrap_or_default(),
    };
    let response = client(channel).check_access(request).await;
    let response = response.map_err(|status| refusal(&status))?.into_inner();
    answer
        .show(&response, |out| writeln!(out, "{}", if response.allowed { "yes" } else { "no" }))?;
    if response.allowed {
        Ok(())
    } else {
        Err(Failure::new(format_args!(
            "{} may not do this; `chancery access explain` shows its rights",
            response.identity
        )))
    }
}
