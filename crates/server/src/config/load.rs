//! Loads a configuration from defaults, file, environment and flags, and checks it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use toml::{Table, Value};

use super::{
    Config, ConfigError, Source, environment,
    keys::{render, table},
};

/// The keys that the command line sets.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    /// The configuration file.
    pub(crate) file: Option<PathBuf>,
    /// The keys with their values.
    pub(crate) values: Vec<FlagValue>,
}

/// A key that a flag sets.
#[derive(Debug)]
pub(crate) struct FlagValue {
    pub(crate) section: &'static str,
    pub(crate) key: &'static str,
    pub(crate) value: Value,
    /// The name of the flag, for messages.
    pub(crate) flag: &'static str,
}

/// A valid configuration.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    /// Findings that are not errors.
    pub(crate) warnings: Vec<String>,
    /// The sources of all keys that do not have their default.
    sources: BTreeMap<String, Source>,
}

impl Loaded {
    /// Returns whether a file, a variable or a flag sets this key.
    pub(crate) fn is_given(&self, key: &str) -> bool {
        self.sources.contains_key(key)
    }

    /// Returns the configuration as a TOML file with comments.
    pub(crate) fn render(&self) -> String {
        render(&self.config)
    }
}

/// A rejected configuration.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) errors: Vec<ConfigError>,
    /// Findings that are not errors.
    pub(crate) warnings: Vec<String>,
}

/// Loads and checks a configuration. `environment` contains all variables of the process.
///
/// # Errors
/// Returns all errors: unknown sections and keys, and values that break a rule. If the file cannot
/// be read or parsed, only that error is returned.
pub(crate) fn load(
    flags: &Flags,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Loaded, Refused> {
    let mut values =
        Values { table: table(&Config::default()), sources: BTreeMap::new(), warnings: Vec::new() };
    let file = flags.file.as_deref().map(|path| values.overlay_file(path)).transpose();
    values.overlay_environment(environment);
    let warnings = values.warnings.clone();
    let refused = |errors| Refused { errors, warnings };
    let mut errors = match file {
        Ok(errors) => errors.unwrap_or_default(),
        Err(error) => return Err(refused(vec![error])),
    };
    for FlagValue { section, key, value, flag } in &flags.values {
        values.set(section, key, value.clone(), Source::Flag(flag));
    }
    errors.extend(values.problems());
    if errors.is_empty() { values.check().map_err(refused) } else { Err(refused(errors)) }
}

#[derive(Clone)]
struct Values {
    table: Table,
    sources: BTreeMap<String, Source>,
    warnings: Vec<String>,
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

    /// Takes over the values of a file. Returns an error for each unknown section and key.
    fn overlay_file(&mut self, path: &Path) -> Result<Vec<ConfigError>, ConfigError> {
        let mut errors = Vec::new();
        let text = fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let file: Table = text.parse().map_err(|error: toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = 1 + text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
            let message = error.message().replace('\n', "; ");
            ConfigError::Syntax { path: path.to_owned(), line, message }
        })?;
        for (section, keys) in file {
            let Some(known) = self.keys(&section) else {
                let known = self.table.keys().cloned().collect::<Vec<_>>().join(", ");
                errors.push(ConfigError::Section { path: path.to_owned(), section, known });
                continue;
            };
            let known = known.keys().cloned().collect::<Vec<_>>();
            let Value::Table(keys) = keys else {
                let rule = format!("is a section; write [{section}] and its keys below");
                let (value, from) = (keys.to_string(), Source::File(path.to_owned()));
                errors.push(ConfigError::Value { key: section, value, from, rule });
                continue;
            };
            for (key, value) in keys {
                if !known.contains(&key) {
                    let known = known.join(", ");
                    let (path, section) = (path.to_owned(), section.clone());
                    errors.push(ConfigError::Key { path, section, key, known });
                    continue;
                }
                self.set(&section, &key, value, Source::File(path.to_owned()));
            }
        }
        Ok(errors)
    }

    fn overlay_environment(&mut self, given: impl IntoIterator<Item = (String, String)>) {
        let mut names = BTreeMap::new();
        for (section, keys) in &self.table {
            for (key, value) in keys.as_table().into_iter().flatten() {
                let name = format!("{}{section}_{key}", environment::PREFIX).to_uppercase();
                names.insert(name, (section.clone(), key.clone(), value.clone()));
            }
        }
        let known: Vec<&str> = names.keys().map(String::as_str).collect();
        let warning = |name: &str| environment::warning(name, &known);
        // The map sorts the variables, so that CHANCERY_LOG_LEVEL always overrides CHANCERY_LOG.
        let given: BTreeMap<String, String> =
            given.into_iter().filter(|(name, _)| environment::is_ours(name)).collect();
        let warnings: Vec<String> = (given.keys().filter(|name| !names.contains_key(*name)))
            .filter_map(|name| warning(name))
            .collect();
        self.warnings.extend(warnings);
        let level = ("log".to_owned(), "level".to_owned(), Value::String(String::new()));
        names.insert("CHANCERY_LOG".to_owned(), level);
        for (name, text) in given {
            if let Some((section, key, like)) = names.get(&name) {
                let value = read_like(like, &text);
                self.set(section, key, value, Source::Environment(name));
            }
        }
    }

    /// Returns an error for each value that breaks a rule. A value of the wrong type, or one that a
    /// component rejects, is replaced by the default while the other values are checked.
    fn problems(&self) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        let mut rest = self.clone();
        // Each key is checked separately, so that no error hides another one.
        for (section, keys) in &self.table {
            for (key, value) in keys.as_table().into_iter().flatten() {
                let one = Table::from_iter([(key.clone(), value.clone())]);
                let one = Table::from_iter([(section.clone(), Value::Table(one))]);
                if let Err(error) = Config::deserialize(one) {
                    errors.push(self.refuse(
                        section,
                        key,
                        type_rule(section, key, value, error.message()),
                    ));
                    rest.reset(section, key);
                }
            }
        }
        let mut seen = BTreeSet::new();
        let mut broken = match Config::deserialize(rest.table.clone()) {
            Ok(config) => rules(&config),
            Err(_) => return errors,
        };
        // A component reports only the first setting that it rejects. It checks again without that
        // setting.
        loop {
            for (section, key, rule) in broken {
                seen.insert((section, key));
                errors.push(self.refuse(section, key, rule));
                rest.reset(section, key);
            }
            let Ok(config) = Config::deserialize(rest.table.clone()) else { return errors };
            broken = component_rules(&config);
            broken.retain(|(section, key, _)| !seen.contains(&(*section, *key)));
            if broken.is_empty() {
                return errors;
            }
        }
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

    fn check(self) -> Result<Loaded, Vec<ConfigError>> {
        let config = Config::deserialize(self.table.clone())
            .map_err(|error| vec![self.refuse("", "", error.message().to_owned())])?;
        Ok(Loaded { config, warnings: self.warnings, sources: self.sources })
    }

    fn refuse(&self, section: &str, key: &str, rule: String) -> ConfigError {
        let name = format!("{section}.{key}");
        let value = self.keys(section).and_then(|keys| keys.get(key));
        let value = value.map(Value::to_string).unwrap_or_default();
        let from = self.sources.get(&name).cloned().unwrap_or(Source::Default);
        ConfigError::Value { key: name, value, from, rule }
    }
}

/// Parses the text of a variable as the type of the key. Returns the text itself if it does not
/// parse.
fn read_like(like: &Value, text: &str) -> Value {
    let read = match like {
        Value::Integer(_) => text.parse().ok().map(Value::Integer),
        Value::Boolean(_) => text.parse().ok().map(Value::Boolean),
        Value::Array(_) => Some(list(text.split(','))),
        _ => None,
    };
    read.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Returns a list of items. Drops one empty item at the end, after a trailing comma. Other empty
/// items stay, so that an empty variable is not mistaken for an empty list.
pub(crate) fn list<'a>(items: impl IntoIterator<Item = &'a str>) -> Value {
    let mut items: Vec<&str> = items.into_iter().map(str::trim).collect();
    if items.len() > 1 {
        items.pop_if(|last| last.is_empty());
    }
    Value::Array(items.into_iter().map(|item| Value::String(item.to_owned())).collect())
}

/// The rule for an address to listen on.
pub(crate) const LISTEN_RULE: &str = "must be IP:PORT, such as 127.0.0.1:18000 or [::1]:18000";

fn type_rule(section: &str, key: &str, value: &Value, message: &str) -> String {
    if message.contains("socket address") {
        return match section {
            "raft" => format!("{LISTEN_RULE}; put a host name into raft.advertise"),
            _ => LISTEN_RULE.to_owned(),
        };
    }
    match (value, message.split_once("expected ")) {
        // The text after the last `expected` names the expected type.
        (_, Some((_, "u64" | "usize"))) => {
            // Replica IDs start at 1. TOML cannot represent larger numbers.
            let min = u8::from(key == "replica_id");
            format!("is not a whole number from {min} to {}", i64::MAX)
        }
        (_, Some((_, "u32"))) => format!("is not a whole number from 0 to {}", u32::MAX),
        (_, Some((_, "a boolean"))) => "is neither true nor false".to_owned(),
        (_, Some((_, "a sequence"))) => "is not a list such as [\"a\", \"b\"]".to_owned(),
        _ => message.trim().replace('\n', "; "),
    }
}

/// The log levels.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// Returns an error for each invalid item of a list of levels. The log library would take an
/// unknown word for a module, and log nothing.
fn level_rules(text: &str) -> impl Iterator<Item = String> {
    let is_level = |word: &str| LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    let is_module = |word: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-');
        !word.is_empty() && word.chars().all(allowed)
    };
    let is_wrong = move |directive: &&str| match directive.split_once('=') {
        None => !is_level(directive),
        Some((module, level)) => !is_module(module) || !is_level(level),
    };
    let levels = LEVELS.join(", ");
    text.split(',').map(str::trim).filter(is_wrong).map(move |wrong| {
        format!("{wrong:?} is neither a level ({levels}) nor one for a module (chancery_xds=debug)")
    })
}

/// Returns the section, key and rule of each value that breaks a rule.
fn rules(config: &Config) -> Vec<(&'static str, &'static str, String)> {
    let mut broken = Vec::new();
    let mut rule = |holds: bool, section, key, text: String| {
        if !holds {
            broken.push((section, key, text));
        }
    };
    let Config { store, raft, xds, admin, log, shutdown } = config;
    rule(
        !store.data_dir.as_os_str().is_empty(),
        "store",
        "data_dir",
        "must name a directory".to_owned(),
    );
    let plaintext = |section: &str| {
        format!(
            "is not a loopback address, and the port is not encrypted; set {section}.allow_plaintext = true \
             (--allow-plaintext) if the network is trusted"
        )
    };
    let safe = |address: SocketAddr, allowed: bool| address.ip().is_loopback() || allowed;
    rule(safe(xds.address, xds.allow_plaintext), "xds", "address", plaintext("xds"));
    rule(safe(admin.address, admin.allow_plaintext), "admin", "address", plaintext("admin"));
    let raft_rules = raft.rules();
    for (key, text) in &raft_rules {
        rule(false, "raft", key, text.clone());
    }
    let ports = [
        ("raft", "address", raft.address),
        ("xds", "address", xds.address),
        ("admin", "address", admin.address),
    ];
    for (index, (section, key, address)) in ports.iter().enumerate() {
        for (other, other_key, other_address) in &ports[..index] {
            let same = address.port() != 0 && address == other_address;
            rule(!same, section, key, format!("is already used by {other}.{other_key}"));
        }
    }
    let catch_up = (1..=60_000).contains(&xds.catch_up_timeout.millis());
    rule(catch_up, "xds", "catch_up_timeout", "must be from 1ms to 1m".to_owned());
    let ack_timeout = (100..=600_000).contains(&xds.ack_timeout.millis());
    rule(ack_timeout, "xds", "ack_timeout", "must be from 100ms to 10m".to_owned());
    let close_after = xds.ack_close_after.millis();
    let fits =
        (10_000..=86_400_000).contains(&close_after) && xds.ack_close_after > xds.ack_timeout;
    let text = "must be 0s, or from 10s to 24h and longer than xds.ack_timeout".to_owned();
    rule(close_after == 0 || fits, "xds", "ack_close_after", text);
    // A client must be able to list all its names in one request when it reconnects.
    let names = xds.names_per_request_max >= xds.names_max;
    rule(
        names,
        "xds",
        "names_per_request_max",
        format!("must be at least xds.names_max, {}", xds.names_max),
    );
    for (key, n) in [("types_max", xds.types_max), ("names_max", xds.names_max)] {
        rule(n > 0, "xds", key, "must be at least 1".to_owned());
    }
    // Each shard is a task with its own queues. More shards than cores do not help.
    rule(xds.shards <= 1024, "xds", "shards", "must be at most 1024".to_owned());
    let target = (64 << 10..=1 << 30).contains(&xds.response_bytes_target.bytes());
    rule(target, "xds", "response_bytes_target", "must be from 64KiB to 1GiB".to_owned());
    let request = (64 << 10..=2 << 30).contains(&admin.request_bytes_max.bytes());
    rule(request, "admin", "request_bytes_max", "must be from 64KiB to 2GiB".to_owned());
    let is_name = |name: &String| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        !name.is_empty() && name.chars().all(allowed)
    };
    for name in admin.hosts.iter().filter(|name| !is_name(name)) {
        rule(false, "admin", "hosts", format!("{name:?} is not a host name without a port"));
    }
    let connections = (1..=100_000).contains(&admin.connections_max);
    rule(connections, "admin", "connections_max", "must be from 1 to 100000".to_owned());
    for (key, span) in admin.timeouts() {
        let fits = (100..=3_600_000).contains(&span.millis());
        rule(fits, "admin", key, "must be from 100ms to 1h".to_owned());
    }
    for text in level_rules(&log.level) {
        rule(false, "log", "level", text);
    }
    rule(
        shutdown.timeout.millis() <= 600_000,
        "shutdown",
        "timeout",
        "must be at most 10m".to_owned(),
    );
    broken
}

/// Returns the section, key and rule of the first setting that each component rejects. The
/// components use the same names of settings as the configuration.
fn component_rules(config: &Config) -> Vec<(&'static str, &'static str, String)> {
    let mut broken = Vec::new();
    if let Err(error) = config.store().validate() {
        let section = match error.key {
            "replica_id" | "connections_max" => "raft",
            _ => "store",
        };
        broken.push((section, error.key, format!("must be {}", error.rule)));
    }
    if let Err(error) = config.fanout().validate() {
        broken.push(("xds", error.key, format!("must be at least {}", error.min)));
    }
    if let Err(error) = config.xds().validate() {
        broken.push(("xds", error.key, error.rule.to_owned()));
    }
    broken
}

#[cfg(test)]
mod tests;
