//! Field map of a definition: which part of its line belongs to which field.
//!
//! Owns the paths of fields. Never parses a line.

use kprobed_lang::definition::{BtfRoot, Fetch, FetchKind, MemoryAddress, Place, ProbeDefinition, Span};

use super::ROOT;

/// The fields of a definition, by their places in its line.
#[derive(Debug)]
pub(super) struct FieldMap {
    /// Parts come after what they are a part of.
    fields: Vec<(Span, String)>,
    /// Paths of the words of the line: names, place, and each argument.
    words: Vec<String>,
}

impl FieldMap {
    /// The field map of a definition that was rendered to `line`.
    pub(super) fn new(definition: &ProbeDefinition, line: &str) -> Self {
        let mut map = Self { fields: vec![(Span::new(0, line.len()), ROOT.to_owned())], words: Vec::new() };
        let head = line.find(' ').unwrap_or(line.len());
        map.words.push(ROOT.to_owned());
        map.head(definition, head);
        let place = definition.place.to_string();
        let path = format!("{ROOT}.place");
        map.place(&definition.place, &path, Span::new(head + 1, head + 1 + place.len()));
        map.words.push(path);
        let mut start = head + 1 + place.len() + 1;
        for (index, argument) in definition.args.iter().enumerate() {
            let text = argument.to_string();
            let path = format!("{ROOT}.arguments[{index}]");
            map.add(Span::new(start, start + text.len()), path.clone());
            let mut at = start;
            if let Some(name) = &argument.name {
                map.add(Span::new(at, at + name.text.len()), format!("{path}.name"));
                at += name.text.len() + 1;
            }
            let fetch = argument.fetch.to_string();
            map.fetch(&argument.fetch, &format!("{path}.fetch"), at, &fetch);
            if argument.ty.is_some() {
                map.add(Span::new(at + fetch.len() + 1, start + text.len()), format!("{path}.type"));
            }
            map.words.push(path);
            start += text.len() + 1;
        }
        map
    }

    fn add(&mut self, span: Span, path: String) {
        self.fields.push((span, path));
    }

    /// `r10:GROUP/EVENT`.
    fn head(&mut self, definition: &ProbeDefinition, end: usize) {
        self.add(Span::new(0, 1), format!("{ROOT}.kind"));
        if let Some(maxactive) = definition.maxactive {
            self.add(Span::new(1, 1 + maxactive.to_string().len()), format!("{ROOT}.maxactive"));
        }
        let event = end - definition.event.as_ref().map_or(0, |event| event.text.len());
        if let Some(group) = &definition.group {
            self.add(Span::new(event - 1 - group.text.len(), event - 1), format!("{ROOT}.group"));
        }
        if definition.event.is_some() || definition.group.is_some() {
            self.add(Span::new(event, end), format!("{ROOT}.event"));
        }
    }

    fn place(&mut self, place: &Place, path: &str, span: Span) {
        self.add(span, path.to_owned());
        match place {
            Place::Address { .. } => self.add(span, format!("{path}.address")),
            Place::Symbol { module, symbol, .. } => {
                self.add(span, format!("{path}.symbol"));
                let start = span.start + module.as_ref().map_or(0, |module| module.len() + 1);
                if module.is_some() {
                    self.add(Span::new(span.start, start - 1), format!("{path}.symbol.module"));
                }
                let end = start + symbol.len();
                self.add(Span::new(start, end), format!("{path}.symbol.symbol"));
                if end < span.end {
                    self.add(Span::new(end, span.end), format!("{path}.symbol.offset"));
                }
            }
        }
    }

    /// An expression that starts at `start` and reads `text`.
    fn fetch(&mut self, fetch: &Fetch, path: &str, start: usize, text: &str) {
        let end = start + text.len();
        let part = match &fetch.kind {
            FetchKind::Register(_) => "register",
            FetchKind::StackNth(_) => "stack_nth",
            FetchKind::Argument(_) => "argument",
            FetchKind::Stack | FetchKind::AllArguments | FetchKind::Retval | FetchKind::Comm => "variable",
            FetchKind::Memory(MemoryAddress::Address(_)) => "memory.address",
            FetchKind::Memory(MemoryAddress::Symbol { .. }) => "memory.symbol",
            FetchKind::Deref { .. } => "dereference",
            FetchKind::Immediate(value) if i64::try_from(*value).is_err() => "immediate_unsigned",
            FetchKind::Immediate(_) => "immediate",
            FetchKind::ImmediateString(_) => "immediate_string",
            FetchKind::Btf { root: BtfRoot::Parameter(_), .. } => "parameter",
            FetchKind::Btf { root: BtfRoot::Retval, .. } => "returned",
        };
        self.add(Span::new(start, end), format!("{path}.{part}"));
        if let FetchKind::Deref { inner, .. } = &fetch.kind {
            let inner_text = inner.to_string();
            let at = end - 1 - inner_text.len();
            self.add(Span::new(start, at - 1), format!("{path}.dereference.offset"));
            self.fetch(inner, &format!("{path}.dereference.inner"), at, &inner_text);
        }
    }

    /// The smallest field that covers a span.
    pub(super) fn at(&self, span: Span) -> &str {
        let covers = |field: &Span| field.start <= span.start && span.end.max(span.start) <= field.end;
        // Of several fields of the same size, the last one is a part of the others.
        let covering = self.fields.iter().rev().filter(|(field, _)| covers(field));
        let smallest = covering.min_by_key(|(field, _)| field.end - field.start);
        smallest.map_or(ROOT, |(_, path)| path)
    }

    /// The field of the word at a span of another line that has the same words under other names.
    pub(super) fn of_word(&self, line: &str, span: Span) -> &str {
        let index = line.get(..span.start).map_or(0, |before| before.matches(' ').count());
        self.words.get(index).map_or(ROOT, String::as_str)
    }
}
