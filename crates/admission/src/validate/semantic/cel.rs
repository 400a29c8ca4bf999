//! Expressions of the Common Expression Language: `request.path.startsWith("/a") && response.code >= 400`.
//!
//! Only the syntax is checked. Envoy disables the macros that iterate over lists.

use super::versions::before;
use crate::validate::{findings::Findings, tree::Message};

/// The maximum depth of nested expressions that is checked.
const DEPTH_MAX: usize = 100;

/// The macros that iterate.
const MACROS: [&[u8]; 5] = [b"all", b"exists", b"exists_one", b"map", b"filter"];

/// The words that cannot name a variable or a function.
const RESERVED: [&[u8]; 17] = [
    b"as",
    b"break",
    b"const",
    b"continue",
    b"else",
    b"for",
    b"function",
    b"if",
    b"import",
    b"in",
    b"let",
    b"loop",
    b"namespace",
    b"package",
    b"return",
    b"void",
    b"while",
];

/// The reason why an expression is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Defect {
    Syntax,
    Macro,
    /// The expression is nested too deeply to be checked.
    Deep,
}

type Parsed = Result<(), Defect>;

/// Checks an expression.
pub(super) fn check(text: &str) -> Result<(), &'static str> {
    let mut parser = Parser { rest: text.as_bytes(), depth: 0 };
    match parser.expression().and_then(|()| parser.end()) {
        Err(Defect::Syntax) => Err("is not a valid CEL expression"),
        Err(Defect::Macro) => Err("iterates over a list, which Envoy disables in CEL"),
        Ok(()) | Err(Defect::Deep) => Ok(()),
    }
}

/// Returns whether a backquote is outside of a text.
fn has_backquote(text: &str) -> bool {
    let mut quote = None;
    let mut letters = text.chars();
    while let Some(c) = letters.next() {
        match (c, quote) {
            ('`', None) => return true,
            ('\\', Some(_)) => drop(letters.next()),
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            _ => {}
        }
    }
    false
}

/// Records a defect of the expression in a field.
fn field<'m>(message: &'m Message<'_>, name: &'static str, findings: &mut Findings<'m>) {
    let text = message.text(name);
    if let Err(rule) = check(text) {
        findings.field(name, |findings| findings.refuse("cel.syntax", rule));
    } else if has_backquote(text) {
        findings.only(before(40), |findings| {
            let rule = "has a backquote, which is not valid CEL";
            findings.field(name, |findings| findings.refuse("cel.syntax", rule));
        });
    }
}

/// The expression of a filter of access logs is valid.
pub(super) fn log_filter<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    field(filter, "expression", findings);
}

/// The expression of a rate limit descriptor is valid.
pub(super) fn descriptor<'m>(descriptor: &'m Message<'_>, findings: &mut Findings<'m>) {
    if descriptor.has("text") {
        field(descriptor, "text", findings);
    }
}

/// The attributes that an external processor receives are expressions.
pub(super) fn attributes<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    for list in ["request_attributes", "response_attributes"] {
        for (index, text) in filter.texts(list).enumerate() {
            if let Err(rule) = check(text) {
                findings.item(list, index, |findings| findings.refuse("cel.syntax", rule));
            }
        }
    }
}

/// Returns what follows the first bytes of a kind.
fn after(text: &[u8], is_kind: impl Fn(&u8) -> bool) -> &[u8] {
    let len = text.iter().take_while(|byte| is_kind(byte)).count();
    &text[len..]
}

fn starts_with_digit(text: &[u8]) -> bool {
    text.first().is_some_and(u8::is_ascii_digit)
}

/// A parser by recursive descent.
struct Parser<'a> {
    rest: &'a [u8],
    depth: usize,
}

impl<'a> Parser<'a> {
    fn space(&mut self) {
        loop {
            let len = self.rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            self.rest = &self.rest[len..];
            if !self.rest.starts_with(b"//") {
                return;
            }
            let line = self.rest.iter().position(|byte| *byte == b'\n');
            self.rest = line.map_or(&[], |line| &self.rest[line..]);
        }
    }

    /// Reads a token, if it comes next.
    fn take(&mut self, token: &[u8]) -> bool {
        self.space();
        let Some(rest) = self.rest.strip_prefix(token) else { return false };
        self.rest = rest;
        true
    }

    fn need(&mut self, token: &[u8]) -> Parsed {
        self.take(token).then_some(()).ok_or(Defect::Syntax)
    }

    fn end(&mut self) -> Parsed {
        self.space();
        self.rest.is_empty().then_some(()).ok_or(Defect::Syntax)
    }

    fn expression(&mut self) -> Parsed {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Defect::Deep);
        }
        self.operands()?;
        if self.take(b"?") {
            self.operands()?;
            self.need(b":")?;
            self.expression()?;
        }
        self.depth -= 1;
        Ok(())
    }

    /// Reads operands with binary operators between them. Their precedence does not change what is valid.
    fn operands(&mut self) -> Parsed {
        const OPERATORS: [&[u8]; 13] =
            [b"||", b"&&", b"<=", b">=", b"==", b"!=", b"<", b">", b"+", b"-", b"*", b"/", b"%"];
        loop {
            self.unary()?;
            let is_in = self.word() == b"in";
            if is_in {
                self.rest = &self.rest[2..];
            }
            if !is_in && !OPERATORS.iter().any(|operator| self.take(operator)) {
                return Ok(());
            }
        }
    }

    fn unary(&mut self) -> Parsed {
        if self.take(b"!") {
            while self.take(b"!") {}
        } else {
            while self.take(b"-") {}
        }
        self.primary()?;
        loop {
            if self.take(b".`") {
                let end = self.rest.iter().position(|byte| *byte == b'`').ok_or(Defect::Syntax)?;
                self.rest = &self.rest[end + 1..];
            } else if self.take(b".") {
                let name = self.identifier()?;
                if self.take(b"(") {
                    if MACROS.contains(&name) {
                        return Err(Defect::Macro);
                    }
                    self.items(b")", false)?;
                }
            } else if self.take(b"[") {
                self.expression()?;
                self.need(b"]")?;
            } else if self.take(b"{") {
                self.items(b"}", true)?;
            } else {
                return Ok(());
            }
        }
    }

    fn primary(&mut self) -> Parsed {
        if self.take(b"(") {
            self.expression()?;
            return self.need(b")");
        }
        if self.take(b"[") {
            return self.items(b"]", false);
        }
        if self.take(b"{") {
            return self.items(b"}", true);
        }
        if self.literal()? {
            return Ok(());
        }
        self.take(b".");
        if RESERVED.contains(&self.identifier()?) {
            return Err(Defect::Syntax);
        }
        if self.take(b"(") {
            self.items(b")", false)?;
        }
        Ok(())
    }

    /// Reads expressions, or pairs of them, with commas between them, and the token that ends the list.
    fn items(&mut self, end: &[u8], has_pairs: bool) -> Parsed {
        while !self.take(end) {
            self.expression()?;
            if has_pairs {
                self.need(b":")?;
                self.expression()?;
            }
            if !self.take(b",") {
                return self.need(end);
            }
            // A list may end with a comma, unlike the arguments of a function.
            if end == b")" && self.take(end) {
                return Err(Defect::Syntax);
            }
        }
        Ok(())
    }

    /// Returns the word that comes next; empty without one.
    fn word(&mut self) -> &'a [u8] {
        self.space();
        let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
        let len = self.rest.iter().take_while(is_part).count();
        &self.rest[..len]
    }

    fn identifier(&mut self) -> Result<&'a [u8], Defect> {
        let len = self.word().len();
        let (name, rest) = self.rest.split_at(len);
        self.rest = rest;
        match name.first() {
            Some(first) if !first.is_ascii_digit() && name != b"in" => Ok(name),
            _ => Err(Defect::Syntax),
        }
    }

    /// Reads a number or a text, and returns whether one came next.
    fn literal(&mut self) -> Result<bool, Defect> {
        let len = self.word().len();
        if self.number() {
            return Ok(true);
        }
        let prefix = self.rest[..len].to_ascii_lowercase();
        let is_prefix = matches!(prefix.as_slice(), b"" | b"r" | b"b" | b"br" | b"rb");
        match self.rest.get(len) {
            Some(quote @ (b'"' | b'\'')) if is_prefix => {
                let quote = *quote;
                self.rest = &self.rest[len..];
                self.text(quote, prefix.contains(&b'r')).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Reads a number, and returns whether one came next.
    fn number(&mut self) -> bool {
        let hex = self.rest.strip_prefix(b"0x").or(self.rest.strip_prefix(b"0X"));
        if let Some(digits) = hex.filter(|hex| hex.first().is_some_and(u8::is_ascii_hexdigit)) {
            self.rest = after(digits, u8::is_ascii_hexdigit);
            self.take_suffix();
            return true;
        }
        let whole = after(self.rest, u8::is_ascii_digit);
        let fraction = whole.strip_prefix(b".").filter(|rest| starts_with_digit(rest));
        if whole.len() == self.rest.len() && fraction.is_none() {
            return false;
        }
        self.rest = fraction.map_or(whole, |rest| after(rest, u8::is_ascii_digit));
        let exponent = self.rest.strip_prefix(b"e").or(self.rest.strip_prefix(b"E"));
        let exponent = exponent
            .map(|rest| rest.strip_prefix(b"+").or(rest.strip_prefix(b"-")).unwrap_or(rest))
            .filter(|rest| starts_with_digit(rest));
        if let Some(digits) = exponent {
            self.rest = after(digits, u8::is_ascii_digit);
        }
        self.take_suffix();
        true
    }

    /// Reads the suffix of unsigned numbers.
    fn take_suffix(&mut self) {
        if let [b'u' | b'U', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    fn text(&mut self, quote: u8, is_raw: bool) -> Parsed {
        let long = [quote; 3];
        let is_long = self.rest.starts_with(&long);
        let end: &[u8] = if is_long { &long } else { &long[..1] };
        let mut at = end.len();
        loop {
            let rest = self.rest.get(at..).filter(|rest| !rest.is_empty()).ok_or(Defect::Syntax)?;
            if rest.starts_with(end) {
                self.rest = &rest[end.len()..];
                return Ok(());
            }
            if !is_long && rest[0] == b'\n' {
                return Err(Defect::Syntax);
            }
            at += if rest[0] == b'\\' && !is_raw { 2 } else { 1 };
        }
    }
}
