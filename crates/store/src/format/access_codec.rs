//! Conversion of access rules and tokens between the model and `chancery.raft.v1`.

use std::collections::BTreeMap;

use chancery_model::{
    AccessOp, AccessRule, FreezeTarget, Grant, IdentityPattern, IdentityQuota, NodeBinding,
    PatternError, Revision, ScopeName, SecretsGrant, Template, Token, TokenDigest, TypeUrl,
    Variables, Verb,
};
use chancery_raft_proto::v1 as pb;

use crate::format::{
    quota_codec::{quota_from_proto, quota_to_proto},
    record::RecordError,
};

fn texts<'a>(templates: impl IntoIterator<Item = &'a Template>) -> Vec<String> {
    templates.into_iter().map(|template| template.as_str().to_owned()).collect()
}

/// Encodes a change of the access rules.
pub(crate) fn access_op_to_proto(op: &AccessOp) -> pb::AccessOp {
    use pb::access_op::Op;
    let op = match op {
        AccessOp::PutRule(rule) => Op::PutRule(rule_to_proto(rule)),
        AccessOp::DeleteRule(name) => Op::DeleteRule(name.to_string()),
        AccessOp::AddToken(token) => Op::AddToken(token_to_proto(token)),
        AccessOp::DeleteToken(digest) => Op::DeleteToken(digest.0.to_vec().into()),
        AccessOp::PutQuota(quota) => Op::PutQuota(quota_to_proto(quota)),
        AccessOp::DeleteQuota(name) => Op::DeleteQuota(name.to_string()),
        AccessOp::Freeze { target, until_ms } => Op::Freeze(freeze_op_to_proto(target, *until_ms)),
        AccessOp::Thaw { target, until_ms } => Op::Thaw(freeze_op_to_proto(target, *until_ms)),
        AccessOp::OverrideFreezes => Op::OverrideFreezes(pb::OverrideFreezes {}),
    };
    pb::AccessOp { op: Some(op) }
}

/// Decodes a change of the access rules.
pub(crate) fn access_op_from_proto(message: pb::AccessOp) -> Result<AccessOp, RecordError> {
    use pb::access_op::Op;
    let text = "the operation on the access rules is missing; a newer release may have written it";
    match message.op.ok_or_else(|| RecordError::Content(text.to_owned()))? {
        Op::PutRule(rule) => Ok(AccessOp::PutRule(Box::new(rule_from_proto(rule)?))),
        Op::DeleteRule(name) => Ok(AccessOp::DeleteRule(name.into())),
        Op::AddToken(token) => token_from_proto(token).map(AccessOp::AddToken),
        Op::DeleteToken(digest) => digest_from_proto(&digest).map(AccessOp::DeleteToken),
        Op::PutQuota(quota) => Ok(AccessOp::PutQuota(Box::new(quota_from_proto(quota)?))),
        Op::DeleteQuota(name) => Ok(AccessOp::DeleteQuota(name.into())),
        Op::Freeze(pb::FreezeOp { scope, until_ms }) => {
            Ok(AccessOp::Freeze { target: target_from_proto(&scope)?, until_ms })
        }
        Op::Thaw(pb::FreezeOp { scope, until_ms }) => {
            Ok(AccessOp::Thaw { target: target_from_proto(&scope)?, until_ms })
        }
        Op::OverrideFreezes(_) => Ok(AccessOp::OverrideFreezes),
    }
}

fn freeze_op_to_proto(target: &FreezeTarget, until_ms: Option<u64>) -> pb::FreezeOp {
    pb::FreezeOp { scope: target_to_proto(target), until_ms }
}

/// Encodes the target of a freeze: the scope, or an empty text for all.
pub(crate) fn target_to_proto(target: &FreezeTarget) -> String {
    target.scope().map(ToString::to_string).unwrap_or_default()
}

/// Decodes the target of a freeze.
pub(crate) fn target_from_proto(scope: &str) -> Result<FreezeTarget, RecordError> {
    if scope.is_empty() {
        return Ok(FreezeTarget::All);
    }
    let scope = ScopeName::new(scope);
    scope.map(FreezeTarget::Scope).map_err(|error| RecordError::invalid("a freeze", error))
}

/// Encodes a token.
pub(crate) fn token_to_proto(token: &Token) -> pb::Token {
    pb::Token {
        name: token.name.to_string(),
        digest: token.digest.0.to_vec().into(),
        created_ms: token.created_ms,
        expires_ms: token.expires_ms,
        revision: token.revision.0,
    }
}

/// Decodes a token.
pub(crate) fn token_from_proto(message: pb::Token) -> Result<Token, RecordError> {
    Ok(Token {
        digest: digest_from_proto(&message.digest)?,
        name: message.name.into(),
        created_ms: message.created_ms,
        expires_ms: message.expires_ms,
        revision: Revision(message.revision),
    })
}

fn digest_from_proto(bytes: &[u8]) -> Result<TokenDigest, RecordError> {
    let digest = bytes.try_into().map(TokenDigest);
    digest.map_err(|_| {
        RecordError::Content(format!("a digest of a token has 32 bytes, this one {}", bytes.len()))
    })
}

/// Encodes an access rule.
pub(crate) fn rule_to_proto(rule: &AccessRule) -> pb::AccessRule {
    let NodeBinding { id, cluster, metadata } = &rule.node;
    let text = |template: &Option<Template>| template.as_ref().map(|one| one.as_str().to_owned());
    let label = |(key, value): (&String, &Template)| pb::Label {
        key: key.clone(),
        value: value.as_str().to_owned(),
    };
    pb::AccessRule {
        name: rule.name.to_string(),
        identities: rule.identities.iter().map(|one| one.as_str().to_owned()).collect(),
        refuse: rule.refuse,
        node: Some(pb::NodeBinding {
            id: text(id),
            cluster: text(cluster),
            metadata: metadata.iter().map(label).collect(),
        }),
        read: texts(&rule.read),
        secrets: Some(pb::SecretsGrant {
            scopes: texts(&rule.secrets.scopes),
            names: texts(&rule.secrets.names),
        }),
        allow: rule.allow.iter().map(grant_to_proto).collect(),
        deny: rule.deny.iter().map(grant_to_proto).collect(),
        streams: rule.quota.streams,
        requests_per_second: rule.quota.requests_per_second,
        writes_per_second: rule.quota.writes_per_second,
    }
}

fn grant_to_proto(grant: &Grant) -> pb::Grant {
    pb::Grant {
        verbs: grant.verbs.iter().map(|verb| verb.name().to_owned()).collect(),
        scopes: texts(&grant.scopes),
        types: grant.types.iter().map(ToString::to_string).collect(),
        names: texts(&grant.names),
    }
}

/// Decodes an access rule.
pub(crate) fn rule_from_proto(message: pb::AccessRule) -> Result<AccessRule, RecordError> {
    let name = message.name.clone();
    rule(message)
        .map_err(|error| RecordError::Content(format!("the access rule {name:?}: {error}")))
}

fn rule(message: pb::AccessRule) -> Result<AccessRule, String> {
    let shown = |error: PatternError| error.to_string();
    let identities = message.identities.iter().map(|text| IdentityPattern::parse(text));
    let identities: Vec<_> = identities.collect::<Result<_, _>>().map_err(shown)?;
    let parse = |text: &str, node| {
        let variables = Variables { identities: &identities, node };
        Template::parse(text, variables).map_err(shown)
    };
    let all = |texts: &[String], node| -> Result<Vec<Template>, String> {
        texts.iter().map(|text| parse(text, node)).collect()
    };
    let grant = |grant: &pb::Grant| {
        let verb = |name: &String| {
            Verb::of_name(name).ok_or_else(|| format!("the verb {name:?} is unknown"))
        };
        let type_url = |url: &String| TypeUrl::new(url).map_err(|error| error.to_string());
        Ok::<_, String>(Grant {
            verbs: grant.verbs.iter().map(verb).collect::<Result<_, _>>()?,
            scopes: all(&grant.scopes, false)?,
            types: grant.types.iter().map(type_url).collect::<Result<_, _>>()?,
            names: all(&grant.names, false)?,
        })
    };
    let node = message.node.unwrap_or_default();
    let metadata = node.metadata.iter();
    let metadata =
        metadata.map(|label| parse(&label.value, false).map(|value| (label.key.clone(), value)));
    let secrets = message.secrets.unwrap_or_default();
    Ok(AccessRule {
        node: NodeBinding {
            id: node.id.as_deref().map(|text| parse(text, false)).transpose()?,
            cluster: node.cluster.as_deref().map(|text| parse(text, false)).transpose()?,
            metadata: metadata.collect::<Result<BTreeMap<_, _>, _>>()?,
        },
        read: all(&message.read, true)?,
        secrets: SecretsGrant {
            scopes: all(&secrets.scopes, true)?,
            names: all(&secrets.names, false)?,
        },
        allow: message.allow.iter().map(grant).collect::<Result<_, _>>()?,
        deny: message.deny.iter().map(grant).collect::<Result<_, _>>()?,
        quota: IdentityQuota {
            streams: message.streams,
            requests_per_second: message.requests_per_second,
            writes_per_second: message.writes_per_second,
        },
        refuse: message.refuse,
        name: message.name.into(),
        identities,
    })
}
