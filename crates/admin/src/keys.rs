//! `chancery.admin.v1.KeysService`: the keys with which secrets are sealed.
//!
//! Resealing is driven by its caller: each call seals a bounded number of resources and returns a position. The caller
//! chooses the rate, and may stop or repeat at any time.

use std::ops::Bound::{Included, Unbounded};

use bytes::Bytes;
use chancery_admin_proto::v1 as pb;
use chancery_model::{
    DataKeyId, KeyOp, Keys, Outcome, Reseal, Resource, ResourceKey, ResourceName, ScopeName, State,
    Transaction, TypeUrl, types,
};
use chancery_secrets::{KeysError, Secrets};
use prost::Message;

use crate::{
    AdminError,
    ctx::Ctx,
    deps::Freshness,
    record::Operation,
    work::Size,
    write,
    write::{not_committed, transaction},
    write_input::Input,
    write_options::{Checked, check},
};

/// The default and the maximum number of resources that one call reseals.
const RESEALED_DEFAULT: usize = 100;
const RESEALED_MAX: usize = 1_000;
/// The maximum size of the bodies that one call reseals, in bytes.
const RESEALED_BYTES_MAX: usize = 4 << 20;
/// The maximum number of resources at which one call looks.
const PASSED_MAX: usize = 50_000;

pub(crate) async fn keys_status(
    ctx: &Ctx,
    request: pb::KeysStatusRequest,
) -> Result<pb::KeysStatusResponse, AdminError> {
    let state = ctx.deps.state(Freshness::of(request.stale)).await?;
    let (statuses, failure) = ctx.deps.replica.secrets().status(&state.keys);
    let digests = statuses.iter().find(|status| status.id.is_none());
    let keys = statuses.iter().filter_map(|status| {
        let id = status.id?;
        Some(pb::DataKeyStatus {
            id: id.0,
            kek: status.kek.clone(),
            created_ms: state.keys.data_key(id)?.created_ms,
            resources: state.n_sealed_by(id),
            unwrapped: status.is_unwrapped,
        })
    });
    let collections = || state.scopes.values().flat_map(|scope| scope.types.values());
    let secrets = collections().filter(|collection| types::is_secret(&collection.type_url));
    let plain = secrets.map(|all| all.resources.len() as u64 - all.sealed.n_sealed());
    let (sealed, unopened) = state.n_sealed();
    Ok(pb::KeysStatusResponse {
        has_source: ctx.deps.replica.secrets().has_source(),
        failure: failure.unwrap_or_default(),
        keys: keys.collect(),
        digest_kek: digests.map(|status| status.kek.clone()).unwrap_or_default(),
        digest_unwrapped: digests.is_some_and(|status| status.is_unwrapped),
        sealed,
        unopened,
        plain_secrets: plain.sum(),
    })
}

pub(crate) async fn rotate_keys(
    ctx: &Ctx,
    request: pb::RotateKeysRequest,
) -> Result<pb::WriteResponse, AdminError> {
    let checked = check(request.options, ctx.source())?;
    let state = ctx.deps.state_to_write().await?;
    let secrets = ctx.deps.replica.secrets();
    let op =
        if state.keys.exist() { secrets.rotate(&state.keys).await } else { secrets.create().await };
    change_keys(ctx, checked, vec![op.map_err(|error| unavailable(&error))?]).await
}

pub(crate) async fn rewrap_keys(
    ctx: &Ctx,
    request: pb::RewrapKeysRequest,
) -> Result<pb::WriteResponse, AdminError> {
    let checked = check(request.options, ctx.source())?;
    let state = ctx.deps.state_to_write().await?;
    let ops = ctx.deps.replica.secrets().rewrap(&state.keys).await;
    change_keys(ctx, checked, ops.map_err(|error| unavailable(&error))?).await
}

pub(crate) async fn retire_key(
    ctx: &Ctx,
    request: pb::RetireKeyRequest,
) -> Result<pb::WriteResponse, AdminError> {
    let checked = check(request.options, ctx.source())?;
    change_keys(ctx, checked, vec![KeyOp::Retire(DataKeyId(request.id))]).await
}

async fn change_keys(
    ctx: &Ctx,
    mut checked: Checked,
    keys: Vec<KeyOp>,
) -> Result<pb::WriteResponse, AdminError> {
    // A retry makes other keys. Which request it repeats therefore does not follow from the transaction.
    let kinds = keys.iter().map(|op| match op {
        KeyOp::Create { .. } | KeyOp::Add(_) => 1,
        KeyOp::Rewrap { .. } => 2,
        KeyOp::Retire(_) => 3,
    });
    checked.content = Some([b"keys".to_vec(), kinds.take(1).collect()].concat());
    if checked.meta.reason.is_empty() {
        checked.meta.reason = keys.first().map(reason).unwrap_or_default();
    }
    let transaction = Transaction { keys, ..transaction(&checked) };
    write::commit(ctx, transaction, checked, Input::default()).await
}

/// Returns the record of [`reseal_secrets`]. There is one for all calls of a pass.
pub(crate) fn record_reseal(request: &pb::ResealSecretsRequest) -> Option<Operation> {
    request.from.is_empty().then(|| Operation::new("keys.reseal"))
}

/// Seals some resources again.
pub(crate) async fn reseal_secrets(
    ctx: &Ctx,
    request: pb::ResealSecretsRequest,
) -> Result<pb::ResealSecretsResponse, AdminError> {
    let from = if request.from.is_empty() {
        None
    } else {
        // The first call of a pass has the only record.
        ctx.call().count_write()?;
        Some(Position::read(request.from).ok_or_else(|| {
            AdminError::Parameter("`from` is not the `next` of an earlier answer".to_owned())
        })?)
    };
    let max = match request.resources_max as usize {
        0 => RESEALED_DEFAULT,
        max => max.min(RESEALED_MAX),
    };
    let state = ctx.deps.state_to_write().await?;
    if !state.keys.exist() {
        let text = "the cluster has no keys; create them with `chancery keys rotate`";
        return Err(AdminError::Precondition(text.to_owned()));
    }
    let secrets = ctx.deps.replica.secrets().clone();
    let find = move || Batch::find(&state, &secrets, from.as_ref(), max);
    let batch = ctx.deps.work.run(Size::Large, find).await?.map_err(|error| unavailable(&error))?;
    let Batch { reseals, next, unopened, .. } = batch;
    let resealed = reseals.len() as u64;
    if resealed > 0 {
        let transaction = Transaction { reseals, ..Transaction::default() };
        match ctx.deps.replica.transact(transaction).await {
            Ok(Outcome::Committed(_)) => {}
            Ok(Outcome::Refused(refusal)) => return Err(refusal.into()),
            Err(error) => return Err(not_committed(&error)),
        }
    }
    let next = next.map(|next| next.encode_to_vec()).unwrap_or_default();
    Ok(pb::ResealSecretsResponse { resealed, next: next.into(), unopened })
}

/// Returns what the history says of a change of keys without a reason of its author.
fn reason(op: &KeyOp) -> String {
    match op {
        KeyOp::Create { .. } => "create the keys of secrets".to_owned(),
        KeyOp::Add(key) => format!("add data key {}", key.id.0),
        KeyOp::Rewrap { to, .. } => format!("encrypt the keys with {}", to.kek),
        KeyOp::Retire(id) => format!("retire data key {}", id.0),
    }
}

fn unavailable(error: &KeysError) -> AdminError {
    AdminError::Unavailable(error.to_string())
}

/// A position: the resource at which a pass goes on.
#[derive(Clone, PartialEq, Message)]
struct Position {
    #[prost(string, tag = "1")]
    scope: String,
    #[prost(string, tag = "2")]
    type_url: String,
    #[prost(string, tag = "3")]
    name: String,
}

impl Position {
    fn read(bytes: Bytes) -> Option<(ScopeName, ResourceKey)> {
        let Self { scope, type_url, name } = Self::decode(bytes).ok()?;
        let (type_url, name) = (TypeUrl::new(&type_url).ok()?, ResourceName::stored(&name).ok()?);
        Some((ScopeName::new(&scope).ok()?, ResourceKey { type_url, name }))
    }

    fn of(scope: &ScopeName, key: &ResourceKey) -> Self {
        let (type_url, name) = (key.type_url.to_string(), key.name.as_str().to_owned());
        Self { scope: scope.to_string(), type_url, name }
    }
}

/// Resources that get another sealed form.
#[derive(Default)]
struct Batch {
    reseals: Vec<Reseal>,
    /// `None` after the last resource.
    next: Option<Position>,
    unopened: u64,
    passed: usize,
    bytes: usize,
}

impl Batch {
    /// Finds the next resources that are not sealed by the newest key.
    fn find(
        state: &State,
        secrets: &Secrets,
        from: Option<&(ScopeName, ResourceKey)>,
        max: usize,
    ) -> Result<Self, KeysError> {
        let mut batch = Self::default();
        let scopes = (from.map_or(Unbounded, |(scope, _)| Included(scope)), Unbounded);
        for (scope, content) in state.scopes.range::<_, ScopeName>(scopes) {
            let from = from.filter(|(first, _)| first == scope).map(|(_, key)| key);
            let types = (from.map_or(Unbounded, |key| Included(&key.type_url)), Unbounded);
            for (type_url, collection) in content.types.range::<TypeUrl, _>(types) {
                let from = from.filter(|key| key.type_url == *type_url);
                let names = (from.map_or(Unbounded, |key| Included(&key.name)), Unbounded);
                for (name, resource) in collection.resources.range::<_, ResourceName>(names) {
                    let key = ResourceKey { type_url: type_url.clone(), name: name.clone() };
                    if batch.is_full(max) {
                        batch.next = Some(Position::of(scope, &key));
                        return Ok(batch);
                    }
                    batch.pass(&state.keys, secrets, scope, key, resource)?;
                }
            }
        }
        Ok(batch)
    }

    fn is_full(&self, max: usize) -> bool {
        self.reseals.len() >= max || self.bytes >= RESEALED_BYTES_MAX || self.passed >= PASSED_MAX
    }

    fn pass(
        &mut self,
        keys: &Keys,
        secrets: &Secrets,
        scope: &ScopeName,
        key: ResourceKey,
        resource: &Resource,
    ) -> Result<(), KeysError> {
        self.passed += 1;
        self.unopened += u64::from(!resource.is_opened());
        if let Some(sealed) = secrets.reseal(keys, scope, &key, resource)? {
            self.bytes += resource.body_len();
            let (scope, version) = (scope.clone(), resource.version());
            self.reseals.push(Reseal { scope, key, version, sealed });
        }
        Ok(())
    }
}
