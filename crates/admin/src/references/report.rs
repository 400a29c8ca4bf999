//! The text of the findings about references.

use std::collections::BTreeMap;

use chancery_admission::{Problem, ValidationMode};
use chancery_model::{ResourceKey, ScopeName, types};

use super::{
    check::{Cause, Checked, Dangling, VIEWS_SHOWN_MAX},
    reference_view::label,
};

/// The maximum number of referrers in the finding about a removed resource.
const REFERRERS_SHOWN_MAX: usize = 3;
/// The maximum number of listed findings.
const FINDINGS_MAX: usize = 1000;
/// The IDs of the findings.
const MISSING: &str = "reference.missing";
const REMOVED: &str = "reference.removed";
const UNCHECKED: &str = "reference.unchecked";

/// A finding about the references of a write, or about the addresses of its listeners.
#[derive(Debug)]
pub(crate) struct Finding {
    /// The published resource that has the problem, if there is one.
    pub(crate) subject: Option<(ScopeName, ResourceKey)>,
    pub(crate) problem: Problem,
}

/// The findings about the references of a write.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// The findings that refuse the write.
    pub(crate) refusing: Vec<Finding>,
    pub(crate) warnings: Vec<Finding>,
}

/// Converts dangling references to findings. All references to one removed resource are one finding. The nodes of
/// `unknown_replicas` are not known.
pub(crate) fn findings(checked: Checked, unknown_replicas: &[u64]) -> Findings {
    let mut removed: BTreeMap<ResourceKey, Vec<Dangling>> = BTreeMap::new();
    let mut findings = Findings::default();
    for (mode, n) in checked.unchecked {
        findings.add(mode, unchecked(n));
    }
    for one in checked.dangling {
        match one.suspect.cause {
            Cause::Published => findings.add(one.suspect.mode, missing(&one, unknown_replicas)),
            Cause::Removed => removed.entry(one.suspect.target.clone()).or_default().push(one),
        }
    }
    for (target, referrers) in removed {
        let strictest = referrers.iter().map(|one| one.suspect.mode).min();
        let mode = strictest.unwrap_or_default();
        findings.add(mode, removal(&target, &referrers, unknown_replicas));
    }
    findings
}

/// Cuts an ordered list of findings. The last one then has the number of the others.
pub(crate) fn shorten(findings: &mut Vec<Problem>) {
    let n_more = findings.len().saturating_sub(FINDINGS_MAX);
    findings.truncate(FINDINGS_MAX);
    if let Some(last) = findings.last_mut().filter(|_| n_more > 0) {
        last.rule.push_str(&format!("; {} not listed", were(n_more, "further finding")));
    }
}

impl Findings {
    /// Returns all findings of both.
    pub(crate) fn and(mut self, others: Self) -> Self {
        self.refusing.extend(others.refusing);
        self.warnings.extend(others.warnings);
        self
    }

    pub(super) fn add(&mut self, mode: ValidationMode, finding: Finding) {
        match mode {
            ValidationMode::Enforce => self.refusing.push(finding),
            ValidationMode::Warn | ValidationMode::Off => self.warnings.push(finding),
        }
    }
}

fn unchecked(n: usize) -> Finding {
    let references = were(n, "reference");
    let problem = Problem {
        rule: format!("{references} not checked, because the transaction has too many"),
        id: UNCHECKED.to_owned(),
        fix: "publish the resources in several transactions".to_owned(),
        ..Problem::default()
    };
    Finding { subject: None, problem }
}

fn were(n: usize, what: &str) -> String {
    format!("{} {}", count(n, what), if n == 1 { "was" } else { "were" })
}

fn missing(dangling: &Dangling, unknown_replicas: &[u64]) -> Finding {
    let suspect = &dangling.suspect;
    let target = &suspect.target;
    let views = used_views(&dangling.views, dangling.n_views, unknown_replicas);
    let problem = Problem {
        resource: Some(label(&suspect.referrer)),
        field_path: Some(suspect.field.clone()),
        rule: format!("refers to {}, which is missing in {views}", label(target)),
        id: MISSING.to_owned(),
        fix: match target.type_url.as_str() {
            types::CLUSTER => "publish it, unless the bootstrap of the nodes defines it".to_owned(),
            _ => "publish it".to_owned(),
        },
        ..Problem::default()
    };
    Finding { subject: Some((suspect.scope.clone(), suspect.referrer.clone())), problem }
}

fn removal(target: &ResourceKey, referrers: &[Dangling], unknown_replicas: &[u64]) -> Finding {
    let n = referrers.len();
    let mut shown: Vec<String> = referrers
        .iter()
        .take(REFERRERS_SHOWN_MAX)
        .map(|one| label(&one.suspect.referrer))
        .collect();
    if n > shown.len() {
        shown.push(format!("and {} more", n - shown.len()));
    }
    let references = if n == 1 { "reference" } else { "references" };
    // The check keeps at most three views of each referrer, and counts the others.
    let all: BTreeMap<_, _> = referrers.iter().flat_map(|one| one.views.iter().cloned()).collect();
    let most = referrers.iter().map(|one| one.n_views).max().unwrap_or_default();
    let n_views = most.max(all.len());
    let first: Vec<_> = all.into_iter().take(VIEWS_SHOWN_MAX).collect();
    let views = used_views(&first, n_views, unknown_replicas);
    let problem = Problem {
        resource: Some(label(target)),
        rule: format!(
            "its removal leaves {n} dangling {references} from {}, in {views}",
            shown.join(", ")
        ),
        id: REMOVED.to_owned(),
        fix: "remove the references first".to_owned(),
        ..Problem::default()
    };
    Finding { subject: None, problem }
}

/// Returns the first of `n` views with a dangling reference, and the replicas whose nodes are not known.
fn used_views(first: &[(Vec<ScopeName>, usize)], n: usize, unknown_replicas: &[u64]) -> String {
    let not_asked = match unknown_replicas {
        [] => String::new(),
        [one] => format!("; the nodes of replica {one} were not asked"),
        [others @ .., last] => {
            let others: Vec<String> = others.iter().map(ToString::to_string).collect();
            format!("; the nodes of replicas {} and {last} were not asked", others.join(", "))
        }
    };
    format!("{}{not_asked}", views(first, n))
}

/// Returns the first of `n` views: `1 view: edge (2 nodes)`. Other replicas may have nodes of a view.
pub(super) fn views(first: &[(Vec<ScopeName>, usize)], n: usize) -> String {
    let mut shown: Vec<String> = Vec::new();
    for (scopes, n_nodes) in first {
        let scopes: Vec<&str> = scopes.iter().take(5).map(|scope| scope.as_str()).collect();
        let nodes = match *n_nodes {
            0 => "no known node".to_owned(),
            n => count(n, "node"),
        };
        shown.push(format!("{} ({nodes})", scopes.join("+")));
    }
    if n > shown.len() {
        shown.push(format!("and {} more", n - shown.len()));
    }
    format!("{}: {}", count(n, "view"), shown.join(", "))
}

fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
