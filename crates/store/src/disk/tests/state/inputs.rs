//! Random transactions of all kinds, for the tests of states.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use chancery_model::{
    AccessOp, AccessRule, Assignment, AssignmentOp, Constraints, DataKey, DataKeyId, Expectation,
    FreezeTarget, Glob, Grant, IdentityPattern, IdentityQuota, KeyOp, KeyTarget, NodeBinding,
    NodeMatcher, Precondition, Quota, Reseal, ResourceDraft, ResourceKey, ResourceName, Revision,
    ScopeName, ScopeTemplate, Sealed, SealingId, SecretsGrant, Template, Token, TokenDigest,
    Transaction, TransactionMeta, TypeUrl, Upsert, Variables, Verb, Version, WrappedKey,
};
use proptest::prelude::*;

use super::ask;
use crate::format::codec::Command;

fn names() -> impl Strategy<Value = ResourceName> {
    (0..5_u8).prop_map(|n| ResourceName::new(&format!("name{n}")).unwrap())
}

/// The names of variants that can exist together.
fn variants() -> impl Strategy<Value = ResourceName> {
    "[ab]".prop_map(|value| {
        let constraints = Constraints::Value { key: "env".into(), value: value.into() };
        ResourceName::new("name with variants").unwrap().variant(&constraints)
    })
}

fn scopes() -> impl Strategy<Value = ScopeName> {
    prop_oneof![Just("default"), Just("edge/eu"), Just("edge")]
        .prop_map(|name| ScopeName::new(name).unwrap())
}

fn keys() -> impl Strategy<Value = ResourceKey> {
    let types = prop_oneof![Just("type.googleapis.com/a.B"), Just("type.googleapis.com/a.Bc")];
    (types, prop_oneof![names(), variants()])
        .prop_map(|(type_url, name)| ResourceKey { type_url: TypeUrl::from_static(type_url), name })
}

fn label_maps() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map("[a-c]", "[a-c]{0,2}", 0..3)
}

fn upserts() -> impl Strategy<Value = Upsert> {
    let extra = (prop::collection::vec(names(), 0..3), prop::option::of(0..3_u64), label_maps());
    let body = prop::collection::vec(any::<u8>(), 0..4);
    let extra = (extra, prop::option::of(sealed_bodies()));
    (scopes(), keys(), body, extra, prop::collection::vec(keys(), 0..2)).prop_map(
        |(scope, key, body, ((aliases, ttl, labels), sealed), children)| {
            // The log has no plain body of a sealed resource.
            let body = if sealed.is_some() { Vec::new() } else { body };
            let ttl = ttl.map(|n| Duration::new(n, 999_999_999));
            let draft = ResourceDraft {
                aliases,
                ttl,
                labels,
                children,
                sealed,
                ..ResourceDraft::new(key, body.into())
            };
            Upsert { scope, draft }
        },
    )
}

fn sealed_bodies() -> impl Strategy<Value = Sealed> {
    (1..4_u32, any::<u8>(), prop::collection::vec(any::<u8>(), 0..6)).prop_map(
        |(key, mac, body)| {
            let (mac, body_len) = ([mac; 32], u32::try_from(body.len()).unwrap());
            Sealed { key: DataKeyId(key), mac, body_len, bytes: body.into() }
        },
    )
}

fn wrapped_keys() -> impl Strategy<Value = WrappedKey> {
    ("[a-b]", prop::collection::vec(any::<u8>(), 0..3))
        .prop_map(|(kek, bytes)| WrappedKey { kek: kek.into(), bytes: bytes.into() })
}

fn data_keys() -> impl Strategy<Value = DataKey> {
    (1..4_u32, wrapped_keys(), any::<u64>()).prop_map(|(id, wrapped, created_ms)| DataKey {
        id: DataKeyId(id),
        wrapped,
        created_ms,
    })
}

fn key_ops() -> impl Strategy<Value = KeyOp> {
    let target = prop::option::of(1..4_u32)
        .prop_map(|id| id.map_or(KeyTarget::Mac, |id| KeyTarget::Data(DataKeyId(id))));
    let create = (any::<[u8; 16]>(), wrapped_keys(), data_keys());
    prop_oneof![
        create.prop_map(|(id, mac, data)| KeyOp::Create { sealing_id: SealingId(id), mac, data }),
        data_keys().prop_map(KeyOp::Add),
        (target, wrapped_keys(), wrapped_keys()).prop_map(|(target, from, to)| KeyOp::Rewrap {
            target,
            from,
            to
        }),
        (1..4_u32).prop_map(|id| KeyOp::Retire(DataKeyId(id))),
    ]
}

fn reseals() -> impl Strategy<Value = Reseal> {
    (scopes(), keys(), 1..20_u64, sealed_bodies()).prop_map(|(scope, key, revision, sealed)| {
        Reseal { scope, key, version: Version { revision: Revision(revision), tag: 0 }, sealed }
    })
}

/// Returns the commands that create the data keys 1 and 2.
pub(super) fn keys_created() -> [Command; 2] {
    let wrapped = || WrappedKey { kek: "k".into(), bytes: Bytes::from_static(b"w") };
    let data = |id| DataKey { id: DataKeyId(id), wrapped: wrapped(), created_ms: 0 };
    let create = KeyOp::Create { sealing_id: SealingId([3; 16]), mac: wrapped(), data: data(1) };
    [create, KeyOp::Add(data(2))]
        .map(|op| ask(Transaction { keys: vec![op], ..Transaction::default() }))
}

fn assignments() -> impl Strategy<Value = AssignmentOp> {
    let glob = || prop::option::of("[a-z*]{0,3}".prop_map(|text| Glob::new(&text)));
    let put = ("[a-c]", any::<i64>(), glob(), glob(), label_maps());
    prop_oneof![
        "[a-c]".prop_map(|name| AssignmentOp::Delete(name.into())),
        put.prop_map(|(name, priority, id, zone, metadata)| AssignmentOp::Put(Assignment {
            name: name.into(),
            priority,
            matcher: NodeMatcher {
                id,
                zone,
                metadata: metadata.into_iter().map(|(k, v)| (k, Glob::new(&v))).collect(),
                ..NodeMatcher::default()
            },
            scopes: vec![ScopeTemplate::parse("node/{node.id}").unwrap()],
        })),
    ]
}

pub(super) fn access_rules() -> impl Strategy<Value = AccessRule> {
    let grants = || prop::collection::vec(any::<bool>(), 0..2);
    let parts = (any::<bool>(), any::<bool>(), grants(), grants(), prop::option::of(1..9_u64));
    ("[a-c]", parts).prop_map(|(name, (refuse, is_bound, allow, deny, streams))| {
        let identities = vec![IdentityPattern::parse("jwt:corp/{team}").unwrap()];
        let template = |source: &str, node| {
            let variables = Variables { identities: &identities, node };
            Template::parse(source, variables).unwrap()
        };
        let grant = |is_scoped: bool| {
            if is_scoped {
                Grant {
                    verbs: vec![Verb::Apply, Verb::Prune],
                    scopes: vec![template("team/{team}/**", false)],
                    types: vec![TypeUrl::from_static("type.googleapis.com/a.B")],
                    names: vec![template("{team}-*", false)],
                }
            } else {
                Grant {
                    verbs: vec![Verb::Nodes],
                    scopes: Vec::new(),
                    types: Vec::new(),
                    names: Vec::new(),
                }
            }
        };
        AccessRule {
            name: name.into(),
            refuse,
            node: NodeBinding {
                id: is_bound.then(|| template("{team}/*", false)),
                cluster: None,
                metadata: BTreeMap::from([("a.b".to_owned(), template("{team}", false))]),
            },
            read: vec![template("node/{node.id}", true)],
            secrets: SecretsGrant {
                scopes: vec![template("{metadata.a.b}", true)],
                names: vec![template("{team}", false)],
            },
            allow: allow.into_iter().map(grant).collect(),
            deny: deny.into_iter().map(grant).collect(),
            quota: IdentityQuota {
                streams,
                requests_per_second: streams.map(|n| u32::try_from(n).unwrap()),
                writes_per_second: None,
            },
            identities,
        }
    })
}

fn access_ops() -> impl Strategy<Value = AccessOp> {
    let digests = || (0..4_u8).prop_map(|n| TokenDigest([n; 32]));
    let tokens = ("[a-b]", digests(), any::<u64>()).prop_map(|(name, digest, created_ms)| Token {
        name: name.into(),
        digest,
        created_ms,
        expires_ms: created_ms / 2,
        revision: Revision(0),
    });
    prop_oneof![
        access_rules().prop_map(|rule| AccessOp::PutRule(Box::new(rule))),
        "[a-c]".prop_map(|name| AccessOp::DeleteRule(name.into())),
        tokens.prop_map(AccessOp::AddToken),
        digests().prop_map(AccessOp::DeleteToken),
        quotas().prop_map(|quota| AccessOp::PutQuota(Box::new(quota))),
        "[a-c]".prop_map(|name| AccessOp::DeleteQuota(name.into())),
        (freeze_targets(), prop::option::of(0..3_u64))
            .prop_map(|(target, until_ms)| AccessOp::Freeze { target, until_ms }),
        (freeze_targets(), prop::option::of(0..3_u64))
            .prop_map(|(target, until_ms)| AccessOp::Thaw { target, until_ms }),
        Just(AccessOp::OverrideFreezes),
    ]
}

fn freeze_targets() -> impl Strategy<Value = FreezeTarget> {
    prop_oneof![Just(FreezeTarget::All), scopes().prop_map(FreezeTarget::Scope)]
}

fn quotas() -> impl Strategy<Value = Quota> {
    let limit = || prop::option::of(0..6_u64);
    let patterns = prop_oneof![Just("**"), Just("edge/**"), Just("edge*"), Just("default")];
    let parts = (prop::collection::vec(patterns, 1..3), limit(), limit(), limit(), limit());
    ("[a-c]", parts).prop_map(|(name, (scopes, resources, bytes, n_scopes, body))| Quota {
        name: name.into(),
        scopes: scopes.into_iter().map(|source| Quota::pattern(source).unwrap()).collect(),
        max_resources: resources,
        max_bytes: bytes,
        max_scopes: n_scopes,
        max_body_bytes: body,
    })
}

pub(super) fn preconditions() -> impl Strategy<Value = Precondition> {
    let version =
        (any::<u64>(), any::<u32>()).prop_map(|(r, tag)| Version { revision: Revision(r), tag });
    let expectation = prop_oneof![
        Just(Expectation::Absent),
        Just(Expectation::Present),
        version.prop_map(Expectation::Version)
    ];
    prop_oneof![
        any::<u64>().prop_map(|revision| Precondition::Revision(Revision(revision))),
        any::<u64>().prop_map(|revision| Precondition::Access(Revision(revision))),
        (scopes(), keys(), expectation).prop_map(|(scope, key, expectation)| {
            Precondition::Resource { scope, key, expectation }
        })
    ]
}

pub(super) fn transactions() -> impl Strategy<Value = Transaction> {
    let lists = (
        prop::collection::vec((scopes(), keys()), 0..3),
        prop::collection::vec(scopes(), 0..2),
        prop::collection::vec(upserts(), 0..5),
        prop::collection::vec(assignments(), 0..2),
        prop::collection::vec(access_ops(), 0..3),
        prop::option::weighted(0.2, key_ops()),
        prop::collection::vec(reseals(), 0..2),
    );
    let meta = (prop::option::of("[a-z]{1,3}"), "[a-z]{0,3}", any::<u64>());
    (lists, meta).prop_map(
        |(
            (deletes, prune, upserts, assignments, access, keys, reseals),
            (label, author, time_ms),
        )| {
            let label = label.map(Arc::from);
            let (validation, confirmed) = (author.clone(), vec![author.clone()]);
            let source = author.clone();
            let reason = "why".into();
            let labels = BTreeMap::from([(author.clone(), author.clone())]);
            let meta = TransactionMeta {
                label,
                author,
                reason,
                time_ms,
                validation,
                confirmed,
                source,
                labels,
            };
            Transaction {
                deletes,
                prune,
                upserts,
                assignments,
                access,
                meta,
                keys: keys.into_iter().collect(),
                reseals,
                ..Transaction::default()
            }
        },
    )
}
