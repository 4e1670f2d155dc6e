//! Capture of a meaning: what a definition records, from its text and the facts of a kernel.
//!
//! Owns how each expression is traced back to a parameter, a result or code. Never compares
//! meanings.

use std::ops::Range;

use super::chain::{self, At, Chain, Root};
use super::code::{self, Code};
use super::layout::{Found, pointed, slots, type_name};
use super::{Build, Meaning, Origin, Part, Read, VERSION};
use crate::validate::Report;
use crate::validate::typed::{Function, Note, look_up_only};
use kprobed_host::kernel::KernelFacts;
use kprobed_host::kernel::btf::{Btf, Kind, TypeId};
use kprobed_lang::definition::{Argument, BaseType, FetchKind, Place, ProbeDefinition, ProbeKind};

/// The definition and the kernel to capture.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The definition as it was written.
    pub written: &'a ProbeDefinition,
    /// The definition without names that need BTF, and with a name for every argument.
    pub resolved: &'a ProbeDefinition,
    /// Which of its arguments were names, and their paths.
    pub notes: &'a [Note],
    /// The report on its place.
    pub report: &'a Report,
    /// The kernel.
    pub facts: &'a KernelFacts,
}

/// The function of a place.
pub(super) struct Around<'a> {
    pub(super) facts: &'a KernelFacts,
    pub(super) kind: ProbeKind,
    pub(super) is_entry: bool,
    pub(super) function: &'a str,
    pub(super) range: Range<u64>,
    /// Its types.
    pub(super) types: Option<Function>,
}

impl<'a> Around<'a> {
    /// Absent if the place is in no known function: its module is not loaded, or the kernel has no
    /// such symbol.
    pub(super) fn of(subject: &Subject<'a>) -> Option<Self> {
        let Subject { written, report, facts, .. } = *subject;
        let range = report.code_range.clone().filter(|_| report.absent_module.is_none())?;
        let located = facts.symbols.locate(range.start)?.symbol;
        // Behind the last symbol of a module can be the memory of one that is gone.
        let place = facts.name_of(range.start.saturating_add(report.offset));
        let is_in_none = place.is_none_or(|place| !place.symbol.is_code());
        if is_in_none && matches!(written.place, Place::Address { .. }) {
            return None;
        }
        // If an address has several names, types know the one that was written.
        let function = match &written.place {
            Place::Symbol { symbol, module, .. } => {
                let mut here = facts.symbols.named(symbol, module.as_deref());
                let is_here = here.any(|named| named.address == range.start);
                if is_here { symbol.as_str() } else { located.name }
            }
            Place::Address { .. } | Place::Event { .. } => located.name,
        };
        Some(Self {
            facts,
            kind: written.kind,
            is_entry: report.is_entry,
            function,
            types: look_up_only(function, located.module, facts),
            range,
        })
    }

    pub(super) fn at(&self) -> At {
        match self.kind {
            ProbeKind::Return => At::Return,
            ProbeKind::Entry if self.is_entry => At::Entry,
            ProbeKind::Entry | ProbeKind::Event => At::Inside,
        }
    }

    pub(super) fn lines(&self) -> Vec<code::Line> {
        code::lines(self.facts, self.range.start, self.range.end.saturating_sub(self.range.start))
    }
}

/// The meaning of a definition on a kernel.
pub fn capture(subject: &Subject<'_>) -> Meaning {
    let Subject { written, resolved, notes, report, facts } = *subject;
    let build_ids = &facts.build_ids;
    let kernel = Build { name: build_ids.release().to_owned(), id: build_ids.kernel().map(str::to_owned) };
    let around = Around::of(subject);
    let of_place = report.location.split_once(':').map(|(module, _)| module);
    let module = of_place.or(report.absent_module.as_deref());
    let module = module.map(|name| Build { name: name.to_owned(), id: build_ids.module(name) });
    let named = names(written, resolved, notes);
    let parts: Vec<Part> = resolved
        .args
        .iter()
        .zip(&named)
        .map(|(argument, path)| match &around {
            Some(around) => part(around, argument, path.as_deref()),
            None => unplaced(argument, path.as_deref()),
        })
        .collect();
    let code = around.as_ref().and_then(|around| code_of(around, report, &parts));
    let prototype = around.as_ref().and_then(|around| around.types.as_ref()?.prototype().ok());
    Meaning {
        version: VERSION,
        kernel,
        module,
        complete: around.is_some(),
        location: report.location.clone(),
        function: around.as_ref().map_or("", |around| around.function).to_owned(),
        by_address: matches!(written.place, Place::Address { .. }),
        prototype,
        parts,
        code,
    }
}

/// The code that the meaning of a probe depends on.
fn code_of(around: &Around<'_>, report: &Report, parts: &[Part]) -> Option<Code> {
    if !around.is_entry {
        let place = u32::try_from(report.offset).ok()?;
        return Some(code::up_to(&around.lines(), around.function, place));
    }
    let depends = parts.iter().any(|part| part.origin == Origin::Code);
    depends.then(|| code::whole(&around.lines(), around.function))
}

/// For each resolved argument the written one that it comes from; none for the arguments of `$arg*`.
pub(super) fn sources<'a>(
    written: &'a ProbeDefinition,
    resolved: &ProbeDefinition,
) -> Vec<Option<&'a Argument>> {
    let is_all = |argument: &Argument| argument.fetch.kind == FetchKind::AllArguments;
    let mut paths = resolved.paths.iter().map(|path| path.parts().count());
    let mut count = |argument: &Argument| if argument.is_path() { paths.next().unwrap_or(1) } else { 1 };
    let counted: Vec<_> = written.args.iter().map(|argument| (argument, count(argument))).collect();
    let named: usize = counted.iter().filter(|(argument, _)| !is_all(argument)).map(|(_, count)| count).sum();
    let of_all = resolved.args.len().saturating_sub(named);
    let sources = counted.into_iter().flat_map(|(argument, count)| {
        if is_all(argument) { vec![None; of_all] } else { vec![Some(argument); count] }
    });
    sources.collect()
}

/// For each resolved argument its path of members, if it was written by name.
fn names(written: &ProbeDefinition, resolved: &ProbeDefinition, notes: &[Note]) -> Vec<Option<String>> {
    let path = |(index, source): (usize, Option<&Argument>)| {
        let note = notes.iter().find(|note| note.index == index)?;
        // What `$argN` resolves to has a name, and was written by number.
        let by_number = source.is_some_and(|argument| {
            matches!(argument.fetch.root().kind, FetchKind::Argument(_) | FetchKind::Retval)
        });
        (!by_number).then(|| note.path.clone())
    };
    sources(written, resolved).into_iter().enumerate().map(path).collect()
}

/// A recorded value, with its path of members if it was written by name.
fn recorded(argument: &Argument, path: Option<&str>, origin: Origin, reads: Vec<Read>) -> Part {
    Part {
        argument: argument.name.as_ref().map(|name| name.text.clone()).unwrap_or_default(),
        written: path.map_or_else(|| argument.fetch.to_string(), str::to_owned),
        named: path.is_some(),
        origin,
        reads,
    }
}

/// An argument of a probe whose function is not known.
fn unplaced(argument: &Argument, path: Option<&str>) -> Part {
    let root = &argument.fetch.root().kind;
    let is_fixed = matches!(root, FetchKind::Comm | FetchKind::Immediate(_) | FetchKind::ImmediateString(_));
    let why = "the function was not there".to_owned();
    let origin = if is_fixed { Origin::Fixed } else { Origin::Unknown { why } };
    let named = path.is_some() || matches!(root, FetchKind::Btf { .. } | FetchKind::AllArguments);
    Part { named, ..recorded(argument, path, origin, Vec::new()) }
}

fn part(around: &Around<'_>, argument: &Argument, path: Option<&str>) -> Part {
    let chain = Chain::of(argument, around.at());
    let (origin, ty) = origin(around, &chain.root);
    // The first step of a path is the parameter, each further one a read.
    let mut members = path.map(|path| path.split("->").skip(1));
    let mut behind = Behind { around, ty };
    let read = |read| behind.read(read, members.as_mut().and_then(Iterator::next));
    let mut reads: Vec<_> = chain.reads.iter().map(read).collect();
    // If the pointer is unknown, so is what it points to: once is enough.
    if matches!(origin, Origin::Unknown { .. }) {
        reads.clear();
    }
    recorded(argument, path, origin, reads)
}

/// The origin of a value, and its type if that is known.
pub(super) fn origin(around: &Around<'_>, root: &Root) -> (Origin, Option<TypeId>) {
    let unknown = |why: String| (Origin::Unknown { why }, None);
    match (root, around.at()) {
        (Root::Fixed, _) => (Origin::Fixed, None),
        (Root::Unknown(why), _) => unknown(why.clone()),
        (_, At::Inside) => (Origin::Code, None),
        (Root::Word(word), _) => parameter(around, *word),
        (Root::Result, At::Return) => result(around),
        (Root::Register(name), At::Entry) => unknown(format!("`%{name}` holds what the caller left there")),
        (Root::Register(name), At::Return) => {
            unknown(format!("`%{name}` holds what the function left there"))
        }
        (Root::Stack, _) => unknown("the stack holds what the caller left there".to_owned()),
        (Root::Result, At::Entry) => unknown("a function has no result when it is entered".to_owned()),
    }
}

fn parameter(around: &Around<'_>, word: u32) -> (Origin, Option<TypeId>) {
    let Some(types) = &around.types else {
        // All that is known is what the code does with it.
        return (Origin::Code, None);
    };
    let Some((parameter, part)) = types.at(word) else {
        let why = format!("`{}` has no parameter there", around.function);
        return (Origin::Unknown { why }, None);
    };
    let btf = &types.btf;
    let read =
        type_name(btf, parameter.ty).and_then(|ty| Ok((ty, btf.declaration(parameter.ty, &parameter.name)?)));
    match read {
        Ok((ty, declaration)) => {
            let origin = Origin::Parameter { word, part, name: parameter.name.clone(), ty, declaration };
            (origin, Some(parameter.ty).filter(|_| part == 0))
        }
        Err(error) => (Origin::Unknown { why: format!("its type cannot be read: {error}") }, None),
    }
}

fn result(around: &Around<'_>) -> (Origin, Option<TypeId>) {
    let unknown = |why: String| (Origin::Unknown { why }, None);
    let Some(Function { btf, result, .. }) = &around.types else {
        return unknown(format!("the kernel shows no types of `{}`", around.function));
    };
    match type_name(btf, *result).and_then(|ty| Ok((ty, btf.type_text(*result)?))) {
        Ok((ty, declaration)) => (Origin::Result { ty, declaration }, Some(*result)),
        Err(error) => unknown(format!("its type cannot be read: {error}")),
    }
}

/// A pointer that is followed.
pub(super) struct Behind<'a, 'f> {
    pub(super) around: &'a Around<'f>,
    /// The type of the value; absent if that is not known.
    pub(super) ty: Option<TypeId>,
}

impl Behind<'_, '_> {
    /// Describes a read of memory, and continues from there. `name` is the path of members that was
    /// written for it.
    pub(super) fn read(&mut self, read: &chain::MemoryRead, name: Option<&str>) -> Read {
        let ty = self.ty.take();
        let unknown = |why: &str| Read::Unknown { why: why.to_owned() };
        let (Some(types), Some(ty)) = (&self.around.types, ty) else {
            return unknown("the type of the pointer is not known");
        };
        let btf = &types.btf;
        match found_behind(btf, ty, read, name) {
            Ok(Ok((found, next))) => {
                self.ty = next;
                found
            }
            Ok(Err(why)) => unknown(why),
            Err(error) => unknown(&format!("the type of the pointer cannot be read: {error}")),
        }
    }
}

/// What a pointer points to, and its type; or why that is not known.
fn found_behind(
    btf: &Btf,
    ty: TypeId,
    read: &chain::MemoryRead,
    name: Option<&str>,
) -> Result<Result<(Read, Option<TypeId>), &'static str>, kprobed_host::kernel::btf::BtfError> {
    let Some(target) = pointed(btf, ty)? else { return Ok(Err("it is read from what is not a pointer")) };
    let behind = btf.resolved(target)?;
    let composite = match behind.kind {
        Kind::Composite(composite) => composite,
        Kind::Int(_) | Kind::Enum { .. } | Kind::Float(_) | Kind::Pointer(_) | Kind::Array { .. } => {
            let next = matches!(behind.kind, Kind::Pointer(_)) && read.offset.rem_euclid(8) == 0;
            let elements = Read::Elements { ty: type_name(btf, target)?, offset: read.offset };
            return Ok(Ok((elements, next.then_some(target))));
        }
        _ => return Ok(Err("the pointer does not say what it points to")),
    };
    let Some(bits) = read.bits() else { return Ok(Err("it is read from before the structure")) };
    let Some(mut found) = slots(btf, composite, &bits)? else {
        return Ok(Err("it is read from more members than are compared"));
    };
    if let Some(name) = name {
        let is_named = |found: &Found| {
            let rest = found.slot.path.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        if found.iter().any(is_named) {
            found.retain(is_named);
        }
    }
    if found.is_empty() {
        return Ok(Err("no member of the structure lies there"));
    }
    let next = match found.as_slice() {
        [only] if only.slot.bit_offset == bits.start => Some(only.ty),
        _ => None,
    };
    let structure = type_name(btf, target)?;
    let slots = found.into_iter().map(|found| found.slot).collect();
    Ok(Ok((Read::Members { structure, offset: read.offset, slots }, next)))
}

/// Bits that an argument reads, counted from its place.
pub(super) fn bits_of(argument: &Argument) -> Range<u64> {
    match argument.base_type() {
        BaseType::BitField { width, offset, .. } => offset.into()..u64::from(offset) + u64::from(width),
        // The length of a text is not known before it is read.
        base if base.is_pointed_text() => 0..8,
        BaseType::DentryName | BaseType::FileName | BaseType::Path => 0..64,
        _ => 0..argument.fixed_bytes() as u64 * 8,
    }
}
