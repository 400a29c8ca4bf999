//! The dynamic parameters of a subscription.

use std::{borrow::Cow, sync::Arc};

use chancery_model::{DynamicParameters, Resource, located_name, parameters_of};

use crate::list::WILDCARD;

/// The parameters of plain names, and whether the client reads constraints.
#[derive(Debug, Default)]
pub(crate) struct Variants {
    /// Whether the client has used resource locators. It then reads the constraints of variants
    /// (DYN-04). Other clients know names only.
    has_locators: bool,
    /// The parameters of the wildcard's locator.
    of_wildcard: Option<Arc<DynamicParameters>>,
    /// The node's parameters for the type (DYN-11).
    of_node: Option<Arc<DynamicParameters>>,
}

impl Variants {
    /// Returns whether the client has used resource locators.
    pub(crate) fn has_locators(&self) -> bool {
        self.has_locators
    }

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

    /// Records that the client uses locators. Returns whether it used none before.
    #[must_use]
    pub(super) fn on_locators(&mut self) -> bool {
        !std::mem::replace(&mut self.has_locators, true)
    }

    /// Adopts the node's parameters (DYN-11). Returns whether plain names may select other resources now.
    #[must_use]
    pub(super) fn set_of_node(&mut self, parameters: Option<Arc<DynamicParameters>>) -> bool {
        self.change(|variants| variants.of_node = parameters)
    }

    /// Adopts the parameters in the name of a wildcard subscription. Returns whether plain names may select other
    /// resources now.
    #[must_use]
    pub(super) fn set_of_wildcard(&mut self, name: &str) -> bool {
        let parameters = parameters_of(name).map(Arc::new);
        self.change(|variants| variants.of_wildcard = parameters)
    }

    fn change(&mut self, change: impl FnOnce(&mut Self)) -> bool {
        let before = self.parameters();
        change(self);
        before != self.parameters()
    }
}
