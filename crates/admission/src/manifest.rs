//! Converts manifests to one transaction.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use chancery_model::{
    AccessOp, AssignmentOp, Expectation, Precondition, ResourceDraft, ResourceKey, Revision,
    ScopeName, Transaction, TransactionMeta, Upsert, VariantsBudget,
};

use crate::{
    access, assignments,
    conflicts::Conflicts,
    constraints,
    generated_name::OnlyName,
    keys::unknown_keys,
    mode::{Validation, ValidationMode},
    names::{Names, Origin},
    node::{InputBudget, Node, STOPPED, named},
    positions,
    problem::{Fault, Place, Problem, Report},
    quotas, resource,
    resource_origin::ResourceOrigin,
    response_keys,
    source::{self, Document},
    unchanged::{self, Unchanged},
    validate,
    yaml_scalars::Doubts,
};

/// A manifest file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The name that the author gave; `-` is the standard input. The extension `.json` selects JSON.
    pub file: String,
    /// The content: JSON, or YAML with any number of documents.
    pub content: String,
}

/// The treatment of resources that the input does not contain, in scopes that the input names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prune {
    /// Keeps them.
    #[default]
    Keep,
    /// Removes them. The scope then has exactly the resources of the input.
    Prune,
}

/// The options for applying manifests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The scope of documents without a `scope`.
    pub scope: ScopeName,
    /// The treatment of resources that the input does not contain.
    pub prune: Prune,
    /// Requires that nothing that the transaction touches has changed after this revision.
    pub if_revision: Option<Revision>,
    /// The author, reason and time.
    pub meta: TransactionMeta,
    /// The treatment of resources that clients would reject.
    pub validation: Validation,
    /// The name of the only resource of the input without a name.
    pub name: Option<String>,
}

impl Options {
    /// Creates options with a scope for documents without one, without validation, and defaults otherwise.
    #[must_use]
    pub fn new(scope: ScopeName) -> Self {
        Self {
            scope,
            prune: Prune::Keep,
            if_revision: None,
            meta: TransactionMeta::default(),
            validation: Validation::of(ValidationMode::Off),
            name: None,
        }
    }
}

/// A transaction, and what its author should know about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Admitted {
    /// The transaction, whose resources are checked and encoded.
    pub transaction: Transaction,
    /// The origin of each resource that the transaction publishes, in the order of `upserts`.
    pub origins: Vec<ResourceOrigin>,
    /// The entries that keep a stored resource. The transaction requires their versions, and does not publish them.
    pub unchanged: Vec<Unchanged>,
    /// The findings that do not refuse the transaction.
    pub warnings: Vec<Problem>,
}

/// Converts manifests to one transaction, or returns all their problems. Leaves out entries that keep a stored resource.
///
/// # Errors
/// If there is any problem. Nothing is applied in part.
pub fn admit(manifests: &[Manifest], options: &Options) -> Result<Transaction, Vec<Problem>> {
    admit_unless(manifests, options, &Arc::default()).map(|admitted| admitted.transaction)
}

/// Like [`admit`], but returns a problem soon after the caller sets `stop`.
///
/// # Errors
/// If there is any problem, or the caller sets `stop`.
pub fn admit_unless(
    manifests: &[Manifest],
    options: &Options,
    stop: &Arc<AtomicBool>,
) -> Result<Admitted, Vec<Problem>> {
    if manifests.len() <= FILES_PER_THREAD {
        return admit_here(manifests, options, stop);
    }
    source::on_large_stack(|| admit_here(manifests, options, stop))
        .unwrap_or_else(|problem| Err(vec![problem]))
}

/// The maximum number of files for which each file is read on a thread of its own. More files share one
/// thread.
const FILES_PER_THREAD: usize = 4;

/// Returns all findings about manifests, whether they refuse the input or not, ordered by file and position.
#[must_use]
pub fn lint(manifests: &[Manifest], options: &Options) -> Vec<Problem> {
    source::on_large_stack(|| lint_here(manifests, options)).unwrap_or_else(|problem| vec![problem])
}

fn lint_here(manifests: &[Manifest], options: &Options) -> Vec<Problem> {
    let stop = Arc::default();
    let mut problems = match read(manifests, options, &stop) {
        Ok(admission) => admission.into_problems(),
        Err(problems) => problems,
    };
    add_positions(manifests, &mut problems);
    problems
}

fn admit_here(
    manifests: &[Manifest],
    options: &Options,
    stop: &Arc<AtomicBool>,
) -> Result<Admitted, Vec<Problem>> {
    let mut admitted = read(manifests, options, stop)?.finish();
    add_positions(
        manifests,
        match &mut admitted {
            Ok(admitted) => &mut admitted.warnings,
            Err(problems) => problems,
        },
    );
    admitted
}

/// Adds places to problems that were found after admission. Orders all problems by file and position, and shortens
/// long paths of fields.
///
/// `files` is the admitted input. `known` has the problems that admission found in it, and `found` the later ones.
/// A problem without an origin concerns no resource of the input. It gets no place, and comes last. The cost is
/// O(size of the files that have problems without a position).
#[must_use]
pub fn locate(
    files: &[Manifest],
    known: Vec<Problem>,
    found: Vec<(Option<ResourceOrigin>, Problem)>,
) -> Vec<Problem> {
    let (mut placed, mut others) = (known, Vec::new());
    for (origin, problem) in found {
        match origin.and_then(|origin| Some((origin, files.get(origin.file)?))) {
            Some((origin, file)) => placed.push(origin.place(&file.file, problem)),
            None => others.push(problem),
        }
    }
    add_positions(files, &mut placed);
    // Without files, this only shortens the paths.
    add_positions(&[], &mut others);
    placed.extend(others);
    placed
}

/// Adds positions to problems.
fn add_positions(manifests: &[Manifest], problems: &mut [Problem]) {
    if !problems.is_empty() {
        let files: Vec<(&str, &str)> = manifests
            .iter()
            .map(|manifest| (manifest.file.as_str(), manifest.content.as_str()))
            .collect();
        positions::locate(&files, problems);
    }
}

/// Reads the manifests.
fn read<'a>(
    manifests: &'a [Manifest],
    options: &'a Options,
    stop: &'a Arc<AtomicBool>,
) -> Result<Admission<'a>, Vec<Problem>> {
    let mut admission = Admission::new(manifests, options, stop);
    let len = manifests.iter().map(|manifest| manifest.content.len()).sum();
    let mut budget = InputBudget::for_input(manifests.len(), len, stop);
    for (file_index, manifest) in manifests.iter().enumerate() {
        for document in source::documents(&manifest.file, &manifest.content, &mut budget) {
            if budget.is_stopped() {
                return Err(vec![Problem { rule: STOPPED.to_owned(), ..Problem::default() }]);
            }
            match document {
                Ok(document) => admission.document(file_index, &document),
                Err(problem) => admission.report.add(problem),
            }
        }
        if admission.report.is_full() {
            break;
        }
    }
    if budget.is_stopped() {
        return Err(vec![Problem { rule: STOPPED.to_owned(), ..Problem::default() }]);
    }
    Ok(admission)
}

struct Admission<'a> {
    files: &'a [Manifest],
    options: &'a Options,
    transaction: Transaction,
    /// The origin of each resource that the transaction publishes.
    origins: Vec<ResourceOrigin>,
    /// The entries that keep a stored resource.
    unchanged: Vec<Unchanged>,
    report: Report,
    warnings: Report,
    names: Names<'a>,
    only_name: OnlyName<'a>,
    /// The steps that are left for the constraints of variants.
    variants_budget: VariantsBudget,
    conflicts: Conflicts,
    /// The assignments, access rules and quotas by list and name.
    rules: HashMap<(&'static str, Arc<str>), Origin<'a>>,
    /// The scopes that the input names.
    scopes: BTreeSet<ScopeName>,
    has_list: bool,
    /// The values of the current document that may be ambiguous.
    doubts: Doubts,
    stop: &'a AtomicBool,
}

/// The lists of a document.
const RESOURCES: &str = "resources";
const ASSIGNMENTS: &str = "assignments";
const ACCESS: &str = "access";
const QUOTAS: &str = "quotas";
const KEYS: [&str; 5] = ["scope", RESOURCES, ASSIGNMENTS, ACCESS, QUOTAS];
/// The keys of a page of a list that `get -o yaml` has shown.
const PAGE_KEYS: [&str; 3] = ["scope", RESOURCES, "next"];

impl<'a> Admission<'a> {
    fn new(files: &'a [Manifest], options: &'a Options, stop: &'a AtomicBool) -> Self {
        Self {
            files,
            options,
            transaction: Transaction { meta: options.meta.clone(), ..Transaction::default() },
            origins: Vec::new(),
            unchanged: Vec::new(),
            report: Report::default(),
            warnings: Report::default(),
            names: Names::default(),
            only_name: OnlyName::new(options.name.as_deref()),
            variants_budget: VariantsBudget::default(),
            conflicts: Conflicts::default(),
            rules: HashMap::new(),
            scopes: BTreeSet::new(),
            has_list: false,
            doubts: Doubts::default(),
            stop,
        }
    }

    fn document(&mut self, file_index: usize, document: &Document) {
        self.doubts = Doubts::default();
        self.lists(file_index, document);
        let manifest = &self.files[file_index];
        if !self.doubts.is_empty()
            && let Some((text, lines_before)) = document.yaml_in(&manifest.content)
            && let Some(problem) = self.doubts.problem(text, lines_before)
        {
            let (file, document) = (manifest.file.clone(), Some(document.index));
            self.report.add(Problem { file, document, ..problem });
        }
    }

    /// Reads the lists of a document.
    fn lists(&mut self, file_index: usize, document: &Document) {
        let file = self.files[file_index].file.as_str();
        let place = Place { file, document: Some(document.index), resource: None };
        let root = &document.root;
        if !matches!(root, Node::Map(_)) {
            let rule = format!("expected a map with the keys {}, found {root}", KEYS.join(", "));
            return self.report.add(place.problem("", rule));
        }
        if root.get("@type").is_some() {
            let rule = "this is a resource, not a manifest: put it into the list \"resources\"";
            return self.report.add(place.problem("", rule));
        }
        let mut faults = response_keys::faults(root);
        let is_list = unchanged::is_list(root);
        let known = if response_keys::is_response(root) {
            &response_keys::KEYS[..]
        } else if is_list {
            &unchanged::LIST_KEYS[..]
        } else if root.get("next").is_some() {
            &PAGE_KEYS[..]
        } else {
            &KEYS[..]
        };
        unknown_keys(root, known, &mut faults);
        let is_pruned = self.options.prune == Prune::Prune;
        faults.extend(unchanged::incomplete(root).filter(|_| is_pruned));
        self.report.add_faults(&place, faults);
        let scope = self.scope(&place, root);
        let resources = self.list(&place, root, RESOURCES);
        // A document without resources names no scope.
        if let Some(scope) = &scope
            && (resources.is_some() && !is_list || root.get("scope").is_some())
        {
            self.scopes.insert(scope.clone());
        }
        for (index, node) in resources.into_iter().flatten().enumerate() {
            if self.report.is_full() || self.stop.load(Ordering::Relaxed) {
                return;
            }
            let document = document.index;
            let origin = Origin { file, file_index, document, list: RESOURCES, index };
            let node = response_keys::in_collection(root, node);
            match response_keys::type_fault(root, &node) {
                None if unchanged::is_listed(&node) => self.listed(origin, scope.as_ref(), &node),
                None => self.resource(origin, scope.as_ref(), &node),
                Some(fault) => self.refuse(origin, &resource::label(&node), vec![fault]),
            }
        }
        for list in [ASSIGNMENTS, ACCESS, QUOTAS] {
            for (index, node) in self.list(&place, root, list).into_iter().flatten().enumerate() {
                let document = document.index;
                let origin = Origin { file, file_index, document, list, index };
                match list {
                    ASSIGNMENTS => {
                        self.doubts.note_assignment(node);
                        if let Some(assignment) = self.rule(origin, node, assignments::read) {
                            self.transaction.assignments.push(AssignmentOp::Put(assignment));
                        }
                    }
                    ACCESS => {
                        if let Some(rule) = self.rule(origin, node, access::read) {
                            self.transaction.access.push(AccessOp::PutRule(Box::new(rule)));
                        }
                    }
                    _ => {
                        if let Some(quota) = self.rule(origin, node, quotas::read) {
                            self.transaction.access.push(AccessOp::PutQuota(Box::new(quota)));
                        }
                    }
                }
            }
        }
    }

    /// Returns the scope of a document. `None` means that it is not valid, which is reported.
    fn scope(&mut self, place: &Place<'_>, root: &Node) -> Option<ScopeName> {
        let rule = match root.get("scope") {
            None => return Some(self.options.scope.clone()),
            Some(Node::Text(name)) => match ScopeName::new(name) {
                Ok(scope) => return Some(scope),
                Err(error) => error.to_string(),
            },
            Some(other) => format!("expected text, found {other}"),
        };
        self.report.add(place.problem("scope", rule));
        None
    }

    fn list<'n>(&mut self, place: &Place<'_>, root: &'n Node, key: &str) -> Option<&'n [Node]> {
        match root.get(key)? {
            Node::List(items) => {
                self.has_list = true;
                Some(items)
            }
            other => {
                let hint = if other.is_null() { "; write an empty list as []" } else { "" };
                let rule = format!("expected a list, found {other}{hint}");
                self.report.add(place.problem(key, rule));
                None
            }
        }
    }

    /// Reads a resource of a list that the server has shown. It has a scope of its own.
    fn listed(&mut self, origin: Origin<'a>, scope: Option<&ScopeName>, node: &Node) {
        let own = node.get(unchanged::SCOPE).map(|own| match own.text().map(ScopeName::new) {
            Some(Ok(scope)) => Ok(scope),
            Some(Err(error)) => Err(error.to_string()),
            None => Err(format!("expected text, found {own}")),
        });
        match own {
            None => self.resource(origin, scope, &unchanged::in_manifest(node)),
            Some(Ok(scope)) => {
                self.scopes.insert(scope.clone());
                self.resource(origin, Some(&scope), &unchanged::in_manifest(node));
            }
            Some(Err(rule)) => {
                let fault = Fault::new(rule).within(unchanged::SCOPE);
                self.refuse(origin, &resource::label(node), vec![fault]);
            }
        }
    }

    fn resource(&mut self, origin: Origin<'a>, scope: Option<&ScopeName>, node: &Node) {
        let place_of = || place(origin, &resource::label(node));
        let (node, note) = self.only_name.complete(node, place_of);
        let node = node.as_ref();
        let read = resource::read(node, &mut self.doubts);
        let (resource::Entry { draft, expectation, unchanged }, scope) = match (read, scope) {
            (Ok(entry), Some(scope)) => (entry, scope.clone()),
            // The report has the problem of the scope already.
            (Ok(_), None) => return,
            (Err(mut faults), scope) => {
                // A resource with faults takes its name too, so that a duplicate is reported.
                if let Some((scope, key)) = scope.zip(resource::key(node)) {
                    let draft = ResourceDraft::new(key, Bytes::new());
                    faults.extend(self.names.claim(scope, &draft, origin));
                }
                return self.refuse(origin, &resource::label(node), faults);
            }
        };
        let mut faults = self.names.claim(&scope, &draft, origin);
        faults.extend(constraints::unmatched(&draft.key.name, &mut self.variants_budget));
        if !faults.is_empty() {
            return self.refuse(origin, &resource::label(node), faults);
        }
        if let Some(version) = unchanged {
            let (origin, body) = (origin.into(), resource::inner(node).clone());
            let expectations = [Some(Expectation::Version(version)), expectation];
            self.expect(&scope, &draft.key, expectations);
            return self.unchanged.push(Unchanged { scope, draft, version, origin, body });
        }
        let validation = &self.options.validation;
        let (mut errors, mut warnings) = validate::findings(validation, &scope, &draft);
        self.conflicts.check((&scope, &draft), validation, &mut errors, &mut warnings);
        warnings.extend(note);
        if !warnings.is_empty() {
            let place = place(origin, &resource::label(node));
            self.warnings.add_findings(&place, &scope, warnings);
        }
        if !errors.is_empty() {
            let place = place(origin, &resource::label(node));
            return self.report.add_findings(&place, &scope, errors);
        }
        self.expect(&scope, &draft.key, [expectation]);
        self.transaction.upserts.push(Upsert { scope, draft });
        self.origins.push(origin.into());
    }

    /// Adds preconditions on a resource.
    fn expect(
        &mut self,
        scope: &ScopeName,
        key: &ResourceKey,
        expectations: impl IntoIterator<Item = Option<Expectation>>,
    ) {
        let preconditions = expectations.into_iter().flatten().map(|expectation| {
            let (scope, key) = (scope.clone(), key.clone());
            Precondition::Resource { scope, key, expectation }
        });
        self.transaction.preconditions.extend(preconditions);
    }

    /// Reads an assignment, an access rule or a quota. Reports its faults, and a name that occurs twice.
    fn rule<T>(
        &mut self,
        origin: Origin<'a>,
        node: &Node,
        read: impl FnOnce(&Node) -> Result<T, Vec<Fault>>,
    ) -> Option<T> {
        let name = node.get("name").and_then(Node::text);
        let label = name.map_or(String::new(), named);
        let (mut faults, rule) = match read(node) {
            Err(faults) => (faults, None),
            Ok(rule) => (Vec::new(), Some(rule)),
        };
        if let Some(name) = name {
            let what = match origin.list {
                ASSIGNMENTS => "assignment",
                ACCESS => "access rule",
                _ => "quota",
            };
            match self.rules.entry((origin.list, name.into())) {
                Entry::Occupied(first) => {
                    let first = first.get().describe();
                    faults.push(Fault::new(format!("duplicate {what}, first defined in {first}")));
                }
                Entry::Vacant(free) => drop(free.insert(origin)),
            }
        }
        if !faults.is_empty() {
            self.refuse(origin, &label, faults);
            return None;
        }
        rule
    }

    fn refuse(&mut self, origin: Origin<'_>, label: &str, faults: Vec<Fault>) {
        self.report.add_faults(&place(origin, label), faults);
    }

    /// Returns all problems.
    fn into_problems(mut self) -> Vec<Problem> {
        let warnings = std::mem::take(&mut self.warnings);
        let mut problems = self.finish().err().unwrap_or_default();
        problems.extend(warnings.into_problems());
        problems
    }

    fn finish(mut self) -> Result<Admitted, Vec<Problem>> {
        self.only_name.finish(&mut self.report);
        if let Some(revision) = self.options.if_revision {
            self.transaction.preconditions.push(Precondition::Revision(revision));
        }
        if self.options.prune == Prune::Prune {
            self.transaction.prune = self.scopes.into_iter().collect();
        }
        if !self.has_list && self.transaction.prune.is_empty() && !self.report.has_problems() {
            for file in self.files {
                if self.report.is_full() {
                    break;
                }
                let rule =
                    "has neither resources nor assignments nor access rules nor quotas".to_owned();
                self.report.add(Problem { file: file.file.clone(), rule, ..Problem::default() });
            }
            if self.files.is_empty() {
                let rule = "the input has no files".to_owned();
                self.report.add(Problem { rule, ..Problem::default() });
            }
        }
        let transaction = self.report.finish(self.transaction)?;
        let (origins, unchanged) = (self.origins, self.unchanged);
        let warnings = self.warnings.into_problems();
        Ok(Admitted { transaction, origins, unchanged, warnings })
    }
}

/// Returns the place of an entry with a label.
fn place<'a>(origin: Origin<'a>, label: &str) -> Place<'a> {
    let space = if label.is_empty() { "" } else { " " };
    let resource = Some(format!("{}[{}]{space}{label}", origin.list, origin.index));
    Place { file: origin.file, document: Some(origin.document), resource }
}
