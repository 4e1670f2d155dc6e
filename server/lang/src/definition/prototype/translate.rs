//! Translation of a prototype to a line of today: gives fields names and types.
//!
//! Owns that line. Never parses a prototype, and never checks the kernel's limits.

use super::super::Span;
use super::super::argument::ARGS_MAX;
use super::super::ast::{Argument, BaseType, Fetch, FetchKind, MemoryAddress, Name, Type, Width};
use super::super::code::Code;
use super::super::diagnostic::Diagnostic;
use super::super::features::Features;
use super::super::rewrite::Rewritten;
use super::ast::{Field, FieldType, Prototype, Source};
use super::walk::walk;

/// The group of the events of 2018.
const GROUP: &str = "functions";

/// Most elements of one argument (`MAX_ARRAY_LEN`).
const ELEMENTS_MAX: u64 = 64;

/// The line of today for a prototype, and what the writer should know.
pub(super) fn translate(
    prototype: &Prototype,
    features: &Features,
) -> Result<(Rewritten, Vec<Diagnostic>), Vec<Diagnostic>> {
    let mut out = Translation {
        features,
        given: prototype.fields.iter().filter_map(given_name).collect(),
        args: Vec::new(),
        warnings: Vec::new(),
    };
    let errors: Vec<_> = prototype.fields.iter().filter_map(|field| out.field(field).err()).collect();
    if !errors.is_empty() {
        return Err(errors);
    }
    Ok((line(&prototype.function, &out.args), out.warnings))
}

fn line(function: &Name, args: &[Argument]) -> Rewritten {
    let Name { text, span } = function;
    let mut line = Rewritten::of_whole_words();
    for word in [format!("p:{GROUP}/{text}"), text.clone()] {
        line.begin_word(*span);
        line.put(&word, *span);
    }
    for argument in args {
        line.begin_word(argument.span);
        if let Some(name) = &argument.name {
            line.put(&name.text, name.span);
            line.put("=", name.span);
        }
        line.put(&argument.fetch.to_string(), argument.fetch.span);
        if let Some(ty) = &argument.ty {
            line.put(":", ty.span);
            line.put(&ty.to_string(), ty.span);
        }
    }
    line
}

/// The name that the prototype gives the field.
fn given_name(field: &Field) -> Option<String> {
    match &field.source {
        Source::Parameter { name, .. } | Source::Fixed { name: Some(name), .. } => Some(name.text.clone()),
        Source::Fixed { name: None, address: MemoryAddress::Symbol { symbol, .. }, .. } => {
            Some(symbol.clone())
        }
        Source::Fixed { name: None, address: MemoryAddress::Address(_), .. } => None,
    }
}

struct Translation<'f> {
    features: &'f Features,
    /// Names of fields in the prototype.
    given: Vec<String>,
    args: Vec<Argument>,
    warnings: Vec<Diagnostic>,
}

impl Translation<'_> {
    /// Adds today's argument for `field`.
    fn field(&mut self, field: &Field) -> Result<(), Diagnostic> {
        if self.args.len() >= ARGS_MAX {
            let message = "no argument is left for this field";
            return Err(Diagnostic::error(Code::TooManyArgs, field.span, message));
        }
        let (fetch, name_span) = match &field.source {
            Source::Parameter { name, steps } => {
                let parameter = FetchKind::Argument(field.parameter);
                (walk(field, name, steps, parameter, &mut self.warnings)?, name.span)
            }
            Source::Fixed { name, address, span } => {
                let fetch = Fetch { kind: FetchKind::Memory(address.clone()), span: *span };
                (fetch, name.as_ref().map_or(*span, |name| name.span))
            }
        };
        let name = self.name(field, name_span);
        let base = self.base_type(field);
        let count = field.ty.count.filter(|_| field.ty.atom.base != BaseType::Char);
        match count {
            Some(count) if count > ELEMENTS_MAX => self.split(field, &name, base, &fetch, count),
            _ => {
                let count = count.and_then(|count| u8::try_from(count).ok());
                self.push(field, name, fetch.kind, base, count);
                Ok(())
            }
        }
    }

    fn push(&mut self, field: &Field, name: Name, kind: FetchKind, base: BaseType, count: Option<u8>) {
        let source = Span::new(name.span.start, field.span.end);
        self.args.push(Argument {
            name: Some(name),
            fetch: Fetch { kind, span: source },
            ty: Some(Type { base, count, span: field.ty.span }),
            span: field.span,
        });
    }

    /// Arguments for an array that is longer than the kernel's.
    fn split(
        &mut self,
        field: &Field,
        name: &Name,
        base: BaseType,
        first: &Fetch,
        count: u64,
    ) -> Result<(), Diagnostic> {
        let parts = count.div_ceil(ELEMENTS_MAX);
        if parts > (ARGS_MAX - self.args.len()) as u64 {
            let message = format!("an array of {count} elements needs {parts} arguments of the probe");
            return Err(Diagnostic::error(Code::ArrayTooBig, field.ty.span, message));
        }
        for start in (0..count).step_by(64) {
            let mut part = Name { text: format!("{}_{start}", name.text), span: name.span };
            while self.is_taken(&part.text) {
                part.text.push('_');
            }
            let fetch = first.shifted(start * field.ty.atom.bytes()).ok_or_else(|| {
                let message = "the end of the array is out of reach of an offset";
                Diagnostic::error(Code::OffsetTruncated, field.span, message)
            })?;
            let length = u8::try_from(ELEMENTS_MAX.min(count - start)).ok();
            self.push(field, part, fetch.kind, base, length);
        }
        let message = format!(
            "an argument has at most 64 elements: `{}` becomes {parts} arguments, each with the index of its first",
            name.text
        );
        self.warnings.push(Diagnostic::warning(Code::Completed, field.span, message));
        Ok(())
    }

    fn has_argument(&self, name: &str) -> bool {
        self.args.iter().filter_map(|argument| argument.name.as_ref()).any(|taken| taken.text == name)
    }

    fn is_taken(&self, name: &str) -> bool {
        self.has_argument(name) || self.given.iter().any(|given| given == name)
    }

    /// A unique name for the field.
    fn name(&mut self, field: &Field, span: Span) -> Name {
        let (given, invented) = match (&field.source, given_name(field)) {
            (_, Some(name)) => (name, false),
            (Source::Fixed { address: MemoryAddress::Address(address), .. }, None) => {
                (format!("mem_{address:x}"), true)
            }
            (_, None) => (String::new(), true),
        };
        let mut text = given.clone();
        let mut number = 2;
        while self.has_argument(&text) || (text != given && self.is_taken(&text)) {
            text = format!("{given}_{number}");
            number += 1;
        }
        if text != given {
            let message = format!("there is a field `{given}` already: this one is called `{text}`");
            self.warnings.push(Diagnostic::warning(Code::Completed, span, message));
        } else if invented {
            let message = format!("the field is called `{text}`");
            self.warnings.push(Diagnostic::warning(Code::Completed, span, message));
        }
        Name { text, span }
    }

    fn base_type(&mut self, field: &Field) -> BaseType {
        let FieldType { unsigned, atom, count, span } = field.ty;
        if unsigned && matches!(atom.base, BaseType::Symbol | BaseType::String) {
            let message = format!("`unsigned` means nothing for a {}", atom.name);
            self.warnings.push(Diagnostic::warning(Code::Completed, span, message));
        }
        match (atom.base, count) {
            (BaseType::Char, Some(count)) => {
                self.warnings.push(unbounded(field, count));
                BaseType::String
            }
            (BaseType::Char, None) if !self.features.char_type => {
                let shown =
                    if unsigned { BaseType::Unsigned(Width::W8) } else { BaseType::Signed(Width::W8) };
                let message =
                    format!("this kernel has no type for a character: it is shown as a number (`{shown}`)");
                self.warnings.push(Diagnostic::warning(Code::Completed, span, message));
                shown
            }
            // Shown in decimal, as in 2018.
            (BaseType::Signed(width) | BaseType::Hex(width), _) if unsigned => BaseType::Unsigned(width),
            (base, _) => base,
        }
    }
}

/// What differs from 2018 for an array of characters.
fn unbounded(field: &Field, count: u64) -> Diagnostic {
    let message = format!("the string is read up to its NUL, which can be more than {count} bytes");
    let warning = Diagnostic::warning(Code::Completed, field.ty.span, message);
    if count <= ELEMENTS_MAX {
        warning.with_hint(format!("`u8[{count}]` reads exactly {count} bytes"))
    } else {
        warning
    }
}
