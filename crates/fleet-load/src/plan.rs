//! The plan of a load test: the fleet, its resources, and the phases.

use serde::{Deserialize, Serialize};

/// The scenarios that are part of the program, by name.
pub const SCENARIOS: [(&str, &str); 6] = [
    ("steady", include_str!("../scenarios/steady.toml")),
    ("deploy", include_str!("../scenarios/deploy.toml")),
    ("churn", include_str!("../scenarios/churn.toml")),
    ("storm", include_str!("../scenarios/storm.toml")),
    ("bursts", include_str!("../scenarios/bursts.toml")),
    ("growth", include_str!("../scenarios/growth.toml")),
];

/// A load test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Plan {
    /// The number of clients, each with a stream and a node of its own.
    pub clients: usize,
    /// The number of streams that share a connection.
    pub streams_per_connection: usize,
    /// The protocol variant.
    pub protocol: Protocol,
    /// The client that the nodes describe.
    pub client: ClientKind,
    /// The IDs of the nodes, in which `{n}` stands for the number of the client. Empty for IDs of the run's own, which a
    /// writer needs that gives the resources only to these nodes.
    pub node_id: String,
    /// The types to which a client subscribes, as aliases such as `cds` or as type URLs.
    pub types: Vec<String>,
    /// The names to which a client subscribes; empty for a wildcard.
    pub names: Vec<String>,
    /// The regions of the nodes, in turn.
    pub regions: Vec<String>,
    /// Whether a delta client that reconnects lists the versions that it has.
    pub resume: bool,
    /// The share of clients that read slowly, from 0 to 1.
    pub slow: f64,
    /// The share of clients that acknowledge a second late.
    pub late: f64,
    /// The share of clients that reject all changes.
    pub rejecting: f64,
    /// The number of resources of the test.
    pub resources: usize,
    /// The approximate size of a resource in bytes.
    pub resource_bytes: usize,
    /// The seconds for which clients may take to receive the last write.
    pub patience: f64,
    /// The phases, in order.
    pub phases: Vec<Phase>,
}

/// A part of a load test with a constant load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Phase {
    /// The name in the report.
    pub name: String,
    /// The duration in seconds.
    pub seconds: f64,
    /// The writes that start per second, whether or not earlier ones have ended.
    pub writes_per_second: f64,
    /// The resources that a write changes.
    pub changes: usize,
    /// The connections that end and reconnect per second.
    pub reconnects_per_second: f64,
    /// The share of connections that reconnect when the phase begins.
    pub reconnect: f64,
    /// A shell command that runs when the phase begins.
    pub command: Option<String>,
}

/// A protocol variant of an aggregated stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// The delta variant.
    Delta,
    /// The state-of-the-world variant.
    Sotw,
}

/// A kind of client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientKind {
    /// Envoy 1.40.
    Envoy,
    /// grpc-go 1.85.
    Grpc,
}

/// The way in which a client treats responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Habit {
    /// Reads and acknowledges at once.
    Ordinary,
    /// Pauses before it reads more.
    Slow,
    /// Acknowledges a second late.
    Late,
    /// Rejects every response after its first state.
    Rejecting,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            clients: 100,
            streams_per_connection: 1,
            protocol: Protocol::Delta,
            client: ClientKind::Envoy,
            node_id: String::new(),
            types: vec!["cds".to_owned()],
            names: Vec::new(),
            regions: Vec::new(),
            resume: true,
            slow: 0.0,
            late: 0.0,
            rejecting: 0.0,
            resources: 100,
            resource_bytes: 1000,
            patience: 10.0,
            phases: vec![Phase::default()],
        }
    }
}

impl Default for Phase {
    fn default() -> Self {
        Self {
            name: "steady".to_owned(),
            seconds: 10.0,
            writes_per_second: 10.0,
            changes: 1,
            reconnects_per_second: 0.0,
            reconnect: 0.0,
            command: None,
        }
    }
}

impl Plan {
    /// Reads a scenario in TOML.
    ///
    /// # Errors
    /// Fails if the text is no plan, with the line and the reason.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())
    }

    /// Checks all values.
    ///
    /// # Errors
    /// Fails with the key of the first wrong value, and what it must be.
    pub fn check(&self) -> Result<(), String> {
        at_least("clients", self.clients, 1)?;
        at_least("streams_per_connection", self.streams_per_connection, 1)?;
        at_least("phases", self.phases.len(), 1)?;
        at_least("types", self.types.len(), 1)?;
        for (key, share) in
            [("slow", self.slow), ("late", self.late), ("rejecting", self.rejecting)]
        {
            within(key, share, 0.0, 1.0)?;
        }
        if self.slow + self.late + self.rejecting > 1.0 {
            return Err("slow, late and rejecting have a sum over 1".to_owned());
        }
        within("patience", self.patience, 0.1, 3600.0)?;
        if self.resources > RESOURCES_MAX {
            return Err(format!(
                "resources is {}; it must be at most {RESOURCES_MAX}",
                self.resources
            ));
        }
        if self.resource_bytes > RESOURCE_BYTES_MAX {
            let n = self.resource_bytes;
            return Err(format!("resource_bytes is {n}; it must be at most {RESOURCE_BYTES_MAX}"));
        }
        for (n, phase) in self.phases.iter().enumerate() {
            phase.check(self.resources).map_err(|error| format!("phases[{n}].{error}"))?;
        }
        Ok(())
    }

    /// Returns the way in which client number `n` treats responses.
    pub(crate) fn habit(&self, n: usize) -> Habit {
        // A low-discrepancy sequence, so that each share is spread evenly over the clients.
        let at = (to_f64(n) * 0.618_033_988_749_895).fract();
        if at < self.slow {
            Habit::Slow
        } else if at < self.slow + self.late {
            Habit::Late
        } else if at < self.slow + self.late + self.rejecting {
            Habit::Rejecting
        } else {
            Habit::Ordinary
        }
    }

    /// Returns the number of writes of all phases.
    pub(crate) fn has_writes(&self) -> bool {
        self.phases.iter().any(|phase| phase.writes_per_second > 0.0)
    }
}

/// The maximum number of resources.
const RESOURCES_MAX: usize = 1_000_000;
/// The maximum size of a resource.
const RESOURCE_BYTES_MAX: usize = 1 << 20;

impl Phase {
    fn check(&self, resources: usize) -> Result<(), String> {
        within("seconds", self.seconds, 0.1, 86_400.0)?;
        within("writes_per_second", self.writes_per_second, 0.0, 1e5)?;
        within("reconnects_per_second", self.reconnects_per_second, 0.0, 1e5)?;
        within("reconnect", self.reconnect, 0.0, 1.0)?;
        at_least("changes", self.changes, 1)?;
        if self.writes_per_second > 0.0 && self.changes > resources {
            let changes = self.changes;
            return Err(format!("changes is {changes}, but the test has {resources} resources"));
        }
        Ok(())
    }
}

fn at_least(key: &str, value: usize, min: usize) -> Result<(), String> {
    if value < min { Err(format!("{key} is {value}; it must be at least {min}")) } else { Ok(()) }
}

fn within(key: &str, value: f64, min: f64, max: f64) -> Result<(), String> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(format!("{key} is {value}; it must be from {min} to {max}"))
    }
}

/// Converts a count to a float, exactly up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53, and rounded after that")]
pub(crate) fn to_f64(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_of_the_program_are_valid() {
        for (name, text) in SCENARIOS {
            let plan = Plan::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(plan.check(), Ok(()), "{name}");
        }
    }

    #[test]
    fn wrong_plan_is_refused_with_key_and_reason() {
        let error = Plan::parse("clients = 5\ncleints = 6\n").unwrap_err();
        assert!(error.contains("line 2") && error.contains("cleints"), "{error}");
        let wrong = |text: &str| Plan::parse(text).unwrap().check().unwrap_err();
        assert_eq!(wrong("clients = 0"), "clients is 0; it must be at least 1");
        assert_eq!(wrong("slow = 1.5"), "slow is 1.5; it must be from 0 to 1");
        assert_eq!(wrong("slow = 0.6\nlate = 0.6"), "slow, late and rejecting have a sum over 1");
        assert_eq!(
            wrong("resources = 2\n[[phases]]\n[[phases]]\nchanges = 3"),
            "phases[1].changes is 3, but the test has 2 resources"
        );
        assert_eq!(
            wrong("[[phases]]\nseconds = nan"),
            "phases[0].seconds is NaN; it must be from 0.1 to 86400"
        );
    }

    #[test]
    fn shares_of_habits_are_met() {
        let plan = Plan { slow: 0.1, late: 0.2, rejecting: 0.3, ..Plan::default() };
        let n = |habit| (0..1000).filter(|n| plan.habit(*n) == habit).count();
        for (habit, expected) in [
            (Habit::Slow, 100),
            (Habit::Late, 200),
            (Habit::Rejecting, 300),
            (Habit::Ordinary, 400),
        ] {
            assert!(n(habit).abs_diff(expected) <= 3, "{habit:?}: {}", n(habit));
        }
        assert!((0..1000).all(|n| Plan::default().habit(n) == Habit::Ordinary));
    }
}
