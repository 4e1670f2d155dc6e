//! The language of the daemon against that of the kernel, on lines that a generator writes: errno, message and caret.
//!
//! The lines are the same each time; `KPROBED_VM_SEED=NUMBER` draws others.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use kprobed::definition::Code;
use kprobed_vm::progress;

use crate::Test;
use crate::differential::{Compared, Random, ask_both, generator};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] =
    &[("generated_lines_get_the_kernels_answer", generated_lines_get_the_kernels_answer)];

/// Lines for each kernel.
const LINES: usize = 1000;

/// A seed without a difference. About one line in a thousand, most of them with several mistakes, still gets another errno or code than the
/// kernel gives, so that other seeds find some: each is one to mend.
const DEFAULT_SEED: u64 = 4;

/// What the daemon refuses whatever the kernel says, by our code, and why.
const REFUSED_ON_PURPOSE: &[(&str, &str)] = &[
    ("IGNORED_TEXT", "the kernel takes the line and silently leaves out what it does not understand"),
    ("OFFSET_TRUNCATED", "the kernel keeps 32 bits of an offset and reads somewhere else"),
    ("BAD_MEM_SYMBOL", "the kernel finds out when it registers the probe, and does not say what was wrong"),
    ("NO_FUNCTION_NAME", "the kernel looks for a function without a name, when it has read everything else"),
    ("NO_MODULE_NAME", "the kernel waits for ever for a module without a name"),
    ("RESERVED_EVENT_NAME", "the event would hide a control file"),
    ("RESERVED_GROUP_NAME", "the group would hide a control file"),
];

/// Where the kernel's caret does not stand at what its message is about: by how many bytes it is off, for a caret of ours at an offset of a
/// word.
type CaretQuirk = fn(word: &str, caret: usize) -> Vec<isize>;

/// Each with its reason.
const CARET_QUIRKS: &[(&str, CaretQuirk)] = &[
    // kernel/trace/trace_probe.c:parse_probe_arg moves its pointer over the `u` without counting it.
    ("each `u` of a dereference before it is not counted", |word, caret| {
        let before = &word[..caret.min(word.len())];
        let uncounted = before.matches("+u").count() + before.matches("-u").count();
        (1..=isize::try_from(uncounted).unwrap_or(0)).map(|count| -count).collect()
    }),
    // The same function leaves its position behind the first `(` of a dereference, and the type is counted from there.
    ("what stands behind a dereference is counted from behind its `(`", |word, _| {
        let fetch = word.split_once('=').map_or(word, |(_, fetch)| fetch);
        let first = fetch.find('(').map(|open| isize::try_from(open + 1).unwrap_or(0));
        first
            .filter(|_| fetch.starts_with(['+', '-']))
            .into_iter()
            .flat_map(|first| [first, first - 1])
            .collect()
    }),
];

/// Whether the kernel's caret is where ours is, or off by a quirk.
fn same_caret(line: &str, ours: usize, kernel: usize) -> bool {
    // The log shows what `%pd`, `%pD` and words that are `$argN` stand for instead of them, and counts in that.
    if kernel > 2 * line.len() {
        // A caret that is computed from the text of a type that the kernel has chosen itself: it stands anywhere.
        return true;
    }
    if ours == kernel || ["%pd", "%pD", " $arg"].iter().any(|replaced| line.contains(replaced)) {
        return true;
    }
    let start = line[..ours.min(line.len())].rfind(' ').map_or(0, |blank| blank + 1);
    let word = line[start..].split(' ').next().unwrap_or_default();
    let mut off_by = CARET_QUIRKS.iter().flat_map(|(_, quirk)| quirk(word, ours - start));
    off_by.any(|off| ours.checked_add_signed(off) == Some(kernel))
}

/// What is wrong with our answer to a line, if anything is.
fn difference(compared: &Compared, with_types: bool) -> Option<String> {
    let Compared { line, ours, kernel } = compared;
    if ours.errno != 0 && REFUSED_ON_PURPOSE.iter().any(|(code, _)| *code == ours.rule) {
        return None;
    }
    // Names are the daemon's where the kernel knows none, and so is what is wrong with them.
    let about_names =
        ["NOSUP_BTFARG", "NO_BTFARG", "NO_BTF_FIELD", "NO_BTF_ENTRY", "NOSUP_DAT_ARG", "BAD_HYPHEN"];
    if !with_types && kernel.errno != 0 && about_names.contains(&ours.rule.as_str()) {
        return None;
    }
    let our_caret = ours.diagnostics.first().map_or(0, |found| found.span_start as usize);
    let our_code = ours.kernel_reason.as_str();
    let same = kernel.errno == ours.errno
        && kernel.said.as_ref().is_none_or(|(text, caret)| {
            Code::from_kernel_text(text).is_some_and(|code| code.name() == our_code)
                && same_caret(line, our_caret, *caret)
        });
    let said = kernel
        .said
        .as_ref()
        .map_or_else(|| "nothing".to_owned(), |(text, caret)| format!("`{text}` at {caret}"));
    (!same).then(|| {
        format!(
            "{line}\n    kernel {}, {said}\n    daemon {}, {our_code} ({}) at {our_caret}",
            kernel.errno, ours.errno, ours.rule
        )
    })
}

fn generated_lines_get_the_kernels_answer(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let mut random = Random::from_environment(DEFAULT_SEED)?;
    let with_types = guest.tracefs("README")?.contains("<argname>[->field");
    let lines = (0..LINES).map(|_| generator::line(&mut random, with_types)).collect();
    let compared = ask_both(&guest, lines)?;
    let (mut differences, mut different) = (String::new(), 0);
    for wrong in compared.iter().filter_map(|one| difference(one, with_types)) {
        writeln!(differences, "{wrong}")?;
        different += 1;
    }
    let accepted = compared.iter().filter(|one| one.kernel.errno == 0).count();
    ensure!(different == 0, "{different} of {} differ:\n{differences}", compared.len());
    ensure!(accepted > LINES / 50, "only {accepted} of {LINES} lines are good");
    progress::note(format_args!("{LINES} lines compared, {accepted} of them accepted, no difference"));
    Ok(())
}
