//! Guards against writes that take down connected nodes, such as the deletion of most clusters.
//!
//! A guard rejects a write before replication, unless the request confirms the guard by its name. It
//! decides on the state of the replica that takes the write, and on the nodes of all replicas that have answered
//! ([`crate::fleet_effects`]). For the other replicas, guards assume that each view has nodes there, and
//! the guard `unasked` rejects the write.
//!
//! Cost: [`Suspects`] needs O(changes). Only if [`Suspects`] finds something, all replicas list their
//! streams. The index of references names the resources that refer to a removed cluster or list of
//! endpoints.

mod effects;
mod endpoints;
pub(crate) mod settings;
mod suspects;
mod view_sizes;

use std::collections::BTreeSet;

use chancery_admin_proto::v1 as pb;
use chancery_admission::{Problem, Severity};

use effects::EFFECTS_MAX;
pub(crate) use effects::{Finding, Tried, findings};
pub(crate) use suspects::Suspects;

use settings::{Guard, GuardSettings};

/// The maximum number of effects of one guard in the text of a rejection. A dry run lists more.
const EFFECTS_SHOWN_MAX: usize = 3;
/// The maximum length of all effects in the text of a rejection, in bytes. A gRPC status has 1 KiB.
const EFFECTS_BYTES_MAX: usize = 700;

/// Returns the finding that replicas did not answer which of their nodes a write concerns. `not_asked` is not empty.
pub(crate) fn unasked(not_asked: &[pb::ReplicaNotAsked]) -> Finding {
    let effects = not_asked.iter().map(|one| format!("replica {} {}", one.replica_id, one.message));
    Finding { guard: Guard::Unasked, effects: effects.collect(), n_omitted: 0 }
}

/// Returns the finding that clients accept resources of a write, and then their calls fail. `None` if they do not.
pub(crate) fn effects_of(warnings: &[Problem], settings: &GuardSettings) -> Option<Finding> {
    let is_guarded = |problem: &&Problem| {
        let own = problem.scope.as_ref().map_or(settings, |scope| settings.of(scope));
        problem.severity == Severity::Effect && own.applies(Guard::Effect)
    };
    let mut all = warnings.iter().filter(is_guarded);
    let effects: Vec<String> = all.by_ref().take(EFFECTS_MAX).map(ToString::to_string).collect();
    let n_omitted = all.count();
    (!effects.is_empty()).then_some(Finding { guard: Guard::Effect, effects, n_omitted })
}

/// Converts a finding to a message.
pub(crate) fn show(
    finding: Finding,
    confirmed: &BTreeSet<Guard>,
    n_unknown_replicas: usize,
) -> pb::GuardFinding {
    pb::GuardFinding {
        guard: finding.guard.name().to_owned(),
        effects: finding.effects,
        effects_omitted: finding.n_omitted as u64,
        confirmed: confirmed.contains(&finding.guard),
        replicas_not_asked: n_unknown_replicas as u64,
    }
}

/// Returns the reason why a write is rejected, and how to confirm it. `None` if all guards are
/// confirmed.
pub(crate) fn rejection(findings: &[pb::GuardFinding]) -> Option<String> {
    let open: Vec<&pb::GuardFinding> =
        findings.iter().filter(|finding| !finding.confirmed).collect();
    // The finding of the guard `unasked` names the replicas.
    let is_named = open.iter().any(|finding| finding.guard == Guard::Unasked.name());
    let not_asked = match open.first()?.replicas_not_asked {
        _ if is_named => String::new(),
        0 => String::new(),
        1 => "; the nodes of 1 other replica were not asked".to_owned(),
        n => format!("; the nodes of {n} other replicas were not asked"),
    };
    let parts: Vec<String> = open
        .iter()
        .map(|finding| format!("guard `{}` rejects the write: {}", finding.guard, effects(finding)))
        .collect();
    let mut effects = parts.join("; ");
    if effects.len() > EFFECTS_BYTES_MAX {
        effects.truncate(effects.floor_char_boundary(EFFECTS_BYTES_MAX));
        effects.push('…');
    }
    let names: Vec<&str> = findings.iter().map(|finding| finding.guard.as_str()).collect();
    let names = names.join(",");
    Some(format!(
        "{effects}{not_asked}; nothing was written; to write it anyway, pass `--confirm {names}` (HTTP: confirm={names})"
    ))
}

fn effects(finding: &pb::GuardFinding) -> String {
    let mut shown: Vec<&str> =
        finding.effects.iter().take(EFFECTS_SHOWN_MAX).map(String::as_str).collect();
    let n_more = (finding.effects.len() - shown.len()) as u64 + finding.effects_omitted;
    let what = match finding.guard.as_str() {
        name if name == Guard::Unasked.name() => "replicas",
        name if name == Guard::Effect.name() => "effects",
        _ => "views",
    };
    let more = format!("and {n_more} more {what}");
    if n_more > 0 {
        shown.push(&more);
    }
    shown.join("; ")
}

#[cfg(test)]
mod tests {
    use chancery_model::ScopeName;

    use super::*;

    fn finding(guard: &str, effects: Vec<String>, confirmed: bool) -> pb::GuardFinding {
        pb::GuardFinding { guard: guard.to_owned(), effects, confirmed, ..Default::default() }
    }

    #[test]
    fn rejection_names_open_guards_and_how_to_confirm_all() {
        let change = || vec!["1 node: edge → nothing, 9 → 0 resources".to_owned()];
        assert_eq!(rejection(&[finding("view-change", change(), true)]), None);
        let open =
            pb::GuardFinding { replicas_not_asked: 2, ..finding("view-change", change(), false) };
        assert_eq!(
            rejection(&[finding("mass-deletion", change(), true), open]).unwrap(),
            "guard `view-change` rejects the write: 1 node: edge → nothing, 9 → 0 resources; the nodes of 2 other \
             replicas were not asked; nothing was written; to write it anyway, pass `--confirm \
             mass-deletion,view-change` (HTTP: confirm=mass-deletion,view-change)"
        );
    }

    #[test]
    fn effects_of_a_write_are_those_of_scopes_that_apply_the_guard() {
        let problem = |severity, scope: &str| Problem {
            rule: "every RPC fails".to_owned(),
            severity,
            scope: Some(ScopeName::new(scope).unwrap()),
            ..Problem::default()
        };
        let off = GuardSettings { off: vec!["effect".to_owned()], ..GuardSettings::default() };
        let scopes = [(ScopeName::new("lab").unwrap(), off)].into();
        let settings = GuardSettings { scopes, ..GuardSettings::default() };
        let of = |problems: &[Problem]| effects_of(problems, &settings).map(|one| one.effects);
        assert_eq!(
            of(&[problem(Severity::Warning, "edge"), problem(Severity::Effect, "lab")]),
            None
        );
        assert_eq!(of(&[problem(Severity::Effect, "edge")]).unwrap(), ["every RPC fails"]);
    }

    /// The start of a status survives a limit of its length, so the end must come within that limit.
    #[test]
    fn long_rejection_still_says_how_to_confirm() {
        let effects: Vec<String> = (0..9).map(|n| format!("{n} {}", "é".repeat(400))).collect();
        let text = rejection(&[finding("view-change", effects, false)]).unwrap();
        assert!(text.len() < 1024, "{}", text.len());
        assert!(
            text.ends_with("pass `--confirm view-change` (HTTP: confirm=view-change)"),
            "{text}"
        );
    }
}
