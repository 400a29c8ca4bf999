use std::collections::BTreeMap;

use bytes::{BufMut, BytesMut};
use chancery_model::wire::put_len_field;
use chancery_proto::discovery::{
    Any, DeltaDiscoveryRequest, DiscoveryRequest, ResourceLocator, Status,
};
use prost::Message;

use super::*;

const LIMITS: DecodeLimits =
    DecodeLimits { names_max: 1000, name_bytes_max: 4096, nack_message_bytes_max: 100 };

fn scan(protocol: Protocol, message: &impl Message) -> Result<DecodedRequest, DecodeError> {
    DecodedRequest::decode(protocol, message.encode_to_vec().into(), LIMITS)
}

fn status() -> Status {
    let any = Any { type_url: "t".into(), value: Bytes::from_static(b"v") };
    Status { code: -3, message: "bad".into(), details: vec![any; 3] }
}

/// Returns locators with these names, and parameters that do not matter.
fn locators(names: &[&str]) -> Vec<ResourceLocator> {
    let parameters = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    let locator = |name: &&str| ResourceLocator {
        name: (*name).to_owned(),
        dynamic_parameters: parameters.clone(),
    };
    names.iter().map(locator).collect()
}

fn texts(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// DYN-01: locators come after the plain names.
#[test]
fn sotw_request_scan_equals_prost_decoding() {
    let message = DiscoveryRequest {
        version_info: "1-7".into(),
        node: Some(Bytes::from_static(b"node")),
        resource_names: texts(&["a", "", "é"]),
        type_url: "t/x".into(),
        response_nonce: "5".into(),
        error_detail: Some(status()),
        resource_locators: locators(&["l", ""]),
    };
    let scanned = scan(Protocol::Sotw, &message).unwrap();
    assert_eq!(scanned.node.as_deref(), Some(&b"node"[..]));
    assert_eq!(
        scanned.request,
        Request::Sotw(SotwRequest {
            type_url: "t/x".into(),
            version_info: "1-7".into(),
            resource_names: texts(&["a", "", "é", "l", ""]).into(),
            response_nonce: "5".into(),
            error_detail: Some(ErrorDetail { code: -3, message: "bad".into() }),
        })
    );
}

/// DYN-01: locators come after the plain names.
#[test]
fn delta_request_scan_equals_prost_decoding() {
    let held = [("a", "1a-00000001"), ("b", ""), ("c", "x")];
    let held = held.map(|(name, version)| (name.to_owned(), version.to_owned()));
    let message = DeltaDiscoveryRequest {
        type_url: "t/x".into(),
        resource_names_subscribe: texts(&["a", "b"]),
        resource_names_unsubscribe: texts(&["c"]),
        initial_resource_versions: BTreeMap::from(held.clone()),
        response_nonce: "5".into(),
        resource_locators_subscribe: locators(&["l"]),
        resource_locators_unsubscribe: locators(&["m", "n"]),
        ..DeltaDiscoveryRequest::default()
    };
    let scanned = scan(Protocol::Delta, &message).unwrap();
    let Request::Delta(request) = &scanned.request else { panic!("{scanned:?}") };
    assert_eq!(request.subscribe, texts(&["a", "b", "l"]).into());
    assert_eq!((request.subscribe.len(), request.unsubscribe.len()), (3, 3));
    assert_eq!(request.unsubscribe, texts(&["c", "m", "n"]).into());
    assert_eq!(request.initial_resource_versions, Vec::from(held).into());
    let newest = scanned.request.newest_seen(chancery_model::Incarnation(1));
    assert_eq!(newest, Some(Revision(46)));
    assert_eq!((scanned.node, &request.error_detail), (None, &None));
}

/// L14: the dynamic parameters of locators are bounded like names, before anything is built of them.
#[test]
fn dynamic_parameters_over_the_limits_are_rejected() {
    let with = |parameters: BTreeMap<String, String>, name: &str| {
        let locator = ResourceLocator { name: name.into(), dynamic_parameters: parameters };
        let message = DiscoveryRequest {
            resource_locators: vec![locator.clone(), ResourceLocator::default()],
            ..DiscoveryRequest::default()
        };
        scan(Protocol::Sotw, &message).map(|scanned| match scanned.request {
            Request::Sotw(request) => request.resource_names.len(),
            Request::Delta(_) | Request::Mcp(_) => 0,
        })
    };
    let of = |n: usize| (0..n).map(|n| (n.to_string(), String::new())).collect();
    let max = LIMITS.names_max;
    assert_eq!(with(of(max - 2), "l"), Ok(2));
    assert_eq!(with(of(max - 1), "l"), Err(DecodeError::Names { found: max + 1, max }));
    let long = |len: usize| BTreeMap::from([("k".to_owned(), "v".repeat(len))]);
    let max = LIMITS.name_bytes_max;
    // `l`, a separator, `k` and `=`.
    assert_eq!(with(long(max - 4), "l"), Ok(2));
    assert_eq!(with(long(max - 3), "l"), Err(DecodeError::LocatorLong { len: max + 2, max }));
    let escaped = BTreeMap::from([("k".to_owned(), "%".repeat(max / 3))]);
    assert!(matches!(with(escaped, "l"), Err(DecodeError::LocatorLong { .. })));
}

/// L14: unused fields of a request are skipped and not counted, however many there are.
#[test]
fn unused_fields_are_skipped_without_limit() {
    let mut bytes = BytesMut::new();
    let details = [0x1a, 0].repeat(100_000);
    put_len_field(&mut bytes, 7, &details);
    put_len_field(&mut bytes, 8, &[0x1a, 0].repeat(100_000));
    // Unknown fields: a varint, a group, a string.
    bytes.put_slice(&[0x78, 1, 0x7b, 0x08, 1, 0x7c, 0x7a, 1, b'x']);
    put_len_field(&mut bytes, 3, b"name");
    let scanned = DecodedRequest::decode(Protocol::Delta, bytes.freeze(), LIMITS).unwrap();
    let Request::Delta(request) = scanned.request else { panic!() };
    assert_eq!(request.error_detail, Some(ErrorDetail { code: 0, message: String::new() }));
    assert_eq!(request.subscribe, texts(&["name", ""]).into());
}

/// L14: a request with 16 million names, or versions, is rejected after the first one beyond the limit,
/// before anything is built.
#[test]
fn names_over_the_limit_stop_the_scan_immediately() {
    for key in [0x1a, 0x22, 0x2a, 0x42, 0x4a] {
        let message: Bytes = [key, 0].repeat(100_000).into();
        let mut scan = RequestDecoder::new(Protocol::Delta, message, LIMITS);
        let error = scan.step().unwrap_err();
        assert_eq!(error, DecodeError::Names { found: 1001, max: 1000 });
        assert!(scan.at() <= 2 * 1001, "the scan continued to {}", scan.at());
    }
}

#[test]
fn a_long_name_is_refused_in_every_list() {
    let long = "x".repeat(4097);
    let in_lists = [
        DeltaDiscoveryRequest {
            resource_names_subscribe: vec![long.clone()],
            ..Default::default()
        },
        DeltaDiscoveryRequest {
            resource_names_unsubscribe: vec![long.clone()],
            ..Default::default()
        },
        DeltaDiscoveryRequest {
            initial_resource_versions: [(long, String::new())].into(),
            ..Default::default()
        },
    ];
    for message in in_lists {
        let error = scan(Protocol::Delta, &message).unwrap_err();
        assert_eq!(error, DecodeError::NameLong { len: 4097, max: 4096 });
    }
}

/// A step ends after a fixed number of tokens, also inside a nested message.
#[test]
fn scan_steps_are_bounded() {
    let mut messages = vec![[0x52, 0].repeat(100_000)];
    for field in [5, 7] {
        let mut bytes = BytesMut::new();
        put_len_field(&mut bytes, field, &[0x7a, 0].repeat(100_000));
        messages.push(bytes.to_vec());
    }
    for message in messages {
        let len = message.len();
        let mut scan = RequestDecoder::new(Protocol::Delta, message.into(), LIMITS);
        let mut steps = 1;
        while scan.step().unwrap().is_none() {
            steps += 1;
        }
        assert!((12..=14).contains(&steps), "{steps} steps for {len} bytes");
    }
}

#[test]
fn texts_that_are_not_utf_8_are_refused() {
    for field in [2, 3, 4, 6] {
        let mut bytes = BytesMut::new();
        put_len_field(&mut bytes, field, b"\xc3\x28");
        let error = DecodedRequest::decode(Protocol::Delta, bytes.freeze(), LIMITS).unwrap_err();
        let text = format!("malformed DeltaDiscoveryRequest: field {field} is not valid UTF-8");
        assert_eq!(error.to_string(), text);
    }
    for entry in [&b"\x0a\x02\xc3\x28"[..], b"\x12\x02\xc3\x28"] {
        let mut bytes = BytesMut::new();
        put_len_field(&mut bytes, 5, entry);
        assert!(DecodedRequest::decode(Protocol::Delta, bytes.freeze(), LIMITS).is_err());
    }
}

#[test]
fn known_fields_of_another_wire_type_are_refused() {
    for message in [&[0x18, 1][..], &[0x08, 1], &[0x3a, 2, 0x10, 1], &[0x2a, 2, 0x08, 1]] {
        let error =
            DecodedRequest::decode(Protocol::Delta, message.to_vec().into(), LIMITS).unwrap_err();
        assert!(error.to_string().ends_with("has the wrong wire type"), "{error}");
    }
}

/// Texts beyond the limits are truncated, never inside a character.
#[test]
fn long_texts_are_cut_between_characters() {
    let error_detail = Some(Status { message: "é".repeat(500_000), ..Status::default() });
    let limits = DecodeLimits { nack_message_bytes_max: 99, ..LIMITS };
    let message = DiscoveryRequest {
        error_detail,
        response_nonce: "9".repeat(1000),
        version_info: "é".repeat(1000),
        ..DiscoveryRequest::default()
    };
    let scanned =
        DecodedRequest::decode(Protocol::Sotw, message.encode_to_vec().into(), limits).unwrap();
    assert!(scanned.is_nack_cut);
    let Request::Sotw(request) = scanned.request else { panic!() };
    assert_eq!(request.error_detail.unwrap().message, "é".repeat(49));
    assert_eq!(request.response_nonce, "9".repeat(256));
    assert_eq!(request.version_info, "é".repeat(128));
    let message = DiscoveryRequest { type_url: "x".repeat(513), ..DiscoveryRequest::default() };
    let error = scan(Protocol::Sotw, &message).unwrap_err();
    assert_eq!(error.to_string(), "type_url: the type URL has 513 bytes, at most 512 are allowed");
}

/// For any bytes, the scan ends and agrees with prost on whether they are a message, except for skipped
/// fields.
#[test]
fn damaged_messages_end_the_scan_and_agree_with_prost() {
    let message = DiscoveryRequest {
        version_info: "1-7".into(),
        node: Some(Bytes::from_static(b"node")),
        resource_names: texts(&["a", "bc", "def"]),
        type_url: "t/x".into(),
        response_nonce: "5".into(),
        error_detail: Some(Status { code: 3, message: "bad".into(), details: vec![] }),
        resource_locators: vec![ResourceLocator { name: "l".into(), ..Default::default() }],
    };
    let good = message.encode_to_vec();
    for at in 0..good.len() {
        for value in 0..=255 {
            let mut bytes = good.clone();
            bytes[at] = value;
            let scanned = DecodedRequest::decode(Protocol::Sotw, bytes.clone().into(), LIMITS);
            // A damaged key may turn a field into one that the scan skips.
            let decoded = DiscoveryRequest::decode(&*bytes);
            match (scanned, decoded) {
                (Ok(scanned), Ok(decoded)) => {
                    let Request::Sotw(request) = scanned.request else { panic!() };
                    let located = decoded.resource_locators.into_iter().map(|one| one.name);
                    let expected: Vec<_> =
                        decoded.resource_names.into_iter().chain(located).collect();
                    assert_eq!(request.resource_names.to_vec(), expected);
                    assert_eq!(request.type_url, decoded.type_url);
                    assert_eq!(request.version_info, decoded.version_info);
                    assert_eq!(scanned.node, decoded.node);
                }
                (Err(_), Err(_)) => {}
                (Ok(_), Err(error)) => {
                    let skipped = decoded_skips(&error.to_string());
                    assert!(skipped, "only prost rejects {bytes:02x?}: {error}");
                }
                (Err(error), Ok(_)) => panic!("only the scan rejects {bytes:02x?}: {error}"),
            }
        }
    }
}

/// Returns whether prost reports an error in a field that the scan skips.
fn decoded_skips(error: &str) -> bool {
    error.contains("resource_locators") || error.contains("details")
}
