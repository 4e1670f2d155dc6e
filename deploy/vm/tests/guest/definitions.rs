//! Differential test of definitions: errno, message and caret of the daemon against those of the
//! kernel, on generated lines.
//!
//! Lines on which they once differed are in a file beside this one and are replayed in each run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::RefusedBy;
use kprobed_lang::definition::Code;
use kprobed_vm::progress;

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::differential::random::is_repeatable;
use crate::differential::{Compared, Random, ask_both, generator, seeds};
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        lines_that_once_differed_get_the_kernels_answer,
    }
    Daemon {
        generated_lines_get_the_kernels_answer,
    }
};

/// Seeds for each kernel.
fn seeds_drawn() -> usize {
    effort::pick(2, 4)
}

/// Lines for each seed.
const LINES: usize = 250;

/// One definition a line; `#` starts a comment. A run outside of CI adds what it finds.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guest/definitions.kept");

/// What matters of a kernel.
#[derive(Clone, Copy)]
struct Kernel {
    /// It is 5.10.
    is_old: bool,
    /// It knows the names of parameters.
    with_types: bool,
}

/// A difference that is known, and would be mended if it were worth it.
struct Known {
    why: &'static str,
    is_it: fn(one: &Compared, kernel: Kernel) -> bool,
}

const KNOWN: &[Known] = &[
    Known {
        why: "kernels without the limit of 3072 bytes for the fixed part of an event take it, and nothing shows which have it",
        is_it: |one, _| one.kernel.errno == 0 && one.ours.rule == "EVENT_TOO_BIG",
    },
    Known {
        why: "5.10 does not separate a group with `.`; the daemon writes `/` for it",
        is_it: |one, Kernel { is_old, .. }| {
            let name =
                one.line.split(' ').next().and_then(|word| word.split_once(':')).map_or("", |(_, name)| name);
            let about_name =
                ["Event name must follow the same rules as C identifiers", "Event name is too long"];
            is_old && name.contains('.') && about_name.iter().any(|text| one.kernel_said(text))
        },
    },
    Known {
        why: "5.10 answers EINVAL to a place far behind the code, and later kernels ENOENT",
        is_it: |one, Kernel { is_old, .. }| {
            is_old && one.ours.rule == "BAD_PROBE_ADDR" && one.kernel_said("Failed to register probe event")
        },
    },
    Known {
        why: "a kernel with type casts takes `(` for the beginning of one, and has a text of its own for that",
        is_it: |one, _| {
            one.ours.errno == one.kernel.errno && one.kernel_said("Typecasts are only for eprobe fields")
        },
    },
    Known {
        why: "a bare word gives the argument its name, as on kernels with types; other kernels find no such expression, later",
        is_it: |one, Kernel { with_types, .. }| {
            one.ours.rule == "USED_ARG_NAME" && !with_types && one.kernel.errno == one.ours.errno
        },
    },
    Known {
        why: "kernels without the fix take `\\\"` for an empty string, and nothing shows which have it",
        is_it: |one, _| {
            let is_alone = |word: &str| word.ends_with("\\\"") || word.contains("\\\":");
            one.ours.rule == "IMMSTR_NO_CLOSE" && one.line.split(' ').any(is_alone)
        },
    },
    Known {
        why: "for `$arg0`, a kernel with types reads before its table of parameters: what it says depends on what is there",
        is_it: |one, Kernel { with_types, .. }| {
            one.ours.rule == "BAD_ARG_NUM"
                && with_types
                && one.kernel_said("No BTF entry for this probe point")
                && one.line.split([' ', ':']).any(|word| word == "$arg0")
        },
    },
    Known {
        why: "where a module ends is in no file: far behind its last function the kernel finds no module any more",
        is_it: |one, _| {
            let place = one.line.split(' ').nth(1).unwrap_or_default();
            let offset = place.split_once('+').and_then(|(_, offset)| offset.parse::<u64>().ok());
            let is_far = place.contains(':') && offset.is_some_and(|offset| offset >= 65_536);
            ["BAD_RETPROBE", "NOTRACE_FUNCTION", "OUTSIDE_FUNCTION"].contains(&one.ours.rule.as_str())
                && is_far
                && one.kernel.errno != 0
        },
    },
];

/// Where the kernel's caret does not stand at what its message is about: by how many bytes it is
/// off, for a caret of the daemon at an offset of a word.
type CaretQuirk = fn(word: &str, caret: usize) -> Vec<isize>;

/// Each with its reason.
const CARET_QUIRKS: &[(&str, CaretQuirk)] = &[
    // kernel/trace/trace_probe.c:parse_probe_arg moves its pointer over the `u`, and over the `+`
    // before a `-`, without counting it.
    ("each `u`, and each `+` before a `-`, of a dereference before it is not counted", |word, caret| {
        let before = &word[..caret.min(word.len())];
        let uncounted = ["+u", "-u", "+-"].map(|signs| before.matches(signs).count()).iter().sum::<usize>();
        (1..=isize::try_from(uncounted).unwrap_or(0)).map(|count| -count).collect()
    }),
    // The same function leaves its position after the first `(` of a dereference, and the type is
    // counted from there.
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

/// Whether the kernel's caret is at the daemon's, or off by a known quirk.
fn same_caret(line: &str, ours: usize, kernel: usize) -> bool {
    // The log shows what `%pd`, `%pD` and words that are `$argN` stand for instead of them, and
    // counts in that.
    if kernel > 2 * line.len() {
        // A caret that is computed from the text of a type that the kernel has chosen itself: it
        // stands anywhere.
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
    // What is refused on purpose has a list and a test of its own; here other mistakes can stand
    // beside it.
    if ours.by() == RefusedBy::Kprobed {
        return None;
    }
    // If the kernel knows no names, names and their errors are the daemon's alone.
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

/// Compares all lines. Gives back those that differ in a way that is not known, each with what is
/// wrong, and counts of all others.
fn compare(
    fixture: &Fixture,
    guest: &DaemonGuest,
    lines: Vec<String>,
) -> Result<(Vec<(String, String)>, Counts)> {
    let kernel = Kernel { is_old: fixture.is_older_than(6, 1), with_types: has_types(guest)? };
    let (mut unknown, mut counts) = (Vec::new(), Counts::default());
    for one in ask_both(guest, lines)? {
        counts.accepted += usize::from(one.kernel.errno == 0);
        let Some(wrong) = difference(&one, kernel.with_types) else { continue };
        match KNOWN.iter().find(|known| (known.is_it)(&one, kernel)) {
            Some(known) => *counts.known.entry(known.why).or_default() += 1,
            None => unknown.push((one.line, wrong)),
        }
    }
    Ok((unknown, counts))
}

#[derive(Default)]
struct Counts {
    accepted: usize,
    known: BTreeMap<&'static str, usize>,
}

fn has_types(guest: &DaemonGuest) -> Result<bool> {
    Ok(guest.tracefs("README")?.contains("<argname>[->field"))
}

/// One text of all that differs.
fn listed(different: &[(String, String)]) -> String {
    different.iter().fold(String::new(), |mut text, (_, wrong)| {
        writeln!(text, "{wrong}").ok();
        text
    })
}

fn lines_that_once_differed_get_the_kernels_answer(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let with_types = has_types(&guest)?;
    let kept = fs::read_to_string(KEPT).context(KEPT)?;
    let lines = kept.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    // If the kernel knows no names, names are the daemon's alone.
    let lines: Vec<_> = lines
        .filter_map(|line| match line.strip_prefix("[types] ") {
            Some(line) => with_types.then(|| line.to_owned()),
            None => Some(line.to_owned()),
        })
        .collect();
    ensure!(lines.len() > 5, "{KEPT} has {} lines", lines.len());
    let count = lines.len();
    let (different, _) = compare(fixture, &guest, lines)?;
    ensure!(different.is_empty(), "{} of {count} differ:\n{}", different.len(), listed(&different));
    Ok(())
}

fn generated_lines_get_the_kernels_answer(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let with_types = has_types(&guest)?;
    let (mut different, mut accepted, mut compared) = (Vec::new(), 0, 0);
    for seed in seeds("definitions", seeds_drawn()) {
        let mut random = Random::seeded(seed);
        let lines: Vec<_> = (0..LINES).map(|_| generator::line(&mut random, with_types)).collect();
        compared += lines.len();
        let (unknown, counts) = compare(fixture, &guest, lines)?;
        accepted += counts.accepted;
        different.extend(unknown);
        for (why, count) in counts.known {
            progress::note(format_args!("seed {seed}: {count} known differences: {why}"));
        }
    }
    if !different.is_empty() && !is_repeatable() {
        let mut kept = OpenOptions::new().append(true).open(KEPT).context(KEPT)?;
        for (line, _) in &different {
            writeln!(kept, "{}{line}", if with_types { "[types] " } else { "" })?;
        }
    }
    ensure!(
        different.is_empty(),
        "{} of {compared} differ; outside of CI they are added to {KEPT}:\n{}",
        different.len(),
        listed(&different)
    );
    ensure!(accepted > compared / 50, "only {accepted} of {compared} lines are good");
    progress::note(format_args!("{compared} lines compared, {accepted} of them accepted"));
    Ok(())
}
