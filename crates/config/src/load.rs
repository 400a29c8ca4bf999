//! Loads a configuration from defaults, file, environment and flags, and checks it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use chancery_model::{has_private_key, without_credentials};
use serde::Deserialize;
use toml::{Table, Value};

use super::{
    Config, ConfigError, Refused, Source,
    bounds::Bounds,
    named_files::{self, NamedFiles},
    otel_variables,
    render::{render, table},
    rules::{LISTEN_RULE, rules},
    section::Key,
    source_file::SourceFile,
    suggestions, tls, unknown_variables,
};
use crate::read_text;

/// The maximum size of a configuration file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The keys that the command line sets.
#[derive(Debug, Default)]
pub struct Flags {
    /// The configuration file.
    pub file: Option<PathBuf>,
    /// The keys with their values.
    pub values: Vec<FlagValue>,
}

/// A key that a flag sets.
#[derive(Debug)]
pub struct FlagValue {
    /// The section of the key.
    pub section: &'static str,
    /// The name of the key in its section.
    pub key: &'static str,
    /// The value, as it would stand in the file.
    pub value: Value,
    /// The name of the flag, for messages.
    pub flag: &'static str,
}

/// A valid configuration.
#[derive(Debug)]
pub struct Loaded {
    /// The values of all keys.
    pub config: Config,
    /// Findings that are not errors.
    pub warnings: Vec<String>,
    /// The sources of all keys that do not have their default.
    sources: BTreeMap<String, Source>,
}

impl Loaded {
    /// Returns whether a file, a variable or a flag sets this key.
    pub fn is_given(&self, key: &str) -> bool {
        self.sources.contains_key(key)
    }

    /// Returns the configuration as a TOML file with comments, without values that may be secret.
    pub fn render_redacted(&self) -> String {
        let mut config = self.config.clone();
        config.validation.redact();
        without_credentials(&render(&config))
    }

    /// Returns the configuration as a TOML file with comments.
    pub fn render(&self) -> String {
        render(&self.config)
    }
}

/// Loads and checks a configuration. `environment` contains all variables of the process.
///
/// # Errors
/// Returns the problems: unknown sections and keys, values that break a rule, and unusable files. If
/// the configuration file cannot be read or parsed, only those problems are returned.
pub fn load(
    flags: &Flags,
    environment: impl IntoIterator<Item = (String, String)>,
    files: NamedFiles,
) -> Result<Loaded, Refused> {
    let mut values = Values { table: table(&Config::default()), sources: BTreeMap::new() };
    let mut found = Refused::default();
    let is_parsed = flags.file.as_deref().is_none_or(|path| values.overlay_file(path, &mut found));
    values.overlay_environment(environment, &mut found);
    if !is_parsed {
        return Err(found);
    }
    for FlagValue { section, key, value, flag } in &flags.values {
        values.set(section, key, value.clone(), Source::Flag(flag));
    }
    values.find_problems(files, &mut found);
    if found.errors.is_empty() { values.finish(found) } else { Err(found) }
}

#[derive(Clone)]
struct Values {
    table: Table,
    sources: BTreeMap<String, Source>,
}

impl Values {
    fn keys(&self, section: &str) -> Option<&Table> {
        self.table.get(section).and_then(Value::as_table)
    }

    fn set(&mut self, section: &str, key: &str, value: Value, source: Source) {
        self.sources.insert(format!("{section}.{key}"), source);
        if let Some(keys) = self.table.get_mut(section).and_then(Value::as_table_mut) {
            keys.insert(key.to_owned(), value);
        }
    }

    /// Takes over the values of a file. Finds unknown sections and keys. Returns whether the file has values.
    fn overlay_file(&mut self, path: &Path, found: &mut Refused) -> bool {
        let text = match fs::File::open(path).and_then(|file| read_text(file, FILE_BYTES_MAX)) {
            Ok(text) => text,
            Err(source) => {
                found.add(|| ConfigError::Read { path: path.to_owned(), source });
                return false;
            }
        };
        let file = match SourceFile::parse(&text) {
            Ok(file) => file,
            Err(errors) => {
                for (line, error) in errors {
                    let message = || error.message().replace('\n', "; ");
                    found.add(|| ConfigError::Syntax {
                        path: path.into(),
                        line,
                        message: message(),
                    });
                }
                return false;
            }
        };
        let source = |section: &str, key: &str| {
            let line = file.line(section, Some(key)).or_else(|| file.line(section, None));
            Source::File(path.to_owned(), line.unwrap_or(1))
        };
        for (section, keys) in &file.table {
            let Some(known) = self.keys(section) else {
                found.add(|| {
                    let hint = suggestions::section(section, &self.table);
                    let line = file.line(section, None).unwrap_or(1);
                    let (path, section) = (path.to_owned(), section.clone());
                    ConfigError::Section { path, line, section, hint }
                });
                continue;
            };
            let known = known.clone();
            let Value::Table(keys) = keys else {
                let rule = || format!("is a section; write [{section}] and its keys below");
                found.add(|| ConfigError::value(section, keys, source(section, ""), rule()));
                continue;
            };
            for (key, value) in keys {
                if known.contains_key(key) {
                    self.set(section, key, value.clone(), source(section, key));
                    continue;
                }
                found.add(|| {
                    let hint = suggestions::key(section, key, &self.table);
                    let line = file.line(section, Some(key)).unwrap_or(1);
                    let (path, section, key) = (path.to_owned(), section.clone(), key.clone());
                    ConfigError::Key { path, line, section, key, hint }
                });
            }
        }
        true
    }

    /// Takes over the values of variables. Warns about those that set no key.
    fn overlay_environment(
        &mut self,
        given: impl IntoIterator<Item = (String, String)>,
        found: &mut Refused,
    ) {
        let mut names = BTreeMap::new();
        for (section, keys) in &self.table {
            for (key, value) in keys.as_table().into_iter().flatten() {
                let name = format!("{}{section}_{key}", unknown_variables::PREFIX).to_uppercase();
                names.insert(name, (section.clone(), key.clone(), value.clone()));
            }
        }
        let known: Vec<&str> = names.keys().map(String::as_str).collect();
        let warning = |name: &str| unknown_variables::warning(name, &known);
        // The map sorts the variables, so that CHANCERY_LOG_LEVEL always overrides CHANCERY_LOG.
        let (given, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            given.into_iter().partition(|(name, _)| unknown_variables::is_ours(name));
        let unknown = given.keys().filter(|name| !names.contains_key(*name));
        found.warnings.extend(unknown.filter_map(|name| warning(name)));
        let ignored =
            others.iter().filter_map(|(name, value)| otel_variables::warning(name, value));
        found.warnings.extend(ignored);
        let level = ("log".to_owned(), "level".to_owned(), Value::String(String::new()));
        names.insert("CHANCERY_LOG".to_owned(), level);
        for (name, text) in given {
            if let Some((section, key, like)) = names.get(&name) {
                let value = read_like(like, &text);
                self.set(section, key, value, Source::Environment(name));
            }
        }
    }

    /// Finds the values that break a rule. A value with an error of its own is replaced by the default before rules about
    /// several values are checked.
    fn find_problems(&self, files: NamedFiles, found: &mut Refused) {
        let mut rest = self.clone();
        for (section, keys) in Config::SECTIONS {
            for Key { name: key, bounds, .. } in *keys {
                let Some(value) = self.value(section, key) else { continue };
                // Each key is checked separately, so that no error hides another one.
                let one = Table::from_iter([((*key).to_owned(), value.clone())]);
                let one = Table::from_iter([((*section).to_owned(), Value::Table(one))]);
                let has_key = has_private_key(value.to_string().as_bytes());
                let rule = match Config::deserialize(one) {
                    _ if has_key => {
                        "contains a private key, which is not shown; give the path of its file"
                            .to_owned()
                    }
                    Err(error) => type_rule((section, key), value, bounds, error.message()),
                    Ok(_) if bounds.allow(value) => continue,
                    Ok(_) => format!("must be {}", bounds.range().unwrap_or_default()),
                };
                found.add(|| self.refuse(section, key, rule));
                rest.reset(section, key);
            }
        }
        let Ok(config) = Config::deserialize(rest.table) else { return };
        for (section, key, rule) in rules(&config) {
            found.add(|| self.refuse(section, key, rule));
        }
        if files != NamedFiles::Ignore {
            self.find_unusable_files(&config, files, found);
        }
    }

    /// Finds the files that a replica cannot use.
    fn find_unusable_files(&self, config: &Config, files: NamedFiles, found: &mut Refused) {
        for (section, key, error) in tls::unusable_tls_files(config) {
            found.add(|| self.refuse(section, key, error.to_string()));
        }
        for (key, error) in config.auth.unusable_files() {
            found.add(|| self.refuse("auth", key, error));
        }
        if let Some(error) = config.audit.unusable_policy() {
            found.add(|| self.refuse("audit", "policy_file", error.to_string()));
        }
        for (section, key, error) in named_files::unusable(config, files) {
            found.add(|| self.refuse(section, key, error));
        }
        let credential = config.secrets.missing_directory();
        if files == NamedFiles::CheckForStart {
            if let Some(error) = credential {
                found.add(|| self.refuse("secrets", "credential", error.to_owned()));
            }
            return;
        }
        let mut warn = |section, key, text| {
            found.warnings.push(self.refuse(section, key, text).to_string());
        };
        for (key, error) in config.secrets.unusable_files() {
            let text = "; a replica starts without these keys, and serves everything but secrets";
            warn("secrets", key, error + text);
        }
        if let Some(error) = named_files::missing_program(config) {
            let effect = if config.validation.external_required {
                "refuses all writes"
            } else {
                "does not check writes with it"
            };
            let text = format!("{error}; a replica starts, and {effect}");
            warn("validation", "external_command", text);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let refused = tls::certificates_refused_at(config, i64::try_from(now).unwrap_or(i64::MAX));
        for (section, key, text) in refused.into_iter().chain(named_files::created_at_start(config))
        {
            warn(section, key, text);
        }
        if credential.is_some() {
            let text = "was not checked, because systemd provides credentials only to its units";
            warn("secrets", "credential", text.to_owned());
        }
    }

    fn value(&self, section: &str, key: &str) -> Option<&Value> {
        self.keys(section).and_then(|keys| keys.get(key))
    }

    /// Resets a key to its default.
    fn reset(&mut self, section: &str, key: &str) {
        let default =
            table(&Config::default()).get(section).and_then(|keys| keys.get(key)).cloned();
        if let (Some(keys), Some(value)) =
            (self.table.get_mut(section).and_then(Value::as_table_mut), default)
        {
            keys.insert(key.to_owned(), value);
        }
    }

    fn finish(self, mut found: Refused) -> Result<Loaded, Refused> {
        match Config::deserialize(self.table.clone()) {
            Ok(config) => Ok(Loaded { config, warnings: found.warnings, sources: self.sources }),
            Err(error) => {
                found.add(|| self.refuse("", "", error.message().to_owned()));
                Err(found)
            }
        }
    }

    fn refuse(&self, section: &str, key: &str, rule: String) -> ConfigError {
        let name = format!("{section}.{key}");
        let none = Value::String(String::new());
        let from = self.sources.get(&name).cloned().unwrap_or(Source::Default);
        ConfigError::value(&name, self.value(section, key).unwrap_or(&none), from, rule)
    }
}

/// Parses the text of a variable as the type of the key. Returns the text itself if it does not
/// parse.
fn read_like(like: &Value, text: &str) -> Value {
    let read = match like {
        Value::Integer(_) => text.parse().ok().map(Value::Integer),
        Value::Boolean(_) => text.parse().ok().map(Value::Boolean),
        Value::Array(_) if text.trim() == "[]" => Some(Value::Array(Vec::new())),
        Value::Array(_) if text.trim_start().starts_with("[{") => tables(text),
        Value::Array(_) => Some(list(text.split(','))),
        _ => None,
    };
    read.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Parses a list of inline tables, such as the sources of MCP.
fn tables(text: &str) -> Option<Value> {
    let mut table: Table = format!("list = {text}").parse().ok()?;
    table.remove("list")
}

/// Returns a list of items. Drops one empty item at the end, after a trailing comma. Other empty
/// items stay, so that an empty variable is not mistaken for an empty list.
pub fn list<'a>(items: impl IntoIterator<Item = &'a str>) -> Value {
    let mut items: Vec<&str> = items.into_iter().map(str::trim).collect();
    if items.len() > 1 {
        items.pop_if(|last| last.is_empty());
    }
    Value::Array(items.into_iter().map(|item| Value::String(item.to_owned())).collect())
}

fn type_rule(
    (section, key): (&str, &str),
    value: &Value,
    bounds: &Bounds,
    message: &str,
) -> String {
    if message.contains("socket address") {
        return match section {
            "raft" => format!("{LISTEN_RULE}; put a host name into raft.advertise"),
            _ => LISTEN_RULE.to_owned(),
        };
    }
    if (section, key) == ("mcp", "sources") {
        let message = message.trim().replace('\n', "; ");
        return format!(
            "{message}; a source is {{name = \"pilot\", address or listen = \"127.0.0.1:9901\", scope = \"mesh\", collections = \
             [\"istio/networking/v1alpha3/virtualservices\"]}}"
        );
    }
    if section == "auth" {
        let message = message.trim().replace('\n', "; ");
        return format!(
            "{message}; an entry is {{name = \"corp\", url = \"https://idp.example\", jwks_url = \
             \"https://idp.example/keys\"}}"
        );
    }
    match (value, message.split_once("expected ")) {
        // The text after the last `expected` names the expected type.
        (_, Some((_, "u64" | "usize" | "u32"))) => {
            let range =
                format!("a whole number from {} to {}", bounds.range.start(), bounds.range.end());
            if bounds.or_zero {
                format!("is neither 0 nor {range}")
            } else {
                format!("is not {range}")
            }
        }
        (_, Some((_, "a boolean"))) => "is neither true nor false".to_owned(),
        (_, Some((_, "a sequence"))) => "is not a list such as [\"a\", \"b\"]".to_owned(),
        _ => message.trim().replace('\n', "; "),
    }
}

#[cfg(test)]
mod tests;
