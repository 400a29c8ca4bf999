//! Rejection texts of known clients with secrets in them.

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use bytes::Bytes;
use chancery_model::{ResourceDraft, ResourceKey, ResourceName, Revision, types};

use super::*;

/// Creates a response with one resource whose whole body is a secret.
fn response(secret: &[u8]) -> Resources {
    let name = ResourceName::new("cert").unwrap();
    let key = ResourceKey { type_url: TypeUrl::from_static(types::SECRET), name };
    let draft = ResourceDraft::new(key, Bytes::copy_from_slice(secret));
    let mut contents = Resources::default();
    contents.push(Arc::new(Resource::publish(&draft, Revision(1))));
    contents
}

fn cleaned_of(text: &str, secret: &[u8]) -> String {
    cleaned_of_many(text, &response(secret), &[])
}

fn cleaned_of_many(text: &str, answered: &Resources, others: &[Resources]) -> String {
    let type_url = TypeUrl::from_static(types::SECRET);
    let finder = SecretFinder::new(|_, body, found| found(body));
    let others = others.iter().map(|contents| (&type_url, contents));
    cleaned(text, (&type_url, answered), others, &finder)
}

/// The texts are recorded from Envoy, C-core and Node.
#[test]
fn rejection_text_without_secrets_is_kept() {
    for text in [
        "Error adding/updating cluster(s) bad: ring hash: minimum_ring_size (100000) > maximum_ring_size (10)",
        "Error adding/updating cluster(s) bad3: Didn't find a registered cluster factory implementation for name: 'no.such.cluster'",
        "Failed to load certificate chain from <inline>",
        "Error adding/updating scoped route(s): scope key conflict found, first scope is 's1', second scope is 's4'",
        "Error adding/updating listener(s) lbad: error adding listener '127.0.0.1:45599': no filter chains specified\n",
        "xDS response validation errors: [resource index 0: cc: INVALID_ARGUMENT: errors validating Cluster resource: \
         [field:load_balancing_policy.policies[0].typed_extension_config.typed_config.value[envoy.extensions.\
         load_balancing_policies.ring_hash.v3.RingHash].minimum_ring_size errors:[cannot be greater than \
         maximum_ring_size; value must be in the range [1, 8388608]]]]",
        "xDS response validation errors: [resource index 0: route.test: INVALID_ARGUMENT: errors validating \
         RouteConfiguration resource: [field:virtual_hosts[0].routes[0].match error:error creating path matcher: \
         Invalid regex string specified in matcher: missing ): (((]]",
        "xDS response validation errors: [resource index 0: ClusterLoadAssignment message validation failed: \
         [Endpoints have priority 3 but not 2]]",
        "regex 'a{2}[0-9]{1,3}' is not allowed",
    ] {
        assert_eq!(cleaned_of(text, b"q9Zx-7Jv!mW2_pL4"), text);
    }
}

#[test]
fn quoted_resource_is_cut_and_cause_is_kept() {
    let cause = "Proto constraint validation failed (SecretValidationError.Name: value length must be at least 1 \
                 characters): ";
    let dumps = [
        "name: \"x\"\ntls_certificate {\n  private_key {\n    inline_string: \"s3cret\"\n  }\n}\n",
        "name: \"x\" tls_certificate { private_key { inline_bytes: \"\\001s3cret\" } }",
        "goo.gle/debugonly   \nname: \"x\" key: s3cret",
        "{\"name\":\"x\",\"tls_certificate\":{\"private_key\":{\"inline_string\":\"s3cret\"}}}",
    ];
    for dump in dumps {
        assert_eq!(cleaned_of(&format!("{cause}{dump}"), b"other"), format!("{cause}{MARK}"));
    }
    // Envoy 1.40 writes the cause last.
    let text = format!(
        "goo.gle/debugstr   \nname: \"x\"\nprivate_key {{\n}}\n: {}",
        &cause[..cause.len() - 2]
    );
    assert_eq!(cleaned_of(&text, b"other"), format!("{MARK}{}", &cause[..cause.len() - 2]));
    for (before, dump) in [
        ("Invalid duration: Expected positive duration: ", "goo.gle/debugonly  \nseconds: -1\n"),
        ("error adding: ", "tls_certificate { private_key { inline_string: \"s3cret\" } }"),
        ("xds: unsupported: ", "name:\"cc\" transport_socket:{name:\"tls\"}"),
        ("xds: unsupported: &", "{Name:cc Key:[115 51 99]}"),
        ("bad resource, ", "{ name: 'cc', key: 's3cret' }"),
        ("bad resource ", "Secret { name: \"cc\", key: [1, 2] }"),
        ("bad resource, ", "{\\\"name\\\": \\\"cc\\\"}"),
    ] {
        assert_eq!(cleaned_of(&format!("{before}{dump}"), b"other"), format!("{before}{MARK}"));
    }
}

/// Envoy 1.40 names a required oneof in the form of a field.
#[test]
fn violated_rule_of_a_oneof_is_kept() {
    let dump = "goo.gle/debugstr   \nname: \"x\"\nkey: \"s3cret\"\n: ";
    for cause in [
        "Proto constraint validation failed (field: \"upstream_protocol_options\", reason: is required)",
        "Proto constraint validation failed (ClusterValidationError.HealthChecks[0]: embedded message failed validation \
         | caused by field: \"health_checker\", reason: is required)",
    ] {
        assert_eq!(cleaned_of(&format!("{dump}{cause}"), b"other"), format!("{MARK}{cause}"));
        assert_eq!(cleaned_of(&format!("{cause}: {dump}"), b"other"), format!("{cause}: {MARK}"));
        // A secret stays hidden.
        let text = format!("{dump}{cause}").replace("health_checker", "hunter2_swordfish");
        assert!(!cleaned_of(&text, b"hunter2_swordfish").contains("hunter2"), "{text}");
    }
    for text in [
        "field: \"s3cret word\", reason: x",
        "field: \"s3cret\"",
        "field: \"s3cret\" reason: \"x\"",
    ] {
        assert_eq!(cleaned_of(text, b"other"), MARK);
    }
}

#[test]
fn key_material_is_hidden_by_its_form() {
    let pem = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----";
    assert_eq!(cleaned_of(&format!("bad key {pem} of x"), b"o"), format!("bad key {MARK} of x"));
    assert_eq!(cleaned_of("bad key -----BEGIN RSA PRIV", b"o"), format!("bad key {MARK}"));
    let run = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ";
    assert_eq!(cleaned_of(&format!("bad key {run}: x"), b"o"), format!("bad key {MARK}: x"));
}

#[test]
fn short_secret_is_hidden_as_a_whole_word() {
    assert_eq!(cleaned_of("password 'hunter2' is bad", b"hunter2"), "password '[redacted]' is bad");
    assert_eq!(cleaned_of("password pin=abc, abcd", b"abc"), "password pin=[redacted], abcd");
    assert_eq!(cleaned_of("a text", b""), "a text");
}

#[test]
fn rejection_of_a_response_too_large_to_search_is_not_kept() {
    for bytes in [BODIES_BYTES_MAX, SECRETS_BYTES_MAX] {
        let text = cleaned_of("password hunter2", &vec![b'x'; bytes + 1]);
        assert!(text.starts_with("[redacted]: the rejected response has more than"), "{text}");
    }
}

/// A client may quote a value that it received before the rejected one.
#[test]
fn secret_of_another_unanswered_response_is_hidden() {
    let others = [b"hunter2", b"swordfi"].map(|secret| response(secret));
    let text = "password 'hunter2' is bad, 'swordfi' was not";
    let shown = "password '[redacted]' is bad, '[redacted]' was not";
    assert_eq!(cleaned_of_many(text, &response(b"other"), &others), shown);
    // Secrets beyond the limits do not discard the text.
    let large = [response(&vec![b'x'; BODIES_BYTES_MAX])];
    assert_eq!(cleaned_of_many("bad 'other'", &response(b"other"), &large), "bad '[redacted]'");
}

/// Pseudorandom numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n
    }

    fn bytes(&mut self, len: usize, letters: &[u8]) -> Vec<u8> {
        (0..len).map(|_| letters[self.below(letters.len())]).collect()
    }

    fn secret(&mut self) -> Vec<u8> {
        const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        match self.below(4) {
            0 => {
                let mut pem = b"-----BEGIN PRIVATE KEY-----\n".to_vec();
                for _ in 0..1 + self.below(4) {
                    pem.extend(self.bytes(64, LETTERS));
                    pem.push(b'\n');
                }
                pem.extend_from_slice(b"-----END PRIVATE KEY-----\n");
                pem
            }
            1 => {
                let len = 8 + self.below(40);
                self.bytes(len, b"abcdefghijklmnopqrstuvwxyz")
            }
            2 => {
                let len = 8 + self.below(60);
                self.bytes(len, b"aZ09 \t\n\"'\\{}[]:;,<>#%&$-_=/nrtx7")
            }
            _ => {
                let all: Vec<u8> = (0..=255).collect();
                let len = 8 + self.below(60);
                self.bytes(len, &all)
            }
        }
    }
}

/// Escapes a secret like protobuf's text format.
fn escaped(secret: &[u8]) -> String {
    let escape = |byte: &u8| match byte {
        b'\n' => "\\n".to_owned(),
        b'\r' => "\\r".to_owned(),
        b'\t' => "\\t".to_owned(),
        b'"' => "\\\"".to_owned(),
        b'\'' => "\\'".to_owned(),
        b'\\' => "\\\\".to_owned(),
        b' '..=b'~' => char::from(*byte).to_string(),
        _ => format!("\\{byte:03o}"),
    };
    secret.iter().map(escape).collect()
}

/// L: no run of 8 bytes of a secret remains, in whatever form a client quotes it or a part of it.
#[test]
fn no_part_of_a_secret_survives_in_any_known_form() {
    let mut random = Random(7);
    for round in 0..4000 {
        let secret = random.secret();
        let start = random.below(secret.len() - 7);
        let part = &secret[start..start + 8 + random.below(secret.len() - start - 7)];
        let quoted = match random.below(6) {
            0 => String::from_utf8_lossy(part).into_owned(),
            1 => escaped(part),
            2 => escaped(escaped(part).as_bytes()),
            3 => STANDARD_NO_PAD.encode(&secret),
            4 => URL_SAFE_NO_PAD.encode(&secret),
            _ => format!("{:?}", String::from_utf8_lossy(part)),
        };
        let text = match random.below(8) {
            0 => format!("Failed to load private key from <inline>: {quoted}"),
            1 => format!("Error adding/updating secret(s) cert: '{quoted}' is bad\nother: fine"),
            2 => format!(
                "Proto constraint validation failed (SecretValidationError.Type: invalid): {quoted}"
            ),
            3 => format!(
                "xDS response validation errors: [resource index 0: cert: INVALID_ARGUMENT: [field:x error:{quoted}]]"
            ),
            4 => format!(
                "xDS response validation errors: [resource index 0: Secret message validation failed: [{quoted}]]"
            ),
            5 => format!("xds: error parsing \"cert\": invalid {quoted:?}"),
            6 => quoted,
            _ => format!("line one\n{}\nline two", quoted.replace("\\n", "\\n\n")),
        };
        let shown = cleaned_of(&text, &secret);
        for form in [
            secret.clone(),
            escaped(&secret).into_bytes(),
            STANDARD_NO_PAD.encode(&secret).into_bytes(),
            URL_SAFE_NO_PAD.encode(&secret).into_bytes(),
        ] {
            let leaked = form.windows(8).find(|run| {
                let is_known = |known: &str| known.as_bytes().windows(8).any(|w| w == *run);
                shown.as_bytes().windows(8).any(|window| window == *run) && !is_known("[redacted]")
            });
            let leaked = leaked.map(|run| String::from_utf8_lossy(run).into_owned());
            assert_eq!(leaked, None, "round {round}: {text:?} is shown as {shown:?}");
        }
    }
}

type Encoding = fn(&[u8]) -> String;

fn joined(bytes: &[u8], separator: &str, of: impl Fn(&u8) -> String) -> String {
    bytes.iter().map(of).collect::<Vec<_>>().join(separator)
}

fn hex(bytes: &[u8], separator: &str) -> String {
    joined(bytes, separator, |byte| format!("{byte:02x}"))
}

/// Formats bytes like `hexdump -C`.
fn dump(bytes: &[u8]) -> String {
    let line = |(n, line): (usize, &[u8])| {
        let ascii = joined(line, "", |byte| match byte {
            b' '..=b'~' => char::from(*byte).to_string(),
            _ => ".".to_owned(),
        });
        format!("{:08x}  {}  |{ascii}|\n", n * 16, hex(line, " "))
    };
    bytes.chunks(16).enumerate().map(line).collect()
}

fn wrapped(text: &str, width: usize, end: &str) -> String {
    let lines =
        text.as_bytes().chunks(width).map(|line| String::from_utf8_lossy(line).into_owned());
    lines.collect::<Vec<_>>().join(end)
}

/// Each encoding, and the minimum number of letters for eight bytes.
const ENCODINGS: [(Encoding, usize); 20] = [
    (|b| hex(b, ""), 16),
    (|b| hex(b, "").to_uppercase(), 16),
    (|b| format!("added{}", hex(b, "")), 16),
    (|b| hex(b, ":"), 23),
    (|b| hex(b, "-").to_uppercase(), 23),
    (|b| format!("<Buffer {} ... 50 more bytes>", hex(b, " ")), 23),
    (|b| joined(b, "", |byte| format!("%{byte:02X}")), 24),
    (|b| joined(b, "", |byte| format!("\\x{byte:02x}")), 32),
    (|b| joined(b, "", |byte| format!("\\\\x{byte:02x}")), 40),
    (|b| joined(b, "", |byte| format!("\\{byte:03o}")), 32),
    (|b| joined(b, ", ", |byte| format!("{byte:#04x}")), 46),
    (|b| joined(b, ", ", |byte| format!("{byte:x}")), 22),
    (|b| format!("{b:?}"), 22),
    (|b| format!("{b:#?}"), 22),
    (|b| format!("[{}]", joined(b, " ", u8::to_string)), 15),
    (|b| format!("[{}]", joined(b, ", ", |byte| byte.cast_signed().to_string())), 22),
    (dump, 23),
    (|b| wrapped(&STANDARD.encode(b), 64, "\\n"), 8),
    (|b| wrapped(&STANDARD.encode([b"xy", b].concat()), 50, "\n  "), 8),
    (|b| format!("token_{}", URL_SAFE_NO_PAD.encode([b"x", b].concat())), 8),
];

/// OPS-19: no run of eight bytes of a secret remains in an encoding in which clients print bytes.
#[test]
fn encoded_secret_is_hidden() {
    let mut random = Random(11);
    for round in 0..60 {
        let secret = random.secret();
        let start = random.below(secret.len() - 7);
        // The part is too short to be hidden by its form.
        let longest = 16.min(secret.len() - start);
        let part = &secret[start..start + 8 + random.below(longest - 7)];
        for (n, (encode, letters)) in ENCODINGS.iter().enumerate() {
            let quoted = encode(part);
            let shown = cleaned_of(&format!("cannot load the key {quoted} of cert 12"), &secret);
            let leak = quoted
                .as_bytes()
                .windows(*letters)
                .find(|run| shown.as_bytes().windows(*letters).any(|window| window == *run));
            let leak = leak.map(String::from_utf8_lossy);
            assert_eq!(leak, None, "round {round}, encoding {n}: {quoted:?} is shown as {shown:?}");
            // The end of a PEM block hides everything before it.
            let is_cut = shown.starts_with("cannot load the key") || quoted.contains("-----END");
            assert!(is_cut, "{shown:?}");
        }
    }
}

/// A key in PEM form may be quoted as the decoded bytes of its base64 text.
#[test]
fn decoded_bytes_of_a_pem_key_are_hidden() {
    let mut random = Random(13);
    let all: Vec<u8> = (0..=255).collect();
    let der = random.bytes(96, &all);
    let pem = format!(
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
        wrapped(&STANDARD.encode(&der), 64, "\n")
    );
    let text = format!("bad key {}.", hex(&der[20..32], ":"));
    assert_eq!(cleaned_of(&text, pem.as_bytes()), "bad key [redacted].");
}

/// The value of a secret before the rejected one is no longer known. Its form reveals it.
#[test]
fn key_material_that_is_not_known_is_hidden_by_its_form() {
    let mut random = Random(17);
    let all: Vec<u8> = (0..=255).collect();
    let mut der = b"\x30\x82\x04\xa4\x02\x01\x00".to_vec();
    der.extend(random.bytes(57, &all));
    for (n, (encode, letters)) in ENCODINGS.iter().enumerate() {
        let quoted = encode(&der);
        let shown = cleaned_of(&format!("cannot load the key {quoted}"), b"other");
        // The first bytes are the same for all keys.
        let leak = quoted
            .as_bytes()
            .windows(*letters)
            .skip(7 * 6)
            .find(|run| shown.as_bytes().windows(*letters).any(|window| window == *run));
        assert_eq!(leak, None, "encoding {n}: {quoted:?} is shown as {shown:?}");
    }
    for (text, shown) in [
        ("bad: -----BEGIN EC PRIVATE KEY-----\\nMHcCAQ\\n", "bad: [redacted]"),
        ("AQEE\nab1=\n-----END EC PRIVATE KEY-----\nis bad", "[redacted]\nis bad"),
        ("-----BEGIN A-----\nx\n-----END A----- then -----BEGIN B", "[redacted] then [redacted]"),
        (
            "bad token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3.c2lnbmF0dXJl",
            "bad token [redacted]",
        ),
        (
            "Authorization: Bearer 0123456789abcdefgh is bad",
            "Authorization: Bearer [redacted] is bad",
        ),
        ("bad key MIIEvQIBADANBgkq", "bad key [redacted]"),
    ] {
        assert_eq!(cleaned_of(text, b"other"), shown);
    }
}

/// Addresses, identifiers and times are not key material.
#[test]
fn numbers_in_a_text_are_kept() {
    for text in [
        "no route to 10.0.0.1:80, 10.0.0.2:80, 10.0.0.3:80, 10.0.0.4:80, 10.0.0.5:80, 10.0.0.6:80",
        "request 550e8400-e29b-41d4-a716-446655440000 failed at 2024-01-02T10:11:12.131Z",
        "2001:db8::1 and fe80::1 are in the same subnet",
        "ports 80, 443, 8080, 8443, 9090 of 17 clusters, 3 of 4 with 100 % errors",
        "bearer token is missing, basic authentication failed",
    ] {
        assert_eq!(cleaned_of(text, b"q9Zx-7Jv!mW2_pL4"), text);
    }
}

/// A validator of the operator may quote resources, so only secrets are removed.
#[test]
fn text_of_a_validator_loses_secrets_and_keeps_quoted_resources() {
    let type_url = TypeUrl::from_static(types::SECRET);
    let finder = SecretFinder::new(|_, body, found| found(body));
    let without = |text: &str, secret: &[u8]| finder.without_secrets(text, [(&type_url, secret)]);
    let said = "secret {\n  inline_string: \"q9Zx-7Jv!mW2\"\n}\nwrong timeout";
    let expected = "secret {\n  inline_string: \"[redacted]\"\n}\nwrong timeout";
    assert_eq!(without(said, b"q9Zx-7Jv!mW2").as_deref(), Some(expected));
    let key =
        format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----", "aB3/".repeat(30));
    let said = format!("key: {key}: no");
    assert_eq!(without(&said, b"other-secret").as_deref(), Some("key: [redacted]: no"));
    let tail = &said[40..];
    assert_eq!(without(tail, b"other-secret").as_deref(), Some("[redacted]: no"));
    assert_eq!(without("wrong", &vec![b'x'; SECRETS_BYTES_MAX + 1]), None);
}
