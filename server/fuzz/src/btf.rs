//! Property: parser of BTF, the types of the kernel and of modules.

use std::ops::Range;
use std::sync::Arc;

use kprobed_host::kernel::btf::{Btf, BtfError, Composite, Kind, TypeId};

/// A good file with every kind of type, and one that continues it.
const KERNEL: &[u8] = include_bytes!("../corpus/btf/kinds");
const MODULE: &[u8] = include_bytes!("../corpus/btf/split");

/// Longest text of a type that is shown, in bytes.
const TEXT_MAX_BYTES: usize = 16 << 10;

/// The bytes are a kernel's types, a module's on top of good ones, and a kernel's below those of a
/// good module.
pub fn check(data: &[u8]) {
    let good = Arc::new(Btf::parse(KERNEL.to_vec()).expect("it is good"));
    if let Ok(split) = Btf::parse_split(data.to_vec(), Arc::clone(&good)) {
        check_types(&split, 1 + own(&good), &[data, KERNEL]);
    }
    let Ok(alone) = Btf::parse(data.to_vec()) else { return };
    check_types(&alone, 1, &[data]);
    let alone = Arc::new(alone);
    // A module was built for one kernel: on top of another one its names may not resolve.
    if let Ok(split) = Btf::parse_split(MODULE.to_vec(), Arc::clone(&alone)) {
        check_types(&split, 1 + own(&alone), &[MODULE, data]);
    }
}

/// How many types a file has, whether or not they can be read.
fn own(btf: &Btf) -> u32 {
    u32::try_from(btf.types().count()).expect("the input is not that long")
}

/// Numbers go on from `first`, lead to the type of that number or to none, and every walk ends with
/// what it promises.
fn check_types(btf: &Btf, first: u32, files: &[&[u8]]) {
    let strings: Vec<String> = files.iter().map(|file| strings(file)).collect();
    let ids = first..first + own(btf);
    for (ty, id) in btf.types().zip(ids.clone()) {
        let Ok(ty) = ty else { continue };
        assert_eq!(ty.id, TypeId(id));
        check_name(ty.name, &strings);
        check_reference(btf, ty.id, &ids);
        match ty.kind {
            Kind::Function(prototype) => {
                check_reference(btf, prototype, &ids);
                check_function(btf, ty.id, ty.name, &ids);
            }
            Kind::Composite(composite) => check_members(btf, composite, &ids, &strings),
            Kind::Pointer(target) | Kind::Modifier(_, target) => check_reference(btf, target, &ids),
            Kind::Array { element, count } => {
                check_reference(btf, element, &ids);
                if let (Ok(Some(all)), Ok(Some(one))) = (btf.size(ty.id), btf.size(element)) {
                    assert_eq!(all, one * u64::from(count));
                }
            }
            _ => {}
        }
    }
}

/// A reference leads to `void`, to a type of this file or of the one below it, or to an error that
/// names it.
fn check_reference(btf: &Btf, id: TypeId, ids: &Range<u32>) {
    match btf.ty(id) {
        Ok(ty) => {
            assert_eq!(ty.id, id);
            assert!(id.0 < ids.end);
        }
        Err(error) => assert!(id.0 < ids.end || error == BtfError::NoSuchType { id }, "{error}"),
    }
    if let Ok(resolved) = btf.resolved(id) {
        assert!(!matches!(resolved.kind, Kind::Modifier(..)), "{resolved:?}");
        assert_eq!(btf.size(id), btf.size(resolved.id), "names do not change a size");
    }
    for text in [btf.type_text(id), btf.declaration(id, "name")].into_iter().flatten() {
        assert!(!text.is_empty() && text.len() <= TEXT_MAX_BYTES);
    }
}

fn check_function(btf: &Btf, id: TypeId, name: &str, ids: &Range<u32>) {
    let same: Vec<TypeId> = btf.functions(name).collect();
    assert!(same.contains(&id) && same.is_sorted());
    assert!(same.iter().all(|id| ids.contains(&id.0)), "only functions of this file");
    let Ok(prototype) = btf.prototype(id) else { return };
    check_reference(btf, prototype.result, ids);
    for parameter in prototype.parameters().flatten() {
        check_reference(btf, parameter.ty, ids);
    }
    if let Ok(text) = btf.prototype_text(&prototype, name) {
        assert!(text.contains(name) && text.len() <= TEXT_MAX_BYTES);
    }
}

/// Members have an offset and can be found by their name: this member, or another one of that name.
fn check_members(btf: &Btf, composite: Composite<'_>, ids: &Range<u32>, strings: &[String]) {
    assert_eq!(composite.members().count(), composite.len());
    for member in composite.members().flatten() {
        check_name(member.name, strings);
        check_reference(btf, member.ty, ids);
        assert!(member.bits.is_none_or(|bits| bits > 0));
    }
    let mut names = Vec::new();
    let _complete = btf.each_member(composite, &mut |found| {
        assert!(found.bit_offset >= found.member.bit_offset.into());
        names.push(found.member.name);
        names.len() < 8
    });
    for name in names {
        let found = btf.member(composite, name).expect("it was reached before").expect("it was there before");
        assert_eq!(found.member.name, name);
    }
}

/// A name is a string of one of the files, or the end of one.
fn check_name(name: &str, strings: &[String]) {
    assert!(!name.contains('\0'));
    let closed = format!("{name}\0");
    assert!(name.is_empty() || strings.iter().any(|strings| strings.contains(&closed)), "{name:?}");
}

/// The strings of a file, with whatever is no text replaced.
fn strings(file: &[u8]) -> String {
    let number = |at: usize| {
        let bytes = file.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).expect("it has a header");
        u32::from_le_bytes(bytes) as usize
    };
    let start = number(4) + number(16);
    String::from_utf8_lossy(file.get(start..start + number(20)).expect("they lie in the file")).into_owned()
}
