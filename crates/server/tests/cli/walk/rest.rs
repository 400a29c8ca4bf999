//! The client that polls.

use std::collections::{BTreeMap, BTreeSet};

use chancery_model::{TypeUrl, types};
use serde_json::{Value, json};

use super::content::{Held, Key, NAMED, TYPES, admitted_json, followed, is_bad, is_named, wanted};
use crate::support::http_post;

/// A client that polls for one name at a time, like Envoy.
#[derive(Default)]
pub(super) struct Rest {
    address: String,
    /// The accepted resources.
    pub(super) held: Held,
    /// The names of the runtime that the client polls.
    included: BTreeSet<String>,
    /// The accepted version of each poll: a type, and a name or the wildcard.
    accepted: BTreeMap<Key, String>,
    pub(super) n_rejected: usize,
}

impl Rest {
    pub(super) fn new(address: &str) -> Self {
        Self { address: address.to_owned(), ..Self::default() }
    }

    /// Forgets everything that was received.
    pub(super) fn restart(&mut self) {
        self.held.clear();
        self.accepted.clear();
    }

    pub(super) fn include(&mut self, included: &BTreeSet<String>) {
        self.included.clone_from(included);
    }

    /// Polls everything that the client wants, once.
    pub(super) fn poll(&mut self) {
        for type_url in TYPES.into_iter().filter(|it| !is_named(it)) {
            self.poll_one(type_url, "*");
        }
        self.held = followed(&self.held, &self.included);
        for type_url in NAMED {
            let names = wanted(&self.held, &self.included, type_url);
            self.accepted.retain(|(of, name), _| *of != type_url || names.contains(name));
            names.iter().for_each(|name| self.poll_one(type_url, name));
        }
    }

    fn poll_one(&mut self, type_url: &'static str, name: &str) {
        let service = types::properties(&TypeUrl::from_static(type_url)).service.as_ref();
        let path = service.and_then(|service| service.rest).unwrap();
        let key = (type_url, name.to_owned());
        let version = self.accepted.get(&key).cloned().unwrap_or_default();
        let request =
            json!({"node": {"id": "n"}, "resource_names": [name], "version_info": version});
        let (status, body) = http_post(&self.address, path, &request.to_string());
        if status == 304 {
            return;
        }
        assert_eq!(status, 200, "{path} {name}: {body}");
        let response: Value = serde_json::from_str(&body).unwrap();
        let received = admitted_json(&json!({"resources": response["resources"]}));
        if !is_named(type_url) {
            self.held.retain(|key, _| key.0 != type_url || received.contains_key(key));
        }
        let n = received.len();
        let good: Held = received.into_iter().filter(|(_, body)| !is_bad(body)).collect();
        if good.len() == n {
            self.accepted.insert(key, response["version_info"].as_str().unwrap().to_owned());
        } else {
            self.n_rejected += 1;
        }
        self.held.extend(good);
    }
}
