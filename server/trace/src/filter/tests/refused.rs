//! Tests of refused filters: code, place, and hint.

use super::*;

/// The text with `[` and `]` around what the problem is about.
fn problem(text: &str) -> (&'static str, String) {
    let error = bind(text).expect_err(text);
    assert!(!error.message.is_empty() && !error.hint.is_empty(), "{error:?}");
    let (before, rest) = text.split_at(error.span.start);
    let (inside, after) = rest.split_at(error.span.end - error.span.start);
    (error.code.name(), format!("{before}[{inside}]{after}"))
}

fn check(cases: &[(&str, &str, &str)]) {
    for (text, code, place) in cases {
        assert_eq!(problem(text), (*code, (*place).to_owned()), "{text}");
    }
}

#[test]
fn syntax() {
    check(&[
        ("", "NO_FILTER", "[]"),
        (" 0\n", "NO_FILTER", "[ 0\n]"),
        ("u8 == 1 &&", "INVALID_FILTER", "u8 == 1 &&[]"),
        ("()", "INVALID_FILTER", "([)]"),
        ("== 1", "INVALID_FILTER", "[==] 1"),
        ("u8 == 1 || != 3", "INVALID_FILTER", "u8 == 1 || [!=] 3"),
        ("(u8 == 1", "TOO_MANY_OPEN", "[(]u8 == 1"),
        ("u8 == 1)", "TOO_MANY_CLOSE", "u8 == 1[)]"),
        ("u8 == 1 u8 == 2", "TOO_MANY_PREDS", "u8 == 1 [u8] == 2"),
        ("u8 == 1 & s16 == 2", "TOO_MANY_PREDS", "u8 == 1 [&] s16 == 2"),
        ("u8 == 1 (u8 == 2)", "TOO_MANY_PREDS", "u8 == 1 [(]u8 == 2)"),
        ("u8 = 1", "INVALID_OP", "u8 [=] 1"),
        ("u8", "INVALID_OP", "u8[]"),
        ("u8 && 1", "INVALID_OP", "u8 [&&] 1"),
        ("text !~ 'a'", "INVALID_OP", "text [!~] 'a'"),
        ("text =~ 'a'", "INVALID_OP", "text [=~] 'a'"),
        ("u8.log2 == 1", "UNKNOWN_SUFFIX", "u8[.log2] == 1"),
        ("u8 ==", "INVALID_VALUE", "u8 ==[]"),
        ("text == bash", "INVALID_VALUE", "text == [bash]"),
        ("u8 == +1", "INVALID_VALUE", "u8 == [+]1"),
        ("u8 == 08", "ILLEGAL_INTVAL", "u8 == [08]"),
        ("u8 == 0x", "ILLEGAL_INTVAL", "u8 == [0x]"),
        ("u64 == 18446744073709551616", "ILLEGAL_INTVAL", "u64 == [18446744073709551616]"),
        ("u8 == 000000000000000000000001", "OPERAND_TOO_LONG", "u8 == [000000000000000000000001]"),
        ("text == \"a", "MISSING_QUOTE", "text == [\"a]"),
        ("CPU & CPUS", "MISSING_BRACE_OPEN", "CPU & [CPUS]"),
        ("CPU & CPUS{1", "MISSING_BRACE_CLOSE", "CPU & [CPUS{1]"),
        ("CPU & CPUS{1-x}", "INVALID_CPULIST", "CPU & CPUS{[1-x]}"),
        ("CPU & CPUS{}", "INVALID_CPULIST", "CPU & CPUS{[]}"),
        ("CPU < CPUS{1}", "ILLEGAL_FIELD_OP", "CPU [<] CPUS{1}"),
        ("text < 'a'", "ILLEGAL_FIELD_OP", "text [<] 'a'"),
        ("u8 ~ 1", "ILLEGAL_FIELD_OP", "u8 [~] 1"),
        ("place.function > one", "ILLEGAL_FIELD_OP", "place.function [>] one"),
        ("u8 == 1\0", "BAD_CHARACTER", "u8 == 1[\0]"),
        ("u8 == 1 é", "TOO_MANY_PREDS", "u8 == 1 [é]"),
    ]);
    let long = format!("text == '{}'", "a".repeat(256));
    assert_eq!(problem(&long).0, "OPERAND_TOO_LONG");
    assert!(bind(&long.replace("aa'", "a'")).is_ok());
    assert_eq!(problem(&" ".repeat(4096).replacen(' ', "u8==1", 1)).0, "FILTER_TOO_LONG");
}

#[test]
fn types() {
    check(&[
        ("fd == 1", "FIELD_NOT_FOUND", "[fd] == 1"),
        ("stacktrace == 1", "FIELD_NOT_FOUND", "[stacktrace] == 1"),
        ("text == 1", "EXPECT_STRING", "text == [1]"),
        ("comm < 1", "EXPECT_STRING", "comm < [1]"),
        ("probe == 1", "EXPECT_STRING", "probe == [1]"),
        ("u8 == 'a'", "EXPECT_DIGIT", "u8 == ['a']"),
        ("letter == 'a'", "EXPECT_DIGIT", "letter == ['a']"),
        ("u8 == 256", "ILLEGAL_INTVAL", "u8 == [256]"),
        ("u8 == -1", "ILLEGAL_INTVAL", "u8 == [-1]"),
        ("s16 < 0xffff", "ILLEGAL_INTVAL", "s16 < [0xffff]"),
        ("s64 == 0xffffffffffffffff", "ILLEGAL_INTVAL", "s64 == [0xffffffffffffffff]"),
        ("CPU == 4294967296", "ILLEGAL_INTVAL", "CPU == [4294967296]"),
        ("u8 == CPUS{256}", "ILLEGAL_INTVAL", "u8 == [CPUS{256}]"),
        ("CPU & 1", "ILLEGAL_FIELD_OP", "CPU [&] 1"),
        ("text & CPUS{1}", "ILLEGAL_FIELD_OP", "text & [CPUS{1}]"),
        ("CPU != CPUS{1,2}", "CONSTANT_TERM", "[CPU != CPUS{1,2}]"),
        ("three == 1", "ILLEGAL_FIELD_OP", "[three] == 1"),
        ("s32.function == one", "ILLEGAL_FIELD_OP", "[s32].function == one"),
        ("texts.function == one", "ILLEGAL_FIELD_OP", "[texts].function == one"),
        ("place.function == tow", "NO_FUNCTION", "place.function == [tow]"),
        ("place.function == 1", "NO_FUNCTION", "place.function == [1]"),
        ("place.ustring == 'a'", "USER_POINTER", "[place].ustring == 'a'"),
        ("u8.ustring == 1", "EXPECT_DIGIT", "u8.ustring == [1]"),
        ("text ~ '1*'", "LITERAL_PATTERN", "text ~ ['1*']"),
        ("text ~ '!1?'", "LITERAL_PATTERN", "text ~ ['!1?']"),
        ("text == '/etc/thread*'", "LITERAL_PATTERN", "text == ['/etc/thread*']"),
        ("comm != 'a*'", "LITERAL_PATTERN", "comm != ['a*']"),
    ]);
    assert!(bind("text ~ '12'").is_ok() && bind("text ~ '[1]*'").is_ok());
}

#[test]
fn a_filter_that_ends_where_a_term_is_expected_is_cut_off() {
    let is_cut_off = |text: &str| Filter::parse(text).is_err_and(|error| error.is_cut_off());
    for text in ["u8 == 1 &&", "u8 == 1 || ", "u8 == 1 && !", "u8 == 1 && (", "!"] {
        assert!(is_cut_off(text), "{text}");
    }
    for text in ["", "0", "u8 == 1", "u8 ==", "u8", "()", "u8 == 1)", "== 1", "u8 == 1 && == 2"] {
        assert!(!is_cut_off(text), "{text}");
    }
}

#[test]
fn names_are_offered() {
    let hint = |text: &str| bind(text).expect_err(text).hint;
    assert!(hint("s46 == 1").starts_with("did you mean `s16`? there are u8, s16,"));
    assert!(hint("commm == 'a'").contains("`comm`"));
    assert_eq!(hint("place.function == tow"), "did you mean `one`?");
    let of_return = Schema { is_return: true, ..schema() };
    let bound = |text: &str| Filter::parse(text).unwrap().bind(&of_return, &BINDING);
    assert!(bound("__probe_ip == 1").unwrap_err().is_unknown_field());
    assert!(bound("__probe_func == 1 && __probe_ret_ip.function == two").is_ok());
}

#[test]
fn the_kernel_knows_fewer_names_and_minds_less() {
    let check = |text: &str| Filter::parse(text).unwrap().check_for_kernel(&schema(), Some(&TwoFunctions));
    assert_eq!(
        check("pid == 1").unwrap_err().hint,
        "the kernel calls it `common_pid`: the thread, not the process"
    );
    assert_eq!(check("tgid == 1").unwrap_err().hint, "only filters of subscriptions know `tgid`");
    assert!(check("probe == 'a'").unwrap_err().is_unknown_field());
    for taken in ["CPU & 1", "CPU == CPUS{1,2}", "three == 1", "text ~ '1*'", "u8 == CPUS{300}"] {
        assert_eq!(check(taken), Ok(()), "{taken}");
        assert!(bind(taken).is_err(), "{taken}");
    }
    for refused in
        ["u8 == -1", "u8 == 256", "s64 == 0xffffffffffffffff", "text == 1", "u8 == 'a'", "nothing == 1"]
    {
        assert!(check(refused).is_err(), "{refused}");
    }
}

/// What the hint says is a filter.
#[test]
fn a_pattern_in_quotes_is_proposed_as_one() {
    for (text, pattern, character) in [
        ("text == '/etc/a*'", "text ~ \"/etc/a*\"", "text ~ \"/etc/a[*]\""),
        ("comm != 'a*'", "!(comm ~ \"a*\")", "!(comm ~ \"a[*]\")"),
    ] {
        let hint = bind(text).unwrap_err().hint;
        assert_eq!(hint, format!("write `{pattern}` for a pattern, `{character}` for the character"));
        assert!(bind(pattern).is_ok() && bind(character).is_ok(), "{hint}");
    }
}
