//! Tests of differences on values that are shaped like resources.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Returns the unified lines, each after its sign.
fn show(before: &Value, after: &Value) -> String {
    let lines = unified(&diff(before, after), 1000).lines;
    let lines = lines.iter().map(|line| format!("{line}\n"));
    lines.collect()
}

fn endpoint(n: usize) -> Value {
    let address = format!("10.0.{}.{}", n / 250, n % 250);
    json!({"endpoint": {"address": {"socket_address": {"address": address, "port_value": 80}}}})
}

#[test]
fn removed_endpoint_of_many_is_the_only_difference() {
    let cluster = |skipped: usize| {
        let endpoints: Vec<Value> = (0..500).filter(|n| *n != skipped).map(endpoint).collect();
        json!({"name": "web", "load_assignment": {"endpoints": [
            {"locality": {"zone": "a"}, "lb_endpoints": endpoints},
        ]}})
    };
    let (before, after) = (cluster(1000), cluster(250));
    let found = diff(&before, &after);
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].path.to_string(),
        "load_assignment.endpoints[0].lb_endpoints[endpoint.address=10.0.1.0:80]"
    );
    assert_eq!(
        show(&before, &after),
        "  load_assignment:\n  \
           \x20 endpoints:\n  \
           \x20 - locality: {zone: a}\n  \
           \x20   lb_endpoints:\n\
         -     - {endpoint: {address: {socket_address: {address: 10.0.1.0, port_value: 80}}}}\n"
    );
}

#[test]
fn moved_item_is_neither_removed_nor_added() {
    let routes = |names: &[&str]| {
        let routes = names.iter().map(|name| json!({"name": name, "match": {"prefix": "/"}}));
        json!({"routes": routes.collect::<Vec<_>>()})
    };
    assert_eq!(
        show(&routes(&["a", "b", "c", "d"]), &routes(&["d", "a", "b", "c"])),
        "  routes:\n~ - name: d  # moved from 3 to 0\n"
    );
    let words = |text: &str| json!(text.split(' ').collect::<Vec<_>>());
    assert_eq!(show(&words("a b c"), &words("c a b")), "~ - c  # moved from 2 to 0\n");
}

#[test]
fn item_with_another_key_is_changed() {
    let host = |prefix: &str| {
        json!({"virtual_hosts": [{"name": "v", "domains": ["*"], "routes": [
            {"match": {"prefix": prefix}, "route": {"cluster": "a", "timeout": "3s"}},
            {"match": {"prefix": "/"}, "route": {"cluster": "b", "timeout": "3s"}},
        ]}]})
    };
    assert_eq!(
        show(&host("/old"), &host("/new")),
        "  virtual_hosts:\n  \
           - name: v\n  \
           \x20 routes:\n\
         -   - match: {prefix: /old}\n\
         +   - match: {prefix: /new}\n"
    );
}

#[test]
fn long_text_is_shown_by_its_words() {
    let text =
        |word: &str| format!("{}{word}{}", "lorem ipsum ".repeat(150), " dolor sit".repeat(200));
    let (before, after) = words(&text("amet"), &text("elit"));
    assert_eq!(
        (before.as_str(), after.as_str()),
        ("…lorem ipsum amet dolor sit d…", "…lorem ipsum elit dolor sit d…")
    );
    let script = |middle: &str| {
        let lines = (0..100).map(|n| if n == 50 { middle.to_owned() } else { format!("line {n}") });
        json!({"inline_code": lines.collect::<Vec<_>>().join("\n")})
    };
    assert_eq!(
        show(&script("x = 1"), &script("x = 2")),
        "  inline_code: |-\n    line 49\n-   x = 1\n+   x = 2\n    line 51\n"
    );
}

/// A short value is shown as removed and added. No field is renamed from a field of another object.
#[test]
fn only_long_values_of_the_same_object_are_shown_as_renamed() {
    let long: Value =
        (0..9).map(|n| json!({"address": format!("10.0.0.{n}"), "port": n})).collect();
    let object = |name: &str, value: &Value| json!({"a": {name: value}});
    assert_eq!(
        show(&object("old", &long), &object("new", &long)),
        "  a:\n~   new:  # renamed from old\n"
    );
    let beside = |name: &str| json!({"a": {name: [1], "long": long}});
    assert_eq!(show(&beside("old"), &beside("new")), "  a:\n+   new: [1]\n-   old: [1]\n");
    let deeper = |value: &Value| json!({"a": {"new": value, "b": {}}});
    let higher = |value: &Value| json!({"a": {"b": {"old": value}}});
    let shown = show(&higher(&long), &deeper(&long));
    assert!(!shown.contains("renamed"), "{shown}");
    let shown = show(&deeper(&long), &higher(&long));
    assert!(!shown.contains("renamed"), "{shown}");
}

#[test]
fn short_values_are_shown_as_a_whole_if_this_is_shorter() {
    let value = |x: &Value, y: &Value| json!({"a": {"w": x, "z": y}});
    let [one, two] = [json!(1), json!(2)];
    assert_eq!(
        show(&value(&one, &one), &value(&two, &two)),
        "- a: {w: 1, z: 1}\n+ a: {w: 2, z: 2}\n"
    );
    let text = json!("a text of some length");
    assert_eq!(show(&value(&one, &text), &value(&two, &text)), "  a:\n-   w: 1\n+   w: 2\n");
    let pair = |x: &Value, y: &Value| json!({"w": x, "z": y});
    assert_eq!(
        show(&pair(&one, &one), &pair(&two, &two)),
        "- w: 1\n+ w: 2\n- z: 1\n+ z: 2\n",
        "a resource is never shown as a whole"
    );
}

#[test]
fn paths_name_items_by_keys_of_at_most_80_bytes() {
    let path = |key: &Value| {
        let list = |n: u8| json!({"items": [{"name": key, "weight": n}]});
        let (before, after) = (list(1), list(2));
        let found = diff(&before, &after);
        found[0].path.to_string()
    };
    let name = "n".repeat(80);
    assert_eq!(path(&json!(name)), format!("items[name={name}].weight"));
    assert_eq!(path(&json!("n".repeat(81))), "items[0].weight");
    assert_eq!(path(&json!("é".repeat(41))), "items[0].weight");
    assert_eq!(path(&json!(7)), "items[name=7].weight");
    assert_eq!(path(&json!({"exact": "a"})), "items[0].weight");
}

#[test]
fn many_changed_items_are_changed_in_their_places() {
    let routes = |n: usize, version: &str| {
        let routes = (0..n).map(
            |n| json!({"match": {"prefix": format!("/{version}/{n}")}, "route": {"cluster": n}}),
        );
        json!({"routes": routes.collect::<Vec<_>>()})
    };
    for n in [100, 1000] {
        let (before, after) = (routes(n, "v1"), routes(n, "v2"));
        let found = diff(&before, &after);
        assert_eq!(found.len(), n);
        let shown = unified(&found, 3).lines;
        assert_eq!(shown[1].to_string(), "- - match: {prefix: /v1/0}");
        assert_eq!(shown[2].to_string(), "+ - match: {prefix: /v2/0}");
    }
}

/// The comparison of such texts line by line took time with the square of their length.
#[test]
fn long_texts_without_common_lines_are_compared_quickly() {
    let text = |word: &str| (0..50_000).map(|n| format!("{word} {n}\n")).collect::<String>();
    let (before, after) = (json!({"code": text("a")}), json!({"code": text("b")}));
    let shown = unified(&diff(&before, &after), 10);
    assert_eq!(shown.lines.len() + shown.omitted, 100_001);
}

#[test]
fn count_of_lines_is_true() {
    let before = json!({"a": (0..1000).collect::<Vec<_>>()});
    let after = json!({"a": (1000..2000).collect::<Vec<_>>()});
    let shown = unified(&diff(&before, &after), 10);
    assert_eq!((shown.lines.len(), shown.lines.len() + shown.omitted), (10, 2001));
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        (0..4_i32).prop_map(Value::from),
        "[ab]{0,2}".prop_map(Value::from),
        Just(Value::Null)
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let name = prop_oneof!["[abc]", Just("name".to_owned()), Just("match".to_owned())];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(name, inner, 0..4)
                .prop_map(|map| map.into_iter().collect()),
        ]
    })
}

/// Adds the paths of the leaves of a value, each with the leaf. Items have no index.
fn leaves(value: &Value, path: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().for_each(|(name, value)| leaves(value, &format!("{path}.{name}"), out));
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().for_each(|item| leaves(item, &format!("{path}[]"), out));
        }
        leaf => out.push(format!("{path}={leaf}")),
    }
}

proptest! {
    /// Equal values have no differences, and others have some.
    #[test]
    fn only_different_values_have_differences(before in value(), after in value()) {
        prop_assert_eq!(diff(&before, &after).is_empty(), before == after);
        prop_assert!(diff(&before, &before.clone()).is_empty());
    }

    /// The removed and added parts explain the leaves of the second value: no difference is missing, and none is too
    /// much.
    #[test]
    fn differences_turn_the_first_value_into_the_second(before in value(), after in value()) {
        let (mut expected, mut got) = (Vec::new(), Vec::new());
        leaves(&after, "", &mut expected);
        leaves(&before, "", &mut got);
        for Difference { path, edit, .. } in diff(&before, &after) {
            let at: String = path.0.iter().map(|segment| match segment {
                Segment::Field(name) => format!(".{name}"),
                Segment::Item { .. } => "[]".to_owned(),
            }).collect();
            let (gone, come) = match edit {
                Edit::Added(new) => (None, Some(new)),
                Edit::Removed(old) => (Some(old), None),
                Edit::Changed(old, new) => (Some(old), Some(new)),
                Edit::Moved { .. } => (None, None),
            };
            let mut removed = Vec::new();
            gone.into_iter().for_each(|value| leaves(value, &at, &mut removed));
            for leaf in removed {
                let Some(found) = got.iter().position(|one| *one == leaf) else {
                    return Err(TestCaseError::fail(format!("{leaf} is not there")));
                };
                got.swap_remove(found);
            }
            come.into_iter().for_each(|value| leaves(value, &at, &mut got));
        }
        // An empty list or object is a leaf only while it is empty.
        let is_kept = |leaf: &String| !leaf.ends_with("={}") && !leaf.ends_with("=[]");
        let mut expected: Vec<String> = expected.into_iter().filter(is_kept).collect();
        let mut got: Vec<String> = got.into_iter().filter(is_kept).collect();
        expected.sort();
        got.sort();
        prop_assert_eq!(got, expected);
    }
}

#[test]
fn each_field_has_a_line_of_its_own() {
    let value = json!({"hosts": [{"address": "a", "port": 1}, "b"], "name": "web", "none": {}});
    let expected = ["hosts:", "  - address: a", "    port: 1", "  - b", "name: web", "none: {}"];
    assert_eq!(field_lines(&value), expected);
}

#[test]
fn common_lines_are_in_the_order_of_both_texts() {
    let lines = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
    let common = |old: &str, new: &str| common_lines(&lines(old), &lines(new));
    assert_eq!(common("abcd", "abcd"), [(0, 0), (1, 1), (2, 2), (3, 3)]);
    assert_eq!(common("abcd", "axcyd"), [(0, 0), (2, 2), (3, 4)]);
    assert_eq!(common("", "ab"), []);
    assert_eq!(common("aa", "aaa").len(), 2);
}
