//! Conversion of commands between the model and `chancery.raft.v1`.
//!
//! Encoding is total. Decoding checks everything again: a replica wrote the committed bytes, but
//! possibly a replica of another release.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use chancery_model::{
    AccessLimit, Expectation, Incarnation, Precondition, Refusal, Reseal, Resource, ResourceDraft,
    ResourceKey, ResourceName, Revision, ScopeName, Sealed, Transaction, TransactionMeta, TypeUrl,
    Upsert, Version,
    wire::{Fields, Token, put_len_field},
};
use chancery_raft_proto::v1 as pb;
use prost::Message;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::format::{
    access_codec::{access_op_from_proto, access_op_to_proto},
    assignment_codec::{assignment_op_from_proto, assignment_op_to_proto},
    content::Retention,
    keys_codec::{
        key_op_from_proto, key_op_to_proto, keys_refusal_from_proto, keys_refusal_to_proto,
        sealed_from_proto, sealed_to_proto,
    },
    quota_codec::{exceeded_from_proto, exceeded_to_proto},
    record::RecordError,
    request_id::RequestId,
};

/// A decoded command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// Gives the cluster its identity.
    Form {
        /// The cluster ID: 16 random bytes.
        cluster_id: [u8; 16],
        /// The incarnation: a random number.
        incarnation: Incarnation,
    },
    /// Changes the state.
    Transact {
        transaction: Box<Transaction>,
        /// The request that made the transaction. A transaction without a request cannot be retried
        /// safely.
        request: Option<Request>,
        /// How long the history keeps what the transactions up to this one replaced.
        retention: Retention,
    },
}

/// The identity of a write request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) id: RequestId,
    /// Whether the request may have been proposed before.
    pub(crate) repeated: bool,
    /// A revision before the first attempt.
    pub(crate) since: Revision,
    /// The digest of the transaction ([`digest`]) or of the request ([`digest_of_content`]); 0 if unknown.
    pub(crate) digest: u64,
}

// === commands ===

/// Decodes a command.
pub(crate) fn command_from_proto(command: pb::Command) -> Result<Command, RecordError> {
    match command.command.ok_or_else(|| RecordError::missing("the kind of the command"))? {
        pb::command::Command::Form(form) => Ok(Command::Form {
            cluster_id: cluster_id_from_proto(&form.cluster_id)?,
            incarnation: Incarnation(form.incarnation),
        }),
        pb::command::Command::Transaction(transaction) => {
            let request = command.request.map(request_from_proto).transpose()?;
            let transaction = Box::new(transaction_from_proto(transaction)?);
            let retention = Retention::of_command(command.retention);
            Ok(Command::Transact { transaction, request, retention })
        }
    }
}

/// Decodes an encoded command. Bodies share the bytes of the command.
///
/// A large transaction is decoded upsert by upsert. Decoding it as one message would need several times its size
/// for the list of messages alone.
pub(crate) fn decode_command(command: &Bytes) -> Result<Command, RecordError> {
    let Some((rest, transaction)) = split_field(command, TRANSACTION_FIELD) else {
        return command_from_proto(pb::Command::decode(command.clone())?);
    };
    let [transaction] = &transaction[..] else {
        return command_from_proto(pb::Command::decode(command.clone())?);
    };
    let transaction = command.slice_ref(transaction);
    let Some((others, upserts)) = split_field(&transaction, UPSERTS_FIELD) else {
        return command_from_proto(pb::Command::decode(command.clone())?);
    };
    let pb::Command { command: kind, request, retention } = pb::Command::decode(rest.freeze())?;
    if kind.is_some() {
        return command_from_proto(pb::Command::decode(command.clone())?);
    }
    let request = request.map(request_from_proto).transpose()?;
    let others = transaction_from_proto(pb::Transaction::decode(others.freeze())?)?;
    let mut scope = None;
    let upserts = upserts.into_iter().map(|upsert| {
        upsert_from_proto(pb::Upsert::decode(transaction.slice_ref(upsert))?, &mut scope)
    });
    let upserts = upserts.collect::<Result<_, _>>()?;
    let transaction = Box::new(Transaction { upserts, ..others });
    let retention = Retention::of_command(retention);
    Ok(Command::Transact { transaction, request, retention })
}

/// The number of the field `transaction` in a command.
const TRANSACTION_FIELD: u32 = 2;
/// The number of the field `upserts` in a transaction.
const UPSERTS_FIELD: u32 = 4;

/// Returns the contents of one field of a message, and the message without that field. Returns `None` if the bytes
/// are not a message of fields with a length and with a number below 16.
fn split_field(message: &[u8], number: u32) -> Option<(BytesMut, Vec<&[u8]>)> {
    let (mut rest, mut contents) = (BytesMut::new(), Vec::new());
    let mut fields = Fields::new(0, message.len());
    while let Some(token) = fields.next(message).ok()? {
        match token {
            Token::Bytes { field, content } if field == number => contents.push(content),
            Token::Bytes { field, content } => {
                let field = u8::try_from(field).ok().filter(|field| *field < 16)?;
                put_len_field(&mut rest, field, content);
            }
            Token::Varint { .. } | Token::Fixed { .. } | Token::Group => return None,
        }
    }
    Some((rest, contents))
}

/// Decodes a cluster ID.
pub(crate) fn cluster_id_from_proto(bytes: &[u8]) -> Result<[u8; 16], RecordError> {
    bytes.try_into().map_err(|_| {
        RecordError::Content(format!("a cluster id has 16 bytes, this one has {}", bytes.len()))
    })
}

/// Encodes a command.
pub(crate) fn command_to_proto(ask: &Command) -> pb::Command {
    let command = match ask {
        Command::Form { cluster_id, incarnation } => pb::command::Command::Form(pb::Form {
            cluster_id: cluster_id.to_vec().into(),
            incarnation: incarnation.0,
        }),
        Command::Transact { transaction, .. } => {
            pb::command::Command::Transaction(transaction_to_proto(transaction))
        }
    };
    let (request, retention) = match ask {
        Command::Transact { request, retention, .. } => {
            (request.as_ref().map(request_to_proto), Some(retention.to_proto()))
        }
        Command::Form { .. } => (None, None),
    };
    pb::Command { command: Some(command), request, retention }
}

/// Encodes a request.
pub(crate) fn request_to_proto(request: &Request) -> pb::Request {
    let Request { id, repeated, since, digest } = *request;
    pb::Request { id: id.0.to_vec().into(), repeated, since: since.0, digest }
}

fn request_from_proto(message: pb::Request) -> Result<Request, RecordError> {
    let id = message.id[..].try_into().map_err(|_| {
        RecordError::Content(format!("a request id has 16 bytes, this one {}", message.id.len()))
    })?;
    let (repeated, since) = (message.repeated, Revision(message.since));
    Ok(Request { id: RequestId(id), repeated, since, digest: message.digest })
}

/// Returns a digest of the content of a transaction, without author, reason and time, and without the revision of
/// the access rules that permitted it: a retry may meet other rules. The digest is never 0.
pub(crate) fn digest(transaction: &pb::Transaction) -> u64 {
    fn add<'a, M: Message + 'a>(
        digest: &mut Xxh3,
        kind: u8,
        messages: impl IntoIterator<Item = &'a M>,
    ) {
        for message in messages {
            // Encode one message at a time: a transaction may be large.
            digest.update(&[kind]);
            digest.update(&message.encode_length_delimited_to_vec());
        }
    }
    let pb::Transaction { preconditions, deletes, prune, upserts, assignments, access, .. } =
        transaction;
    let pb::Transaction { keys, reseals, .. } = transaction;
    let is_content = |one: &&pb::Precondition| {
        !matches!(one.precondition, Some(pb::precondition::Precondition::Access(_)))
    };
    let mut digest = Xxh3::new();
    add(&mut digest, 0, preconditions.iter().filter(is_content));
    add(&mut digest, 1, deletes);
    add(&mut digest, 2, prune);
    for upsert in upserts {
        match &upsert.sealed {
            None => add(&mut digest, 3, [upsert]),
            Some(sealed) => add(&mut digest, 3, [&without_ciphertext(upsert, sealed)]),
        }
    }
    add(&mut digest, 4, assignments);
    add(&mut digest, 5, access);
    add(&mut digest, 6, keys);
    add(&mut digest, 7, reseals);
    digest.digest().max(1)
}

/// Returns a sealed upsert with what a retry of its write has in common: the digest of the body, but not its encrypted
/// form.
fn without_ciphertext(upsert: &pb::Upsert, sealed: &pb::SealedContent) -> pb::Upsert {
    let mac = sealed.sealed.as_ref().map(|sealed| sealed.mac.clone()).unwrap_or_default();
    let body = pb::Sealed { mac, ..pb::Sealed::default() };
    let sealed = pb::SealedContent { content: sealed.content.clone(), sealed: Some(body) };
    pb::Upsert { sealed: Some(sealed), ..upsert.clone() }
}

/// Returns a digest of the content of a request whose transaction depends on the state. The digest is
/// never 0.
pub(crate) fn digest_of_content(content: &[u8]) -> u64 {
    xxh3_64(content).max(1)
}

/// Encodes a transaction. Bodies are shared, not copied.
pub(crate) fn transaction_to_proto(transaction: &Transaction) -> pb::Transaction {
    pb::Transaction {
        preconditions: transaction.preconditions.iter().map(precondition_to_proto).collect(),
        deletes: transaction.deletes.iter().map(|(scope, key)| ref_to_proto(scope, key)).collect(),
        prune: transaction.prune.iter().map(ToString::to_string).collect(),
        upserts: transaction.upserts.iter().map(upsert_to_proto).collect(),
        assignments: transaction.assignments.iter().map(assignment_op_to_proto).collect(),
        meta: Some(Box::new(meta_to_proto(&transaction.meta))),
        access: transaction.access.iter().map(access_op_to_proto).collect(),
        keys: transaction.keys.iter().map(key_op_to_proto).collect(),
        reseals: transaction.reseals.iter().map(reseal_to_proto).collect(),
    }
}

fn upsert_to_proto(upsert: &Upsert) -> pb::Upsert {
    let (content, sealed) = sealed_or_plain(draft_to_proto(&upsert.draft), &upsert.draft.sealed);
    let (scope, key) = (upsert.scope.to_string(), Some(key_to_proto(&upsert.draft.key)));
    pb::Upsert { scope, key, content, sealed }
}

/// Returns the encoded form of a resource: plain, or sealed and without its plain body.
fn sealed_or_plain(
    content: pb::Content,
    sealed: &Option<Sealed>,
) -> (Option<pb::Content>, Option<pb::SealedContent>) {
    let Some(sealed) = sealed else { return (Some(content), None) };
    let content = Some(pb::Content { body: Bytes::new(), ..content });
    (None, Some(pb::SealedContent { content, sealed: Some(sealed_to_proto(sealed)) }))
}

fn reseal_to_proto(reseal: &Reseal) -> pb::Reseal {
    pb::Reseal {
        resource: Some(ref_to_proto(&reseal.scope, &reseal.key)),
        version: Some(version_to_proto(reseal.version)),
        sealed: Some(sealed_to_proto(&reseal.sealed)),
    }
}

fn reseal_from_proto(message: pb::Reseal) -> Result<Reseal, RecordError> {
    let resource =
        message.resource.ok_or_else(|| RecordError::missing("the resource of a reseal"))?;
    let version = message.version.ok_or_else(|| RecordError::missing("the version of a reseal"))?;
    let (scope, key) = ref_from_proto(resource)?;
    let sealed = sealed_from_proto(message.sealed)?;
    Ok(Reseal { scope, key, version: version_from_proto(&version), sealed })
}

pub(crate) fn transaction_from_proto(message: pb::Transaction) -> Result<Transaction, RecordError> {
    let mut last = None;
    let scope = |name: &String| {
        ScopeName::new(name).map_err(|error| RecordError::invalid("a prune", error))
    };
    Ok(Transaction {
        preconditions: collect(message.preconditions, precondition_from_proto)?,
        deletes: collect(message.deletes, ref_from_proto)?,
        prune: message.prune.iter().map(scope).collect::<Result<_, _>>()?,
        upserts: collect(message.upserts, |upsert| upsert_from_proto(upsert, &mut last))?,
        assignments: collect(message.assignments, assignment_op_from_proto)?,
        meta: meta_from_proto(*message.meta.unwrap_or_default()),
        access: collect(message.access, access_op_from_proto)?,
        keys: collect(message.keys, key_op_from_proto)?,
        reseals: collect(message.reseals, reseal_from_proto)?,
    })
}

fn collect<A, B>(
    items: Vec<A>,
    convert: impl FnMut(A) -> Result<B, RecordError>,
) -> Result<Vec<B>, RecordError> {
    items.into_iter().map(convert).collect()
}

/// Decodes an upsert. `last` is the scope of the one before, which most upserts share.
fn upsert_from_proto(
    message: pb::Upsert,
    last: &mut Option<ScopeName>,
) -> Result<Upsert, RecordError> {
    let scope = match last {
        Some(last) if last.as_str() == message.scope => last.clone(),
        _ => ScopeName::new(&message.scope)
            .map_err(|error| RecordError::invalid("an upsert", error))?,
    };
    *last = Some(scope.clone());
    let key = key_from_proto(
        message.key.as_ref().ok_or_else(|| RecordError::missing("the key of an upsert"))?,
    )?;
    Ok(Upsert { scope, draft: draft_of(key, message.content, message.sealed)? })
}

fn precondition_to_proto(precondition: &Precondition) -> pb::Precondition {
    use pb::precondition;
    let precondition = match precondition {
        Precondition::Revision(revision) => precondition::Precondition::Revision(revision.0),
        Precondition::Access(revision) => precondition::Precondition::Access(revision.0),
        Precondition::Resource { scope, key, expectation } => {
            precondition::Precondition::Resource(expected_to_proto(scope, key, expectation))
        }
    };
    pb::Precondition { precondition: Some(precondition) }
}

fn expected_to_proto(
    scope: &ScopeName,
    key: &ResourceKey,
    expectation: &Expectation,
) -> pb::precondition::Resource {
    use pb::precondition::resource;
    let expectation = match expectation {
        Expectation::Absent => resource::Expectation::Absent(pb::Absent {}),
        Expectation::Present => resource::Expectation::Present(pb::Present {}),
        Expectation::Version(version) => resource::Expectation::Version(version_to_proto(*version)),
    };
    pb::precondition::Resource {
        resource: Some(ref_to_proto(scope, key)),
        expectation: Some(expectation),
    }
}

fn precondition_from_proto(message: pb::Precondition) -> Result<Precondition, RecordError> {
    use pb::precondition;
    match message.precondition.ok_or_else(|| RecordError::missing("the kind of a precondition"))? {
        precondition::Precondition::Revision(revision) => {
            Ok(Precondition::Revision(Revision(revision)))
        }
        precondition::Precondition::Access(revision) => {
            Ok(Precondition::Access(Revision(revision)))
        }
        precondition::Precondition::Resource(message) => {
            let (scope, key, expectation) = expected_from_proto(message)?;
            Ok(Precondition::Resource { scope, key, expectation })
        }
    }
}

fn expected_from_proto(
    message: pb::precondition::Resource,
) -> Result<(ScopeName, ResourceKey, Expectation), RecordError> {
    use pb::precondition::resource;
    let resource =
        message.resource.ok_or_else(|| RecordError::missing("the resource of a precondition"))?;
    let (scope, key) = ref_from_proto(resource)?;
    let expectation = message
        .expectation
        .ok_or_else(|| RecordError::missing("the expectation of a precondition"))?;
    let expectation = match expectation {
        resource::Expectation::Absent(_) => Expectation::Absent,
        resource::Expectation::Present(_) => Expectation::Present,
        resource::Expectation::Version(version) => {
            Expectation::Version(version_from_proto(&version))
        }
    };
    Ok((scope, key, expectation))
}

/// Encodes a refusal.
pub(crate) fn refusal_to_proto(refusal: &Refusal) -> pb::Refusal {
    use pb::refusal;
    let refusal = match refusal {
        Refusal::RevisionAhead { expected, current } => {
            refusal::Refusal::Ahead(refusal::RevisionAhead {
                expected: expected.0,
                current: current.0,
            })
        }
        Refusal::RevisionBehind { expected, scope, changed } => {
            refusal::Refusal::Behind(refusal::RevisionBehind {
                expected: expected.0,
                scope: scope.as_ref().map(ToString::to_string),
                changed: changed.0,
            })
        }
        Refusal::Resource { scope, key, expectation, found } => {
            refusal::Refusal::Resource(refusal::ResourceDiffers {
                expected: Some(expected_to_proto(scope, key, expectation)),
                found: found.map(version_to_proto),
            })
        }
        Refusal::AccessChanged { checked, changed } => {
            refusal::Refusal::AccessChanged(refusal::AccessChanged {
                checked: checked.0,
                changed: changed.0,
            })
        }
        Refusal::AccessTooMany(limit) => {
            use refusal::access_too_many::Limit;
            let limit = match limit {
                AccessLimit::Rules => Limit::Rules,
                AccessLimit::Tokens => Limit::Tokens,
                AccessLimit::TokensPerName => Limit::TokensPerName,
                AccessLimit::Quotas => Limit::Quotas,
            };
            refusal::Refusal::AccessTooMany(refusal::AccessTooMany { limit: limit.into() })
        }
        Refusal::Quota(exceeded) => {
            refusal::Refusal::QuotaExceeded(exceeded_to_proto(exceeded, ref_to_proto))
        }
        Refusal::Keys(keys) => refusal::Refusal::Keys(keys_refusal_to_proto(keys)),
        Refusal::Variants { scope, key, reason } => {
            refusal::Refusal::Variants(refusal::VariantsConflict {
                scope: scope.to_string(),
                key: Some(key_to_proto(key)),
                reason: reason.clone(),
            })
        }
    };
    pb::Refusal { refusal: Some(refusal) }
}

/// Decodes a refusal.
pub(crate) fn refusal_from_proto(message: pb::Refusal) -> Result<Refusal, RecordError> {
    use pb::refusal;
    Ok(match message.refusal.ok_or_else(|| RecordError::missing("the kind of a refusal"))? {
        refusal::Refusal::Ahead(refusal::RevisionAhead { expected, current }) => {
            Refusal::RevisionAhead { expected: Revision(expected), current: Revision(current) }
        }
        refusal::Refusal::Behind(refusal::RevisionBehind { expected, scope, changed }) => {
            Refusal::RevisionBehind {
                expected: Revision(expected),
                scope: scope
                    .map(|name| ScopeName::new(&name))
                    .transpose()
                    .map_err(|error| RecordError::invalid("a refusal", error))?,
                changed: Revision(changed),
            }
        }
        refusal::Refusal::Resource(refusal::ResourceDiffers { expected, found }) => {
            let expected =
                expected.ok_or_else(|| RecordError::missing("the expectation of a refusal"))?;
            let (scope, key, expectation) = expected_from_proto(expected)?;
            let found = found.as_ref().map(version_from_proto);
            Refusal::Resource { scope, key, expectation, found }
        }
        refusal::Refusal::AccessChanged(refusal::AccessChanged { checked, changed }) => {
            Refusal::AccessChanged { checked: Revision(checked), changed: Revision(changed) }
        }
        refusal::Refusal::AccessTooMany(message) => {
            use refusal::access_too_many::Limit;
            Refusal::AccessTooMany(match message.limit() {
                Limit::Rules => AccessLimit::Rules,
                Limit::Tokens => AccessLimit::Tokens,
                Limit::TokensPerName => AccessLimit::TokensPerName,
                Limit::Quotas => AccessLimit::Quotas,
                Limit::Unspecified => return Err(RecordError::missing("the limit of a refusal")),
            })
        }
        refusal::Refusal::QuotaExceeded(message) => {
            Refusal::Quota(exceeded_from_proto(message, ref_from_proto)?)
        }
        refusal::Refusal::Keys(keys) => Refusal::Keys(keys_refusal_from_proto(&keys)?),
        refusal::Refusal::Variants(refusal::VariantsConflict { scope, key, reason }) => {
            let key = key.ok_or_else(|| RecordError::missing("the key of a refusal"))?;
            Refusal::Variants {
                scope: ScopeName::new(&scope)
                    .map_err(|error| RecordError::invalid("a refusal", error))?,
                key: key_from_proto(&key)?,
                reason,
            }
        }
    })
}

fn key_to_proto(key: &ResourceKey) -> pb::ResourceKey {
    pb::ResourceKey { type_url: key.type_url.to_string(), name: key.name.as_str().to_owned() }
}

fn key_from_proto(message: &pb::ResourceKey) -> Result<ResourceKey, RecordError> {
    Ok(ResourceKey {
        type_url: TypeUrl::new(&message.type_url)
            .map_err(|error| RecordError::invalid("a key", error))?,
        name: ResourceName::stored(&message.name)
            .map_err(|error| RecordError::invalid("a key", error))?,
    })
}

fn ref_to_proto(scope: &ScopeName, key: &ResourceKey) -> pb::ResourceRef {
    pb::ResourceRef { scope: scope.to_string(), key: Some(key_to_proto(key)) }
}

/// Decodes the scope and the key of a resource.
pub(crate) fn ref_from_proto(
    message: pb::ResourceRef,
) -> Result<(ScopeName, ResourceKey), RecordError> {
    let scope = ScopeName::new(&message.scope)
        .map_err(|error| RecordError::invalid("a reference", error))?;
    let key = message.key.ok_or_else(|| RecordError::missing("the key of a reference"))?;
    Ok((scope, key_from_proto(&key)?))
}

/// Encodes a version.
pub(crate) fn version_to_proto(version: Version) -> pb::Version {
    pb::Version { revision: version.revision.0, tag: version.tag }
}

/// Decodes a version.
pub(crate) fn version_from_proto(message: &pb::Version) -> Version {
    Version { revision: Revision(message.revision), tag: message.tag }
}

/// Encodes the parts of a draft other than its key. The body is shared, not copied.
fn draft_to_proto(draft: &ResourceDraft) -> pb::Content {
    let labels = draft.labels.iter().map(|(k, v)| (k.as_str(), v.as_str()));
    content_to_proto(draft.body.clone(), &draft.aliases, draft.ttl, labels, &draft.children)
}

/// Encodes a resource without its key. The body is shared, not copied. Of a sealed resource, only the sealed form is
/// encoded.
pub(crate) fn resource_to_proto(resource: &Resource) -> pb::ResourceRecord {
    let (aliases, children) = (resource.aliases(), resource.children());
    let body = match resource.sealed() {
        None => resource.body().unwrap_or_default(),
        Some(_) => Bytes::new(),
    };
    let content = content_to_proto(body, aliases, resource.ttl(), resource.labels(), children);
    let (content, sealed) = sealed_or_plain(content, &resource.sealed().cloned());
    pb::ResourceRecord { version: Some(version_to_proto(resource.version())), content, sealed }
}

fn content_to_proto<'a>(
    body: Bytes,
    aliases: &[ResourceName],
    ttl: Option<Duration>,
    labels: impl Iterator<Item = (&'a str, &'a str)>,
    children: &[ResourceKey],
) -> pb::Content {
    let label = |(k, v): (&str, &str)| pb::Label { key: k.to_owned(), value: v.to_owned() };
    pb::Content {
        body,
        aliases: aliases.iter().map(ToString::to_string).collect(),
        ttl: ttl.map(|ttl| pb::Ttl { seconds: ttl.as_secs(), nanos: ttl.subsec_nanos() }),
        labels: labels.map(label).collect(),
        children: children.iter().map(key_to_proto).collect(),
    }
}

/// Builds a draft from its key and its decoded content, of which there is one.
fn draft_of(
    key: ResourceKey,
    content: Option<pb::Content>,
    sealed: Option<pb::SealedContent>,
) -> Result<ResourceDraft, RecordError> {
    match (content, sealed) {
        (Some(content), None) => draft_from_proto(key, content),
        (None, Some(sealed)) => {
            let content = sealed.content.unwrap_or_default();
            let content = pb::Content { body: Bytes::new(), ..content };
            let sealed = Some(sealed_from_proto(sealed.sealed)?);
            Ok(ResourceDraft { sealed, ..draft_from_proto(key, content)? })
        }
        (None, None) => Err(RecordError::missing("the content of a resource")),
        (Some(_), Some(_)) => {
            Err(RecordError::Content("a resource has a plain and a sealed body".to_owned()))
        }
    }
}

/// Decodes a resource.
pub(crate) fn resource_from_proto(
    of: ResourceKey,
    message: pb::ResourceRecord,
) -> Result<Resource, RecordError> {
    let version = version_from_proto(&message.version.unwrap_or_default());
    let draft = draft_of(of, message.content, message.sealed)?;
    Ok(Resource::with_version(&draft, version))
}

fn draft_from_proto(key: ResourceKey, content: pb::Content) -> Result<ResourceDraft, RecordError> {
    let alias = |name: &String| {
        ResourceName::new(name).map_err(|error| RecordError::invalid("an alias", error))
    };
    let ttl = match content.ttl {
        Some(ttl) if ttl.nanos >= 1_000_000_000 => {
            return Err(RecordError::Content(format!(
                "a TTL has {} ns, but must have fewer than 1000000000",
                ttl.nanos
            )));
        }
        ttl => ttl.map(|ttl| Duration::new(ttl.seconds, ttl.nanos)),
    };
    Ok(ResourceDraft {
        key,
        body: content.body,
        sealed: None,
        aliases: content.aliases.iter().map(alias).collect::<Result<_, _>>()?,
        ttl,
        labels: labels_from_proto(content.labels),
        children: content.children.iter().map(key_from_proto).collect::<Result<_, _>>()?,
    })
}

fn labels_to_proto(labels: &BTreeMap<String, String>) -> Vec<pb::Label> {
    labels.iter().map(|(key, value)| pb::Label { key: key.clone(), value: value.clone() }).collect()
}

fn labels_from_proto(labels: Vec<pb::Label>) -> BTreeMap<String, String> {
    labels.into_iter().map(|label| (label.key, label.value)).collect()
}

// === metadata ===

/// Encodes the metadata of a transaction.
pub(crate) fn meta_to_proto(meta: &TransactionMeta) -> pb::TransactionMeta {
    pb::TransactionMeta {
        label: meta.label.as_deref().map(str::to_owned),
        author: meta.author.clone(),
        reason: meta.reason.clone(),
        time_ms: meta.time_ms,
        validation: meta.validation.clone(),
        confirmed: meta.confirmed.clone(),
        source: meta.source.clone(),
        labels: labels_to_proto(&meta.labels),
    }
}

/// Decodes the metadata of a transaction.
pub(crate) fn meta_from_proto(message: pb::TransactionMeta) -> TransactionMeta {
    TransactionMeta {
        label: message.label.map(Arc::from),
        author: message.author,
        reason: message.reason,
        time_ms: message.time_ms,
        validation: message.validation,
        confirmed: message.confirmed,
        source: message.source,
        labels: labels_from_proto(message.labels),
    }
}
