//! The section `[guards]`: the guards against writes that take down nodes.

use std::collections::BTreeSet;

use chancery_admin::{ALL_GUARDS, GUARD_NAMES, GuardSettings};
use chancery_model::ScopeName;
use toml::Value;

use super::{
    bounds::{Bounds, GIB, KIB, bytes, count},
    section::section,
    units::ByteSize,
};

section! {
    /// The section `[guards]`.
    pub struct Guards {
        let guards = GuardSettings::default();

        /// The guards that this replica does not apply: mass-deletion, empty-endpoints,
        /// cluster-in-use, view-change, sotw-size, unasked, effect, or all. Guards reject writes that
        /// may take down connected nodes, unless the write confirms them (--confirm).
        off: Vec<String> = guards.off;
        /// mass-deletion: the maximum share of the resources of one type in the view of a node that
        /// a write may delete, in percent.
        deletion_percent: u32 = guards.deletion_percent, count(1, 100);
        /// mass-deletion: in a view with fewer resources of the type, a write may delete any share.
        deletion_resources_min: usize = guards.deletion_resources_min, count(1, 100_000_000);
        /// sotw-size: the maximum size of a SotW response with all resources of a type. gRPC
        /// clients accept 4 MiB by default.
        sotw_bytes_max: ByteSize = ByteSize::new(guards.sotw_bytes_max), bytes(64 * KIB, GIB);
        /// The settings of scopes that differ, as SCOPE=KEY:VALUE, with the keys of this section:
        /// edge=deletion_percent:10, lab=off:mass-deletion.
        scopes: Vec<String>;
    }
}

/// The guards that concern assignments or replicas, which belong to no scope.
const OF_NO_SCOPE: [&str; 2] = ["view-change", "unasked"];

impl Guards {
    /// Returns the key and the rule of each value that is not valid.
    pub(crate) fn rules(&self) -> Vec<(&'static str, String)> {
        let is_guard = |name: &&String| *name == ALL_GUARDS || GUARD_NAMES.contains(&name.as_str());
        let unknown = self.off.iter().filter(|name| !is_guard(name)).map(|name| {
            let known = GUARD_NAMES.join(", ");
            ("off", format!("{name:?} must be one of {known}, or all"))
        });
        let mut settings = self.of_server();
        let entries = self.scopes.iter().filter_map(|entry| {
            entry_of_scope(entry, &mut settings).err().map(|error| ("scopes", error))
        });
        let mut seen = BTreeSet::new();
        let repeated = self.scopes.iter().filter_map(|entry| {
            let (scope, value) = entry.rsplit_once('=')?;
            let (key, _) = value.split_once(':')?;
            // Each value of `off` adds a guard.
            let key = if key == "off" { value } else { key };
            let is_new = seen.insert((scope, key));
            (!is_new)
                .then(|| ("scopes", format!("{entry:?}: {key} of the scope {scope:?} is repeated")))
        });
        unknown.chain(entries).chain(repeated).collect()
    }

    /// Returns the thresholds. The rules of the configuration exclude values that are not valid.
    pub fn settings(&self) -> GuardSettings {
        let mut settings = self.of_server();
        for entry in &self.scopes {
            // An entry that is not valid changes nothing.
            let _ = entry_of_scope(entry, &mut settings);
        }
        settings
    }

    fn of_server(&self) -> GuardSettings {
        GuardSettings {
            off: self.off.clone(),
            deletion_percent: self.deletion_percent,
            deletion_resources_min: self.deletion_resources_min,
            sotw_bytes_max: self.sotw_bytes_max.bytes(),
            ..GuardSettings::default()
        }
    }
}

/// Reads an entry `SCOPE=KEY:VALUE` and adds it to the settings of the scope.
fn entry_of_scope(entry: &str, settings: &mut GuardSettings) -> Result<(), String> {
    let form = || format!("{entry:?} is not SCOPE=KEY:VALUE");
    let (scope, value) = entry.rsplit_once('=').ok_or_else(form)?;
    let (key, value) = value.split_once(':').ok_or_else(form)?;
    let scope = ScopeName::new(scope).map_err(|error| format!("{entry:?}: {error}"))?;
    let of_server = GuardSettings { scopes: Default::default(), ..settings.clone() };
    let own = settings.scopes.entry(scope).or_insert(of_server);
    let rule = |rule: &str| format!("{entry:?}: {key} must be {rule}");
    let bounds = Guards::KEYS.iter().find(|known| known.name == key).map(|key| &key.bounds);
    let out_of_range = || rule(&bounds.and_then(Bounds::range).unwrap_or_default());
    let quantity = value.parse().map_or_else(|_| Value::from(value), Value::Integer);
    if bounds.is_some_and(|bounds| !bounds.allow(&quantity)) {
        return Err(out_of_range());
    }
    match key {
        "off" => {
            let names = GUARD_NAMES.into_iter().filter(|name| !OF_NO_SCOPE.contains(name));
            if value != ALL_GUARDS && !names.clone().any(|name| name == value) {
                let known: Vec<&str> = names.collect();
                return Err(rule(&format!("one of {}, or all", known.join(", "))));
            }
            own.off.push(value.to_owned());
        }
        "deletion_percent" => {
            own.deletion_percent = value.parse().map_err(|_| out_of_range())?;
        }
        "deletion_resources_min" => {
            own.deletion_resources_min = value.parse().map_err(|_| out_of_range())?;
        }
        "sotw_bytes_max" => {
            let size: ByteSize = value.parse().map_err(|_| out_of_range())?;
            own.sotw_bytes_max = size.bytes();
        }
        _ => {
            let known = Guards::KEYS.iter().map(|key| key.name).filter(|name| *name != "scopes");
            let known = known.collect::<Vec<_>>().join(", ");
            return Err(format!("{entry:?}: {key:?} must be one of {known}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scope_has_its_own_thresholds_and_the_others_of_the_server() {
        let entries = [
            "edge=deletion_percent:10",
            "edge=sotw_bytes_max:8MiB",
            "lab=off:mass-deletion",
            "lab=off:sotw-size",
        ];
        let scopes = entries.map(str::to_owned).to_vec();
        let section = Guards { deletion_resources_min: 7, scopes, ..Guards::default() };
        assert_eq!(section.rules(), []);
        let settings = section.settings();
        let of = |name| &settings.scopes[&ScopeName::new(name).unwrap()];
        assert_eq!((of("edge").deletion_percent, of("edge").deletion_resources_min), (10, 7));
        assert_eq!((of("edge").sotw_bytes_max, of("lab").deletion_percent), (8 << 20, 30));
        assert_eq!(of("lab").off, ["mass-deletion", "sotw-size"]);
        assert_eq!((settings.deletion_percent, settings.scopes.len()), (30, 2));
    }

    #[test]
    fn key_of_a_scope_cannot_be_set_twice() {
        let rules = |entries: [&str; 2]| {
            let scopes = entries.map(str::to_owned).to_vec();
            Guards { scopes, ..Guards::default() }.rules()
        };
        let twice = rules(["edge=deletion_percent:10", "edge=deletion_percent:20"]);
        let expected =
            "\"edge=deletion_percent:20\": deletion_percent of the scope \"edge\" is repeated";
        assert_eq!(twice, [("scopes", expected.to_owned())]);
        assert_eq!(rules(["edge=off:sotw-size", "edge=off:sotw-size"]).len(), 1);
        assert_eq!(rules(["edge=deletion_percent:10", "lab=deletion_percent:20"]), []);
    }

    #[test]
    fn invalid_entry_of_a_scope_is_named_with_its_rule() {
        for (entry, rule) in [
            ("edge", "is not SCOPE=KEY:VALUE"),
            ("edge=10", "is not SCOPE=KEY:VALUE"),
            ("=deletion_percent:10", "empty"),
            ("edge=deletion_percent:0", "must be from 1 to 100"),
            ("edge=deletion_resources_min:x", "must be from 1 to"),
            ("edge=sotw_bytes_max:1", "must be from 64KiB to 1GiB"),
            ("edge=off:view-change", "must be one of mass-deletion"),
            ("edge=off:unasked", "must be one of mass-deletion"),
            ("edge=percent:3", "must be one of off, deletion_percent"),
        ] {
            let section = Guards { scopes: vec![entry.to_owned()], ..Guards::default() };
            let rules = section.rules();
            assert_eq!(rules.len(), 1, "{entry}: {rules:?}");
            assert!(rules[0].1.contains(rule), "{entry}: {rules:?}");
        }
    }
}
