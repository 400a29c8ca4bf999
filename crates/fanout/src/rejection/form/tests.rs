//! The single pass over a text finds the same as the plain definition, which searches the rest of the text again after
//! each found part.

use super::*;

/// The plain definition of [`hide`].
fn hide_plainly(text: &str, hidden: &mut [bool]) {
    let mut at = 0;
    while let Some(start) = message_start(&text[at..]).map(|start| at + start) {
        let end = text[start..].find(CHECKED).map_or(text.len(), |end| start + end);
        hidden[start..end].fill(true);
        at = end;
    }
    hide_pem_plainly(text, hidden);
    let unescaped = unescaped(text.as_bytes());
    hide_base64(text, &unescaped, hidden);
    for run in numbers(&unescaped).iter().filter(|run| run.len() >= NUMBERS_MIN) {
        let span = span(run);
        let rest = &text[span.end..];
        let column = if rest.starts_with("  ") {
            rest.find(['\n', '\\']).unwrap_or(rest.len()).min(DUMP_TEXT_MAX)
        } else {
            0
        };
        hidden[span.start..span.end + column].fill(true);
    }
    let is_der = |pair: &[Byte]| pair[0].value == 0x30 && matches!(pair[1].value, 0x81 | 0x82);
    if let Some(at) = unescaped.windows(2).position(is_der) {
        hidden[span(&unescaped[at..])].fill(true);
    }
}

fn message_start(text: &str) -> Option<usize> {
    let marked = text.find("goo.gle/debug");
    let checked = text.find(CHECKED).and_then(|at| {
        let end = at + CHECKED.len();
        let end = end + text[end..].find(RULE_END)? + RULE_END.len();
        (end < text.len()).then_some(end)
    });
    let formed = (0..text.len()).find(|at| begins_message(text.as_bytes(), *at));
    marked.into_iter().chain(checked).chain(formed).min()
}

fn hide_pem_plainly(text: &str, hidden: &mut [bool]) {
    let mut from = 0;
    loop {
        let rest = &text[from..];
        let end = rest.find("-----END").map(|at| at + "-----END".len());
        let start = match (rest.find("-----BEGIN"), end) {
            (None, None) => return,
            (Some(begin), end) if end.is_none_or(|end| begin < end) => begin,
            _ => 0,
        };
        let end = end.map_or(rest.len(), |end| {
            rest[end..].find("-----").map_or(rest.len(), |at| end + at + 5)
        });
        hidden[from + start..from + end].fill(true);
        from += end;
    }
}

/// The parts of texts of known clients, and the marks that the search looks for.
const PARTS: [&str; 38] = [
    "Error adding/updating cluster(s) bad: ",
    "xDS response validation errors: [resource index 0: cc: INVALID_ARGUMENT: ",
    "Failed to load certificate chain from <inline>",
    CHECKED,
    "SecretValidationError.Name: value length must be at least 1 characters",
    "field: \"upstream_protocol_options\", reason: is required",
    RULE_END,
    ")",
    "goo.gle/debugstr   \n",
    "name: \"x\"\n",
    "name",
    "private_key {\n  inline_string: \"s3cret\"\n}\n",
    "{\"name\": \"x\"}",
    "&{Name:cc Key:[115 51 99]}",
    "{",
    "}",
    ":",
    "\"",
    " ",
    "          ",
    "\n",
    "\\n",
    "\\",
    "_",
    "a1",
    "é",
    "-----BEGIN PRIVATE KEY-----\n",
    "-----END PRIVATE KEY-----\n",
    "-----",
    "-----END",
    "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n",
    "zR3kLm9Qx7Tb2Wv5Yn8Hc4Jd6Fg1Sa0PoUiKeVtBzMqXw\n",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3.c2ln",
    "00000010  30 82 04 a4 02 01 00 02 82 01 01 00 a1 b2 c3 d4  |0...............|\n",
    "30:82:04:a4:02:01:00:02:82:01:01:00:a1:b2:c3:d4:e5:f6:01:02:03:04  with a text without an end",
    "[48 130 4 164 2 1 0 2 130 1 1 0 161 178 195 212 229 246 1 2 3 4]",
    "\\060\\202\\004",
    "10.0.0.1:80, 10.0.0.2:80",
];

/// OPS-19: the forms that are hidden do not depend on how often the text is read.
#[test]
fn single_pass_hides_the_same_as_the_plain_definition() {
    let mut seed = 1_u64;
    let mut below = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % n
    };
    for _ in 0..5_000 {
        let parts = (0..=below(25)).map(|_| PARTS[below(PARTS.len())]);
        let text = parts.collect::<String>();
        // A text may be truncated.
        let text = &text[..text.floor_char_boundary(text.len() - below(4).min(text.len()))];
        let [mut plain, mut hidden] = [(); 2].map(|()| vec![false; text.len()]);
        hide_plainly(text, &mut plain);
        hide(text, &mut hidden);
        assert_eq!(hidden, plain, "{text:?}");
    }
}
