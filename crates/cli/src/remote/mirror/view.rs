//! The view of a node as the mirror has received it, and what it still has to receive.
//!
//! Clusters, listeners and scoped routes are subscribed by a wildcard. The other resources are those that the
//! former refer to, and those that the user names. A change costs the work for the changed resources.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use chancery_model::{ResourceKey, ResourceName, TypeUrl, TypeVersion, types};
use chancery_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};

/// The types whose files hold all resources of the view, in the order in which they are requested.
pub(super) const FULL: [&str; 3] = [types::CLUSTER, types::LISTENER, types::SCOPED_ROUTE];

/// The wildcard, and a name that no resource has. The server reports that the name does not exist in the last
/// response of the first state (DELTA-40, DELTA-53), which shows that the state is complete.
const WILDCARD: &str = "*";
const END: &str = "";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReceivedResource {
    pub(super) version: String,
    pub(super) body: Bytes,
    children: Vec<ResourceKey>,
}

/// All resources of a type.
#[derive(Debug, Default)]
pub(super) struct Full {
    pub(super) resources: BTreeMap<String, ReceivedResource>,
    pub(super) version: String,
    is_complete: bool,
}

/// A resource that is requested by its name.
#[derive(Debug, Default)]
pub(super) struct Named {
    referrers: usize,
    pub(super) content: Content,
}

/// The answer of the server to a request for a name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Content {
    #[default]
    Unanswered,
    /// There is no such resource, or no longer. The last content of its file stays in force.
    Absent,
    Held(ReceivedResource),
}

/// The view, with the changes since [`View::take_changes`].
#[derive(Debug)]
pub(super) struct View {
    full: BTreeMap<&'static str, Full>,
    named: BTreeMap<ResourceKey, Named>,
    unanswered: BTreeSet<ResourceKey>,
    changes: Changes,
    /// Names to subscribe to (true) or to unsubscribe from.
    interest: BTreeMap<ResourceKey, bool>,
}

/// The files to write or to remove.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) full: BTreeSet<&'static str>,
    pub(super) named: BTreeSet<ResourceKey>,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.full.is_empty() && self.named.is_empty()
    }

    /// Adds the changes of an attempt that failed.
    pub(super) fn merge(&mut self, other: Self) {
        self.full.extend(other.full);
        self.named.extend(other.named);
    }
}

impl View {
    /// Creates an empty view. `included` are resources to mirror although nothing refers to them.
    pub(super) fn new(included: impl IntoIterator<Item = ResourceKey>) -> Self {
        let mut view = Self {
            full: FULL.into_iter().map(|url| (url, Full::default())).collect(),
            named: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            changes: Changes { full: FULL.into_iter().collect(), named: BTreeSet::new() },
            interest: BTreeMap::new(),
        };
        included.into_iter().for_each(|key| view.refer(key));
        view
    }

    pub(super) fn full(&self, type_url: &str) -> Option<&Full> {
        self.full.get(type_url)
    }

    pub(super) fn named(&self) -> &BTreeMap<ResourceKey, Named> {
        &self.named
    }

    /// Returns the changes since the last call.
    pub(super) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Keeps changes that could not be written.
    pub(super) fn put_back(&mut self, changes: Changes) {
        self.changes.merge(changes);
    }

    /// Makes everything a change, because the files are gone.
    pub(super) fn change_all(&mut self) {
        let named = self.named.keys().cloned().collect();
        self.changes.merge(Changes { full: FULL.into_iter().collect(), named });
    }

    /// Returns the incarnation of the cluster that has sent the view.
    pub(super) fn incarnation(&self) -> Option<&str> {
        TypeVersion::incarnation_of(&self.full(types::CLUSTER)?.version)
    }

    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Returns the names that the server has not answered yet; a type stands for its first state. The files
    /// are written when every name is answered.
    pub(super) fn missing(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let types = self.full.iter().filter(|(_, full)| !full.is_complete);
        let names = self.unanswered.iter();
        types
            .map(|(url, _)| (*url, None))
            .chain(names.map(|key| (key.type_url.as_str(), Some(key.name.as_str()))))
    }

    pub(super) fn is_complete(&self) -> bool {
        self.missing().next().is_none()
    }

    /// Returns the first requests of a stream. They list what the view holds already, so that the server sends
    /// only what has changed.
    pub(super) fn first_requests(&mut self) -> Vec<DeltaDiscoveryRequest> {
        self.interest.clear();
        let mut requests = Vec::new();
        for (url, full) in &mut self.full {
            full.is_complete = false;
            let versions =
                full.resources.iter().map(|(name, it)| (name.clone(), it.version.clone()));
            requests.push(DeltaDiscoveryRequest {
                type_url: (*url).to_owned(),
                resource_names_subscribe: vec![WILDCARD.to_owned(), END.to_owned()],
                initial_resource_versions: versions.collect(),
                ..DeltaDiscoveryRequest::default()
            });
        }
        let mut by_type: BTreeMap<&TypeUrl, DeltaDiscoveryRequest> = BTreeMap::new();
        for (key, named) in &self.named {
            let request = by_type.entry(&key.type_url).or_default();
            let name = key.name.as_str().to_owned();
            request.resource_names_subscribe.push(name.clone());
            if let Content::Held(held) = &named.content {
                request.initial_resource_versions.insert(name, held.version.clone());
            }
        }
        requests.extend(by_type.into_iter().map(|(url, request)| DeltaDiscoveryRequest {
            type_url: url.as_str().to_owned(),
            ..request
        }));
        requests
    }

    /// Returns the requests that change the subscriptions after a response.
    pub(super) fn next_requests(&mut self) -> Vec<DeltaDiscoveryRequest> {
        let mut by_type: BTreeMap<TypeUrl, DeltaDiscoveryRequest> = BTreeMap::new();
        for (key, subscribes) in std::mem::take(&mut self.interest) {
            let request = by_type.entry(key.type_url).or_default();
            let names = if subscribes {
                &mut request.resource_names_subscribe
            } else {
                &mut request.resource_names_unsubscribe
            };
            names.push(key.name.as_str().to_owned());
        }
        let request = |(url, request): (TypeUrl, DeltaDiscoveryRequest)| DeltaDiscoveryRequest {
            type_url: url.as_str().to_owned(),
            ..request
        };
        by_type.into_iter().map(request).collect()
    }

    /// Takes a response. Ignores types that the mirror does not request, and heartbeats, which have no body.
    pub(super) fn on_response(&mut self, response: DeltaDiscoveryResponse) {
        let DeltaDiscoveryResponse { type_url, resources, removed_resources, .. } = response;
        let Ok(type_url) = TypeUrl::new(&type_url) else { return };
        match FULL.into_iter().find(|url| *url == type_url.as_str()) {
            Some(url) => {
                let full = self.full.entry(url).or_default();
                full.version = response.system_version_info;
                for resource in resources {
                    self.put_full(url, &type_url, resource);
                }
                for name in removed_resources {
                    self.remove_full(url, &name);
                }
            }
            None => {
                for resource in resources {
                    self.put_named(&type_url, resource);
                }
                for name in removed_resources {
                    self.remove_named(&type_url, &name);
                }
            }
        }
    }

    fn put_full(&mut self, url: &'static str, type_url: &TypeUrl, resource: Resource) {
        let Resource { version, name, resource: Some(body), .. } = resource else { return };
        let full = self.full.entry(url).or_default();
        let is_same = |held: &&ReceivedResource| held.version == version && held.body == body.value;
        if full.resources.get(&name).filter(is_same).is_some() {
            return;
        }
        let draft = chancery_admission::draft_from_body(type_url, Some(&name), body.value.clone());
        // A body of a later release may not parse here. It then has no known references.
        let children = draft.map(|draft| draft.children).unwrap_or_default();
        let full = self.full.entry(url).or_default();
        let held = ReceivedResource { version, body: body.value, children: children.clone() };
        let before = full.resources.insert(name, held);
        self.changes.full.insert(url);
        children.into_iter().for_each(|key| self.refer(key));
        before.into_iter().flat_map(|before| before.children).for_each(|key| self.release(key));
    }

    fn remove_full(&mut self, url: &'static str, name: &str) {
        let full = self.full.entry(url).or_default();
        if name == END {
            full.is_complete = true;
        } else if let Some(before) = full.resources.remove(name) {
            self.changes.full.insert(url);
            before.children.into_iter().for_each(|key| self.release(key));
        }
    }

    fn put_named(&mut self, type_url: &TypeUrl, resource: Resource) {
        let Resource { version, name, resource: Some(body), .. } = resource else { return };
        let Ok(name) = ResourceName::requested(&name) else { return };
        let key = ResourceKey { type_url: type_url.clone(), name };
        let Some(named) = self.named.get_mut(&key) else { return };
        let content =
            Content::Held(ReceivedResource { version, body: body.value, children: Vec::new() });
        self.unanswered.remove(&key);
        // A new stream sends resources again that were requested by their name.
        if named.content == content {
            return;
        }
        named.content = content;
        self.changes.named.insert(key);
    }

    fn remove_named(&mut self, type_url: &TypeUrl, name: &str) {
        let Ok(name) = ResourceName::requested(name) else { return };
        let key = ResourceKey { type_url: type_url.clone(), name };
        let Some(named) = self.named.get_mut(&key) else { return };
        named.content = Content::Absent;
        self.unanswered.remove(&key);
        self.changes.named.insert(key);
    }

    /// Counts a reference, and subscribes to the resource if it is the first one.
    fn refer(&mut self, key: ResourceKey) {
        let named = self.named.entry(key.clone()).or_default();
        named.referrers += 1;
        if named.referrers == 1 {
            self.unanswered.insert(key.clone());
            self.interest.insert(key, true);
        }
    }

    /// Ends a reference, and the subscription if it was the last one.
    fn release(&mut self, key: ResourceKey) {
        let Some(named) = self.named.get_mut(&key) else { return };
        named.referrers -= 1;
        if named.referrers == 0 {
            self.named.remove(&key);
            self.unanswered.remove(&key);
            self.changes.named.insert(key.clone());
            self.interest.insert(key, false);
        }
    }
}
