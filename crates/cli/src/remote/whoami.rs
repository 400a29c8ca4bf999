//! The command `whoami`: the identity of the caller and its rights.

use chancery_admin_proto::v1 as pb;

use super::{
    access::{client, write_grants},
    client::refusal,
    connector::Channel,
};
use crate::{answer::Answer, failure::Failure};

/// Runs `whoami`.
pub(super) async fn run(channel: Channel, answer: &mut Answer<'_>) -> Result<(), Failure> {
    let response = client(channel).who_am_i(pb::WhoAmIRequest {}).await;
    let me = response.map_err(|status| refusal(&status))?.into_inner();
    answer.show(&me, |out| {
        writeln!(out, "{}", me.identity)?;
        match (me.enforced, me.admin) {
            (false, _) => {
                writeln!(out, "access rules do not apply (access.admins is empty): everybody may do everything")
            }
            (true, true) => writeln!(out, "may do everything (access.admins)"),
            (true, false) => {
                let rules = if me.rules.is_empty() { "none".to_owned() } else { me.rules.join(" ") };
                writeln!(out, "rules: {rules}")?;
                let verbs = if me.verbs.is_empty() { "none".to_owned() } else { me.verbs.join(" ") };
                writeln!(out, "verbs: {verbs}")?;
                write_grants(&me.grants, &me.client_grants, out)
            }
        }
    })
}
