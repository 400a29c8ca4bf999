//! The clusters, listeners and route tables of an Envoy, as its admin port shows them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{
    http,
    manifests::{CLUSTER, LISTENER, ROUTE},
};

/// The resources of an Envoy, as its admin port shows them.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Held {
    /// The resources in use, by type and name.
    pub(crate) active: BTreeMap<(&'static str, String), Value>,
    /// Their versions: with delta, each has its own.
    pub(crate) version_of: BTreeMap<(&'static str, String), String>,
    /// The resources that wait for others.
    pub(crate) warming: BTreeSet<(&'static str, String)>,
    /// The last rejection of each listener, by name.
    pub(crate) rejected: BTreeMap<String, String>,
    /// The version of the last accepted response of clusters and listeners.
    pub(crate) versions: BTreeMap<&'static str, String>,
}

/// The lists of a section of the dump, each with the field that has the resource.
type Lists = &'static [(&'static str, &'static str)];

impl Held {
    /// Asks the Envoy with this admin port.
    pub(crate) fn of(admin: u16) -> Result<Self> {
        let page = http::get(admin, "/config_dump")?;
        let mut page: Value = serde_json::from_str(&page)?;
        let mut held = Self::default();
        for section in page["configs"].as_array_mut().context("no configs")? {
            let kind = section["@type"].as_str().unwrap_or_default();
            let Some((type_url, lists)) = Self::lists_of(kind.rsplit('.').next()) else { continue };
            if let Some(version) = section["version_info"].as_str() {
                held.versions.insert(type_url, version.to_owned());
            }
            for (list, field) in lists {
                for entry in section[*list].as_array_mut().into_iter().flatten() {
                    held.take(type_url, list, field, entry);
                }
            }
        }
        Ok(held)
    }

    fn lists_of(section: Option<&str>) -> Option<(&'static str, Lists)> {
        match section? {
            "ClustersConfigDump" => Some((
                CLUSTER,
                &[("dynamic_active_clusters", "cluster"), ("dynamic_warming_clusters", "cluster")],
            )),
            "ListenersConfigDump" => Some((LISTENER, &[("dynamic_listeners", "listener")])),
            "RoutesConfigDump" => Some((ROUTE, &[("dynamic_route_configs", "route_config")])),
            _ => None,
        }
    }

    fn take(&mut self, type_url: &'static str, list: &str, field: &str, entry: &mut Value) {
        let details = entry["error_state"]["details"].take();
        // Envoy shows the name of a new listener only in the rejected configuration.
        let name = match &entry["name"] {
            Value::Null => entry["error_state"]["failed_configuration"]["name"].clone(),
            name => name.clone(),
        };
        if let (Some(details), Some(name)) = (details.as_str(), name.as_str()) {
            self.rejected.insert(name.to_owned(), details.to_owned());
        }
        let (mut active, warming) = match type_url {
            LISTENER => (entry["active_state"].take(), entry["warming_state"].take()),
            _ if list == "dynamic_warming_clusters" => (Value::Null, entry.take()),
            _ => (entry.take(), Value::Null),
        };
        let name = |state: &Value| state[field]["name"].as_str().map(str::to_owned);
        self.warming.extend(name(&warming).map(|name| (type_url, name)));
        if let Some(name) = name(&active) {
            let version = active["version_info"].as_str().unwrap_or_default().to_owned();
            self.version_of.insert((type_url, name.clone()), version);
            self.active.insert((type_url, name), active[field].take());
        }
    }
}
