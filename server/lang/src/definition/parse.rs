//! Definition parser: the head of a definition (letter, maxactive, group, event and place), and
//! deletions.
//!
//! Owns the kernel's order of checks. Never parses an argument itself. Follows
//! kernel/trace/trace_kprobe.c:trace_kprobe_create_internal,
//! kernel/trace/trace_probe.c:traceprobe_parse_event_name and
//! kernel/trace/trace_dynevent.c:dyn_event_release.

use super::Span;
use super::argument;
use super::ast::{Definition, DeleteDefinition, Name, Place, ProbeDefinition, ProbeKind};
use super::code::{Code, EINVAL, ENOENT};
use super::computed;
use super::diagnostic::{Diagnostic, Step};
use super::features::Features;
use super::fetch::FetchParser;
use super::line::{self, Word};
use super::names::{EVENT_NAME_MAX_BYTES, is_group_name, is_identifier};
use super::number;
use super::short::KernelNames;

/// Most instances of a return probe (`KRETPROBE_MAXACTIVE_MAX`).
const MAXACTIVE_MAX: u64 = 4096;
/// Files of a group directory, which an event of that name would hide.
const EVENT_CONTROL_FILES: [&str; 3] = ["enable", "filter", "format"];
/// Files of the `events` directory.
const GROUP_CONTROL_FILES: [&str; 3] = ["enable", "header_event", "header_page"];

/// The result of parsing a text.
pub(super) struct Parsed {
    /// The definition with all parts that could be parsed; absent if not even the place of a probe
    /// could.
    pub(super) tree: Option<Definition>,
    /// The problems, in the order of the kernel's steps.
    pub(super) findings: Vec<Diagnostic>,
}

impl From<Diagnostic> for Parsed {
    fn from(finding: Diagnostic) -> Self {
        Self { tree: None, findings: vec![finding] }
    }
}

/// Parses the words of the only definition in `text` like the kernel that `features` describes.
pub(super) fn read(text: &str, features: &Features, names: &dyn KernelNames) -> Parsed {
    match line::single(text) {
        Ok(words) => read_words(text, &words, features, names),
        Err(finding) => finding.into(),
    }
}

/// Like [`read`], for words that are already split.
pub(super) fn read_words(
    text: &str,
    words: &[Word<'_>],
    features: &Features,
    names: &dyn KernelNames,
) -> Parsed {
    let (Some(first), Some(last)) = (words.first().copied(), words.last().copied()) else {
        return Diagnostic::error(Code::NoDefinition, Span::point(0), "there is no definition").into();
    };
    let span = Span::new(first.start, last.end());
    match first.text.as_bytes().first() {
        Some(b'p') => probe(text, words, ProbeKind::Entry, span, features, names),
        Some(b'r') => probe(text, words, ProbeKind::Return, span, features, names),
        Some(b'-') => match delete(text, words, span) {
            Ok(delete) => Parsed { tree: Some(Definition::Delete(delete)), findings: Vec::new() },
            Err(finding) => finding.into(),
        },
        _ => unknown_command(first, words, features).into(),
    }
}

/// The line that was meant by one that begins with the place.
fn with_letter(words: &[Word<'_>], features: &Features) -> Option<String> {
    let is_letter = |word: &str| word.bytes().skip(1).all(|byte| byte.is_ascii_digit());
    let first = words.first().filter(|first| !is_letter(first.text) && !first.text.contains(':'))?;
    place(*first, features).ok()?;
    let words: Vec<&str> = words.iter().map(|word| word.text).collect();
    Some(format!("write `p {}`", words.join(" ")))
}

fn unknown_command(first: Word<'_>, words: &[Word<'_>], features: &Features) -> Diagnostic {
    let letter = first.text.chars().next().unwrap_or_default();
    let problem = Diagnostic::error(
        Code::UnknownCommand,
        Span::new(first.start, first.start + letter.len_utf8()),
        format!("`{letter}` does not start a kernel probe"),
    );
    if let Some(hint) = with_letter(words, features) {
        return problem.with_hint(hint);
    }
    match letter {
        'f' => problem.with_hint("use `p` at the function for its entry, `r` for its return"),
        't' | 'e' | 's' => problem.with_hint("only `p` and `r` are probes of kernel code"),
        _ => problem,
    }
}

fn probe(
    text: &str,
    words: &[Word<'_>],
    kind: ProbeKind,
    span: Span,
    features: &Features,
    names: &dyn KernelNames,
) -> Parsed {
    let (Some(head), Some(place_word)) = (words.first().copied(), words.get(1).copied()) else {
        let problem = Diagnostic::error(Code::NoPlace, Span::point(span.end), "the probe point is missing");
        return match with_letter(words, features) {
            Some(hint) => problem.with_hint(hint).into(),
            None => problem.into(),
        };
    };
    let mut findings = Findings::default();
    let (prefix, names_word) =
        head.tail(1).split_once(':').map_or((head.tail(1), None), |(prefix, names)| (prefix, Some(names)));
    let maxactive = maxactive(prefix, kind, features).map_err(|problem| match with_letter(words, features) {
        Some(hint) if problem.code == Code::IgnoredText => problem.with_hint(hint),
        _ => problem,
    });
    let maxactive = findings.keep(Step::Maxactive, maxactive).flatten();
    let place = findings.keep(Step::Place, place(place_word, features));
    let kind = kind_at(place_word, kind);
    let (group, event) = match names_word {
        Some(word) => event_name(word, features, &mut findings),
        None => (None, None),
    };
    let fetch = FetchParser::new(place.as_ref(), kind, features, names);
    let (args, of_arguments) = argument::parse_all(words.get(2..).unwrap_or_default(), kind, fetch);
    let Findings(mut findings) = findings;
    findings.extend(of_arguments);
    findings.sort_by_key(|finding| finding.step);
    let (computed, warnings) = computed::of_text(text, &args);
    let tree = place.map(|place| {
        let alone = ProbeDefinition::at(kind, place, span);
        Definition::Probe(ProbeDefinition { maxactive, group, event, args, computed, warnings, ..alone })
    });
    Parsed { tree, findings }
}

/// Kind and place of a probe as far as they can be parsed, for rewriting its arguments; absent if
/// the line is not a probe.
pub(super) fn place_of(
    head: Word<'_>,
    place_word: Word<'_>,
    features: &Features,
) -> Option<(ProbeKind, Option<Place>)> {
    let kind = match head.text.as_bytes().first() {
        Some(b'p') => ProbeKind::Entry,
        Some(b'r') => ProbeKind::Return,
        _ => return None,
    };
    Some((kind_at(place_word, kind), place(place_word, features).ok()))
}

fn kind_at(place_word: Word<'_>, kind: ProbeKind) -> ProbeKind {
    if place_word.text.ends_with("%return") { ProbeKind::Return } else { kind }
}

/// The problems so far.
#[derive(Default)]
struct Findings(Vec<Diagnostic>);

impl Findings {
    /// The parsed value; a problem is kept, with the step of the kernel at which it was found.
    fn keep<T>(&mut self, step: Step, result: Result<T, Diagnostic>) -> Option<T> {
        result.map_err(|problem| self.0.push(problem.at(step))).ok()
    }
}

/// The text between the letter and the colon.
fn maxactive(word: Word<'_>, kind: ProbeKind, features: &Features) -> Result<Option<u16>, Diagnostic> {
    if word.text.is_empty() {
        return Ok(None);
    }
    if !word.text.starts_with(|c: char| c.is_ascii_digit()) {
        let message = format!("the kernel silently ignores `{}` here", word.text);
        return Err(word.error(Code::IgnoredText, message));
    }
    if kind == ProbeKind::Entry {
        let code = if features.fprobe { Code::BadMaxactType } else { Code::MaxactNoKprobe };
        return Err(word.error(code, "an entry probe has no maxactive"));
    }
    let number = Some(word.text).filter(|text| text.len() <= EVENT_NAME_MAX_BYTES).and_then(number::unsigned);
    match number.filter(|number| *number > 0 && u32::try_from(*number).is_ok()) {
        None => Err(word.error(Code::BadMaxact, format!("`{}` is not a number of instances", word.text))),
        Some(number) => {
            let too_large = || word.error(Code::MaxactTooBig, format!("maxactive {number} is too large"));
            u16::try_from(number).ok().filter(|_| number <= MAXACTIVE_MAX).map(Some).ok_or_else(too_large)
        }
    }
}

fn place(word: Word<'_>, features: &Features) -> Result<Place, Diagnostic> {
    if let Some(address) = number::unsigned(word.text) {
        return Ok(Place::Address { address, span: word.span() });
    }
    if word.text.contains('/') && word.text.contains(':') {
        let message = "this is an offset in a file: probes of programs are not kernel probes";
        let problem = word.error(Code::UnsupportedFeature, message);
        return Err(problem.with_hint("write the name of a kernel function"));
    }
    let word = match word.text.find('%') {
        None => word,
        Some(at) if &word.text[at..] == "%return" => word.head(at),
        Some(at) => {
            let suffix = word.tail(at);
            let message = format!("`{}` cannot follow a probe point", suffix.text);
            return Err(suffix.error(Code::BadAddrSuffix, message));
        }
    };
    let bad = |message: String| word.error(Code::BadProbeAddr, message);
    let (symbol, offset) = word.text.split_at(word.text.find(['+', '-']).unwrap_or(word.text.len()));
    let offset = if offset.is_empty() {
        0
    } else {
        number::signed(offset)
            .and_then(|offset| u32::try_from(offset).ok())
            .ok_or_else(|| bad(format!("`{offset}` is not an offset from 0 to 4294967295")))?
    };
    let (module, name) = symbol.split_once(':').map_or((None, symbol), |(module, name)| (Some(module), name));
    let readable = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    if module.is_some_and(str::is_empty) {
        let message = "the kernel would wait without end for a module without a name";
        return Err(word.error(Code::NoModuleName, message));
    }
    // Kernels that do not look the symbol up while they parse notice this when they register the
    // probe.
    let errno = if features.retprobe_args { EINVAL } else { ENOENT };
    let bad = |message: String| bad(message).with_errno(errno);
    // `MODULE:` is a place: the kernel looks for a function without a name in the module, once that
    // is loaded.
    let is_readable =
        module.map_or(readable(name), |module| readable(module) && (name.is_empty() || readable(name)));
    if !is_readable {
        return Err(bad(format!("`{symbol}` is not the name of a function")));
    }
    if module.is_none() && name.starts_with(|c: char| c.is_ascii_digit()) {
        let problem = bad(format!("`{symbol}` is neither an address nor the name of a function"));
        return Err(if number::unsigned(symbol).is_some() {
            problem.with_hint(
                "an address takes no offset and no suffix: add the offset, write `r` for a return probe",
            )
        } else {
            problem
        });
    }
    Ok(Place::Symbol {
        module: module.map(str::to_owned),
        symbol: name.to_owned(),
        offset,
        span: word.span(),
    })
}

/// `[GRP/][EVENT]`, or with `.` if there is no `/`.
fn event_name(word: Word<'_>, features: &Features, findings: &mut Findings) -> (Option<Name>, Option<Name>) {
    let separator = word.text.find('/').or_else(|| word.text.find('.'));
    let group = separator.map(|at| word.head(at));
    let event = separator.map_or(word, |at| word.tail(at + 1));
    let group_name = group.and_then(|group| findings.keep(Step::Group, check_group(group, features)));
    if event.text.is_empty() && group.is_some() && features.anonymous_group {
        return (group_name, None);
    }
    (group_name, findings.keep(Step::Event, check_event(event)))
}

fn name(word: Word<'_>) -> Name {
    Name { text: word.text.to_owned(), span: word.span() }
}

pub(super) fn check_group(word: Word<'_>, features: &Features) -> Result<Name, Diagnostic> {
    let problem = |code, message: String| Err(word.error(code, message));
    if word.text.is_empty() {
        return problem(Code::NoGroupName, "the group is missing before the separator".to_owned());
    }
    if word.text.len() > EVENT_NAME_MAX_BYTES {
        return problem(Code::GroupTooLong, format!("the group has {} bytes", word.text.len()));
    }
    if !is_group_name(word.text, features) {
        let found = problem(Code::BadGroupName, format!("`{}` is not the name of a group", word.text));
        let hyphen = if features.group_hyphen { ", `_` and `-`" } else { " and `_`" };
        let hint = format!("use letters, digits{hyphen}, and no digit at the beginning");
        return found.map_err(|found| found.with_hint(hint));
    }
    if GROUP_CONTROL_FILES.contains(&word.text) {
        return problem(Code::ReservedGroupName, format!("`{}` is a control file of the kernel", word.text));
    }
    Ok(name(word))
}

pub(super) fn check_event(word: Word<'_>) -> Result<Name, Diagnostic> {
    let problem = |code, message: String| Err(word.error(code, message));
    if word.text.is_empty() {
        return problem(Code::NoEventName, "the event is missing".to_owned());
    }
    if word.text.len() > EVENT_NAME_MAX_BYTES {
        return problem(Code::EventTooLong, format!("the event has {} bytes", word.text.len()));
    }
    if !is_identifier(word.text) {
        return problem(Code::BadEventName, format!("`{}` is not the name of an event", word.text));
    }
    if EVENT_CONTROL_FILES.contains(&word.text) {
        return problem(Code::ReservedEventName, format!("`{}` is a control file of every group", word.text));
    }
    Ok(name(word))
}

/// `-:[GRP/][EVENT] [PLACE [ARG...]]`. The kernel compares names without checking them, and logs no
/// problem.
fn delete(text: &str, words: &[Word<'_>], span: Span) -> Result<DeleteDefinition, Diagnostic> {
    let Some((head, location)) = words.split_first() else {
        return Err(Diagnostic::error(Code::NoDefinition, Span::point(0), "there is no definition"));
    };
    if head.start > 0 && !text[..head.start].ends_with('\n') {
        let message = "the kernel takes a deletion only at the very start of a line";
        return Err(head.error(Code::UnknownCommand, message).with_hint("remove the blanks"));
    }
    if !head.text.starts_with("-:") {
        return Err(head.error(Code::UnknownCommand, "a deletion starts with `-:`"));
    }
    let target = head.tail(2);
    let (group, event) = target.split_once('/').map_or((None, target), |(group, event)| (Some(group), event));
    if event.text.is_empty() && group.is_none_or(|group| group.text.is_empty()) {
        let message = "the deletion names neither a group nor an event";
        let hint = "write `-:GRP/EVENT`, or `-:GRP/` for the whole group";
        return Err(target.error(Code::NoEventName, message).with_hint(hint));
    }
    Ok(DeleteDefinition {
        group: group.map(name),
        event: Some(event).filter(|event| !event.text.is_empty()).map(name),
        location: location.iter().copied().map(name).collect(),
        span,
    })
}
