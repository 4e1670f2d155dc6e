//! Tests of the field map: the fields of a line, and their positions in it.

use super::*;
use kprobed_lang::definition::Span;

#[test]
fn a_line_and_its_fields_say_the_same() {
    let line =
        "r10:g/e ext4:ext4_map_blocks+4 %di x=+16(-8($arg2)):u32[4] b=@jiffies+8:b3@2/16 $comm s=\\\"k\"";
    let fields = spec(line);
    assert_eq!(fields.maxactive, Some(10));
    assert_eq!((fields.group.as_str(), fields.event.as_str()), ("g", "e"));
    let symbol =
        v1::SymbolPlace { module: "ext4".to_owned(), symbol: "ext4_map_blocks".to_owned(), offset: 4 };
    assert_eq!(fields.place.as_ref().unwrap().place, Some(v1::probe_place::Place::Symbol(symbol)));
    assert_eq!(fields.arguments.len(), 5);
    assert_eq!(fields.arguments[0].fetch, fetch(Source::Register("di".to_owned())));
    assert_eq!(given(&fields).unwrap().text(), line);
}

#[test]
fn names_may_be_left_to_the_daemon() {
    for line in ["p vfs_read", "p:x vfs_read", "p:g/ vfs_read", "r:g/x vfs_read", "p 0xffffffff81000000"] {
        assert_eq!(given(&spec(line)).unwrap().text(), line);
    }
}

#[test]
fn bare_words_are_parameters_whatever_the_kernel_makes_of_them() {
    let mut fields = spec("p:x vfs_read %di");
    fields.arguments[0].fetch =
        fetch(Source::Parameter(v1::FetchParameter { name: "a0".to_owned(), members: Vec::new() }));
    let v6_1 = kprobed_lang::samples::v6_1();
    let given = Given::of(String::new(), Some(&fields), &checker_of(v6_1.clone())).unwrap();
    assert_eq!(given.text(), "p:x vfs_read a0 # dialect: kernel");
    assert!(
        kprobed_lang::definition::parse_any(given.text(), &v6_1).result.is_err(),
        "it has no parameter names"
    );
}

#[test]
fn places_in_the_text_are_fields() {
    let given = given(&spec("r10:g/e mod4:f+4 %di x=+u16(-8($arg2)):u32 y=$retval->a.b")).unwrap();
    for (part, path) in [
        ("r10:", "spec"),
        ("r", "spec.kind"),
        ("10", "spec.maxactive"),
        ("g", "spec.group"),
        ("e", "spec.event"),
        ("mod4:f+4", "spec.place.symbol"),
        ("mod4", "spec.place.symbol.module"),
        ("f", "spec.place.symbol.symbol"),
        ("+4", "spec.place.symbol.offset"),
        ("%di", "spec.arguments[0].fetch.register"),
        ("x=+u16(-8($arg2)):u32", "spec.arguments[1]"),
        ("x", "spec.arguments[1].name"),
        ("+u16(-8($arg2))", "spec.arguments[1].fetch.dereference"),
        ("+u16", "spec.arguments[1].fetch.dereference.offset"),
        ("-8($arg2)", "spec.arguments[1].fetch.dereference.inner.dereference"),
        ("$arg2", "spec.arguments[1].fetch.dereference.inner.dereference.inner.argument"),
        ("u32", "spec.arguments[1].type"),
        ("$retval->a.b", "spec.arguments[2].fetch.returned"),
    ] {
        let start = given.text().find(part).unwrap();
        let field = given.field_at(given.text(), Span::new(start, start + part.len()));
        assert_eq!(field, path, "{part}");
    }
    // The kernel's echo has other names and more arguments.
    let echo = "r10:g/e_2 mod4:f+4 arg1=%di x=+u16(-8($arg2)):u32 y=$retval __kpd_end=\\\"k\":string";
    for (part, path) in [
        ("g/e", "spec"),
        ("f+4", "spec.place"),
        ("%di", "spec.arguments[0]"),
        ("$arg2", "spec.arguments[1]"),
        ("__kpd", "spec"),
    ] {
        assert_eq!(given.field_at(echo, Span::point(echo.find(part).unwrap())), path, "{part}");
    }
    assert_eq!(Given::of_text("p f".to_owned()).field_at("p f", Span::new(0, 1)), "");
}
