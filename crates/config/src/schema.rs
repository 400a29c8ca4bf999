//! The JSON Schema of the configuration file, for editors and for checks without this program.
//!
//! The schema comes from the same table as the printed configuration, and accepts every file that `serve` accepts. It does
//! not check the ranges of sizes and times with a unit, the syntax of texts, and rules about several keys.

use serde_json::{Map, Value, json};
use toml::Value as TomlValue;

use super::{
    Config,
    bounds::{Bounds, Unit},
    entry::{Field, Form},
    render::table,
};

/// The version of JSON Schema, which most editors know.
const DIALECT: &str = "http://json-schema.org/draft-07/schema#";
const SIZE: &str = "^[0-9]+(KiB|MiB|GiB)?$";
const TIME: &str = "^[0-9]+(ms|s|m|h)$";
const LISTEN: &str = r"^([0-9]+(\.[0-9]+){3}|\[[^\]]+\]):[0-9]+$";

/// Returns the schema of the configuration file.
pub fn schema() -> Value {
    let defaults = table(&Config::default());
    let sections = Config::SECTIONS.iter().map(|(section, keys)| {
        let default = |key: &str| defaults.get(*section).and_then(|keys| keys.get(key));
        let keys = keys.iter().filter_map(|key| {
            let default = default(key.name)?;
            let mut value = of_key(&key.bounds, default);
            value.insert("description".to_owned(), key.about().into());
            value.insert("default".to_owned(), json!(default));
            Some((key.name.to_owned(), Value::Object(value)))
        });
        ((*section).to_owned(), Value::Object(closed(keys.collect(), &[])))
    });
    let mut schema = closed(sections.collect(), &[]);
    schema.insert("$schema".to_owned(), DIALECT.into());
    schema.insert("title".to_owned(), "The configuration of `chancery serve`".into());
    Value::Object(schema)
}

/// Returns the schema of a table without further keys.
fn closed(properties: Map<String, Value>, required: &[&str]) -> Map<String, Value> {
    let mut schema = object(json!({
        "type": "object", "additionalProperties": false, "properties": properties,
    }));
    if !required.is_empty() {
        schema.insert("required".to_owned(), json!(required));
    }
    schema
}

fn of_key(bounds: &Bounds, default: &TomlValue) -> Map<String, Value> {
    let (min, max) = (bounds.range.start(), bounds.range.end());
    let quantity = match bounds.unit {
        Unit::Words(words) => return object(json!({"type": "string", "enum": words})),
        Unit::Listen => return object(of_form(Form::Listen)),
        Unit::Tables(fields) => {
            return object(json!({"type": "array", "items": of_fields(fields)}));
        }
        Unit::None => {
            return object(match default {
                TomlValue::Boolean(_) => of_form(Form::Flag),
                TomlValue::Array(_) => of_form(Form::Texts),
                _ => of_form(Form::Text),
            });
        }
        Unit::Milliseconds => return object(json!({"type": "string", "pattern": TIME})),
        Unit::Count | Unit::Bytes => json!({"type": "integer", "minimum": min, "maximum": max}),
    };
    let mut forms = vec![quantity];
    if bounds.or_zero {
        forms.push(json!({"const": 0}));
    }
    if matches!(bounds.unit, Unit::Bytes) {
        forms.push(json!({"type": "string", "pattern": SIZE}));
    }
    match forms.len() {
        1 => object(forms.remove(0)),
        _ => object(json!({"anyOf": forms})),
    }
}

fn of_fields(fields: &[Field]) -> Map<String, Value> {
    let properties = fields.iter().map(|field| {
        let mut value = object(of_form(field.form));
        value.insert("description".to_owned(), field.about().into());
        value.extend(field.default_value().map(|value| ("default".to_owned(), json!(value))));
        (field.name().to_owned(), Value::Object(value))
    });
    let required = fields.iter().filter(|field| field.default.is_none()).map(Field::name);
    closed(properties.collect(), &required.collect::<Vec<_>>())
}

fn of_form(form: Form) -> Value {
    match form {
        Form::Text => json!({"type": "string"}),
        Form::Texts => json!({"type": "array", "items": {"type": "string"}}),
        Form::Listen => json!({"type": "string", "pattern": LISTEN}),
        Form::Flag => json!({"type": "boolean"}),
        Form::Count => json!({"type": "integer", "minimum": 1}),
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests;
