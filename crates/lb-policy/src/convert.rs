//! The walk over a list of policies, which selects and converts the first supported policy.

use std::fmt;

use crate::{
    config::LbConfig,
    error::{ConvertError, Reason, join},
    proto::LoadBalancingPolicy,
};
use prost::Message;

/// A function from the bytes of a policy's message to its configuration. `None` skips the policy.
pub(crate) type Converter =
    dyn Fn(&[u8], &Context<'_>) -> Result<Option<LbConfig>, ConvertError> + Send + Sync;

/// The policies that a client supports.
pub(crate) trait Support: fmt::Debug {
    /// Returns the converter of a message type.
    fn converter(&self, type_name: &str) -> Option<&Converter>;
    /// Returns whether the client's LB policy registry contains a name.
    fn has_policy(&self, name: &str) -> bool;
    /// Returns the maximum number of nested policies.
    fn levels_max(&self) -> usize;
    /// Returns whether an entry without a type is an error. Otherwise it is skipped.
    fn rejects_empty_entries(&self) -> bool;
}

/// The maximum number of nested policies; the outermost policy is level 1.
pub const LEVELS_MAX: usize = 16;
/// The maximum size of a message in bytes: gRPC clients receive no larger response by default.
pub const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The position of a converter in the conversion.
#[derive(Debug)]
pub struct Context<'a> {
    support: &'a dyn Support,
    /// The level of the list that contains the policy.
    level: usize,
    /// The path of the policy, which ends with the short name of its type.
    path: String,
}

impl Context<'_> {
    /// Converts the child policies of a field. A missing child is an error.
    ///
    /// # Errors
    /// Fails if the list contains no supported policy, cannot be converted, or is nested too deeply.
    pub fn child(
        &self,
        field: &str,
        policy: Option<&LoadBalancingPolicy>,
    ) -> Result<LbConfig, ConvertError> {
        let path = self.field(field);
        match policy {
            Some(policy) => walk(self.support, policy, self.level + 1, &path),
            None => Err(ConvertError::invalid(path, "the child policy is missing")),
        }
    }

    /// Creates an error for a field of the policy.
    pub fn invalid(&self, field: &str, reason: impl Into<String>) -> ConvertError {
        ConvertError::invalid(self.field(field), reason)
    }

    /// Returns the path of a field of the policy.
    pub(crate) fn field(&self, field: &str) -> String {
        join(&self.path, field)
    }

    /// Returns whether the client's LB policy registry contains a name.
    pub(crate) fn has_policy(&self, name: &str) -> bool {
        self.support.has_policy(name)
    }
}

/// Converts the first supported policy of a list.
pub(crate) fn walk(
    support: &dyn Support,
    list: &LoadBalancingPolicy,
    level: usize,
    path: &str,
) -> Result<LbConfig, ConvertError> {
    let max = support.levels_max();
    if level > max {
        return Err(ConvertError { path: path.to_owned(), reason: Reason::TooDeep { max } });
    }
    let mut types = Vec::new();
    for (index, policy) in list.policies.iter().enumerate() {
        let config = policy.typed_extension_config.as_ref();
        let Some(any) = config.and_then(|config| config.typed_config.as_ref()) else {
            if support.rejects_empty_entries() {
                let path = join(path, &format!("policies[{index}]"));
                return Err(ConvertError::invalid(
                    path,
                    "C-core rejects entries without `typed_config`",
                ));
            }
            types.push("(no typed_config)".to_owned());
            continue;
        };
        let type_name = type_name(&any.type_url);
        let Some(converter) = support.converter(type_name) else {
            types.push(type_name.to_owned());
            continue;
        };
        let short = type_name.rsplit('.').next().unwrap_or(type_name);
        let path = join(path, &format!("policies[{index}].{short}"));
        check_size(any.value.len(), &path)?;
        match converter(&any.value, &Context { support, level, path })? {
            Some(converted) => return Ok(converted),
            None => types.push(format!("{type_name} of an unknown policy")),
        }
    }
    Err(ConvertError { path: path.to_owned(), reason: Reason::NoSupportedPolicy { types } })
}

/// Decodes the message of a policy.
pub(crate) fn decode<M: Message + Default>(
    bytes: &[u8],
    context: &Context<'_>,
) -> Result<M, ConvertError> {
    decode_at(bytes, &context.path)
}

/// Decodes a message of bounded size.
pub(crate) fn decode_at<M: Message + Default>(bytes: &[u8], path: &str) -> Result<M, ConvertError> {
    check_size(bytes.len(), path)?;
    M::decode(bytes).map_err(|error| ConvertError {
        path: path.to_owned(),
        reason: Reason::Malformed(format!("cannot decode the message: {error}")),
    })
}

fn check_size(bytes: usize, path: &str) -> Result<(), ConvertError> {
    if bytes <= MESSAGE_BYTES_MAX {
        return Ok(());
    }
    let text = format!("the message has {bytes} bytes, the maximum is {MESSAGE_BYTES_MAX}");
    Err(ConvertError { path: path.to_owned(), reason: Reason::Malformed(text) })
}

/// Returns the name that a type URL ends with.
pub(crate) fn type_name(type_url: &str) -> &str {
    type_url.rsplit('/').next().unwrap_or(type_url)
}
