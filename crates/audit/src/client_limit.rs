//! The limit of records about one client: a few records per identity, verb and reason within a time, with the number of
//! omitted ones. A client that is refused again and again does not displace the records of others.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use crate::{event::Event, event::Port};

/// The time within which the records of one kind are limited.
const INTERVAL: Duration = Duration::from_secs(60);
/// The maximum number of remembered kinds. Further ones are limited together with all others of their reason.
const KINDS_MAX: usize = 16_384;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Kind {
    port: Port,
    verb: &'static str,
    reason: Option<&'static str>,
    /// The identity, or the address of a client without one.
    client: String,
}

/// The maximum number of records of one kind within [`INTERVAL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allowance {
    /// One record: the client retries automatically.
    One,
    /// Ten records: people or programs start these operations, and each target matters.
    Several,
}

impl Allowance {
    fn records_max(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Several => 10,
        }
    }
}

/// The records of clients.
#[derive(Debug, Default)]
pub(crate) struct ClientLimit(HashMap<Kind, Seen>);

#[derive(Debug)]
struct Seen {
    /// The time of the first record of the interval.
    recorded: SystemTime,
    n_recorded: u32,
    n_omitted: u64,
    /// The last omitted event.
    last: Option<Box<Event>>,
}

impl ClientLimit {
    /// Returns the event; `None` if it must be omitted.
    pub(crate) fn admit(&mut self, event: Event, allowance: Allowance) -> Option<Event> {
        let client = match event.source {
            Some(source) if event.is_anonymous() => source.ip().to_canonical().to_string(),
            _ => event.principal.clone(),
        };
        let reason = event.decision.reason();
        let kind = Kind { port: event.port, verb: event.verb, reason, client };
        let is_room = self.0.len() < KINDS_MAX;
        match self.0.get_mut(&kind) {
            Some(seen) if seen.n_recorded < allowance.records_max() => {
                seen.n_recorded += 1;
                Some(event)
            }
            Some(seen) => {
                seen.n_omitted += 1;
                seen.last = Some(Box::new(event));
                None
            }
            None => {
                if is_room {
                    let recorded = event.time;
                    let seen = Seen { recorded, n_recorded: 1, n_omitted: 0, last: None };
                    self.0.insert(kind, seen);
                }
                Some(event)
            }
        }
    }

    /// Returns the last omitted event of each kind whose time is over, with the number of omitted ones, and forgets
    /// kinds without any.
    pub(crate) fn overdue(&mut self, now: SystemTime) -> Vec<Event> {
        let mut events = Vec::new();
        self.0.retain(|_, seen| {
            // A clock that went back must not keep a kind forever.
            let passed = now.duration_since(seen.recorded).unwrap_or(INTERVAL);
            if passed < INTERVAL {
                return true;
            }
            let Some(event) = seen.last.take() else { return false };
            // The record stands for this event, too.
            let n_before = std::mem::take(&mut seen.n_omitted) - 1;
            (seen.recorded, seen.n_recorded) = (now, 1);
            events.push(match n_before {
                0 => *event,
                n_before => event.detail("omitted_before", n_before),
            });
            true
        });
        events
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::event::Decision;

    fn event(seconds: u64, principal: &str, reason: &'static str) -> Event {
        let source = Some("192.0.2.1:7".parse().unwrap());
        Event {
            time: UNIX_EPOCH + Duration::from_secs(seconds),
            principal: principal.to_owned(),
            source,
            decision: Decision::Refused(reason),
            ..Event::new(Port::Xds, "stream")
        }
    }

    impl ClientLimit {
        fn admit_one(&mut self, event: Event) -> Option<Event> {
            self.admit(event, Allowance::One)
        }
    }

    #[test]
    fn client_causes_one_record_per_reason_and_the_rest_is_counted() {
        let mut limit = ClientLimit::default();
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert!(limit.admit_one(event(100, "token:a", "scope")).is_some());
        assert!(limit.admit_one(event(100, "token:a", "node")).is_some());
        assert!(limit.admit_one(event(100, "token:b", "scope")).is_some());
        for _ in 0..500 {
            assert_eq!(limit.admit_one(event(101, "token:a", "scope")), None);
        }
        assert_eq!(limit.overdue(at(159)), []);
        let overdue = limit.overdue(at(160));
        assert_eq!(overdue.len(), 1);
        assert_eq!(overdue[0].principal, "token:a");
        assert_eq!(overdue[0].details["omitted_before"], 499);
        assert_eq!(limit.admit_one(event(161, "token:a", "scope")), None);
        let overdue = limit.overdue(at(220));
        assert!(overdue.len() == 1 && overdue[0].details.is_empty(), "{overdue:?}");
        assert_eq!(limit.overdue(at(280)), []);
        assert!(limit.0.is_empty(), "idle kinds are forgotten");
    }

    #[test]
    fn operations_of_an_identity_cause_several_records_and_the_rest_is_counted() {
        let mut limit = ClientLimit::default();
        let mut admit = |event| limit.admit(event, Allowance::Several).is_some();
        let admitted = (0..500).filter(|_| admit(event(100, "token:a", "forbidden"))).count();
        assert_eq!(admitted, 10);
        assert!(admit(event(100, "token:b", "forbidden")), "others are not limited");
        let overdue = limit.overdue(UNIX_EPOCH + Duration::from_secs(160));
        assert_eq!(overdue.len(), 1);
        assert_eq!(overdue[0].details["omitted_before"], 489);
        // That record counts in the next interval.
        let mut admit = |event| limit.admit(event, Allowance::Several).is_some();
        let admitted = (0..500).filter(|_| admit(event(161, "token:a", "forbidden"))).count();
        assert_eq!(admitted, 9);
    }

    /// Addresses distinguish clients without an identity, and the memory is bounded.
    #[test]
    fn anonymous_clients_are_limited_by_address() {
        let mut limit = ClientLimit::default();
        assert!(limit.admit_one(event(1, "anonymous", "expired")).is_some());
        assert_eq!(limit.admit_one(event(1, "anonymous", "expired")), None);
        let other = Some("192.0.2.2:7".parse().unwrap());
        let other = Event { source: other, ..event(1, "anonymous", "expired") };
        assert!(limit.admit_one(other).is_some());
        for n in 0..2 * KINDS_MAX {
            assert!(limit.admit_one(event(1, &format!("token:{n}"), "scope")).is_some());
        }
        assert_eq!(limit.0.len(), KINDS_MAX);
    }
}
