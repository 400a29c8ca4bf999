//! The limit of records that anyone who reaches a port can cause. Without it, such records would displace all
//! others from the files.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use crate::{event::Event, event::Port, time};

/// The maximum number of records per second for each port, verb and reason.
const RECORDS_PER_SECOND: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// The numbers of records in the present second. All parts of a key are closed sets.
#[derive(Debug, Default)]
pub(crate) struct FloodLimit(HashMap<(Port, &'static str, Option<&'static str>), Count>);

#[derive(Debug, Default)]
struct Count {
    second: u64,
    n_recorded: u32,
    n_omitted: u64,
}

impl FloodLimit {
    /// Returns the event with the number of omitted ones before it; `None` if the event must be omitted.
    pub(crate) fn admit(&mut self, event: Event) -> Option<Event> {
        let second = time::millis(event.time) / u64::try_from(SECOND.as_millis()).unwrap_or(1);
        let key = (event.port, event.verb, event.decision.reason());
        let count = self.0.entry(key).or_default();
        if second != count.second {
            (count.second, count.n_recorded) = (second, 0);
        }
        if count.n_recorded == RECORDS_PER_SECOND {
            count.n_omitted += 1;
            return None;
        }
        count.n_recorded += 1;
        match std::mem::take(&mut count.n_omitted) {
            0 => Some(event),
            n_omitted => Some(event.detail("omitted_before", n_omitted)),
        }
    }

    /// Returns an event for each kind whose omitted events no later event has reported, if its second is over.
    pub(crate) fn overdue(&mut self, now: SystemTime) -> Vec<Event> {
        let second = time::millis(now) / 1000;
        let mut events = Vec::new();
        for ((port, verb, reason), count) in &mut self.0 {
            if count.n_omitted > 0 && second != count.second {
                let omitted = std::mem::take(&mut count.n_omitted);
                let event = Event::refused(*port, verb, None, reason.unwrap_or_default());
                events.push(event.detail("omitted_before", omitted));
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn flood_is_limited_by_reason_and_its_size_is_recorded() {
        let mut limit = FloodLimit::default();
        let at = |ms| UNIX_EPOCH + Duration::from_millis(ms);
        let event = |ms, reason| Event {
            time: at(ms),
            ..Event::refused(Port::Xds, "handshake", None, reason)
        };
        let n_admitted = (0..1000).filter_map(|_| limit.admit(event(5_999, "expired"))).count();
        assert_eq!(n_admitted, 10);
        assert!(limit.admit(event(5_999, "protocol")).is_some());
        let next = limit.admit(event(6_000, "expired")).unwrap();
        assert_eq!(next.details["omitted_before"], 990);
        assert!(limit.admit(event(6_001, "expired")).unwrap().details.is_empty());
        let n_admitted = (0..20).filter_map(|_| limit.admit(event(6_002, "expired"))).count();
        assert_eq!(n_admitted, 8);
        assert_eq!(limit.overdue(at(6_999)), []);
        let overdue = limit.overdue(at(7_000));
        assert_eq!(overdue.len(), 1);
        assert_eq!(overdue[0].details["omitted_before"], 12);
        assert_eq!(limit.overdue(at(8_000)), []);
    }
}
