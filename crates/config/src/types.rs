//! The behavior of types that Chancery does not know (`xds.types`).

use chancery_model::{
    TypeUrl,
    types::{Configured, check_configured},
};

use super::entry::entry;

entry! {
    /// An entry of `types`.
    pub struct TypeOfResources {
        /// The type URL, or the name of a collection of MCP.
        r#type: String;
        /// Whether a client that names no resource receives all of them.
        wildcard: bool = true;
        /// Whether each SotW response has all resources of the client, and can be empty.
        full_state: bool = true;
    }
}

/// Returns the configuration of the types.
///
/// # Errors
/// Returns the rule that an entry breaks.
pub fn configured_types(types: &[TypeOfResources]) -> Result<Vec<Configured>, String> {
    let of = |entry: &TypeOfResources| {
        let type_url = type_url(&entry.r#type)?;
        let TypeOfResources { wildcard, full_state, .. } = *entry;
        Ok(Configured { type_url, wildcard, full_state })
    };
    let all = types.iter().map(of).collect::<Result<Vec<_>, String>>()?;
    check_configured(&all)?;
    Ok(all)
}

/// Returns the type of an entry: the URL of a message, or a collection of MCP.
fn type_url(text: &str) -> Result<TypeUrl, String> {
    const PREFIX: &str = "type.googleapis.com/";
    let url = TypeUrl::new(text).map_err(|error| format!("{text:?} is not a type URL: {error}"))?;
    match text.strip_prefix(PREFIX) {
        Some(message) if is_message(message) => Ok(url),
        None if url.is_collection() => Ok(url),
        None if is_message(text) => Err(format!(
            "{text:?} is not a type URL; did you mean {:?}?",
            format!("{PREFIX}{text}")
        )),
        _ => Err(format!(
            "{text:?} is not a type URL; write {PREFIX} and the full name of the message, or a collection such as \
             networking.istio.io/v1/VirtualService"
        )),
    }
}

/// Returns whether a text is the full name of a message in a package.
fn is_message(text: &str) -> bool {
    let is_identifier = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    text.contains('.') && text.split('.').all(is_identifier)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

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

    /// A type that no client can request would have no effect.
    #[test]
    fn type_of_an_entry_is_a_type_url_or_a_collection() {
        for good in ["type.googleapis.com/a.B", "networking.istio.io/v1/VirtualService", "a/b/c"] {
            assert_eq!(read(&format!("{{type = '{good}'}}")).unwrap().len(), 1, "{good}");
        }
        for bad in ["cds", "type.googleapis.com/", "type.googleapis.com/B", "example.com/a.B"] {
            let error = read(&format!("{{type = '{bad}'}}")).unwrap_err();
            assert!(error.contains("write type.googleapis.com/"), "{error}");
        }
        let error = read("{type = 'istio.networking.nds.v1.NameTable'}").unwrap_err();
        let fix = "did you mean \"type.googleapis.com/istio.networking.nds.v1.NameTable\"?";
        assert!(error.ends_with(fix), "{error}");
    }
}
