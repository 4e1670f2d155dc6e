//! Definitions in requests: as text, or as fields.
//!
//! Owns the conversion of fields to text, so that both are judged in the same way, and the way back
//! from a position in that text to the field. Never decides whether a definition is valid: the
//! parser does. Refuses by itself only an empty message, and a value that would not keep its
//! meaning within a line.

mod fields;
mod read;
mod write;

#[cfg(test)]
pub(super) mod tests;

pub(super) use write::write;

use std::sync::Arc;

use kprobed_proto::v1;

use self::fields::FieldMap;
use kprobed_lang::definition::{
    BtfRoot, Code, Definition, Diagnostic, Dialect, FetchKind, ProbeDefinition, Span, is_word_of_2009,
    parse_any, parse_as,
};
use kprobed_verdict::checker::{Checker, DefinitionText};

/// The path of the whole message, in requests.
const ROOT: &str = "spec";

/// A definition as it was given.
#[derive(Debug)]
pub(super) struct Given {
    /// The text: of the client, or made of the fields.
    pub(super) definition: Arc<DefinitionText>,
    /// Which part of the text belongs to which field. Absent if the client sent text.
    fields: Option<FieldMap>,
}

/// Why a request has no definition that can be judged.
#[derive(Debug)]
pub(super) enum GivenError {
    /// The request has both forms, or none.
    Form(&'static str),
    /// The fields are not a definition.
    Fields(Unwritable),
}

/// Fields that cannot be written as a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unwritable {
    /// The path of the field.
    pub(super) field: String,
    /// What is wrong with it; its span is that of `text`.
    pub(super) problem: Diagnostic,
    /// The line, if one could be made. Otherwise empty.
    pub(super) text: String,
}

impl Given {
    /// Takes a definition as text.
    pub(super) fn of_text(text: String) -> Self {
        Self { definition: Arc::new(DefinitionText::new(text)), fields: None }
    }

    /// The text: of the client, or made of the fields.
    pub(super) fn text(&self) -> &str {
        self.definition.as_str()
    }

    /// Takes the form that a request has.
    pub(super) fn of(
        text: String,
        spec: Option<&v1::ProbeSpec>,
        checker: &Checker,
    ) -> Result<Self, GivenError> {
        match (spec, text.is_empty()) {
            (Some(spec), true) => Self::written(spec, checker).map_err(GivenError::Fields),
            (None, false) => Ok(Self::of_text(text)),
            (Some(_), false) => Err(GivenError::Form("send either `definition` or `spec`, not both")),
            (None, true) => Err(GivenError::Form("neither `definition` nor `spec` is given")),
        }
    }

    /// The line that the fields describe. If the parser accepts it, it means what the fields say;
    /// if not, the caller reports why.
    fn written(spec: &v1::ProbeSpec, checker: &Checker) -> Result<Self, Unwritable> {
        let definition = read::read(spec)?;
        let text = DefinitionText::new(definition.render_as_named());
        let fields = Some(FieldMap::new(&definition, text.as_str()));
        // Without words that were variables in 2009, every kernel reads the line in the same
        // dialect.
        if !has_word_of_2009(&definition)
            && let Ok(read) = &checker.reading(&text).result
            && is(read, &definition)
        {
            return Ok(Self { definition: Arc::new(text), fields });
        }
        let (line, features) = (text.to_string(), checker.features());
        let reading = parse_as(Dialect::Kernel, &line, features);
        if let Ok(read) = &reading.result
            && !is(read, &definition)
        {
            let span = Span::new(0, line.len());
            let message = format!("the fields become the line `{line}`, which says something else");
            let problem = Diagnostic::error(Code::NoEquivalent, span, message);
            return Err(Unwritable { field: ROOT.to_owned(), problem, text: line });
        }
        // Bare words are names of parameters here, on every kernel.
        let text = if parse_any(&line, features) == reading {
            text
        } else {
            DefinitionText::new(Dialect::Kernel.asked_for_in(&line))
        };
        Ok(Self { definition: Arc::new(text), fields })
    }

    /// The field that the whole definition is in.
    pub(super) fn whole(&self) -> &'static str {
        if self.fields.is_some() { ROOT } else { "definition" }
    }

    /// The path of the field at `span` in `text`, which is this text or what the kernel made of it.
    /// Empty if the client sent text.
    pub(super) fn field_at(&self, text: &str, span: Span) -> String {
        match &self.fields {
            None => String::new(),
            Some(fields) if text == self.text() => fields.at(span).to_owned(),
            Some(fields) => fields.of_word(text, span).to_owned(),
        }
    }

    /// Adds to findings about the text the fields that they are about.
    pub(super) fn locate(&self, text: &str, diagnostics: &mut [v1::Diagnostic]) {
        for found in diagnostics {
            found.field = self.field_at(text, Span::new(found.span_start as usize, found.span_end as usize));
        }
    }
}

/// Whether this was read, apart from places in the text and warnings.
fn is(read: &Definition, meant: &ProbeDefinition) -> bool {
    matches!(read, Definition::Probe(read) if read.without_spans() == *meant)
}

/// Whether an argument is a parameter whose name was a variable in 2009.
fn has_word_of_2009(definition: &ProbeDefinition) -> bool {
    definition.args.iter().any(|argument| {
        let mut fetch = &argument.fetch;
        while let FetchKind::Deref { inner, .. } = &fetch.kind {
            fetch = inner;
        }
        matches!(&fetch.kind, FetchKind::Btf { root: BtfRoot::Parameter(name), .. } if is_word_of_2009(name))
    })
}
