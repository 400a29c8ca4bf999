//! The response to a poll (REST-JSON). A poll has no stream, so the server does not record which
//! resources the client has.
//!
//! The version that the client sends back is the only way to detect a change (REST-11). It
//! therefore contains a hash of the requested names, and of the versions of the resources or of
//! their scopes (REST-12).

use std::{collections::BTreeSet, fmt::Write, iter, sync::Arc};

use chancery_model::{
    Resource, ResourceName, TypeVersion, base_of_located, show_parameters, types::Properties,
};
use chancery_view::TypeView;
use xxhash_rust::xxh3::Xxh3;

use crate::{NameList, list::is_wildcard};

/// The response to a poll.
#[derive(Debug, Clone)]
pub enum PollResponse {
    /// The client has everything that it asks for, or there is nothing to send.
    Unchanged,
    /// The client receives the content, which replaces what it has.
    Changed {
        /// The version of the content for this request.
        version: String,
        /// The resources.
        content: PollContent,
    },
}

/// The resources of a response to a poll.
#[derive(Debug, Clone)]
pub enum PollContent {
    /// All resources of a view.
    All {
        /// The view.
        view: TypeView,
        /// The variants that the client names by other parameters than those of the view.
        others: Vec<Arc<Resource>>,
    },
    /// The resources that the client named, each once, in the order of their names.
    Named {
        /// The resources.
        resources: Vec<Arc<Resource>>,
        /// The names without a resource, if the response reports them as errors (ERR-01).
        missing: Vec<String>,
    },
}

impl PollContent {
    /// Returns the resource after `previous`, or the first one without a `previous`. `index` is the
    /// number of resources before it. The cost is O(layers · log M).
    #[must_use]
    pub fn next_after(
        &self,
        previous: Option<&ResourceName>,
        index: usize,
    ) -> Option<&Arc<Resource>> {
        match self {
            Self::All { others, .. } if index < others.len() => others.get(index),
            Self::All { view, others } => {
                view.next_after(previous.filter(|_| index > others.len()))
            }
            Self::Named { resources, .. } => resources.get(index),
        }
    }

    /// Returns the names that the response reports with the error `NOT_FOUND`. A response to a
    /// wildcard has none (ERR-10).
    #[must_use]
    pub fn missing(&self) -> &[String] {
        match self {
            Self::All { .. } => &[],
            Self::Named { missing, .. } => missing,
        }
    }
}

impl PollResponse {
    /// Decides the response to a poll for `names` from a client that has `version_info`. `errors` means
    /// that names without a resource are reported.
    ///
    /// A type with a wildcard costs O(layers), and O(names) if the client names resources. Other
    /// types cost O(names).
    #[must_use]
    pub fn decide(
        view: &TypeView,
        properties: &Properties,
        names: &NameList,
        version_info: &str,
        errors: bool,
    ) -> Self {
        // Other parameters may select other variants (DYN-11).
        let varied = view.has_variants().then(|| show_parameters(view.parameters()));
        // REST-18: there is no history, so an empty list always means the wildcard.
        if properties.wildcard && (names.is_blank() || names.wildcard().is_some()) {
            let layers = view
                .layers()
                .flat_map(|layer| [layer.scope.as_str().to_owned(), layer.changed.to_string()]);
            let located = varied.iter().flat_map(|_| located(names)).map(str::to_owned);
            let fields = iter::once("*".to_owned()).chain(layers).chain(located);
            let digest = digest(fields.chain(varied.clone()));
            return Self::of(view, digest, version_info, || PollContent::All {
                view: view.clone(),
                others: others(view, names),
            });
        }
        let asked: BTreeSet<&str> =
            names.iter().filter(|name| !name.is_empty() && !is_wildcard(name)).collect();
        let found = |name: &&str| view.get(name);
        let is_empty = !asked.iter().any(|name| view.get(name).is_some());
        // SOTW-79: an empty response has a meaning only for types whose responses are full states. For other
        // types, it only gives the client another version, which the client needs to get dropped resources
        // again (REST-12). Envoy polls for one name with each version, and rejects empty responses.
        let needs_version = asked.len() > 1 && !version_info.is_empty();
        if is_empty && !(properties.full_state && properties.answer_empty) && !needs_version {
            return Self::Unchanged;
        }
        let fields = asked.iter().flat_map(|name| {
            let version = found(name).map(|resource| resource.version().to_string());
            [(*name).to_owned(), version.unwrap_or_default()]
        });
        // A client that was not sent the errors does not have the current response.
        let form = if errors { "names with errors" } else { "names" };
        let digest = digest(iter::once(form.to_owned()).chain(fields).chain(varied));
        Self::of(view, digest, version_info, || {
            // Two names may refer to one resource, which the response contains once.
            let mut sent = BTreeSet::new();
            let resources =
                asked.iter().filter_map(found).filter(|r| sent.insert(r.name().clone()));
            let missing = asked.iter().filter(|name| errors && view.get(name).is_none());
            PollContent::Named {
                resources: resources.cloned().collect(),
                missing: missing.map(|name| (*name).to_owned()).collect(),
            }
        })
    }

    fn of(
        view: &TypeView,
        digest: u64,
        version_info: &str,
        content: impl FnOnce() -> PollContent,
    ) -> Self {
        let version = view.version();
        if has_digest(version_info, &version, digest) {
            return Self::Unchanged;
        }
        let mut version = version.to_string();
        // Writing to a string cannot fail.
        let _infallible = write!(version, "-{digest:016x}");
        Self::Changed { version, content: content() }
    }
}

/// Returns the names with parameters, except the wildcard.
fn located(names: &NameList) -> BTreeSet<&str> {
    let is_located = |name: &&str| base_of_located(name).is_some() && !is_wildcard(name);
    names.iter().filter(is_located).collect()
}

/// Returns the resources of the names with parameters that a view does not show, each once (DYN-03).
fn others(view: &TypeView, names: &NameList) -> Vec<Arc<Resource>> {
    if !view.has_variants() {
        return Vec::new();
    }
    let mut sent = BTreeSet::new();
    let found = located(names).into_iter().filter_map(|name| view.get(name));
    let hidden = found.filter(|resource| !view.has(resource) && sent.insert(resource.name()));
    hidden.cloned().collect()
}

/// Returns whether the client's version comes from this cluster and has this hash. The revisions
/// may differ, because a change of other names raises the revision but keeps the hash.
fn has_digest(version_info: &str, current: &TypeVersion, digest: u64) -> bool {
    TypeVersion::revision_of(version_info, current.incarnation).is_some()
        && version_info.rsplit('-').next() == Some(format!("{digest:016x}").as_str())
}

/// Hashes a list of fields. The length before each field makes the hashed input unambiguous.
fn digest(fields: impl Iterator<Item = String>) -> u64 {
    let mut hash = Xxh3::default();
    for field in fields {
        hash.update(&(field.len() as u64).to_le_bytes());
        hash.update(field.as_bytes());
    }
    hash.digest()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use chancery_model::{
        AssignmentOp, Incarnation, Node, Outcome, ResourceDraft, ResourceKey, ScopeName, State,
        Transaction, TypeUrl, Upsert, default_assignment,
        types::{CLUSTER, ENDPOINT, properties},
    };
    use chancery_view::View;

    use super::*;

    /// The state, and whether errors are enabled.
    struct Author(State, bool);

    impl Author {
        fn new() -> Self {
            Self(State::new(Incarnation(7)), false)
        }

        fn apply(&mut self, transaction: &Transaction) {
            let applied = self.0.apply(transaction);
            assert!(matches!(applied.outcome, Outcome::Committed(_)), "{:?}", applied.outcome);
            self.0 = applied.state;
        }

        fn put(&mut self, type_url: &'static str, names: &[&str], body: &str) {
            let upsert = |name: &&str| Upsert {
                scope: ScopeName::new("default").unwrap(),
                draft: ResourceDraft::new(key(type_url, name), Bytes::from(body.to_owned())),
            };
            let upserts = names.iter().map(upsert).collect();
            self.apply(&Transaction { upserts, ..Transaction::default() });
        }

        fn delete(&mut self, type_url: &'static str, name: &str) {
            let deletes = vec![(ScopeName::new("default").unwrap(), key(type_url, name))];
            self.apply(&Transaction { deletes, ..Transaction::default() });
        }

        fn poll(&self, type_url: &'static str, names: &[&str], version: &str) -> PollResponse {
            let node = Node { id: "n".into(), ..Node::default() };
            let scopes = self.0.assignments.for_node(&node).unwrap().scopes_for(&node);
            let type_url = TypeUrl::from_static(type_url);
            let view = View::resolve(&self.0, &scopes).of_type(&type_url);
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            PollResponse::decide(&view, properties(&type_url), &names.into(), version, self.1)
        }

        /// Returns the version and the names of a response that must have changed.
        fn changed(
            &self,
            type_url: &'static str,
            names: &[&str],
            version: &str,
        ) -> (String, String) {
            let response = self.poll(type_url, names, version);
            let PollResponse::Changed { version, content } = response else { panic!("unchanged") };
            let (mut out, mut previous) = (Vec::<ResourceName>::new(), None);
            while let Some(next) = content.next_after(previous.as_ref(), out.len()) {
                previous = Some(next.name().clone());
                out.push(next.name().clone());
            }
            (version, out.iter().map(ResourceName::as_str).collect::<Vec<_>>().join(" "))
        }

        fn is_unchanged(&self, type_url: &'static str, names: &[&str], version: &str) -> bool {
            matches!(self.poll(type_url, names, version), PollResponse::Unchanged)
        }
    }

    fn key(type_url: &'static str, name: &str) -> ResourceKey {
        ResourceKey {
            type_url: TypeUrl::from_static(type_url),
            name: ResourceName::new(name).unwrap(),
        }
    }

    /// REST-10, REST-18: an empty list and `*` mean the full state. Only a change of it is sent.
    #[test]
    fn wildcard_poll_receives_full_state_once_per_change() {
        let mut author = Author::new();
        author.put(CLUSTER, &["a", "b"], "1");
        let (first, names) = author.changed(CLUSTER, &[], "");
        assert_eq!(names, "a b");
        assert!(author.is_unchanged(CLUSTER, &[], &first));
        assert!(author.is_unchanged(CLUSTER, &["*", "a"], &first));
        author.put(ENDPOINT, &["a"], "1");
        assert!(author.is_unchanged(CLUSTER, &[], &first), "another type changed");
        author.delete(CLUSTER, "a");
        let (second, names) = author.changed(CLUSTER, &[], &first);
        assert_eq!(names, "b");
        assert_ne!(first, second);
        author.delete(CLUSTER, "b");
        let (last, names) = author.changed(CLUSTER, &[], &second);
        assert_eq!(names, "");
        assert!(author.is_unchanged(CLUSTER, &[], &last));
    }

    /// REST-10, REST-13: a change of the assignments that leaves the node's scopes as they are changes
    /// nothing for its pollers.
    #[test]
    fn unrelated_assignment_leaves_poll_unchanged() {
        let mut author = Author::new();
        author.put(CLUSTER, &["a"], "1");
        let (version, _) = author.changed(CLUSTER, &[], "");
        let mut rule = default_assignment();
        rule.name = "other".into();
        rule.matcher.id = Some(chancery_model::Glob::new("other-*"));
        author.apply(&Transaction {
            assignments: vec![AssignmentOp::Put(rule)],
            ..Transaction::default()
        });
        assert!(author.is_unchanged(CLUSTER, &[], &version));
    }

    /// REST-12: a client that asks for another name receives it, although no resource has changed.
    #[test]
    fn version_encodes_asked_names() {
        let mut author = Author::new();
        author.put(ENDPOINT, &["a", "b"], "1");
        let (version, names) = author.changed(ENDPOINT, &["a"], "");
        assert_eq!(names, "a");
        assert!(author.is_unchanged(ENDPOINT, &["a", "a"], &version));
        assert_eq!(author.changed(ENDPOINT, &["b"], &version).1, "b");
        let (both, names) = author.changed(ENDPOINT, &["b", "a"], &version);
        assert_eq!(names, "a b");
        assert!(author.is_unchanged(ENDPOINT, &["a", "b"], &both), "the order has no meaning");
        let (clusters, _) = {
            author.put(CLUSTER, &["a", "b"], "1");
            author.changed(CLUSTER, &[], "")
        };
        assert_eq!(author.changed(CLUSTER, &["a"], &clusters).1, "a");
    }

    /// REST-10, REST-17: exactly the named resources count, whatever else changes.
    #[test]
    fn change_of_other_names_leaves_poll_unchanged() {
        let mut author = Author::new();
        author.put(ENDPOINT, &["a", "b"], "1");
        let (version, _) = author.changed(ENDPOINT, &["a"], "");
        author.put(ENDPOINT, &["b"], "2");
        assert!(author.is_unchanged(ENDPOINT, &["a"], &version));
        author.put(ENDPOINT, &["a"], "2");
        assert_eq!(author.changed(ENDPOINT, &["a"], &version).1, "a");
    }

    /// REST-12: a client drops a resource, and gets it again. In between, it asked for missing names only.
    #[test]
    fn dropped_resource_is_sent_again_after_poll_for_missing_names() {
        let mut author = Author::new();
        author.put(ENDPOINT, &["a"], "1");
        let (first, names) = author.changed(ENDPOINT, &["a", "x", "y"], "");
        assert_eq!(names, "a");
        let (second, names) = author.changed(ENDPOINT, &["x", "y"], &first);
        assert_eq!(names, "");
        assert!(author.is_unchanged(ENDPOINT, &["x", "y"], &second));
        assert_eq!(author.changed(ENDPOINT, &["a", "x", "y"], &second).1, "a");
        assert!(author.is_unchanged(ENDPOINT, &["x", "y"], ""), "it has nothing to drop");
    }

    /// REST-19, SOTW-79: a client with one name of a type without a full state, like each of Envoy's, never
    /// receives an empty response.
    #[test]
    fn empty_response_exists_only_for_full_states() {
        let mut author = Author::new();
        author.put(ENDPOINT, &["a"], "1");
        assert!(author.is_unchanged(ENDPOINT, &[], ""));
        assert!(author.is_unchanged(ENDPOINT, &["missing"], ""));
        assert!(author.is_unchanged(ENDPOINT, &["*"], ""));
        let (version, _) = author.changed(ENDPOINT, &["a"], "");
        author.delete(ENDPOINT, "a");
        assert!(author.is_unchanged(ENDPOINT, &["a"], &version), "the client keeps it");
        author.put(ENDPOINT, &["a"], "1");
        assert_eq!(author.changed(ENDPOINT, &["a"], &version).1, "a");
        assert_eq!(author.changed(CLUSTER, &[], "").1, "");
        assert_eq!(author.changed(CLUSTER, &["missing"], "").1, "");
    }

    /// ERR-01, ERR-02, ERR-04, ERR-10: with errors, a response reports once that a name has no resource. A
    /// wildcard has no errors.
    #[test]
    fn missing_name_is_reported_once_per_change() {
        let mut author = Author::new();
        author.put(ENDPOINT, &["a"], "1");
        author.1 = true;
        let missing =
            |author: &Author, version: &str| match author.poll(ENDPOINT, &["b", "a"], version) {
                PollResponse::Changed { version, content } => {
                    (version, content.missing().join(" "))
                }
                PollResponse::Unchanged => (String::new(), "unchanged".to_owned()),
            };
        let (first, errors) = missing(&author, "");
        assert_eq!(errors, "b");
        assert_eq!(missing(&author, &first).1, "unchanged");
        author.put(ENDPOINT, &["b"], "1");
        let (second, errors) = missing(&author, &first);
        assert_eq!(errors, "");
        author.delete(ENDPOINT, "b");
        assert_eq!(missing(&author, &second).1, "b");
        // ERR-02: a client that does not know errors may reject a response without resources.
        assert!(author.is_unchanged(ENDPOINT, &["c"], ""));
        let PollResponse::Changed { content, .. } = author.poll(CLUSTER, &["*", "c"], "") else {
            panic!("unchanged")
        };
        assert!(content.missing().is_empty());
    }

    /// REST-11: a version of another cluster or server is no version of this one.
    #[test]
    fn foreign_version_counts_as_none() {
        let mut author = Author::new();
        author.put(CLUSTER, &["a"], "1");
        let (version, _) = author.changed(CLUSTER, &[], "");
        let mut parts: Vec<&str> = version.split('-').collect();
        let digest = parts[2].to_owned();
        parts[1] = "8";
        for foreign in [parts.join("-"), digest.clone(), format!("x-{digest}"), "-".repeat(300)] {
            assert_eq!(author.changed(CLUSTER, &[], &foreign).1, "a", "{foreign}");
        }
    }
}
