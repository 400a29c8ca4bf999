//! The clients for which a write was checked, as text.

use std::io::{self, Write};

use chancery_admin_proto::v1 as pb;

use crate::text::{count, plain};

/// Prints the clients for which resources were checked, unless they are Envoys and all replicas have answered.
pub(super) fn report_clients(response: &pb::WriteResponse) {
    let mut stderr = io::stderr().lock();
    for line in clients_lines(response) {
        drop(writeln!(stderr, "note: {}", plain(&line)));
    }
}

/// Returns a line for each scope whose clients are not only Envoys, or not all known.
pub(super) fn clients_lines(response: &pb::WriteResponse) -> impl Iterator<Item = String> {
    let checked = response.checked_clients.iter();
    checked.filter_map(|checked| clients_line(checked, &response.not_asked))
}

fn clients_line(checked: &pb::CheckedClients, not_asked: &[pb::ReplicaNotAsked]) -> Option<String> {
    let is_envoy = || checked.profiles.iter().all(|profile| profile.starts_with("envoy"));
    if checked.source != "declared" && checked.replicas_not_asked == 0 && is_envoy() {
        return None;
    }
    let (scope, profiles) = (&checked.scope, checked.profiles.join(", "));
    let others = match checked.replicas_not_asked {
        0 => String::new(),
        n => {
            let reasons = not_asked.iter();
            let reasons =
                reasons.map(|one| format!("; replica {} {}", one.replica_id, one.message));
            let reasons = reasons.collect::<String>();
            format!("; the clients of {} are not known{reasons}", count(n, "other replica"))
        }
    };
    let source = &checked.source;
    Some(format!("scope {scope:?} was checked for the {source} clients {profiles}{others}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_a_scope_are_shown_unless_they_are_known_envoys() {
        let line = |profiles: &[&str], source: &str, replicas_not_asked| {
            let checked = pb::CheckedClients {
                scope: "mesh".into(),
                profiles: profiles.iter().map(|profile| (*profile).to_owned()).collect(),
                source: source.into(),
                replicas_not_asked,
            };
            let not_asked = (0..replicas_not_asked).map(|n| pb::ReplicaNotAsked {
                replica_id: n + 2,
                reason: "busy".into(),
                message: "is busy".into(),
            });
            clients_line(&checked, &not_asked.collect::<Vec<_>>())
        };
        assert_eq!(line(&["envoy@1.40"], "connected", 0), None);
        let text = "scope \"mesh\" was checked for the assumed clients envoy; the clients of 1 other replica are not known; \
                    replica 2 is busy";
        assert_eq!(line(&["envoy"], "assumed", 1).unwrap(), text);
        let text = "scope \"mesh\" was checked for the declared clients envoy";
        assert_eq!(line(&["envoy"], "declared", 0).unwrap(), text);
        let text = "scope \"mesh\" was checked for the connected clients envoy@1.40, grpc-go@1.85; the clients of 2 other \
                    replicas are not known; replica 2 is busy; replica 3 is busy";
        assert_eq!(line(&["envoy@1.40", "grpc-go@1.85"], "connected", 2).unwrap(), text);
    }
}
