//! From a document to the API's message.

use kprobed_proto::v1::fetch::Source;
use kprobed_proto::v1::{
    self as api, FetchTypeName, FetchVariable, ProbeKind, ProbeSpec, fetch_memory, fetch_type, probe_place,
};

use super::from_message::TYPE_NAME_PREFIX;
use super::{Argument, Fetch, Kind, Member, Memory, Place, Spec, Type, Variable};

impl Spec {
    /// The message.
    ///
    /// # Errors
    /// What the document says in a form that has no message.
    pub(crate) fn to_message(&self) -> Result<ProbeSpec, String> {
        let kind = match self.kind {
            Kind::Entry => ProbeKind::Entry,
            Kind::Return => ProbeKind::Return,
        };
        let place = match &self.place {
            Place::Address(address) => probe_place::Place::Address(address.0),
            Place::Symbol(place) => probe_place::Place::Symbol(api::SymbolPlace {
                module: place.module.clone(),
                symbol: place.symbol.clone(),
                offset: place.offset,
            }),
        };
        Ok(ProbeSpec {
            kind: kind.into(),
            maxactive: self.maxactive,
            group: self.group.clone(),
            event: self.event.clone(),
            place: Some(api::ProbePlace { place: Some(place) }),
            arguments: self.arguments.iter().map(argument).collect::<Result<_, _>>()?,
        })
    }
}

fn argument(argument: &Argument) -> Result<api::ArgumentSpec, String> {
    Ok(api::ArgumentSpec {
        name: argument.name.clone(),
        fetch: Some(fetch(&argument.fetch)),
        r#type: argument.r#type.as_ref().map(fetch_type).transpose()?,
    })
}

fn fetch(fetch: &Fetch) -> api::Fetch {
    let source = match fetch {
        Fetch::Register(name) => Source::Register(name.clone()),
        Fetch::StackNth(index) => Source::StackNth(*index),
        Fetch::Argument(index) => Source::Argument(*index),
        Fetch::Variable(variable) => {
            let variable = match variable {
                Variable::Stack => FetchVariable::Stack,
                Variable::AllArguments => FetchVariable::AllArguments,
                Variable::Retval => FetchVariable::Retval,
                Variable::Comm => FetchVariable::Comm,
            };
            Source::Variable(variable.into())
        }
        Fetch::Memory(memory) => {
            let place = match memory {
                Memory::Address(address) => fetch_memory::Place::Address(address.0),
                Memory::Symbol(symbol) => fetch_memory::Place::Symbol(api::FetchSymbol {
                    symbol: symbol.symbol.clone(),
                    offset: symbol.offset,
                }),
            };
            Source::Memory(api::FetchMemory { place: Some(place) })
        }
        Fetch::Dereference(outer) => Source::Dereference(Box::new(api::FetchDereference {
            user: outer.user,
            offset: outer.offset,
            inner: Some(Box::new(self::fetch(&outer.inner))),
        })),
        Fetch::Immediate(value) => Source::Immediate(*value),
        Fetch::ImmediateUnsigned(value) => Source::ImmediateUnsigned(value.0),
        Fetch::ImmediateString(text) => Source::ImmediateString(text.clone()),
        Fetch::Parameter(path) => Source::Parameter(api::FetchParameter {
            name: path.name.clone(),
            members: members(&path.members),
        }),
        Fetch::Returned(path) => Source::Returned(api::FetchReturned { members: members(&path.members) }),
    };
    api::Fetch { source: Some(source) }
}

fn members(members: &[Member]) -> Vec<api::FetchMember> {
    members.iter().map(|member| api::FetchMember { arrow: member.arrow, name: member.name.clone() }).collect()
}

fn fetch_type(ty: &Type) -> Result<api::FetchType, String> {
    let r#type = match (&ty.name, &ty.bit_field) {
        (Some(name), None) => {
            let known =
                FetchTypeName::from_str_name(&format!("{TYPE_NAME_PREFIX}{}", name.to_ascii_uppercase()))
                    .filter(|known| *known != FetchTypeName::Unspecified)
                    .ok_or_else(|| format!("unknown type `{name}`"))?;
            fetch_type::Type::Name(known.into())
        }
        (None, Some(field)) => fetch_type::Type::BitField(api::FetchBitField {
            width: field.width,
            offset: field.offset,
            container_bits: field.container_bits,
        }),
        _ => return Err("a type has either `name` or `bit_field`".to_owned()),
    };
    Ok(api::FetchType { r#type: Some(r#type), array_length: ty.array_length })
}
