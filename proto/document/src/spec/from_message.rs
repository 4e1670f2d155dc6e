//! From the API's message to a document.

use kprobed_proto::v1::fetch::Source;
use kprobed_proto::v1::{
    self as api, FetchTypeName, FetchVariable, ProbeKind, ProbeSpec, fetch_memory, fetch_type, probe_place,
};

use super::{
    Argument, BitField, Dereference, Fetch, Kind, Member, Memory, MemorySymbol, Parameter, Place, Returned,
    Spec, SymbolPlace, Type, Variable, Word,
};

/// What stands before the kernel's name of a type in the API's.
pub(super) const TYPE_NAME_PREFIX: &str = "FETCH_TYPE_NAME_";

impl Spec {
    /// The document of a message. None if the message lacks what every one has, or says something that is newer than this client.
    pub fn from_message(spec: &ProbeSpec) -> Option<Self> {
        let kind = match spec.kind() {
            ProbeKind::Entry => Kind::Entry,
            ProbeKind::Return => Kind::Return,
            ProbeKind::Unspecified => return None,
        };
        let place = match spec.place.as_ref()?.place.as_ref()? {
            probe_place::Place::Address(address) => Place::Address(Word(*address)),
            probe_place::Place::Symbol(place) => Place::Symbol(SymbolPlace {
                module: place.module.clone(),
                symbol: place.symbol.clone(),
                offset: place.offset,
            }),
        };
        Some(Self {
            kind,
            maxactive: spec.maxactive,
            group: spec.group.clone(),
            event: spec.event.clone(),
            place,
            arguments: spec.arguments.iter().map(argument).collect::<Option<_>>()?,
        })
    }
}

fn argument(spec: &api::ArgumentSpec) -> Option<Argument> {
    Some(Argument {
        name: spec.name.clone(),
        fetch: fetch(spec.fetch.as_ref()?)?,
        r#type: match &spec.r#type {
            Some(ty) => Some(fetch_type(ty)?),
            None => None,
        },
    })
}

fn fetch(fetch: &api::Fetch) -> Option<Fetch> {
    Some(match fetch.source.as_ref()? {
        Source::Register(name) => Fetch::Register(name.clone()),
        Source::StackNth(index) => Fetch::StackNth(*index),
        Source::Argument(index) => Fetch::Argument(*index),
        Source::Variable(variable) => Fetch::Variable(match FetchVariable::try_from(*variable).ok()? {
            FetchVariable::Unspecified => return None,
            FetchVariable::Stack => Variable::Stack,
            FetchVariable::AllArguments => Variable::AllArguments,
            FetchVariable::Retval => Variable::Retval,
            FetchVariable::Comm => Variable::Comm,
        }),
        Source::Memory(memory) => Fetch::Memory(match memory.place.as_ref()? {
            fetch_memory::Place::Address(address) => Memory::Address(Word(*address)),
            fetch_memory::Place::Symbol(symbol) => {
                Memory::Symbol(MemorySymbol { symbol: symbol.symbol.clone(), offset: symbol.offset })
            }
        }),
        Source::Dereference(outer) => Fetch::Dereference(Dereference {
            user: outer.user,
            offset: outer.offset,
            inner: Box::new(self::fetch(outer.inner.as_deref()?)?),
        }),
        Source::Immediate(value) => Fetch::Immediate(*value),
        Source::ImmediateUnsigned(value) => Fetch::ImmediateUnsigned(Word(*value)),
        Source::ImmediateString(text) => Fetch::ImmediateString(text.clone()),
        Source::Parameter(path) => {
            Fetch::Parameter(Parameter { name: path.name.clone(), members: members(&path.members) })
        }
        Source::Returned(path) => Fetch::Returned(Returned { members: members(&path.members) }),
    })
}

fn members(members: &[api::FetchMember]) -> Vec<Member> {
    members.iter().map(|member| Member { arrow: member.arrow, name: member.name.clone() }).collect()
}

fn fetch_type(ty: &api::FetchType) -> Option<Type> {
    let mut shown = Type { name: None, bit_field: None, array_length: ty.array_length };
    match ty.r#type.as_ref()? {
        fetch_type::Type::Name(number) => {
            let name =
                FetchTypeName::try_from(*number).ok().filter(|name| *name != FetchTypeName::Unspecified)?;
            shown.name = Some(name.as_str_name().strip_prefix(TYPE_NAME_PREFIX)?.to_ascii_lowercase());
        }
        fetch_type::Type::BitField(field) => {
            shown.bit_field = Some(BitField {
                width: field.width,
                offset: field.offset,
                container_bits: field.container_bits,
            });
        }
    }
    Some(shown)
}
