//! Tests of valid and invalid configurations.

use std::{io::Write, sync::Arc};

use super::{
    super::{
        convert,
        units::{ByteSize, Span},
    },
    *,
};

fn load_with(file: &str, environment: &[(&str, &str)]) -> Result<Loaded, String> {
    let mut written = tempfile::NamedTempFile::new().unwrap();
    written.write_all(file.as_bytes()).unwrap();
    let path = written.path().to_owned();
    let flags = Flags { file: Some(path.clone()), values: vec![] };
    let environment = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    load(&flags, environment, NamedFiles::Check).map_err(|refused| {
        let text = refused.lines().join("\n").replace(path.to_str().unwrap(), "FILE");
        // Only `every_problem_is_reported_with_its_line_and_advice` compares the lines.
        let line = regex::Regex::new(r"\(from FILE:[0-9]+\)").unwrap();
        line.replace_all(&text, "(from FILE)").into_owned()
    })
}

/// OPS-11: nothing hides another problem, except that a file which cannot be parsed has no values.
#[test]
fn every_problem_is_reported_with_its_line_and_advice() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("chancery.toml");
    let problems = |file: &str, variables: &[(&str, &str)]| {
        std::fs::write(&path, file).unwrap();
        let flags = Flags { file: Some(path.clone()), values: vec![] };
        let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let refused = load(&flags, variables, NamedFiles::Check).unwrap_err();
        let texts = refused.errors.iter().map(ToString::to_string);
        let name = |text: String| text.replace(path.to_str().unwrap(), "FILE");
        texts.map(name).collect::<Vec<_>>()
    };
    let file = "level = 'debug'\n[xds]\nadress = 'x'\nstreams-max = 5\nlevle = 1\ndata_dir = '/d'\n\n\
                [shutdown]\ntimeout = '0s'\n[validaton]\nmode = 'off'\n[validation]\n\
                external_command = []\n[audit]\nsinks = ['file:/none/audit']\n";
    let found = problems(file, &[("CHANCERY_ADMIN_CONNECTIONS_MAX", "many")]);
    let expected = [
        "FILE:1: [level] is not a section; level is a key of [log]; write it below [log]",
        "FILE:10: [validaton] is not a section; did you mean [validation]?",
        "FILE:3: xds.adress is not a key; did you mean xds.address?",
        "FILE:6: xds.data_dir is not a key; did you mean store.data_dir?",
        "FILE:4: xds.streams-max is not a key; did you mean xds.streams_max?",
        "admin.connections_max = \"many\" (from CHANCERY_ADMIN_CONNECTIONS_MAX): is not a whole number from 1 to \
         100000",
        "shutdown.timeout = \"0s\" (from FILE:9): must be from 1s to 10m",
        "audit.sinks = [\"file:/none/audit\"] (from FILE:15): /none is not a directory; create it",
    ];
    for problem in expected {
        assert!(found.iter().any(|found| found == problem), "{problem}: {found:#?}");
    }
    let unlike: Vec<&String> = found.iter().filter(|text| text.contains("levle")).collect();
    assert!(unlike[0].starts_with("FILE:5: xds.levle is not a key; the keys of [xds] are "));
    assert_eq!((unlike.len(), found.len()), (1, expected.len() + 1), "{found:#?}");
    // An argument of a command may be a credential.
    let found = problems("[validation]\nexternal_command = 'check --token=SECRET'\n", &[]);
    let command = "validation.external_command = [\"check\", \"[redacted]\"] (from FILE:2): is not a list such as \
                   [\"a\", \"b\"]";
    assert_eq!(found, [command]);
    // Syntax errors are reported together, each with its line.
    let found = problems("[xds\naddress = 'x'\n[log]\nlevel = \n[admin]\nsocket = 'a\n", &[]);
    let lines: Vec<&str> = found.iter().map(|text| &text[.."FILE:1".len()]).collect();
    assert_eq!(lines, ["FILE:1", "FILE:4", "FILE:6"], "{found:#?}");
}

#[test]
fn an_error_names_the_key_the_value_its_source_and_the_rule() {
    let address = LISTEN_RULE;
    for (file, expected) in [
        ("[xds]\naddress = 'x'", format!("xds.address = \"x\" (from FILE): {address}")),
        ("[xds]\naddress = 18000", format!("xds.address = 18000 (from FILE): {address}")),
        (
            "[raft]\naddress = 'localhost:1'",
            format!("raft.address = \"localhost:1\" (from FILE): {address}; put a host name into raft.advertise"),
        ),
        (
            "[store]\nsnapshot_log_entries = 0",
            "store.snapshot_log_entries = 0 (from FILE): must be from 1 to 100000000".to_owned(),
        ),
        (
            "[store]\nsnapshot_log_entries = -1",
            "store.snapshot_log_entries = -1 (from FILE): is not a whole number from 1 to 100000000".to_owned(),
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
            "FILE:2: log.levle is not a key; did you mean log.level?".to_owned(),
        ),
        (
            "[xdss]\n",
            "FILE:1: [xdss] is not a section; did you mean [xds]?".to_owned(),
        ),
        (
            "xds = 1",
            "xds = 1 (from FILE): is a section; write [xds] and its keys below".to_owned(),
        ),
        (
            "[admin]\naddress = '127.0.0.1:18000'",
            "admin.address = \"127.0.0.1:18000\" (from FILE): is already used by xds.address".to_owned(),
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
    let none = [("CHANCERY_RAFT_CONNECTIONS_MAX", "0")];
    assert_eq!(
        load_with("", &none).unwrap_err(),
        "raft.connections_max = 0 (from CHANCERY_RAFT_CONNECTIONS_MAX): must be from 256 to 65536"
    );
    let error = load_with("[xds]\nrequests_burst_max = -1", &[]).unwrap_err();
    assert!(error.ends_with("is not a whole number from 1 to 10000000"), "{error}");
    let error = load_with("[xds]\nshards = 'x'", &[]).unwrap_err();
    assert!(error.ends_with("is not a whole number from 0 to 1024"), "{error}");
}

/// XDSTP-25: the authorities are configured as in names, also percent-encoded or empty.
#[test]
fn authorities_are_those_of_structured_names() {
    let authorities =
        |file: &str| convert::fanout(&load_with(file, &[]).unwrap().config).session.authorities;
    assert_eq!(authorities(""), None);
    let found = authorities("[xds]\nauthorities = ['', 'traffic.example:443', '%61%2fb']").unwrap();
    let found: Vec<&str> = found.iter().map(String::as_str).collect();
    assert_eq!(found, ["", "a%2Fb", "traffic.example:443"]);
    for wrong in ["a/b", "a?b", "a#b"] {
        let error = load_with(&format!("[xds]\nauthorities = ['{wrong}']"), &[]).unwrap_err();
        assert!(error.ends_with("is not the authority of an xdstp:// name"), "{error}");
    }
}

/// MCP-26.
#[test]
fn collections_are_names_of_mcp() {
    let session = |file: &str| convert::fanout(&load_with(file, &[]).unwrap().config).session;
    assert_eq!(session("").collections, None);
    let found = session("[xds]\ncollections = ['k8s/v1/Service']\nignore_other_collections = true");
    assert_eq!(found.collections, Some(Arc::new(["k8s/v1/Service".to_owned()].into())));
    assert!(found.ignore_other_collections);
    let error = load_with("[xds]\ncollections = ['type.googleapis.com/a.B']", &[]).unwrap_err();
    assert!(error.contains("is not a collection of MCP"), "{error}");
}

/// MCP sources are tables, in a file and in the environment. An error shows the form of an entry.
#[test]
fn mcp_sources_are_tables() {
    let source = "{name = 'a', address = '127.0.0.1:9', scope = 's', collections = ['a/b/c']";
    let of = |entry: &str| load_with(&format!("[mcp]\nsources = [{entry}]"), &[]);
    let count = |text: String| convert::mcp_sources(&of(&text).unwrap().config).len();
    assert_eq!(count(format!("{source}}}")), 1);
    let listed =
        format!("[{source}}}, {source}}}]").replacen("'a'", "'b'", 1).replacen("'s'", "'t'", 1);
    let environment = [("CHANCERY_MCP_SOURCES", listed.as_str())];
    assert_eq!(convert::mcp_sources(&load_with("", &environment).unwrap().config).len(), 2);
    let environment = [("CHANCERY_MCP_SOURCES", "[]")];
    assert!(convert::mcp_sources(&load_with("", &environment).unwrap().config).is_empty());
    for (entry, reason) in [
        (
            format!("{source}, scpoe = 's'}}"),
            "unknown field `scpoe`, expected one of `name`, `address`",
        ),
        ("{name = 'a'}".to_owned(), "missing field `scope`"),
        ("'a'".to_owned(), "invalid type: string \"a\""),
        (
            source.replace("address = '127.0.0.1:9'", "listen = '0.0.0.0:18000'") + "}",
            "listen: 0.0.0.0:18000 overlaps with xds.address = \"127.0.0.1:18000\"",
        ),
        (
            format!("{source}, deletion_percent = 101}}"),
            "source \"a\": deletion_percent must be from 1 to 100",
        ),
    ] {
        let error = of(&entry).unwrap_err();
        assert!(error.starts_with("mcp.sources = [") && error.contains(reason), "{error}");
    }
}

#[test]
fn ack_close_after_is_zero_or_longer_than_ack_timeout() {
    for (file, rule) in [
        ("[xds]\nack_close_after = '5s'", "must be 0s, or from 10s to 24h"),
        ("[xds]\nack_close_after = '25h'", "must be 0s, or from 10s to 24h"),
        (
            "[xds]\nack_timeout = '1m'\nack_close_after = '1m'",
            "must be 0s, or longer than xds.ack_timeout, 1m",
        ),
    ] {
        let error = load_with(file, &[]).unwrap_err();
        assert!(error.starts_with("xds.ack_close_after = "), "{error}");
        assert!(error.ends_with(rule), "{error}");
    }
    let loaded = load_with("[xds]\nack_close_after = '5m'", &[]).unwrap();
    assert_eq!(convert::fanout(&loaded.config).session.ack_close_after_ms, Some(300_000));
    let loaded = load_with("", &[]).unwrap();
    assert_eq!(convert::fanout(&loaded.config).session.ack_close_after_ms, None);
}

/// OPS-11: an impossible limit is rejected with its key, its value and its range.
#[test]
fn value_out_of_its_range_is_rejected_with_the_range() {
    for (section, key, value, rule) in [
        ("store", "snapshot_log_bytes", "\"1KiB\"", "must be from 64KiB to 64GiB"),
        ("store", "free_bytes_min", "\"1MiB\"", "must be 0, or from 64MiB to 1048576GiB"),
        ("store", "history_revisions", "0", "must be from 1 to 10000"),
        ("store", "history_age", "\"1s\"", "must be 0s, or from 1m to 87600h"),
        ("store", "transact_timeout", "\"0s\"", "must be from 100ms to 10m"),
        ("raft", "connections_max", "255", "must be from 256 to 65536"),
        ("raft", "catch_up_timeout", "\"0s\"", "must be from 100ms to 10m"),
        ("xds", "shards", "1025", "must be from 0 to 1024"),
        ("xds", "connections_max", "0", "must be from 1 to 1000000"),
        ("xds", "streams_max", "0", "must be from 1 to 10000000"),
        ("xds", "request_bytes_max", "\"2GiB\"", "must be from 1KiB to 1GiB"),
        ("xds", "large_request_timeout", "\"0s\"", "must be from 1s to 1h"),
        ("xds", "names_per_request_max", "999999", "must be at least xds.names_max, 1000000"),
        ("xds", "name_bytes_max", "\"5KiB\"", "must be from 1 to 4KiB"),
        ("xds", "nack_message_bytes_max", "\"1GiB\"", "must be from 64 to 64KiB"),
        ("xds", "stream_window_bytes", "\"65534\"", "must be from 65535 to 2147483647"),
        ("xds", "control_frames_burst_max", "99", "must be from 100 to 10000000"),
        ("xds", "connection_age_max", "\"1ms\"", "must be 0s, or from 1s to 720h"),
        ("xds", "ack_timeout", "\"99ms\"", "must be from 100ms to 10m"),
        ("xds", "catch_up_timeout", "\"61s\"", "must be from 1ms to 1m"),
        ("admin", "request_bytes_max", "\"3GiB\"", "must be from 64KiB to 2GiB"),
        ("shutdown", "timeout", "\"0s\"", "must be from 1s to 10m"),
    ] {
        let error = load_with(&format!("[{section}]\n{key} = {value}"), &[]).unwrap_err();
        assert_eq!(error, format!("{section}.{key} = {value} (from FILE): {rule}"));
        // The environment variable of the key has the same range.
        let variable = format!("CHANCERY_{section}_{key}").to_uppercase();
        let error = load_with("", &[(&variable, value.trim_matches('"'))]).unwrap_err();
        let from = format!("(from {variable}): {rule}");
        assert!(error.ends_with(&from), "{error}");
    }
}

/// Every quantity has a range, and the components accept all values in it.
#[test]
fn least_and_greatest_values_are_accepted() {
    for end in [0, 1] {
        let mut values = Values { table: table(&Config::default()), sources: BTreeMap::new() };
        for (section, keys) in Config::SECTIONS {
            for Key { name: key, bounds, .. } in *keys {
                let value = values.value(section, key).unwrap();
                let is_quantity = match value {
                    Value::Integer(_) => true,
                    Value::String(text) => {
                        text.parse::<ByteSize>().is_ok() || text.parse::<Span>().is_ok()
                    }
                    _ => false,
                };
                let ends = bounds.ends();
                assert_eq!(ends.is_some(), is_quantity, "{section}.{key}");
                if let Some(ends) = ends {
                    values.set(section, key, ends[end].clone(), Source::Default);
                }
            }
        }
        let mut found = Refused::default();
        values.find_problems(NamedFiles::Check, &mut found);
        assert_eq!(found.n_problems(), 0);
        let config = values.finish(found).unwrap().config;
        convert::store(&config).validate().unwrap();
        convert::fanout(&config).validate().unwrap();
        convert::xds(&config).validate().unwrap();
    }
}

/// A replica that listens on all addresses takes the port of each of them.
#[test]
fn port_on_all_addresses_clashes_with_the_same_port_on_one() {
    for everywhere in ["0.0.0.0:18001", "[::]:18001"] {
        let file = format!("[xds]\naddress = '{everywhere}'\nallow_plaintext = true");
        let error = load_with(&file, &[]).unwrap_err();
        let expected = format!(
            "admin.address = \"127.0.0.1:18001\" (from the default): overlaps with xds.address = {everywhere:?}: one of \
             them covers all addresses of the host; give them different ports"
        );
        assert_eq!(error, expected);
    }
}

/// Each certificate file has its own error, also beside other errors.
#[test]
fn every_unusable_certificate_file_is_reported_with_its_key() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let sign = || rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let (own, other) = (sign(), sign());
    let bad = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    for (name, content) in [
        ("cert", own.cert.pem()),
        ("key", own.signing_key.serialize_pem()),
        ("other", other.signing_key.serialize_pem()),
        ("ca", other.cert.pem()),
        ("bad", bad.to_owned()),
    ] {
        std::fs::write(path(name), content).unwrap();
    }
    let errors = |cert: &str, key: &str, ca: &str| {
        let value = |name: &str| if name.is_empty() { String::new() } else { path(name) };
        let [cert, key, ca] = [cert, key, ca].map(value);
        let file = format!(
            "[raft]\ntls_cert = {cert:?}\ntls_key = {key:?}\ntls_ca = {ca:?}\n[shutdown]\ntimeout = '0s'"
        );
        let error = load_with(&file, &[]).unwrap_err().replace(&path(""), "");
        error.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let timeout = "shutdown.timeout = \"0s\" (from FILE): must be from 1s to 10m";
    for (files, expected) in [
        (
            ["none", "none", "none"],
            [
                "raft.tls_ca = \"none\" (from FILE): cannot read the CA in none: No such file",
                "raft.tls_cert = \"none\" (from FILE): cannot read the certificate in none: No such",
                "raft.tls_key = \"none\" (from FILE): cannot read the key in none: No such file",
            ]
            .as_slice(),
        ),
        (
            ["bad", "key", "ca"],
            &["raft.tls_cert = \"bad\" (from FILE): cannot read the certificate in bad: "],
        ),
        // One file for both contains no certificate.
        (
            ["key", "key", "ca"],
            &["raft.tls_cert = \"key\" (from FILE): cannot read the certificate in key: it contains no"],
        ),
        (
            ["cert", "other", "ca"],
            &[
                "raft.tls_cert = \"cert\" (from FILE): other replicas would refuse the certificate",
                "raft.tls_key = \"other\" (from FILE): the key in other does not belong to the cert",
            ],
        ),
        (
            ["cert", "none", ""],
            &[
                "raft.tls_ca = \"\" (from FILE): is missing; set all of",
                "raft.tls_key = \"none\" (from FILE): cannot read the key in none: No such file",
            ],
        ),
    ] {
        let [cert, key, ca] = files;
        let found = errors(cert, key, ca);
        assert_eq!(found.len(), expected.len() + 1, "{files:?}: {found:#?}");
        for start in expected.iter().chain([&timeout]) {
            assert!(found.iter().any(|line| line.starts_with(start)), "{start}: {found:#?}");
        }
    }
}

/// An unknown word in `log.level` silenced the log.
#[test]
fn unknown_log_level_is_rejected() {
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
    assert_eq!(convert::store(&loaded.config).join, join);
    // Otherwise a replica that is configured to join would form its own cluster.
    for empty in ["", " ", ",,", "a:1,,b:1"] {
        let error = load_with("", &[("CHANCERY_RAFT_JOIN", empty)]).unwrap_err();
        let said = error.contains("(from CHANCERY_RAFT_JOIN): names an empty address");
        assert!(said, "{empty:?}: {error}");
        assert!(load_with("", &[("CHANCERY_RAFT_PEERS", empty)]).is_err(), "{empty:?}");
    }
    assert!(load_with("[raft]\njoin = ['']", &[]).unwrap_err().contains("empty address"));
    assert!(convert::store(&load_with("[raft]\njoin = []", &[]).unwrap().config).join.is_empty());
    let error = load_with("[raft]\njoin = 'a:1'", &[]).unwrap_err();
    assert!(error.ends_with("is not a list such as [\"a\", \"b\"]"), "{error}");
    let error = load_with("", &[("CHANCERY_RAFT_PEERS", "1=a:1,2=b")]).unwrap_err();
    assert_eq!(
        error,
        "raft.peers = [\"1=a:1\", \"2=b\"] (from CHANCERY_RAFT_PEERS): \"2=b\" must be ID=HOST:PORT, such \
         as 2=10.0.0.2:18002"
    );
    let peers = [("CHANCERY_RAFT_PEERS", "1=a:1,2=b:1"), ("CHANCERY_RAFT_REPLICA_ID", "2")];
    let store = convert::store(&load_with("", &peers).unwrap().config);
    assert_eq!((store.advertise.as_str(), store.peers[&1].as_str()), ("b:1", "a:1"));
}

#[test]
fn syntax_error_names_the_line() {
    let error = load_with("[xds]\n\naddress = = 1", &[]).unwrap_err();
    assert!(error.starts_with("FILE:3: "), "{error}");
}

#[test]
fn all_problems_are_reported_together() {
    let error = load_with("[xds]\naddress = 'x'\n[shutdown]\ntimeout = 'y'", &[]).unwrap_err();
    assert_eq!(error.lines().count(), 2, "{error}");
    // The file has unknown keys and sections, wrong types, and values out of their ranges.
    let file = "[nope]\n[xds]\nadress = 'x'\nshards = 'x'\ntypes_max = 0\nrequests_burst_max = 0\n\
                requests_per_second_max = 0\n[store]\nsnapshot_log_entries = 0\n[log]\nlevle = 'x'\n";
    let error = load_with(file, &[]).unwrap_err();
    for start in [
        "FILE:1: [nope] is not a section",
        "FILE:3: xds.adress is not a key",
        "FILE:11: log.levle is not a key",
        "xds.shards = \"x\" (from FILE): ",
        "xds.types_max = 0 (from FILE): must be from 1 to 1000",
        "xds.requests_burst_max = 0 (from FILE): must be from 1 to 10000000",
        "xds.requests_per_second_max = 0 (from FILE): must be from 1 to 1000000",
        "store.snapshot_log_entries = 0 (from FILE): must be from 1 to 100000000",
    ] {
        assert_eq!(
            error.lines().filter(|line| line.starts_with(start)).count(),
            1,
            "{start}: {error}"
        );
    }
    assert_eq!(error.lines().count(), 8, "{error}");
}

#[test]
fn plaintext_on_another_address_needs_a_flag() {
    let error = load_with("[xds]\naddress = '0.0.0.0:18000'", &[]).unwrap_err();
    assert!(
        error.contains("set xds.tls_cert and xds.tls_key, or xds.allow_plaintext = true"),
        "{error}"
    );
    load_with("[xds]\naddress = '0.0.0.0:18000'\nallow_plaintext = true", &[]).unwrap();
    load_with("[xds]\naddress = '[::1]:18000'", &[]).unwrap();
}

#[test]
fn flag_overrides_environment_and_environment_overrides_file() {
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
    let loaded = load(&flags, environment, NamedFiles::Check).unwrap();
    assert_eq!(loaded.config.xds.address, "127.0.0.1:3".parse().unwrap());
}

#[test]
fn missing_configuration_file_is_named() {
    let flags = Flags { file: Some("/nowhere/chancery.toml".into()), values: vec![] };
    let error = load(&flags, [], NamedFiles::Check).unwrap_err();
    let error = error.errors[0].to_string();
    assert!(
        error.starts_with("cannot read the configuration file /nowhere/chancery.toml: "),
        "{error}"
    );
}

#[test]
fn all_wrong_entries_of_a_list_are_reported() {
    let told = load_with("[admin]\nhosts = ['a b', 'fine', 'c:1']\n[log]\nlevel = 'in, fo'", &[]);
    let lines: Vec<String> = told.unwrap_err().lines().map(str::to_owned).collect();
    let ends = [
        "\"a b\" is not a host name without a port",
        "\"c:1\" is not a host name without a port",
        "\"in\" is neither a level",
        "\"fo\" is neither a level",
    ];
    assert_eq!(lines.len(), ends.len(), "{lines:?}");
    assert!(lines.iter().zip(ends).all(|(line, end)| line.contains(end)), "{lines:?}");
}

#[test]
fn warnings_are_reported_beside_errors() {
    let environment =
        [("CHANCERY_JION", "x"), ("CHANCERY_XDS_SHARDS", "many"), ("OTEL_TRACES_SAMPLER", "x")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()));
    for file in [None, Some("/nowhere/chancery.toml".into())] {
        let flags = Flags { file, values: vec![] };
        let refused = load(&flags, environment.clone(), NamedFiles::Check).unwrap_err();
        assert_eq!(refused.errors.len(), 1, "{:?}", refused.errors);
        let names = ["CHANCERY_JION", "OTEL_TRACES_SAMPLER"];
        let is_named = |(warning, name): (&String, &str)| warning.contains(name);
        assert!(refused.warnings.iter().zip(names).all(is_named), "{:?}", refused.warnings);
        assert_eq!(refused.warnings.len(), names.len(), "{:?}", refused.warnings);
    }
}

#[test]
fn path_with_spaces_is_quoted() {
    let flags = Flags { file: Some("/no where/a\u{202e}.toml".into()), values: vec![] };
    let error = load(&flags, [], NamedFiles::Check).unwrap_err().errors[0].to_string();
    assert!(error.contains(r#"file "/no where/a\u{202e}.toml": "#), "{error}");
}

/// A variable of a deployment may contain the key itself instead of the path of its file.
#[test]
fn private_key_in_a_configuration_is_not_shown() {
    let key = "-----BEGIN PRIVATE KEY-----\nZEKRIT\n-----END PRIVATE KEY-----";
    let variable = load_with("", &[("CHANCERY_RAFT_TLS_KEY", key)]).unwrap_err();
    assert!(
        variable.contains(
            "raft.tls_key = [redacted private key] (from CHANCERY_RAFT_TLS_KEY): contains a private key"
        ),
        "{variable}"
    );
    for file in [
        format!("[raft]\ntls_key = {key:?}"),
        format!("[raft]\n{key:?} = 1"),
        format!("[{key:?}]\na = 1"),
        format!("{key:?} = 1"),
        format!("[raft]\ntls_key = '''{key}"),
    ] {
        let error = load_with(&file, &[]).unwrap_err();
        assert!(!error.contains("ZEKRIT"), "{error}");
    }
}

/// Files without an end and files that block are not read.
#[test]
fn file_that_is_too_large_or_not_regular_is_reported() {
    let flags = Flags { file: Some("/dev/zero".into()), values: vec![] };
    let refused = load(&flags, [], NamedFiles::Check).unwrap_err();
    let error = refused.errors[0].to_string();
    assert!(error.ends_with("/dev/zero: it has more than 1048576 bytes"), "{error}");
    let file = "[raft]\ntls_cert = '/dev/null'\ntls_key = '/dev/null'\ntls_ca = '/dev/null'";
    let error = load_with(file, &[]).unwrap_err();
    assert_eq!(error.matches("in /dev/null: it is not a regular file").count(), 3, "{error}");
}

#[test]
fn descriptor_set_that_serve_refuses_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("garbage.pb");
    std::fs::write(&path, [1, 2]).unwrap();
    let error = load_with(&format!("[xds]\ndescriptor_sets = [{path:?}]"), &[]).unwrap_err();
    let expected = format!("cannot use {}: failed to decode", path.display());
    assert!(error.contains(&expected), "{error}");
}

/// A report about a file of the maximum size has a bound, whatever is wrong with it.
#[test]
fn problems_beyond_the_maximum_are_counted() {
    let one = "[xds]\nunknown_key_00000=1\n";
    assert_eq!(load_with(one, &[]).unwrap_err().lines().count(), 1);
    let listed = |head: &str, line: fn(usize) -> String, tail: &str, n: usize| {
        let text = head.to_owned() + &(0..n).map(line).collect::<String>() + tail;
        let size = text.len() as u64;
        assert!(size <= FILE_BYTES_MAX, "{head:?}: {size}");
        let error = load_with(&text, &[]).unwrap_err();
        let mut lines: Vec<_> = error.lines().map(str::to_owned).collect();
        let more =
            format!("the configuration has {} more problems; correct those above first", n - 100);
        assert_eq!((lines.len(), lines.pop()), (101, Some(more)), "{head:?}");
        assert!(lines.iter().all(|line| line.len() < 3000), "{head:?}");
        lines.pop().unwrap()
    };
    let last = listed("[xds]\n", |i| format!("unknown_key_{i:05}=1\n"), "", 50_000);
    assert!(last.starts_with("FILE:101: xds.unknown_key_00099 is not a key; "), "{last}");
    let last = listed("", |i| format!("[section_{i:05}]\n"), "", 10_000);
    assert!(last.starts_with("FILE:100: [section_00099] is not a section; "), "{last}");
    let last = listed("", |i| format!("key{i:05} = \n"), "", 10_000);
    assert!(last.starts_with("FILE:100: "), "{last}");
    // Each error has the value of the whole list, cut to a maximum.
    let last = listed("[admin]\nhosts = [\n", |i| format!("'!{i:05}',\n"), "]\n", 10_000);
    assert!(last.starts_with("admin.hosts = [\"!00000\", "), "{last}");
    assert!(last.ends_with(": \"!00099\" is not a host name without a port"), "{last}");
}

/// A report has warnings about what does not keep a replica down, or what only its unit has.
#[test]
fn problems_with_which_a_replica_starts_are_warnings() {
    let load_for = |file: &str, files| {
        let mut written = tempfile::NamedTempFile::new().unwrap();
        written.write_all(file.as_bytes()).unwrap();
        let path = written.path().to_owned();
        let text = |lines: Vec<String>| {
            let name = |line: String| line.replace(path.to_str().unwrap(), "FILE");
            lines.into_iter().map(name).collect::<Vec<_>>()
        };
        let flags = Flags { file: Some(path.clone()), values: vec![] };
        match load(&flags, [], files) {
            Ok(loaded) => (Vec::new(), text(loaded.warnings)),
            Err(refused) => (text(refused.lines()), text(refused.warnings)),
        }
    };
    let file = "[secrets]\nkey_file = '/none/keys'\ncredential = 'keys'\n\
                [validation]\nexternal_command = ['/none/check', '--token', 'SECRET']\n\
                [admin]\nsocket = '/run/none/admin.sock'\n";
    let (errors, warnings) = load_for(file, NamedFiles::Check);
    assert_eq!(errors, [""; 0]);
    let (keys, others) = warnings.split_first().unwrap();
    assert!(keys.starts_with("secrets.key_file = \"/none/keys\" (from FILE:2): "), "{keys}");
    let effect = "; a replica starts without these keys, and serves everything but secrets";
    assert!(keys.ends_with(effect), "{keys}");
    let expected = [
        "validation.external_command = [\"/none/check\", \"[redacted]\", \"[redacted]\"] (from FILE:5): \"/none/check\" \
         is not a file, nor a program in PATH; correct the path, or install the program; a replica starts, and refuses \
         all writes",
        "admin.socket = \"/run/none/admin.sock\" (from FILE:7): /run/none does not exist; the unit of the replica \
         has to create it (RuntimeDirectory=)",
        "secrets.credential = \"keys\" (from FILE:3): was not checked, because systemd provides credentials only to \
         its units",
    ];
    assert_eq!(others, expected);
    let optional = file.replace("[admin]", "external_required = false\n[admin]");
    let (_, warnings) = load_for(&optional, NamedFiles::Check);
    assert!(warnings[1].ends_with("; a replica starts, and does not check writes with it"));
    // A replica needs the credential and the directory of its socket.
    let (errors, warnings) = load_for(file, NamedFiles::CheckForStart);
    let expected = [
        "admin.socket = \"/run/none/admin.sock\" (from FILE:7): /run/none is not a directory; create it",
        "secrets.credential = \"keys\" (from FILE:3): needs systemd, which sets CREDENTIALS_DIRECTORY; start the \
         server as its service, or set secrets.key_file",
    ];
    assert_eq!((errors.as_slice(), warnings.len()), (expected.map(str::to_owned).as_slice(), 0));
    assert_eq!(load_for(file, NamedFiles::Ignore), (Vec::new(), Vec::new()));
    // The unit of the packages creates one directory, but no directory in it.
    let unit = include_str!("../../../../deploy/systemd/chancery.service");
    assert!(unit.contains("\nRuntimeDirectory=chancery\n"));
    let of_unit = "[admin]\nsocket = '/run/chancery/admin.sock'\n";
    assert_eq!(load_for(of_unit, NamedFiles::Check), (Vec::new(), Vec::new()));
    let within = of_unit.replace("admin.sock", "none/admin.sock");
    assert_eq!(load_for(&within, NamedFiles::Check).1.len(), 1);
    // No service manager creates another directory.
    let (errors, _) = load_for("[admin]\nsocket = '/none/admin.sock'\n", NamedFiles::Check);
    let expected =
        "admin.socket = \"/none/admin.sock\" (from FILE:2): /none is not a directory; create it";
    assert_eq!(errors, [expected]);
}
