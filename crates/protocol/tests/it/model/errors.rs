//! The rules for resource errors.

use std::collections::BTreeSet;

use chancery_protocol::Protocol;

use crate::model::{
    cover::{Law, law},
    laws::CheckContext,
    ledger::{Reply, TypeLedger},
    naive::Seen,
};

impl TypeLedger {
    /// ERR-14: errors are sent only if they are enabled. ERR-03, ERR-05, ERR-10, ERR-15: an error has
    /// the name of a subscription, which has no resource. ERR-04: in SotW, it is sent once. ERR-09:
    /// in delta, exactly the removals of subscribed names have one.
    pub(crate) fn check_errors(
        &self,
        reply: &Reply,
        protocol: Protocol,
        seen: &Seen,
        context: &mut CheckContext<'_>,
    ) -> Law {
        let errors: BTreeSet<&String> = reply.errors.iter().collect();
        law!(errors.len() == reply.errors.len(), "ERR-04", "an error occurs twice: {reply:?}");
        law!(errors.is_empty() || context.errors, "ERR-14", "errors are off: {reply:?}");
        for name in &errors {
            law!(self.asked.names.contains(*name), "ERR-10", "{name} was not requested");
            law!(seen.get(reply.t, name).is_none(), "ERR-05", "{name} exists: {reply:?}");
            let is_sent =
                reply.resources.iter().any(|got| got.name == **name || got.aliases.contains(name));
            law!(!is_sent, "ERR-03", "{name} is a resource and an error: {reply:?}");
            law!(!self.reported.contains(*name), "ERR-04", "the error of {name} is repeated");
        }
        if protocol == Protocol::Delta && context.errors {
            let removed = reply.removed.iter().filter(|name| self.asked.names.contains(*name));
            law!(errors == removed.collect(), "ERR-09", "removals without errors: {reply:?}");
        }
        context.cover.add("errors", errors.len());
        let alone = reply.resources.is_empty() && !errors.is_empty();
        context.cover.hit_if(alone, "responses with errors only");
        Ok(())
    }

    pub(crate) fn enter_errors(&mut self, reply: &Reply) {
        for got in &reply.resources {
            for name in std::iter::once(&got.name).chain(&got.aliases) {
                self.reported.remove(name);
            }
        }
        if reply.removed.is_empty() {
            self.reported.extend(reply.errors.iter().cloned());
        }
    }
}
