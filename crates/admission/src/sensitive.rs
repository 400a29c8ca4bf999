//! Fields that hold secrets: a refusal must not carry what is in them into logs and terminals.
//!
//! Envoy's API marks them (`udpa.annotations.sensitive`): private keys, passwords, tokens.

use std::{collections::HashSet, sync::LazyLock};

use chancery_proto::envoy_pool;
use prost_reflect::FieldDescriptor;

/// What stands for a secret in what is read from a store.
pub(crate) const MARK: &str = "[redacted]";

/// What is said of it where a secret belongs.
pub(crate) const IS_MARK: &str = "has \"[redacted]\" in place of a secret: it was read from the server, \
                                  which never shows secrets; give the secret itself";

/// Full names of the fields that are marked.
static FIELDS: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let pool = envoy_pool();
    let extension = pool
        .get_extension_by_name("udpa.annotations.sensitive")
        .expect("the Envoy API imports it, and a test reads it");
    let marked = |field: &FieldDescriptor| {
        field.options().get_extension(&extension).as_bool().unwrap_or_default()
    };
    pool.all_messages()
        .flat_map(|message| message.fields().filter(marked).collect::<Vec<_>>())
        .map(|field| field.full_name().to_owned())
        .collect()
});

/// Whether a field holds a secret.
pub(crate) fn is(field: &FieldDescriptor) -> bool {
    FIELDS.contains(field.full_name())
}

/// A rule, and why it does not say what it found.
pub(crate) fn hidden(rule: &str) -> String {
    format!("{rule}; what is there is not shown, because the field is sensitive")
}
