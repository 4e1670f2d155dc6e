//! `format` files of real kernels, and malformed ones.

use proptest::prelude::*;

use super::*;

const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
     \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
     \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
     \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";

fn format(fields: &str, print_fmt: &str) -> String {
    format!("name: e\nID: 1393\nformat:\n{COMMON}{fields}\nprint fmt: {print_fmt}\n")
}

fn line(declaration: &str, size: usize) -> String {
    format!("\tfield:{declaration};\toffset:8;\tsize:{size};\tsigned:0;\n")
}

fn only(declaration: &str, size: usize, print_fmt: &str) -> Field {
    let format = Format::parse(&format(&line(declaration, size), print_fmt)).unwrap();
    assert_eq!(format.fields.len(), 1);
    format.fields.into_iter().next().unwrap()
}

fn problem(text: &str) -> String {
    Format::parse(text).unwrap_err().to_string()
}

#[test]
fn a_kprobe_event_is_read() {
    let text = format(
        "\tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n\
         \tfield:__data_loc char[] s;\toffset:16;\tsize:4;\tsigned:1;\n\
         \tfield:__data_loc char[][2] s2;\toffset:28;\tsize:8;\tsigned:1;\n\
         \tfield:u64 a;\toffset:36;\tsize:8;\tsigned:0;\n\
         \tfield:s32 e;\toffset:44;\tsize:4;\tsigned:1;\n\
         \tfield:u16 g[];\toffset:48;\tsize:8;\tsigned:0;\n",
        r#""(%lx) s=\"%s\" s2={\"%s\",\"%s\"} a=0x%Lx e=%d g={%u,%u,%u,%u}", REC->__probe_ip, __get_str(s)"#,
    );
    let format = Format::parse(&text).unwrap();
    assert_eq!((format.name.as_str(), format.id), ("e", 1393));
    assert_eq!(format.common.len(), 4);
    assert_eq!(format.common[3].name, "common_pid");
    let fields: Vec<_> = format
        .fields
        .iter()
        .map(|field| (field.name.as_str(), field.offset, field.shape, field.presentation))
        .collect();
    assert_eq!(
        fields,
        [
            ("__probe_ip", 8, Shape::Scalar { size: 8 }, Presentation::Unsigned),
            ("s", 16, Shape::DataLoc, Presentation::String),
            ("s2", 28, Shape::DataLocArray { count: 2 }, Presentation::String),
            ("a", 36, Shape::Scalar { size: 8 }, Presentation::Hex),
            ("e", 44, Shape::Scalar { size: 4 }, Presentation::Signed),
            ("g", 48, Shape::Array { element_size: 2, count: 4 }, Presentation::Unsigned),
        ]
    );
    assert_eq!(format.fields[2].type_text, "__data_loc char[][2]");
    assert_eq!(format.fields[5].type_text, "u16");
}

#[test]
fn every_presentation_of_a_kprobe_is_known() {
    let of = |declaration, size, spec| {
        only(declaration, size, &format!("\"(%lx) x={spec}\", REC->x")).presentation
    };
    assert_eq!(of("u8 x", 1, "0x%x"), Presentation::Hex);
    assert_eq!(of("u64 x", 8, "0x%Lx"), Presentation::Hex);
    assert_eq!(of("u64 x", 8, "%Lu"), Presentation::Unsigned);
    assert_eq!(of("s64 x", 8, "%Ld"), Presentation::Signed);
    assert_eq!(of("u8 x", 1, "'%c'"), Presentation::Char);
    assert_eq!(of("u8 x[]", 3, "{'%c','%c','%c'}"), Presentation::Char);
    assert_eq!(of("u64 x", 8, "%pS"), Presentation::Symbol);
    assert_eq!(of("u32 x[]", 8, "{0x%x,0x%x}"), Presentation::Hex);
}

#[test]
fn a_presentation_that_does_not_suit_is_passed_over() {
    let of = |declaration, size, spec| only(declaration, size, &format!("\"x={spec}\"")).presentation;
    assert_eq!(of("u32 x", 4, r#"\"%s\""#), Presentation::Unsigned, "flags that are printed as names");
    assert_eq!(of("u32 x", 4, "%pS"), Presentation::Unsigned);
    assert_eq!(of("u32 x", 4, "'%c'"), Presentation::Unsigned);
    assert_eq!(of("u32 x[]", 8, "{0x%x,%u}"), Presentation::Unsigned);
    assert_eq!(of("u32 x[]", 8, "{0x%x"), Presentation::Unsigned);
    assert_eq!(of("char x[16]", 16, "0x%x"), Presentation::String);
    assert_eq!(of("__data_loc char[] x", 4, "0x%x"), Presentation::String);
    assert_eq!(only("u32 x", 4, "x=0x%x").presentation, Presentation::Unsigned, "no literal");
    assert_eq!(only("u32 x", 4, r#""y=\"x=0x%x\"", "x=0x%x""#).presentation, Presentation::Unsigned);
    assert_eq!(
        only("u32 x", 4, r#""y=\\" x=0x%x ""#).presentation,
        Presentation::Unsigned,
        "behind the literal"
    );
}

#[test]
fn declarations_of_tracepoints_are_read() {
    let shape = |declaration, size| only(declaration, size, "\"\"").shape;
    assert_eq!(shape("unsigned long x[6]", 48), Shape::Array { element_size: 8, count: 6 });
    assert_eq!(shape("char x[TASK_COMM_LEN]", 16), Shape::Array { element_size: 1, count: 16 });
    assert_eq!(shape("unsigned long long x[]", 16), Shape::Array { element_size: 8, count: 2 });
    assert_eq!(shape("char x[]", 0), Shape::Array { element_size: 1, count: 0 });
    assert_eq!(shape("const char * x", 8), Shape::Scalar { size: 8 });
    assert_eq!(shape("__rel_loc char[] x", 4), Shape::RelLoc);
    assert_eq!(shape("__data_loc u8[] x", 4), Shape::DataLoc);
    assert!(only("char x[16]", 16, "\"\"").is_text());
    assert!(only("__rel_loc char[] x", 4, "\"\"").is_text());
    assert!(!only("unsigned char x[16]", 16, "\"\"").is_text());
    assert!(!only("char x", 1, "\"\"").is_text());
    assert!(!only("__data_loc u8[] x", 4, "\"\"").is_text());
}

#[test]
fn problems_name_their_line() {
    let with = |line: &str| problem(&format(line, "\"\""));
    assert_eq!(problem(""), "format line 1: there is no `name:`");
    assert_eq!(problem("name: x\n"), "format line 1: there is no `ID:`");
    assert_eq!(problem("name: x\nID: 65536\n"), "format line 2: `65536` is not an event id");
    assert_eq!(problem("name: x\nID: 1\nformat:\n"), "format line 3: there is no `print fmt:`");
    assert_eq!(with("\tfeld:u8 x;\n"), "format line 9: `feld:u8 x;` does not begin with `field:`");
    assert_eq!(with("\tfield:u8 x;\tsize:1;\n"), "format line 9: field has no usable `offset`");
    assert_eq!(with("\tfield:u8 x;\toffset:1;\tsize:-1;\n"), "format line 9: field has no usable `size`");
    for declaration in ["x", "u8 ", "u8 2x", "u8 x[2", "u8 x.y", ""] {
        let expected = format!("format line 9: `{}` does not declare a field", declaration.trim());
        assert_eq!(with(&line(declaration, 1)), expected);
    }
    for (declaration, bytes) in [
        ("u8 x[0]", 4),
        ("u16 x[3]", 8),
        ("u16 x[]", 3),
        ("struct y x[]", 8),
        ("__data_loc char[] x", 8),
        ("__data_loc char[][0] x", 0),
        ("__data_loc char[][2] x", 4),
        ("__data_loc char[][18446744073709551615] x", 4),
        ("__rel_loc char[] x", 8),
    ] {
        let expected = format!("format line 9: `x` cannot have {bytes} bytes");
        assert_eq!(with(&line(declaration, bytes)), expected);
    }
}

proptest! {
    #[test]
    fn any_text_is_survived(text in ".{0,200}") {
        drop(Format::parse(&text));
        drop(Format::parse(&format(&text, &text)));
    }

    #[test]
    fn any_field_is_survived(
        declaration in "(__data_loc |__rel_loc )?(u8|char|long)?[a-z \\[\\]0-9]{0,20}",
        size in any::<usize>(),
        print_fmt in "[\"\\\\ =x%{},s']{0,30}",
    ) {
        drop(Format::parse(&format(&line(&declaration, size), &print_fmt)));
    }
}
