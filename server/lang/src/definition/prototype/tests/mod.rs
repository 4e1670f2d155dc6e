//! Tests of function prototypes.

mod meaning;
mod pairs;
mod properties;
mod refused;
#[path = "../../../../../fixtures/prototype/written.rs"]
mod written;

use crate::definition::{Definition, Diagnostic, Dialect, Features, ProbeDefinition, parse_as};
use crate::samples::{v6_1, v6_12};

/// The probe of the only prototype in `text`.
fn definition(text: &str, features: &Features) -> Result<ProbeDefinition, Vec<Diagnostic>> {
    match parse_as(Dialect::Prototype, text, features).result? {
        Definition::Probe(probe) => Ok(probe),
        Definition::Delete(delete) => panic!("{text}: {delete:?}"),
    }
}

/// The probe of the prototype in `text`; panics with the diagnostics if it has none.
fn translated(text: &str, features: &Features) -> ProbeDefinition {
    definition(text, features).unwrap_or_else(|problems| panic!("{text}: {problems:?}"))
}

fn line(text: &str, features: &Features) -> String {
    let definition = translated(text, features);
    let name = |name: &Option<crate::definition::Name>| name.as_ref().unwrap().text.clone();
    definition.render(&name(&definition.group), &name(&definition.event))
}

#[test]
fn counting_of_parameters() {
    let cases = [
        // A fixed address leaves the parameter to the next field; `NULL` and a union that uses it
        // do not.
        ("f(int m=0x10, int a)", "m=@16:s32 a=$arg1:s32"),
        ("f(int m=0x10 | int a, int b)", "m=@16:s32 a=$arg1:s32 b=$arg2:s32"),
        ("f(int a | int m=0x10, int b)", "a=$arg1:s32 m=@16:s32 b=$arg2:s32"),
        ("f(NULL, int a | NULL, int b)", "a=$arg2:s32 b=$arg3:s32"),
        (
            "f(int a, int b, int c, int d, int e, int g)",
            "a=$arg1:s32 b=$arg2:s32 c=$arg3:s32 d=$arg4:s32 e=$arg5:s32 g=$arg6:s32",
        ),
        ("f(NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL)", ""),
        ("f (int a)", "a=$arg1:s32"),
        ("f(NULL, NULL, NULL, NULL, NULL, int a | int m=0x10)", "a=$arg6:s32 m=@16:s32"),
    ];
    for (text, args) in cases {
        let found = translated(text, &v6_12());
        let found: Vec<_> = found.args.iter().map(ToString::to_string).collect();
        assert_eq!(found.join(" "), args, "{text}");
    }
}

#[test]
fn steps_from_a_parameter() {
    let cases = [
        ("x64 a+0", "$arg1:x64"),
        ("x64 a+8+8[0]", "+16($arg1):x64"),
        ("u16 a[2]+3[1]+4", "+4(+5(+4($arg1))):u16"),
        ("x8[010] a", "+0($arg1):x8[8]"),
        ("int a[0x10]", "+64($arg1):s32"),
        ("unsigned x32 a", "$arg1:u32"),
        ("unsigned s16 a", "$arg1:u16"),
        ("unsigned size_t a", "$arg1:u64"),
        ("symbol a=$jiffies", "@jiffies:symbol"),
        ("x8[3] a=$jiffies", "@jiffies:x8[3]"),
        ("string a=0xffffffff81000000", "@0xffffffff81000000:string"),
        ("string a[0]", "+0(+0($arg1)):string"),
        ("string a+8[0]", "+0(+8($arg1)):string"),
        ("x8[6] a[0][2]", "+0(+2(+0($arg1))):x8[6]"),
        ("unsigned char[4] a", "+0($arg1):string"),
    ];
    for (field, fetch) in cases {
        let text = format!("f({field})");
        assert_eq!(line(&text, &v6_1()), format!("p:functions/f f a={fetch}"), "{text}");
    }
    assert_eq!(line("f(u64 $jiffies)", &v6_1()), "p:functions/f f jiffies=@jiffies:u64");
}

#[test]
fn long_arrays_and_shared_names() {
    assert_eq!(
        line("f(x8[130] a+4 | x16[65] m=0x1000)", &v6_12()),
        "p:functions/f f a_0=+4($arg1):x8[64] a_64=+68($arg1):x8[64] a_128=+132($arg1):x8[2] \
         m_0=@4096:x16[64] m_64=@4224:x16[1]"
    );
    assert_eq!(
        line("f(int a | int a | int a_2, x64 0x10 | x64 0x10)", &v6_12()),
        "p:functions/f f a=$arg1:s32 a_3=$arg1:s32 a_2=$arg1:s32 mem_10=@16:x64 mem_10_2=@16:x64"
    );
}

/// Every spelling that a warning recommends must be the same probe, without that warning.
#[test]
fn warnings_name_a_spelling_that_says_the_same() {
    let cases = [
        ("f(symbol read+40[0]+16)", "AMBIGUOUS_PROTOTYPE", "symbol read+40[0]+16[0]"),
        ("f(x64[6] irq_stack[16])", "AMBIGUOUS_PROTOTYPE", "x64[6] irq_stack+128"),
        ("f(string s+8[0])", "AMBIGUOUS_PROTOTYPE", "string s+8[0]+0"),
        ("f(string banner[2][0])", "AMBIGUOUS_PROTOTYPE", "string banner+8[0][0]"),
    ];
    for (text, code, spelling) in cases {
        let found = translated(text, &v6_12());
        assert_eq!(found.warnings.len(), 1, "{text}");
        let warning = &found.warnings[0];
        assert_eq!((warning.code.name(), warning.span.start), (code, 2));
        let hint = warning.hint.as_deref().unwrap();
        assert!(hint.starts_with(&format!("`{spelling}` ")), "{hint}");
        let again = translated(&format!("f({spelling})"), &v6_12());
        assert_eq!(again.without_spans(), found.without_spans());
        assert!(again.warnings.is_empty());
    }
    let completed = |text: &str| {
        let found = translated(text, &v6_12());
        found.warnings.iter().map(|warning| (warning.code.name(), warning.span.start)).collect::<Vec<_>>()
    };
    assert_eq!(completed("f(x64 0x10 | x64 a | x64 a)"), [("COMPLETED", 6), ("COMPLETED", 25)]);
    assert_eq!(completed("f(char[14] a)"), [("COMPLETED", 2)]);
    assert_eq!(completed("f(x8[65] a)"), [("COMPLETED", 2)]);
    assert_eq!(completed("f(unsigned string a)"), [("COMPLETED", 2)]);
    assert_eq!(completed("f(string a | x8[64] b+1 | symbol c[0][0], size_t d)"), []);
}
