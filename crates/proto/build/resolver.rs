//! Resolves relative type names with the rules of protoc, before protox processes them.
//!
//! The first part of `core.v3.Address`, used in package `envoy.config.cluster.v3`, may refer to any
//! enclosing package. Only packages that *this file or one of its imports* declares are candidates.
//! The resolver of prost-reflect 0.16 considers every open file. It therefore finds
//! `envoy.extensions.config.core` instead of `envoy.config.core`, and 135 Envoy files fail to
//! compile together. This resolver makes every name absolute first.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    rc::Rc,
};

use prost::Message as _;
use prost_types::{DescriptorProto, FileDescriptorProto};
use protox::{
    Error,
    file::{File, FileResolver, GoogleFileResolver},
};

use crate::linked::Linked;

/// Finds linked files, then files under several roots, and the well-known files inside protox.
pub(crate) struct Resolver {
    linked: Linked,
    roots: Vec<PathBuf>,
    parsed: RefCell<BTreeMap<String, Rc<Parsed>>>,
}

/// A parsed file and the names that it declares.
struct Parsed {
    descriptor: FileDescriptorProto,
    /// The full names of messages and enums.
    declared: BTreeSet<String>,
}

impl Resolver {
    pub(crate) fn new(linked: Linked, roots: Vec<PathBuf>) -> Self {
        Self { linked, roots, parsed: RefCell::default() }
    }

    fn parse(&self, name: &str) -> Result<Rc<Parsed>, Error> {
        if let Some(parsed) = self.parsed.borrow().get(name) {
            return Ok(Rc::clone(parsed));
        }
        let path = self.roots.iter().map(|root| root.join(name)).find(|path| path.is_file());
        let descriptor = match (self.linked.get(name), path) {
            (Some(encoded), _) => {
                FileDescriptorProto::decode(encoded.as_ref()).map_err(Error::new)?
            }
            (None, Some(path)) => {
                let source = fs::read_to_string(&path).map_err(Error::new)?;
                protox_parse::parse(name, &source)?
            }
            (None, None) => {
                GoogleFileResolver::new().open_file(name)?.file_descriptor_proto().clone()
            }
        };
        let mut declared = BTreeSet::new();
        let package = descriptor.package();
        for message in &descriptor.message_type {
            declare(package, message, &mut declared);
        }
        for kind in &descriptor.enum_type {
            declared.insert(format!("{package}.{}", kind.name()));
        }
        let parsed = Rc::new(Parsed { descriptor, declared });
        self.parsed.borrow_mut().insert(name.to_owned(), Rc::clone(&parsed));
        Ok(parsed)
    }

    /// Returns the file, its imports, and their public imports.
    fn visible(&self, file: &Rc<Parsed>) -> Result<Visible, Error> {
        let mut visible = vec![Rc::clone(file)];
        let mut open = file.descriptor.dependency.clone();
        let mut seen = BTreeSet::new();
        while let Some(name) = open.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            let import = self.parse(&name)?;
            let descriptor = &import.descriptor;
            open.extend(descriptor.public_dependency.iter().filter_map(|index| {
                descriptor.dependency.get(usize::try_from(*index).ok()?).cloned()
            }));
            visible.push(import);
        }
        Ok(Visible(visible))
    }
}

impl FileResolver for Resolver {
    fn resolve_path(&self, path: &Path) -> Option<String> {
        let name = self.roots.iter().find_map(|root| path.strip_prefix(root).ok())?;
        Some(name.to_str()?.to_owned())
    }

    fn open_file(&self, name: &str) -> Result<File, Error> {
        if let Some(encoded) = self.linked.get(name) {
            return File::decode_file_descriptor_proto(encoded.clone()).map_err(Error::new);
        }
        let parsed = self.parse(name)?;
        let visible = self.visible(&parsed)?;
        let mut file = parsed.descriptor.clone();
        let package = file.package().to_owned();
        for message in &mut file.message_type {
            visible.absolute_in_message(&package, message);
        }
        for field in &mut file.extension {
            visible.absolute(&package, &mut field.type_name);
            visible.absolute(&package, &mut field.extendee);
        }
        for method in file.service.iter_mut().flat_map(|service| &mut service.method) {
            visible.absolute(&package, &mut method.input_type);
            visible.absolute(&package, &mut method.output_type);
        }
        Ok(File::from_file_descriptor_proto(file))
    }
}

fn declare(scope: &str, message: &DescriptorProto, declared: &mut BTreeSet<String>) {
    let name = format!("{scope}.{}", message.name());
    for nested in &message.nested_type {
        declare(&name, nested, declared);
    }
    for kind in &message.enum_type {
        declared.insert(format!("{name}.{}", kind.name()));
    }
    declared.insert(name);
}

/// The files whose names a file may use.
struct Visible(Vec<Rc<Parsed>>);

impl Visible {
    fn is_type(&self, name: &str) -> bool {
        self.0.iter().any(|file| file.declared.contains(name))
    }

    /// Returns whether `name` is a package or a parent of one.
    fn is_package(&self, name: &str) -> bool {
        self.0.iter().any(|file| {
            let rest = file.descriptor.package().strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }

    /// Makes `name`, used in `scope`, absolute.
    ///
    /// The innermost scope that declares the first part of the name decides. An unresolvable name
    /// stays unchanged, and protox reports it.
    fn absolute(&self, scope: &str, name: &mut Option<String>) {
        let Some(relative) = name.as_mut().filter(|name| !name.starts_with('.')) else { return };
        let first = relative.split('.').next().unwrap_or(relative);
        let is_qualified = first.len() != relative.len();
        let mut scope = Some(scope);
        while let Some(inner) = scope {
            let prefix = if inner.is_empty() { String::new() } else { format!("{inner}.") };
            let head = format!("{prefix}{first}");
            if self.is_type(&head) || (is_qualified && self.is_package(&head)) {
                *relative = format!(".{prefix}{relative}");
                return;
            }
            scope = match inner.rsplit_once('.') {
                Some((outer, _)) => Some(outer),
                None => (!inner.is_empty()).then_some(""),
            };
        }
    }

    fn absolute_in_message(&self, scope: &str, message: &mut DescriptorProto) {
        let inner = format!("{scope}.{}", message.name());
        for field in message.field.iter_mut().chain(&mut message.extension) {
            self.absolute(&inner, &mut field.type_name);
            self.absolute(&inner, &mut field.extendee);
        }
        for nested in &mut message.nested_type {
            self.absolute_in_message(&inner, nested);
        }
    }
}
