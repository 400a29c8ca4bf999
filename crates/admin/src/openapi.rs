//! The description of the HTTP API: OpenAPI 3.1, from the table of operations and the descriptors of the messages.

use std::collections::BTreeMap;

use chancery_admin_proto::pool;
use prost_reflect::{DescriptorPool, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};

use crate::{
    ctx::Access,
    operations::{Described, OPERATIONS},
    page::LIMIT_MAX,
};

/// The message of errors.
const ERROR: &str = "chancery.admin.v1.ErrorResponse";

/// The parameters of a write, each with its schema.
const WRITE_OPTIONS: [(&str, &str); 13] = [
    ("timeout", "text"),
    ("wait", "text"),
    ("dry_run", "flag"),
    ("if_revision", "number"),
    ("label", "text"),
    ("labels", "list"),
    ("author", "text"),
    ("reason", "text"),
    ("request_id", "text"),
    ("stale", "flag"),
    ("confirm", "list"),
    ("validation", "text"),
    ("override_freeze", "flag"),
];

/// Returns the operations with their methods and paths.
pub(crate) fn overview() -> Value {
    let operations = OPERATIONS.iter().map(|one| {
        json!({"method": one.method, "path": path(one), "summary": one.summary.trim(), "needs": needs(one.needs)})
    });
    json!({"description": "/v1/openapi.json", "operations": operations.collect::<Vec<_>>()})
}

/// Returns the OpenAPI document. `version` is that of the program.
pub(crate) fn document(version: &str) -> Value {
    let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    let mut schemas = Schemas { pool: pool(), done: Map::new() };
    schemas.add(ERROR);
    for one in OPERATIONS {
        schemas.add(one.reply);
        let methods = paths.entry(path(one)).or_default();
        methods.insert(one.method.to_lowercase(), operation(one));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Chancery admin API",
            "version": version,
            "description": "64-bit integers are numbers. Fields of answers may be added.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.done,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "certificate": {"type": "mutualTLS"},
            },
        },
        "security": [{}, {"token": []}, {"certificate": []}],
    })
}

fn path(one: &Described) -> String {
    one.path.replace("{*", "{")
}

/// Returns the right that an operation needs, as a part of a sentence.
fn needs(access: Access) -> String {
    match access {
        Access::Open => "no right".to_owned(),
        Access::Cluster(verb) => format!("the right {verb}"),
        Access::Somewhere(verb) => format!("the right {verb} in a scope"),
        Access::AnyWrite => "a right to write".to_owned(),
    }
}

fn operation(one: &Described) -> Value {
    let parameters = one.parameters.iter().flat_map(|(name, kind)| match *kind {
        "options" => WRITE_OPTIONS.to_vec(),
        kind => vec![(*name, kind)],
    });
    let content = |kind: &str, name: &str| json!({kind: {"schema": reference(name)}});
    let mut described = json!({
        "operationId": one.id,
        "summary": one.summary.trim(),
        "description": format!("Needs {}.", needs(one.needs)),
        "parameters": parameters.map(|(name, kind)| parameter(name, kind)).collect::<Vec<_>>(),
        "responses": {
            "200": {"description": "The answer.", "content": content(one.content_type, one.reply)},
            "default": {"description": "An error.", "content": content("application/json", ERROR)},
        },
    });
    if one.reads_body {
        let text = json!({"schema": {"type": "string"}});
        described["requestBody"] = json!({
            "description": "A manifest, or for `import` a bootstrap of Envoy: YAML or JSON.",
            "required": true,
            "content": {"application/yaml": text, "application/json": text},
        });
    }
    described
}

fn parameter(name: &str, kind: &str) -> Value {
    let (place, schema) = match kind {
        "path" => ("path", json!({"type": "string"})),
        "flag" | "optional_flag" => ("query", json!({"type": "boolean"})),
        "limit" => ("query", json!({"type": "integer", "minimum": 0, "maximum": LIMIT_MAX})),
        "given_text" | "required_text" => ("query", json!({"type": "string", "minLength": 1})),
        "number" | "number_or_zero" | "capped" | "required_number" | "path_number" => (
            if kind == "path_number" { "path" } else { "query" },
            json!({"type": "integer", "format": "uint64", "minimum": 0, "maximum": u64::MAX}),
        ),
        "list" | "texts" => ("query", json!({"type": "array", "items": {"type": "string"}})),
        "pairs" => {
            let pair = json!({"type": "string", "pattern": "^[^=]+=", "examples": ["key=value"]});
            ("query", json!({"type": "array", "items": pair}))
        }
        "millis" => {
            let examples = ["500ms", "10s", "2m"];
            let pattern = "^[0-9]+(ms|s|m|h)$";
            ("query", json!({"type": "string", "pattern": pattern, "examples": examples}))
        }
        _ => ("query", json!({"type": "string"})),
    };
    let is_required = place == "path" || kind.starts_with("required_");
    let mut described =
        json!({"name": name, "in": place, "required": is_required, "schema": schema});
    if schema["type"] == "boolean" {
        described["allowEmptyValue"] = json!(true);
    }
    described
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// The schemas of messages, by full name.
struct Schemas {
    pool: &'static DescriptorPool,
    done: Map<String, Value>,
}

impl Schemas {
    /// Adds a message and those that it contains. Any type without a descriptor here is any object.
    fn add(&mut self, name: &str) {
        if self.done.contains_key(name) {
            return;
        }
        let Some(message) = self.pool.get_message_by_name(name) else {
            self.done.insert(name.to_owned(), json!({"type": "object"}));
            return;
        };
        self.done.insert(name.to_owned(), Value::Null);
        let mut schema = json!({"type": "object"});
        if is_open(&message) {
            schema["description"] = json!("The message in proto JSON, with its `@type`.");
        } else {
            let fields =
                message.fields().map(|field| (field.name().to_owned(), self.field(&field)));
            schema["properties"] = Value::Object(fields.collect());
            describe(&mut schema, &message.parent_file(), message.path());
        }
        self.done.insert(name.to_owned(), schema);
    }

    fn field(&mut self, field: &FieldDescriptor) -> Value {
        let mut schema = if field.is_map() {
            let entry = field.kind();
            let value = entry.as_message().map(|entry| entry.map_entry_value_field().kind());
            let values = value.map(|kind| self.kind(&kind)).unwrap_or_default();
            json!({"type": "object", "additionalProperties": values})
        } else if field.is_list() {
            json!({"type": "array", "items": self.kind(&field.kind())})
        } else {
            self.kind(&field.kind())
        };
        describe(&mut schema, &field.parent_message().parent_file(), field.path());
        schema
    }

    fn kind(&mut self, kind: &Kind) -> Value {
        match kind {
            Kind::Bool => json!({"type": "boolean"}),
            Kind::Double | Kind::Float => json!({"type": "number"}),
            Kind::String | Kind::Enum(_) => json!({"type": "string"}),
            Kind::Bytes => json!({"type": "string", "contentEncoding": "base64"}),
            Kind::Message(message) => {
                self.add(message.full_name());
                reference(message.full_name())
            }
            _ => json!({"type": "integer"}),
        }
    }
}

/// Returns whether the JSON of a message depends on its content.
fn is_open(message: &MessageDescriptor) -> bool {
    message.full_name() == "google.protobuf.Any"
}

/// Adds the comment of the .proto.
fn describe(schema: &mut Value, file: &FileDescriptor, path: &[i32]) {
    let info = file.file_descriptor_proto().source_code_info.as_ref();
    let place = info.and_then(|info| info.location.iter().find(|place| place.path == path));
    let text = place.and_then(|place| place.leading_comments.as_deref()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    if !text.is_empty() {
        schema["description"] = json!(lines.join(" ").trim());
    }
}
