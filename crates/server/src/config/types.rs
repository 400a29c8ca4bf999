//! The behavior of types that Chancery does not know (`xds.types`).

use chancery_model::{
    TypeUrl,
    types::{Configured, check_configured},
};
use serde::{Deserialize, Serialize};

use super::bounds::{Form, Key, optional, required, tables};

/// The key, with its bounds and its description.
pub(super) const TYPES: Key = (
    "types",
    tables(&[
        required("type", Form::Text),
        optional("wildcard", Form::Flag),
        optional("full_state", Form::Flag),
    ]),
    "The behavior of types that Chancery does not know, as {type, wildcard, full_state}. wildcard (true): a client that names no resource receives all of them. full_state (true): each SotW response has all resources of the client, and can be empty. All replicas need the same types.",
);

/// An entry of `types`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TypeOfResources {
    r#type: String,
    #[serde(default = "yes")]
    wildcard: bool,
    #[serde(default = "yes")]
    full_state: bool,
}

fn yes() -> bool {
    true
}

/// Returns the configuration of the types.
///
/// # Errors
/// Returns the rule that an entry breaks.
pub(crate) fn configured_types(types: &[TypeOfResources]) -> Result<Vec<Configured>, String> {
    let of = |entry: &TypeOfResources| {
        let type_url = TypeUrl::new(&entry.r#type)
            .map_err(|error| format!("{:?} is not a type URL: {error}", entry.r#type))?;
        let TypeOfResources { wildcard, full_state, .. } = *entry;
        Ok(Configured { type_url, wildcard, full_state })
    };
    let all = types.iter().map(of).collect::<Result<Vec<_>, String>>()?;
    check_configured(&all)?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Section {
        types: Vec<TypeOfResources>,
    }

    fn read(types: &str) -> Result<Vec<Configured>, String> {
        let section: Section = toml::from_str(&format!("types = [{types}]")).unwrap();
        configured_types(&section.types)
    }

    #[test]
    fn entries_name_unknown_types_once() {
        let table = "type = 'type.googleapis.com/istio.networking.nds.v1.NameTable'";
        let found = read(&format!("{{{table}, full_state = false}}")).unwrap();
        assert!(found[0].wildcard && !found[0].full_state);
        let twice = read(&format!("{{{table}}}, {{{table}}}")).unwrap_err();
        assert!(twice.contains("occurs twice"), "{twice}");
        let listener =
            read("{type = 'type.googleapis.com/envoy.config.listener.v3.Listener'}").unwrap_err();
        assert!(listener.contains("cannot change"), "{listener}");
        let empty = read("{type = ''}").unwrap_err();
        assert!(empty.contains("is not a type URL"), "{empty}");
    }
}
