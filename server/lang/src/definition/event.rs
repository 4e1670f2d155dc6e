//! Events of the host as definitions: `GROUP/EVENT`, or `GROUP:EVENT` as `available_events` lists them.
//!
//! Owns what tells such a text from a line of `kprobe_events`, in which a letter and a colon precede every name, and a
//! place follows. Never knows which events there are.

use super::Span;
use super::ast::{Definition, Name, Place, ProbeDefinition, ProbeKind};
use super::code::Code;
use super::diagnostic::Diagnostic;
use super::line::{self, Word};
use super::names::is_identifier;
use super::parse::Parsed;

/// Reads a text whose first word is an event of the host. Absent for every other text.
pub(super) fn read(text: &str) -> Option<Parsed> {
    let first = line::words(text).next()?;
    let (group, event) = parts(first)?;
    let words = match line::single(text) {
        Ok(words) => words,
        Err(finding) => return Some(finding.into()),
    };
    let further = words.get(1).zip(words.last());
    // `g:e f` is nearer to a line of the kernel: its letter is missing, or wrong.
    if further.is_some() && first.text.contains(':') && first.text.starts_with(['p', 'r', '-']) {
        return None;
    }
    Some(match named(group, event).and_then(|named| alone(first, further).map(|()| named)) {
        Ok(definition) => Parsed { tree: Some(Definition::Probe(definition)), findings: Vec::new() },
        Err(finding) => finding.into(),
    })
}

/// Group and event of a word that is neither the head of a line nor a prototype.
fn parts(word: Word<'_>) -> Option<(Word<'_>, Word<'_>)> {
    if word.text.contains('(') {
        return None;
    }
    match (word.split_once('/'), word.split_once(':')) {
        (Some(parts), None) => Some(parts),
        (None, Some((group, event))) => {
            let number = group.text.get(1..).filter(|_| group.text.starts_with(['p', 'r']));
            let is_letter = group.text.len() == 1
                || number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
            let are_names = is_group(group.text) && is_identifier(event.text);
            (are_names && !is_letter).then_some((group, event))
        }
        _ => None,
    }
}

/// Tracepoints can have groups with a hyphen on every kernel.
fn is_group(text: &str) -> bool {
    is_identifier(&text.replace('-', "_"))
}

fn named(group: Word<'_>, event: Word<'_>) -> Result<ProbeDefinition, Diagnostic> {
    let bad = |code, what: &str, word: Word<'_>| {
        Err(word.error(code, format!("`{}` is not the name of {what}", word.text)))
    };
    if group.text.is_empty() {
        let problem = event.error(Code::NoGroupName, "an event of the host has a group");
        return Err(problem.with_hint("write GROUP/EVENT, such as `sched/sched_switch`"));
    }
    if !is_group(group.text) {
        return bad(Code::BadGroupName, "a group of events", group);
    }
    if event.text.is_empty() {
        let hint = format!("`ls /sys/kernel/tracing/events/{}` lists its events", group.text);
        return Err(group.error(Code::NoEventName, "no event follows the group").with_hint(hint));
    }
    if !is_identifier(event.text) {
        return bad(Code::BadEventName, "an event", event);
    }
    let span = Span::new(group.start, event.end());
    let name = |word: Word<'_>| Some(Name { text: word.text.to_owned(), span: word.span() });
    let (group, event) = (name(group), name(event));
    Ok(ProbeDefinition { group, event, ..ProbeDefinition::at(ProbeKind::Event, Place::Event { span }, span) })
}

/// Refuses what follows an event.
fn alone(event: Word<'_>, further: Option<(&Word<'_>, &Word<'_>)>) -> Result<(), Diagnostic> {
    let Some((from, to)) = further else { return Ok(()) };
    let message = format!("nothing can follow the event `{}`: it has fields of its own", event.text);
    let hint = "record all of them and choose with `--filter` and `--fields`; a probe of a function begins with `p` or `r`";
    Err(Diagnostic::error(Code::UnexpectedToken, Span::new(from.start, to.end()), message).with_hint(hint))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::dialect::{Dialect, parse_any};
    use super::*;
    use crate::samples::v6_12;

    /// The event that a text names.
    fn event(text: &str) -> Option<String> {
        match parse_any(text, &v6_12()).result {
            Ok(Definition::Probe(read)) if read.is_of_host_event() => {
                assert_eq!(read.place, Place::Event { span: read.span });
                Some(read.render(&read.group.as_ref()?.text, &read.event.as_ref()?.text))
            }
            _ => None,
        }
    }

    #[test]
    fn both_spellings_name_an_event() {
        for (text, name) in [
            ("sched/sched_switch", "sched/sched_switch"),
            (" sched:sched_switch  # of tasks", "sched/sched_switch"),
            ("raw_syscalls:sys_enter", "raw_syscalls/sys_enter"),
            ("preemptirq/irq_disable\n", "preemptirq/irq_disable"),
            ("intel-sst/sst_ipc", "intel-sst/sst_ipc"),
            ("p/x", "p/x"),
        ] {
            assert_eq!(event(text).as_deref(), Some(name), "{text}");
            assert_eq!(parse_any(text, &v6_12()).dialect, Dialect::Kernel);
        }
    }

    #[test]
    fn lines_and_prototypes_stay_what_they_are() {
        for text in [
            "p:sched_switch",
            "p:g/e vfs_read",
            "r:g/e vfs_read",
            "r16:e vfs_read",
            "r16:e",
            "p btrfs:btrfs_sync_file",
            "pjunk:x vfs_read",
            "-:g/e",
            "-:e",
            "f:e vfs_read",
            "t:g/e sched_switch",
            "vfs_read(struct file *file)",
            "vfs_read",
            "sched/sched_switch # dialect: kernel",
        ] {
            assert_eq!(event(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_marked() {
        let problem = |text: &str| {
            let found = parse_any(text, &v6_12()).result.unwrap_err().remove(0);
            (found.code, text.get(found.span.range()).unwrap().to_owned(), found.hint.unwrap())
        };
        let (code, span, hint) = problem("sched/sched_switch prev_comm next_comm # all");
        assert_eq!((code, span.as_str()), (Code::UnexpectedToken, "prev_comm next_comm"));
        assert!(hint.contains("--filter"), "{hint}");
        assert_eq!(problem("sched:sched_switch x").0, Code::UnexpectedToken);
        for (text, code, span) in [
            ("sched/sched-switch", Code::BadEventName, "sched-switch"),
            ("a/b/c", Code::BadEventName, "b/c"),
            ("../x", Code::BadGroupName, ".."),
            ("/x", Code::NoGroupName, "x"),
            ("sched/", Code::NoEventName, "sched"),
            ("sched/a\nsched/b", Code::SeveralLines, "sched/b"),
        ] {
            let found = problem(text);
            assert_eq!((found.0, found.1.as_str()), (code, span), "{text}");
        }
    }

    proptest! {
        /// The canonical text of an event is read as the same event.
        #[test]
        fn events_are_read_as_they_are_written(group in "[a-z_][a-z0-9_]{1,9}", name in "[a-z_][a-z0-9_]{0,9}") {
            let text = format!("{group}/{name}");
            prop_assert_eq!(event(&text), Some(text));
        }

        #[test]
        fn any_text_is_survived(text in "[a-z0-9/: #\\n-]{0,20}") {
            let _ = read(&text);
        }
    }
}
