//! Arbitrary requests: clients without the habits of real ones.

use chancery_protocol::{DeltaRequest, Protocol, Request};

use crate::model::{
    client::Client,
    naive::{Asked, NAMES, has_wildcard},
    script::Ask,
};

/// Returns the name with a number: a resource, an alias of one, or a name that never exists.
fn name(n: usize) -> String {
    match n.checked_sub(NAMES.len()) {
        None => NAMES[n].to_owned(),
        Some(0) => "a/1".to_owned(),
        Some(1) => "b/2".to_owned(),
        Some(_) => "none".to_owned(),
    }
}

/// Returns the first `n` aliases of a resource.
pub(crate) fn aliases(of: usize, n: usize) -> Vec<String> {
    (1..=n).map(|i| format!("{}/{i}", NAMES[of])).collect()
}

impl Client {
    /// Returns any request. Names may be duplicate or unknown. Nonces may be unknown or old. The
    /// claimed versions may be true, wrong, or from the future.
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
            // Not in an opening request: the server ignores it (DELTA-57).
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

    /// Returns the held names with versions that no server assigned or that do not exist yet, and a
    /// name that never exists.
    fn wrong_versions(&self, t: usize) -> Vec<(String, String)> {
        let wrong = ["", "9zzz-00000001", "v1"];
        let held = self.versions(t).into_iter().enumerate();
        let mut out: Vec<_> = held.map(|(i, (name, _))| (name, wrong[i % 3].to_owned())).collect();
        out.push(("none".to_owned(), "1-12345678".to_owned()));
        out
    }
}
