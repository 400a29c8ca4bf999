//! The command `access`: access rules, and the rights of an identity.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use chancery_admin_proto::v1::{
    self as pb, access_service_client::AccessServiceClient, admin_client::AdminClient,
};
use clap::Subcommand;
use serde_json::{Value, json};

use super::{client::refusal, connector::Channel, read::Read};
use crate::{
    answer::{Answer, Output},
    failure::Failure,
    help::examples,
    table::Table,
    text::{plain, short_type},
};

/// The subcommands of `access`.
#[derive(Debug, Subcommand)]
pub(crate) enum Access {
    /// List the access rules; `-o yaml` prints a manifest
    List {
        #[command(flatten)]
        read: Read,
    },
    /// Delete an access rule
    #[command(after_help = examples(&["access delete sidecars"]))]
    Delete {
        /// Name of the rule
        name: String,
    },
    /// Explain the rights of an identity, and whether a node with it may open a stream
    ///
    /// The contacted replica knows only the nodes that are connected to it.
    #[command(after_help = examples(&["access explain spiffe://prod.example/ns/shop/sa/cart shop/cart/1"]))]
    Explain {
        /// Identity, such as `token:ci` or `spiffe://prod.example/ops/anna`
        identity: String,
        /// ID of a connected node; needs the right `nodes` [default: explain only the rights]
        node: Option<String>,
    },
    /// Take all rights from an identity, on all replicas
    ///
    /// Adds an access rule with the name `revoked/IDENTITY`. The open streams of the identity end, and new ones are
    /// refused. Its clients keep their configuration. To give the rights back, delete the rule.
    #[command(after_help = examples(&["access revoke spiffe://prod.example/ns/shop/sa/cart --reason 'key was lost'"]))]
    Revoke {
        /// Identity, such as `token:ci`
        identity: String,
        /// Record this reason in the history [default: none]
        #[arg(long)]
        reason: Option<String>,
    },
}

pub(super) type Client = AccessServiceClient<Channel>;

pub(super) fn client(channel: Channel) -> Client {
    AccessServiceClient::new(channel).max_decoding_message_size(usize::MAX)
}

/// Runs a subcommand of `access`.
pub(super) async fn run(
    command: Access,
    channel: Channel,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    match command {
        Access::List { read } => list(client(channel), read, answer).await,
        Access::Delete { name } => {
            let request = pb::DeleteAccessRequest { name: name.clone(), options: None };
            let deleted = client(channel).delete_access(request).await;
            let response = deleted.map_err(|status| refusal(&status))?.into_inner();
            answer.show(&response, |out| {
                writeln!(out, "revision {}: deleted the access rule {name}", response.revision)
            })
        }
        Access::Explain { identity, node } => {
            let node = node.unwrap_or_default();
            let request = pb::ExplainAccessRequest { identity, node };
            let explained = client(channel).explain_access(request).await;
            let response = explained.map_err(|status| refusal(&status))?.into_inner();
            answer.show(&response, |out| write_explanation(&response, out))
        }
        Access::Revoke { identity, reason } => revoke(channel, &identity, reason, answer).await,
    }
}

async fn list(mut client: Client, read: Read, answer: &mut Answer<'_>) -> Result<(), Failure> {
    let response =
        client.list_access(pb::ListAccessRequest { stale: read.stale, ..Default::default() }).await;
    let list = response.map_err(|status| refusal(&status))?.into_inner();
    if answer.output == Output::Yaml {
        // The output is a manifest that can be applied again.
        let rules: Vec<Value> = list.rules.iter().map(manifest).collect();
        return answer.yaml(&json!({ "access": rules }));
    }
    answer.show(&list, |out| {
        if list.rules.is_empty() {
            return writeln!(out, "no access rules");
        }
        let mut table =
            Table::new(["NAME", "IDENTITIES", "NODE", "READ", "SECRETS", "QUOTA", "ALLOW", "DENY"]);
        for rule in &list.rules {
            let verbs =
                |grants: &[pb::Grant]| grants.iter().map(grant_text).collect::<Vec<_>>().join("; ");
            let deny = if rule.refuse { "everything".to_owned() } else { verbs(&rule.deny) };
            table.row([
                rule.name.clone(),
                rule.identities.join(" "),
                rule.node.as_ref().map(node_text).unwrap_or_default(),
                rule.read.join(" "),
                rule.secrets.as_ref().map(secrets_text).unwrap_or_default(),
                limits_text(rule.streams, rule.requests_per_second, rule.writes_per_second),
                verbs(&rule.allow),
                deny,
            ]);
        }
        table.write(out, "")
    })
}

/// Returns the verbs of a grant, and what they concern: `apply delete (scopes: mesh; types: Cluster)`.
pub(super) fn grant_text(grant: &pb::Grant) -> String {
    let mut parts = Vec::new();
    let types: Vec<String> = grant.types.iter().map(|url| short_type(url)).collect();
    for (what, texts) in [("scopes", &grant.scopes), ("types", &types), ("names", &grant.names)] {
        if !texts.is_empty() {
            parts.push(format!("{what}: {}", texts.join(" ")));
        }
    }
    let verbs = grant.verbs.join(" ");
    if parts.is_empty() { verbs } else { format!("{verbs} ({})", parts.join("; ")) }
}

/// Returns the values that a node must have: `id={team}/* metadata.NAMESPACE={team}`.
fn node_text(node: &pb::NodeBinding) -> String {
    let fixed = [("id", &node.id), ("cluster", &node.cluster)];
    let fixed =
        fixed.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?)));
    let metadata = node.metadata.iter().map(|(path, value)| format!("metadata.{path}={value}"));
    fixed.chain(metadata).collect::<Vec<_>>().join(" ")
}

/// Returns the scopes and names of secrets: `mesh (names: tls-*)`.
fn secrets_text(secrets: &pb::SecretsGrant) -> String {
    let scopes = secrets.scopes.join(" ");
    match secrets.names.as_slice() {
        [] => scopes,
        names => format!("{scopes} (names: {})", names.join(" ")),
    }
}

/// Returns the limits of an identity: `streams=4 writes_per_second=1`.
fn limits_text(streams: Option<u64>, requests: Option<u32>, writes: Option<u32>) -> String {
    let limits = [
        ("streams", streams),
        ("requests_per_second", requests.map(u64::from)),
        ("writes_per_second", writes.map(u64::from)),
    ];
    let set = limits.into_iter().filter_map(|(key, limit)| Some(format!("{key}={}", limit?)));
    set.collect::<Vec<_>>().join(" ")
}

/// Writes the grants of an identity, one per line, and then its rights as a client.
pub(super) fn write_grants(
    grants: &[pb::IdentityGrant],
    clients: &[pb::ClientGrant],
    out: &mut dyn Write,
) -> io::Result<()> {
    for one in grants {
        let decision = if one.deny { "deny" } else { "allow" };
        let grant = one.grant.as_ref().map(grant_text).unwrap_or_default();
        let variables = variables_text(&one.variables);
        let line = plain(&format!("{decision} {grant}{variables}, by rule {}", one.rule));
        writeln!(out, "  {line}")?;
    }
    for one in clients {
        let parts = [
            ("read", one.read.join(" ")),
            ("secrets", one.secrets.as_ref().map(secrets_text).unwrap_or_default()),
            ("node", one.node.as_ref().map(node_text).unwrap_or_default()),
            ("quota", limits_text(one.streams, one.requests_per_second, one.writes_per_second)),
        ];
        let parts = parts.into_iter().filter(|(_, text)| !text.is_empty());
        let parts: Vec<String> = parts.map(|(what, text)| format!("{what} {text}")).collect();
        let variables = variables_text(&one.variables);
        let parts = parts.join("; ");
        let line = plain(&format!("client: {parts}{variables}, by rule {}", one.rule));
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

/// Returns the values of variables as the end of a sentence; empty without variables.
fn variables_text(variables: &BTreeMap<String, String>) -> String {
    let all: Vec<String> =
        variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if all.is_empty() { String::new() } else { format!(" with {}", all.join(" ")) }
}

/// Returns an access rule as in a manifest.
pub(super) fn manifest(rule: &pb::AccessRule) -> Value {
    let grant = |grant: &pb::Grant| {
        let mut json = json!({"verbs": grant.verbs});
        for (key, texts) in
            [("scopes", &grant.scopes), ("types", &grant.types), ("names", &grant.names)]
        {
            if !texts.is_empty() {
                json[key] = json!(texts);
            }
        }
        json
    };
    let mut json = json!({"name": rule.name, "identities": rule.identities});
    if rule.refuse {
        json["refuse"] = json!(true);
    }
    if let Some(node) = &rule.node {
        let fixed = [("id", &node.id), ("cluster", &node.cluster)];
        for (key, value) in
            fixed.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?)))
        {
            json["node"][key] = json!(value);
        }
        if !node.metadata.is_empty() {
            json["node"]["metadata"] = json!(node.metadata);
        }
    }
    if !rule.read.is_empty() {
        json["read"] = json!(rule.read);
    }
    if let Some(secrets) = &rule.secrets {
        json["secrets"]["scopes"] = json!(secrets.scopes);
        if !secrets.names.is_empty() {
            json["secrets"]["names"] = json!(secrets.names);
        }
    }
    for (key, grants) in [("allow", &rule.allow), ("deny", &rule.deny)] {
        if !grants.is_empty() {
            json[key] = grants.iter().map(grant).collect();
        }
    }
    for (key, limit) in [
        ("streams", rule.streams),
        ("requests_per_second", rule.requests_per_second.map(u64::from)),
        ("writes_per_second", rule.writes_per_second.map(u64::from)),
    ] {
        if let Some(limit) = limit {
            json["quota"][key] = json!(limit);
        }
    }
    json
}

async fn revoke(
    channel: Channel,
    identity: &str,
    reason: Option<String>,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let rule = json!({"name": format!("revoked/{identity}"), "identity": identity, "refuse": true});
    let content = json!({ "access": [rule] }).to_string();
    let options = pb::WriteOptions { reason: reason.unwrap_or_default(), ..Default::default() };
    let request = pb::ApplyRequest {
        files: vec![pb::File { name: "revoke.json".to_owned(), content }],
        options: Some(options),
        ..Default::default()
    };
    let applied = AdminClient::new(channel).apply(request).await;
    let response = applied.map_err(|status| refusal(&status))?.into_inner();
    answer.show(&response, |out| {
        writeln!(
            out,
            "revision {}: {identity} has no rights; to give them back: chancery access delete revoked/{identity}",
            response.revision
        )
    })
}

fn write_explanation(response: &pb::ExplainAccessResponse, out: &mut dyn Write) -> io::Result<()> {
    let none = |texts: &[String]| match texts {
        [] => "none".to_owned(),
        texts => texts.join(" "),
    };
    if !response.enforced {
        writeln!(out, "access rules do not apply (access.admins is empty); if they did:")?;
    }
    writeln!(out, "identity  {}", response.identity)?;
    writeln!(out, "rules     {}", none(&response.rules))?;
    writeln!(out, "verbs     {}", none(&response.verbs))?;
    write_grants(&response.grants, &response.client_grants, out)?;
    let Some(node) = &response.node else { return Ok(()) };
    writeln!(out, "node      {}", node.id)?;
    let assignment = if node.assignment.is_empty() { "none" } else { &node.assignment };
    writeln!(out, "  assignment  {assignment}")?;
    writeln!(out, "  scopes      {}", none(&node.scopes))?;
    if node.allowed {
        writeln!(out, "  allowed")
    } else {
        writeln!(out, "  refused: {}", node.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grant_is_shown_with_its_scopes_types_and_names() {
        let grant = pb::Grant {
            verbs: vec!["apply".into(), "delete".into()],
            scopes: vec!["team/{team}".into()],
            types: vec![chancery_model::types::CLUSTER.into()],
            names: vec!["web-*".into()],
        };
        assert_eq!(
            grant_text(&grant),
            "apply delete (scopes: team/{team}; types: cluster; names: web-*)"
        );
        let all = pb::Grant { verbs: vec!["nodes".into()], ..Default::default() };
        assert_eq!(grant_text(&all), "nodes");
        let grants = pb::IdentityGrant {
            rule: "team".into(),
            deny: true,
            grant: Some(all),
            variables: [("team".to_owned(), "shop".to_owned())].into(),
        };
        let mut out = Vec::new();
        write_grants(&[grants], &[], &mut out).unwrap();
        assert_eq!(out, b"  deny nodes with team=shop, by rule team\n");
    }

    #[test]
    fn rights_of_a_client_are_shown_with_node_secrets_and_quota() {
        let grant = pb::ClientGrant {
            rule: "sidecars".into(),
            node: Some(pb::NodeBinding {
                id: Some("{ns}/*".into()),
                cluster: None,
                metadata: [("NS".to_owned(), "{ns}".to_owned())].into(),
            }),
            read: vec!["mesh".into(), "ns/{ns}".into()],
            secrets: Some(pb::SecretsGrant {
                scopes: vec!["ns/{ns}".into()],
                names: vec!["tls-*".into()],
            }),
            variables: [("ns".to_owned(), "shop".to_owned())].into(),
            streams: Some(4),
            writes_per_second: Some(2),
            ..Default::default()
        };
        let limit = pb::ClientGrant {
            rule: "limit".into(),
            requests_per_second: Some(9),
            ..Default::default()
        };
        let mut out = Vec::new();
        write_grants(&[], &[grant, limit], &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "  client: read mesh ns/{ns}; secrets ns/{ns} (names: tls-*); node id={ns}/* metadata.NS={ns}; \
             quota streams=4 writes_per_second=2 with ns=shop, by rule sidecars\n  \
             client: quota requests_per_second=9, by rule limit\n"
        );
    }

    #[test]
    fn listed_rule_is_a_manifest() {
        let rule = pb::AccessRule {
            name: "team".into(),
            identities: vec!["jwt:corp/{team}".into()],
            read: vec!["mesh".into()],
            secrets: Some(pb::SecretsGrant { scopes: vec!["mesh".into()], names: vec![] }),
            allow: vec![pb::Grant {
                verbs: vec!["apply".into()],
                scopes: vec!["team/{team}".into()],
                ..Default::default()
            }],
            streams: Some(3),
            writes_per_second: Some(5),
            ..Default::default()
        };
        let json = json!({ "access": [manifest(&rule)] }).to_string();
        let manifest = chancery_admission::Manifest { file: "a.json".into(), content: json };
        let scope = chancery_model::ScopeName::new("default").unwrap();
        let options = chancery_admission::Options::new(scope);
        let transaction = chancery_admission::admit(&[manifest], &options).unwrap();
        assert_eq!(transaction.access.len(), 1);
    }
}
