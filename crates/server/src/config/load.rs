//! From defaults, file, environment and flags to a checked configuration.

use std::{
    collections::BTreeMap,
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

/// What the command line says of the configuration.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    /// The file.
    pub(crate) file: Option<PathBuf>,
    /// Keys that are given.
    pub(crate) values: Vec<FlagValue>,
}

/// A key given on the command line.
#[derive(Debug)]
pub(crate) struct FlagValue {
    pub(crate) section: &'static str,
    pub(crate) key: &'static str,
    pub(crate) value: Value,
    /// The flag, for messages.
    pub(crate) flag: &'static str,
}

/// A configuration that was checked.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    /// What is odd, but no error.
    pub(crate) warnings: Vec<String>,
    /// Where each key that was given came from; all others have their default.
    sources: BTreeMap<String, Source>,
}

impl Loaded {
    /// Whether somebody has given this key.
    pub(crate) fn is_given(&self, key: &str) -> bool {
        self.sources.contains_key(key)
    }

    /// The configuration as a file with comments.
    pub(crate) fn render(&self) -> String {
        render(&self.config)
    }
}

/// Reads and checks a configuration. `environment` has all variables of the process.
///
/// # Errors
/// All that is wrong with the values, or the first thing that keeps them from being read.
pub(crate) fn load(
    flags: &Flags,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Loaded, Vec<ConfigError>> {
    let mut values =
        Values { table: table(&Config::default()), sources: BTreeMap::new(), warnings: Vec::new() };
    if let Some(path) = &flags.file {
        values.overlay_file(path).map_err(|error| vec![error])?;
    }
    values.overlay_environment(environment);
    for FlagValue { section, key, value, flag } in &flags.values {
        values.set(section, key, value.clone(), Source::Flag(flag));
    }
    values.check()
}

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

    fn overlay_file(&mut self, path: &Path) -> Result<(), ConfigError> {
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
                return Err(ConfigError::Section { path: path.to_owned(), section, known });
            };
            let known = known.keys().cloned().collect::<Vec<_>>();
            let Value::Table(keys) = keys else {
                let rule = format!("is a section: write [{section}] and its keys below");
                let (value, from) = (keys.to_string(), Source::File(path.to_owned()));
                return Err(ConfigError::Value { key: section, value, from, rule });
            };
            for (key, value) in keys {
                if !known.contains(&key) {
                    let known = known.join(", ");
                    return Err(ConfigError::Key { path: path.to_owned(), section, key, known });
                }
                self.set(&section, &key, value, Source::File(path.to_owned()));
            }
        }
        Ok(())
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
        // Sorted: CHANCERY_LOG_LEVEL overrides CHANCERY_LOG, whatever order the process has them
        // in.
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

    fn check(self) -> Result<Loaded, Vec<ConfigError>> {
        let mut errors = Vec::new();
        // Each key alone, so that all that is wrong is told at once.
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
                }
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let config = Config::deserialize(self.table.clone())
            .map_err(|error| vec![self.refuse("", "", error.message().to_owned())])?;
        let errors: Vec<ConfigError> = (rules(&config).into_iter())
            .map(|(section, key, rule)| self.refuse(section, key, rule))
            .collect();
        if !errors.is_empty() {
            return Err(errors);
        }
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

/// Text of the environment as the type that the key has; text again if it is not of that type.
fn read_like(like: &Value, text: &str) -> Value {
    let read = match like {
        Value::Integer(_) => text.parse().ok().map(Value::Integer),
        Value::Boolean(_) => text.parse().ok().map(Value::Boolean),
        Value::Array(_) => Some(list(text.split(','))),
        _ => None,
    };
    read.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// A list, as it was between commas. A comma at its end is left out; whatever else is empty is not, so that
/// a variable that was not set is not taken for the wish for an empty list.
pub(crate) fn list<'a>(items: impl IntoIterator<Item = &'a str>) -> Value {
    let mut items: Vec<&str> = items.into_iter().map(str::trim).collect();
    if items.len() > 1 {
        items.pop_if(|last| last.is_empty());
    }
    Value::Array(items.into_iter().map(|item| Value::String(item.to_owned())).collect())
}

/// What an address to listen on has to be.
pub(crate) const LISTEN_RULE: &str = "has to be IP:PORT, such as 127.0.0.1:18000 or [::1]:18000";

fn type_rule(section: &str, key: &str, value: &Value, message: &str) -> String {
    if message.contains("socket address") {
        return match section {
            "raft" => format!("{LISTEN_RULE}; a name goes into raft.advertise"),
            _ => LISTEN_RULE.to_owned(),
        };
    }
    match (value, message.split_once("expected ")) {
        // The last one names the type that was wanted.
        (_, Some((_, "u64" | "usize"))) => {
            // There is no replica 0; and TOML has no greater numbers.
            let min = u8::from(key == "replica_id");
            format!("is not a whole number from {min} to {}", i64::MAX)
        }
        (_, Some((_, "u32"))) => format!("is not a whole number from 0 to {}", u32::MAX),
        (_, Some((_, "a boolean"))) => "is neither true nor false".to_owned(),
        (_, Some((_, "a sequence"))) => "is not a list such as [\"a\", \"b\"]".to_owned(),
        _ => message.trim().replace('\n', "; "),
    }
}

/// The levels of the log.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// What is wrong with a list of levels. A word that is no level would pass for a module, and nothing
/// would be logged.
fn level_rule(text: &str) -> Option<String> {
    let is_level = |word: &str| LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    let is_module = |word: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-');
        !word.is_empty() && word.chars().all(allowed)
    };
    let wrong =
        text.split(',').map(str::trim).find(|directive| match directive.split_once('=') {
            None => !is_level(directive),
            Some((module, level)) => !is_module(module) || !is_level(level),
        })?;
    let levels = LEVELS.join(", ");
    Some(format!(
        "{wrong:?} is neither a level ({levels}) nor one for a module (chancery_xds=debug)"
    ))
}

/// Section, key and rule of each value that breaks one.
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
            "is not a loopback address, and the port is not encrypted: set {section}.allow_plaintext = true \
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
            rule(!same, section, key, format!("is also that of {other}.{other_key}"));
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
    // Each component knows its own rules, and calls its settings by the names they have here.
    if let Err(error) = config.store().validate() {
        let section = match error.key {
            "replica_id" | "connections_max" => "raft",
            _ => "store",
        };
        // Its section may have said so, with narrower bounds.
        let is_told = raft_rules.iter().any(|(key, _)| section == "raft" && *key == error.key);
        rule(is_told, section, error.key, format!("has to be {}", error.rule));
    }
    if let Err(error) = config.fanout().validate() {
        rule(false, "xds", error.key, format!("has to be at least {}", error.min));
    }
    if let Err(error) = config.xds().validate() {
        rule(false, "xds", error.key, error.rule.to_owned());
    }
    // A request that the names of a full stream would not fit in would keep its client from coming back.
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
    // Each is a task with queues of its own, and more than there are cores serve nobody sooner.
    rule(xds.shards <= 1024, "xds", "shards", "must be at most 1024".to_owned());
    let target = (64 << 10..=1 << 30).contains(&xds.response_bytes_target.bytes());
    rule(target, "xds", "response_bytes_target", "must be from 64KiB to 1GiB".to_owned());
    let request = (64 << 10..=2 << 30).contains(&admin.request_bytes_max.bytes());
    rule(request, "admin", "request_bytes_max", "must be from 64KiB to 2GiB".to_owned());
    let connections = (1..=100_000).contains(&admin.connections_max);
    rule(connections, "admin", "connections_max", "must be from 1 to 100000".to_owned());
    for (key, span) in admin.timeouts() {
        let fits = (100..=3_600_000).contains(&span.millis());
        rule(fits, "admin", key, "must be from 100ms to 1h".to_owned());
    }
    if let Some(text) = level_rule(&log.level) {
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn load_with(file: &str, environment: &[(&str, &str)]) -> Result<Loaded, String> {
        let mut written = tempfile::NamedTempFile::new().unwrap();
        written.write_all(file.as_bytes()).unwrap();
        let path = written.path().to_owned();
        let flags = Flags { file: Some(path.clone()), values: vec![] };
        let environment = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        load(&flags, environment).map_err(|errors| {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            lines.join("\n").replace(path.to_str().unwrap(), "FILE")
        })
    }

    #[test]
    fn an_error_names_the_key_the_value_its_source_and_the_rule() {
        let address = LISTEN_RULE;
        for (file, expected) in [
            ("[xds]\naddress = 'x'", format!("xds.address = \"x\" (from FILE): {address}")),
            ("[xds]\naddress = 18000", format!("xds.address = 18000 (from FILE): {address}")),
            (
                "[raft]\naddress = 'localhost:1'",
                format!("raft.address = \"localhost:1\" (from FILE): {address}; a name goes into raft.advertise"),
            ),
            (
                "[store]\nsnapshot_log_entries = 0",
                "store.snapshot_log_entries = 0 (from FILE): has to be at least 1".to_owned(),
            ),
            (
                "[store]\nsnapshot_log_entries = -1",
                "store.snapshot_log_entries = -1 (from FILE): is not a whole number from 0 to 9223372036854775807".to_owned(),
            ),
            (
                "[xds]\nallow_plaintext = 'yes'",
                "xds.allow_plaintext = \"yes\" (from FILE): is neither true nor false".to_owned(),
            ),
            (
                "[shutdown]\ntimeout = 5",
                "shutdown.timeout = 5 (from FILE): is not a time such as 250ms, 10s, 5m or 1h".to_owned(),
            ),
            (
                "[admin]\nrequest_bytes_max = '1kb'",
                "admin.request_bytes_max = \"1kb\" (from FILE): is not a size such as 4096, 64KiB, 3MiB or 1GiB"
                    .to_owned(),
            ),
            (
                "[log]\nformat = 'xml'",
                "log.format = \"xml\" (from FILE): unknown variant `xml`, expected `text` or `json`".to_owned(),
            ),
            (
                "[log]\nlevle = 'info'",
                "FILE: log.levle is no key; keys of [log] are format, level".to_owned(),
            ),
            (
                "[xdss]\n",
                "FILE: [xdss] is no section; sections are admin, log, raft, shutdown, store, xds".to_owned(),
            ),
            (
                "xds = 1",
                "xds = 1 (from FILE): is a section: write [xds] and its keys below".to_owned(),
            ),
            (
                "[admin]\naddress = '127.0.0.1:18000'",
                "admin.address = \"127.0.0.1:18000\" (from FILE): is also that of xds.address".to_owned(),
            ),
        ] {
            assert_eq!(load_with(file, &[]).unwrap_err(), expected);
        }
        let id = [("CHANCERY_RAFT_REPLICA_ID", "18446744073709551615")];
        assert_eq!(
            load_with("", &id).unwrap_err(),
            "raft.replica_id = \"18446744073709551615\" (from CHANCERY_RAFT_REPLICA_ID): is not a whole number from 1 to \
             9223372036854775807"
        );
        // Two parts have a rule for it; it was told twice, once by the name of no key.
        let none = [("CHANCERY_RAFT_CONNECTIONS_MAX", "0")];
        assert_eq!(
            load_with("", &none).unwrap_err(),
            "raft.connections_max = 0 (from CHANCERY_RAFT_CONNECTIONS_MAX): must be from 256 to 65536"
        );
        let error = load_with("[xds]\nrequests_burst_max = -1", &[]).unwrap_err();
        assert!(error.ends_with("is not a whole number from 0 to 4294967295"), "{error}");
    }

    #[test]
    fn silence_is_allowed_for_ever_or_for_longer_than_an_answer_takes() {
        let rule = "must be 0s, or from 10s to 24h and longer than xds.ack_timeout";
        for file in [
            "[xds]\nack_close_after = '5s'",
            "[xds]\nack_close_after = '25h'",
            "[xds]\nack_timeout = '1m'\nack_close_after = '1m'",
        ] {
            let error = load_with(file, &[]).unwrap_err();
            assert!(error.starts_with("xds.ack_close_after = "), "{error}");
            assert!(error.ends_with(rule), "{error}");
        }
        let loaded = load_with("[xds]\nack_close_after = '5m'", &[]).unwrap();
        assert_eq!(loaded.config.fanout().session.ack_close_after_ms, Some(300_000));
        let loaded = load_with("", &[]).unwrap();
        assert_eq!(loaded.config.fanout().session.ack_close_after_ms, None);
    }

    /// OPS-11: a limit that can not be is refused with its key, its value and its rule.
    #[test]
    fn every_limit_of_the_xds_port_has_a_rule() {
        let positive = "it has to be more than 0";
        for (key, value, rule) in [
            ("shards", "1025", "must be at most 1024"),
            ("connections_max", "0", positive),
            ("connections_per_peer_max", "0", positive),
            ("streams_max", "0", "has to be at least 1"),
            ("subscriptions_bytes_max", "\"0\"", "has to be at least 1"),
            ("streams_per_connection_max", "0", positive),
            ("request_bytes_max", "\"1023\"", "it has to be from 1024 to 1073741824"),
            ("request_bytes_max", "\"2GiB\"", "it has to be from 1024 to 1073741824"),
            ("large_requests_bytes_max", "\"0\"", positive),
            ("large_request_timeout", "\"0s\"", positive),
            ("types_max", "0", "must be at least 1"),
            ("names_max", "0", "must be at least 1"),
            ("names_per_request_max", "999999", "must be at least xds.names_max, 1000000"),
            ("name_bytes_max", "\"0\"", "it has to be from 1 to 4096"),
            ("name_bytes_max", "\"5KiB\"", "it has to be from 1 to 4096"),
            ("nack_message_bytes_max", "\"0\"", positive),
            ("requests_per_second_max", "0", positive),
            ("requests_burst_max", "0", positive),
            ("node_bytes_max", "\"0\"", positive),
            ("node_metadata_max", "0", positive),
            ("header_list_bytes_max", "\"1023\"", "it has to be from 1024 to 16777216"),
            ("stream_window_bytes", "\"65534\"", "it has to be from 65535 to 2147483647"),
            ("stream_window_bytes", "\"8GiB\"", "it has to be from 65535 to 2147483647"),
            ("connection_window_bytes", "\"1\"", "it has to be from 65535 to 2147483647"),
            ("send_buffer_bytes_max", "\"1KiB\"", "it has to be from 16384 to 4294967295"),
            ("pending_resets_max", "0", positive),
            ("error_resets_max", "0", positive),
            ("control_frames_per_second_max", "0", positive),
            ("control_frames_burst_max", "99", "it has to be at least 100"),
            ("keepalive_interval", "\"0s\"", positive),
            ("keepalive_timeout", "\"0s\"", positive),
            ("first_stream_timeout", "\"0s\"", positive),
            ("idle_timeout", "\"0s\"", positive),
            ("drain_connections_per_second", "0", positive),
            ("close_timeout", "\"0s\"", positive),
            ("ack_timeout", "\"99ms\"", "must be from 100ms to 10m"),
            ("catch_up_timeout", "\"61s\"", "must be from 1ms to 1m"),
        ] {
            let error = load_with(&format!("[xds]\n{key} = {value}"), &[]).unwrap_err();
            assert!(error.starts_with(&format!("xds.{key} = ")), "{key}: {error}");
            assert!(error.ends_with(rule) && error.lines().count() == 1, "{key}: {error}");
            // The environment sets it as well.
            let variable = format!("CHANCERY_XDS_{}", key.to_uppercase());
            let error = load_with("", &[(&variable, value.trim_matches('"'))]).unwrap_err();
            let from = format!("(from {variable}): ");
            assert!(error.contains(&from) && error.ends_with(rule), "{key}: {error}");
        }
    }

    /// A word that is no level silenced the log.
    #[test]
    fn levels_of_the_log_are_words_that_are_known() {
        for (level, wrong) in [
            ("inof", "inof"),
            ("", ""),
            ("info,==", "=="),
            ("info,", ""),
            ("info,chancery_xds", "chancery_xds"),
            ("info,chancery_xds=debgu", "chancery_xds=debgu"),
            ("info,=debug", "=debug"),
            ("info,a b=debug", "a b=debug"),
        ] {
            let error = load_with("", &[("CHANCERY_LOG", level)]).unwrap_err();
            let expected =
                format!("log.level = {level:?} (from CHANCERY_LOG): {wrong:?} is neither a level");
            assert!(error.starts_with(&expected), "{error}");
            assert!(load_with(&format!("[log]\nlevel = {level:?}"), &[]).is_err(), "{level:?}");
        }
        for level in ["info", "OFF", "warn, chancery_xds::stream=trace", "error,openraft=off"] {
            load_with("", &[("CHANCERY_LOG", level)]).unwrap();
        }
    }

    #[test]
    fn lists_are_arrays_in_a_file_and_have_commas_elsewhere() {
        let join = ["a:1".to_owned(), "b:2".to_owned()];
        let loaded = load_with("[raft]\njoin = ['a:1', 'b:2']", &[]).unwrap();
        assert_eq!((&loaded.config.raft.join[..], loaded.is_given("raft.join")), (&join[..], true));
        assert!(!loaded.is_given("raft.address"));
        let loaded = load_with("", &[("CHANCERY_RAFT_JOIN", "a:1, b:2,")]).unwrap();
        assert_eq!(loaded.config.store().join, join);
        // A replica that was meant to join would form a cluster of its own.
        for empty in ["", " ", ",,", "a:1,,b:1"] {
            let error = load_with("", &[("CHANCERY_RAFT_JOIN", empty)]).unwrap_err();
            let said = error.contains("(from CHANCERY_RAFT_JOIN): names an empty address");
            assert!(said, "{empty:?}: {error}");
            assert!(load_with("", &[("CHANCERY_RAFT_PEERS", empty)]).is_err(), "{empty:?}");
        }
        assert!(load_with("[raft]\njoin = ['']", &[]).unwrap_err().contains("empty address"));
        assert!(load_with("[raft]\njoin = []", &[]).unwrap().config.store().join.is_empty());
        let error = load_with("[raft]\njoin = 'a:1'", &[]).unwrap_err();
        assert!(error.ends_with("is not a list such as [\"a\", \"b\"]"), "{error}");
        let error = load_with("", &[("CHANCERY_RAFT_PEERS", "1=a:1,2=b")]).unwrap_err();
        assert_eq!(
            error,
            "raft.peers = [\"1=a:1\", \"2=b\"] (from CHANCERY_RAFT_PEERS): \"2=b\" has to be ID=HOST:PORT, such \
             as 2=10.0.0.2:18002"
        );
        let peers = [("CHANCERY_RAFT_PEERS", "1=a:1,2=b:1"), ("CHANCERY_RAFT_REPLICA_ID", "2")];
        let store = load_with("", &peers).unwrap().config.store();
        assert_eq!((store.advertise.as_str(), store.peers[&1].as_str()), ("b:1", "a:1"));
    }

    #[test]
    fn a_file_that_does_not_parse_is_told_with_the_line() {
        let error = load_with("[xds]\n\naddress = = 1", &[]).unwrap_err();
        assert!(error.starts_with("FILE:3: "), "{error}");
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let error = load_with("[xds]\naddress = 'x'\n[shutdown]\ntimeout = 'y'", &[]).unwrap_err();
        assert_eq!(error.lines().count(), 2, "{error}");
    }

    #[test]
    fn plaintext_on_another_address_needs_a_flag() {
        let error = load_with("[xds]\naddress = '0.0.0.0:18000'", &[]).unwrap_err();
        assert!(error.contains("set xds.allow_plaintext = true"), "{error}");
        load_with("[xds]\naddress = '0.0.0.0:18000'\nallow_plaintext = true", &[]).unwrap();
        load_with("[xds]\naddress = '[::1]:18000'", &[]).unwrap();
    }

    #[test]
    fn the_environment_overrides_the_file_and_a_flag_both() {
        let loaded = load_with(
            "[xds]\naddress = '127.0.0.1:1'\n[store]\nsnapshot_log_entries = 7",
            &[
                ("CHANCERY_XDS_ADDRESS", "127.0.0.1:2"),
                ("CHANCERY_XDS_ALLOW_PLAINTEXT", "true"),
                ("CHANCERY_LOG", "debug"),
                ("CHANCERY_ADMIN_REQUEST_BYTES_MAX", "64KiB"),
                ("CHANCERY_XDS_PORT", "tcp://10.0.0.1:18000"),
                ("CHANCERY_XDS_SERVICE_HOST", "10.0.0.1"),
                ("CHANCERY_PORT", "tcp://10.0.0.1:18000"),
            ],
        )
        .unwrap();
        assert_eq!(loaded.config.xds.address, "127.0.0.1:2".parse().unwrap());
        assert!(loaded.config.xds.allow_plaintext);
        assert_eq!(loaded.config.log.level, "debug");
        assert_eq!(loaded.config.store.snapshot_log_entries, 7);
        assert_eq!(loaded.config.admin.request_bytes_max.bytes(), 64 << 10);
        assert_eq!(loaded.warnings.len(), 3, "{:?}", loaded.warnings);

        let error = load_with("", &[("CHANCERY_XDS_ADDRESS", "nowhere")]).unwrap_err();
        assert!(error.contains("xds.address = \"nowhere\" (from CHANCERY_XDS_ADDRESS)"), "{error}");

        let value = Value::String("127.0.0.1:3".to_owned());
        let flags = Flags {
            file: None,
            values: vec![FlagValue { section: "xds", key: "address", value, flag: "--xds" }],
        };
        let environment = [("CHANCERY_XDS_ADDRESS".to_owned(), "127.0.0.1:2".to_owned())];
        let loaded = load(&flags, environment).unwrap();
        assert_eq!(loaded.config.xds.address, "127.0.0.1:3".parse().unwrap());
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let flags = Flags { file: Some("/nowhere/chancery.toml".into()), values: vec![] };
        let error = load(&flags, []).unwrap_err();
        let error = error[0].to_string();
        assert!(
            error.starts_with("cannot read the configuration file /nowhere/chancery.toml: "),
            "{error}"
        );
    }
}
