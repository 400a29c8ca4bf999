//! Rejection texts of known clients, with secrets in them.

use bytes::Bytes;
use chancery_model::{Resource, ResourceDraft, ResourceKey, ResourceName, Revision, types};

use super::*;

fn cleaned_of(text: &str, secret: &[u8]) -> String {
    let type_url = TypeUrl::from_static(types::SECRET);
    let name = ResourceName::new("cert").unwrap();
    let key = ResourceKey { type_url: type_url.clone(), name };
    // The finder of these tests takes the whole body as one secret.
    let draft = ResourceDraft::new(key, Bytes::copy_from_slice(secret));
    let mut contents = Resources::default();
    contents.push(Arc::new(Resource::publish(&draft, Revision(1))));
    let finder = SecretFinder::new(|_, body, found| found(body));
    cleaned(text, &type_url, &contents, &finder)
}

/// Texts recorded from Envoy, C-core and Node.
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
    // As Envoy 1.40 has it: the cause comes last.
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

#[test]
fn key_material_is_hidden_by_its_form() {
    let pem = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----";
    assert_eq!(cleaned_of(&format!("bad key {pem} of x"), b"o"), format!("bad key {MARK} of x"));
    assert_eq!(cleaned_of("bad key -----BEGIN RSA PRIV", b"o"), format!("bad key {MARK}"));
    let run = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ";
    assert_eq!(cleaned_of(&format!("bad key {run}: x"), b"o"), format!("bad key {MARK}: x"));
}

#[test]
fn short_secret_is_hidden_where_it_stands() {
    assert_eq!(cleaned_of("password 'hunter2' is bad", b"hunter2"), "password '[redacted]' is bad");
    assert_eq!(cleaned_of("password pin=abc, abcd", b"abc"), "password pin=[redacted], abcd");
    assert_eq!(cleaned_of("a text", b""), "a text");
}

#[test]
fn rejection_of_a_response_too_large_to_search_is_not_kept() {
    let text = cleaned_of("password hunter2", &vec![b'x'; BODIES_BYTES_MAX + 1]);
    assert!(text.starts_with("[redacted]: the rejected response has 4194305 bytes"), "{text}");
}

/// Numbers that are the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }

    fn bytes(&mut self, len: usize, letters: &[u8]) -> Vec<u8> {
        (0..len).map(|_| letters[self.roll(letters.len())]).collect()
    }

    fn secret(&mut self) -> Vec<u8> {
        const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        match self.roll(4) {
            0 => {
                let mut pem = b"-----BEGIN PRIVATE KEY-----\n".to_vec();
                for _ in 0..1 + self.roll(4) {
                    pem.extend(self.bytes(64, LETTERS));
                    pem.push(b'\n');
                }
                pem.extend_from_slice(b"-----END PRIVATE KEY-----\n");
                pem
            }
            1 => {
                let len = 8 + self.roll(40);
                self.bytes(len, b"abcdefghijklmnopqrstuvwxyz")
            }
            2 => {
                let len = 8 + self.roll(60);
                self.bytes(len, b"aZ09 \t\n\"'\\{}[]:;,<>#%&$-_=/nrtx7")
            }
            _ => {
                let all: Vec<u8> = (0..=255).collect();
                let len = 8 + self.roll(60);
                self.bytes(len, &all)
            }
        }
    }
}

/// C escapes, as protobuf's text format has them.
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

/// L: no run of 8 bytes of a secret is left, in whatever form a client quotes it or a part of it.
#[test]
fn no_part_of_a_secret_survives_in_any_known_form() {
    let mut dice = Dice(7);
    for round in 0..4000 {
        let secret = dice.secret();
        let start = dice.roll(secret.len() - 7);
        let part = &secret[start..start + 8 + dice.roll(secret.len() - start - 7)];
        let quoted = match dice.roll(6) {
            0 => String::from_utf8_lossy(part).into_owned(),
            1 => escaped(part),
            2 => escaped(escaped(part).as_bytes()),
            3 => STANDARD_NO_PAD.encode(&secret),
            4 => URL_SAFE_NO_PAD.encode(&secret),
            _ => format!("{:?}", String::from_utf8_lossy(part)),
        };
        let text = match dice.roll(8) {
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
