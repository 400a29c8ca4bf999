//! Templates of paths: `/videos/{id}/**`, and their rewrites.

use std::collections::HashSet;

/// The maximum number of variables of a template, and the maximum length of the name of one.
const VARIABLES_MAX: usize = 5;
const NAME_BYTES_MAX: usize = 16;

/// A violated rule.
type Defect = &'static str;

/// Returns the variables of a template for matching.
pub(super) fn variables(template: &str) -> Result<HashSet<&str>, Defect> {
    let Some(mut rest) = template.strip_prefix('/') else { return Err("does not begin with /") };
    let mut parsed = Template::default();
    while !rest.is_empty() {
        rest = parsed.segment(rest)?;
        rest = match rest.strip_prefix('/') {
            Some(after) => after,
            None if rest.is_empty() => "",
            // A suffix may follow the last operator or variable.
            None => parsed.literal(rest).and_then(|after| match after {
                "" => Ok(""),
                _ => Err("has text after a segment that is not a suffix of the path"),
            })?,
        };
    }
    Ok(parsed.names)
}

#[derive(Default)]
struct Template<'a> {
    names: HashSet<&'a str>,
    /// A `**` was found, after which no operator may follow.
    has_text_glob: bool,
}

impl<'a> Template<'a> {
    /// Reads a segment, and returns what follows it.
    fn segment(&mut self, text: &'a str) -> Result<&'a str, Defect> {
        if text.starts_with('*') {
            return self.operator(text);
        }
        let Some(variable) = text.strip_prefix('{') else { return self.literal(text) };
        let (inside, after) = variable.split_once('}').ok_or("has a { without a }")?;
        let (name, pattern) = match inside.split_once('=') {
            Some((name, pattern)) => (name, Some(pattern)),
            None => (inside, None),
        };
        check_name(name)?;
        if self.names.len() >= VARIABLES_MAX {
            return Err("has more than 5 variables");
        }
        if !self.names.insert(name) {
            return Err("has two variables with the same name");
        }
        match pattern {
            None => self.operator("*")?,
            Some("") => return Err("has a variable with an empty pattern"),
            Some(pattern) => {
                let mut rest = pattern;
                while !rest.is_empty() {
                    rest = if rest.starts_with('*') {
                        self.operator(rest)?
                    } else {
                        self.literal(rest)?
                    };
                    rest = match rest.strip_prefix('/') {
                        Some("") => return Err("has a variable whose pattern ends with /"),
                        Some(after) => after,
                        None if rest.is_empty() => "",
                        None => return Err("has a variable with an invalid pattern"),
                    };
                }
                rest
            }
        };
        Ok(after)
    }

    fn operator(&mut self, text: &'a str) -> Result<&'a str, Defect> {
        if self.has_text_glob {
            return Err("has an operator or a variable after **");
        }
        self.has_text_glob = text.starts_with("**");
        Ok(&text[if self.has_text_glob { 2 } else { 1 }..])
    }

    fn literal(&mut self, text: &'a str) -> Result<&'a str, Defect> {
        let len = text.find('/').unwrap_or(text.len());
        let is_valid = |c: char| c.is_ascii_alphanumeric() || "-._~%!$&'()+,;:@".contains(c);
        if len > 0 && text[..len].chars().all(is_valid) {
            Ok(&text[len..])
        } else {
            Err("has an empty segment, or one with a character that is not allowed")
        }
    }
}

fn check_name(name: &str) -> Result<(), Defect> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(is_valid) {
        return Err("has a variable without a valid name");
    }
    if name.len() > NAME_BYTES_MAX {
        return Err("has a variable whose name exceeds 16 bytes");
    }
    Ok(())
}

/// Returns the variables that a rewrite inserts.
pub(super) fn inserted(rewrite: &str) -> Result<HashSet<&str>, Defect> {
    let is_literal = |c: char| c.is_ascii_alphanumeric() || "-._~%!$&'()+,;:@/".contains(c);
    let mut names = HashSet::new();
    let mut rest = rewrite;
    if !rest.starts_with('/') {
        return Err("does not begin with /");
    }
    while !rest.is_empty() {
        let len = rest.find('{').unwrap_or(rest.len());
        if !rest[..len].chars().all(is_literal) {
            return Err("has a character that is not allowed");
        }
        let Some(variable) = rest[len..].strip_prefix('{') else { break };
        let (name, after) = variable.split_once('}').ok_or("has a { without a }")?;
        check_name(name)?;
        names.insert(name);
        rest = after;
    }
    Ok(names)
}
