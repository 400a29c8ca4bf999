//! The names of a poll (REST-JSON), in the spelling of the client and in canonical form.

use chancery_model::{ResourceName, StructuredName, TypeUrl, is_structured};

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
        let mut speller = Speller { type_url, config, spellings: Spellings::default() };
        speller.convert(&mut names);
        Ok(Self { names, spellings: speller.spellings })
    }

    /// Returns the content with the missing names as the client writes them.
    #[must_use]
    pub fn spelled(&self, mut content: PollContent) -> PollContent {
        if let PollContent::Named { missing, .. } = &mut content
            && !self.spellings.is_empty()
        {
            for name in missing.iter_mut() {
                if let Ok(known) = ResourceName::requested(name) {
                    *name = self.spellings.spell(known).to_string();
                }
            }
        }
        content
    }
}
