//! The resources of one type of a session with the state of each, for introspection (CSDS-07).
//!
//! A session stores nothing extra for this. A page lists names in order, each with the resource
//! that the client was sent and the resource in the view. The caller compares them with the
//! unanswered responses, outside of the thread that owns the session.

use std::{collections::HashMap, sync::Arc};

use chancery_model::{Resource, ResourceName, TypeVersion, Version};
use chancery_view::Resources;

use crate::{Nack, Protocol};

/// The state of one resource at a client, as the server knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResourceState {
    /// The client subscribes to the name, but there is no such resource.
    Unknown,
    /// The client has acknowledged the resource.
    Synced,
    /// The client's view contains the resource, but its current version was not sent yet.
    NotSent,
    /// The resource was sent, and the client has not answered.
    Stale,
    /// The client has rejected the resource.
    Rejected,
}

/// The status of one resource of a client.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ResourceStatus {
    /// The name, as the client subscribes to it.
    pub name: ResourceName,
    /// The state.
    pub state: ResourceState,
    /// The resource that the state is about. `None` for [`ResourceState::Unknown`].
    pub resource: Option<Arc<Resource>>,
    /// The version to show (CSDS-10). In SotW, this is the version of the last response with the
    /// resource, and empty without one. In delta, this is the version of `resource`, even if it was
    /// not sent.
    pub version: String,
    /// The time since the last response with the resource, in milliseconds, if known.
    pub sent_ms_ago: Option<u64>,
    /// Whether the client is sent the error `NOT_FOUND` for the name (ERR-01).
    pub is_reported: bool,
    /// SotW types with full states: the last acknowledged version, if the resource has not changed since. A rejection
    /// concerns the whole response, and thus also resources that the client has accepted before.
    pub unchanged_since: Option<String>,
}

/// One page of the resources of a type, with the responses on their way.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ContentsPage {
    pub(crate) protocol: Protocol,
    /// Whether the client is sent errors for names that do not exist.
    pub(crate) sends_errors: bool,
    pub(crate) items: Vec<Item>,
    /// The collections that the client asks for, in the first page; at most as many as a page has names.
    pub(crate) collections: Vec<ResourceName>,
    /// The last name of the page; `None` if this is the last page.
    pub(crate) next: Option<ResourceName>,
    /// The nonce of the last response, the number of unanswered responses, and the number of planned
    /// resources. Pages with equal stamps have equal responses.
    pub(crate) stamp: (u64, usize, usize),
    /// The resources that are planned and not sent.
    pub(crate) unsent: Option<Resources>,
    /// The unanswered responses, oldest first.
    pub(crate) unanswered: Vec<Unanswered>,
    /// The last rejection, while it applies.
    pub(crate) nack: Option<Nack>,
}

/// An unanswered response.
#[derive(Debug, Clone)]
pub(crate) struct Unanswered {
    pub(crate) version: TypeVersion,
    pub(crate) ms_ago: u64,
    /// The contents; `None` if the session no longer has them.
    pub(crate) resources: Option<Resources>,
}

/// One name of a page.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) name: ResourceName,
    /// The resource that the view shows now.
    pub(crate) current: Option<Arc<Resource>>,
    /// The resource that the client was sent, or will be sent in the planned response.
    pub(crate) planned: Option<Arc<Resource>>,
    /// The version that the client claims to have from an earlier stream.
    pub(crate) claimed: Option<Version>,
    /// SotW: the version of the last response with the resource.
    pub(crate) sent_in: Option<Arc<TypeVersion>>,
    /// The time since that response in milliseconds, if known.
    pub(crate) sent_ms_ago: Option<u64>,
    pub(crate) is_rejected: bool,
    /// The last acknowledged full state, if the resource has not changed since.
    pub(crate) unchanged_since: Option<TypeVersion>,
}

impl ContentsPage {
    /// Returns the name after which the next page begins, or `None` if this is the last page.
    #[must_use]
    pub fn next(&self) -> Option<&ResourceName> {
        self.next.as_ref()
    }

    /// Returns the collections that the client asks for (XDSTP-15), if this is the first page. They are not among the
    /// names. If there are more of them than names in a page, the rest is left out.
    #[must_use]
    pub fn collections(&self) -> &[ResourceName] {
        &self.collections
    }

    /// Returns the number of names in the page.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether the page has no names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the number of bytes of the names.
    #[must_use]
    pub fn n_name_bytes(&self) -> usize {
        self.items.iter().map(|item| item.name.as_str().len()).sum()
    }

    /// Returns the maximum number of bytes of the resources' bodies.
    #[must_use]
    pub fn n_body_bytes(&self) -> usize {
        let body = |resource: &Option<Arc<Resource>>| {
            resource.as_ref().map_or(0, |resource| resource.body_len())
        };
        self.items.iter().map(|item| body(&item.current).max(body(&item.planned))).sum()
    }

    /// Returns the last rejection, while it applies.
    #[must_use]
    pub fn nack(&self) -> Option<&Nack> {
        self.nack.as_ref()
    }
}

/// Finds the states of the resources of one type of one client, page by page.
#[derive(Debug, Default)]
pub struct ContentsReader {
    stamp: Option<(u64, usize, usize)>,
    unsent: HashMap<ResourceName, Version>,
    unanswered: HashMap<ResourceName, (Version, String, u64)>,
    /// The time since the last response whose contents are unknown, in milliseconds.
    unknown_ms_ago: Option<u64>,
}

impl ContentsReader {
    /// Returns the status of each resource of a page. The cost is O(page), and O(resources in the
    /// responses on their way) if these changed since the last page.
    pub fn read(&mut self, page: ContentsPage) -> Vec<ResourceStatus> {
        if self.stamp != Some(page.stamp) {
            self.take_responses(&page);
        }
        let protocol = page.protocol;
        let statuses = page.items.into_iter().map(|item| {
            let unchanged_since = item.unchanged_since.as_ref().map(ToString::to_string);
            let mut status = self.status(item, protocol);
            status.is_reported = page.sends_errors && status.state == ResourceState::Unknown;
            status.unchanged_since = unchanged_since;
            status
        });
        statuses.collect()
    }

    fn take_responses(&mut self, page: &ContentsPage) {
        *self = Self { stamp: Some(page.stamp), ..Self::default() };
        for resource in page.unsent.iter().flat_map(Resources::iter) {
            self.unsent.insert(resource.name().clone(), resource.version());
        }
        for response in &page.unanswered {
            let Some(resources) = &response.resources else {
                self.unknown_ms_ago = Some(response.ms_ago);
                continue;
            };
            for resource in resources.iter() {
                let of = match page.protocol {
                    Protocol::Sotw => response.version.to_string(),
                    Protocol::Delta | Protocol::Mcp => String::new(),
                };
                let sent = (resource.version(), of, response.ms_ago);
                self.unanswered.insert(resource.name().clone(), sent);
            }
        }
    }

    fn status(&self, item: Item, protocol: Protocol) -> ResourceStatus {
        let Item { name, current, planned, claimed, sent_in, sent_ms_ago, is_rejected, .. } = item;
        let is_sotw = protocol == Protocol::Sotw;
        let new = |state, resource: Option<Arc<Resource>>, version: Option<String>, ms_ago| {
            let own = |resource: &Arc<Resource>| resource.version().to_string();
            let version = match version {
                _ if !is_sotw => resource.as_ref().map(own).unwrap_or_default(),
                version => version.unwrap_or_default(),
            };
            let (sent_ms_ago, is_reported, unchanged_since) = (ms_ago, false, None);
            ResourceStatus {
                name,
                state,
                resource,
                version,
                sent_ms_ago,
                is_reported,
                unchanged_since,
            }
        };
        let is_unsent = |resource: &Arc<Resource>| {
            self.unsent.get(resource.name()) == Some(&resource.version())
        };
        let Some(sent) = planned.filter(|resource| !is_unsent(resource)) else {
            return match current {
                None => new(ResourceState::Unknown, None, None, None),
                Some(current) if claimed == Some(current.version()) => {
                    new(ResourceState::Synced, Some(current), None, None)
                }
                Some(current) => new(ResourceState::NotSent, Some(current), None, None),
            };
        };
        let of = sent_in.map(|version| version.to_string());
        match self.unanswered.get(sent.name()) {
            Some((version, of, ms_ago)) if *version == sent.version() => {
                return new(ResourceState::Stale, Some(sent), Some(of.clone()), Some(*ms_ago));
            }
            _ => {}
        }
        if self.unknown_ms_ago.is_some() {
            return new(ResourceState::Stale, Some(sent), of, self.unknown_ms_ago);
        }
        if is_rejected {
            return new(ResourceState::Rejected, Some(sent), of, sent_ms_ago);
        }
        match current {
            Some(current) if current.version() != sent.version() => {
                new(ResourceState::NotSent, Some(current), None, None)
            }
            _ => new(ResourceState::Synced, Some(sent), of, sent_ms_ago),
        }
    }
}
