//! State: only the file of a type changes its fields.
//!
//! The rule covers each structure with named fields and an inherent method that takes `&mut self`: such a type has
//! state, and its file may keep invariants. An assignment to a field, a mutable reference to one, and a call that
//! changes a collection in one are changes.
//!
//! The rule does not know the type of an expression. It therefore reports a change only if every structure and message
//! that has a field of this name is such a type of another file. Structures with a lifetime do not have state: they lend
//! the parts of others for one call.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use syn::{
    BinOp, Expr, Fields, ImplItem, Item, Member,
    visit::{self, Visit},
};

use super::cycles::{is_test, parts};
use crate::source::Source;

/// The methods of collections and cells that change them.
const CHANGING: &[&str] = &[
    "append",
    "clear",
    "drain",
    "entry",
    "extend",
    "get_mut",
    "insert",
    "pop",
    "pop_back",
    "pop_first",
    "pop_front",
    "pop_last",
    "push",
    "push_back",
    "push_front",
    "remove",
    "replace",
    "retain",
    "swap_remove",
    "take",
    "truncate",
];

/// The fields that types of the standard library have, too.
const FOREIGN_FIELDS: &[&str] = &["stderr", "stdin", "stdout"];

/// Reports changes of a type's fields outside of its file.
pub(super) fn complaints(files: &[Source]) -> Result<Vec<String>> {
    let mut read = Vec::new();
    let mut owners: BTreeMap<String, BTreeSet<Owner>> = BTreeMap::new();
    for file in files {
        if file.path.ends_with(".proto") {
            for field in message_fields(&file.text) {
                owners.entry(field).or_default().insert(Owner::default());
            }
        }
        let Some((_, rest)) = file.path.split_once("/src/") else { continue };
        let is_code = rest.ends_with(".rs") && !format!("/{rest}").contains("/tests");
        if is_code {
            let syntax = syn::parse_file(&file.text).with_context(|| file.path.clone())?;
            read.push((file.path.as_str(), syntax));
        }
    }
    for (path, syntax) in &read {
        let mut structures = Structures::default();
        structures.visit_file(syntax);
        for (name, fields, has_lifetime) in structures.found {
            let has_state = !has_lifetime && structures.changing.contains(&name);
            let owner = Owner { name, file: has_state.then(|| (*path).to_owned()) };
            for field in fields {
                owners.entry(field).or_default().insert(owner.clone());
            }
        }
    }
    Ok(read.iter().flat_map(|(path, syntax)| foreign_changes(path, syntax, &owners)).collect())
}

/// The structure of a field.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Owner {
    name: String,
    /// The file, if the structure has state. Messages have none.
    file: Option<String>,
}

/// Returns the names of the fields of messages in a proto file.
fn message_fields(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter_map(|line| {
        let (field, number) = line.split("//").next()?.split_once(" = ")?;
        number.starts_with(|c: char| c.is_ascii_digit()).then_some(())?;
        field.split_whitespace().last().map(str::to_owned)
    })
}

fn foreign_changes(
    path: &str,
    syntax: &syn::File,
    owners: &BTreeMap<String, BTreeSet<Owner>>,
) -> Vec<String> {
    let mut changes = Changes::default();
    changes.visit_file(syntax);
    let complaint = |field: String| {
        let owners = owners.get(&field).filter(|_| !FOREIGN_FIELDS.contains(&field.as_str()))?;
        let is_foreign = |owner: &Owner| owner.file.as_ref().is_some_and(|file| file != path);
        let names: Vec<&str> = owners.iter().map(|owner| owner.name.as_str()).collect();
        let names = names.join(" or ");
        owners
            .iter()
            .all(is_foreign)
            .then(|| format!("{path}: changes the field `{field}` of {names}, in another file"))
    };
    changes.found.into_iter().filter_map(complaint).collect()
}

/// The structures of a file: name, fields, whether it has a lifetime; and the types with a method that changes them.
#[derive(Debug, Default)]
struct Structures {
    found: Vec<(String, Vec<String>, bool)>,
    changing: BTreeSet<String>,
}

impl<'a> Visit<'a> for Structures {
    fn visit_item(&mut self, item: &'a Item) {
        if !is_test(parts(item).0) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'a syn::ItemStruct) {
        let Fields::Named(fields) = &item.fields else { return };
        let fields = fields.named.iter().filter_map(|field| field.ident.as_ref());
        let has_lifetime = item.generics.lifetimes().next().is_some();
        let fields = fields.map(ToString::to_string).collect();
        self.found.push((item.ident.to_string(), fields, has_lifetime));
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        let syn::Type::Path(of) = &*item.self_ty else { return };
        let changes = |item: &ImplItem| match item {
            ImplItem::Fn(method) => method.sig.receiver().is_some_and(|receiver| {
                receiver.reference.is_some() && receiver.mutability.is_some()
            }),
            _ => false,
        };
        if item.trait_.is_none() && item.items.iter().any(changes) {
            self.changing.extend(of.path.segments.last().map(|last| last.ident.to_string()));
        }
    }
}

/// The names of the fields that a file changes, except through `self`.
#[derive(Debug, Default)]
struct Changes {
    found: BTreeSet<String>,
}

impl Changes {
    fn note(&mut self, place: &Expr) {
        match place {
            Expr::Field(field) => {
                if let (Member::Named(name), false) = (&field.member, is_self(&field.base)) {
                    self.found.insert(name.to_string());
                }
            }
            Expr::Index(index) => self.note(&index.expr),
            Expr::Paren(inner) => self.note(&inner.expr),
            Expr::Unary(inner) => self.note(&inner.expr),
            _ => {}
        }
    }
}

fn is_self(expr: &Expr) -> bool {
    matches!(expr, Expr::Path(path) if path.path.is_ident("self"))
}

impl<'a> Visit<'a> for Changes {
    fn visit_item(&mut self, item: &'a Item) {
        if !is_test(parts(item).0) {
            visit::visit_item(self, item);
        }
    }

    fn visit_expr_assign(&mut self, assign: &'a syn::ExprAssign) {
        self.note(&assign.left);
        visit::visit_expr_assign(self, assign);
    }

    fn visit_expr_binary(&mut self, binary: &'a syn::ExprBinary) {
        let assigns = matches!(
            binary.op,
            BinOp::AddAssign(_)
                | BinOp::SubAssign(_)
                | BinOp::MulAssign(_)
                | BinOp::DivAssign(_)
                | BinOp::BitOrAssign(_)
                | BinOp::BitAndAssign(_)
                | BinOp::BitXorAssign(_)
        );
        if assigns {
            self.note(&binary.left);
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_reference(&mut self, reference: &'a syn::ExprReference) {
        if reference.mutability.is_some() {
            self.note(&reference.expr);
        }
        visit::visit_expr_reference(self, reference);
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        if CHANGING.contains(&call.method.to_string().as_str()) {
            self.note(&call.receiver);
        }
        visit::visit_expr_method_call(self, call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let source = |(path, text): &(&str, &str)| Source {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        };
        complaints(&files.iter().map(source).collect::<Vec<_>>()).unwrap()
    }

    const STATE: (&str, &str) = (
        "crates/x/src/state.rs",
        "pub struct State { pub count: u64, pub list: Vec<u8>, pub name: u8 }\n\
         impl State { pub fn add(&mut self) { self.count += 1; } }\n\
         struct Data { name: u8 }",
    );

    #[test]
    fn change_outside_of_the_file_is_reported() {
        for change in [
            "s.count = 1;",
            "s.count += 1;",
            "f(&mut s.list);",
            "a.b.list.push(1);",
            "s.list[0] = 1;",
        ] {
            let other = format!("fn f() {{ {change} }}");
            let found = found(&[STATE, ("crates/x/src/other.rs", &other)]);
            assert!(
                found.len() == 1 && found[0].starts_with("crates/x/src/other.rs: "),
                "{change}: {found:?}"
            );
            assert!(found[0].contains("of State"), "{found:?}");
        }
    }

    #[test]
    fn other_uses_are_not_reported() {
        // A field of another structure may have the name, and `self` is of a type of this file.
        for use_of in ["s.name = 1;", "g(s.count, &s.list);", "s.list.len();"] {
            let other = format!("fn f() {{ {use_of} }}");
            assert_eq!(found(&[STATE, ("crates/x/src/other.rs", &other)]), [""; 0], "{use_of}");
        }
        let test = "#[cfg(test)] mod tests { fn f() { s.count = 1; } }";
        assert_eq!(found(&[STATE, ("crates/x/src/other.rs", test)]), [""; 0]);
        let proto = "message Counted {\n  // The number = 1.\n  uint64 count = 1;\n}\n";
        let other = ("crates/x/src/other.rs", "fn f() { s.count = 1; }");
        assert_eq!(found(&[STATE, ("proto/a.proto", proto), other]), [""; 0]);
    }
}
