//! Order on an aggregated stream: make before break.

use crate::model::{
    client::Client,
    cover::{Law, law},
    laws::CheckContext,
    ledger::{Ledger, Reply, base36},
    naive::{CDS, EDS, LDS, RDS, SRDS, Seen, TYPES, is_full_state, references},
};

/// The maximum time for which a removal waits unless there is a rejection, in ACK timeouts
/// (ADS-22).
pub(crate) const REMOVAL_WAITS: u64 = 3;

/// Checks that parents and children are sent in order.
///
/// ADS-06, ADS-07: a route is not sent before its clusters and their endpoints, if these exist and
/// the client subscribes to them. This applies whatever the client has requested, and however long
/// anything has waited.
///
/// ADS-05: endpoints are not sent before their changed clusters, unless the client has just
/// requested them (ADS-20, ADS-26) or they follow a parent (ADS-11).
pub(crate) fn check_additions(
    ledger: &Ledger,
    reply: &Reply,
    seen: &Seen,
    context: &mut CheckContext<'_>,
) -> Law {
    let line = &ledger.lines[reply.t];
    let is_late = ledger.waited(reply.t, context.now) >= context.ack_timeout;
    context.cover.hit_if(is_late, "sent after waiting for other types");
    for got in &reply.resources {
        if reply.t == RDS {
            for (t, cluster) in references(RDS, &got.body) {
                check_sent(ledger, t, &cluster, got.name.as_str(), seen, context)?;
                if let Some(item) = seen.of[CDS].get(&cluster) {
                    for (t, child) in references(CDS, &item.body) {
                        check_sent(ledger, t, &child, got.name.as_str(), seen, context)?;
                    }
                }
            }
        }
        let asked = line.owed.contains_key(&got.name) || line.maybe.contains(&got.name);
        if asked || line.opening {
            continue;
        }
        if line.sent.get(&got.name).is_some_and(|sent| sent.version == got.version) {
            continue;
        }
        let follows = line.child_due.contains(&got.name) || line.may.contains(&got.name);
        if reply.t == EDS && !follows {
            check_behind_clusters(ledger, reply, &got.name, seen, context)?;
        }
    }
    Ok(())
}

fn check_sent(
    ledger: &Ledger,
    t: usize,
    name: &str,
    route: &str,
    seen: &Seen,
    context: &mut CheckContext<'_>,
) -> Law {
    let line = &ledger.lines[t];
    let Some(item) = seen.of[t].get(name) else { return Ok(()) };
    // The rest of a split state may refer to resources that no longer exist and can no longer be
    // sent.
    let is_there = context.oracle.seen().is_none_or(|now| now.of[t].contains_key(name));
    if !is_there || !line.asked.covers(name, &[]) {
        return Ok(());
    }
    context.cover.hit("routes to subscribed clusters");
    law!(
        line.sent.contains_key(name),
        "ADS-06",
        "the route {route} is sent before {name} of {}, which exists: {item:?}",
        TYPES[t]
    );
    Ok(())
}

/// ADS-05: checks that endpoints follow the clusters that changed with them.
fn check_behind_clusters(
    ledger: &Ledger,
    reply: &Reply,
    endpoints: &str,
    seen: &Seen,
    context: &mut CheckContext<'_>,
) -> Law {
    let clusters = &ledger.lines[CDS];
    for cluster in seen.of[CDS].values() {
        let refers = references(CDS, &cluster.body).iter().any(|(_, name)| name == endpoints);
        if !refers || !clusters.asked.covers(&cluster.name, &[]) {
            continue;
        }
        let is_sent = clusters
            .sent
            .get(&cluster.name)
            .is_some_and(|sent| sent.version.starts_with(&base36(cluster.changed)));
        context.cover.hit("endpoints of subscribed clusters");
        law!(
            is_sent || clusters.revision > reply.revision,
            "ADS-05",
            "the endpoints {endpoints} are sent before their cluster {cluster:?}"
        );
    }
    Ok(())
}

/// Checks that nothing is removed to which the client's own configuration refers.
///
/// ADS-08, ADS-03: the rule applies if the published state no longer has the reference. ADS-09: it
/// applies above all while the client rejects the change. The wait for anything but a rejection is
/// bounded (ADS-22).
pub(crate) fn check_removals(
    ledger: &Ledger,
    client: &Client,
    reply: &Reply,
    context: &mut CheckContext<'_>,
) -> Law {
    if !ledger.aggregated {
        return Ok(());
    }
    let Some(seen) = context.oracle.seen() else { return Ok(()) };
    if ledger.lines[reply.t].full_due {
        // The client has just subscribed to everything: its earlier subscriptions are no longer
        // known.
        return Ok(());
    }
    let removed = removed(ledger, reply);
    for name in &removed {
        context.cover.hit("removals of sent resources");
        let since = context.oracle.gone_since.get(&(reply.t, name.clone()));
        let (waited, gone_at) =
            since.map_or((0, 0), |(at, revision)| (context.now - at, *revision));
        for parent in [CDS, LDS, RDS, SRDS] {
            let line = &ledger.lines[parent];
            for (referrer, held) in &client.held[parent] {
                let refers = |body: &str| {
                    references(parent, body).iter().any(|(t, n)| *t == reply.t && n == name)
                };
                let Some(now) = seen.of[parent].get(referrer) else { continue };
                let sent = line.sent.get(referrer);
                if !refers(&held.body) || !line.asked.covers(referrer, &[]) {
                    continue;
                }
                if context.oracle.referred(gone_at, (parent, referrer), (reply.t, name)) {
                    continue;
                }
                let current = |version: &str| version.starts_with(&base36(now.changed));
                // ADS-08 is about a commit that moves the referrer away. This commit left the
                // referrer deleted, which SotW does not report (SOTW-85). A later commit restored
                // it. Each removal waits for its own revision. Otherwise a busy type would hold all
                // of them back (ADR 0004, 4).
                let then = context.oracle.seen_at(gone_at);
                if then.is_some_and(|seen| !seen.of[parent].contains_key(referrer)) {
                    context.cover.hit("removals beside a restored referrer");
                    continue;
                }
                let rejects = client
                    .rejected
                    .iter()
                    .any(|(t, name, version)| *t == parent && name == referrer && current(version));
                // The client was sent the replacement, and has had its time to answer.
                let given_up = sent.is_some_and(|sent| {
                    sent.version != held.version && sent.at + context.ack_timeout <= context.now
                });
                let expired = waited >= REMOVAL_WAITS * context.ack_timeout || given_up;
                law!(
                    expired && !rejects,
                    "ADS-08",
                    "{name} of {} is removed after {waited} ms, but the client has {held:?}, which \
                     {now:?} will replace (rejected: {rejects})",
                    TYPES[reply.t]
                );
                context.cover.hit("removals after the longest wait");
            }
        }
    }
    Ok(())
}

/// Returns the resources that the client was sent and loses by this response.
fn removed(ledger: &Ledger, reply: &Reply) -> Vec<String> {
    let line = &ledger.lines[reply.t];
    if is_full_state(ledger.protocol, reply.t) {
        let here = |name: &String| reply.resources.iter().any(|got| got.name == *name);
        return line.sent.keys().filter(|name| !here(name)).cloned().collect();
    }
    let told = |name: &&String| line.sent.contains_key(*name) && !line.owed.contains_key(*name);
    reply.removed.iter().filter(told).cloned().collect()
}
