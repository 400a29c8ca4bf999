//! The transaction of a deletion: the named resources, each in its expected version.

use std::collections::{BTreeMap, BTreeSet};

use chancery_admin_proto::v1 as pb;
use chancery_model::{
    DynamicParameters, Expectation, Precondition, ResourceKey, Revision, ScopeName, State,
    Transaction, Version,
};
use prost::Message;

use crate::{
    AdminError,
    resources::{mismatch, parse_type, stored_name},
};

/// Returns a transaction that deletes resources, each in its expected version.
pub(crate) fn deletion(
    resources: &[pb::ResourceRef],
    scope: &ScopeName,
    mut transaction: Transaction,
    state: &State,
) -> Result<Transaction, AdminError> {
    let mut expected = BTreeMap::new();
    for resource in resources {
        let (key, expectation) = wanted(resource, scope, state)?;
        match expected.insert(key, expectation) {
            Some(other) if other != expectation => {
                let name = &resource.name;
                let text = format!(
                    "two different versions of {name:?} are expected; a resource has only one version"
                );
                return Err(AdminError::Parameter(text));
            }
            _ => {}
        }
    }
    if expected.is_empty() {
        return Err(AdminError::Parameter("there is no resource to delete".to_owned()));
    }
    for (key, expectation) in expected {
        let scope = scope.clone();
        transaction.deletes.push((scope.clone(), key.clone()));
        transaction.preconditions.push(Precondition::Resource { scope, key, expectation });
    }
    Ok(transaction)
}

/// Returns the content of a request to delete, which does not depend on the state. Requests that differ only in
/// the order of the resources or in the spelling of their types have the same content.
pub(crate) fn content(
    resources: &[pb::ResourceRef],
    scope: &ScopeName,
    if_revision: Option<Revision>,
) -> Result<Vec<u8>, AdminError> {
    let full = |resource: &pb::ResourceRef| {
        let r#type = parse_type(&resource.r#type)?.as_str().to_owned();
        Ok(pb::ResourceRef { r#type, ..resource.clone() }.encode_to_vec())
    };
    let resources = resources.iter().map(full).collect::<Result<BTreeSet<_>, AdminError>>()?;
    let if_revision = if_revision.map(|revision| revision.0);
    let options = pb::WriteOptions { if_revision, ..pb::WriteOptions::default() };
    let mut content = scope.as_str().as_bytes().to_vec();
    for part in resources.into_iter().chain([options.encode_to_vec()]) {
        content.extend((part.len() as u64).to_le_bytes());
        content.extend(part);
    }
    Ok(content)
}

/// Returns the resource to delete, and the expectation about it.
fn wanted(
    resource: &pb::ResourceRef,
    scope: &ScopeName,
    state: &State,
) -> Result<(ResourceKey, Expectation), AdminError> {
    let type_url = parse_type(&resource.r#type)?;
    let name = stored_name(state, Some(scope), &type_url, &resource.name)?;
    let key = ResourceKey { type_url, name };
    let key = variant_key(state, scope, key, &resource.dynamic_parameters)?;
    let expectation = match resource.if_version.as_str() {
        "" => Expectation::Present,
        version => Expectation::Version(Version::parse(version).ok_or_else(|| {
            AdminError::Parameter(format!("{version:?} is not a version of a resource"))
        })?),
    };
    Ok((key, expectation))
}

/// Returns the key of the variant that matches the parameters, or the key itself if the name has no
/// variants.
fn variant_key(
    state: &State,
    scope: &ScopeName,
    key: ResourceKey,
    parameters: &DynamicParameters,
) -> Result<ResourceKey, AdminError> {
    let collection = state.collection(scope, &key.type_url);
    let variants = collection.map_or(&[][..], |found| found.variants.of(key.name.as_str()));
    if let Some(variant) = variants.iter().find(|variant| variant.matches(parameters)) {
        return Ok(ResourceKey { name: variant.name().clone(), ..key });
    }
    // A resource without constraints is for all parameters.
    let place = format!(" in scope {scope:?}");
    mismatch(&key, &place, variants, parameters)
        .map_or(Ok(key), |reason| Err(AdminError::NotFound(reason)))
}
