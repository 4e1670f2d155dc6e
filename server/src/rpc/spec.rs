//! Conversion of a definition to fields.
//!
//! Owns which field a part becomes. Never judges a definition, and takes none as fields: clients send text.

#[cfg(test)]
mod tests;

use kprobed_proto::v1;
use kprobed_proto::v1::fetch::Source;

use super::messages;
use kprobed_lang::definition::{
    Argument, BaseType, BtfMember, BtfRoot, Fetch, FetchKind, MemoryAddress, Name, Place, ProbeDefinition,
    Type, Width,
};

/// The fields of a definition. They contain neither positions in its text nor warnings.
pub(crate) fn write(definition: &ProbeDefinition) -> v1::ProbeSpec {
    let name = |name: &Option<Name>| name.as_ref().map(|name| name.text.clone()).unwrap_or_default();
    v1::ProbeSpec {
        kind: messages::kind(definition.kind).into(),
        maxactive: definition.maxactive.map(u32::from),
        group: name(&definition.group),
        event: name(&definition.event),
        place: place(&definition.place).map(|place| v1::ProbePlace { place: Some(place) }),
        arguments: definition.args.iter().map(argument).collect(),
    }
}

/// Absent for an event of the host.
fn place(place: &Place) -> Option<v1::probe_place::Place> {
    Some(match place {
        Place::Event { .. } => return None,
        Place::Address { address, .. } => v1::probe_place::Place::Address(*address),
        Place::Symbol { module, symbol, offset, .. } => v1::probe_place::Place::Symbol(v1::SymbolPlace {
            module: module.clone().unwrap_or_default(),
            symbol: symbol.clone(),
            offset: *offset,
        }),
    })
}

fn argument(argument: &Argument) -> v1::ArgumentSpec {
    v1::ArgumentSpec {
        name: argument.name.as_ref().map(|name| name.text.clone()).unwrap_or_default(),
        fetch: Some(fetch(&argument.fetch)),
        r#type: argument.ty.map(fetch_type),
    }
}

fn fetch(fetch: &Fetch) -> v1::Fetch {
    let variable = |variable: v1::FetchVariable| Source::Variable(variable.into());
    let source = match &fetch.kind {
        FetchKind::Register(register) => Source::Register(register.name().to_owned()),
        FetchKind::StackNth(index) => Source::StackNth(*index),
        FetchKind::Stack => variable(v1::FetchVariable::Stack),
        FetchKind::Argument(index) => Source::Argument(*index),
        FetchKind::AllArguments => variable(v1::FetchVariable::AllArguments),
        FetchKind::Retval => variable(v1::FetchVariable::Retval),
        FetchKind::Comm => variable(v1::FetchVariable::Comm),
        FetchKind::Memory(address) => Source::Memory(memory(address)),
        FetchKind::Deref { user, offset, inner } => Source::Dereference(Box::new(v1::FetchDereference {
            user: *user,
            offset: *offset,
            inner: Some(Box::new(self::fetch(inner))),
        })),
        FetchKind::Immediate(value) => immediate(*value),
        FetchKind::ImmediateString(text) => Source::ImmediateString(text.clone()),
        FetchKind::Btf { root: BtfRoot::Parameter(name), members: path } => {
            Source::Parameter(v1::FetchParameter { name: name.clone(), members: members(path) })
        }
        FetchKind::Btf { root: BtfRoot::Retval, members: path } => {
            Source::Returned(v1::FetchReturned { members: members(path) })
        }
    };
    v1::Fetch { source: Some(source) }
}

/// The parser makes no value beyond 64 bits.
fn immediate(value: i128) -> Source {
    match (i64::try_from(value), u64::try_from(value)) {
        (Ok(value), _) => Source::Immediate(value),
        (_, Ok(value)) => Source::ImmediateUnsigned(value),
        _ if value < 0 => Source::Immediate(i64::MIN),
        _ => Source::ImmediateUnsigned(u64::MAX),
    }
}

fn memory(address: &MemoryAddress) -> v1::FetchMemory {
    let place = match address {
        MemoryAddress::Address(address) => v1::fetch_memory::Place::Address(*address),
        MemoryAddress::Symbol { symbol, offset } => {
            v1::fetch_memory::Place::Symbol(v1::FetchSymbol { symbol: symbol.clone(), offset: *offset })
        }
    };
    v1::FetchMemory { place: Some(place) }
}

fn members(members: &[BtfMember]) -> Vec<v1::FetchMember> {
    let member = |member: &BtfMember| v1::FetchMember {
        arrow: member.arrow,
        name: member.name.clone(),
        indices: member.indices.clone(),
    };
    members.iter().map(member).collect()
}

fn fetch_type(ty: Type) -> v1::FetchType {
    use v1::FetchTypeName as Name;
    let integer = |width, names: [Name; 4]| match width {
        Width::W8 => names[0],
        Width::W16 => names[1],
        Width::W32 => names[2],
        Width::W64 => names[3],
    };
    let name = match ty.base {
        BaseType::Unsigned(width) => integer(width, [Name::U8, Name::U16, Name::U32, Name::U64]),
        BaseType::Signed(width) => integer(width, [Name::S8, Name::S16, Name::S32, Name::S64]),
        BaseType::Hex(width) => integer(width, [Name::X8, Name::X16, Name::X32, Name::X64]),
        BaseType::Char => Name::Char,
        BaseType::Symbol => Name::Symbol,
        BaseType::String => Name::String,
        BaseType::UserString => Name::Ustring,
        BaseType::SymbolString => Name::Symstr,
        BaseType::DentryName => Name::Dentry,
        BaseType::FileName => Name::File,
        BaseType::Path => Name::Path,
        BaseType::BitField { width, offset, container } => {
            let field = v1::FetchBitField {
                width: width.into(),
                offset: offset.into(),
                container_bits: container.bits().into(),
            };
            return v1::FetchType {
                r#type: Some(v1::fetch_type::Type::BitField(field)),
                array_length: ty.count.map(u32::from),
            };
        }
    };
    v1::FetchType {
        r#type: Some(v1::fetch_type::Type::Name(name.into())),
        array_length: ty.count.map(u32::from),
    }
}
