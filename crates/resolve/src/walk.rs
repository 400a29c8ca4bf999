//! The state of a walk: its steps, and the conditions that were not decided.

use chancery_model::types;
use prost_reflect::DynamicMessage;

use crate::{
    answer::{End, Resolution, Skipped, Step, Undecided},
    message::decode,
    request::Request,
    resources::Resources,
};

/// The maximum number of candidates per step that are listed with their reasons.
const SKIPPED_MAX: usize = 50;
/// The maximum number of undecided conditions in an answer.
const UNDECIDED_MAX: usize = 100;

/// The candidates of a step that did not match.
#[derive(Debug, Default)]
pub(crate) struct Skips {
    list: Vec<Skipped>,
    omitted: usize,
}

impl Skips {
    /// Adds a candidate.
    pub(crate) fn add(&mut self, place: impl Into<String>, reason: impl Into<String>) {
        if self.list.len() < SKIPPED_MAX {
            self.list.push(Skipped { place: place.into(), reason: reason.into() });
        } else {
            self.omitted += 1;
        }
    }
}

/// A walk through one listener.
pub(crate) struct Walk<'a> {
    pub(crate) resources: &'a dyn Resources,
    pub(crate) request: &'a Request,
    steps: Vec<Step>,
    undecided: Vec<Undecided>,
    undecided_omitted: usize,
}

impl<'a> Walk<'a> {
    /// Starts a walk.
    pub(crate) fn new(resources: &'a dyn Resources, request: &'a Request) -> Self {
        Self { resources, request, steps: Vec::new(), undecided: Vec::new(), undecided_omitted: 0 }
    }

    /// Adds a step.
    pub(crate) fn step(&mut self, kind: &'static str, place: String, result: String, skips: Skips) {
        let Skips { list: skipped, omitted: skipped_omitted } = skips;
        self.steps.push(Step { kind, place, result, skipped, skipped_omitted });
    }

    /// Adds a condition that is not decided.
    pub(crate) fn doubt(&mut self, place: &str, reason: &str, otherwise: &str) {
        if self.undecided.len() == UNDECIDED_MAX {
            self.undecided_omitted += 1;
            return;
        }
        let [place, reason, otherwise] = [place, reason, otherwise].map(str::to_owned);
        self.undecided.push(Undecided { place, reason, otherwise });
    }

    /// Returns a decoded resource, if the node has it.
    pub(crate) fn fetch(&mut self, type_url: &str, name: &str) -> Option<DynamicMessage> {
        let (message, doubt) = self.peek(type_url, name)?;
        if !doubt.is_empty() {
            self.doubt(&shown(type_url, name), &doubt, "");
        }
        match message {
            Ok(message) => Some(message),
            Err(reason) => {
                self.doubt(&shown(type_url, name), &reason, "");
                None
            }
        }
    }

    /// Returns a resource without a note about its doubt, and the doubt.
    pub(crate) fn peek(
        &self,
        type_url: &str,
        name: &str,
    ) -> Option<(Result<DynamicMessage, String>, String)> {
        let resource = self.resources.get(type_url, name)?;
        let type_name = type_url.rsplit('/').next().unwrap_or_default();
        Some((decode(type_name, resource.body), resource.doubt))
    }

    /// Ends the walk.
    pub(crate) fn finish(self, listener: &str, end: End) -> Resolution {
        Resolution {
            listener: listener.to_owned(),
            steps: self.steps,
            end,
            undecided: self.undecided,
            undecided_omitted: self.undecided_omitted,
        }
    }
}

/// Returns a resource as text.
pub(crate) fn shown(type_url: &str, name: &str) -> String {
    let kind = match type_url {
        types::LISTENER => "listener",
        types::FILTER_CHAIN => "filter chain",
        types::ROUTE => "route configuration",
        types::SCOPED_ROUTE => "scoped route configuration",
        types::VIRTUAL_HOST => "virtual host",
        types::CLUSTER => "cluster",
        types::ENDPOINT => "endpoints",
        types::EXTENSION => "extension",
        other => other.rsplit('.').next().unwrap_or_default(),
    };
    format!("{kind} {name:?}")
}
