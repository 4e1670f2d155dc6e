//! Explanation of a definition in words: the line for the kernel, what is recorded, the fields of
//! an event, and the assumptions.
//!
//! Owns the presentation of a syntax tree. Decides nothing, and never reads facts of the running
//! kernel except its [`Features`].

mod words;

use super::ast::{Argument, BtfRoot, FetchKind, MemoryAddress, ProbeDefinition, ProbeKind};
use super::dialect::Dialect;
use super::features::Features;
use super::guard;
use super::legacy::old_form;

/// Explains a definition that was written in this dialect and becomes this line for the kernel, which is shown without
/// the arguments by which the daemon distinguishes faults from values. `origin`: the name that was written for the
/// argument of an index, with its declaration in C, if a name was written.
pub fn explain(
    definition: &ProbeDefinition,
    (dialect, line): (Dialect, &str),
    features: &Features,
    origin: &dyn Fn(usize) -> Option<String>,
) -> String {
    let definition = &definition.clone().with_explicit_names();
    let mut told = vec![line.to_owned()];
    if dialect == Dialect::Legacy {
        told.extend(old_form(definition).map(|old| format!("in 2009: {old}")));
    }
    told.push(format!("records {}", words::when(definition)));
    let mut has_names = false;
    for (index, argument) in definition.args.iter().enumerate() {
        let Some((text, meaning)) = explained(definition, argument, features) else { continue };
        let origin = origin(index).map(|origin| format!("{origin}: "));
        has_names |= origin.is_some();
        told.push(format!("  {text}\n      {}{meaning}", origin.unwrap_or_default()));
    }
    let fields = fields(definition, features);
    let heading = if fields.is_empty() { "fields: those of the event" } else { "fields" };
    told.push(heading.to_owned());
    told.extend(fields.iter().map(|(name, ty)| format!("  {name}: {ty}")));
    let mut assumptions = assumptions(definition, features);
    if has_names {
        let note =
            "names were looked up in the types of the running kernel, and are looked up again on every other";
        assumptions.push(note.to_owned());
    }
    if !assumptions.is_empty() {
        told.push("assumed".to_owned());
    }
    told.extend(assumptions.iter().map(|assumption| format!("  {assumption}")));
    told.push(String::new());
    told.join("\n")
}

/// An argument of the line, and what it reads. That of the first part for a path, of which the other parts are not
/// explained.
fn explained(
    definition: &ProbeDefinition,
    argument: &Argument,
    features: &Features,
) -> Option<(String, String)> {
    if !definition.is_part_of_path(argument) {
        return Some((argument.to_string(), words::meaning(argument, features)));
    }
    let name = argument.name.as_ref()?;
    let path = definition.paths.iter().find(|path| path.parts().next() == Some(&name.text))?;
    let names: usize = path.levels.iter().map(|level| level.entries.len()).sum();
    let meaning = format!("the whole path, of at most {names} names, which are read one by one");
    Some((format!("{}=...:path", path.name), meaning))
}

/// The fields of an event beyond those that all events have: the name of each, and its type as an argument would have
/// it.
fn fields(definition: &ProbeDefinition, features: &Features) -> Vec<(String, String)> {
    let built_in: &[&str] = match definition.kind {
        ProbeKind::Entry => &["__probe_ip"],
        ProbeKind::Return => &["__probe_func", "__probe_ret_ip"],
        ProbeKind::Event => &[],
    };
    let built_in = built_in.iter().map(|name| ((*name).to_owned(), "symbol".to_owned()));
    let of_argument = |argument: &Argument| {
        let name =
            argument.name.as_ref().map_or_else(|| argument.fetch.to_string(), |name| name.text.clone());
        if definition.is_part_of_path(argument) {
            let path = definition.paths.iter().find(|path| path.parts().next() == Some(&name))?;
            return Some((path.name.clone(), "path".to_owned()));
        }
        let ty = match argument.ty {
            _ if words::typed_by_btf(argument, features) => "as in BTF".to_owned(),
            Some(ty) => ty.to_string(),
            None => argument.base_type().to_string(),
        };
        Some((name, ty))
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
        definition.args.iter().any(|argument| words::typed_by_btf(argument, features)),
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

#[cfg(test)]
mod tests;
