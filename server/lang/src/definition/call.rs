//! Call: an entry of a function and its return, written as one definition.
//!
//! Owns the grammar, and the two lines that a call stands for.
//!
//! ```text
//! CALL     := [MODULE ':'] FUNCTION '(' [ ARGUMENT { ',' ARGUMENT } ] ')' [ '->' NAME [':' TYPE] ]
//! ARGUMENT := '*' | [ NAME '=' ] PATH [':' TYPE]
//! PATH     := NAME { ('->' | '.') NAME | '[' NUMBER ']' }
//! ```
//!
//! Behind a `->` an argument may be whatever a line of `kprobe_events` can have: `name=+0($arg2):ustring`. Without it,
//! the text is a call if all of its arguments are as above, and there is one: anything else is a prototype
//! (`prototype`), in which every field has a type before its name. `FUNCTION()` alone is a prototype too.
//!
//! `*` stands for all parameters. A path is named after its last member. Names and types are those of the lines:
//! whoever knows the types of the kernel resolves them.

use super::code::Code;
use super::diagnostic::Diagnostic;
use super::line::Word;
use super::names::{is_identifier, is_of_name};

/// Calls that a return probe has room for at a time: the most that kernels give
/// (kernel/trace/trace_kprobe.c: KRETPROBE_MAXACTIVE_MAX). A return that is missed leaves a call without its end.
const MAXACTIVE: u32 = 4096;

/// The two definitions of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The function, with its module if that is named.
    pub function: String,
    /// The line of the entry probe.
    pub entry: String,
    /// The line of the return probe.
    pub exit: String,
}

fn unexpected(part: Word<'_>, message: impl Into<String>, hint: &str) -> Diagnostic {
    part.error(Code::UnexpectedToken, message).with_hint(hint)
}

/// An argument as a line has it.
struct Argument {
    /// Its name, if it is known.
    name: Option<String>,
    line: String,
}

/// The call that a text is; `None` if it is something else.
///
/// # Errors
/// The first problem, with its place in the text.
pub fn call(text: &str) -> Option<Result<Call, Diagnostic>> {
    let (function, rest) = Word { text, start: 0 }.trimmed().split_once('(')?;
    let function = function.trimmed();
    // No argument begins with a bracket: that is a cast of another language.
    if !is_function(function.text) || rest.text.starts_with('(') {
        return None;
    }
    let close = closing(rest.text)?;
    let (inside, behind) = (rest.head(close).trimmed(), rest.tail(close + 1).trimmed());
    let arguments = separated(inside);
    let value = behind.text.starts_with("->").then(|| behind.tail("->".len()).trimmed());
    if value.is_none() {
        let is_call = !arguments.is_empty() && arguments.iter().all(|part| plain(*part).is_some());
        if !behind.text.is_empty() || !is_call {
            return None;
        }
    }
    Some(lines(function.text, &arguments, value))
}

fn lines(function: &str, arguments: &[Word<'_>], value: Option<Word<'_>>) -> Result<Call, Diagnostic> {
    let mut entry = format!("p {function}");
    let mut names: Vec<String> = Vec::new();
    for part in arguments {
        let Argument { name, line } = plain(*part).map_or_else(|| of_kernel(*part), Ok)?;
        // Two members of one name have their paths as names.
        let (name, line) = match name {
            Some(name) if names.contains(&name) => {
                let path = line.split_once('=').map(|(_, path)| path).filter(|_| !part.text.contains('='));
                let path = path.ok_or_else(|| twice(*part, &name))?;
                let words = path.split(':').next().unwrap_or_default().split(|c: char| !is_of_name(c));
                let long = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_");
                if names.contains(&long) {
                    return Err(twice(*part, &long));
                }
                let line = format!("{long}={path}");
                (Some(long), line)
            }
            other => (other, line),
        };
        names.extend(name);
        entry.push(' ');
        entry.push_str(&line);
    }
    let mut exit = format!("r{MAXACTIVE} {function}");
    if let Some(value) = value {
        let (name, kind) = value
            .split_once(':')
            .map_or((value, None), |(name, kind)| (name.trimmed(), Some(kind.text.trim())));
        if !is_identifier(name.text) {
            let message = "the name of the return value is expected behind `->`";
            return Err(unexpected(value, message, "write `-> NAME` or `-> NAME:TYPE`, as in `-> fd:s32`"));
        }
        if kind.is_some_and(|kind| kind.is_empty() || kind.contains(char::is_whitespace)) {
            let message = "the type of the return value is expected behind the colon";
            return Err(unexpected(value, message, "write one type, such as `s32`, or leave the colon out"));
        }
        if names.iter().any(|known| known == name.text) {
            return Err(twice(name, name.text));
        }
        exit.push(' ');
        exit.push_str(name.text);
        exit.push_str("=$retval");
        exit.extend(kind.map(|kind| format!(":{kind}")));
    }
    Ok(Call { function: function.to_owned(), entry, exit })
}

fn twice(part: Word<'_>, name: &str) -> Diagnostic {
    let message = format!("the call has two values of the name `{name}`");
    unexpected(part, message, "give one of them another name: `NAME=ARGUMENT`, or `-> NAME`")
}

/// An argument that only a call can have in its parentheses.
fn plain(part: Word<'_>) -> Option<Argument> {
    if part.text == "*" {
        return Some(Argument { name: None, line: "$arg*".to_owned() });
    }
    let (value, kind) =
        part.text.split_once(':').map_or((part.text, None), |(value, kind)| (value, Some(kind)));
    let is_type = |kind: &str| {
        !kind.is_empty() && kind.chars().all(|c| is_of_name(c) || matches!(c, '[' | ']' | '@' | '/'))
    };
    // A prototype leaves a parameter out with this word.
    if part.text == "NULL" || kind.is_some_and(|kind| !is_type(kind)) {
        return None;
    }
    let (name, path) = value.split_once('=').map_or((None, value), |(name, path)| (Some(name), path));
    let last = last_of_path(path)?;
    if name.is_some_and(|name| !is_identifier(name)) {
        return None;
    }
    let is_member = last != path;
    let line = match name {
        None if is_member => format!("{last}={}", part.text),
        _ => part.text.to_owned(),
    };
    Some(Argument { name: Some(name.unwrap_or(last).to_owned()), line })
}

/// An argument of the kernel's language.
fn of_kernel(part: Word<'_>) -> Result<Argument, Diagnostic> {
    if part.text.is_empty() {
        return Err(unexpected(part, "an argument is missing", "leave the comma out"));
    }
    if part.text.contains(char::is_whitespace) {
        let message =
            format!("`{}` is not an argument of a call, which has a name and then its type", part.text);
        return Err(unexpected(part, message, "write NAME:TYPE, as in `filename:ustring`"));
    }
    let name = part.text.split_once('=').map(|(name, _)| name.to_owned());
    Ok(Argument { name, line: part.text.to_owned() })
}

/// The last name of a path, if it is one.
fn last_of_path(path: &str) -> Option<&str> {
    let mut last = None;
    for step in path.split("->").flat_map(|steps| steps.split('.')) {
        let (name, indices) = step.split_at(step.find('[').unwrap_or(step.len()));
        let is_index = |index: &str| {
            let digits = index.strip_suffix(']').unwrap_or_default();
            !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
        };
        if !is_identifier(name) || !indices.split('[').skip(1).all(is_index) {
            return None;
        }
        last = Some(name);
    }
    last
}

/// Where the parenthesis closes that is open before this text.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'\n' | b'#' => return None,
            b'(' => depth += 1,
            b')' if depth == 0 => return Some(at),
            b')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The parts between commas that are in no parentheses.
fn separated(inside: Word<'_>) -> Vec<Word<'_>> {
    if inside.text.is_empty() {
        return Vec::new();
    }
    let (mut parts, mut rest, mut depth, mut at) = (Vec::new(), inside, 0_usize, 0);
    while let Some(byte) = rest.text.as_bytes().get(at) {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(rest.head(at).trimmed());
                (rest, at) = (rest.tail(at + 1), 0);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    parts.push(rest.trimmed());
    parts
}

/// Whether it is `FUNCTION` or `MODULE:FUNCTION`. The kernel's lines begin with `p:` and `r:`, and with a number behind
/// the `r`.
fn is_function(text: &str) -> bool {
    let is_name = |name: &str| {
        !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.is_empty()
            && name.chars().all(|c| is_of_name(c) || c == '.')
    };
    match text.split_once(':') {
        Some((module, function)) => {
            let is_command = module
                .strip_prefix(['p', 'r'])
                .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
            !is_command
                && module.chars().all(|c| is_of_name(c) || c == '-')
                && !module.is_empty()
                && is_name(function)
        }
        None => is_name(text),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::definition::{Definition, Dialect, parse_any, parse_as};
    use crate::samples::v6_12;

    fn lines(text: &str) -> (String, String) {
        let Call { entry, exit, .. } = call(text).unwrap_or_else(|| panic!("{text}: no call")).unwrap();
        (entry, exit)
    }

    #[test]
    fn calls_become_two_lines() {
        for (text, entry, exit) in [
            (
                "do_sys_openat2(filename:ustring, how->flags) -> fd:s32",
                "p do_sys_openat2 filename:ustring flags=how->flags",
                "r4096 do_sys_openat2 fd=$retval:s32",
            ),
            ("vfs_read() -> n", "p vfs_read", "r4096 vfs_read n=$retval"),
            (
                " vfs_read ( count , pos )  ->  n : s64 ",
                "p vfs_read count pos",
                "r4096 vfs_read n=$retval:s64",
            ),
            ("vfs_read(*)", "p vfs_read $arg*", "r4096 vfs_read"),
            ("vfs_read(count)", "p vfs_read count", "r4096 vfs_read"),
            (
                "ext4:ext4_map_blocks(inode->i_ino) -> ret",
                "p ext4:ext4_map_blocks i_ino=inode->i_ino",
                "r4096 ext4:ext4_map_blocks ret=$retval",
            ),
            ("f(a->b.c:u32, size=d->e)", "p f c=a->b.c:u32 size=d->e", "r4096 f"),
            // Two members of one name.
            (
                "rename(old->d_name.name:string, new->d_name.name:string)",
                "p rename name=old->d_name.name:string new_d_name_name=new->d_name.name:string",
                "r4096 rename",
            ),
            ("f(bits:b4@0/8, word:x16)", "p f bits:b4@0/8 word:x16", "r4096 f"),
            // What only the kernel's language has.
            (
                "f(name=+0(+8($arg2)):ustring, $arg1:u32, -8(%sp)) -> r",
                "p f name=+0(+8($arg2)):ustring $arg1:u32 -8(%sp)",
                "r4096 f r=$retval",
            ),
            ("foo.constprop.0(a) -> b", "p foo.constprop.0 a", "r4096 foo.constprop.0 b=$retval"),
            // A function whose name is a command of the kernel's language.
            ("p(a) -> r", "p p a", "r4096 p r=$retval"),
        ] {
            assert_eq!(lines(text), (entry.to_owned(), exit.to_owned()), "{text}");
            for line in [entry, exit] {
                let read = parse_as(Dialect::Kernel, line, &v6_12()).result;
                assert!(matches!(read, Ok(Definition::Probe(_))), "{line}: {read:?}");
            }
        }
    }

    /// Which of them there are, the kernel's types say.
    #[test]
    fn elements_of_arrays_have_the_name_of_the_array() {
        assert_eq!(
            lines("f(zone->vm_stat[2].counter, a[1]:u8)").0,
            "p f counter=zone->vm_stat[2].counter a=a[1]:u8"
        );
    }

    #[test]
    fn other_texts_are_no_calls() {
        for text in [
            "vfs_read",
            "p vfs_read",
            "p:x vfs_read +0(%di):u8",
            "p:f(x)",
            "r3:f(x) -> y",
            "do_IRQ()",
            "f(NULL)",
            "f(NULL, int a)",
            "ip_rcv(x64 skb | int skb[32])",
            "f(string name)",
            "f(int a=0x10)",
            "f(x64 0x10)",
            "f(a, int b)",
            "f(a) b",
            "f(a",
            "f(a,)",
            "f(a->)",
            "f(a[x])",
            "f(a:)",
            "f(a)\nf(b) -> c",
            "",
            "()",
            "sched/sched_switch",
        ] {
            assert_eq!(call(text), None, "{text}");
        }
    }

    /// Those of the table that real kernels accepted.
    #[test]
    fn every_prototype_stays_one() {
        let pairs = include_str!("../../../fixtures/prototype/pairs.tsv");
        let prototypes: Vec<_> = pairs.lines().skip(1).filter_map(|row| row.split('\t').nth(1)).collect();
        assert_eq!(prototypes.len(), 77);
        for prototype in prototypes {
            assert_eq!(call(prototype), None, "{prototype}");
            assert_eq!(parse_any(prototype, &v6_12()).dialect, Dialect::Prototype, "{prototype}");
        }
    }

    #[test]
    fn problems_are_shown_where_they_are() {
        for (text, part) in [
            ("f(a) ->", ""),
            ("f(a) -> 1", "1"),
            ("f(a) -> b c", "b c"),
            ("f(a) -> b:", "b:"),
            ("f(a) -> b:s32 c", "b:s32 c"),
            ("f(int a, b) -> c", "int a"),
            ("f(a, , b) -> c", ""),
            ("f(a, b) ->  a", "a"),
            ("f(a, a:u8) -> b", "a:u8"),
            ("f(x->a, x_a=y->a, x->a) -> b", "x->a"),
            ("f(a=b, a=c->a)", "a=c->a"),
        ] {
            let problem = call(text).unwrap().unwrap_err();
            assert_eq!(&text[problem.span.range()], part, "{text}: {problem}");
            assert!(problem.hint.is_some(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in r"[a-z_]{0,3}(:[a-z]{0,2})?\PC{0,2}\(([a-z*=:.>\[\]0-9,()$+ -]|->|\PC){0,16}\)? ?(->)? ?\PC{0,6}") {
            if let Some(Err(problem)) = call(&text) {
                prop_assert!(text.get(problem.span.range()).is_some());
            }
        }

        /// A call means what its parts mean alone, and is nothing else without them.
        #[test]
        fn a_call_has_all_of_its_parts(
            arguments in prop::collection::vec("[a-d](->[e-h]((->|\\.)[e-h])?)?(:(u8|s32|ustring))?", 1..6),
            value in prop::option::of("r[a-z](:(s32|u64))?"),
        ) {
            let mut text = format!("fun({})", arguments.join(", "));
            text.extend(value.iter().map(|value| format!(" -> {value}")));
            match call(&text) {
                Some(Ok(Call { entry, exit, function })) => {
                    prop_assert_eq!(function, "fun");
                    prop_assert_eq!(entry.split(' ').count(), 2 + arguments.len());
                    for (argument, word) in arguments.iter().zip(entry.split(' ').skip(2)) {
                        let path = word.split_once('=').map_or(word, |(_, path)| path);
                        prop_assert_eq!(path, argument);
                    }
                    prop_assert_eq!(exit.split(' ').count(), 2 + usize::from(value.is_some()));
                    for line in [entry, exit] {
                        prop_assert!(parse_any(&line, &v6_12()).result.is_ok(), "{}", line);
                    }
                }
                // One name for two values.
                Some(Err(problem)) => prop_assert!(problem.message.contains("two values"), "{}", problem),
                None => prop_assert!(false, "{}", text),
            }
        }
    }
}
