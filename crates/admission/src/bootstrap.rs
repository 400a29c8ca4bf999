//! Imports the static resources of an Envoy bootstrap into a scope.

use std::{
    borrow::Cow,
    collections::HashSet,
    sync::{Arc, atomic::AtomicBool},
};

use chancery_model::{ResourceDraft, ScopeName, types};
use serde::de::IgnoredAny;

use crate::{
    conflicts::Conflicts,
    draft,
    encode::encode_fields,
    encoder::Encoder,
    generated_name::OnlyName,
    mode::Validation,
    node::{InputBudget, Node},
    omitted::{self, Omitted},
    positions,
    problem::{Fault, Place, Problem, Report},
    resource,
    resource_origin::ResourceOrigin,
    source, validate,
    yaml_scalars::{self, Doubts},
};

/// The lists of `Bootstrap.StaticResources`, each with the type of its resources.
const LISTS: [(&str, &str); 3] = [
    ("static_resources.clusters", types::CLUSTER),
    ("static_resources.listeners", types::LISTENER),
    ("static_resources.secrets", types::SECRET),
];

/// The name of the standard input, which may be JSON.
const STANDARD_INPUT: &str = "-";
/// The full name of the message.
const BOOTSTRAP: &str = "envoy.config.bootstrap.v3.Bootstrap";
/// The two spellings of the key.
const STATIC_RESOURCES: [&str; 2] = ["static_resources", "staticResources"];

/// Returns the listeners, clusters and secrets in the `static_resources` of an Envoy bootstrap.
///
/// The function checks only the top-level keys of the rest of the bootstrap, and the types of their
/// values. `name` is for the only resource without a name. `validation` decides about resources that clients
/// would reject. After the caller has set `stop`, the function soon returns a problem.
///
/// # Errors
/// If the bootstrap has no static resources, or one of them is invalid as in a manifest.
pub fn import_bootstrap(
    file: &str,
    content: &str,
    scope: &ScopeName,
    name: Option<&str>,
    validation: &Validation,
    stop: &Arc<AtomicBool>,
) -> Result<Imported, Vec<Problem>> {
    let mut import = Import {
        scope,
        validation,
        conflicts: Conflicts::default(),
        only_name: OnlyName::new(name),
        drafts: Vec::new(),
        origins: Vec::new(),
        report: Report::default(),
        warnings: Report::default(),
    };
    let place = Place { file, ..Place::default() };
    let mut budget = InputBudget::for_input(1, content.len(), stop);
    let mut documents = match as_read(file, content) {
        Ok(content) => source::documents(file, &content, &mut budget),
        Err(problem) => vec![Err(Problem { file: file.to_owned(), ..problem })],
    };
    for document in documents.iter_mut().flatten() {
        yaml_scalars::drop_ignored(&mut document.root);
    }
    let mut omitted = Vec::new();
    match (documents.pop(), documents.len()) {
        (Some(Ok(document)), 0) => {
            import.report.add_faults(&place, top_level_faults(&document.root));
            import.static_resources(&place, &document.root);
            import.only_name.finish(&mut import.report);
            omitted = omitted::parts(&document.root, |key| STATIC_RESOURCES.contains(&key));
        }
        (Some(Err(problem)), 0) => import.report.add(problem),
        (last, others) => {
            let n = others + usize::from(last.is_some());
            import.report.add(place.problem("", format!("a bootstrap is one document, found {n}")));
        }
    }
    let locate = |problems: &mut Vec<Problem>| positions::locate(&[(file, content)], problems);
    let drafts = import.drafts.into_iter().map(|draft| (scope.clone(), draft)).collect();
    let drafts = import.report.finish(drafts).map_err(|mut problems| {
        locate(&mut problems);
        problems
    })?;
    let mut warnings = import.warnings.into_problems();
    locate(&mut warnings);
    omitted::locate(file, content, &mut omitted);
    Ok(Imported { drafts, origins: import.origins, warnings, omitted })
}

/// Returns a bootstrap with its scalars as Envoy's loader reads them. JSON has no others.
fn as_read<'c>(file: &str, content: &'c str) -> Result<Cow<'c, str>, Problem> {
    let is_json = file.ends_with(".json")
        || file == STANDARD_INPUT && serde_json::from_str::<IgnoredAny>(content).is_ok();
    if is_json {
        Ok(Cow::Borrowed(content))
    } else {
        yaml_scalars::as_envoy_reads(content).map(Cow::Owned)
    }
}

/// The resources of a bootstrap, and what their author should know about them.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The resources with their scope.
    pub drafts: Vec<(ScopeName, ResourceDraft)>,
    /// The origin of each resource, in the order of `drafts`.
    pub origins: Vec<ResourceOrigin>,
    /// The findings that do not refuse the resources.
    pub warnings: Vec<Problem>,
    /// The parts of the bootstrap that are not among the resources.
    pub omitted: Vec<Omitted>,
}

/// The state of an import.
struct Import<'a> {
    scope: &'a ScopeName,
    validation: &'a Validation,
    conflicts: Conflicts,
    only_name: OnlyName<'a>,
    drafts: Vec<ResourceDraft>,
    origins: Vec<ResourceOrigin>,
    report: Report,
    warnings: Report,
}

/// Returns the faults of the top-level keys: unknown ones, and values of the wrong type. A misspelled
/// key would otherwise lose its content silently. Values inside other keys are not imported, and not
/// checked.
fn top_level_faults(root: &Node) -> Vec<Fault> {
    let mut encoder = Encoder::new(chancery_proto::envoy_pool());
    let Some(bootstrap) = encoder.pool.get_message_by_name(BOOTSTRAP) else { return Vec::new() };
    let shallow = match root {
        Node::Map(entries) => {
            let emptied = entries.iter().map(|(key, value)| (key.clone(), emptied(key, value)));
            Node::Map(emptied.collect())
        }
        other => other.clone(),
    };
    let _ = encode_fields(&mut encoder, &bootstrap, &shallow);
    encoder.into_faults()
}

/// Returns a value without the values in it.
fn emptied(key: &str, value: &Node) -> Node {
    match value {
        Node::Map(_) => Node::Map(Vec::new()),
        Node::List(_) if !STATIC_RESOURCES.contains(&key) => Node::List(Vec::new()),
        // `static_resources` below has a message of its own.
        _ if STATIC_RESOURCES.contains(&key) => Node::Null,
        other => other.clone(),
    }
}

impl Import<'_> {
    fn static_resources(&mut self, place: &Place<'_>, root: &Node) {
        if !matches!(root, Node::Map(_)) {
            return;
        }
        let found = STATIC_RESOURCES.iter().find_map(|key| root.get(key));
        let Some(Node::Map(lists)) = found else {
            let rule = match found {
                None => "there are no static_resources: this is not an Envoy bootstrap".to_owned(),
                Some(other) => format!("expected a map, found {other}"),
            };
            return self.report.add(place.problem("static_resources", rule));
        };
        let mut keys = HashSet::new();
        for (key, node) in lists {
            let path = format!("static_resources.{key}");
            let Some((list, type_url)) = LISTS.iter().find(|(list, _)| *list == path) else {
                let rule = "unknown key; known keys are clusters, listeners, secrets";
                self.report.add(place.problem(&path, rule));
                continue;
            };
            let items = match node {
                Node::List(items) => items,
                // Envoy's loader accepts a map as a list of one item.
                Node::Map(_) => std::slice::from_ref(node),
                Node::Null => continue,
                _ => {
                    self.report.add(place.problem(&path, format!("expected a list, found {node}")));
                    continue;
                }
            };
            for (index, item) in items.iter().enumerate() {
                if self.report.is_full() {
                    return;
                }
                let name = item.get("name").and_then(Node::text);
                let resource = Some(format!("{path}[{index}] {}", draft::label(type_url, name)));
                let place = Place { resource, ..place.clone() };
                match self.read(item, type_url, &place) {
                    Err(faults) => self.report.add_faults(&place, faults),
                    Ok((draft, _)) if !keys.insert(draft.key.clone()) => {
                        self.report.add(place.problem("", "duplicate resource"));
                    }
                    Ok((draft, note)) => {
                        let (mut errors, mut warnings) =
                            validate::findings(self.validation, self.scope, &draft);
                        let (conflicts, this) = (&mut self.conflicts, (self.scope, &draft));
                        conflicts.check(this, self.validation, &mut errors, &mut warnings);
                        warnings.extend(note);
                        self.warnings.add_findings(&place, self.scope, warnings);
                        self.report.add_findings(&place, self.scope, errors);
                        self.drafts.push(draft);
                        let document = None;
                        self.origins.push(ResourceOrigin { file: 0, document, list, index });
                    }
                }
            }
        }
    }

    /// Reads a resource, and returns the note on a name that was generated.
    fn read(
        &mut self,
        item: &Node,
        type_url: &str,
        place: &Place<'_>,
    ) -> Result<(ResourceDraft, Option<Fault>), Vec<Fault>> {
        let Node::Map(fields) = item else {
            return Err(vec![Fault::new(format!("expected a map, found {item}"))]);
        };
        if item.get("@type").is_some() {
            return Err(vec![Fault::new("a bootstrap has no such key").within("@type")]);
        }
        let mut fields = fields.clone();
        fields.push(("@type".to_owned(), Node::Text(type_url.to_owned())));
        let entry = Node::Map(fields);
        let (entry, note) = self.only_name.complete(&entry, || place.clone());
        resource::read(&entry, &mut Doubts::default()).map(|entry| (entry.draft, note))
    }
}
