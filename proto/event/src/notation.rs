//! Notation of numbers in messages of the API.
//!
//! Owns the mapping. What a notation shows is in [`kprobed_filter::Notation`]: filters know it too.

use kprobed_filter::{Names, Notation};

use crate::api;

/// How people write the numbers of a field. A notation that this version does not know, or whose table of names is too
/// long, shows them as they are.
pub(crate) fn notation(field: &api::EventField) -> Notation {
    use api::FieldNotation as N;
    match field.notation() {
        N::Unspecified => Notation::Number,
        N::Errno => Notation::Errno,
        N::Names => {
            let names = field.names.iter().map(|name| (name.number, name.name.as_str()));
            Names::new(names).map_or(Notation::Number, Notation::Names)
        }
        N::NetworkOrder => Notation::NetworkOrder,
        N::Ipv4 => Notation::Ipv4,
        N::Ipv6 => Notation::Ipv6,
        N::Device => Notation::Device,
        N::Octal => Notation::Octal,
        N::Bool => Notation::Bool,
        N::Stack => Notation::Stack,
        N::OpenFlags => Notation::OpenFlags,
    }
}

/// The notation in a message, and the names of numbers.
pub fn notation_message(notation: &Notation) -> (api::FieldNotation, Vec<api::NumberName>) {
    use api::FieldNotation as N;
    let kind = match notation {
        Notation::Number | Notation::Symbol | Notation::Computed => N::Unspecified,
        Notation::Errno => N::Errno,
        Notation::Names(names) => {
            let message = |(number, name): (i64, &str)| api::NumberName { number, name: name.to_owned() };
            return (N::Names, names.iter().map(message).collect());
        }
        Notation::NetworkOrder => N::NetworkOrder,
        Notation::Ipv4 => N::Ipv4,
        Notation::Ipv6 => N::Ipv6,
        Notation::Device => N::Device,
        Notation::Octal => N::Octal,
        Notation::Bool => N::Bool,
        Notation::Stack => N::Stack,
        Notation::OpenFlags => N::OpenFlags,
    };
    (kind, Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notations_are_read_again() {
        let names = Names::new([(-1, "NONE"), (1, "ONE"), (1, "UNO")]).unwrap();
        for notation in [
            Notation::Number,
            Notation::Errno,
            Notation::Names(names),
            Notation::NetworkOrder,
            Notation::Ipv4,
            Notation::Ipv6,
            Notation::Device,
            Notation::Octal,
            Notation::Bool,
            Notation::Stack,
            Notation::OpenFlags,
        ] {
            let (kind, names) = notation_message(&notation);
            let mut field = api::EventField { names, ..Default::default() };
            field.set_notation(kind);
            assert_eq!(super::notation(&field), notation);
        }
        let unknown = api::EventField { notation: 99, ..Default::default() };
        assert_eq!(notation(&unknown), Notation::Number);
        let many = (0..129).map(|number| api::NumberName { number, name: "N".to_owned() }).collect();
        let mut too_many = api::EventField { names: many, ..Default::default() };
        too_many.set_notation(api::FieldNotation::Names);
        assert_eq!(notation(&too_many), Notation::Number);
    }
}
