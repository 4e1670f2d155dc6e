//! Prototype parser: from the text of a prototype to its syntax tree.
//!
//! Owns the grammar. Tokens are runs of letters, digits and `_`, and single other characters.
//!
//! ```text
//! PROTOTYPE := FUNCTION '(' [ PARAMETER { ',' PARAMETER } ] ')'
//! PARAMETER := 'NULL' | FIELD { '|' (FIELD | 'NULL') }
//! FIELD     := TYPE NAME { '+' NUMBER | '[' NUMBER ']' }
//!            | TYPE [ NAME '=' ] ( '0x' HEX | '$' SYMBOL )
//! TYPE      := ['unsigned'] ATOM [ '[' NUMBER ']' ]
//! ```
//!
//! A problem ends its parameter; parsing continues after the next comma, so that several are
//! reported at once. Never translates.

use super::super::Span;
use super::super::ast::{BaseType, MemoryAddress, Name};
use super::super::code::Code;
use super::super::diagnostic::Diagnostic;
use super::super::line::{self, Word};
use super::super::names::{is_identifier, is_of_name};
use super::super::number;
use super::ast::{Atom, Field, FieldType, Prototype, Source, Step, StepKind};

/// Parameters of a function that are passed in registers.
const PARAMETERS_MAX: u32 = 6;

/// Parses the only prototype in `text`.
pub fn parse(text: &str) -> Result<Prototype, Vec<Diagnostic>> {
    let tokens = tokens(text).map_err(|problem| vec![problem])?;
    let mut parser = Parser { tokens: &tokens, next: 0, used: 0 };
    parser.prototype()
}

struct Parser<'t> {
    tokens: &'t [Word<'t>],
    /// Index of the next token.
    next: usize,
    /// Parameters of the function that are used up.
    used: u32,
}

impl<'t> Parser<'t> {
    fn prototype(&mut self) -> Result<Prototype, Vec<Diagnostic>> {
        let function = self.function().map_err(|problem| vec![problem])?;
        let mut fields = Vec::new();
        let mut errors = Vec::new();
        if self.take(")").is_none() {
            loop {
                if let Err(problem) = self.parameter(&mut fields) {
                    errors.push(problem);
                    self.skip_parameter();
                }
                if self.take(",").is_some() {
                    continue;
                }
                if self.take(")").is_none() {
                    // Only a problem leads here, and what follows it was skipped.
                    return Err(errors);
                }
                break;
            }
        }
        if let Some(extra) = self.peek() {
            let span = Span::new(extra.start, self.end());
            errors.push(Diagnostic::error(Code::UnexpectedToken, span, "nothing can follow the `)`"));
        }
        let span = Span::new(function.span.start, self.end());
        if errors.is_empty() { Ok(Prototype { function, fields, span }) } else { Err(errors) }
    }

    fn function(&mut self) -> Result<Name, Diagnostic> {
        let function = self.name("the name of a function")?;
        match self.peek() {
            Some(token) if token.text == "." || token.text == ":" => {
                let message = format!("`{}` cannot stand in the name of a function here", token.text);
                Err(token.error(Code::UnexpectedToken, message).with_hint(
                    "a line of `kprobe_events` can name it: p:functions/EVENT [MODULE:]FUNCTION NAME=$arg1:TYPE",
                ))
            }
            _ => self.expect("(", "`(` after the function").map(|_| function),
        }
    }

    /// Adds the fields of a parameter. Memory at a fixed address leaves it to the next field, and `NULL` does not.
    fn parameter(&mut self, fields: &mut Vec<Field>) -> Result<(), Diagnostic> {
        let mut used = false;
        let last = loop {
            if self.take("NULL").is_some() {
                used = true;
                break None;
            }
            let field = self.field()?;
            used |= matches!(field.source, Source::Parameter { .. });
            fields.push(field);
            if self.take("|").is_none() {
                break fields.last();
            }
        };
        match self.peek() {
            Some(token) if token.text == "," || token.text == ")" => {}
            Some(token) => return Err(after_item(token, last)),
            None => return Err(self.ends("`,`, `|` or `)`")),
        }
        self.used += u32::from(used);
        Ok(())
    }

    fn field(&mut self) -> Result<Field, Diagnostic> {
        let start = self.position();
        let ty = self.field_type()?;
        let source = match self.peek() {
            Some(token) if token.text == "$" || token.text.starts_with(|c: char| c.is_ascii_digit()) => {
                self.fixed(None)?
            }
            _ => {
                let name = self.name("the name of the field")?;
                if self.take("=").is_some() { self.fixed(Some(name))? } else { self.steps(name)? }
            }
        };
        Ok(Field { ty, source, parameter: self.used + 1, span: Span::new(start, self.consumed()) })
    }

    fn field_type(&mut self) -> Result<FieldType, Diagnostic> {
        let start = self.position();
        let unsigned = self.take("unsigned").is_some();
        let token = self.peek().ok_or_else(|| self.ends("a type"))?;
        let atom = Atom::named(token.text).ok_or_else(|| no_type(token, unsigned))?;
        if self.used >= PARAMETERS_MAX {
            let message = "a function has at most 6 parameters in registers";
            return Err(token.error(Code::TooManyParameters, message));
        }
        self.next += 1;
        let count = match self.take("[") {
            Some(open) if atom.base == BaseType::String => {
                let message = "a string has no length: it ends at its NUL";
                let hint = "write `string NAME`, or `char[LENGTH] NAME`";
                return Err(open.error(Code::UnexpectedToken, message).with_hint(hint));
            }
            Some(_) => Some(self.number("the length of the array, from 1", 1)?),
            None => None,
        };
        if count.is_some() {
            self.expect("]", "`]` after the length")?;
        }
        Ok(FieldType { unsigned, atom, count, span: Span::new(start, self.consumed()) })
    }

    fn steps(&mut self, name: Name) -> Result<Source, Diagnostic> {
        let mut steps = Vec::new();
        loop {
            let start = self.position();
            let kind = if self.take("+").is_some() {
                StepKind::Add(self.number("a number of bytes", 0)?)
            } else if self.take("[").is_some() {
                let index = self.number("an index", 0)?;
                self.expect("]", "`]` after the index")?;
                StepKind::Index(index)
            } else {
                return Ok(Source::Parameter { name, steps });
            };
            steps.push(Step { kind, span: Span::new(start, self.consumed()) });
        }
    }

    fn fixed(&mut self, name: Option<Name>) -> Result<Source, Diagnostic> {
        let start = self.position();
        let address = if self.take("$").is_some() {
            MemoryAddress::Symbol { symbol: self.name("the name of a kernel symbol")?.text, offset: 0 }
        } else {
            let token = self.peek().ok_or_else(|| self.ends("an address"))?;
            let address = token.text.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
            let address = address.ok_or_else(|| {
                let problem = unexpected(token, "an address that starts with `0x`");
                if is_identifier(token.text) {
                    problem.with_hint(format!("write `${}` for the address of a symbol", token.text))
                } else {
                    problem
                }
            })?;
            self.next += 1;
            MemoryAddress::Address(address)
        };
        Ok(Source::Fixed { name, address, span: Span::new(start, self.consumed()) })
    }

    fn name(&mut self, what: &str) -> Result<Name, Diagnostic> {
        let token = self.peek().ok_or_else(|| self.ends(what))?;
        if !is_identifier(token.text) {
            let problem = unexpected(token, what);
            return Err(match token.text {
                "*" => problem.with_hint("a pointer has no type of its own: write `x64 NAME`"),
                _ => problem,
            });
        }
        self.next += 1;
        Ok(Name { text: token.text.to_owned(), span: token.span() })
    }

    fn number(&mut self, what: &str, at_least: u64) -> Result<u64, Diagnostic> {
        let token = self.peek().ok_or_else(|| self.ends(what))?;
        let number = number::unsigned(token.text).filter(|number| *number >= at_least);
        // The number parser accepts a sign; the lexer makes it a token of its own.
        let number = number.ok_or_else(|| {
            let problem = unexpected(token, what);
            match token.text {
                "-" => problem.with_hint("numbers are not negative here: write +-OFFSET in a `p:` line"),
                _ => problem.with_hint("numbers are written 10, 0x0a or 012"),
            }
        })?;
        self.next += 1;
        Ok(number)
    }

    fn expect(&mut self, text: &str, what: &str) -> Result<Word<'t>, Diagnostic> {
        match self.peek() {
            None => Err(self.ends(what)),
            Some(token) => self.take(text).ok_or_else(|| unexpected(token, what)),
        }
    }

    fn take(&mut self, text: &str) -> Option<Word<'t>> {
        let token = self.peek().filter(|token| token.text == text)?;
        self.next += 1;
        Some(token)
    }

    fn peek(&self) -> Option<Word<'t>> {
        self.tokens.get(self.next).copied()
    }

    /// Where the next token starts.
    fn position(&self) -> usize {
        self.peek().map_or_else(|| self.end(), |token| token.start)
    }

    /// Where the last token that was read ends.
    fn consumed(&self) -> usize {
        self.next.checked_sub(1).and_then(|last| self.tokens.get(last)).map_or(0, |token| token.end())
    }

    /// Where the text ends.
    fn end(&self) -> usize {
        self.tokens.last().map_or(0, |token| token.end())
    }

    fn ends(&self, what: &str) -> Diagnostic {
        let message = format!("the prototype ends where {what} should be");
        Diagnostic::error(Code::UnexpectedEnd, Span::point(self.end()), message)
    }

    /// Goes to the comma or the parenthesis that ends a parameter with a problem.
    fn skip_parameter(&mut self) {
        while self.peek().is_some_and(|token| token.text != "," && token.text != ")") {
            self.next += 1;
        }
    }
}

fn unexpected(token: Word<'_>, what: &str) -> Diagnostic {
    token.error(Code::UnexpectedToken, format!("`{}` stands where {what} should be", token.text))
}

/// The problem of a token in place of a type.
fn no_type(token: Word<'_>, unsigned: bool) -> Diagnostic {
    let problem = unexpected(token, "a type");
    match token.text {
        ")" | "," => problem.with_hint("leave a parameter out with `NULL`, and all of them with `()`"),
        "void" => problem.with_hint("write `()` for a function of which no parameter is recorded"),
        "struct" | "union" | "enum" | "const" | "bool" | "unsigned" | "signed" | "NULL" if unsigned => {
            problem.with_hint("`unsigned` stands once, before a type: `unsigned int NAME`")
        }
        "struct" | "union" | "const" => {
            problem.with_hint("a pointer has no type of its own: write `x64 NAME`")
        }
        _ => problem.with_hint(
            "types are u8 to u64, s8 to s64, x8 to x64, char, short, int, long, size_t, symbol and string, \
             with or without `unsigned`",
        ),
    }
}

/// The problem of a token after the end of a field, or of `NULL`.
fn after_item(token: Word<'_>, last: Option<&Field>) -> Diagnostic {
    match last {
        None => unexpected(token, "`,` or `)` after `NULL`"),
        Some(Field { source: Source::Fixed { .. }, .. }) => {
            unexpected(token, "`,`, `|` or `)` after an address").with_hint("add the offset to the address")
        }
        _ if token.text == "-" => unexpected(token, "`+`, `[`, `,`, `|` or `)`")
            .with_hint("offsets are not negative here: write -OFFSET($argN) in a `p:` line"),
        _ => unexpected(token, "`+`, `[`, `,`, `|` or `)`"),
    }
}

/// The tokens of the only prototype in `text`, without comments. Never empty.
fn tokens(text: &str) -> Result<Vec<Word<'_>>, Diagnostic> {
    let mut tokens = Vec::new();
    for word in line::single(text)? {
        let mut rest = word;
        while let Some(first) = rest.text.chars().next() {
            let run = rest.text.chars().take_while(|c| is_of_name(*c)).count();
            let length = if run > 0 { run } else { first.len_utf8() };
            tokens.push(rest.head(length));
            rest = rest.tail(length);
        }
    }
    Ok(tokens)
}
