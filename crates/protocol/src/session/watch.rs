//! What the one who drives a session tells it of changes, and looks at between responses.

use chancery_model::{ResourceName, TypeUrl};
use chancery_view::LayerDelta;

use super::Session;
use crate::subscription::Subscription;

/// A response that has been unanswered for too long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overdue {
    /// Its type.
    pub type_url: TypeUrl,
    /// For how long the client has been silent on the type, in milliseconds.
    pub silent_ms: u64,
}

impl Session {
    /// Something of this type has changed that the session is interested in: the resource or alias
    /// `name`, or anything, for a wildcard.
    pub fn on_change(&mut self, type_url: &TypeUrl, name: Option<&ResourceName>) {
        let mut subscriptions = self.subscriptions.iter_mut();
        let Some(s) = subscriptions.find(|s| s.type_url == *type_url) else { return };
        match name {
            Some(name) if !s.wildcard => {
                if let Some((name, _)) = s.names.get_key_value(name) {
                    s.stale.insert(name.clone());
                }
            }
            _ => s.dirty |= s.wildcard,
        }
    }

    /// All that has changed of one collection, whether or not the session is interested in it. O(what
    /// has changed · log names), and no more than O(1) if it names less than has changed: then all
    /// its names are looked at later. Says whether the session may be interested.
    pub fn on_changes(&mut self, delta: &LayerDelta) -> bool {
        let mut subscriptions = self.subscriptions.iter_mut();
        let Some(s) = subscriptions.find(|s| s.type_url == *delta.type_url()) else { return false };
        if s.wildcard || s.names.len() < delta.n_steps() {
            let asks = s.wildcard || !s.names.is_empty();
            s.dirty |= asks;
            return asks;
        }
        let mut found = false;
        for name in delta.names() {
            if let Some((name, _)) = s.names.get_key_value(name) {
                s.stale.insert(name.clone());
                found = true;
            }
        }
        found
    }

    /// The node sees other scopes now: anything may have changed.
    pub fn on_new_view(&mut self) {
        self.subscriptions.iter_mut().for_each(|subscription| subscription.dirty = true);
    }

    /// Whether something is to be sent, as far as is known without looking.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.subscriptions.iter().any(Subscription::has_work)
    }

    /// The same for one type.
    #[must_use]
    pub fn has_work_of(&self, type_url: &TypeUrl) -> bool {
        self.subscriptions.iter().any(|s| s.type_url == *type_url && s.has_work())
    }

    /// Whether a response of the type is unanswered, or a part of one is still to be sent.
    #[must_use]
    pub fn is_under_way(&self, type_url: &TypeUrl) -> bool {
        let of_type = self.subscriptions.iter().find(|s| s.type_url == *type_url);
        of_type.is_some_and(|s| s.train.is_some() || !s.outstanding.is_empty())
    }

    /// Whether a rejection stands.
    #[must_use]
    pub fn is_rejecting(&self) -> bool {
        self.subscriptions.iter().any(|s| s.nack().is_some())
    }

    /// Since when the client has not answered, of the type where that is longest; `None` if it owes no
    /// answer.
    #[must_use]
    pub fn silent_since(&self) -> Option<u64> {
        self.subscriptions.iter().filter_map(Subscription::silent_since).min()
    }

    /// When the stream will be overdue if the client says nothing until then.
    #[must_use]
    pub fn overdue_at(&self) -> Option<u64> {
        let patience = self.config.ack_close_after_ms?;
        self.silent_since().map(|since| since.saturating_add(patience))
    }

    /// The response that the client has left unanswered for too long, if there is one. The stream is to
    /// be closed then.
    #[must_use]
    pub fn overdue(&self, now: u64) -> Option<Overdue> {
        let patience = self.config.ack_close_after_ms?;
        let silent = self.subscriptions.iter().filter_map(|s| Some((s.silent_since()?, s)));
        let (since, s) = silent.min_by_key(|(since, _)| *since)?;
        let silent_ms = now.saturating_sub(since);
        (silent_ms >= patience).then(|| Overdue { type_url: s.type_url.clone(), silent_ms })
    }
}
