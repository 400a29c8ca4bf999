//! The syntax of Lua 5.1 with the additions of LuaJIT, which runs the scripts of Envoy.
//!
//! The parser recognizes scripts and builds nothing. Its time is linear in the length of the script.

use super::pem;
use crate::{
    node::shown,
    validate::{findings::Findings, tree::Message},
};

/// The depth after which the rest of a script is not examined. The limit of LuaJIT is 200.
const DEPTH_MAX: u32 = 150;

const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local",
    "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
];
const OPERATORS: [&str; 15] =
    ["+", "-", "*", "/", "%", "^", "..", "<", "<=", ">", ">=", "==", "~=", "and", "or"];
/// The symbols, the longest ones first.
const SYMBOLS: [&str; 28] = [
    "...", "..", "==", "~=", "<=", ">=", "::", "+", "-", "*", "/", "%", "^", "#", "<", ">", "=",
    "(", ")", "{", "}", "[", "]", ";", ":", ",", ".", "~",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Name(&'a str),
    /// A number or a string.
    Literal,
    /// A keyword or a symbol.
    Fixed(&'a str),
    End,
}

/// A defect: a sentence, or `None` if the script is nested too deeply to be examined.
type Defect = Option<String>;
type Parsed<T = ()> = Result<T, Defect>;

/// Checks a script.
pub(super) fn check(script: &str) -> Result<(), String> {
    let rest =
        script.strip_prefix('#').map_or(script, |_| script.split_once('\n').map_or("", |it| it.1));
    let mut parser = Parser { all: rest, rest, token: Token::End, depth: 0 };
    let parsed = parser.advance().and_then(|()| parser.block()).and_then(|()| match parser.token {
        Token::End => Ok(()),
        _ => parser.unexpected(),
    });
    match parsed {
        Ok(()) | Err(None) => Ok(()),
        Err(Some(rule)) => Err(rule),
    }
}

struct Parser<'a> {
    all: &'a str,
    rest: &'a str,
    token: Token<'a>,
    depth: u32,
}

impl<'a> Parser<'a> {
    fn error<T>(&self, what: &str) -> Parsed<T> {
        let read = &self.all[..self.all.len() - self.rest.len()];
        Err(Some(format!("is not Lua: line {}: {what}", read.matches('\n').count() + 1)))
    }

    fn unexpected<T>(&self) -> Parsed<T> {
        match self.token {
            Token::End => self.error("unexpected end of the script"),
            Token::Literal => self.error("unexpected number or string"),
            Token::Name(text) | Token::Fixed(text) => {
                self.error(&format!("unexpected {}", shown(text)))
            }
        }
    }

    /// Reads the next token.
    fn advance(&mut self) -> Parsed {
        self.token = self.read()?;
        Ok(())
    }

    fn read(&mut self) -> Parsed<Token<'a>> {
        loop {
            self.rest = self.rest.trim_start();
            let Some(comment) = self.rest.strip_prefix("--") else { break };
            self.rest = comment;
            if !self.long_bracket()? {
                self.rest = self.rest.split_once('\n').map_or("", |(_, rest)| rest);
            }
        }
        let Some(first) = self.rest.chars().next() else { return Ok(Token::End) };
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || !c.is_ascii();
        if self.rest.starts_with('[') && self.long_bracket()? {
            return Ok(Token::Literal);
        }
        let second = self.rest[first.len_utf8()..].chars().next();
        if first.is_ascii_digit() || first == '.' && second.is_some_and(|c| c.is_ascii_digit()) {
            let mut last = ' ';
            let len = self.rest.find(|c: char| {
                let is_sign = "+-".contains(c) && "eEpP".contains(last);
                last = c;
                !(is_word(c) || c == '.' || is_sign)
            });
            self.rest = &self.rest[len.unwrap_or(self.rest.len())..];
            return Ok(Token::Literal);
        }
        if first == '"' || first == '\'' {
            return self.string(first);
        }
        if is_word(first) {
            let len = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
            let (word, rest) = self.rest.split_at(len);
            self.rest = rest;
            return Ok(if KEYWORDS.contains(&word) {
                Token::Fixed(word)
            } else {
                Token::Name(word)
            });
        }
        let symbol = SYMBOLS.iter().find(|symbol| self.rest.starts_with(**symbol));
        let Some(symbol) = symbol else { return self.error("unexpected character") };
        self.rest = &self.rest[symbol.len()..];
        Ok(Token::Fixed(symbol))
    }

    fn string(&mut self, quote: char) -> Parsed<Token<'a>> {
        let mut escaped = false;
        for (at, c) in self.rest.char_indices().skip(1) {
            match c {
                // A line that continues may end in CR LF.
                '\r' if escaped => {}
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '\n' => break,
                c if c == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(Token::Literal);
                }
                _ => {}
            }
        }
        self.error("a string has no end")
    }

    /// Skips `[[…]]` or `[=[…]=]`, and returns whether it was there.
    fn long_bracket(&mut self) -> Parsed<bool> {
        let Some(inner) = self.rest.strip_prefix('[') else { return Ok(false) };
        let level = inner.len() - inner.trim_start_matches('=').len();
        let Some(text) = inner[level..].strip_prefix('[') else { return Ok(false) };
        match text.split_once(&format!("]{}]", "=".repeat(level))) {
            Some((_, rest)) => {
                self.rest = rest;
                Ok(true)
            }
            None => self.error("a long bracket has no end"),
        }
    }

    fn is(&self, fixed: &str) -> bool {
        self.token == Token::Fixed(fixed)
    }

    fn take(&mut self, fixed: &str) -> Parsed<bool> {
        let is = self.is(fixed);
        if is {
            self.advance()?;
        }
        Ok(is)
    }

    fn expect(&mut self, fixed: &str) -> Parsed {
        if self.take(fixed)? { Ok(()) } else { self.unexpected() }
    }

    fn name(&mut self) -> Parsed {
        match self.token {
            Token::Name(_) => self.advance(),
            _ => self.unexpected(),
        }
    }

    fn nested(&mut self, parse: impl FnOnce(&mut Self) -> Parsed) -> Parsed {
        if self.depth >= DEPTH_MAX {
            return Err(None);
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    fn ends_block(&self) -> bool {
        let ends = ["end", "else", "elseif", "until"];
        self.token == Token::End || ends.iter().any(|end| self.is(end))
    }

    fn block(&mut self) -> Parsed {
        self.nested(|parser| {
            while !parser.ends_block() {
                if parser.take("return")? {
                    if !parser.ends_block() && !parser.is(";") {
                        parser.expressions()?;
                    }
                    parser.take(";")?;
                    return if parser.ends_block() { Ok(()) } else { parser.unexpected() };
                }
                parser.statement()?;
                while parser.take(";")? {}
            }
            Ok(())
        })
    }

    fn statement(&mut self) -> Parsed {
        let Token::Fixed(word) = self.token else { return self.expression_statement() };
        match word {
            "if" => {
                while self.take("if")? || self.take("elseif")? {
                    self.expression()?;
                    self.expect("then")?;
                    self.block()?;
                }
                if self.take("else")? {
                    self.block()?;
                }
                return self.expect("end");
            }
            "while" => {
                self.advance()?;
                self.expression()?;
            }
            "do" => {}
            "for" => self.loop_head()?,
            "repeat" => {
                self.advance()?;
                self.block()?;
                self.expect("until")?;
                return self.expression();
            }
            "function" => {
                self.advance()?;
                self.name()?;
                while self.take(".")? {
                    self.name()?;
                }
                if self.take(":")? {
                    self.name()?;
                }
                return self.function();
            }
            "local" => {
                self.advance()?;
                if self.take("function")? {
                    self.name()?;
                    return self.function();
                }
                self.names()?;
                return if self.take("=")? { self.expressions() } else { Ok(()) };
            }
            "break" | ";" => return self.advance(),
            "::" => {
                self.advance()?;
                self.name()?;
                return self.expect("::");
            }
            _ => return self.expression_statement(),
        }
        self.expect("do")?;
        self.block()?;
        self.expect("end")
    }

    fn loop_head(&mut self) -> Parsed {
        self.advance()?;
        self.names()?;
        if !self.take("=")? {
            self.expect("in")?;
        }
        self.expressions()
    }

    fn names(&mut self) -> Parsed {
        self.name()?;
        while self.take(",")? {
            self.name()?;
        }
        Ok(())
    }

    /// Reads a call, an assignment, or a `goto`.
    fn expression_statement(&mut self) -> Parsed {
        if self.token == Token::Name("goto") {
            self.advance()?;
            return self.name();
        }
        if !self.suffixed()? {
            self.assignment()
        } else if self.is("=") || self.is(",") {
            self.unexpected()
        } else {
            Ok(())
        }
    }

    fn assignment(&mut self) -> Parsed {
        while self.take(",")? {
            if self.suffixed()? {
                return self.unexpected();
            }
        }
        self.expect("=")?;
        self.expressions()
    }

    fn expressions(&mut self) -> Parsed {
        self.expression()?;
        while self.take(",")? {
            self.expression()?;
        }
        Ok(())
    }

    fn expression(&mut self) -> Parsed {
        self.nested(|parser| {
            loop {
                while parser.take("not")? || parser.take("-")? || parser.take("#")? {}
                parser.operand()?;
                let Token::Fixed(word) = parser.token else { return Ok(()) };
                if !OPERATORS.contains(&word) {
                    return Ok(());
                }
                parser.advance()?;
            }
        })
    }

    fn operand(&mut self) -> Parsed {
        match self.token {
            Token::Literal | Token::Fixed("nil" | "true" | "false" | "...") => self.advance(),
            Token::Fixed("{") => self.table(),
            Token::Fixed("function") => {
                self.advance()?;
                self.function()
            }
            _ => self.suffixed().map(|_| ()),
        }
    }

    /// Reads a name or a group and what follows it. Returns whether it ends with a call.
    fn suffixed(&mut self) -> Parsed<bool> {
        if self.take("(")? {
            self.expression()?;
            self.expect(")")?;
        } else {
            self.name()?;
        }
        self.suffixes(false)
    }

    fn suffixes(&mut self, mut is_call: bool) -> Parsed<bool> {
        loop {
            match self.token {
                Token::Fixed(".") => {
                    self.advance()?;
                    self.name()?;
                    is_call = false;
                }
                Token::Fixed("[") => {
                    self.advance()?;
                    self.expression()?;
                    self.expect("]")?;
                    is_call = false;
                }
                Token::Fixed(":") => {
                    self.advance()?;
                    self.name()?;
                    self.arguments()?;
                    is_call = true;
                }
                Token::Literal | Token::Fixed("(" | "{") => {
                    self.arguments()?;
                    is_call = true;
                }
                _ => return Ok(is_call),
            }
        }
    }

    fn arguments(&mut self) -> Parsed {
        match self.token {
            Token::Literal => self.advance(),
            Token::Fixed("{") => self.table(),
            Token::Fixed("(") => {
                self.advance()?;
                if !self.is(")") {
                    self.expressions()?;
                }
                self.expect(")")
            }
            _ => self.unexpected(),
        }
    }

    fn table(&mut self) -> Parsed {
        self.expect("{")?;
        while !self.is("}") {
            if self.take("[")? {
                self.expression()?;
                self.expect("]")?;
                self.expect("=")?;
            }
            // A name with a value begins like an expression.
            self.expression()?;
            if self.take("=")? {
                self.expression()?;
            }
            if !self.take(",")? && !self.take(";")? {
                break;
            }
        }
        self.expect("}")
    }

    /// Reads the parameters and the body of a function.
    fn function(&mut self) -> Parsed {
        self.expect("(")?;
        while !self.is(")") {
            if !self.take("...")? {
                self.name()?;
            }
            if !self.take(",")? {
                break;
            }
        }
        self.expect(")")?;
        self.block()?;
        self.expect("end")
    }
}

/// The scripts of a filter or a matcher are valid.
pub(super) fn scripts<'m>(owner: &'m Message<'_>, findings: &mut Findings<'m>) {
    if let Err(rule) = check(owner.text("inline_code")) {
        findings.field("inline_code", |findings| findings.refuse("lua.syntax", rule));
    }
    for field in ["default_source_code", "source_code"] {
        if let Some(source) = owner.message(field) {
            findings.field(field, |findings| script(source, findings));
        }
    }
    for entry in owner.messages("source_codes") {
        let Some(source) = entry.message("value") else { continue };
        findings.field("source_codes", |findings| {
            findings.key(entry.text("key"), |findings| script(source, findings));
        });
    }
}

fn script<'m>(source: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some((field, content)) = pem::inline(source) else { return };
    // The name of a script may start with the mark of compiled code, which is not text.
    let Ok(text) = std::str::from_utf8(content) else { return };
    if !text.starts_with('\u{1b}')
        && let Err(rule) = check(text)
    {
        findings.field(field, |findings| findings.refuse("lua.syntax", rule));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lua_parser_accepts_valid_scripts_and_refuses_broken_ones() {
        for good in [
            "",
            "-- nothing\n",
            "--[==[ a\n ]] ]==] x = 1",
            "function envoy_on_request(h) h:headers():add('a', \"b\\\"\") end",
            "local a, b = 1, 0x1fULL; local t = {1, 2; a = 3, ['b'] = f{}, g'x'} return t",
            "for i = 1, 10, 2 do if i == 3 then break elseif not x then y = 1 else z() end end",
            "for k, v in pairs(t) do t[k].x.y, b = v, -#t .. 'a' ^ 2 end",
            "repeat local x = (f)(1)[2]:g() until x >= 1e-5 or y ~= .5",
            "while true do goto done end ::done:: do return end",
            "function a.b.c:d(...) local f = function(x, ...) return ... end end",
            "x = [[\nlong]] y = [=[ ]] ]=] goto_count = 1",
            "(f or g)(1); (t).x = 1",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in [
            "function (",
            "function envoy_on_request(h) if end",
            "function f() ",
            "x = ",
            "x == 1",
            "f() = 1",
            "local 1 = 2",
            "x = 'open",
            "x = [[open",
            "if x then y = 1",
            "for i in do end",
            "return 1 x = 2",
            "end",
            "x = {1, 2",
            "a.b",
            "x = 1 $ 2",
            "while x y() end",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
        let deep = "x = ".to_owned() + &"(".repeat(10_000);
        assert_eq!(check(&deep), Ok(()), "a script that is nested too deeply is not examined");
    }
}
