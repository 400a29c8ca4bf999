//! The names of a poll (REST-JSON), in the spelling of the client and in canonical form.

use std::sync::Arc;

use chancery_model::{
    DynamicParameters, Node, ResourceName, StructuredName, TypeUrl, base_of, is_structured,
    parameters_of,
};
use chancery_view::TypeView;

use crate::{
    Config, NameList, PollContent,
    spelling::{Speller, Spellings},
};

/// The names of a poll.
#[derive(Debug, Clone)]
pub struct PollNames {
    /// The names in canonical form.
    pub names: NameList,
    spellings: Spellings,
    has_locators: bool,
    of_wildcard: Option<Arc<DynamicParameters>>,
}

impl PollNames {
    /// Converts the names that a client requests.
    ///
    /// # Errors
    /// Returns the name of a glob collection, which a poll cannot request (XDSTP-15).
    pub fn new(type_url: &TypeUrl, config: &Config, mut names: NameList) -> Result<Self, String> {
        let is_glob = |name: &&str| {
            is_structured(name) && StructuredName::parse(name).is_ok_and(|parsed| parsed.is_glob())
        };
        if let Some(glob) = names.iter().find(is_glob) {
            return Err(glob.to_owned());
        }
        let has_locators = names.has_locators();
        let spellings = Spellings::default();
        let mut speller = Speller { type_url, config, spellings };
        speller.convert(&mut names);
        let spellings = speller.spellings;
        let of_wildcard = names.wildcard().and_then(parameters_of).map(Arc::new);
        Ok(Self { names, spellings, has_locators, of_wildcard })
    }

    /// Returns whether the client uses resource locators, and so reads the constraints of variants.
    #[must_use]
    pub fn has_locators(&self) -> bool {
        self.has_locators
    }

    /// Returns the view with the parameters of plain names: those of the wildcard's locator, or those
    /// of the node. A wildcard does not ask for the names of other nodes.
    #[must_use]
    pub fn selected(&self, view: TypeView, node: &Node, type_url: &TypeUrl) -> TypeView {
        let of_node = || node.dynamic_parameters.get(type_url.as_str()).cloned().map(Arc::new);
        let all = view.with_parameters(self.of_wildcard.clone().or_else(of_node));
        if self.names.is_empty() || self.names.wildcard().is_some() {
            all.hiding_other_nodes(|| Some(Arc::new(node.clone())))
        } else {
            all
        }
    }

    /// Returns the content with the missing names as the client writes them.
    #[must_use]
    pub fn spelled(&self, mut content: PollContent) -> PollContent {
        if let PollContent::Named { missing, .. } = &mut content {
            for name in missing.iter_mut() {
                name.truncate(base_of(name).len());
                if let Ok(known) = ResourceName::requested(name) {
                    *name = self.spellings.spell(known).to_string();
                }
            }
        }
        content
    }
}
