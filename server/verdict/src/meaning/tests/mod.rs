//! Tests of meanings on two builds of a small kernel.

mod notations;
mod world;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use world::{new, old, relinked};

/// What differs between the two builds: the code of the first difference; empty for none.
fn changed(text: &str) -> &'static str {
    let (old, new) = (old().boot(), new().boot());
    let differences = compare(&old.meaning(text), &new.meaning(text));
    differences.first().map_or("", |first| first.kind.code())
}

#[test]
fn a_register_is_the_parameter_that_it_holds() {
    for (text, code) in [
        ("p:e accept", ""),
        ("p:e accept sk=%di", ""),
        ("p:e accept flags=%si", "PROTOTYPE_CHANGED"),
        ("p:e accept flags=$arg2:s32", "PROTOTYPE_CHANGED"),
        ("p:e accept err=+0(%dx):s32", "PROTOTYPE_CHANGED"),
        ("p:e moved a=%di", "PROTOTYPE_CHANGED"),
        ("p:e many a=%di b=%r9 c=$stack1 d=+16(%sp) e=$arg8", ""),
        ("p:e accept a=%bx", "MEANING_UNKNOWN"),
        ("p:e accept a=$stack5", "MEANING_UNKNOWN"),
        ("p:e accept a=$comm b=\\1 c=%ip d=$stack e=$stack0", ""),
        ("p:e accept a=@callee", ""),
        ("p:e accept a=@callee+8", "MEANING_UNKNOWN"),
        ("p:e accept a=@0xffffffff81000000", "MEANING_UNKNOWN"),
        ("r:e accept ret=$retval", ""),
        ("r:e accept ret=%ax", ""),
        ("r:e accept a=%di", "MEANING_UNKNOWN"),
        ("r:e accept s=+0($retval):s32", "LAYOUT_CHANGED"),
    ] {
        assert_eq!(changed(text), code, "{text}");
    }
}

#[test]
fn an_offset_is_the_members_that_lie_there() {
    for (text, code) in [
        ("p:e look mode=+0(%di):u32", ""),
        ("p:e look flags=+64(%di):u32", "LAYOUT_CHANGED"),
        // The first 8 bytes are the same members; more are not.
        ("p:e look both=+0(%di):x64", ""),
        ("p:e look high=+4(%di):b4@4/32", ""),
        ("p:e look ino=+16(+32(%di)):u64", "LAYOUT_CHANGED"),
        // A union has one more member, at the same place.
        ("p:e look next=+160(%di):x64", ""),
        ("p:e look data=+176(%di):x64", ""),
        ("p:e look behind=+0(+176(%di)):x64", "MEANING_UNKNOWN"),
        ("p:e look before=-8(%di):x64", "MEANING_UNKNOWN"),
        ("p:e look beyond=+1000(%di):x64", "MEANING_UNKNOWN"),
        ("p:e look name=+0(%si):string", ""),
        ("p:e look fifth=+4(%si):u8", ""),
        ("p:e look how=+0(%dx):u8", "MEANING_UNKNOWN"),
        ("p:e look pointers=+0(%di):u64[8]", "LAYOUT_CHANGED"),
    ] {
        assert_eq!(changed(text), code, "{text}");
    }
}

#[test]
fn names_resolve_anew() {
    for (text, code) in [
        ("p:e look flags=file->f_flags", ""),
        ("p:e look ino=file->f_inode->i_ino", ""),
        ("p:e look $arg*", ""),
        ("p:e moved s=second->s first", ""),
        ("p:e look file->f_flags raw=+64(%di):u32", "LAYOUT_CHANGED"),
    ] {
        assert_eq!(changed(text), code, "{text}");
    }
    let meaning = old().boot().meaning("p:e look ino=file->f_inode->i_ino");
    let [Part { named: true, reads, .. }] = meaning.parts.as_slice() else { panic!("{meaning:?}") };
    let paths: Vec<_> = reads
        .iter()
        .flat_map(|read| match read {
            Read::Members { slots, .. } => slots.iter().map(|slot| slot.path.as_str()).collect(),
            _ => Vec::new(),
        })
        .collect();
    assert_eq!(paths, ["f_inode", "i_ino"]);
    assert!(!meaning.is_raw());
}

#[test]
fn inside_a_function_the_code_decides() {
    // Before the new instruction, and after it.
    assert_eq!(changed("p:e look+1"), "");
    assert_eq!(changed("p:e look+1 a=%ax"), "");
    assert_eq!(changed("p:e look+8"), "CODE_CHANGED");
    assert_eq!(
        changed("p:e look+1 a=+0(%di):u32"),
        "MEANING_UNKNOWN",
        "what `%di` points to is not known there"
    );
    // Without types the whole function counts.
    assert_eq!(changed("p:e in_assembly"), "");
    assert_eq!(changed("p:e in_assembly a=%di"), "CODE_CHANGED");
    assert_eq!(changed("p:e in_assembly a=+8(%di)"), "CODE_CHANGED");
}

#[test]
fn the_same_code_at_another_address_is_the_same() {
    let (old, relinked) = (old().boot(), relinked().boot());
    for text in [
        "p:e look+8",
        "p:e look+17 a=%ax",
        "p:e in_assembly a=%di",
        "p:e look flags=+64(%di):u32",
        "p:e accept flags=%si",
        "r:e accept s=+0($retval):s32",
    ] {
        let (before, now) = (old.meaning(text), relinked.meaning(text));
        assert_eq!(compare(&before, &now), [], "{text}");
        assert!(!before.is_of_same_build(&now) && before.is_of_same_build(&old.meaning(text)));
    }
}

/// Another function begins at the same address, or at the same distance from a symbol.
#[test]
fn the_identity_of_a_place_is_its_name() {
    let (old, new) = (old().boot(), new().boot());
    let at = |kernel: &world::Kernel, function: &str| {
        let symbol = kernel.facts.symbols.lookup(function, None).unwrap();
        (
            format!("p:e {:#x}", symbol.address),
            format!("p:e _stext+{}", symbol.address - 0xffff_ffff_8100_0000),
        )
    };
    // Where one build has `look`, the other one has `callee`.
    let (address, distance) = at(&old, "look");
    for text in [&address, &distance] {
        let (before, now) = (old.meaning(text), new.meaning(text));
        let [difference] = compare(&before, &now).try_into().unwrap();
        assert_eq!(difference.kind.code(), "PLACE_CHANGED", "{text}");
        assert_eq!(difference.message, "the address was `look+0x0` and is `callee+0x0` now");
        assert_eq!(compare(&before, &before), [], "{text}");
    }
    // The same build can be at another address.
    let before = old.meaning(&address);
    let moved =
        Meaning { location: "callee+0x0".to_owned(), function: "callee".to_owned(), ..before.clone() };
    assert!(before.is_of_same_build(&before) && !before.is_of_same_build(&moved));
    // Two functions of one name in two modules: an address means one of them, a name either.
    let of_module = |name: &str| Build { name: name.to_owned(), id: Some("1".to_owned()) };
    let within = |name: &str| Meaning { module: Some(of_module(name)), ..before.clone() };
    assert!(!within("dummy").is_of_same_function(&within("veth")));
    assert!(within("dummy").is_of_same_function(&within("dummy")));
    let named = Meaning { by_address: false, ..within("dummy") };
    assert!(named.is_of_same_function(&within("veth")) && named.is_of_same_function(&before));
    // A place that is named is the same wherever it is.
    assert_eq!(changed("p:e look"), "");
}

#[test]
fn both_sides_are_said() {
    let (old, new) = (old().boot(), new().boot());
    let difference = |text: &str| compare(&old.meaning(text), &new.meaning(text)).remove(0);
    let prototype = difference("p:e accept flags=%si");
    assert_eq!(prototype.before, "struct sock *accept(struct sock *sk, int flags, int *err)");
    assert_eq!(prototype.after, "struct sock *accept(struct sock *sk, struct proto_accept_arg *arg)");
    assert_eq!(prototype.message, "`%si` was `int flags` and is `struct proto_accept_arg *arg` now");
    let layout = difference("p:e look flags=+64(%di):u32");
    assert_eq!(layout.before, "struct file\n+64  f_flags  unsigned int f_flags, 4 bytes");
    assert_eq!(layout.after, "struct file\n+64  f_pos  long unsigned int f_pos, 8 bytes");
    assert_eq!(
        layout.message,
        "`+64(%di)` read `f_flags` of `struct file` and reads `f_pos` of `struct file` now"
    );
    assert_eq!(layout.argument, "flags");
    let code = difference("p:e look+12");
    assert!(code.before.lines().any(|line| line == "> +12  call callee"), "{}", code.before);
    assert!(code.after.lines().any(|line| line == "  +15  call callee"), "{}", code.after);
    assert_eq!(code.message, "the code of `look` has changed before offset 12, or there");
    let gone = difference("p:e accept err=%dx");
    assert_eq!(gone.message, "`%dx` was `int *err` and is not a parameter now");
}

#[test]
fn the_line_is_offered_where_one_is_possible() {
    let (old, new) = (old().boot(), new().boot());
    for (text, line) in [
        ("p:e look flags=+64(%di):u32", Some("p:g/e look flags=+80(%di):u32")),
        ("p:e look ino=+16(+32(%di)):u64", Some("p:g/e look ino=+24(+40(%di)):u64")),
        ("p:e moved a=%di:s32 b=+0($arg2):s32", Some("p:g/e moved a=%si:s32 b=+8($arg3):s32")),
        ("p:e look+12 a=%ax", Some("p:g/e look+15 a=%ax")),
        ("p:e look file->f_flags b=+64(%di):u32", Some("p:g/e look file->f_flags b=+80(%di):u32")),
        ("p:e accept flags=%si", None),
        ("p:e look pointers=+0(%di):u64[9]", None),
        ("p:e look how=+0(%dx):u8", None),
    ] {
        let before = old.meaning(text);
        let ported = new.know(text).ported(&before);
        assert_eq!(ported.as_deref(), line, "{text}");
        if let Some(line) = &ported {
            assert!(means_the_same_elsewhere(&before, &new.meaning(line)), "{line}");
            // Porting its meaning there leads back.
            let back = old.know(line).ported(&new.meaning(line)).unwrap();
            assert_eq!(old.meaning(&back).parts, before.parts, "{line}");
        }
    }
}

#[test]
fn a_place_that_is_not_there_is_not_compared() {
    let (old, new) = (old().boot(), new().boot());
    let absent = new.meaning("p:e ext4:ext4_open a=%di");
    assert!(!absent.complete && absent.is_raw() && absent.module.as_ref().unwrap().name == "ext4");
    let differences = compare(&old.meaning("p:e accept a=%di"), &absent);
    assert_eq!(differences[0].kind, DifferenceKind::Unknown);
    let plain = old.meaning("p:e ext4:ext4_open");
    assert_eq!(compare(&plain, &new.meaning("p:e ext4:ext4_open")), [], "nothing raw is in it");
    assert!(!plain.is_of_same_build(&plain), "it is not complete");
}

#[test]
fn what_is_stored_is_read_again() {
    let kernel = old().boot();
    for text in [
        "p:e look+8 a=%ax",
        "p:e look ino=file->f_inode->i_ino b=+0(+176(%di)) c=$comm",
        "r:e accept s=+0($retval):s32",
    ] {
        let meaning = kernel.meaning(text);
        let stored = json!(meaning);
        let bytes = stored.to_string().len();
        assert!(bytes < 4000, "{bytes} bytes: {stored}");
        assert_eq!(Meaning::from_value(stored), Some(meaning));
    }
    assert_eq!(Meaning::from_value(json!({})), None);
    let mut later = json!(kernel.meaning("p:e look"));
    later["version"] = json!(3);
    assert_eq!(Meaning::from_value(later), None);
}

proptest! {
    /// Whatever is read of a structure, at every offset, means the same as itself, and is never
    /// offered as something else.
    #[test]
    fn every_read_is_told(offset in -16_i32..220, count in 1_u8..=64, deeper: bool, register in 0_usize..6) {
        let (old, new) = (old().boot(), new().boot());
        let register = ["di", "si", "dx", "cx", "r8", "bx"][register];
        let inner = if deeper { format!("+32(%{register})") } else { format!("%{register}") };
        let text = format!("p:e look a={offset:+}({inner}):u8[{count}]");
        let (before, now) = (old.meaning(&text), new.meaning(&text));
        let unknown = before.parts.iter().any(|part| {
            matches!(part.origin, Origin::Unknown { .. }) || part.reads.iter().any(|read| matches!(read, Read::Unknown { .. }))
        });
        prop_assert_eq!(compare(&before, &before).is_empty(), !unknown);
        if let Some(line) = new.know(&text).ported(&before) {
            prop_assert!(means_the_same_elsewhere(&before, &new.meaning(&line)), "{}", line);
        }
        if compare(&before, &now).is_empty() {
            let slots = |meaning: &Meaning| -> Vec<Slot> {
                let reads = meaning.parts.iter().flat_map(|part| part.reads.clone());
                reads.flat_map(|read| if let Read::Members { slots, .. } = read { slots } else { Vec::new() }).collect()
            };
            let there = slots(&now);
            prop_assert!(slots(&before).iter().all(|slot| there.contains(slot)), "{:?}", there);
        }
    }

    #[test]
    fn any_text_is_survived(text in "\\PC{0,100}") {
        prop_assert_eq!(serde_json::from_str(&text).ok().and_then(Meaning::from_value), None);
    }
}
