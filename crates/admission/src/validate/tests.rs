//! Every kind of rule of PGV, on a value that satisfies it and on values that do not.

use prost_reflect::{DynamicMessage, ReflectMessage};

use super::{
    findings::Findings,
    rules::FieldRules,
    semantic,
    tree::{Message, Value},
    types::{FieldKind, Types, types},
    walk,
};

/// Returns the rules in the text format of `validate.FieldRules`.
fn rules(text: &str) -> FieldRules {
    let kind = chancery_proto::envoy_pool().get_message_by_name("validate.FieldRules").unwrap();
    let message = DynamicMessage::parse_text_format(kind, text).unwrap();
    assert!(message.descriptor().full_name().ends_with("FieldRules"));
    FieldRules::from_message(&message)
}

/// Returns the IDs of the rules that a value violates.
fn violated(rules: &FieldRules, kind: &FieldKind, value: &Value<'_>) -> Vec<String> {
    let mut findings = Findings::default();
    walk::one(kind, rules, value, &mut findings);
    findings.into_faults().into_iter().map(|fault| fault.id.into_owned()).collect()
}

fn bits(value: i64) -> u64 {
    u64::from_le_bytes(value.to_le_bytes())
}

#[test]
fn number_rules_accept_and_refuse() {
    use FieldKind as K;
    let double = f64::to_bits;
    let single = |value: f32| u64::from(value.to_bits());
    #[rustfmt::skip]
    let cases: &[(&str, K, u64, u64, &str)] = &[
        // The rules, the kind, a good value, a bad one, and the violated rule.
        ("uint32 {lte: 65535}", K::Unsigned, 65535, 65536, "uint32.lte"),
        ("uint32 {lt: 9}", K::Unsigned, 8, 9, "uint32.lt"),
        ("uint64 {gte: 4}", K::Unsigned, 4, 3, "uint64.gte"),
        ("uint64 {gt: 4}", K::Unsigned, 5, 4, "uint64.gt"),
        ("uint32 {const: 4}", K::Unsigned, 4, 5, "uint32.const"),
        ("uint32 {in: 4 in: 5}", K::Unsigned, 5, 6, "uint32.in"),
        ("uint32 {not_in: 4}", K::Unsigned, 5, 4, "uint32.not_in"),
        // A lower bound above the upper one excludes the range between them.
        ("uint32 {lt: 3 gt: 7}", K::Unsigned, 8, 5, "uint32.gt"),
        ("uint32 {gte: 5 ignore_empty: true}", K::Unsigned, 0, 4, "uint32.gte"),
        ("int32 {gte: -1}", K::Signed, bits(-1), bits(-2), "int32.gte"),
        ("int64 {lt: 0}", K::Signed, bits(-1), 0, "int64.lt"),
        ("sint32 {gt: -2}", K::Zigzag, 1, 3, "sint32.gt"),
        ("sint64 {lte: 1}", K::Zigzag, 2, 4, "sint64.lte"),
        ("fixed32 {gt: 1}", K::Fixed32, 2, 1, "fixed32.gt"),
        ("fixed64 {gt: 1}", K::Fixed64, 2, 1, "fixed64.gt"),
        ("sfixed32 {gte: -1}", K::Sfixed32, 0xffff_ffff, 0xffff_fffe, "sfixed32.gte"),
        ("sfixed64 {gte: -1}", K::Sfixed64, bits(-1), bits(-2), "sfixed64.gte"),
        ("float {gte: 0.5}", K::Float, single(0.5), single(0.25), "float.gte"),
        ("double {lte: 100 gte: 0}", K::Double, double(100.0), double(100.5), "double.lte"),
        ("double {lte: 100 gte: 0}", K::Double, double(0.0), double(f64::NAN), "double.gte"),
        ("bool {const: true}", K::Bool, 1, 0, "bool.const"),
    ];
    for (text, kind, good, bad, id) in cases {
        let rules = rules(text);
        assert_eq!(violated(&rules, kind, &Value::Bits(*good)), [""; 0], "{text}");
        let ids = violated(&rules, kind, &Value::Bits(*bad));
        assert_eq!(ids.first().map(String::as_str), Some(*id), "{text}");
    }
}

#[test]
fn text_and_bytes_rules_accept_and_refuse() {
    let long = "x".repeat(300);
    #[rustfmt::skip]
    let cases: &[(&str, &str, &str, &str)] = &[
        ("string {min_len: 1}", "é", "", "string.min_len"),
        ("string {max_len: 2}", "éé", "ééé", "string.max_len"),
        ("string {len: 2}", "éé", "é", "string.len"),
        ("string {min_bytes: 2}", "é", "e", "string.min_bytes"),
        ("string {max_bytes: 2}", "é", "ée", "string.max_bytes"),
        ("string {len_bytes: 2}", "é", "e", "string.len_bytes"),
        ("string {const: \"a\"}", "a", "b", "string.const"),
        ("string {pattern: \"^[^?#]+[^?#/]$\"}", "/a", "/a/", "string.pattern"),
        ("string {prefix: \"/\"}", "/a", "a", "string.prefix"),
        ("string {suffix: \"/\"}", "a/", "/a", "string.suffix"),
        ("string {contains: \"x\"}", "axa", "a", "string.contains"),
        ("string {not_contains: \"x\"}", "a", "x", "string.not_contains"),
        ("string {in: \"a\" in: \"b\"}", "b", "c", "string.in"),
        ("string {not_in: \"a\"}", "b", "a", "string.not_in"),
        ("string {prefix: \"/\" ignore_empty: true}", "", "a", "string.prefix"),
        ("string {email: true}", "a@b.example", "a.example", "string.email"),
        ("string {hostname: true}", "a-b.example", "a_b", "string.hostname"),
        ("string {ip: true}", "::1", "::g", "string.ip"),
        ("string {ipv4: true}", "10.0.0.1", "::1", "string.ipv4"),
        ("string {ipv6: true}", "::1", "10.0.0.1", "string.ipv6"),
        ("string {address: true}", "a.example", "a b", "string.address"),
        ("string {uri: true}", "http://a/b", "/b", "string.uri"),
        ("string {uri_ref: true}", "/b", "a b", "string.uri_ref"),
        ("string {uuid: true}", "01234567-89ab-cdef-0123-456789abcdef", "0123", "string.uuid"),
        ("string {well_known_regex: HTTP_HEADER_NAME}", ":path", "a b", "string.well_known_regex"),
        ("string {well_known_regex: HTTP_HEADER_NAME}", "x-a", "", "string.well_known_regex"),
        ("string {well_known_regex: HTTP_HEADER_NAME strict: false}", "a b", "a\nb", "string.well_known_regex"),
        ("string {well_known_regex: HTTP_HEADER_VALUE}", "a\tb", "a\u{7f}", "string.well_known_regex"),
        ("string {well_known_regex: HTTP_HEADER_VALUE strict: false}", "a\u{7f}", "a\rb", "string.well_known_regex"),
        ("string {max_bytes: 256}", "x", &long, "string.max_bytes"),
        ("bytes {min_len: 2}", "ab", "a", "bytes.min_len"),
        ("bytes {max_len: 2}", "ab", "abc", "bytes.max_len"),
        ("bytes {len: 2}", "ab", "a", "bytes.len"),
        ("bytes {const: \"ab\"}", "ab", "a", "bytes.const"),
        ("bytes {prefix: \"a\"}", "ab", "b", "bytes.prefix"),
        ("bytes {suffix: \"b\"}", "ab", "a", "bytes.suffix"),
        ("bytes {contains: \"b\"}", "abc", "a", "bytes.contains"),
        ("bytes {in: \"a\"}", "a", "b", "bytes.in"),
        ("bytes {not_in: \"a\"}", "b", "a", "bytes.not_in"),
        ("bytes {pattern: \"^a+$\"}", "aa", "b", "bytes.pattern"),
        ("bytes {ipv4: true}", "abcd", "abc", "bytes.ip"),
        ("bytes {min_len: 2 ignore_empty: true}", "", "a", "bytes.min_len"),
    ];
    for (text, good, bad, id) in cases {
        let rules = rules(text);
        let kind = if text.starts_with("bytes") { FieldKind::Bytes } else { FieldKind::Text };
        assert_eq!(violated(&rules, &kind, &Value::Bytes(good.as_bytes())), [""; 0], "{text}");
        assert_eq!(violated(&rules, &kind, &Value::Bytes(bad.as_bytes())), [*id], "{text}");
    }
}

/// Returns the kind of a field of a message of Envoy's API.
fn kind(message: &str, field: &str) -> &'static FieldKind {
    let message = types().get(message).unwrap();
    &message.fields.iter().find(|found| found.name == field).unwrap().kind
}

#[test]
fn enum_rules_accept_and_refuse() {
    let kind = kind("envoy.config.cluster.v3.Cluster", "lb_policy");
    for (text, good, bad, id) in [
        ("enum {defined_only: true}", 1, 77, "enum.defined_only"),
        ("enum {const: 1}", 1, 0, "enum.const"),
        ("enum {in: 1 in: 2}", 2, 3, "enum.in"),
        ("enum {not_in: 1}", 2, 1, "enum.not_in"),
    ] {
        let rules = rules(text);
        assert_eq!(violated(&rules, kind, &Value::Bits(good)), [""; 0], "{text}");
        assert_eq!(violated(&rules, kind, &Value::Bits(bad)), [id], "{text}");
    }
}

/// Returns a decoded message of a type.
fn decoded<'a>(name: &str, body: &'a [u8]) -> Value<'a> {
    Value::Message(Message::decode(types(), types().get(name).unwrap(), body).unwrap())
}

#[test]
fn duration_timestamp_any_and_wrapper_rules_accept_and_refuse() {
    // A field 1 (seconds) and a field 2 (nanoseconds).
    let (one, one_and_nanos) = (b"\x08\x01".as_slice(), b"\x08\x01\x10\x01".as_slice());
    let (duration, timestamp) = ("google.protobuf.Duration", "google.protobuf.Timestamp");
    let negative = b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01".as_slice();
    let (a, b) = (b"\x0a\x03x/a".as_slice(), b"\x0a\x03x/b".as_slice());
    for (text, name, good, bad, id) in [
        ("duration {gt {}}", duration, one, b"".as_slice(), "duration.gt"),
        ("duration {gte {}}", duration, b"".as_slice(), negative, "duration.gte"),
        ("duration {lte {seconds: 1}}", duration, one, one_and_nanos, "duration.lte"),
        ("duration {lt {seconds: 1}}", duration, negative, one, "duration.lt"),
        ("duration {in {seconds: 1}}", duration, one, one_and_nanos, "duration.in"),
        ("duration {not_in {seconds: 1}}", duration, one_and_nanos, one, "duration.not_in"),
        ("duration {const {seconds: 1}}", duration, one, one_and_nanos, "duration.const"),
        ("timestamp {gte {seconds: 1}}", timestamp, one, b"", "timestamp.gte"),
        ("timestamp {lt {seconds: 1}}", timestamp, b"", one, "timestamp.lt"),
        ("uint32 {gte: 1}", "google.protobuf.UInt32Value", one, b"", "uint32.gte"),
        ("bool {const: true}", "google.protobuf.BoolValue", one, b"", "bool.const"),
        ("string {min_len: 1}", "google.protobuf.StringValue", a, b"", "string.min_len"),
        ("any {in: \"x/a\"}", "google.protobuf.Any", a, b, "any.in"),
        ("any {not_in: \"x/a\"}", "google.protobuf.Any", b, a, "any.in"),
    ] {
        let (rules, kind) = (rules(text), FieldKind::Message(0));
        let ids = |body| {
            let mut ids = violated(&rules, &kind, &decoded(name, body));
            ids.retain(|id| id != "any.unknown_type");
            ids
        };
        assert_eq!(ids(good), [""; 0], "{text}");
        assert_eq!(ids(bad), [id], "{text}");
    }
}

/// Returns the findings of a body as `path: id`.
fn found(name: &str, body: &[u8]) -> Vec<String> {
    let message = Message::decode(types(), types().get(name).unwrap(), body).unwrap();
    let mut findings = Findings::default();
    walk::message(&message, &mut findings);
    let faults = findings.into_faults();
    faults.into_iter().map(|fault| format!("{}: {}", fault.path, fault.id)).collect()
}

/// The last value of a field counts, a message in two parts is merged, and the last member of a oneof
/// counts, as in every protobuf reader.
#[test]
fn repeated_fields_merge_as_in_protobuf() {
    let locality = "envoy.config.core.v3.SocketAddress";
    // `address` is "", then "a"; `port_value` is 1.
    assert_eq!(found(locality, b"\x12\x00\x12\x01a\x18\x01"), [""; 0]);
    assert_eq!(found(locality, b"\x12\x01a\x12\x00\x18\x01"), ["address: string.min_len"]);
    // `port_value` is 70000, then `named_port` is "x".
    assert_eq!(found(locality, b"\x12\x01a\x18\xf0\xa2\x04\x22\x01x"), [""; 0]);
    assert_eq!(found(locality, b"\x12\x01a\x22\x01x\x18\xf0\xa2\x04"), ["port_value: uint32.lte"]);
    // `socket_address` in two parts: the address, then the port.
    let address = "envoy.config.core.v3.Address";
    assert_eq!(found(address, b"\x0a\x03\x12\x01a\x0a\x02\x18\x01"), [""; 0]);
}

#[test]
fn absent_fields_violate_required_rules() {
    assert_eq!(
        found("envoy.config.core.v3.SocketAddress", b""),
        ["address: string.min_len", ": oneof.required"]
    );
    assert_eq!(
        found("envoy.config.cluster.v3.Cluster.CustomClusterType", b""),
        ["name: string.min_len"]
    );
    assert_eq!(
        found("envoy.config.route.v3.Route", b""),
        ["match: message.required", ": oneof.required"]
    );
}

/// PGV's expressions are in the syntax of RE2. One that `regex` refused would silently not be checked.
#[test]
fn every_pattern_of_the_descriptors_compiles() {
    let pool = chancery_proto::envoy_pool();
    let extension = pool.get_extension_by_name("validate.rules").unwrap();
    let mut n = 0;
    for message in pool.all_messages() {
        for field in message.fields() {
            let options = field.options();
            if !options.has_extension(&extension) {
                continue;
            }
            let text = options.get_extension(&extension).to_string();
            if text.contains("pattern:") {
                let rules = FieldRules::of(&field, &extension).unwrap();
                assert!(rules.has_pattern(), "{}: {text}", field.full_name());
                n += 1;
            }
        }
    }
    assert!(n > 8, "only {n} patterns were found");
}

#[test]
fn the_descriptors_have_rules() {
    let compiled = Types::compile(chancery_proto::envoy_pool());
    let fields = compiled.all.iter().flat_map(|message| &message.fields);
    let n = fields.filter(|field| field.rules.required || field.rules.rule.is_some()).count();
    assert!(n > 1000, "only {n} fields have rules");
    let oneofs = compiled.all.iter().flat_map(|message| &message.oneofs);
    assert!(oneofs.filter(|oneof| oneof.required).count() > 100);
}

/// A misspelled type or field would never match.
#[test]
fn tables_of_rules_name_types_and_fields_that_exist() {
    for (kind, fields) in semantic::named_fields() {
        let Some(known) = types().get(kind) else { panic!("{kind}") };
        for field in fields {
            assert!(known.position_of(field).is_some(), "{kind}.{field}");
        }
    }
}

/// SVC-18: a newer release of Envoy has more fields. They are kept, and the author learns what cannot have them.
#[test]
fn field_that_this_release_does_not_know_is_a_warning() {
    // The name, and the unknown field 3000 in the cluster and in its metadata.
    let cluster = b"\x0a\x01w\xca\x01\x05\xc2\xbb\x01\x01h\xc2\xbb\x01\x02hi";
    let name = "envoy.config.cluster.v3.Cluster";
    assert_eq!(
        found(name, cluster),
        [": message.unknown_field", "metadata: message.unknown_field"]
    );
    assert_eq!(found(name, &cluster[..3]), [""; 0]);
    // The unknown field 7 of a `Duration`, and of an `Any` in the metadata.
    let timeout = b"\x0a\x01w\x22\x04\x08\x05\x38\x01";
    assert_eq!(found(name, timeout), ["connect_timeout: message.unknown_field"]);
    let metadata =
        b"\x0a\x01w\xca\x01\x22\x12\x20\x0a\x01k\x12\x1b\x0a\x17x/google.protobuf.Empty\x38\x01";
    let path = "metadata.typed_filter_metadata[\"k\"]";
    assert_eq!(found(name, metadata), [format!("{path}: message.unknown_field")]);
}
