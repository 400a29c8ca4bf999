//! A scenario: a fault, the alerts that it causes, and the step of the runbook.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::{super::monitor::Api, stage::Stage};
use crate::{proc, say::say};

/// The time within which an alert fires. A forecast of the disk needs three minutes of measurements.
const FIRES: Duration = Duration::from_secs(300);

/// The time within which an alert is resolved after the step of the runbook.
const LIMIT: Duration = Duration::from_secs(120);

/// The time within which an alert with a long window is resolved.
const LATE: Duration = Duration::from_secs(600);

/// A critical alert that a busy machine causes: no replica answers a scrape within a second. It has its own scenario.
const SLOW_SCRAPES: &str = "ChanceryAllReplicasGone";

/// Some clusters with the same settings, and what happens to them.
pub(super) struct Group {
    /// The value of the label `cluster`.
    pub(super) name: &'static str,
    /// Starts the cluster and its usual clients.
    pub(super) prepare: fn(&mut Stage) -> Result<()>,
    pub(super) scenarios: &'static [Scenario],
}

/// A fault and its end.
pub(super) struct Scenario {
    pub(super) alerts: &'static [Alert],
    /// The critical alerts that the fault also causes.
    pub(super) also: &'static [&'static str],
    /// Whether the fault exists since the start of the group, so that the alert may fire already.
    pub(super) is_early: bool,
    /// The fault, in words.
    pub(super) fault: &'static str,
    /// The step of the runbook, in words.
    pub(super) repair: &'static str,
    pub(super) inject: fn(&mut Stage) -> Result<()>,
    pub(super) recover: fn(&mut Stage) -> Result<()>,
}

/// An alert that fires.
pub(super) struct Alert {
    pub(super) name: &'static str,
    /// The labels that it has. `@N` stands for the admin address of the replica N.
    pub(super) labels: &'static [(&'static str, &'static str)],
    /// Whether other scenarios of the group run before it is resolved, because its window has minutes.
    pub(super) is_late: bool,
}

/// Returns an alert with labels.
pub(super) const fn alert(
    name: &'static str,
    labels: &'static [(&'static str, &'static str)],
) -> Alert {
    Alert { name, labels, is_late: false }
}

/// Returns an alert that is resolved long after the repair.
pub(super) const fn late(
    name: &'static str,
    labels: &'static [(&'static str, &'static str)],
) -> Alert {
    Alert { name, labels, is_late: true }
}

/// The times that a scenario has measured for an alert.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) alert: &'static str,
    pub(super) fired_after: Duration,
    pub(super) resolved_after: Duration,
}

/// The scenarios of a group in progress.
pub(super) struct Run<'a> {
    pub(super) group: &'a Group,
    pub(super) api: &'a Api,
    pub(super) stage: Stage,
    /// The alerts that still fire, with the times until they fired and since the repair.
    late: Vec<(&'static Alert, Duration, Instant)>,
    pub(super) shown: Vec<Shown>,
}

impl<'a> Run<'a> {
    pub(super) fn new(group: &'a Group, api: &'a Api, stage: Stage) -> Self {
        Self { group, api, stage, late: Vec::new(), shown: Vec::new() }
    }

    /// Runs a scenario.
    pub(super) fn scenario(&mut self, scenario: &'static Scenario) -> Result<()> {
        let names: Vec<&str> = scenario.alerts.iter().map(|alert| alert.name).collect();
        for alert in scenario.alerts.iter().filter(|_| !scenario.is_early) {
            proc::eventually(LIMIT, &format!("{} fires before its fault", alert.name), || {
                Ok((!self.is_firing(alert)?).then_some(()))
            })?;
        }
        let begun = Instant::now();
        say!("{}: {} ({})", self.group.name, scenario.fault, names.join(", "));
        let fired = self.fire(scenario, begun);
        say!("{}: {}", self.group.name, scenario.repair);
        // The fault ends in any case, because the other scenarios of the group follow.
        let repaired = (scenario.recover)(&mut self.stage).context("apply the step of the runbook");
        let (fired, ()) = (fired?, repaired?);
        let repaired = Instant::now();
        for (alert, fired_after) in scenario.alerts.iter().zip(fired) {
            if alert.is_late {
                self.late.push((alert, fired_after, repaired));
            } else {
                self.expect_resolved(alert, fired_after, repaired, LIMIT)?;
            }
        }
        for name in scenario.also {
            proc::eventually(LIMIT, &format!("{name} still fires after the repair"), || {
                Ok((!self.is_firing(&alert(name, &[]))?).then_some(()))
            })?;
        }
        let late = self.late.iter().map(|(alert, ..)| alert.name);
        let expected: Vec<&str> =
            names.into_iter().chain(scenario.also.iter().copied()).chain(late).collect();
        self.expect_no_other_critical_alert(begun, &expected)
    }

    /// Injects a fault, and returns the times until its alerts fired.
    fn fire(&mut self, scenario: &'static Scenario, begun: Instant) -> Result<Vec<Duration>> {
        (scenario.inject)(&mut self.stage).context("inject the fault")?;
        let fire = |alert: &Alert| -> Result<Duration> {
            self.expect_firing(alert)?;
            let time = begun.elapsed();
            say!("{}: {} fired after {} s", self.group.name, alert.name, time.as_secs());
            Ok(time)
        };
        scenario.alerts.iter().map(fire).collect()
    }

    /// Waits for the alerts with long windows.
    pub(super) fn finish(&mut self) -> Result<()> {
        for (alert, fired_after, repaired) in std::mem::take(&mut self.late) {
            self.expect_resolved(alert, fired_after, repaired, LATE)?;
        }
        Ok(())
    }

    fn expect_firing(&self, alert: &Alert) -> Result<()> {
        let begun = Instant::now();
        while !self.is_firing(alert)? {
            if begun.elapsed() > FIRES {
                let state = self.api.query(&format!("ALERTS{{alertname={:?}}}", alert.name))?;
                bail!("{} with {:?} does not fire: {state:?}", alert.name, alert.labels);
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    }

    fn expect_resolved(
        &mut self,
        alert: &Alert,
        fired_after: Duration,
        repaired: Instant,
        limit: Duration,
    ) -> Result<()> {
        proc::eventually(limit, &format!("{} still fires after its repair", alert.name), || {
            Ok((!self.is_firing(alert)?).then_some(()))
        })?;
        let resolved_after = repaired.elapsed();
        say!("{}: {} resolved after {} s", self.group.name, alert.name, resolved_after.as_secs());
        self.shown.push(Shown { alert: alert.name, fired_after, resolved_after });
        Ok(())
    }

    /// Returns whether an alert with these labels fires.
    fn is_firing(&self, alert: &Alert) -> Result<bool> {
        let answer = self.api.get("/api/v1/alerts")?;
        let alerts = answer["data"]["alerts"].as_array().context("there is no list of alerts")?;
        Ok(alerts
            .iter()
            .any(|found| found["state"] == "firing" && self.is(alert, &found["labels"])))
    }

    fn is(&self, alert: &Alert, labels: &Value) -> bool {
        let has = |(key, value): &(&str, &str)| {
            let replica = value.strip_prefix('@').and_then(|id| id.parse().ok());
            let value = replica.map_or((*value).to_owned(), |id| self.stage.cluster.admin(id));
            labels[*key] == value.as_str()
        };
        labels["alertname"] == alert.name
            && labels["cluster"] == self.group.name
            && alert.labels.iter().all(has)
    }

    /// Fails if a critical alert has fired since `begun` that is not `expected`.
    fn expect_no_other_critical_alert(&self, begun: Instant, expected: &[&str]) -> Result<()> {
        let seconds = begun.elapsed().as_secs() + 1;
        let name = self.group.name;
        let fired = self.api.query(&format!(
            "count by (alertname) (count_over_time(ALERTS{{severity=\"critical\",alertstate=\"firing\",cluster={name:?}}}[{seconds}s]))"
        ))?;
        for series in &fired {
            let alert = series["metric"]["alertname"].as_str().unwrap_or_default();
            let is_expected = expected.contains(&alert) || alert == SLOW_SCRAPES;
            ensure!(is_expected, "the critical alert {alert} fired, too");
        }
        Ok(())
    }
}
