//! Tests of valid and invalid configurations.

use std::io::Write;

use super::*;

fn load_with(file: &str, environment: &[(&str, &str)]) -> Result<Loaded, String> {
    let mut written = tempfile::NamedTempFile::new().unwrap();
    written.write_all(file.as_bytes()).unwrap();
    let path = written.path().to_owned();
    let flags = Flags { file: Some(path.clone()), values: vec![] };
    let environment = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    load(&flags, environment).map_err(|refused| {
        let lines: Vec<String> = refused.errors.iter().map(ToString::to_string).collect();
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
            format!("raft.address = \"localhost:1\" (from FILE): {address}; put a host name into raft.advertise"),
        ),
        (
            "[store]\nsnapshot_log_entries = 0",
            "store.snapshot_log_entries = 0 (from FILE): must be at least 1".to_owned(),
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
            "FILE: log.levle is not a key; the keys of [log] are format, level".to_owned(),
        ),
        (
            "[xdss]\n",
            "FILE: [xdss] is not a section; the sections are admin, log, raft, shutdown, store, xds".to_owned(),
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
    // The store and the server check this value. The error was reported twice, once under a name
    // that is not a key.
    let none = [("CHANCERY_RAFT_CONNECTIONS_MAX", "0")];
    assert_eq!(
        load_with("", &none).unwrap_err(),
        "raft.connections_max = 0 (from CHANCERY_RAFT_CONNECTIONS_MAX): must be from 256 to 65536"
    );
    let error = load_with("[xds]\nrequests_burst_max = -1", &[]).unwrap_err();
    assert!(error.ends_with("is not a whole number from 0 to 4294967295"), "{error}");
}

#[test]
fn ack_close_after_is_zero_or_longer_than_ack_timeout() {
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

/// OPS-11: an impossible limit is rejected with its key, its value and its rule.
#[test]
fn every_limit_of_the_xds_port_has_a_rule() {
    let positive = "it has to be more than 0";
    for (key, value, rule) in [
        ("shards", "1025", "must be at most 1024"),
        ("connections_max", "0", positive),
        ("connections_per_peer_max", "0", positive),
        ("streams_max", "0", "must be at least 1"),
        ("subscriptions_bytes_max", "\"0\"", "must be at least 1"),
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
        // The environment variable of the key has the same rule.
        let variable = format!("CHANCERY_XDS_{}", key.to_uppercase());
        let error = load_with("", &[(&variable, value.trim_matches('"'))]).unwrap_err();
        let from = format!("(from {variable}): ");
        assert!(error.contains(&from) && error.ends_with(rule), "{key}: {error}");
    }
}

/// An unknown word in `log.level` silenced the log.
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
    // Otherwise a replica that is configured to join would form its own cluster.
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
        "raft.peers = [\"1=a:1\", \"2=b\"] (from CHANCERY_RAFT_PEERS): \"2=b\" must be ID=HOST:PORT, such \
         as 2=10.0.0.2:18002"
    );
    let peers = [("CHANCERY_RAFT_PEERS", "1=a:1,2=b:1"), ("CHANCERY_RAFT_REPLICA_ID", "2")];
    let store = load_with("", &peers).unwrap().config.store();
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
    // The file has unknown keys and sections, wrong types, broken rules, and two broken rules of
    // one component.
    let file = "[nope]\n[xds]\nadress = 'x'\nshards = 'x'\ntypes_max = 0\nrequests_burst_max = 0\n\
                requests_per_second_max = 0\n[store]\nsnapshot_log_entries = 0\n[log]\nlevle = 'x'\n";
    let error = load_with(file, &[]).unwrap_err();
    for start in [
        "FILE: [nope] is not a section",
        "FILE: xds.adress is not a key",
        "FILE: log.levle is not a key",
        "xds.shards = \"x\" (from FILE): ",
        "xds.types_max = 0 (from FILE): must be at least 1",
        "xds.requests_burst_max = 0 (from FILE): it has to be more than 0",
        "xds.requests_per_second_max = 0 (from FILE): it has to be more than 0",
        "store.snapshot_log_entries = 0 (from FILE): must be at least 1",
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
    let environment = [("CHANCERY_JION", "x"), ("CHANCERY_XDS_SHARDS", "many")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()));
    for file in [None, Some("/nowhere/chancery.toml".into())] {
        let refused = load(&Flags { file, values: vec![] }, environment.clone()).unwrap_err();
        assert_eq!(refused.errors.len(), 1, "{:?}", refused.errors);
        assert!(refused.warnings[0].contains("CHANCERY_JION"), "{:?}", refused.warnings);
    }
}

#[test]
fn path_with_spaces_is_quoted() {
    let flags = Flags { file: Some("/no where/a\u{202e}.toml".into()), values: vec![] };
    let error = load(&flags, []).unwrap_err().errors[0].to_string();
    assert!(error.contains(r#"file "/no where/a\u{202e}.toml": "#), "{error}");
}
