//! The sections `[validation]` and `[references]`: the treatment of resources that clients would reject, and of
//! references to missing resources.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chancery_admin::{ExternalInput, ExternalValidator};
use chancery_admission::{ClientProfile, Profiles, Validation as Modes, ValidationMode};
use chancery_model::ScopeName;

use super::{
    bounds::{GIB, MIB, MINUTE, bytes, time, words},
    section::section,
    units::{ByteSize, Span},
};

section! {
    /// The section `[validation]`.
    pub struct Validation {
        /// The treatment of resources that clients would reject: enforce refuses the write, warn
        /// stores them and reports the findings, off does not check them. All replicas need the
        /// same value.
        mode: String = ValidationMode::default().to_string(), words(&["enforce", "warn", "off"]);
        /// The modes of scopes that differ from mode, as SCOPE=MODE. The mode of a call
        /// (--validation) overrides both.
        scopes: Vec<String>;
        /// The clients that see a scope, as SCOPE=PROFILE+PROFILE, such as mesh=grpc-go@1.70+envoy;
        /// * stands for all other scopes. Without an entry, the connected clients decide.
        profiles: Vec<String>;
        /// A program with its arguments that checks the resources of each write; empty for none.
        /// {file} stands for the path of its input, which is also the standard input. Exit code 0
        /// accepts the resources.
        external_command: Vec<String>;
        /// The input of external_command: bootstrap (of Envoy, in JSON) or manifest.
        external_input: String = INPUTS[0].0.to_owned(), words(&[INPUTS[0].0, INPUTS[1].0]);
        /// The maximum time of external_command. Then its process group is killed.
        external_timeout: Span = Span::seconds(10), time(100, 10 * MINUTE);
        /// The maximum data memory of each process of external_command.
        external_memory_max: ByteSize = ByteSize::mib(1024), bytes(16 * MIB, 1024 * GIB);
        /// Whether a write is refused if external_command does not check it: it does not start,
        /// exceeds its time, or is killed.
        external_required: bool = true;
    }
}

/// The entry of `profiles` for all other scopes.
const OTHER_SCOPES: &str = "*";

/// The text instead of a value that may be secret.
pub(crate) const REDACTED: &str = "[redacted]";

/// The values of `external_input`.
const INPUTS: [(&str, ExternalInput); 2] =
    [("bootstrap", ExternalInput::Bootstrap), ("manifest", ExternalInput::Manifest)];

impl Validation {
    /// Returns the key and the rule of each value that is not valid.
    pub(crate) fn rules(&self) -> Vec<(&'static str, String)> {
        let mut broken = rules(&self.mode, &self.scopes);
        let mut seen = BTreeSet::new();
        for entry in &self.profiles {
            match profiles(entry) {
                Ok((scope, _)) if !seen.insert(scope.clone()) => {
                    let name = scope.as_ref().map_or(OTHER_SCOPES, ScopeName::as_str);
                    broken.push(("profiles", format!("names the scope {name:?} twice")));
                }
                Ok(_) => {}
                Err(error) => broken.push(("profiles", error)),
            }
        }
        if self.external_command.first().is_some_and(String::is_empty) {
            broken.push(("external_command", "must begin with a program".to_owned()));
        }
        if self.input().is_none() {
            let found = &self.external_input;
            broken.push(("external_input", format!("{found:?} must be bootstrap or manifest")));
        }
        broken
    }

    /// Removes the arguments of the external validator, which may be secret. The first item may contain arguments by
    /// mistake.
    pub(crate) fn redact(&mut self) {
        if let Some(program) = self.external_command.first_mut()
            && let Some((name, _)) = program.split_once(char::is_whitespace)
        {
            *program = format!("{name} {REDACTED}");
        }
        for argument in self.external_command.iter_mut().skip(1) {
            REDACTED.clone_into(argument);
        }
    }

    fn input(&self) -> Option<ExternalInput> {
        INPUTS.iter().find(|(name, _)| *name == self.external_input).map(|(_, input)| *input)
    }

    /// Returns the external validator, if there is one.
    pub fn external(&self) -> Option<ExternalValidator> {
        (!self.external_command.is_empty()).then(|| ExternalValidator {
            command: self.external_command.clone(),
            input: self.input().unwrap_or_default(),
            timeout: self.external_timeout.duration(),
            memory_max: self.external_memory_max.bytes(),
            required: self.external_required,
        })
    }

    /// Returns the modes and the declared clients. The rules of the configuration exclude values that are not
    /// valid.
    pub fn modes(&self) -> Modes {
        let (mut of_scopes, mut default) = (BTreeMap::new(), None);
        for (scope, clients) in self.profiles.iter().filter_map(|entry| profiles(entry).ok()) {
            match scope {
                Some(scope) => drop(of_scopes.insert(scope, clients)),
                None => default = Some(clients.into()),
            }
        }
        let profiles = Profiles { scopes: Arc::new(of_scopes), default, ..Profiles::default() };
        Modes { profiles, ..modes(&self.mode, &self.scopes) }
    }
}

section! {
    /// The section `[references]`.
    pub struct References {
        /// The treatment of references to resources that are missing in the views of nodes. warn
        /// reports them, enforce refuses the write, and off does not check them. All replicas need
        /// the same value.
        mode: String = ValidationMode::Warn.to_string(), words(&["enforce", "warn", "off"]);
        /// The modes of scopes that differ from mode, as SCOPE=MODE. The mode of a write is that of
        /// the scope in which it changes a resource.
        scopes: Vec<String>;
    }
}

impl References {
    /// Returns the key and the rule of each value that is not valid.
    pub(crate) fn rules(&self) -> Vec<(&'static str, String)> {
        rules(&self.mode, &self.scopes)
    }

    /// Returns the modes. The rules of the configuration exclude values that are not valid.
    pub(crate) fn modes(&self) -> Modes {
        modes(&self.mode, &self.scopes)
    }
}

fn rules(mode: &str, scopes: &[String]) -> Vec<(&'static str, String)> {
    let mut broken = Vec::new();
    if let Err(error) = mode.parse::<ValidationMode>() {
        broken.push(("mode", error));
    }
    let mut seen = BTreeMap::new();
    for entry in scopes {
        match scope(entry) {
            Ok((scope, mode)) if seen.insert(scope.clone(), mode).is_some() => {
                broken.push(("scopes", format!("names the scope {:?} twice", scope.as_str())));
            }
            Ok(_) => {}
            Err(error) => broken.push(("scopes", error)),
        }
    }
    broken
}

fn modes(mode: &str, scopes: &[String]) -> Modes {
    let scopes = scopes.iter().filter_map(|entry| scope(entry).ok()).collect();
    Modes {
        call: None,
        scopes: Arc::new(scopes),
        default: mode.parse().unwrap_or_default(),
        profiles: Profiles::default(),
    }
}

/// Reads an entry `SCOPE=MODE`.
fn scope(entry: &str) -> Result<(ScopeName, ValidationMode), String> {
    let (name, mode) =
        entry.rsplit_once('=').ok_or_else(|| format!("{entry:?} is not SCOPE=MODE"))?;
    let name = ScopeName::new(name).map_err(|error| format!("{entry:?}: {error}"))?;
    let mode = mode.parse().map_err(|error| format!("{entry:?}: {error}"))?;
    Ok((name, mode))
}

/// Reads an entry `SCOPE=PROFILE+PROFILE`. The scope is `None` for all other scopes.
fn profiles(entry: &str) -> Result<(Option<ScopeName>, Vec<ClientProfile>), String> {
    let (name, list) = entry
        .rsplit_once('=')
        .ok_or_else(|| format!("{entry:?} is not SCOPE=PROFILE or SCOPE=PROFILE+PROFILE"))?;
    let at = |error: String| format!("{entry:?}: {error}");
    let scope = match name {
        OTHER_SCOPES => None,
        name => Some(ScopeName::new(name).map_err(|error| at(error.to_string()))?),
    };
    let clients: Result<_, String> = list.split('+').map(str::parse).collect();
    Ok((scope, clients.map_err(at)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_of_scope_overrides_mode_of_server() {
        let section = Validation {
            mode: "warn".into(),
            scopes: vec!["dev=off".into(), "edge/eu=enforce".into()],
            ..Validation::default()
        };
        assert_eq!(section.rules(), []);
        let mode = |name| section.modes().mode(&ScopeName::new(name).unwrap());
        assert_eq!(mode("dev"), ValidationMode::Off);
        assert_eq!(mode("edge/eu"), ValidationMode::Enforce);
        assert_eq!(mode("default"), ValidationMode::Warn);
    }

    #[test]
    fn references_are_reported_by_default_and_refused_by_scope() {
        let section = References { scopes: vec!["prod=enforce".into()], ..References::default() };
        assert_eq!(section.rules(), []);
        let mode = |name| section.modes().mode(&ScopeName::new(name).unwrap());
        assert_eq!(mode("default"), ValidationMode::Warn);
        assert_eq!(mode("prod"), ValidationMode::Enforce);
    }

    #[test]
    fn profiles_of_scope_precede_those_of_other_scopes() {
        let profiles = ["mesh=grpc-go@1.70+grpc-java", "*=envoy"].map(str::to_owned).to_vec();
        let section = Validation { profiles, ..Validation::default() };
        assert_eq!(section.rules(), []);
        let of = |name| {
            let (source, clients) =
                section.modes().profiles.of_scope(&ScopeName::new(name).unwrap());
            assert_eq!(source.word(), "declared");
            clients.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("mesh"), "grpc-go@1.70 grpc-java");
        assert_eq!(of("edge"), "envoy");
    }

    #[test]
    fn invalid_profile_is_named() {
        let profiles = ["mesh", "mesh=grpc", "=envoy", "*=envoy", "*=grpc-go"];
        let profiles = profiles.map(str::to_owned).to_vec();
        let broken = Validation { profiles, ..Validation::default() }.rules();
        assert_eq!(broken.len(), 4, "{broken:?}");
        assert!(broken[1].1.contains("expected envoy, grpc-cpp"), "{broken:?}");
        assert!(broken[3].1.contains("\"*\" twice"), "{broken:?}");
    }

    #[test]
    fn invalid_mode_and_scope_are_named() {
        let scopes = ["dev", "dev=on", "=off", "a=off", "a=warn"].map(str::to_owned).to_vec();
        let section = Validation { mode: "strict".into(), scopes, ..Validation::default() };
        let broken = section.rules();
        assert_eq!(broken.len(), 5, "{broken:?}");
        assert!(broken[0].1.contains("\"strict\""), "{broken:?}");
        assert!(broken[4].1.contains("twice"), "{broken:?}");
    }

    #[test]
    fn external_validator_exists_only_with_a_command() {
        assert_eq!(Validation::default().external(), None);
        let command = vec!["envoy".to_owned()];
        let section = Validation { external_command: command.clone(), ..Validation::default() };
        assert_eq!(section.rules(), []);
        let external = section.external().unwrap();
        assert_eq!((external.command, external.required), (command, true));
        let broken = Validation {
            external_command: vec![String::new()],
            external_input: "yaml".into(),
            ..Validation::default()
        };
        assert_eq!(broken.rules().len(), 2, "{:?}", broken.rules());
    }
}
