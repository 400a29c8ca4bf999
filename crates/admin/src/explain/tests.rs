use bytes::Bytes;
use chancery_model::{Incarnation, ResourceDraft, Transaction, Upsert, types};

use super::*;

/// A release without structured names stored them as plain text. `get` and `describe` find such a resource, too.
#[test]
fn structured_name_of_an_earlier_release_is_explained_under_its_stored_spelling() {
    let stored = "xdstp:///envoy.config.cluster.v3.Cluster/web?b=2&a=1";
    let type_url = TypeUrl::from_static(types::CLUSTER);
    let key = ResourceKey { type_url, name: ResourceName::new(stored).unwrap() };
    let (scope, draft) =
        (ScopeName::new("default").unwrap(), ResourceDraft::new(key, Bytes::new()));
    let upserts = vec![Upsert { scope, draft }];
    let transaction = Transaction { upserts, ..Transaction::default() };
    let state = State::new(Incarnation(1)).apply(&transaction).state;
    let explained = |name: &str| {
        let (r#type, name) = ("cds".to_owned(), name.to_owned());
        let request = pb::ExplainRequest { r#type, name, ..pb::ExplainRequest::default() };
        let about = About::parse(&request).unwrap().stored_as(&state, &request.name).unwrap();
        let parameters = DynamicParameters::default();
        explain(&state, "n", &[], &about, parameters, None).conclusions.join(" ")
    };
    let found = explained(stored);
    assert!(found.contains("web?b=2&a=1\" of scope default only with a wildcard"), "{found}");
    let canonical = explained("xdstp:///envoy.config.cluster.v3.Cluster/web?a=1&b=2");
    assert!(canonical.contains("does not exist in any scope"), "{canonical}");
}
