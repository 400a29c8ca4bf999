//! The messages about access rules, tokens and quotas.

use std::collections::BTreeMap;

use chancery_admin_proto::v1 as pb;
use chancery_model::{
    Access, AccessRule, ClientGrant, Grant, Identity, IdentityGrant, Quota, QuotaUse, Template,
    Token, TokenDigest,
};

/// The number of hexadecimal digits that identify a token.
const ID_DIGITS: usize = 16;

/// Returns the digits that identify a token.
pub(crate) fn id_of(digest: &TokenDigest) -> String {
    hex::encode(&digest.0[..ID_DIGITS / 2])
}

/// Converts a token to a message, without its secret.
pub(crate) fn show_token(token: &Token) -> pb::TokenInfo {
    pb::TokenInfo {
        name: token.name.to_string(),
        id: id_of(&token.digest),
        created_ms: token.created_ms,
        expires_ms: token.expires_ms,
        revision: token.revision.0,
    }
}

fn texts(templates: &[Template]) -> Vec<String> {
    templates.iter().map(|template| template.as_str().to_owned()).collect()
}

/// Converts an access rule to a message.
pub(crate) fn show_rule(rule: &AccessRule) -> pb::AccessRule {
    let text = |template: &Option<Template>| template.as_ref().map(|one| one.as_str().to_owned());
    let metadata: BTreeMap<_, _> = (rule.node.metadata.iter())
        .map(|(path, template)| (path.clone(), template.as_str().to_owned()))
        .collect();
    let is_bound = rule.node != chancery_model::NodeBinding::default();
    pb::AccessRule {
        name: rule.name.to_string(),
        identities: rule.identities.iter().map(|one| one.as_str().to_owned()).collect(),
        refuse: rule.refuse,
        node: is_bound.then(|| pb::NodeBinding {
            id: text(&rule.node.id),
            cluster: text(&rule.node.cluster),
            metadata: metadata.into_iter().collect(),
        }),
        read: texts(&rule.read),
        secrets: (!rule.secrets.scopes.is_empty()).then(|| pb::SecretsGrant {
            scopes: texts(&rule.secrets.scopes),
            names: texts(&rule.secrets.names),
        }),
        allow: rule.allow.iter().map(show_grant).collect(),
        deny: rule.deny.iter().map(show_grant).collect(),
        streams: rule.quota.streams,
        requests_per_second: rule.quota.requests_per_second,
        writes_per_second: rule.quota.writes_per_second,
    }
}

/// Converts a quota and its use to a message.
pub(crate) fn show_quota(quota: &Quota, used: &QuotaUse) -> pb::QuotaStatus {
    pb::QuotaStatus {
        name: quota.name.to_string(),
        scopes: texts(&quota.scopes),
        max_resources: quota.max_resources,
        max_bytes: quota.max_bytes,
        max_scopes: quota.max_scopes,
        max_body_bytes: quota.max_body_bytes,
        resources: used.resources,
        bytes: used.bytes,
        used_scopes: used.scopes,
    }
}

/// Returns the grants of the rules that name an identity.
pub(crate) fn show_grants(access: &Access, identity: &Identity) -> Vec<pb::IdentityGrant> {
    let show = |one: IdentityGrant<'_>| pb::IdentityGrant {
        rule: one.rule.to_owned(),
        deny: one.denies,
        grant: Some(show_grant(one.grant)),
        variables: (one.variables.into_iter())
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    };
    access.grants_of(identity).into_iter().map(show).collect()
}

/// Returns the rights and limits of clients in the rules that name an identity.
pub(crate) fn show_client_grants(access: &Access, identity: &Identity) -> Vec<pb::ClientGrant> {
    let show = |ClientGrant { rule, variables }: ClientGrant<'_>| {
        let pb::AccessRule { name, node, read, secrets, .. } = show_rule(rule);
        pb::ClientGrant {
            rule: name,
            node,
            read,
            secrets,
            variables: (variables.into_iter())
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            streams: rule.quota.streams,
            requests_per_second: rule.quota.requests_per_second,
            writes_per_second: rule.quota.writes_per_second,
        }
    };
    access.client_grants_of(identity).into_iter().map(show).collect()
}

fn show_grant(grant: &Grant) -> pb::Grant {
    pb::Grant {
        verbs: grant.verbs.iter().map(|verb| verb.name().to_owned()).collect(),
        scopes: texts(&grant.scopes),
        types: grant.types.iter().map(ToString::to_string).collect(),
        names: texts(&grant.names),
    }
}
