//! Cycles: the files of a crate must not depend on each other, and a type's methods stand in its file.
//!
//! A file depends on another file if it names an item of that file, by a `use` or by a path in the
//! code, or if it calls a method that only a type of that file has. The rule follows re-exports to the
//! file that defines the item. A module declaration (`mod name;`) is not a dependency. Tests do not
//! count. The rule does not read the arguments of macros.
//!
//! The rule does not know the type on which the code calls a method. It therefore counts a call only if one
//! type of the workspace has a method of this name, if the name has several words, and if the name is not in
//! [`FOREIGN_METHODS`].
//!
//! Where [`LAYERS`] names the layers of a crate, a file also must not depend on a higher layer,
//! directly or through other files.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use syn::{Attribute, Item, ItemMod, UseTree, visit::Visit};

use crate::source::Source;

/// The layers of a crate, lowest first: the directory of the crate, and the directories of its layers.
const LAYERS: &[(&str, &[&str])] =
    &[("crates/store", &["src/format/", "src/disk/", "src/replication/"])];

/// The names of methods that types of other crates have, too.
const FOREIGN_METHODS: &[&str] = &[
    "as_bytes",
    "as_str",
    "get_mut",
    "into_inner",
    "into_iter",
    "into_stream",
    "is_empty",
    "to_string",
    "type_url",
];

/// The maximum number of re-exports between a path and the definition.
const REEXPORTS_MAX: usize = 8;

/// A path from the root of a crate, without `crate`.
type ModulePath = Vec<String>;

/// A path from the root of the crate, or `None` for a path into another crate.
type Resolved = Option<ModulePath>;

/// Reports each group of files of one crate that depend on each other.
pub(super) fn complaints(files: &[Source]) -> Result<Vec<String>> {
    let mut crates: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        if let Some((dir, _)) = file.path.split_once("/src/") {
            crates.entry(dir).or_default().push(file);
        }
    }
    let mut read = Vec::new();
    for (dir, files) in crates {
        read.push((dir, Crate::read(dir, &files)?));
    }
    // A method of several crates may be that of any of them.
    let mut n_crates: BTreeMap<String, usize> = BTreeMap::new();
    for (_, one) in &read {
        let all: BTreeSet<&String> =
            one.modules.values().flat_map(|module| &module.methods).collect();
        all.into_iter().for_each(|name| *n_crates.entry(name.clone()).or_default() += 1);
    }
    let ambiguous: BTreeSet<String> =
        n_crates.into_iter().filter(|(_, n)| *n > 1).map(|(name, _)| name).collect();
    let mut complaints = Vec::new();
    for (dir, read) in read {
        complaints.extend(read.foreign_impls());
        let dependencies = read.dependencies(&ambiguous);
        if let Some((_, layers)) = LAYERS.iter().find(|(of, _)| *of == dir) {
            complaints.extend(upward(dir, layers, &dependencies));
        }
        complaints.extend(cycles(&dependencies).iter().map(|cycle| {
            format!("{dir}: {} files depend on each other: {}", cycle.len(), cycle.join(", "))
        }));
    }
    Ok(complaints)
}

/// The modules of a crate.
#[derive(Debug, Default)]
struct Crate {
    modules: BTreeMap<ModulePath, Module>,
}

/// A module that has a file of its own.
#[derive(Debug, Default)]
struct Module {
    path: String,
    /// The resolved paths that the code names.
    named: BTreeSet<ModulePath>,
    /// Re-exports: the name here, and the path of the item.
    reexports: BTreeMap<String, ModulePath>,
    /// The targets of glob re-exports.
    globs: Vec<ModulePath>,
    /// The names that the file defines.
    defined: BTreeSet<String>,
    /// The types that have an inherent `impl` here, as the code names them.
    impls: BTreeSet<ModulePath>,
    /// The inherent methods that the file defines, and the methods of traits.
    methods: BTreeSet<String>,
    trait_methods: BTreeSet<String>,
    /// The methods that the code calls.
    called: BTreeSet<String>,
}

impl Crate {
    fn read(dir: &str, files: &[&Source]) -> Result<Self> {
        let mut read = Self::default();
        let mut tests = Vec::new();
        for file in files {
            let module = module_path(file.path.strip_prefix(dir).unwrap_or(&file.path));
            let syntax = syn::parse_file(&file.text).with_context(|| file.path.clone())?;
            let mut reader = Reader { here: module.clone(), ..Reader::default() };
            reader.children = children(&syntax.items);
            reader.visit_file(&syntax);
            tests.append(&mut reader.tests);
            reader.module.path.clone_from(&file.path);
            read.modules.insert(module, reader.module);
        }
        read.modules.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));
        Ok(read)
    }

    /// Returns the dependencies of each file.
    fn dependencies(&self, ambiguous: &BTreeSet<String>) -> BTreeMap<&str, BTreeSet<&str>> {
        let methods = self.methods(ambiguous);
        let mut dependencies = BTreeMap::new();
        for module in self.modules.values() {
            let named = module.named.iter().filter_map(|path| self.definer(path, REEXPORTS_MAX));
            let called =
                module.called.iter().filter_map(|name| methods.get(name.as_str()).copied());
            let named = named.chain(called).filter(|path| *path != module.path).collect();
            dependencies.insert(module.path.as_str(), named);
        }
        dependencies
    }

    /// Returns the methods that one type of the crate has, and its file. Those that are `ambiguous` do not count.
    fn methods(&self, ambiguous: &BTreeSet<String>) -> BTreeMap<&str, &str> {
        let mut methods: BTreeMap<&str, Option<&str>> = BTreeMap::new();
        for module in self.modules.values() {
            for name in &module.methods {
                let file = Some(module.path.as_str());
                methods.entry(name).and_modify(|one| *one = None).or_insert(file);
            }
        }
        for name in self.modules.values().flat_map(|module| &module.trait_methods) {
            methods.insert(name, None);
        }
        let is_known = |name: &str| {
            name.contains('_') && !FOREIGN_METHODS.contains(&name) && !ambiguous.contains(name)
        };
        let methods = methods.into_iter().filter(|(name, _)| is_known(name));
        methods.filter_map(|(name, file)| Some((name, file?))).collect()
    }

    /// Reports the inherent methods that stand outside the file of their type.
    fn foreign_impls(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for module in self.modules.values() {
            for path in &module.impls {
                let Some(name) = path.last() else { continue };
                let is_here = path.len() == 1 && module.defined.contains(name);
                let target = module.reexports.get(name).filter(|_| path.len() == 1);
                let target = target.or(Some(path).filter(|path| path.len() > 1));
                let definer = target.and_then(|target| self.definer(target, REEXPORTS_MAX));
                if let Some(definer) = definer.filter(|file| !is_here && *file != module.path) {
                    complaints.push(format!(
                        "{}: `impl {name}` belongs into {definer}, where the type is",
                        module.path
                    ));
                }
            }
        }
        complaints
    }

    /// Returns the file that defines the item at `path`.
    fn definer(&self, path: &[String], max: usize) -> Option<&str> {
        let (at, module) =
            (0..=path.len()).rev().find_map(|at| Some((at, self.modules.get(&path[..at])?)))?;
        let Some(name) = path.get(at) else { return Some(&module.path) };
        if module.defined.contains(name) || max == 0 {
            return Some(&module.path);
        }
        if let Some(target) = module.reexports.get(name) {
            let target = [target.as_slice(), &path[at + 1..]].concat();
            return self.definer(&target, max - 1);
        }
        let from_glob = module.globs.iter().find_map(|glob| {
            let module = self.modules.get(glob)?;
            module.defined.contains(name).then_some(module.path.as_str())
        });
        Some(from_glob.unwrap_or(&module.path))
    }
}

/// Returns the path of the module in a file below `src`.
fn module_path(file: &str) -> ModulePath {
    let name = file.trim_start_matches("/src/").trim_end_matches(".rs");
    let mut path: ModulePath = name.split('/').map(str::to_owned).collect();
    let is_root = path.len() == 1 && ["lib", "main"].contains(&path[0].as_str());
    if is_root || path.last().is_some_and(|last| last == "mod") {
        path.pop();
    }
    path
}

/// Returns the modules that the items declare.
fn children(items: &[Item]) -> BTreeSet<String> {
    let modules = items.iter().filter_map(|item| match item {
        Item::Mod(module) => Some(module.ident.to_string()),
        _ => None,
    });
    modules.collect()
}

/// A visitor that reads one file.
#[derive(Debug, Default)]
struct Reader {
    /// The module of the visited items: the module of the file, or one inside it.
    here: ModulePath,
    /// The modules that `here` declares, whose names also begin paths.
    children: BTreeSet<String>,
    module: Module,
    /// The modules that are declared for tests only.
    tests: Vec<ModulePath>,
}

impl Reader {
    /// Returns the path from the root of the crate, or `None` for a path into another crate.
    fn resolve(&self, path: &[String]) -> Resolved {
        let mut base = self.here.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                base.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            name if self.children.contains(name) => {}
            _ => return None,
        }
        base.extend(rest.iter().cloned());
        Some(base)
    }

    fn use_tree(&mut self, tree: &UseTree, before: &[String], is_public: bool) {
        match tree {
            UseTree::Path(path) => {
                let before = [before, &[path.ident.to_string()]].concat();
                self.use_tree(&path.tree, &before, is_public);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.use_tree(tree, before, is_public);
                }
            }
            UseTree::Name(name) => self.used(before, &name.ident.to_string(), None, is_public),
            UseTree::Rename(rename) => {
                let name = rename.rename.to_string();
                self.used(before, &rename.ident.to_string(), Some(name), is_public);
            }
            UseTree::Glob(_) => {
                if let Some(path) = self.resolve(before) {
                    if is_public {
                        self.module.globs.push(path);
                    } else {
                        self.module.named.insert(path);
                    }
                }
            }
        }
    }

    fn used(&mut self, before: &[String], name: &str, renamed: Option<String>, is_public: bool) {
        let mut path = before.to_vec();
        if name != "self" {
            path.push(name.to_owned());
        }
        let Some(resolved) = self.resolve(&path) else { return };
        let name = renamed.or_else(|| path.last().cloned()).unwrap_or_default();
        if is_public {
            self.module.reexports.insert(name, resolved);
        } else {
            // Other files may name the item through this file, as `super::Name`.
            self.module.reexports.insert(name, resolved.clone());
            self.module.named.insert(resolved);
        }
    }
}

impl<'a> Visit<'a> for Reader {
    fn visit_item(&mut self, item: &'a Item) {
        let (attributes, name) = parts(item);
        if let Item::Mod(module) = item
            && is_test(attributes)
        {
            let name = module.ident.to_string();
            self.tests.push([self.here.as_slice(), &[name]].concat());
        }
        if is_test(attributes) {
            return;
        }
        if let Some(name) = name {
            self.module.defined.insert(name);
        }
        syn::visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, module: &'a ItemMod) {
        let Some((_, items)) = &module.content else { return };
        let children = std::mem::replace(&mut self.children, children(items));
        self.here.push(module.ident.to_string());
        syn::visit::visit_item_mod(self, module);
        self.here.pop();
        self.children = children;
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        let methods = item.items.iter().filter_map(|item| match item {
            syn::ImplItem::Fn(method) => Some(method.sig.ident.to_string()),
            _ => None,
        });
        if item.trait_.is_some() {
            self.module.trait_methods.extend(methods);
        } else {
            self.module.methods.extend(methods);
            if let syn::Type::Path(of) = &*item.self_ty {
                let names = of.path.segments.iter().map(|segment| segment.ident.to_string());
                let names: Vec<String> = names.collect();
                let path = self.resolve(&names).unwrap_or(names);
                self.module.impls.insert(path);
            }
        }
        syn::visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &'a syn::ItemTrait) {
        let methods = item.items.iter().filter_map(|item| match item {
            syn::TraitItem::Fn(method) => Some(method.sig.ident.to_string()),
            _ => None,
        });
        self.module.trait_methods.extend(methods);
        syn::visit::visit_item_trait(self, item);
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        self.module.called.insert(call.method.to_string());
        syn::visit::visit_expr_method_call(self, call);
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        let is_public = !matches!(item.vis, syn::Visibility::Inherited);
        self.use_tree(&item.tree, &[], is_public);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let names: Vec<String> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.len() > 1
            && let Some(resolved) = self.resolve(&names)
        {
            self.module.named.insert(resolved);
        }
        syn::visit::visit_path(self, path);
    }

    // `pub(super)` and `pub(in path)` name a module, but not an item in it.
    fn visit_vis_restricted(&mut self, _: &'a syn::VisRestricted) {}
}

/// Returns the attributes of an item and the name that it defines.
pub(super) fn parts(item: &Item) -> (&[Attribute], Option<String>) {
    match item {
        Item::Const(item) => (&item.attrs, Some(item.ident.to_string())),
        Item::Enum(item) => (&item.attrs, Some(item.ident.to_string())),
        Item::Fn(item) => (&item.attrs, Some(item.sig.ident.to_string())),
        Item::Macro(item) => (&item.attrs, item.ident.as_ref().map(ToString::to_string)),
        Item::Mod(item) => {
            let is_inline = item.content.is_some();
            (&item.attrs, is_inline.then(|| item.ident.to_string()))
        }
        Item::Static(item) => (&item.attrs, Some(item.ident.to_string())),
        Item::Struct(item) => (&item.attrs, Some(item.ident.to_string())),
        Item::Trait(item) => (&item.attrs, Some(item.ident.to_string())),
        Item::Type(item) => (&item.attrs, Some(item.ident.to_string())),
        Item::Union(item) => (&item.attrs, Some(item.ident.to_string())),
        Item::Impl(item) => (&item.attrs, None),
        Item::Use(item) => (&item.attrs, None),
        _ => (&[], None),
    }
}

/// Returns whether the item is compiled for tests only.
pub(super) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg_test = attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"));
        is_cfg_test || attribute.path().is_ident("test")
    })
}

/// Returns the strongly connected components with more than one file, largest first.
///
/// Tarjan's algorithm would be faster, but a crate has a few dozen files.
fn cycles<'a>(dependencies: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<Vec<&'a str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        dependencies.keys().map(|file| (*file, reach(dependencies, file))).collect();
    let mut cycles: Vec<Vec<&str>> = Vec::new();
    for (file, reaches) in &reached {
        if cycles.iter().any(|cycle| cycle.contains(file)) {
            continue;
        }
        let is_mutual =
            |other: &&&str| reached.get(**other).is_some_and(|back| back.contains(file));
        let cycle: Vec<&str> = reaches.iter().filter(is_mutual).copied().collect();
        if cycle.len() > 1 {
            cycles.push(cycle);
        }
    }
    cycles.sort_by_key(|cycle| std::cmp::Reverse(cycle.len()));
    cycles
}

/// Reports the files that depend on a file in a higher layer.
fn upward(
    dir: &str,
    layers: &[&str],
    dependencies: &BTreeMap<&str, BTreeSet<&str>>,
) -> Vec<String> {
    let layer = |file: &str| {
        let file = file.strip_prefix(dir)?.strip_prefix('/')?;
        layers.iter().position(|layer| file.starts_with(layer))
    };
    let mut complaints = Vec::new();
    for file in dependencies.keys() {
        let Some(own) = layer(file) else { continue };
        let higher = reach(dependencies, file).into_iter().find(|on| layer(on) > Some(own));
        complaints.extend(higher.map(|on| format!("{file}: depends on {on}, in a higher layer")));
    }
    complaints
}

/// Returns the direct and indirect dependencies of `file`.
fn reach<'a>(dependencies: &BTreeMap<&'a str, BTreeSet<&'a str>>, file: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next = vec![file];
    while let Some(file) = next.pop() {
        for dependency in dependencies.get(file).into_iter().flatten() {
            if reached.insert(*dependency) {
                next.push(dependency);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| Source {
                path: format!("crates/a/src/{path}"),
                text: (*text).to_owned(),
            })
            .collect();
        let found = complaints(&files).unwrap();
        found.into_iter().map(|line| line.replace("crates/a/src/", "")).collect()
    }

    #[test]
    fn files_that_use_each_other_are_a_cycle() {
        let lib = ("lib.rs", "mod x; mod y; mod z;");
        let x = ("x.rs", "use crate::y::Y; pub struct X;");
        let y = ("y.rs", "pub struct Y; fn f(_: super::x::X) {}");
        let z = ("z.rs", "use crate::{x::X, y};");
        assert_eq!(found(&[lib, x, y, z]), ["crates/a: 2 files depend on each other: x.rs, y.rs"]);
        assert_eq!(found(&[lib, x, ("y.rs", "pub struct Y;"), z]), [""; 0]);
    }

    #[test]
    fn call_of_a_method_is_a_dependency() {
        let lib = ("lib.rs", "mod x; mod y;");
        let x = ("x.rs", "pub struct X; impl X { fn take_turn(&self) {} }");
        let y = ("y.rs", "pub struct Y; fn f() { g().take_turn(); }");
        assert_eq!(found(&[lib, x, y]), [""; 0]);
        let x = ("x.rs", "pub struct X(super::y::Y); impl X { fn take_turn(&self) {} }");
        assert_eq!(found(&[lib, x, y]), ["crates/a: 2 files depend on each other: x.rs, y.rs"]);
        let also =
            ("y.rs", "struct Z; impl Z { fn take_turn(&self) {} } fn f() { g().take_turn(); }");
        assert_eq!(found(&[lib, x, also]), [""; 0]);
    }

    #[test]
    fn methods_outside_the_file_of_their_type_are_reported() {
        let lib = ("lib.rs", "mod x; mod y;");
        let x = ("x.rs", "pub struct X; impl X { fn a(&self) {} }");
        let y = ("y.rs", "use super::x::X; impl X { fn b(&self) {} } impl Clone for X {}");
        let told = ["y.rs: `impl X` belongs into x.rs, where the type is"];
        assert_eq!(found(&[lib, x, y]), told);
        assert_eq!(found(&[lib, x, ("y.rs", "impl super::x::X { fn b(&self) {} }")]), told);
        let child = ("x/z.rs", "use super::X; impl X { fn b(&self) {} }");
        let x = ("x.rs", "mod z; pub struct X;");
        assert_eq!(found(&[("lib.rs", "mod x;"), x, child]).len(), 1);
    }

    #[test]
    fn reexport_leads_to_the_definition() {
        let lib = ("lib.rs", "mod x; mod y; pub use x::X; pub(crate) use y::*;");
        let x = ("x.rs", "pub struct X; fn f(_: crate::Y) {}");
        let y = ("y.rs", "use crate::X; pub struct Y;");
        assert_eq!(found(&[lib, x, y]), ["crates/a: 2 files depend on each other: x.rs, y.rs"]);
    }

    #[test]
    fn parent_and_child_that_use_each_other_are_a_cycle() {
        let lib = ("lib.rs", "mod x;");
        let uses = ("x.rs", "mod y; use y::Y; pub struct X;");
        let declares = ("x.rs", "mod y; pub use y::Y; pub struct X;");
        let child = ("x/y.rs", "pub(super) struct Y(super::X);");
        assert_eq!(found(&[lib, uses, child]).len(), 1);
        assert_eq!(found(&[lib, declares, child]), [""; 0]);
    }

    #[test]
    fn dependency_on_a_higher_layer_is_reported() {
        let dependencies = |shared_uses: &'static str| {
            BTreeMap::from([
                ("c/src/low/x.rs", BTreeSet::from(["c/src/shared.rs"])),
                ("c/src/shared.rs", BTreeSet::from([shared_uses])),
                ("c/src/high/y.rs", BTreeSet::from(["c/src/low/x.rs"])),
            ])
        };
        let found = |uses| upward("c", &["src/low/", "src/high/"], &dependencies(uses));
        assert_eq!(found("c/src/other.rs"), [""; 0]);
        assert_eq!(
            found("c/src/high/y.rs"),
            ["c/src/low/x.rs: depends on c/src/high/y.rs, in a higher layer"]
        );
    }

    #[test]
    fn cycle_through_tests_is_not_reported() {
        let lib = ("lib.rs", "mod x; mod y;");
        let x = ("x.rs", "pub struct X; #[cfg(test)] mod tests { use crate::y::Y; }");
        let y = ("y.rs", "use crate::x::X; pub struct Y;");
        assert_eq!(found(&[lib, x, y]), [""; 0]);
        let parent = ("x.rs", "pub struct X; #[cfg(test)] mod tests;");
        let tests = ("x/tests.rs", "use crate::y::Y;");
        let uses_tests = ("y.rs", "use crate::x::X; pub struct Y;");
        assert_eq!(found(&[lib, parent, tests, uses_tests]), [""; 0]);
    }
}
