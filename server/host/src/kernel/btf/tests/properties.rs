//! Properties of the BTF reader: it survives any bytes, and finds what the test writer wrote.

use std::sync::Arc;

use proptest::prelude::*;

use super::super::{Btf, Kind, TypeId};
use super::sample;
use crate::samples::BtfWriter;

/// Follows every reference; returns how many steps led somewhere.
fn exercise(btf: &Btf) -> usize {
    let mut good = 0;
    for ty in btf.types().flatten() {
        good += usize::from(btf.resolved(ty.id).is_ok());
        good += usize::from(btf.size(ty.id).is_ok());
        good += usize::from(btf.type_text(ty.id).is_ok());
        match ty.kind {
            Kind::Function(_) => {
                let found = btf.functions(ty.name).any(|id| id == ty.id);
                assert!(found, "`{}` is not in the index", ty.name);
                let prototype = btf.prototype(ty.id);
                good += usize::from(
                    prototype.and_then(|prototype| btf.prototype_text(&prototype, ty.name)).is_ok(),
                );
            }
            Kind::Composite(composite) => {
                good += usize::from(btf.member(composite, "d_name").is_ok());
                assert_eq!(composite.members().count(), composite.len());
            }
            _ => {}
        }
    }
    good
}

#[test]
fn everything_in_a_good_file_can_be_followed() {
    let btf = Btf::parse(sample().0.finish()).unwrap();
    assert!(exercise(&btf) > 3 * btf.types().count());
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(btf) = Btf::parse(bytes) {
            exercise(&btf);
        }
    }

    #[test]
    fn any_types_are_survived(
        types in proptest::collection::vec(
            (0u32..24, 0u32..6, any::<bool>(), 0u32..24, proptest::collection::vec(0u32..40, 0..20)), 0..24),
    ) {
        let mut w = BtfWriter::default();
        w.name("d_name");
        w.name("int");
        for (kind, count, flag, size, tail) in types {
            w.raw("f", kind, (u32::from(flag) << 31) | count, size, &tail);
        }
        if let Ok(btf) = Btf::parse(w.finish()) {
            exercise(&btf);
        }
    }

    #[test]
    fn any_damage_is_survived(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let (writer, _) = sample();
        let base = Arc::new(Btf::parse(writer.finish()).unwrap());
        let mut module = BtfWriter::on_top_of(&base);
        module.function("of_module", TypeId(1), &[("a", TypeId(2))]);
        for (good, split) in [(writer.finish(), false), (module.finish(), true)] {
            let mut bytes = good;
            for (index, value) in &changes {
                let at = index.index(bytes.len());
                bytes[at] = *value;
            }
            let read = if split { Btf::parse_split(bytes, Arc::clone(&base)) } else { Btf::parse(bytes) };
            if let Ok(btf) = read {
                exercise(&btf);
            }
        }
    }

    #[test]
    fn every_function_is_found_by_name(names in proptest::collection::vec("[a-z_]{1,4}", 1..40)) {
        let mut w = BtfWriter::default();
        let int = w.int("int", 4, true);
        let ids: Vec<TypeId> = names.iter().map(|name| w.function(name, int, &[])).collect();
        let btf = Btf::parse(w.finish()).unwrap();
        for (name, id) in names.iter().zip(&ids) {
            let same: Vec<TypeId> =
                names.iter().zip(&ids).filter(|(other, _)| *other == name).map(|(_, id)| *id).collect();
            prop_assert!(same.contains(id));
            prop_assert_eq!(btf.functions(name).collect::<Vec<_>>(), same);
        }
    }

    #[test]
    fn members_lie_where_they_were_put(members in proptest::collection::vec((0u32..1 << 20, 0u32..32), 1..20)) {
        let mut w = BtfWriter::default();
        let int = w.int("int", 4, true);
        let names: Vec<String> = (0..members.len()).map(|index| format!("m{index}")).collect();
        let described: Vec<_> =
            names.iter().zip(&members).map(|(name, (offset, bits))| (name.as_str(), int, *offset, *bits)).collect();
        let id = w.structure("s", 8, &described);
        let btf = Btf::parse(w.finish()).unwrap();
        let Kind::Composite(composite) = btf.ty(id).unwrap().kind else { panic!() };
        for (name, _, offset, bits) in described {
            let found = btf.member(composite, name).unwrap().unwrap();
            prop_assert_eq!(found.bit_offset, u64::from(offset));
            prop_assert_eq!(u32::from(found.member.bits.unwrap_or(0)), bits);
        }
    }
}
