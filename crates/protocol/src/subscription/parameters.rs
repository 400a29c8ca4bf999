//! The dynamic parameters of a subscription.

use std::{borrow::Cow, sync::Arc};

use chancery_model::{DynamicParameters, Resource, located_name};

use crate::list::WILDCARD;

/// The parameters of plain names, and whether the client reads constraints.
#[derive(Debug, Default)]
pub(crate) struct Variants {
    /// Whether the client has used resource locators. It then reads the constraints of variants
    /// (DYN-04). Other clients know names only.
    pub(crate) has_locators: bool,
    /// The parameters of the wildcard's locator.
    pub(super) of_wildcard: Option<Arc<DynamicParameters>>,
    /// The node's parameters for the type (DYN-11).
    pub(super) of_node: Option<Arc<DynamicParameters>>,
}

impl Variants {
    /// Returns the parameters of plain names and of the wildcard.
    pub(crate) fn parameters(&self) -> Option<Arc<DynamicParameters>> {
        self.of_wildcard.as_ref().or(self.of_node.as_ref()).cloned()
    }

    /// Returns the name of a subscription to the wildcard with its present parameters.
    pub(super) fn wildcard_name(&self) -> Cow<'static, str> {
        self.of_wildcard.as_ref().map_or(WILDCARD.into(), |own| located_name(WILDCARD, own).into())
    }

    /// Returns whether plain names can select a resource.
    pub(super) fn matches(&self, resource: &Resource) -> bool {
        resource.constraints().is_none_or(|constraints| match self.parameters() {
            Some(parameters) => constraints.matches(&parameters),
            None => constraints.matches(&DynamicParameters::new()),
        })
    }
}
