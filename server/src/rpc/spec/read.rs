//! Conversion of fields to a definition.
//!
//! Owns which values can be part of a line at all. Never decides whether the line is valid: the
//! parser does.

use kprobed_proto::v1;
use kprobed_proto::v1::fetch::Source;

use super::{ROOT, Unwritable};
use kprobed_lang::definition::{
    Argument, BaseType, BtfMember, BtfRoot, Code, Diagnostic, Fetch, FetchKind, MemoryAddress, Name, Place,
    ProbeDefinition, ProbeKind, Register, Span, Type, Width,
};

/// Nodes that have no position in a text yet.
const NOWHERE: Span = Span { start: 0, end: 0 };

/// Most nested dereferences, more than any kernel accepts: the longest expression that one accepts
/// has 255 bytes, and each dereference needs four.
const DEPTH_MAX: usize = 64;

type Read<T> = Result<T, Unwritable>;

fn unwritable(field: &str, code: Code, message: impl Into<String>) -> Unwritable {
    let problem = Diagnostic::error(code, NOWHERE, message);
    Unwritable { field: field.to_owned(), problem, text: String::new() }
}

fn missing(field: &str, what: &str) -> Unwritable {
    unwritable(field, Code::IncompleteSpec, format!("{what} is not set"))
}

/// The definition that a message describes. It can be one that no kernel accepts.
pub(super) fn read(spec: &v1::ProbeSpec) -> Read<ProbeDefinition> {
    let kind = match spec.kind() {
        v1::ProbeKind::Entry => ProbeKind::Entry,
        v1::ProbeKind::Return => ProbeKind::Return,
        v1::ProbeKind::Unspecified => {
            return Err(missing(&format!("{ROOT}.kind"), "the kind of the probe"));
        }
    };
    let maxactive = spec.maxactive.map(|number| match u16::try_from(number) {
        Ok(0) => {
            Err(unwritable(&format!("{ROOT}.maxactive"), Code::BadMaxact, "maxactive must be 1 or more"))
        }
        Ok(number) => Ok(number),
        Err(_) => {
            let message = format!("maxactive {number} is too large");
            Err(unwritable(&format!("{ROOT}.maxactive"), Code::MaxactTooBig, message))
        }
    });
    Ok(ProbeDefinition {
        kind,
        maxactive: maxactive.transpose()?,
        group: event_name(&spec.group, &format!("{ROOT}.group"))?,
        event: event_name(&spec.event, &format!("{ROOT}.event"))?,
        place: place(spec.place.as_ref())?,
        args: spec
            .arguments
            .iter()
            .enumerate()
            .map(|(index, spec)| argument(spec, &format!("{ROOT}.arguments[{index}]")))
            .collect::<Read<_>>()?,
        warnings: Vec::new(),
        span: NOWHERE,
    })
}

/// Refuses characters that would end a word of the line, or the part of the word that the text is:
/// the kernel's blanks and comments, and `breaks`. The parser judges the rest.
fn within_a_word(text: &str, breaks: &[char], field: &str) -> Read<()> {
    let bad = |c: char| c == ' ' || c == '#' || c.is_ascii_control() || breaks.contains(&c);
    match text.chars().find(|c| bad(*c)) {
        Some(c) => {
            Err(unwritable(field, Code::BadCharacter, format!("{c:?} is not allowed in `{}`", shown(text))))
        }
        None => Ok(()),
    }
}

/// At most the beginning of a text that can be as long as a message, on one line.
fn shown(text: &str) -> String {
    let beginning: String = text.chars().take(40).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if beginning.len() < text.len() { format!("{beginning}…") } else { beginning }
}

fn event_name(text: &str, field: &str) -> Read<Option<Name>> {
    within_a_word(text, &['/', '.', ':'], field)?;
    Ok((!text.is_empty()).then(|| Name { text: text.to_owned(), span: NOWHERE }))
}

/// The name of a symbol: not empty, and not readable as a number.
fn symbol_name(text: &str, breaks: &[char], code: Code, field: &str) -> Read<String> {
    if text.is_empty() {
        return Err(missing(field, "the name of the symbol"));
    }
    within_a_word(text, breaks, field)?;
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        let message = format!("`{}` is not the name of a symbol", shown(text));
        return Err(unwritable(field, code, message));
    }
    Ok(text.to_owned())
}

fn place(place: Option<&v1::ProbePlace>) -> Read<Place> {
    let field = format!("{ROOT}.place");
    match place.and_then(|place| place.place.as_ref()) {
        None => Err(missing(&field, "the place")),
        Some(v1::probe_place::Place::Address(address)) => {
            Ok(Place::Address { address: *address, span: NOWHERE })
        }
        Some(v1::probe_place::Place::Symbol(place)) => {
            let breaks = ['+', '-', ':', '%'];
            let symbol =
                symbol_name(&place.symbol, &breaks, Code::BadProbeAddr, &format!("{field}.symbol.symbol"))?;
            within_a_word(&place.module, &breaks, &format!("{field}.symbol.module"))?;
            let module = (!place.module.is_empty()).then(|| place.module.clone());
            Ok(Place::Symbol { module, symbol, offset: place.offset, span: NOWHERE })
        }
    }
}

fn argument(spec: &v1::ArgumentSpec, path: &str) -> Read<Argument> {
    within_a_word(&spec.name, &['=', ':'], &format!("{path}.name"))?;
    Ok(Argument {
        name: (!spec.name.is_empty()).then(|| Name { text: spec.name.clone(), span: NOWHERE }),
        fetch: fetch(spec.fetch.as_ref(), &format!("{path}.fetch"), 0)?,
        ty: spec.r#type.as_ref().map(|ty| fetch_type(ty, &format!("{path}.type"))).transpose()?,
        span: NOWHERE,
    })
}

fn fetch(spec: Option<&v1::Fetch>, path: &str, depth: usize) -> Read<Fetch> {
    let Some(source) = spec.and_then(|spec| spec.source.as_ref()) else {
        return Err(missing(path, "the expression"));
    };
    if depth > DEPTH_MAX {
        return Err(unwritable(path, Code::TooManyNested, "too many nested dereferences"));
    }
    let kind = match source {
        Source::Register(name) => FetchKind::Register(register(name, &format!("{path}.register"))?),
        Source::StackNth(index) => FetchKind::StackNth(*index),
        Source::Argument(index) => FetchKind::Argument(*index),
        Source::Variable(variable) => match v1::FetchVariable::try_from(*variable) {
            Ok(v1::FetchVariable::Stack) => FetchKind::Stack,
            Ok(v1::FetchVariable::AllArguments) => FetchKind::AllArguments,
            Ok(v1::FetchVariable::Retval) => FetchKind::Retval,
            Ok(v1::FetchVariable::Comm) => FetchKind::Comm,
            Ok(v1::FetchVariable::Unspecified) | Err(_) => {
                return Err(unwritable(
                    &format!("{path}.variable"),
                    Code::BadVar,
                    format!("{variable} is not a known variable"),
                ));
            }
        },
        Source::Memory(memory) => FetchKind::Memory(memory_address(memory, &format!("{path}.memory"))?),
        Source::Dereference(spec) => FetchKind::Deref {
            user: spec.user,
            offset: spec.offset,
            inner: Box::new(fetch(spec.inner.as_deref(), &format!("{path}.dereference.inner"), depth + 1)?),
        },
        Source::Immediate(value) => FetchKind::Immediate((*value).into()),
        Source::ImmediateUnsigned(value) => FetchKind::Immediate((*value).into()),
        Source::ImmediateString(text) => {
            within_a_word(text, &[':'], &format!("{path}.immediate_string"))?;
            FetchKind::ImmediateString(text.clone())
        }
        Source::Parameter(spec) => {
            let field = format!("{path}.parameter");
            let name = format!("{field}.name");
            if spec.name.is_empty() {
                return Err(missing(&name, "the name of the parameter"));
            }
            path_step(&spec.name, &name)?;
            FetchKind::Btf {
                root: BtfRoot::Parameter(spec.name.clone()),
                members: members(&spec.members, &field)?,
            }
        }
        Source::Returned(spec) => {
            let field = format!("{path}.returned");
            if spec.members.is_empty() {
                return Err(missing(&format!("{field}.members"), "the first member"));
            }
            FetchKind::Btf { root: BtfRoot::Retval, members: members(&spec.members, &field)? }
        }
    };
    Ok(Fetch { kind, span: NOWHERE })
}

fn register(name: &str, field: &str) -> Read<Register> {
    Register::named(name).ok_or_else(|| {
        let name = shown(name);
        unwritable(field, Code::BadRegName, format!("there is no register `{name}`"))
    })
}

fn memory_address(memory: &v1::FetchMemory, field: &str) -> Read<MemoryAddress> {
    match &memory.place {
        None => Err(missing(field, "the address")),
        Some(v1::fetch_memory::Place::Address(address)) => Ok(MemoryAddress::Address(*address)),
        Some(v1::fetch_memory::Place::Symbol(spec)) => {
            let field = format!("{field}.symbol.symbol");
            let symbol = symbol_name(&spec.symbol, &['+', '-', ':', '='], Code::BadMemAddr, &field)?;
            Ok(MemoryAddress::Symbol { symbol, offset: spec.offset })
        }
    }
}

fn members(specs: &[v1::FetchMember], path: &str) -> Read<Vec<BtfMember>> {
    let member = |(index, spec): (usize, &v1::FetchMember)| {
        let field = format!("{path}.members[{index}].name");
        if spec.name.is_empty() {
            return Err(missing(&field, "the name of the member"));
        }
        path_step(&spec.name, &field)?;
        Ok(BtfMember { arrow: spec.arrow, name: spec.name.clone() })
    };
    specs.iter().enumerate().map(member).collect()
}

fn path_step(name: &str, field: &str) -> Read<()> {
    within_a_word(name, &['.', '-', '>', ':', '=', '(', ')'], field)
}

fn fetch_type(spec: &v1::FetchType, path: &str) -> Read<Type> {
    let base = match &spec.r#type {
        None => return Err(missing(path, "the type")),
        Some(v1::fetch_type::Type::Name(number)) => named_type(*number).ok_or_else(|| {
            unwritable(&format!("{path}.name"), Code::BadType, format!("{number} is not a known type"))
        })?,
        Some(v1::fetch_type::Type::BitField(field)) => bit_field(field, &format!("{path}.bit_field"))?,
    };
    let count = spec.array_length.map(|length| match u8::try_from(length) {
        Ok(0) => Err((Code::BadArrayNum, "an array must have at least one element".to_owned())),
        Ok(length) => Ok(length),
        Err(_) => Err((Code::ArrayTooBig, format!("an array of {length} elements is too large"))),
    });
    let count = count
        .transpose()
        .map_err(|(code, message)| unwritable(&format!("{path}.array_length"), code, message))?;
    Ok(Type { base, count, span: NOWHERE })
}

fn named_type(number: i32) -> Option<BaseType> {
    use v1::FetchTypeName as Known;
    Some(match Known::try_from(number).ok()? {
        Known::Unspecified => return None,
        Known::U8 => BaseType::Unsigned(Width::W8),
        Known::U16 => BaseType::Unsigned(Width::W16),
        Known::U32 => BaseType::Unsigned(Width::W32),
        Known::U64 => BaseType::Unsigned(Width::W64),
        Known::S8 => BaseType::Signed(Width::W8),
        Known::S16 => BaseType::Signed(Width::W16),
        Known::S32 => BaseType::Signed(Width::W32),
        Known::S64 => BaseType::Signed(Width::W64),
        Known::X8 => BaseType::Hex(Width::W8),
        Known::X16 => BaseType::Hex(Width::W16),
        Known::X32 => BaseType::Hex(Width::W32),
        Known::X64 => BaseType::Hex(Width::W64),
        Known::Char => BaseType::Char,
        Known::Symbol => BaseType::Symbol,
        Known::String => BaseType::String,
        Known::Ustring => BaseType::UserString,
        Known::Symstr => BaseType::SymbolString,
        Known::Dentry => BaseType::DentryName,
        Known::File => BaseType::FileName,
    })
}

fn bit_field(spec: &v1::FetchBitField, path: &str) -> Read<BaseType> {
    let container = Width::from_bits(spec.container_bits.into()).ok_or_else(|| {
        let message = format!("an integer cannot have {} bits", spec.container_bits);
        unwritable(&format!("{path}.container_bits"), Code::BadType, message)
    })?;
    let bits = |number: u32, field: &str| {
        u8::try_from(number).map_err(|_large| {
            let message =
                format!("a bit-field of {number} bits does not fit an integer of {}", container.bits());
            unwritable(&format!("{path}.{field}"), Code::BadBitfield, message)
        })
    };
    let (width, offset) = (bits(spec.width, "width")?, bits(spec.offset, "offset")?);
    Ok(BaseType::BitField { width, offset, container })
}
