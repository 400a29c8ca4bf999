//! The transaction of a deletion: the named resources, each in its expected version.

use std::collections::BTreeMap;

use chancery_model::{
    DynamicParameters, Expectation, Precondition, ResourceKey, ScopeName, State, Transaction,
    Version,
};
use chancery_proto::admin::v1 as pb;

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
