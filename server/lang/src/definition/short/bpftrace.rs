//! Programs of bpftrace: which command does what one asks for.
//!
//! Owns this reading, whose outcome is a hint and nothing else: kprobed runs no program. A predicate is a filter, a map
//! that counts is `hist`, a time between two clauses is `latency`, and what `printf` prints, `trace` prints with names.

use super::super::Span;
use super::super::code::Code;
use super::super::diagnostic::Diagnostic;
use super::super::line::LINE_MAX_BYTES;
use super::super::names::is_identifier;
use super::KernelNames;
use super::arguments::number;
use super::expression::{
    CASTS, call, is_recorded, is_returned, is_stack, parts, parts_of_predicate, process_of, reads_arguments,
    renamed, split_outside, to_closing, tokens,
};
use super::place::{Keyword, keyword, other_probe};

/// What a program has no command for.
pub(super) const OTHERWISE: &str = "`kprobectl hist` counts, `kprobectl latency` measures, `kprobectl trace --filter` selects: `kprobectl help recipes` has examples";

/// Why kprobed refuses a program, and the command that does the same. Absent for a text that is none.
pub(super) fn read(text: &str, names: &dyn KernelNames) -> Option<Diagnostic> {
    // Longer than any line, with a comment, or with what no terminal shows, it is none of these.
    let is_odd = |c: char| c == '#' || (c.is_control() && !c.is_whitespace());
    if text.len() > LINE_MAX_BYTES || text.contains(is_odd) {
        return None;
    }
    let Some(clauses) = clauses(text) else { return cast(text, names) };
    let start = text.len() - text.trim_start().len() + clauses.first()?.probes.len();
    let what = if text.contains('{') { "program" } else { "predicate" };
    let program = text.get(start..)?.trim();
    let start = start + text.get(start..)?.find(program)?;
    let why = match foreign(&clauses) {
        Some((word, other)) => format!("`{word}` is {other}, and kprobed probes the kernel"),
        None => "kprobed has a command for each job, and runs no program".to_owned(),
    };
    let message = format!("a {what} of bpftrace: {why}");
    let hint = match command(&clauses, names) {
        Some(command) => format!("write `kprobectl {command}`"),
        None => OTHERWISE.to_owned(),
    };
    Some(
        Diagnostic::error(Code::UnknownCommand, Span::new(start, start + program.len()), message)
            .with_hint(hint),
    )
}

/// The word of the first clause that is of a probe which kprobed does not have, and what that is, if no clause is of
/// another one.
fn foreign<'a>(clauses: &[Clause<'a>]) -> Option<(&'a str, &'static str)> {
    let others = clauses.iter().filter(|clause| !matches!(clause.probes, "BEGIN" | "END"));
    let found: Option<Vec<_>> = others
        .map(|clause| {
            let (word, _) = clause.probes.split_once(':')?;
            Some((word, other_probe(word)?))
        })
        .collect();
    found?.first().copied()
}

/// Refuses a cast: parameters have the types of the kernel.
fn cast(text: &str, names: &dyn KernelNames) -> Option<Diagnostic> {
    let start = CASTS.iter().filter_map(|cast| text.find(cast)).min()?;
    let (place, values) =
        text.get(..start)?.trim().split_once(' ').unwrap_or((text.get(..start)?.trim(), ""));
    let place = Place::of(place, names)?;
    let end = text.trim_end().len();
    let values = format!("{values} {}", place.renamed(text.get(start..end)?));
    let hint = format!("write `{} {}`", place.name, values.trim());
    let message = "a cast of bpftrace: a parameter has the type that the kernel gives it";
    Some(Diagnostic::error(Code::UnknownCommand, Span::new(start, end), message).with_hint(hint))
}

/// `PROBES /PREDICATE/ { ACTION }`, each part without its blanks and signs.
struct Clause<'a> {
    probes: &'a str,
    predicate: &'a str,
    action: &'a str,
}

/// The clauses of a text that has an action, or a predicate, and nothing behind them.
fn clauses(text: &str) -> Option<Vec<Clause<'_>>> {
    let mut clauses = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (head, action, further) = match split_outside(rest, '{') {
            Some((head, behind)) => {
                let (action, further) = to_closing(behind)?;
                (head.trim(), action.trim(), further.trim_start())
            }
            None => (rest, "", ""),
        };
        // A predicate alone has a blank before it: without an action, `a/b/` may be a name.
        let has_action = !action.is_empty();
        let cut = head
            .strip_suffix('/')
            .and_then(|head| head.split_once(" /").or_else(|| head.split_once('/').filter(|_| has_action)));
        let (probes, predicate) = match cut {
            Some((probes, predicate)) => (probes.trim_end(), predicate.trim()),
            None => (head, ""),
        };
        if probes.is_empty() || (action.is_empty() && predicate.is_empty()) {
            return None;
        }
        clauses.push(Clause { probes, predicate, action });
        rest = further;
    }
    Some(clauses)
}

/// The command for a program, with its arguments.
fn command(clauses: &[Clause<'_>], names: &dyn KernelNames) -> Option<String> {
    let is_timer = |clause: &&Clause<'_>| clause.probes.starts_with("interval:");
    let is_edge = |clause: &&Clause<'_>| matches!(clause.probes, "BEGIN" | "END");
    let (ends, shows): (Vec<_>, Vec<_>) =
        clauses.iter().filter(is_timer).partition(|timer| timer.action.contains("exit("));
    let every = |timer: &Clause<'_>| match parts(timer.probes, ':').as_slice() {
        [_, unit @ ("s" | "ms"), count] => Some(format!("{count}{unit}")),
        _ => None,
    };
    let interval = match shows.first().copied() {
        None => String::new(),
        Some(timer) => {
            // bpftrace goes on counting from what it has printed, unless the timer empties the map.
            let empties = ["clear(", "zero("].iter().any(|call| timer.action.contains(call));
            format!(" --interval {}{}", every(timer)?, if empties { " --deltas" } else { "" })
        }
    };
    let length = match ends.first().copied() {
        None => String::new(),
        Some(timer) => format!(" --for {}", every(timer)?),
    };
    let others: Vec<_> = clauses.iter().filter(|clause| !is_timer(clause) && !is_edge(clause)).collect();
    let command = match others.as_slice() {
        [only] => Place::of(only.probes, names)?.command(only)?,
        [start, end] if end.action.contains("nsecs") => latency(start, end, names)?,
        _ => return None,
    };
    (interval.is_empty() || !command.starts_with("trace")).then(|| command + &interval + &length)
}

/// The time from one clause to another: a map keeps the first, by what both have.
fn latency(start: &Clause<'_>, end: &Clause<'_>, names: &dyn KernelNames) -> Option<String> {
    let (from, to) = (Place::of(start.probes, names)?, Place::of(end.probes, names)?);
    let subscript = |map: &str| Some(to_closing(map.split_once('[')?.1)?.0.trim().to_owned());
    let kept = subscript(start.action)?;
    let (_, behind) = end.action.split_once("nsecs")?;
    let found = subscript(behind.split_once('@')?.1)?;
    let same = match (kept.as_str(), found.as_str()) {
        ("tid", "tid") => String::new(),
        // Both ends have one field of that name, and `--match` no other pair.
        _ if kept.contains(',') => return None,
        _ => from.value(&kept)?.field,
    };
    if !same.is_empty() && to.value(&found).is_none_or(|value| value.field != same) {
        return None;
    }
    let statements = parts(end.action, ';');
    let map = statements.iter().find_map(|statement| Map::of(statement.strip_prefix('@')?));
    let keys = map.map(|map| map.keys);
    let by = to.by(&keys.unwrap_or_default(), &mut Vec::new())?;
    if by.len() > 2 || by.iter().any(|key| !matches!(key.as_str(), "thread" | "comm" | "cpu")) {
        return None;
    }
    let by = by.join(",");
    let of_end = option("--end-filter", &to.filter_in_kernel(end.predicate)?);
    let filters = option("--start-filter", &from.filter_in_kernel(start.predicate)?) + &of_end;
    // The return of START by itself has no value that a filter can compare.
    let is_default = from.name == to.name && to.returns && of_end.is_empty();
    let end = if is_default { String::new() } else { format!(" {}", to.word(&[])) };
    Some(format!(
        "latency {}{end}{}{}{filters}",
        from.word(&[]),
        option("--match", &same),
        option("--by", &by)
    ))
}

/// An option with a value, or nothing without one.
fn option(name: &str, value: &str) -> String {
    if value.is_empty() { String::new() } else { format!(" {name} {}", quoted(value)) }
}

/// A word as a shell needs it.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_/:%+-,.=".contains(&byte);
    if word.bytes().all(is_plain) { word.to_owned() } else { format!("'{word}'") }
}

/// `@NAME[KEYS] = FUNCTION(VALUES)`, from behind its `@`.
struct Map<'a> {
    keys: Vec<&'a str>,
    function: &'a str,
    values: Vec<&'a str>,
}

impl<'a> Map<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let (name, is) = split_outside(text, '=')?;
        let keys = name.split_once('[').and_then(|(_, keys)| to_closing(keys)).map_or("", |(keys, _)| keys);
        let (function, values) = is.trim().split_once('(')?;
        Some(Self { keys: parts(keys, ','), function, values: parts(to_closing(values)?.0, ',') })
    }
}

/// Where a clause is attached, as kprobed names it.
struct Place<'n> {
    name: String,
    returns: bool,
    is_event: bool,
    names: &'n dyn KernelNames,
}

/// What a value of bpftrace is called here: a word of a definition, and the name of its field.
struct Value {
    word: String,
    field: String,
}

impl<'n> Place<'n> {
    fn of(probes: &str, names: &'n dyn KernelNames) -> Option<Self> {
        let (keyword, rest) = match probes.split_once(':') {
            Some((word, rest)) => (keyword(word)?, rest),
            None => (Keyword::Entry, probes),
        };
        if rest.contains(|c: char| c.is_whitespace() || c == ',') {
            return None;
        }
        let is_event = keyword == Keyword::Event;
        let rest = rest.strip_prefix("vmlinux:").unwrap_or(rest);
        let (rest, written) = rest.strip_suffix("%return").map_or((rest, false), |name| (name, true));
        let name = if is_event { rest.replacen(':', "/", 1) } else { rest.to_owned() };
        Some(Self { name, returns: written || keyword == Keyword::Return, is_event, names })
    }

    /// As one word for a shell, with these words of arguments.
    fn word(&self, arguments: &[String]) -> String {
        let returns = if self.returns { "%return" } else { "" };
        let words: Vec<_> =
            std::iter::once(format!("{}{returns}", self.name)).chain(arguments.iter().cloned()).collect();
        quoted(&words.join(" "))
    }

    /// The system call of the event, which has strings where the event has pointers.
    fn of_call(&self) -> Option<Self> {
        let call = self.name.strip_prefix("syscalls/sys_enter_")?;
        Some(Self { name: call.to_owned(), returns: false, is_event: false, names: self.names })
    }

    fn command(&self, clause: &Clause<'_>) -> Option<String> {
        let mut statements = parts(clause.action, ';');
        statements.retain(|statement| !statement.starts_with("delete(") && !statement.starts_with("clear("));
        let first = match statements.as_slice() {
            [] => "",
            [only] => *only,
            _ => return None,
        };
        let has_string = [clause.action, clause.predicate].iter().any(|part| part.contains("str("));
        let place = self.of_call().filter(|_| has_string).map(|call| call.command(clause));
        if let Some(of_call) = place {
            return of_call;
        }
        match first.strip_prefix('@') {
            Some(map) => self.counted(&Map::of(map)?, clause.predicate),
            None if first.is_empty() => self.traced(&[], clause.predicate),
            None => {
                let printed = parts(call(first, "printf").or_else(|| call(first, "print"))?, ',');
                let values = printed.into_iter().filter(|value| !value.starts_with('"')).collect::<Vec<_>>();
                self.traced(&values, clause.predicate)
            }
        }
    }

    fn traced(&self, values: &[&str], predicate: &str) -> Option<String> {
        let is_of_each = |value: &str| {
            matches!(value, "comm" | "pid" | "tid" | "cpu" | "nsecs" | "elapsed" | "func" | "probe")
                || value.starts_with("strftime(")
        };
        let stack = values.iter().any(|value| is_stack(value));
        let recorded = values.iter().filter(|value| !is_of_each(value) && !is_stack(value));
        let mut words = recorded.map(|value| Some(self.value(value)?.word)).collect::<Option<Vec<_>>>()?;
        let (processes, others): (Vec<_>, Vec<_>) =
            parts_of_predicate(predicate).partition(|part| process_of(part).is_some());
        let numbers = processes.iter().filter_map(|part| process_of(part));
        let pid: String = numbers.map(|process| option("--pid", process)).collect();
        let filter = option("--filter", &self.filter(&others)?);
        let stack = if stack { " --stack" } else { "" };
        // What the function takes is there at its entry only: with it, each call is a line.
        let selects_taken = reads_arguments(predicate);
        if self.returns && (selects_taken || !words.iter().all(|word| is_returned(word))) {
            let (returned, taken): (Vec<_>, Vec<_>) = words.into_iter().partition(|word| is_returned(word));
            if returned.iter().any(|word| word != "retval") {
                return None;
            }
            let taken = if selects_taken { "*".to_owned() } else { taken.join(", ") };
            let call = quoted(&format!("{}({taken}) -> retval", self.name));
            return Some(format!("trace {call}{pid}{filter}{stack}"));
        }
        // With its own fields alone, the filter has the others too.
        let are_plain = words.iter().all(|word| is_identifier(word));
        if self.is_event || (self.returns && are_plain) || (!others.is_empty() && are_plain) {
            words.clear();
        }
        Some(format!("trace {}{pid}{filter}{stack}", self.word(&words)))
    }

    fn counted(&self, map: &Map<'_>, predicate: &str) -> Option<String> {
        let mut words = Vec::new();
        let filter = option("--filter", &self.filter_in_kernel(predicate)?);
        if matches!(map.keys.as_slice(), ["func" | "probe"])
            && !self.is_event
            && map.function == "count"
            && filter.is_empty()
        {
            return Some(format!("hits {}", self.word(&[])));
        }
        // It counts one probe.
        if self.name.contains(['*', '?']) {
            return None;
        }
        let mut by = self.by(&map.keys, &mut words)?;
        let mut sum = String::new();
        match (map.function, map.values.as_slice()) {
            ("count", []) => {}
            ("sum" | "avg" | "stats", [of]) => sum = self.field(of, &mut words)?,
            ("hist", [of, ..]) => by.push(self.field(of, &mut words)? + ".log2"),
            ("lhist", [of, _, _, step]) => by.push(format!("{}.buckets={step}", self.field(of, &mut words)?)),
            _ => return None,
        }
        // The kernel's tables have no more keys.
        if by.len() > 3 {
            return None;
        }
        let place = self.word(&words);
        if by == ["stack"] && sum.is_empty() {
            return Some(format!("stacks {place}{filter}"));
        }
        Some(format!("hist {place}{}{}{filter}", option("--by", &by.join(",")), option("--sum", &sum)))
    }

    /// The keys of `--by`, and the words that a definition needs for them.
    fn by(&self, keys: &[&str], words: &mut Vec<String>) -> Option<Vec<String>> {
        let mut key = |key: &&str| {
            Some(match *key {
                "func" | "probe" => return None,
                "comm" | "cpu" => (*key).to_owned(),
                "tid" => "thread".to_owned(),
                key if is_stack(key) => "stack".to_owned(),
                key => match call(key, "ksym") {
                    Some(address) => self.field(address, words)? + ".sym",
                    None => match self.field(key, words)? {
                        // A field, and not what a key of that name counts by.
                        field if KEYS.contains(&field.as_str()) => field + ".exact",
                        field => field,
                    },
                },
            })
        };
        keys.iter().map(&mut key).collect()
    }

    /// The field of a value, and the word that a definition needs to have it.
    fn field(&self, text: &str, words: &mut Vec<String>) -> Option<String> {
        let value = self.value(text)?;
        // What the function takes is not there at its return.
        if self.returns && !is_returned(&value.word) {
            return None;
        }
        if !is_identifier(&value.word) {
            words.push(value.word);
        }
        Some(value.field)
    }

    /// A value of bpftrace as an argument of a definition.
    fn value(&self, text: &str) -> Option<Value> {
        if let Some(path) = call(text, "path") {
            let file = self.value(path)?.word;
            let file = file.strip_suffix("->f_path")?;
            return Some(Value { word: format!("{file}:path"), field: file.to_owned() });
        }
        // These only show a number in another way, which is done here for what needs it.
        let shown = ["ntop", "bswap", "ksym"].iter().find_map(|function| call(text, function));
        let text = shown.map_or(text, |values| parts(values, ',').last().copied().unwrap_or_default());
        let (text, is_string) = call(text, "str").map_or((text, false), |inside| (inside, true));
        let text = parts(text, ',').first().copied()?;
        if !is_recorded(text) || OF_TASK.contains(&text) {
            return None;
        }
        let word = self.renamed(text);
        let is_chain = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_->.".contains(&byte));
        let field = word.rsplit(['>', '.']).next().filter(|field| is_identifier(field))?.to_owned();
        let word = if is_string && !self.is_event { self.string_at(&word) } else { word };
        let is_behind_return = self.returns && word.starts_with("retval->");
        let word = if is_behind_return { format!("${word}") } else { word };
        is_chain.then_some(Value { word, field })
    }

    /// The word for the string that a parameter or a member points to. Like bpftrace, it reads the memory of the
    /// kernel unless the type says that the pointer is one of a program.
    fn string_at(&self, word: &str) -> String {
        let known = self.names.function(None, &self.name).map(|known| known.parameters).unwrap_or_default();
        let parameter = known.iter().find(|known| known.name == word);
        match parameter.and_then(|known| known.is_of_program) {
            Some(true) => format!("{word}:ustring"),
            // The short form of a system call reads its strings by itself.
            None if is_identifier(word) && self.names.system_call(&self.name).is_some() => word.to_owned(),
            _ => match number(word).filter(|_| parameter.is_none()) {
                Some(index) => format!("{word}=+0($arg{}):string", index.saturating_add(1)),
                None => format!("{word}:string"),
            },
        }
    }

    /// The predicate as a filter of the kernel, which knows threads and no processes.
    fn filter_in_kernel(&self, predicate: &str) -> Option<String> {
        if self.returns && reads_arguments(predicate) {
            return None;
        }
        let filter = self.filter(&parts_of_predicate(predicate).collect::<Vec<_>>())?;
        (!filter.contains("tgid")).then_some(filter)
    }

    /// These parts of a predicate as a filter. It compares fields that are recorded: no members, casts, maps or calls.
    fn filter(&self, parts: &[&str]) -> Option<String> {
        let filter = self.renamed(&parts.join(" && "));
        let signs: String = tokens(&filter).filter(|token| !token.starts_with('"')).collect();
        let is_of_fields = !["->", ".", "(int", "(uint"].iter().any(|sign| signs.contains(sign));
        (is_of_fields && parts.iter().all(|part| is_recorded(part))).then_some(filter)
    }

    /// An expression with the names of parameters.
    fn renamed(&self, text: &str) -> String {
        let known = self.names.function(None, &self.name).map(|known| known.parameters).unwrap_or_default();
        renamed(text, &known)
    }
}

/// What a filter can compare, and no field has: `pid` is the process, and events have the thread.
const OF_TASK: [&str; 4] = ["pid", "tid", "comm", "cpu"];

/// The keys of `--by` that are no fields.
const KEYS: [&str; 5] = ["thread", "comm", "cpu", "stack", "host"];
