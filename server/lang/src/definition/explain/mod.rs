//! Explanation of a definition in words: the line for the kernel, what is recorded, the fields of
//! an event, and the assumptions.
//!
//! Owns the presentation of a syntax tree. Decides nothing, and never reads facts of the running
//! kernel except its [`Features`].

mod words;

use std::fmt;

use super::ast::{Argument, BtfRoot, FetchKind, MemoryAddress, ProbeDefinition, ProbeKind};
use super::dialect::Dialect;
use super::features::Features;
use super::guard;
use super::old_form::old_form;

/// A definition explained in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The dialect in which it was written.
    pub dialect: Dialect,
    /// The line for the kernel, without the arguments by which the daemon distinguishes faults from
    /// values.
    pub line: String,
    /// The line in the words of 2009, if it was written in them and has no part that came later.
    pub old_form: Option<String>,
    /// When an event is recorded.
    pub when: String,
    /// What is recorded, in the order of the definition.
    pub arguments: Vec<ExplainedArgument>,
    /// The fields of an event beyond those that all events have.
    pub fields: Vec<ExplainedField>,
    /// What is true only if the writer is right, or is not as it may look.
    pub assumptions: Vec<String>,
}

/// One argument in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedArgument {
    /// Its index in the definition. That of the first part for a path, of which the other parts are not explained.
    pub index: usize,
    /// The argument in the line for the kernel.
    pub text: String,
    /// What it reads.
    pub meaning: String,
}

/// One field of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedField {
    /// Its name.
    pub name: String,
    /// Its type, as an argument would have it; empty if only the kernel's BTF has it.
    pub ty: String,
}

/// Explains a definition that was written in this dialect.
pub fn explain(definition: &ProbeDefinition, dialect: Dialect, features: &Features) -> Explanation {
    let named = definition.clone().with_explicit_names();
    let group = named.group.as_ref().map_or("kprobes", |group| &group.text);
    let event = named.event.as_ref().map_or_else(|| named.default_event_name(), |name| name.text.clone());
    let arguments = named.args.iter().enumerate().filter_map(|(index, argument)| {
        let (text, meaning) = if named.is_part_of_path(argument) {
            let name = argument.name.as_ref()?;
            let path = named.paths.iter().find(|path| path.parts().next() == Some(&name.text))?;
            let names: usize = path.levels.iter().map(|level| level.entries.len()).sum();
            (
                format!("{}=...:path", path.name),
                format!("the whole path, of at most {names} names, which are read one by one"),
            )
        } else {
            (argument.to_string(), words::meaning(argument, features))
        };
        Some(ExplainedArgument { index, text, meaning })
    });
    Explanation {
        dialect,
        line: named.render(group, &event),
        old_form: (dialect == Dialect::Legacy).then(|| old_form(&named)).flatten(),
        when: words::when(&named),
        arguments: arguments.collect(),
        fields: fields(&named, features),
        assumptions: assumptions(&named, features),
    }
}

impl Explanation {
    /// Adds to an argument the name that was written for it, and its declaration in C.
    pub fn note_origin(&mut self, index: usize, path: &str, declaration: &str) {
        if let Some(argument) = self.arguments.iter_mut().find(|argument| argument.index == index) {
            argument.meaning = format!("{path}, which is `{declaration}`: {}", argument.meaning);
        }
        let note =
            "names were looked up in the types of the running kernel, and are looked up again on every other";
        if !self.assumptions.iter().any(|assumption| assumption == note) {
            self.assumptions.push(note.to_owned());
        }
    }
}

fn fields(definition: &ProbeDefinition, features: &Features) -> Vec<ExplainedField> {
    let built_in: &[&str] = match definition.kind {
        ProbeKind::Entry => &["__probe_ip"],
        ProbeKind::Return => &["__probe_func", "__probe_ret_ip"],
        ProbeKind::Event => &[],
    };
    let built_in =
        built_in.iter().map(|name| ExplainedField { name: (*name).to_owned(), ty: "symbol".to_owned() });
    let of_argument = |argument: &Argument| {
        let name =
            argument.name.as_ref().map_or_else(|| argument.fetch.to_string(), |name| name.text.clone());
        if definition.is_part_of_path(argument) {
            let path = definition.paths.iter().find(|path| path.parts().next() == Some(&name))?;
            return Some(ExplainedField { name: path.name.clone(), ty: "path".to_owned() });
        }
        let ty = match argument.ty {
            Some(ty) => ty.to_string(),
            None if words::typed_by_btf(argument, features) => String::new(),
            None => argument.base_type().to_string(),
        };
        Some(ExplainedField { name, ty })
    };
    built_in.chain(definition.args.iter().filter_map(of_argument)).collect()
}

fn assumptions(definition: &ProbeDefinition, features: &Features) -> Vec<String> {
    let any = |test: &dyn Fn(&FetchKind) -> bool| {
        definition.args.iter().any(|argument| argument.fetch.levels().any(|fetch| test(&fetch.kind)))
    };
    let mut found = Vec::new();
    let mut assume = |holds: bool, text: &str| {
        if holds {
            found.push(text.to_owned());
        }
    };
    assume(
        any(&|kind| matches!(kind, FetchKind::Argument(_))),
        "arguments are where the calling convention puts integers and pointers: di, si, dx, cx, r8, r9, then \
         the stack; floating point and structures by value are counted differently",
    );
    assume(
        any(&|kind| matches!(kind, FetchKind::Argument(_))) && definition.kind == ProbeKind::Return,
        "arguments have the values that they had when the function was entered",
    );
    assume(
        any(&|kind| matches!(kind, FetchKind::Register(_) | FetchKind::StackNth(_) | FetchKind::Stack)),
        "nothing checks that registers and stack hold what the writer expects at this address",
    );
    assume(
        any(&|kind| matches!(kind, FetchKind::Deref { .. })),
        "offsets fit the structures of the running kernel: they change between versions and configurations",
    );
    assume(
        any(&|kind| matches!(kind, FetchKind::Memory(MemoryAddress::Address(_)))),
        "fixed addresses are of this boot: the kernel is somewhere else after the next",
    );
    assume(
        any(&|kind| {
            matches!(kind, FetchKind::Btf { root: BtfRoot::Parameter(_), .. } | FetchKind::AllArguments)
        }),
        "names are those of the parameters in the BTF of the running kernel",
    );
    assume(
        definition
            .args
            .iter()
            .any(|argument| argument.ty.is_none() && words::typed_by_btf(argument, features)),
        "what has no type gets the one of the kernel's BTF, and is 64 bits in hexadecimal without it",
    );
    assume(
        definition.args.iter().any(|argument| argument.base_type().is_text()),
        "an event with more than about 4000 bytes of strings is lost without being counted by the kernel",
    );
    let added = guard::warnings(definition, features);
    found.extend(added.iter().chain(&definition.warnings).map(|warning| match &warning.hint {
        Some(hint) => format!("{}: {hint}", warning.message),
        None => warning.message.clone(),
    }));
    found
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.line)?;
        if let Some(old) = &self.old_form {
            writeln!(f, "in 2009: {old}")?;
        }
        writeln!(f, "records {}", self.when)?;
        for argument in &self.arguments {
            writeln!(f, "  {}\n      {}", argument.text, argument.meaning)?;
        }
        if self.fields.is_empty() {
            writeln!(f, "fields: those of the event")?;
        } else {
            writeln!(f, "fields")?;
        }
        for field in &self.fields {
            let ty = if field.ty.is_empty() { "as in BTF" } else { &field.ty };
            writeln!(f, "  {}: {ty}", field.name)?;
        }
        if !self.assumptions.is_empty() {
            writeln!(f, "assumed")?;
        }
        self.assumptions.iter().try_for_each(|assumption| writeln!(f, "  {assumption}"))
    }
}

#[cfg(test)]
mod tests;
