//! The names of a request in the form that the session uses, and the spellings of the client.
//!
//! The state, the sessions and the index of a shard have structured names (`xdstp:`) only in canonical
//! form. A client may use another spelling. The server then answers with the client's spelling
//! (XDSTP-03). Plain names and canonical names are not converted.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use chancery_model::{
    DynamicParameters, RESOURCE_NAME_BYTES_MAX, ResourceName, StructuredName, TypeUrl,
    has_internal_mark, is_structured, located_name,
};

use crate::{Config, NameList, Request, VersionList};

/// The first character of a name that no resource can have.
const UNKNOWN: &str = "\0";

/// The client's spelling of each name that the client does not write in canonical form.
///
/// A clone is cheap: it shares the map until one of the two changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spellings {
    all: Option<Arc<BTreeMap<ResourceName, ResourceName>>>,
    /// The number of bytes of all names and spellings.
    text_bytes: usize,
}

impl Spellings {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_none()
    }

    /// Returns the client's spelling of a name, if it differs.
    pub(crate) fn get(&self, name: &ResourceName) -> Option<&ResourceName> {
        self.all.as_ref()?.get(name)
    }

    /// Returns the name as the client writes it.
    pub(crate) fn spell(&self, name: ResourceName) -> ResourceName {
        self.get(&name).cloned().unwrap_or(name)
    }

    /// Returns the number of bytes of all names and spellings.
    pub(crate) fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.all.as_ref().map_or(0, |all| all.len())
    }

    /// Keeps the spellings of the names for which `keeps` returns `true`.
    pub(crate) fn retain(&mut self, keeps: impl Fn(&ResourceName) -> bool) {
        let Some(all) = &mut self.all else { return };
        let text_bytes = &mut self.text_bytes;
        Arc::make_mut(all).retain(|name, spelling| {
            let stays = keeps(name);
            if !stays {
                *text_bytes -= text_len(name, spelling);
            }
            stays
        });
        if all.is_empty() {
            self.all = None;
        }
    }

    fn set(&mut self, name: &str, spelling: Option<&str>) {
        let Ok(name) = ResourceName::requested(name) else { return };
        let spelling = spelling.and_then(|spelling| ResourceName::requested(spelling).ok());
        if self.get(&name) == spelling.as_ref() {
            return;
        }
        let all = Arc::make_mut(self.all.get_or_insert_default());
        if let Some(old) = all.remove(&name) {
            self.text_bytes -= text_len(&name, &old);
        }
        if let Some(spelling) = spelling {
            self.text_bytes += text_len(&name, &spelling);
            all.insert(name, spelling);
        }
        if all.is_empty() {
            self.all = None;
        }
    }
}

fn text_len(name: &ResourceName, spelling: &ResourceName) -> usize {
    name.as_str().len() + spelling.as_str().len()
}

/// Converts the names of requests of one type.
pub(crate) struct Speller<'a> {
    pub(crate) type_url: &'a TypeUrl,
    pub(crate) config: &'a Config,
    /// The spellings that the client has used. If a name has had several, the last one counts.
    pub(crate) spellings: Spellings,
}

/// Returns whether the session uses another form of a name.
fn is_converted(name: &str) -> bool {
    is_structured(name) || has_internal_mark(name)
}

impl Speller<'_> {
    /// Converts the names of a request. Names of MCP stay as they are (MCP-13).
    pub(crate) fn convert_request(&mut self, request: &mut Request) {
        match request {
            Request::Sotw(r) => self.convert(&mut r.resource_names),
            Request::Delta(r) => {
                // The spelling of a subscription takes precedence.
                self.convert_versions(&mut r.initial_resource_versions);
                self.convert(&mut r.unsubscribe);
                self.convert(&mut r.subscribe);
            }
            Request::Mcp(_) => {}
        }
    }

    /// Converts all names of a list. If none of them changes, the list stays as it is.
    pub(crate) fn convert(&mut self, list: &mut NameList) {
        if list.has_parameters() {
            let all = list.located();
            let all: Vec<String> =
                all.map(|(name, parameters)| self.located(name, parameters)).collect();
            *list = all.into();
        } else if list.iter().any(is_converted)
            && let Some(names) = self.converted(list.iter())
        {
            *list = names.into();
        }
    }

    /// Converts the names of resources that a client claims to hold.
    fn convert_versions(&mut self, list: &mut VersionList) {
        if list.iter().any(|(name, _)| is_converted(name))
            && let Some(names) = self.converted(list.iter().map(|(name, _)| name))
        {
            let versions = list.iter().map(|(_, version)| version.to_owned());
            *list = names.into_iter().zip(versions).collect();
        }
    }

    /// Converts names. Returns `None` if none of them changes.
    fn converted<'n>(&mut self, names: impl Iterator<Item = &'n str>) -> Option<Vec<String>> {
        let mut is_changed = false;
        let converted = names.map(|name| {
            let converted = self.name(name);
            is_changed |= converted != name;
            converted
        });
        let converted: Vec<Cow<'_, str>> = converted.collect();
        is_changed.then(|| converted.into_iter().map(Cow::into_owned).collect())
    }

    /// Returns the name of a subscription with parameters. Those of a collection are not part of the name.
    fn located(&mut self, name: &str, parameters: DynamicParameters) -> String {
        let name = self.name(name);
        let is_glob = is_structured(&name)
            && StructuredName::parse(&name).is_ok_and(|parsed| parsed.is_glob());
        if is_glob || parameters.is_empty() {
            name.into_owned()
        } else {
            located_name(&name, &parameters)
        }
    }

    /// Returns the name that the session uses. It drops directives, which only clients use
    /// (XDSTP-12).
    fn name<'n>(&mut self, name: &'n str) -> Cow<'n, str> {
        if has_internal_mark(name) {
            // No resource has this name (SOTW-110).
            let bare = name.replace(['\u{1}', '\u{2}'], UNKNOWN);
            // The longest names lose their first character, so that the limit holds.
            let start = if bare.len() < RESOURCE_NAME_BYTES_MAX {
                0
            } else {
                bare.chars().next().map_or(0, char::len_utf8)
            };
            let converted = [UNKNOWN, &bare[start..]].concat();
            self.spellings.set(&converted, Some(name));
            return converted.into();
        }
        if !is_structured(name) || name.len() > RESOURCE_NAME_BYTES_MAX {
            return Cow::Borrowed(name);
        }
        let urn = name.split('#').next().unwrap_or(name);
        let known = StructuredName::parse(urn).ok().filter(|parsed| {
            let is_served =
                self.config.authorities.as_ref().is_none_or(|all| all.contains(parsed.authority()));
            // XDSTP-06, XDSTP-25: other names do not exist here.
            is_served
                && parsed.type_name() == self.type_url.message_name()
                && parsed.as_str().len() <= RESOURCE_NAME_BYTES_MAX
        });
        let converted = match known {
            Some(parsed) => parsed.into_text(),
            // This name is as long as the client's name, which is within the limit.
            None => Cow::Owned([UNKNOWN, &urn[1..]].concat()),
        };
        self.spellings.set(&converted, Some(urn).filter(|urn| *urn != converted));
        converted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The count of bytes follows each change, and names in canonical form take no room.
    #[test]
    fn text_bytes_count_only_the_spellings_in_use() {
        let mut spellings = Spellings::default();
        spellings.set("ab", Some("%61b"));
        spellings.set("cd", Some("%63d"));
        spellings.set("ab", Some("a%62b"));
        assert_eq!((spellings.len(), spellings.text_bytes()), (2, 13));
        spellings.retain(|name| name.as_str() == "ab");
        assert_eq!((spellings.len(), spellings.text_bytes()), (1, 7));
        spellings.set("ab", None);
        spellings.set("ef", None);
        assert!(spellings.is_empty());
        assert_eq!(spellings.text_bytes(), 0);
    }
}
