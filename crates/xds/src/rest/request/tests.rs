use super::*;

const LIMITS: Limits = Limits {
    names_max: 3,
    name_bytes_max: 8,
    node_bytes_max: 200,
    node_values_max: 24,
    nack_message_bytes_max: 4,
};

fn read(json: &str) -> Result<PollRequest, RequestError> {
    parse(json.as_bytes(), &LIMITS)
}

/// REST-02, REST-03, REST-06: both spellings of the fields mean the same, `null` is the default, and
/// unknown fields are ignored.
#[test]
fn both_spellings_are_read_and_unknown_fields_ignored() {
    let proto = r#"{
        "version_info": "1-7-0", "type_url": "t/x.Y", "resource_names": ["a", "b\u0020"],
        "response_nonce": "9", "resource_locators": [{"name": "x", "dynamic_parameters": {"k": "v"}}, {}], "later": {"deep": [1, {}]},
        "error_detail": {"code": 3, "message": "refused", "details": []},
        "node": {
            "id": "n", "cluster": "c", "extensions": [{"name": "e"}, {"name": "f"}],
            "locality": {"region": "r", "sub_zone": "s"},
            "metadata": {"a": {"b": [1, true, null]}, "c": "d"},
            "user_agent_name": "envoy",
            "user_agent_build_version": {"version": {"major_number": 1, "minor_number": "40"}},
            "client_features": ["f"], "dynamic_parameters": {}
        }
    }"#;
    let read = |json: &str| parse(json.as_bytes(), &Limits { names_max: 5, ..LIMITS });
    let request = read(proto).unwrap();
    assert_eq!(request.version_info, "1-7-0");
    assert_eq!(request.type_url, "t/x.Y");
    // DYN-01: locators come after the names.
    assert_eq!(request.names.iter().collect::<Vec<_>>(), ["a", "b ", "x", ""]);
    let error = ErrorDetail { code: 3, message: "refu".into() };
    assert_eq!(request.error, Some(error), "the message is truncated");
    let node = request.node.as_ref().unwrap();
    assert_eq!((node.id.as_str(), node.cluster.as_str()), ("n", "c"));
    assert_eq!(node.locality.as_ref().unwrap().sub_zone, "s");
    assert_eq!(node.metadata.as_ref().unwrap().fields.len(), 2);
    assert_eq!(node.client_features, ["f"]);
    let version = SemanticVersion { major_number: 1, minor_number: 40, patch: 0 };
    let build = BuildVersion { version: Some(version) };
    assert_eq!(node.user_agent_version, Some(UserAgentVersion::Build(build)));
    let camel = [
        ("version_info", "versionInfo"),
        ("type_url", "typeUrl"),
        ("resource_names", "resourceNames"),
        ("error_detail", "errorDetail"),
        ("sub_zone", "subZone"),
        ("user_agent_name", "userAgentName"),
        ("user_agent_build_version", "userAgentBuildVersion"),
        ("major_number", "majorNumber"),
        ("minor_number", "minorNumber"),
        ("client_features", "clientFeatures"),
    ];
    let camel = camel.iter().fold(proto.to_owned(), |json, (snake, camel)| {
        assert!(json.contains(snake), "{snake}");
        json.replace(snake, camel)
    });
    assert_eq!(read(&camel).unwrap(), request);
    let empty =
        r#"{"version_info": null, "resource_names": null, "node": null, "error_detail": null}"#;
    assert_eq!(read(empty).unwrap(), PollRequest::default());
    assert_eq!(read("{}").unwrap(), PollRequest::default());
}

/// REST-20: what is not a request is an error that says where and what.
#[test]
fn malformed_requests_are_named() {
    for (json, text) in [
        ("", "EOF"),
        ("[]", "expected an object"),
        ("{} x", "trailing characters"),
        (r#"{"version_info": 1}"#, "expected a string for version_info"),
        (r#"{"resource_names": "a"}"#, "expected a list of strings"),
        (r#"{"resource_names": [1]}"#, "expected a string in resource_names"),
        (r#"{"node": []}"#, "expected an object for node"),
        (r#"{"node": {"id": 7}}"#, "node.id: expected a string"),
        (r#"{"node": {"metadata": 7}}"#, "node.metadata: expected an object"),
        (r#"{"node": {"client_features": "a"}}"#, "expected a list of strings"),
        (
            r#"{"node": {"user_agent_build_version": {"version": {"patch": -1}}}}"#,
            "expected a number of 32 bits",
        ),
        // The JSON mapping of protobuf has no null in maps. Read as "", it would select another variant.
        (
            r#"{"resource_locators": [{"name": "a", "dynamic_parameters": {"env": null}}]}"#,
            "null, expected a string as the value of a dynamic parameter",
        ),
        (
            r#"{"node": {"dynamic_parameters": {"t": {"params": {"env": null}}}}}"#,
            "node.dynamic_parameters: expected strings as the values of dynamic parameters",
        ),
    ] {
        let error = read(json).unwrap_err().to_string();
        assert!(error.contains(text), "{json}: {error}");
    }
    let wide = Limits { node_values_max: 1000, node_bytes_max: 1000, ..LIMITS };
    let deep = format!(r#"{{"node": {{"metadata": {}"#, r#"{"a":"#.repeat(200));
    let error = parse(deep.as_bytes(), &wide).unwrap_err().to_string();
    assert!(error.contains("recursion limit"), "{error}");
    let error = parse(b"{\"version_info\": \"\xff\"}", &LIMITS).unwrap_err().to_string();
    assert!(error.starts_with("the body is not a DiscoveryRequest in JSON: "), "{error}");
}

/// OPS-11, SOTW-52: each limit is enforced while the input is read.
#[test]
fn limits_are_enforced_while_reading() {
    let error = |json: &str| read(json).unwrap_err();
    assert_eq!(
        error(r#"{"resource_names": ["1", "2", "3", "4"]}"#),
        RequestError::Names { max: 3 }
    );
    assert_eq!(
        error(r#"{"resource_names": ["123456789"]}"#),
        RequestError::NameLong { len: 9, max: 8 }
    );
    let located = |name: &str, parameters: &str| {
        let locator = format!(r#"{{"dynamic_parameters": {{{parameters}}}, "name": "{name}"}}"#);
        error(&format!(r#"{{"resource_locators": [{locator}]}}"#))
    };
    let parameters = r#""k": "", "l": "", "m": """#;
    assert_eq!(located("", parameters), RequestError::Names { max: 3 });
    assert_eq!(located("abc", r#""k": "123""#), RequestError::NameLong { len: 9, max: 8 });
    let list = vec!["0"; 100].join(",");
    let values = format!(r#"{{"node": {{"metadata": {{"a": [{list}]}}}}}}"#);
    assert_eq!(error(&values), RequestError::NodeValues { max: 24 });
    let long = format!(r#"{{"node": {{"id": "{}"}}}}"#, "x".repeat(201));
    assert_eq!(error(&long), RequestError::NodeLong { max: 200 });
    let version = format!(r#"{{"version_info": "{}"}}"#, "x".repeat(5000));
    assert_eq!(
        error(&version),
        RequestError::TextLong { field: "version_info", len: 5000, max: 4096 }
    );
}
