//! Tests of push-down: the filter that the kernel gets.

use super::*;

const ALL: KernelFilterFeatures = KernelFilterFeatures { functions: true, cpu_lists: true };
const OLD: KernelFilterFeatures = KernelFilterFeatures { functions: false, cpu_lists: false };

fn push(text: &str, features: KernelFilterFeatures) -> PushDown {
    bind(text).unwrap().kernel_text(features)
}

/// The kernel gets nothing of it, so that the daemon selects all.
fn assert_none(text: &str, features: KernelFilterFeatures) {
    assert_eq!(push(text, features), PushDown { text: None, exact: false }, "{text}");
}

fn text(text: &str, features: KernelFilterFeatures) -> String {
    push(text, features).text.unwrap_or_default()
}

#[test]
fn our_names_become_the_kernels() {
    for (ours, kernel) in [
        ("pid == 5", "common_pid == 5"),
        ("cpu == 1", "CPU == 1"),
        ("comm == 'a'", "COMM == \"a\""),
        ("!(pid == 5 || s16 < 2)", "common_pid != 5 && !s16 < 2"),
        ("(u8 == 1 || pid == 2) && s16 == 3", "(u8 == 1 || common_pid == 2) && s16 == 3"),
        ("place.function == one", "place.function == one"),
        (
            "(place.function == one || u8 == 1) && (u8 == 2 || place.function != two)",
            "(place.function == one || u8 == 1) && (u8 == 2 || place.function != two )",
        ),
        ("u8 & CPUS{1-2}", "u8 & CPUS{1-2}"),
        ("s16 & CPUS{4000}", "s16 == 4000"),
        ("u8 & CPUS{All}", "u8 >= 0"),
        ("text.ustring == 'a'", "text == \"a\""),
        ("text ~ '!a*'", "text ~ \"!a*\""),
        ("!text ~ '!a*'", "!text ~ \"!a*\""),
        ("text ~ '*end'", "text ~ \"*en[d]\""),
        ("CPU & CPUS{0-3,5}", "CPU >= 0 && CPU < 4 || CPU == 5"),
        ("!CPU & CPUS{0-3,5}", "!(CPU >= 0 && CPU < 4 || CPU == 5)"),
        ("host == 'host1' && u8 == 1", "u8 == 1"),
    ] {
        assert_eq!(text(ours, ALL), kernel, "{ours}");
    }
}

#[test]
fn older_kernels_get_numbers() {
    assert_eq!(text("u8 & CPUS{1-2}", OLD), "u8 >= 1 && u8 < 3");
    // Not `u8 < 301`, which the kernel would take for `u8 < 45`.
    assert_eq!(text("u8 & CPUS{1-2,9-300,400}", OLD), "u8 >= 1 && u8 < 3 || u8 >= 9");
    assert_none("u8 & CPUS{300-400}", OLD);
    assert_eq!(
        text("place.function == one && u8 == 1", OLD),
        "place >= 0xffffffff81000000 && place < 0xffffffff81000100 && u8 == 1"
    );
    assert_eq!(
        text("!place.function == one", OLD),
        "!(place >= 0xffffffff81000000 && place < 0xffffffff81000100)"
    );
    assert_none("s64.function == one", OLD);
    assert_none("u64 & CPUS{1-2}", OLD);
    assert_none("u64 & CPUS{all}", ALL);
}

#[test]
fn what_the_kernel_can_not_do_is_left_out() {
    let weakened = push("tgid == 1 && pid == 2", ALL);
    assert_eq!(weakened.text.as_deref(), Some("common_pid == 2"));
    assert!(!weakened.exact);
    assert_none("tgid == 1 || pid == 2", ALL);
    assert_eq!(text("!(tgid == 1 || pid == 2)", ALL), "common_pid != 2");
    assert_none("!(tgid == 1 && pid == 2)", ALL);
    assert_none("text ~ '*)'", ALL);
    assert_none("text ~ 'a[!b]'", ALL);
}

#[test]
fn exact_is_only_what_is_the_same_in_the_kernel() {
    assert!(push("pid == 1 && CPU & CPUS{0-3}", ALL).exact);
    assert!(push("__probe_ip.function == one", ALL).exact);
    assert!(!push("comm == 'a'", ALL).exact, "the name may have changed");
    assert!(!push("u8 == 1", ALL).exact, "it may have been unreadable");
    let mut schema = schema();
    schema.fields[0].may_fault = false;
    let of_register =
        |text: &str| Filter::parse(text).unwrap().bind(&schema, &BINDING).unwrap().kernel_text(ALL);
    assert!(of_register("u8 == 1").exact && !of_register("u8 == 1 && s16 == 1").exact);
    let (always, never) = (push("host == 'host1'", ALL), push("host == 'x'", ALL));
    assert_eq!((always.text, always.exact), (None, true));
    assert!(never.exact && !selects(&never.text.unwrap(), &Event::default()));
}

#[test]
fn hidden_names_are_not_used() {
    let mut schema = schema();
    "CPU".clone_into(&mut schema.fields[0].name);
    let bound = |text: &str, schema: &Schema| Filter::parse(text).unwrap().bind(schema, &BINDING).unwrap();
    assert_eq!(bound("cpu == 1", &schema).kernel_text(ALL).text.as_deref(), Some("cpu == 1"));
    "comm".clone_into(&mut schema.fields[1].name);
    assert_eq!(bound("COMM == 'a'", &schema).kernel_text(ALL).text.as_deref(), Some("COMM == \"a\""));
    "COMM".clone_into(&mut schema.fields[1].name);
    "comm".clone_into(&mut schema.fields[2].name);
    assert!(bound("fields.COMM == 1", &schema).kernel_text(ALL).text.is_some(), "the probe's own");
}

/// The kernel records the address of such a field, and the daemon its name.
#[test]
fn names_of_symbols_are_compared_by_the_daemon() {
    let mut schema = schema();
    let field = schema.fields.iter_mut().find(|field| field.name == "text").unwrap();
    field.kind = FieldKind::SymbolName;
    let filter = |text: &str| Filter::parse(text).unwrap();
    let bound = filter("text ~ 'vfs_*' && pid == 200").bind(&schema, &BINDING).unwrap();
    let event = |name: &str| Event { text: Some(name.to_owned()), tid: 200, ..Default::default() };
    assert!(bound.matches(&event("vfs_read+0x0/0x10")) && !bound.matches(&event("fput+0x0/0x10")));
    let pushed = bound.kernel_text(ALL);
    assert_eq!((pushed.text.as_deref(), pushed.exact), (Some("common_pid == 200"), false));

    let check = |text: &str| filter(text).check_for_kernel(&schema, Some(&TwoFunctions));
    let refused = check("text == 'vfs_read+0x0/0x10'").unwrap_err();
    assert_eq!(refused.code, FilterCode::ExpectDigit);
    assert!(refused.message.contains("the kernel records `text` as an address"), "{refused}");
    assert!(refused.hint.contains("text.function == FUNCTION"), "{}", refused.hint);
    assert_eq!(check("text.function == one"), Ok(()));
    assert_eq!(check("text > 0xffffffff81000000"), Ok(()));
}
