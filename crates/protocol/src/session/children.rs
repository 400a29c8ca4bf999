//! The children of changed resources, which are sent again (ADS-11).

use std::collections::{BTreeMap, BTreeSet};

use chancery_model::{
    ResourceName, TypeUrl,
    types::{CLUSTER, ENDPOINT, SECRET},
};
use chancery_view::Resources;

use crate::{Protocol, plan::Touched, subscription::Subscription};

/// The maximum number of endpoints for which secrets wait. The secrets of further clusters are sent
/// with their cluster.
const SECRETS_WAITING_MAX: usize = 1_000;

/// The children that wait to be sent again.
#[derive(Debug, Default)]
pub(super) struct Children {
    /// Secrets that are sent again after these endpoints, because Envoy requests the secrets of a
    /// cluster when it has the endpoints of the cluster (ADS-19).
    secrets_waiting: BTreeMap<ResourceName, BTreeSet<ResourceName>>,
}

impl Children {
    /// Marks children of changed parents to be sent again (ADS-11). A client completes the warming
    /// of a changed parent only when it receives the children again, even if they are unchanged.
    pub(super) fn resend(
        &mut self,
        subscriptions: &mut [Subscription],
        at: usize,
        touched: &Touched,
    ) {
        let parent = subscriptions[at].type_url().clone();
        let protocol = subscriptions[at].protocol();
        let is_cluster = parent.as_str() == CLUSTER;
        if touched.resources.is_empty() {
            return;
        }
        if parent.as_str() == ENDPOINT && !self.secrets_waiting.is_empty() {
            self.resend_secrets(subscriptions, &touched.resources);
        }
        let secrets_waiting = &mut self.secrets_waiting;
        let has_endpoints = subscriptions.iter().any(|s| s.type_url().as_str() == ENDPOINT);
        let mut known: Vec<&TypeUrl> = Vec::new();
        for resource in touched.resources.iter() {
            // A new cluster needs its children even if the client has them for another cluster. So
            // does any new parent in SotW: if a reference moves between parents, Envoy drops the
            // child and requests it again with an unchanged list of names. In delta, Envoy uses the
            // child that it has, except for secrets. Each reference with another configuration of
            // its source waits for the secret.
            let uses_held =
                !is_cluster && protocol == Protocol::Delta && touched.is_fresh(resource);
            let endpoints = resource
                .children()
                .iter()
                .find(|child| is_cluster && has_endpoints && child.type_url.as_str() == ENDPOINT);
            for child in resource.children() {
                if !known.contains(&&child.type_url) {
                    known.push(&child.type_url);
                }
                if uses_held && child.type_url.as_str() != SECRET {
                    continue;
                }
                let is_secret = child.type_url.as_str() == SECRET;
                let mut others = subscriptions.iter_mut();
                let other = others.find(|other| *other.type_url() == child.type_url);
                let Some(other) = other else { continue };
                let held = other.interest().held_names(&child.name);
                if held.is_empty() {
                    continue;
                }
                match endpoints {
                    Some(endpoints) if is_secret && secrets_waiting.len() < SECRETS_WAITING_MAX => {
                        let waiting = secrets_waiting.entry(endpoints.name.clone()).or_default();
                        waiting.insert(child.name.clone());
                    }
                    _ => other.resend(held),
                }
            }
        }
        // ADS-12: if no parent is known to have children of this type, a client that requests
        // children again is right.
        for other in subscriptions {
            if other.properties().parents.contains(&parent.as_str()) {
                let is_unknown = !known.contains(&other.type_url());
                other.set_repeat_due(is_unknown);
            }
        }
    }

    /// Marks the secrets that waited for these endpoints to be sent again.
    fn resend_secrets(&mut self, subscriptions: &mut [Subscription], endpoints: &Resources) {
        let mut subscriptions = subscriptions.iter_mut();
        let Some(secrets) = subscriptions.find(|s| s.type_url().as_str() == SECRET) else { return };
        for resource in endpoints.iter() {
            let waiting = self.secrets_waiting.remove(resource.base_name()).unwrap_or_default();
            let held: Vec<ResourceName> =
                waiting.iter().flat_map(|name| secrets.interest().held_names(name)).collect();
            secrets.resend(held);
        }
    }
}
