//! Places of short forms: which functions, events and system calls their first word means.
//!
//! Owns the order in which a word is looked up.

use super::super::Span;
use super::super::code::Code;
use super::super::diagnostic::Diagnostic;
use super::super::line::Word;
use super::{KernelNames, SystemCall};
use crate::model::Glob;

/// What a probe of a line is of.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) what: What,
    /// Where it is written.
    pub(super) span: Span,
}

impl Target {
    pub(super) const fn is_event(&self) -> bool {
        matches!(self.what, What::Event(_))
    }
}

/// A place, or an event.
#[derive(Debug, Clone)]
pub(super) enum What {
    /// A function at its entry, in it, or at its return.
    Function { module: Option<String>, name: String, offset: String, returns: bool },
    /// A system call at its entry or its return.
    Call { call: SystemCall, returns: bool },
    /// An event of the host, as `GROUP/EVENT`.
    Event(String),
}

/// What a word means.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) targets: Vec<Target>,
    pub(super) left_out: usize,
    pub(super) notes: Vec<String>,
}

impl Found {
    fn one(what: What, span: Span) -> Self {
        Self { targets: vec![Target { what, span }], ..Self::default() }
    }

    fn of_events(names: Vec<String>, span: Span) -> Self {
        let targets = names.into_iter().map(|name| Target { what: What::Event(name), span });
        Self { targets: targets.collect(), ..Self::default() }
    }
}

/// Absent: the word is not a short form. Otherwise what it means, or why it means nothing.
type Reading = Option<Result<Found, Diagnostic>>;

/// A word of the language before a colon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keyword {
    Entry,
    Return,
    Event,
    SystemCall,
}

/// The words of the language.
const KEYWORDS: [(&str, Keyword); 14] = [
    ("kprobe", Keyword::Entry),
    ("k", Keyword::Entry),
    ("kfunc", Keyword::Entry),
    ("fentry", Keyword::Entry),
    ("kretprobe", Keyword::Return),
    ("kr", Keyword::Return),
    ("kretfunc", Keyword::Return),
    ("fexit", Keyword::Return),
    ("tracepoint", Keyword::Event),
    ("t", Keyword::Event),
    ("rawtracepoint", Keyword::Event),
    ("rt", Keyword::Event),
    ("event", Keyword::Event),
    ("syscall", Keyword::SystemCall),
];

/// Words of other tools for what kprobed does not do.
const OTHER_PROBES: [(&str, &str); 11] = [
    ("uprobe", "a probe of a program"),
    ("u", "a probe of a program"),
    ("uretprobe", "a probe of a program"),
    ("ur", "a probe of a program"),
    ("usdt", "a probe of a program"),
    ("interval", "a timer"),
    ("profile", "a timer"),
    ("software", "a counter of the kernel"),
    ("hardware", "a counter of the processor"),
    ("watchpoint", "a watchpoint of memory"),
    ("iter", "a list of the kernel's objects"),
];

/// Letters with which other lines of `dynamic_events` begin, what they define, and what to write instead.
const OTHER_LINES: [(&str, &str, &str); 4] = [
    (
        "f",
        "a probe of a function by fprobe",
        "begin the line with `p`, or with `r` for the return of the function",
    ),
    ("t", "a probe of a tracepoint", "write the event alone, as `tracepoint:GROUP:EVENT`"),
    ("e", "a probe of an event", "write the event alone, as `tracepoint:GROUP:EVENT`"),
    ("s", "a synthetic event", "`kprobectl latency START END` measures from one event to another"),
];

/// Why a line that begins with a word of this letter is not read, if it is one of the kernel's other lines.
fn other_line(letter: &str, word: Word<'_>) -> Option<Diagnostic> {
    let (letter, what, hint) = OTHER_LINES.iter().find(|(other, ..)| *other == letter)?;
    let message = format!("`{letter}` begins a line for {what}, which kprobed does not read");
    Some(refused(word, message, *hint))
}

/// Whether a word before a colon is of another tool, for a probe that kprobed does not have.
pub fn is_of_other_tools(word: &str) -> bool {
    other_probe(word).is_some()
}

/// What the probe of another tool is that a word stands for.
pub(super) fn other_probe(word: &str) -> Option<&'static str> {
    OTHER_PROBES.iter().find(|(other, _)| *other == word).map(|(_, what)| *what)
}

/// The keyword of this spelling.
pub(super) fn keyword(word: &str) -> Option<Keyword> {
    KEYWORDS.iter().find(|(name, _)| *name == word).map(|(_, keyword)| *keyword)
}

fn refused(word: Word<'_>, message: impl Into<String>, hint: impl Into<String>) -> Diagnostic {
    word.error(Code::UnknownCommand, message).with_hint(hint)
}

/// Reads the first word of a text.
pub(super) fn read(word: Word<'_>, has_arguments: bool, names: &dyn KernelNames) -> Reading {
    let is_list = word.text.contains(',');
    let mut all = Found::default();
    let mut inherited = None;
    for part in word.split(',') {
        if part.text.is_empty() {
            let message = "a name is missing beside the comma";
            return Some(Err(refused(word, message, "write `vfs_read,vfs_write`")));
        }
        let head = part.split_once(':').and_then(|(head, _)| keyword(head.text));
        inherited = head.or(inherited.filter(|_| !part.text.contains(':')));
        let found = match part.split_once(':') {
            _ if head.is_none() && inherited.is_some() => of_keyword(inherited, part, names),
            Some((_, of)) if head.is_some() => of_keyword(head, of, names),
            _ => alone(part, has_arguments, is_list, names),
        };
        match found {
            // What the other languages make of it is one probe.
            None if is_list => {
                let message = format!("`{}` is neither a function nor an event", part.text);
                let hint = "each part of a list is a function or an event, such as `vfs_read,vfs_write`";
                return Some(Err(refused(part, message, hint)));
            }
            None => return None,
            Some(Err(problem)) => return Some(Err(problem)),
            Some(Ok(found)) => {
                all.targets.extend(found.targets);
                all.left_out += found.left_out;
                all.notes.extend(found.notes);
            }
        }
    }
    Some(Ok(all))
}

/// Reads a word without a keyword.
fn alone(word: Word<'_>, has_arguments: bool, is_list: bool, names: &dyn KernelNames) -> Reading {
    let before = word.split_once(':').map(|(before, _)| before.text);
    if let Some((other, what)) = OTHER_PROBES.iter().find(|(other, _)| before == Some(*other)) {
        let message = format!("`{other}` is {what}: kprobed probes functions of the kernel, and its events");
        let hint =
            "write `kprobe:FUNCTION`, `kretprobe:FUNCTION`, `tracepoint:GROUP:EVENT` or `syscall:NAME`";
        return Some(Err(refused(word, message, hint)));
    }
    let could_begin_line = has_arguments && !is_list;
    if let Some((group, event)) = word.split_once('/') {
        let problem = group.split_once(':').and_then(|(letter, _)| other_line(letter.text, word));
        if let Some(problem) = problem.filter(|_| could_begin_line) {
            return Some(Err(problem));
        }
        return events(word, (group.text, event.text), names);
    }
    if let Some((before, after)) = word.split_once(':') {
        return of_group_or_module(word, before.text, after, could_begin_line, names);
    }
    // `pjunk f` is a line of the kernel with junk, unless `pjunk` is a function.
    let could_be_line = word.text.starts_with(['p', 'r']) && could_begin_line;
    let is_plain = Spelling::of(word).is_some_and(|spelling| spelling.is_plain(word));
    let is_known =
        || names.has_function(None, word.text) == Some(true) || names.system_call(word.text).is_some();
    if could_be_line && is_plain && !is_known() {
        return None;
    }
    // On a kernel of which nothing is known, it can be a function.
    let is_unknown = || names.has_function(None, word.text) == Some(false);
    let problem = other_line(word.text, word).filter(|_| could_begin_line && is_unknown());
    if let Some(problem) = problem {
        return Some(Err(problem));
    }
    function(word, false, names)
}

/// Reads what follows a keyword.
fn of_keyword(keyword: Option<Keyword>, word: Word<'_>, names: &dyn KernelNames) -> Reading {
    match keyword? {
        Keyword::Entry => function(of_kernel(word), false, names),
        Keyword::Return => function(of_kernel(word), true, names),
        Keyword::SystemCall => Some(system_call(word, names)),
        Keyword::Event => {
            let parts = word.split_once(':').or_else(|| word.split_once('/'));
            match parts {
                Some((group, event)) => {
                    let event = event_name(word, group.text, event.text);
                    Some(event.and_then(|name| known_events(word, &name, names)))
                }
                None => bare_event(word, names).or_else(|| {
                    let message = format!("the host has no event `{}`", word.text);
                    Some(Err(refused(word, message, "write `tracepoint:GROUP:EVENT`")))
                }),
            }
        }
    }
}

/// A function without the module `vmlinux`: other tools name the kernel itself so.
fn of_kernel(word: Word<'_>) -> Word<'_> {
    word.split_once(':').filter(|(module, _)| module.text == "vmlinux").map_or(word, |(_, function)| function)
}

/// `GROUP/EVENT` of these names.
fn event_name(word: Word<'_>, group: &str, event: &str) -> Result<String, Diagnostic> {
    let is_good = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'*' | b'?'))
    };
    if is_good(group) && is_good(event) {
        return Ok(format!("{group}/{event}"));
    }
    let message = format!("`{}` is not the name of an event", word.text);
    Err(refused(word, message, "write GROUP/EVENT, such as `sched/sched_switch`"))
}

/// The events of a name that may be a glob. One that is not there is for the judge of events to refuse.
fn known_events(word: Word<'_>, name: &str, names: &dyn KernelNames) -> Result<Found, Diagnostic> {
    if !name.contains(['*', '?']) {
        return Ok(Found::one(What::Event(name.to_owned()), word.span()));
    }
    let glob = Glob::new(name);
    let Some(events) = names.events() else {
        let message = format!("it is not known which events match `{name}`");
        return Err(refused(word, message, "write GROUP/EVENT without `*`"));
    };
    let matching: Vec<String> = events.into_iter().filter(|event| glob.matches(event)).collect();
    if matching.is_empty() {
        let message = format!("no event of the host matches `{name}`");
        let hint = "`kprobectl functions --events PART` lists the events with this part in their names";
        return Err(refused(word, message, hint));
    }
    Ok(Found::of_events(matching, word.span()))
}

/// `GROUP/EVENT`: a glob of events; one event is read by its own module.
fn events(word: Word<'_>, (group, event): (&str, &str), names: &dyn KernelNames) -> Reading {
    if !word.text.contains(['*', '?']) {
        return None;
    }
    Some(event_name(word, group, event).and_then(|name| known_events(word, &name, names)))
}

/// `WORD:NAME` whose word is not a keyword: events of a group, or functions of a module.
fn of_group_or_module(
    word: Word<'_>,
    group: &str,
    after: Word<'_>,
    could_begin_line: bool,
    names: &dyn KernelNames,
) -> Reading {
    let name = after.text;
    let events = names.events()?;
    let full = format!("{group}/{name}");
    let glob = Glob::new(full.as_str());
    let of_group = if name.contains(['*', '?']) {
        events.iter().filter(|event| glob.matches(event)).cloned().collect()
    } else {
        events.iter().filter(|event| **event == full).cloned().collect::<Vec<_>>()
    };
    let is_module = names.has_module(group);
    let of_module =
        function(word, false, names).filter(|_| is_module).and_then(Result::ok).unwrap_or_default();
    let module_has = of_module.targets.iter().any(|target| match &target.what {
        What::Function { module, name, .. } => {
            names.has_function(module.as_deref().or(Some(group)), name) == Some(true)
        }
        _ => false,
    });
    let returning = full.strip_suffix("%return").filter(|event| events.iter().any(|known| known == event));
    if let Some(event) = returning.filter(|_| !module_has) {
        let hint =
            format!("write `{event}`; `kprobectl latency START END` measures from one event to another");
        return Some(Err(refused(word, format!("`{event}` is an event, and does not return"), hint)));
    }
    match (of_group.is_empty(), module_has) {
        (false, true) => {
            let message = format!("`{}` is an event, and a function of the module `{group}`", word.text);
            let hint = format!("write `{full}` for the event, or `p {}` for the function", word.text);
            Some(Err(refused(word, message, hint)))
        }
        (false, false) => Some(Ok(Found::of_events(of_group, word.span()))),
        (true, true) => Some(Ok(of_module)),
        (true, false) if is_module => function(word, false, names),
        // The judge of events knows what was meant.
        (true, false)
            if events
                .iter()
                .filter_map(|event| event.split_once('/'))
                .any(|(of, event)| of == group || event == name)
                && names.has_function(None, name) != Some(true) =>
        {
            if name.contains(['*', '?']) {
                return Some(known_events(word, &full, names));
            }
            None
        }
        (true, false) => {
            if let Some(problem) = other_line(group, word).filter(|_| could_begin_line) {
                return Some(Err(problem));
            }
            let spelling = Spelling::of(after);
            let function = spelling.map_or(name, |spelling| spelling.name);
            let message = format!("the host has no event `{full}`, and no module `{group}` is loaded");
            let hint = if names.has_function(None, function) == Some(true) {
                format!("`{function}` is in the kernel itself: write `p {name}`")
            } else {
                format!(
                    "write `p {}` for a function of a module that is loaded later, `{full}` for an event of another program",
                    word.text
                )
            };
            Some(Err(refused(word, message, hint)))
        }
    }
}

/// The event of a name, if a group has it.
fn bare_event(word: Word<'_>, names: &dyn KernelNames) -> Reading {
    let of_name = |event: &String| event.split_once('/').is_some_and(|(_, name)| name == word.text);
    let found: Vec<String> = names.events()?.into_iter().filter(of_name).collect();
    match found.as_slice() {
        [] => None,
        [_] => Some(Ok(Found::of_events(found, word.span()))),
        several => {
            let all: Vec<_> = several.iter().map(|event| format!("`{event}`")).collect();
            let message = format!("{} groups have an event `{}`", several.len(), word.text);
            Some(Err(refused(word, message, format!("write {}", all.join(" or ")))))
        }
    }
}

/// A function as it is written: `[MODULE:]NAME[+OFFSET][%return]`.
#[derive(Debug, Clone, Copy)]
struct Spelling<'a> {
    module: Option<&'a str>,
    name: &'a str,
    /// `+OFFSET`, or nothing.
    offset: &'a str,
    returns: bool,
}

/// A place without `%return`, and whether it had that.
fn of_return(word: Word<'_>) -> (&str, bool) {
    word.text.strip_suffix("%return").map_or((word.text, false), |text| (text, true))
}

impl<'a> Spelling<'a> {
    fn of(word: Word<'a>) -> Option<Self> {
        let (text, returns) = of_return(word);
        let (place, offset) = text.split_at(text.find('+').unwrap_or(text.len()));
        let (module, name) =
            place.split_once(':').map_or((None, place), |(module, name)| (Some(module), name));
        (!name.is_empty()).then_some(Self { module, name, offset, returns })
    }

    fn is_plain(&self, word: Word<'_>) -> bool {
        self.name == word.text && !self.name.contains(['*', '?'])
    }
}

/// Functions, system calls, or an event that is called by its name alone.
fn function(word: Word<'_>, returns: bool, names: &dyn KernelNames) -> Reading {
    let Spelling { module, name, offset, returns: written } = Spelling::of(word)?;
    let returns = returns || written;
    if name.contains(['*', '?']) {
        return Some(matching(word, (module, name), offset, returns, names));
    }
    let target = |name: &str| What::Function {
        module: module.map(str::to_owned),
        name: name.to_owned(),
        offset: offset.to_owned(),
        returns,
    };
    let is_function = names.has_function(module, name);
    let found = Found::one(target(name), word.span());
    let call = || names.system_call(name).filter(|_| module.is_none() && offset.is_empty());
    match is_function {
        // The function of a system call has its arguments in a structure.
        Some(true) => {
            let of_call = call().filter(|call| call.function == name && !call.arguments.is_empty());
            Some(Ok(of_call.map_or(found, |call| Found::one(What::Call { call, returns }, word.span()))))
        }
        Some(false) if module.is_none() => {
            let event = bare_event(word, names);
            if event.is_some() {
                return event;
            }
            let Some(call) = call() else { return Some(Ok(found)) };
            let at_exit = name.starts_with("sys_exit_");
            Some(Ok(of_call(call, returns || at_exit, word, names)))
        }
        _ => Some(Ok(found)),
    }
}

fn of_call(call: SystemCall, returns: bool, word: Word<'_>, names: &dyn KernelNames) -> Found {
    let event = format!("syscalls/sys_{}_{}", if returns { "exit" } else { "enter" }, call.name);
    let has_event = names.events().is_some_and(|events| events.contains(&event));
    let mut found = Found::one(What::Call { call, returns }, word.span());
    if has_event {
        found
            .notes
            .push(format!("`{event}` is its event: it has the pointers of strings, and not the strings"));
    }
    found
}

/// What `syscall:` precedes.
fn system_call(word: Word<'_>, names: &dyn KernelNames) -> Result<Found, Diagnostic> {
    let (name, returns) = of_return(word);
    if name.contains(['*', '?']) {
        let functions = names.functions(None, &format!("__x64_sys_{name}"));
        let calls = functions.places.iter().filter_map(|(_, function)| names.system_call(function));
        let targets: Vec<_> =
            calls.map(|call| Target { what: What::Call { call, returns }, span: word.span() }).collect();
        if !targets.is_empty() {
            return Ok(Found { targets, left_out: functions.left_out, notes: Vec::new() });
        }
    } else if let Some(call) = names.system_call(name) {
        return Ok(of_call(call, returns, word, names));
    }
    let message = format!("the kernel has no system call `{name}`");
    Err(refused(word, message, "`kprobectl functions '__x64_sys_*'` lists them"))
}

/// The functions that a glob matches.
fn matching(
    word: Word<'_>,
    (module, glob): (Option<&str>, &str),
    offset: &str,
    returns: bool,
    names: &dyn KernelNames,
) -> Result<Found, Diagnostic> {
    let found = names.functions(module, glob);
    if found.places.is_empty() {
        let (message, hint) = match found.left_out {
            0 => (
                format!("no function matches `{}`", word.text),
                format!("`kprobectl functions '{glob}'` looks for names"),
            ),
            count => (
                format!("a probe cannot be in any of the {count} functions that match `{}`", word.text),
                format!("`kprobectl functions '{glob}'` shows why"),
            ),
        };
        return Err(refused(word, message, hint));
    }
    let target = |(module, name)| Target {
        what: What::Function { module, name, offset: offset.to_owned(), returns },
        span: word.span(),
    };
    let targets = found.places.into_iter().map(target).collect();
    Ok(Found { targets, left_out: found.left_out, notes: Vec::new() })
}
