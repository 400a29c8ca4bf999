//! The findings of validation in one resource, with their field paths.

use std::{borrow::Cow, fmt::Write};

use super::semantic::newer::of_rule;
use crate::{
    clients::{Clients, ENVOY},
    node::named,
    problem::{Fault, Severity, suggestion},
    profile::Audience,
};

/// The maximum number of findings that are kept of one resource.
pub(crate) const FINDINGS_MAX: usize = 50;

/// A step from a message to a part of it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step<'a> {
    Field(&'a str),
    Index(usize),
    Key(&'a str),
}

/// Collects findings. The path leads to the message that is being checked.
pub(crate) struct Findings<'a> {
    audience: Audience,
    /// The versions of Envoy to which the rules of the part that is being checked apply.
    clients: Clients,
    path: Vec<Step<'a>>,
    faults: Vec<Fault>,
    /// Clients ignore the part that is being checked.
    is_unused: bool,
    /// Envoy does not check the rules of the proto files in the part that is being checked.
    is_unchecked: bool,
}

impl Default for Findings<'_> {
    fn default() -> Self {
        Self::new(Audience::unknown())
    }
}

impl<'a> Findings<'a> {
    /// Returns no findings, for an audience.
    pub(crate) fn new(audience: Audience) -> Self {
        Self {
            audience,
            clients: ENVOY,
            path: Vec::new(),
            faults: Vec::new(),
            is_unused: false,
            is_unchecked: false,
        }
    }

    /// Returns no findings, for a part that is checked on its own.
    pub(crate) fn inner<'b>(&self) -> Findings<'b> {
        Findings { clients: self.clients, ..Findings::new(self.audience) }
    }

    /// Returns whether one of these versions of Envoy sees the resource.
    pub(crate) fn has(&self, clients: Clients) -> bool {
        (self.clients & self.audience.seen()).intersects(clients)
    }

    /// Returns whether fields with these names lead in this order to the message that is being checked.
    fn is_at(&self, names: &[&str]) -> bool {
        let mut steps = self.path.iter();
        names.iter().all(|name| steps.any(|step| matches!(step, Step::Field(own) if own == name)))
    }

    /// Runs a check whose rules apply only to some versions of Envoy.
    pub(crate) fn only<T>(&mut self, clients: Clients, check: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.clients;
        self.clients = outer & clients;
        let result = check(self);
        self.clients = outer;
        result
    }

    /// Runs a check of a part.
    pub(crate) fn at<T>(&mut self, step: Step<'a>, check: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(step);
        let result = check(self);
        self.path.pop();
        result
    }

    /// Returns whether the message that is being checked is the resource itself.
    pub(crate) fn is_resource(&self) -> bool {
        self.path.is_empty()
    }

    /// Returns whether a field with a name leads to the message that is being checked.
    pub(crate) fn is_within(&self, name: &str) -> bool {
        self.path.iter().any(|step| matches!(step, Step::Field(field) if *field == name))
    }

    /// Returns whether the message that is being checked is in a field of the resource itself.
    pub(crate) fn is_below(&self, name: &str) -> bool {
        matches!(self.path.first(), Some(Step::Field(field)) if *field == name)
    }

    /// Runs a check of a field.
    pub(crate) fn field<T>(&mut self, name: &'a str, check: impl FnOnce(&mut Self) -> T) -> T {
        self.at(Step::Field(name), check)
    }

    /// Runs a check of an item of a list.
    pub(crate) fn item<T>(
        &mut self,
        list: &'a str,
        index: usize,
        check: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.field(list, |findings| findings.at(Step::Index(index), check))
    }

    /// Runs a check of a part that clients may ignore. Then its findings are warnings.
    pub(crate) fn unused<T>(&mut self, is_unused: bool, check: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.is_unused;
        self.is_unused |= is_unused;
        let result = check(self);
        self.is_unused = outer;
        result
    }

    /// Runs a check of a part whose rules of the proto files Envoy may ignore. Then violations of them
    /// are warnings. `None` keeps the setting of the part around it.
    pub(crate) fn unchecked<T>(
        &mut self,
        is_unchecked: Option<bool>,
        check: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let inner = is_unchecked.unwrap_or(self.is_unchecked);
        let outer = std::mem::replace(&mut self.is_unchecked, inner);
        let result = check(self);
        self.is_unchecked = outer;
        result
    }

    /// Records a violation of a rule of the proto files.
    pub(crate) fn violate(&mut self, id: impl Into<Cow<'static, str>>, rule: impl Into<String>) {
        self.violate_with_fix(id, rule, String::new());
    }

    /// Records a violation of a rule of the proto files, and what to do about it.
    pub(crate) fn violate_with_fix(
        &mut self,
        id: impl Into<Cow<'static, str>>,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) {
        let (severity, mut rule) = (Severity::Error, rule.into());
        if !self.is_unchecked {
            return self.add(severity, id.into(), rule, fix.into());
        }
        rule.push_str("; Envoy does not check this rule here");
        self.add(Severity::Warning, id.into(), rule, fix.into());
    }

    /// Runs a check of an entry of a map.
    pub(crate) fn key<T>(&mut self, key: &'a str, check: impl FnOnce(&mut Self) -> T) -> T {
        self.at(Step::Key(key), check)
    }

    /// Records a violation of a rule.
    pub(crate) fn refuse(&mut self, id: impl Into<Cow<'static, str>>, rule: impl Into<String>) {
        self.add(Severity::Error, id.into(), rule.into(), String::new());
    }

    /// Records a violation of a rule, and what to do about it.
    pub(crate) fn refuse_with_fix(
        &mut self,
        id: impl Into<Cow<'static, str>>,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.add(Severity::Error, id.into(), rule.into(), fix.into());
    }

    /// Records something that the author should know, and that does not refuse the resource.
    pub(crate) fn warn(&mut self, id: impl Into<Cow<'static, str>>, rule: impl Into<String>) {
        self.add(Severity::Warning, id.into(), rule.into(), String::new());
    }

    /// Records the findings of a part that was checked on its own.
    pub(crate) fn adopt(&mut self, faults: impl Iterator<Item = Fault>) {
        let path = self.path();
        for fault in faults {
            let has_no_dot =
                path.is_empty() || fault.path.is_empty() || fault.path.starts_with('[');
            let dot = if has_no_dot { "" } else { "." };
            let path = format!("{path}{dot}{}", fault.path);
            let severity = if self.is_unused { Severity::Warning } else { fault.severity };
            if has_space(&mut self.faults, severity) {
                self.faults.push(Fault { path, severity, ..fault });
            }
        }
    }

    /// Returns the known word that is closest to `word`, if any is close and another finding is kept. The search
    /// takes O(all letters of the known words).
    pub(crate) fn suggestion<'k>(
        &self,
        word: &str,
        known: impl IntoIterator<Item = &'k str>,
    ) -> Option<&'k str> {
        let errors = self.faults.iter().filter(|fault| fault.severity == Severity::Error);
        (errors.count() < FINDINGS_MAX).then(|| suggestion(word, known)).flatten()
    }

    fn add(&mut self, severity: Severity, id: Cow<'static, str>, rule: String, fix: String) {
        let clients = self.clients & of_rule(&id, |names| self.is_at(names));
        if !self.has(clients) {
            return;
        }
        let is_rejection = !self.is_unused && severity == Severity::Error;
        let is_refused = !self.is_unused && clients.intersects(self.audience.refusing());
        let severity = if is_refused { severity } else { Severity::Warning };
        if has_space(&mut self.faults, severity) {
            let path = self.path();
            let rule = if clients == ENVOY {
                rule
            } else {
                format!("{rule}; {} would reject this resource", clients.names(clients).concat())
            };
            // A warning by itself does not say that a client rejects the resource.
            let clients = clients.when(is_rejection);
            self.faults.push(Fault { path, rule, id, fix, severity, clients });
        }
    }

    fn path(&self) -> String {
        path_of(&self.path)
    }

    /// Returns the findings.
    pub(crate) fn into_faults(self) -> Vec<Fault> {
        self.faults
    }
}

/// Makes space for a finding, and returns whether there is any. An error replaces the last warning, because
/// warnings must not hide an error, nor an effect.
pub(super) fn has_space(faults: &mut Vec<Fault>, severity: Severity) -> bool {
    if faults.len() < FINDINGS_MAX {
        return true;
    }
    let last_warning = faults.iter().rposition(|fault| fault.severity > severity);
    match last_warning {
        Some(at) => {
            faults.remove(at);
            true
        }
        None => false,
    }
}

/// Returns the text of a path, such as `filters[0].name`.
pub(crate) fn path_of(steps: &[Step<'_>]) -> String {
    let mut path = String::new();
    for step in steps {
        let dot = if path.is_empty() { "" } else { "." };
        // Writing to a string cannot fail.
        let _ = match step {
            Step::Field(name) => write!(path, "{dot}{name}"),
            Step::Index(index) => write!(path, "[{index}]"),
            Step::Key(key) => write!(path, "[{}]", named(key)),
        };
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adopted_finding_of_the_whole_part_has_the_path_of_the_part() {
        let mut findings = Findings::default();
        let whole = Fault::warning("a", "is unknown");
        findings.field("body", |findings| findings.adopt(std::iter::once(whole)));
        assert_eq!(findings.into_faults()[0].path, "body");
    }

    #[test]
    fn warnings_hide_no_error() {
        let mut findings = Findings::default();
        for n in 0..2 * FINDINGS_MAX {
            findings.warn("a", format!("warning {n}"));
        }
        for n in 0..FINDINGS_MAX + 1 {
            assert_eq!(findings.suggestion("ab", ["abc"]).is_some(), n < FINDINGS_MAX, "{n}");
            findings.refuse("b", format!("error {n}"));
        }
        let faults = findings.into_faults();
        assert_eq!(faults.len(), FINDINGS_MAX);
        assert!(faults.iter().all(|fault| fault.severity == Severity::Error));
        assert_eq!(faults[0].rule, "error 0");
    }
}
