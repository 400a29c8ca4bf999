//! The schema against the loader. `check` knows exactly the keywords that the schema uses; `cargo xtask chart` checks
//! the schema and the configurations of the chart with a complete validator.

use std::io::Write;

use regex::Regex;

use super::*;
use crate::{Flags, NamedFiles, load, section::Key};

/// Returns whether a value satisfies a schema. An unknown keyword fails the test.
fn check(schema: &Value, value: &Value) -> bool {
    schema.as_object().unwrap().iter().all(|(keyword, rule)| match keyword.as_str() {
        "$schema" | "title" | "description" | "default" => true,
        "type" => match rule.as_str().unwrap() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            other => panic!("type {other}"),
        },
        "enum" => rule.as_array().unwrap().contains(value),
        "const" => rule == value,
        "pattern" => {
            let pattern = Regex::new(rule.as_str().unwrap()).unwrap();
            value.as_str().is_none_or(|text| pattern.is_match(text))
        }
        "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap()),
        "anyOf" => rule.as_array().unwrap().iter().any(|schema| check(schema, value)),
        "items" => value.as_array().is_none_or(|items| items.iter().all(|item| check(rule, item))),
        "properties" => value.as_object().is_none_or(|keys| {
            keys.iter().all(|(key, value)| rule.get(key).is_none_or(|rule| check(rule, value)))
        }),
        "additionalProperties" => {
            assert_eq!(rule, false);
            let known = schema["properties"].as_object().unwrap();
            value.as_object().is_none_or(|keys| keys.keys().all(|key| known.contains_key(key)))
        }
        "required" => value.as_object().is_none_or(|keys| {
            rule.as_array().unwrap().iter().all(|key| keys.contains_key(key.as_str().unwrap()))
        }),
        other => panic!("the keyword {other}"),
    })
}

/// Returns the verdicts of the schema and of the loader.
fn verdicts(schema: &Value, file: &str) -> (bool, Result<(), String>) {
    let mut written = tempfile::NamedTempFile::new().unwrap();
    written.write_all(file.as_bytes()).unwrap();
    let flags = Flags { file: Some(written.path().to_owned()), values: vec![] };
    let loaded = load(&flags, [], NamedFiles::Ignore).map(drop);
    let value: TomlValue = toml::from_str(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let errors = |refused: crate::Refused| {
        refused.errors.iter().map(|error| format!("{error}\n")).collect::<String>()
    };
    (check(schema, &json!(value)), loaded.map_err(errors))
}

#[test]
fn schema_accepts_the_printed_configuration() {
    let file = crate::render::render(&Config::default());
    assert_eq!(verdicts(&schema(), &file), (true, Ok(())));
}

/// The values that a key may plausibly have by mistake, and valid ones.
const SAMPLES: &[&str] = &[
    "true",
    "-1",
    "0",
    "1",
    "70000",
    "4611686018427387904",
    "1.5",
    "''",
    "'warn'",
    "'json'",
    "'1s'",
    "'0s'",
    "'5'",
    "'64KiB'",
    "'1kb'",
    "'1.3'",
    "'optional'",
    "'127.0.0.1:9'",
    "'[::1]:9'",
    "'localhost:9'",
    "'manifest'",
    "'strict'",
    "[]",
    "['a']",
    "[1]",
    "[{}]",
    "{}",
    "[{name = 'a', listen = '127.0.0.1:9', scope = 's', collections = ['a/b/c']}]",
    "[{name = 'a', listen = 'a:9', scope = 's', collections = ['a/b/c']}]",
    "[{name = 'a', address = '127.0.0.1:9', scope = 's', collections = 'a/b/c'}]",
    "[{name = 'a', address = '127.0.0.1:9', scope = 's', collections = ['a/b/c'], incremental = 1}]",
    "[{name = 'a', url = 'u', jwks_file = '/k'}]",
    "[{name = 'a', url = 'u', jwks_file = '/k', jwks = '/k'}]",
    "[{name = 'a', jwks_file = '/k'}]",
];

/// The loader rejects every file that the schema rejects.
#[test]
fn schema_rejects_no_file_that_the_loader_accepts() {
    let schema = schema();
    let (mut n_accepted, mut n_rejected) = (0, 0);
    for (section, keys) in Config::SECTIONS {
        for Key { name: key, bounds, .. } in *keys {
            let ends = bounds.ends().into_iter().flatten().map(|end| end.to_string());
            for value in SAMPLES.iter().map(|text| (*text).to_owned()).chain(ends) {
                let file = format!("[{section}]\n{key} = {value}\n");
                let (by_schema, by_loader) = verdicts(&schema, &file);
                assert!(by_schema || by_loader.is_err(), "the loader accepts {file}");
                n_accepted += usize::from(by_schema);
                n_rejected += usize::from(!by_schema);
            }
        }
    }
    assert!(n_accepted > 500 && n_rejected > 2000, "{n_accepted} {n_rejected}");
}

/// Each pair is a file that both reject for its form, and the loader's reason.
#[test]
fn schema_rejects_wrong_files() {
    for (file, reason) in [
        ("[xds]\nadress = 'x'", "xds.adress is not a key"),
        ("[xdss]\n", "[xdss] is not a section"),
        ("xds = 1", "is a section"),
        ("[store]\ndata_dir = 1", "expected path string"),
        ("[store]\nsnapshot_log_entries = 0", "must be from 1 to 100000000"),
        ("[shutdown]\ntimeout = 5", "is not a time"),
        ("[admin]\nrequest_bytes_max = '1kb'", "is not a size"),
        ("[log]\nformat = 'xml'", "unknown variant `xml`"),
        ("[xds]\ntls_min = '1.1'", "unknown variant `1.1`"),
        ("[audit]\nmode = 'sync'", "must be async or strict"),
        ("[validation]\nmode = 'on'", "expected enforce, warn or off"),
        ("[admin]\nhosts = 'a'", "is not a list"),
        ("[admin]\naddress = 'localhost:1'", "must be IP:PORT"),
        ("[mcp]\nsources = [{name = 'a'}]", "missing field `scope`"),
        ("[auth]\nissuers = [{nmae = 'a'}]", "unknown field `nmae`"),
    ] {
        let (by_schema, by_loader) = verdicts(&schema(), file);
        assert!(!by_schema, "the schema accepts {file}");
        let error = by_loader.unwrap_err();
        assert!(error.contains(reason), "{file}: {error}");
    }
}

/// serde lists the known fields of a table in its message about an unknown one.
#[test]
fn schema_has_exactly_the_fields_of_the_loader() {
    for (section, key) in
        [("xds", "types"), ("mcp", "sources"), ("auth", "issuers"), ("auth", "clusters")]
    {
        let error = verdicts(&schema(), &format!("[{section}]\n{key} = [{{no_such_field = 1}}]"));
        let error = error.1.unwrap_err();
        let listed = error.split_once("expected one of ").unwrap().1.split(';').next().unwrap();
        let mut listed: Vec<&str> =
            listed.split(", ").map(|name| name.trim().trim_matches('`')).collect();
        listed.sort_unstable();
        let fields = schema();
        let fields = &fields["properties"][section]["properties"][key]["items"]["properties"];
        assert_eq!(fields.as_object().unwrap().keys().collect::<Vec<_>>(), listed, "{key}");
    }
}
