//! Tests of the probe language as a whole.

mod codes;
mod dangers;
mod dialects;
mod files;
mod guards;
mod properties;
mod refused;
mod seeds;
#[path = "../../../../fixtures/strategies.rs"]
pub(super) mod strategies;

use super::{Definition, Features, ProbeDefinition, parse};
use crate::samples::{v6_1, v6_12, v7_3};

/// The probe that `text` defines; panics with the diagnostics if it does not.
pub(super) fn probe(text: &str, features: &Features) -> ProbeDefinition {
    match parse(text, features) {
        Ok(Definition::Probe(probe)) => probe,
        Ok(Definition::Delete(_)) => panic!("{text:?} is a deletion"),
        Err(problems) => {
            panic!("{text}: {problems:?}")
        }
    }
}

#[test]
fn features_follow_the_readme() {
    let old = v6_1();
    assert!(old.symstr && old.anonymous_group && old.ustring && old.group_hyphen);
    assert!(
        !old.char_type
            && !old.fprobe
            && !old.btf_args
            && !old.btf_members
            && !old.percent_pd
            && !old.retprobe_args
    );
    let new = v6_12();
    assert!(
        new.char_type && new.fprobe && new.btf_args && new.btf_members && new.percent_pd && new.retprobe_args
    );
    assert_eq!((new.expression_max_bytes, new.nesting_max), (63, None));
    assert_eq!((v7_3().expression_max_bytes, v7_3().nesting_max), (255, Some(8)));
}

#[test]
fn canonical_text() {
    let cases = [
        ("p vfs_read", "p:g/e vfs_read"),
        ("  p:a.b\tvfs_read+0x10   x=%di:u8 # comment", "p:g/e vfs_read+16 x=%di:u8"),
        ("p:a/b vfs_read%return $retval", "r:g/e vfs_read $retval"),
        ("r010 ext4:ext4_sync_fs+00 $retval:s32", "r8:g/e ext4:ext4_sync_fs $retval:s32"),
        ("p 18446744071578845184 %ip", "p:g/e 0xffffffff81000000 %ip"),
        ("p +4", "p:g/e 0x4"),
        ("p f ++8(%di) +-8(%di) -u0x8(+u0(%si)):ustring", "p:g/e f +8(%di) -8(%di) -u8(+u0(%si)):ustring"),
        ("p f @jiffies_64+0x8 @0x10 @jiffies-1:u8[0x4]", "p:g/e f @jiffies_64+8 @16 @jiffies-1:u8[4]"),
        ("p f \\0x10 \\-5 \\+5 \\\"é\" $COMM", "p:g/e f \\16 \\-5 \\5 \\\"é\" $comm"),
        ("p f %di:b18446744073709551617@0/8", "p:g/e f %di:b1@0/8"),
        ("p f %di:b0x4@010/32 +0(%di):string[2]", "p:g/e f %di:b4@8/32 +0(%di):string[2]"),
    ];
    for (text, canonical) in cases {
        for features in [v6_1(), v6_12()] {
            assert_eq!(probe(text, &features).render("g", "e"), canonical);
        }
    }
    let modern = [
        ("p vfs_read $arg*", "p:g/e vfs_read $arg*"),
        ("r vfs_read $arg1 $retval->a.b", "r:g/e vfs_read $arg1 $retval->a.b"),
        (
            "p vfs_read file->f_path.dentry->d_name.name:string",
            "p:g/e vfs_read file->f_path.dentry->d_name.name:string",
        ),
        ("p vfs_read $arg1:%pD c=%di:char", "p:g/e vfs_read $arg1:%pD c=%di:char"),
    ];
    for (text, canonical) in modern {
        assert_eq!(probe(text, &v6_12()).render("g", "e"), canonical);
    }
}

#[test]
fn names_of_the_event() {
    let name = |text| probe(text, &v6_12()).default_event_name();
    assert_eq!(name("p vfs_read"), "p_vfs_read_0");
    assert_eq!(name("r100 ext4:foo.isra.0+4"), "r_ext4_foo_isra_0_4");
    assert_eq!(name("p 0xffffffff81000000"), "p_0xffffffff81000000");
    assert_eq!(name(&format!("p {}", "x".repeat(100))).len(), 63);
}

#[test]
fn explicit_names() {
    let named =
        |text: &str, features: &Features| probe(text, features).with_explicit_names().render("g", "e");
    assert_eq!(
        named("p vfs_read $arg1 count %si:u8 x=%dx $arg*", &v6_12()),
        "p:g/e vfs_read arg1=$arg1 count=count arg3=%si:u8 x=%dx $arg*"
    );
    assert_eq!(named("r vfs_read $retval", &v6_1()), "r:g/e vfs_read arg1=$retval");
    // The kernel would name the second one after the parameter, so that the name `arg2` is free for
    // the first.
    assert_eq!(named("p vfs_read arg2=%di $arg2", &v6_12()), "p:g/e vfs_read arg2=%di arg2_=$arg2");
    // With a name it would be the raw slot, which is not a string.
    for text in ["p:g/e f $arg1:string %di", "p:g/e f $arg1:ustring[4] %di"] {
        let line = named(text, &v6_12());
        assert_eq!(line, text.replace("%di", "arg2=%di"));
        assert_eq!(named(&line, &v6_12()), line);
    }
    // Names that the kernel chooses may be longer than those that can be written.
    let (longest, longer) = ("a".repeat(32), "b".repeat(33));
    assert_eq!(
        named(&format!("p f {longest} {longer} %di"), &v6_12()),
        format!("p:g/e f {longest}={longest} {longer} arg3=%di")
    );
}

#[test]
fn deletions() {
    let deletion = |text| match parse(text, &v6_12()) {
        Ok(Definition::Delete(deletion)) => Some(deletion),
        _ => None,
    };
    let one = deletion("-:g/e vfs_read+4 a=%di # x").unwrap();
    assert_eq!(one.group.unwrap().text, "g");
    assert_eq!(one.event.unwrap().text, "e");
    assert_eq!(one.location.len(), 2);
    let any = deletion("\n-:e").unwrap();
    assert!(any.group.is_none() && any.event.is_some());
    let all = deletion("-:g/").unwrap();
    assert!(all.group.is_some() && all.event.is_none());
    for bad in ["-:", "-", "-foo", " -:e", "-:/"] {
        assert!(deletion(bad).is_none(), "{bad:?}");
    }
}

#[test]
fn what_the_place_must_be() {
    let need = |text, features: &Features| {
        probe(text, features)
            .entry_requirement(features)
            .map(|problem| (problem.code.name(), problem.span.start))
    };
    assert_eq!(need("r vfs_read+10", &v6_1()), Some(("BAD_RETPROBE", 2)));
    assert_eq!(need("p vfs_read+10%return", &v6_12()), Some(("BAD_RETPROBE", 2)));
    assert_eq!(need("p vfs_read+20 %di $arg*", &v6_12()), Some(("NOFENTRY_ARGS", 18)));
    assert_eq!(need("p vfs_read+20 x=+0($arg1)", &v6_12()), Some(("NOFENTRY_ARGS", 19)));
    assert_eq!(need("p vfs_read+20 x=+0($arg1)", &v6_1()), Some(("BAD_VAR", 19)));
    assert_eq!(need("p vfs_read+20 file", &v6_12()), Some(("NOSUP_BTFARG", 14)));
    assert_eq!(need("p vfs_read+20 %di", &v6_12()), None);
}
