//! The commands `quota list` and `quota delete`.

use chancery_admin_proto::v1::{self as pb, access_service_client::AccessServiceClient};
use clap::Subcommand;
use serde_json::{Value, json};

use super::{client::refusal, connector::Channel, read::Read};
use crate::{
    answer::{Answer, Output},
    failure::Failure,
    help::examples,
    table::Table,
};

/// The subcommands of `quota`.
#[derive(Debug, Subcommand)]
pub(crate) enum Quota {
    /// List the quotas with their use; `-o yaml` prints a manifest
    ///
    /// The columns show USED/LIMIT, or USED if there is no limit. BODY is the maximum size of one resource in bytes.
    List {
        #[command(flatten)]
        read: Read,
    },
    /// Delete a quota
    #[command(after_help = examples(&["quota delete pay"]))]
    Delete {
        /// Name of the quota
        name: String,
    },
}

/// Runs a subcommand of `quota`.
pub(super) async fn run(
    command: Quota,
    channel: Channel,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let mut client = AccessServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    match command {
        Quota::List { read } => {
            let response = client
                .list_quotas(pb::ListQuotasRequest { stale: read.stale, ..Default::default() })
                .await;
            show(&response.map_err(|status| refusal(&status))?.into_inner(), answer)
        }
        Quota::Delete { name } => {
            let request = pb::DeleteQuotaRequest { name: name.clone(), options: None };
            let deleted = client.delete_quota(request).await;
            let response = deleted.map_err(|status| refusal(&status))?.into_inner();
            answer.show(&response, |out| {
                writeln!(out, "revision {}: deleted the quota {name}", response.revision)
            })
        }
    }
}

fn show(list: &pb::ListQuotasResponse, answer: &mut Answer<'_>) -> Result<(), Failure> {
    if answer.output == Output::Yaml {
        // The output is a manifest that can be applied again.
        let quotas: Vec<Value> = list.quotas.iter().map(manifest).collect();
        return answer.yaml(&json!({ "quotas": quotas }));
    }
    answer.show(list, |out| {
        if list.quotas.is_empty() {
            return writeln!(out, "no quotas");
        }
        let mut table = Table::new(["NAME", "PATTERNS", "RESOURCES", "BYTES", "SCOPES", "BODY"]);
        for quota in &list.quotas {
            table.row([
                quota.name.clone(),
                quota.scopes.join(" "),
                used(quota.resources, quota.max_resources),
                used(quota.bytes, quota.max_bytes),
                used(quota.used_scopes, quota.max_scopes),
                quota.max_body_bytes.map(|max| max.to_string()).unwrap_or_default(),
            ]);
        }
        table.write(out, "")
    })
}

fn used(used: u64, limit: Option<u64>) -> String {
    match limit {
        Some(limit) => format!("{used}/{limit}"),
        None => used.to_string(),
    }
}

/// Returns a quota as in a manifest.
pub(super) fn manifest(quota: &pb::QuotaStatus) -> Value {
    let mut json = json!({"name": quota.name, "scopes": quota.scopes});
    for (key, limit) in [
        ("max_resources", quota.max_resources),
        ("max_bytes", quota.max_bytes),
        ("max_scopes", quota.max_scopes),
        ("max_body_bytes", quota.max_body_bytes),
    ] {
        if let Some(limit) = limit {
            json[key] = json!(limit);
        }
    }
    json
}
