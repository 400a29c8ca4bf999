//! The LB policy registry of a client, as far as it parses configurations.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde_json::{Map, Value};

use crate::{
    duration,
    error::{ConvertError, Reason, join},
};

/// The maximum depth of policies in a JSON configuration. Decoding bounds the depth of what a
/// `TypedStruct` contains; this bounds a value that a program has built.
const DEPTH_MAX: usize = 64;

/// Checks the configuration of a policy.
pub(crate) type Check = dyn Fn(&Fields<'_>) -> Result<(), ConvertError> + Send + Sync;

/// The rules of a policy of gRPC.
pub(crate) type BuiltIn = fn(&Fields<'_>) -> Result<(), ConvertError>;

/// The policies of a client by name.
#[derive(Clone, Default)]
pub(crate) struct Model(BTreeMap<String, Arc<Check>>);

impl Model {
    /// Creates a registry of built-in policies.
    pub(crate) fn new(policies: &[(&str, BuiltIn)]) -> Self {
        let policies = policies.iter().map(|(name, check)| {
            let check: Arc<Check> = Arc::new(*check);
            ((*name).to_owned(), check)
        });
        Self(policies.collect())
    }

    /// Adds or replaces a policy.
    pub(crate) fn add(
        &mut self,
        name: String,
        check: impl Fn(&Value) -> Result<(), String> + Send + Sync + 'static,
    ) {
        let check = move |fields: &Fields<'_>| {
            let config = Value::Object(fields.object.clone());
            check(&config).map_err(|rule| ConvertError::config(fields.path.clone(), rule))
        };
        self.0.insert(name, Arc::new(check));
    }

    /// Adds or replaces a policy with the rules of one client.
    pub(crate) fn add_built_in(&mut self, name: &str, check: BuiltIn) {
        self.0.insert(name.to_owned(), Arc::new(check));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Parses a list of policies.
    pub(crate) fn check(&self, list: &Value) -> Result<(), ConvertError> {
        self.check_list(list, "", 1)
    }

    fn check_list(&self, list: &Value, path: &str, depth: usize) -> Result<(), ConvertError> {
        if depth > DEPTH_MAX {
            let reason = Reason::TooDeep { max: DEPTH_MAX };
            return Err(ConvertError { path: path.to_owned(), reason });
        }
        let Value::Array(entries) = list else {
            return Err(ConvertError::config(path, "a list of policies is expected"));
        };
        let mut unknown = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let path = if path.is_empty() && entries.len() == 1 {
                String::new()
            } else {
                join(path, &format!("[{index}]"))
            };
            let policy = entry.as_object().filter(|entry| entry.len() == 1);
            let Some((name, config)) = policy.and_then(|entry| entry.iter().next()) else {
                let rule = "an object with one key, the name of a policy, is expected";
                return Err(ConvertError::config(path, rule));
            };
            let path = join(&path, name);
            let Some(check) = self.0.get(name) else {
                unknown.push(name.clone());
                continue;
            };
            let Value::Object(object) = config else {
                return Err(ConvertError::config(path, "the configuration has to be an object"));
            };
            return check(&Fields { model: self, object, path, depth });
        }
        let reason = Reason::NoSupportedPolicy { types: unknown };
        Err(ConvertError { path: path.to_owned(), reason })
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.keys().fmt(f)
    }
}

/// The fields of a configuration object. A key may have the spelling of JSON (`childPolicy`) or of
/// the proto file (`child_policy`). `null` is an unset field.
pub(crate) struct Fields<'a> {
    model: &'a Model,
    object: &'a Map<String, Value>,
    path: String,
    depth: usize,
}

impl<'a> Fields<'a> {
    /// Returns a field by its lowerCamelCase name.
    pub(crate) fn get(&self, key: &str) -> Result<Option<&'a Value>, ConvertError> {
        let other = snake_case(key);
        let of = |key: &str| self.object.get(key).filter(|value| !value.is_null());
        match (of(key), of(&other)) {
            (Some(_), Some(_)) if other != key => {
                Err(self.error(key, format!("the field is also given as {other:?}")))
            }
            (value, other) => Ok(value.or(other)),
        }
    }

    /// Returns a field that has to be present.
    pub(crate) fn required(&self, key: &str) -> Result<&'a Value, ConvertError> {
        self.get(key)?.ok_or_else(|| self.error(key, "the field is missing"))
    }

    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>, ConvertError> {
        self.typed(key, "true or false is expected", Value::as_bool)
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, ConvertError> {
        self.typed(key, "a number is expected", Value::as_f64)
    }

    pub(crate) fn uint64(&self, key: &str) -> Result<Option<u64>, ConvertError> {
        self.typed(key, "an integer that is not negative is expected", Value::as_u64)
    }

    pub(crate) fn uint32(&self, key: &str) -> Result<Option<u32>, ConvertError> {
        let rule = "an integer between 0 and 4294967295 is expected";
        self.typed(key, rule, |value| u32::try_from(value.as_u64()?).ok())
    }

    pub(crate) fn string(&self, key: &str) -> Result<Option<&'a str>, ConvertError> {
        self.typed(key, "a string is expected", Value::as_str)
    }

    pub(crate) fn array(&self, key: &str) -> Result<Option<&'a Vec<Value>>, ConvertError> {
        self.typed(key, "a list is expected", Value::as_array)
    }

    /// Returns the names of a list of strings.
    pub(crate) fn strings(&self, key: &str) -> Result<Vec<&'a str>, ConvertError> {
        let values = self.array(key)?.into_iter().flatten();
        let names: Option<Vec<&str>> = values.map(Value::as_str).collect();
        names.ok_or_else(|| self.error(key, "a list of strings is expected"))
    }

    /// Returns whether a duration is negative.
    pub(crate) fn is_negative_duration(&self, key: &str) -> Result<bool, ConvertError> {
        let Some(text) = self.string(key)? else { return Ok(false) };
        let duration = duration::parse(text).map_err(|rule| self.error(key, rule))?;
        Ok(duration.seconds < 0 || duration.nanos < 0)
    }

    /// Returns the fields of an object.
    pub(crate) fn object(&self, key: &str) -> Result<Option<Fields<'a>>, ConvertError> {
        match self.get(key)? {
            Some(value) => self.fields(key, value).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the entries of a map of objects.
    pub(crate) fn map(&self, key: &str) -> Result<Vec<(&'a str, Fields<'a>)>, ConvertError> {
        let Some(entries) = self.object(key)? else { return Ok(Vec::new()) };
        let object = entries.object.iter();
        object.map(|(key, value)| Ok((key.as_str(), entries.fields(key, value)?))).collect()
    }

    /// Checks the policies of a field that has to be present.
    pub(crate) fn child(&self, key: &str) -> Result<(), ConvertError> {
        let value = self.required(key)?;
        self.model.check_list(value, &join(&self.path, key), self.depth + 1)
    }

    pub(crate) fn knows(&self, policy: &str) -> bool {
        self.model.contains(policy)
    }

    /// Creates an error for a field.
    pub(crate) fn error(&self, key: &str, rule: impl Into<String>) -> ConvertError {
        ConvertError::config(join(&self.path, key), rule)
    }

    fn fields(&self, key: &str, value: &'a Value) -> Result<Fields<'a>, ConvertError> {
        let object = value.as_object().ok_or_else(|| self.error(key, "an object is expected"))?;
        Ok(Fields { model: self.model, object, path: join(&self.path, key), depth: self.depth })
    }

    fn typed<T>(
        &self,
        key: &str,
        rule: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConvertError> {
        match self.get(key)? {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| self.error(key, rule)),
        }
    }
}

/// Returns the name of a field in the proto file.
fn snake_case(key: &str) -> String {
    let mut name = String::with_capacity(key.len() + 4);
    for letter in key.chars() {
        if letter.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}
