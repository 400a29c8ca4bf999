//! Faults planted into real observations, all of which the checker must find.
//!
//! A check without findings proves little if the checker could miss faults. Every round therefore
//! corrupts its observation in each of these ways and checks it again.

use chancery_model::Revision;

use super::history::{History, Kind, Observation, Op, Seen, names};

/// A corrupted observation, and the kind of fault that the checker must find.
#[derive(Debug)]
pub(crate) struct Planted {
    pub(crate) what: &'static str,
    pub(crate) expected: Kind,
    pub(crate) observation: Observation,
}

/// Corrupts an observation without faults in all ways that the history allows.
pub(crate) fn plant(history: &History, now: &Observation) -> Vec<Planted> {
    let mut all = Vec::new();
    let mut add = |what, expected, spoil: &dyn Fn(&mut Observation) -> Option<()>| {
        let mut observation = now.clone();
        if spoil(&mut observation).is_some() {
            all.push(Planted { what, expected, observation });
        }
    };
    let base = history.base();
    add("an acknowledged write is lost", Kind::Lost, &|spoiled| lose_write(history, spoiled));
    add("a transaction is there in part", Kind::Partial, &|spoiled| tear(history, spoiled));
    add("a cluster is lost", Kind::Lost, &|spoiled| {
        let name = kept(history, now)?;
        spoiled.clusters.remove(&name).map(drop)
    });
    add("a version is changed", Kind::Changed, &|spoiled| {
        let seen = spoiled.clusters.get_mut(&kept(history, now)?)?;
        seen.version.tag ^= 1;
        Some(())
    });
    add("the bytes of a version are changed", Kind::Changed, &|spoiled| {
        spoiled.clusters.get_mut(&kept(history, now)?)?.body ^= 1;
        Some(())
    });
    add("a cluster appears", Kind::Phantom, &|spoiled| {
        let seen = spoiled.clusters.values().next()?.clone();
        spoiled.clusters.insert("nobody's".to_owned(), seen);
        Some(())
    });
    add("the revision goes back", Kind::RevisionBack, &|spoiled| {
        spoiled.revision = history.revision_min().checked_sub(1)?;
        Some(())
    });
    add("a write is applied twice", Kind::RevisionCount, &|spoiled| {
        spoiled.revision += 1;
        Some(())
    });
    add("the cluster is another one", Kind::Incarnation, &|spoiled| {
        spoiled.incarnation = format!("not {}", base.incarnation);
        Some(())
    });
    all
}

/// Returns a cluster that no writer changes.
fn kept(history: &History, now: &Observation) -> Option<String> {
    let written: Vec<String> = (0..history.reports().len()).flat_map(names).collect();
    now.clusters.keys().find(|name| !written.contains(name)).cloned()
}

/// Resets the clusters of a writer to their state before its acknowledged writes.
fn lose_write(history: &History, spoiled: &mut Observation) -> Option<()> {
    let (writer, _) =
        history.reports().iter().enumerate().find(|(_, report)| !report.acked.is_empty())?;
    for name in names(writer) {
        match history.base().clusters.get(&name) {
            Some(seen) => spoiled.clusters.insert(name, seen.clone()),
            None => spoiled.clusters.remove(&name),
        };
    }
    Some(())
}

/// Applies one cluster of a write that was in flight and did not take effect.
fn tear(history: &History, spoiled: &mut Observation) -> Option<()> {
    history.reports().iter().enumerate().find_map(|(writer, report)| {
        let Some(Op::Put { value }) = &report.in_flight else { return None };
        let [a, _, c] = names(writer);
        if spoiled.clusters.get(&c)?.value == *value {
            return None;
        }
        let mut version = spoiled.clusters.get(&c)?.version;
        version.revision = Revision(spoiled.revision);
        spoiled.clusters.insert(a, Seen { value: value.clone(), version, body: 1 });
        Some(())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use chancery_model::Version;

    use super::{
        super::history::{Acked, Report},
        *,
    };

    /// Every corruption is possible here, and every one is found.
    #[test]
    fn every_planted_fault_is_found() {
        let seen = |value: &str, revision| Seen {
            value: value.to_owned(),
            version: Version { revision: Revision(revision), tag: 3 },
            body: 5,
        };
        let observation = |revision, first: &str, at| {
            let mut clusters: BTreeMap<_, _> = [("kept".to_owned(), seen("k", 1))].into();
            clusters.extend(names(0).map(|name| (name, seen(first, at))));
            clusters.extend(names(1).map(|name| (name, seen("old", 1))));
            Observation { revision, incarnation: "x".to_owned(), clusters }
        };
        let put = |value: &str| Op::Put { value: value.to_owned() };
        let mut history = History::new(observation(2, "old", 2), 2);
        let acked = Acked { op: put("new"), revision: 3, versions: BTreeMap::new() };
        let reports = vec![
            Report { acked: vec![acked], in_flight: None },
            Report { acked: vec![], in_flight: Some(put("never")) },
        ];
        history.record(reports, vec![]);
        let now = observation(3, "new", 3);
        assert_eq!(history.check(&now).faults, []);
        let planted = plant(&history, &now);
        assert_eq!(planted.len(), 9);
        for Planted { what, expected, observation } in planted {
            let faults = history.check(&observation).faults;
            assert!(faults.iter().any(|fault| fault.kind == expected), "{what}: {faults:?}");
        }
    }
}
