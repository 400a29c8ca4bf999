//! Requests of a client without habits: whatever can be written down.

use chancery_protocol::{DeltaRequest, Protocol, Request};

use crate::{
    client::Client,
    naive::{Asked, NAMES, has_wildcard},
    script::Ask,
};

/// The name of a number: a resource, an alias of one, or nothing at all.
fn name(n: usize) -> String {
    match n.checked_sub(NAMES.len()) {
        None => NAMES[n].to_owned(),
        Some(0) => "a/1".to_owned(),
        Some(1) => "b/2".to_owned(),
        Some(_) => "none".to_owned(),
    }
}

/// The aliases of a resource with so many.
pub(crate) fn aliases(of: usize, n: usize) -> Vec<String> {
    (1..=n).map(|i| format!("{}/{i}", NAMES[of])).collect()
}

impl Client {
    /// Any request: names twice, unknown ones, nonces of nothing and of long ago, lists of what is held
    /// that are true, wrong, or from the future.
    pub(crate) fn any(&mut self, ask: &Ask, asked: &Asked) -> Request {
        let (t, protocol) = (ask.t, self.profile.protocol());
        let mut list: Vec<String> = ask.names.iter().map(|n| name(*n)).collect();
        if ask.star.0 && (has_wildcard(protocol, t) || ask.mode == 39) {
            list.insert(ask.mode % (list.len() + 1), "*".to_owned());
        }
        let nonce = match ask.mode {
            0..=4 => String::new(),
            5 => "999".to_owned(),
            6 => "nonsense".to_owned(),
            7..=9 => self.heard[t].first().cloned().unwrap_or_default(),
            _ if protocol == Protocol::Delta => String::new(),
            _ => self.nonce[t].clone(),
        };
        self.list[t].clone_from(&list);
        let mut unsubscribe: Vec<String> = ask.drop.iter().map(|n| name(*n)).collect();
        if ask.star.1 {
            unsubscribe.push("*".to_owned());
        }
        let is_first = !asked.opened;
        let initial_resource_versions = match ask.mode % 4 {
            // Not of an opening request: ignored (DELTA-57).
            0 if !is_first => vec![("a".to_owned(), "1-00000000".to_owned())],
            _ if !is_first => Vec::new(),
            0 | 1 => self.versions(t),
            2 => self.wrong_versions(t),
            _ => Vec::new(),
        };
        let delta = DeltaRequest {
            subscribe: list.into(),
            unsubscribe: unsubscribe.into(),
            initial_resource_versions: initial_resource_versions.into(),
            ..DeltaRequest::default()
        };
        self.request(t, delta, nonce, None)
    }

    /// What it holds, with versions that nobody gave, or that are yet to come; and a name of nothing.
    fn wrong_versions(&self, t: usize) -> Vec<(String, String)> {
        let wrong = ["", "9zzz-00000001", "v1"];
        let held = self.versions(t).into_iter().enumerate();
        let mut out: Vec<_> = held.map(|(i, (name, _))| (name, wrong[i % 3].to_owned())).collect();
        out.push(("none".to_owned(), "1-12345678".to_owned()));
        out
    }
}
