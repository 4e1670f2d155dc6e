//! Expression parser: the expression of an argument, from text to syntax tree.
//!
//! Owns the forms and their order. Follows kernel/trace/trace_probe.c:parse_probe_arg and
//! parse_probe_vars (5.15, 6.12, 7.3): the same forms in the same order, so that the first problem
//! is the kernel's. An expression that cannot be parsed to its end leaves what was parsed before
//! ([`Unread`]), since the kernel looks names up while it parses. Never decides whether a form is
//! usable with a type, or fits the fetch program: that is in `program`.

use super::Span;
use super::ast::{BtfMember, BtfRoot, Fetch, FetchKind, MemoryAddress, Place, ProbeKind, Register};
use super::code::Code;
use super::diagnostic::{Diagnostic, PartStep, Step};
use super::features::Features;
use super::line::Word;
use super::names::is_identifier;
use super::number;
use super::short::KernelNames;

/// Highest N of `$stackN` and `$argN`: words of a kernel stack of 16 KiB (`PARAM_MAX_STACK`).
pub(super) const STACK_WORDS: u32 = 2048;

/// What the kernel's parser knows about the place (its `TPARG_FL_FENTRY` and `TPARG_FL_RETURN`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Site {
    /// An entry probe at a symbol. Whether it is a function entry is checked later: see
    /// `entry_requirement`.
    Entry,
    /// A return probe at a symbol.
    Return,
    /// An address, of which the parser knows nothing.
    Address,
}

/// Parses expressions at one place, for one kernel.
#[derive(Clone, Copy)]
pub(super) struct FetchParser<'f> {
    /// The index of the argument.
    pub(super) argument: usize,
    pub(super) features: &'f Features,
    pub(super) site: Site,
    /// The kernel, as far as it is known.
    pub(super) names: &'f dyn KernelNames,
    /// Module and function that the place names.
    pub(super) function: Option<(Option<&'f str>, &'f str)>,
}

/// The placeholder for an expression that was not parsed: it requires nothing of place and types.
pub(super) const NOTHING: FetchKind = FetchKind::Immediate(0);
/// The placeholder for an argument of the function that cannot be parsed: it requires a function
/// entry, and no argument has this number.
pub(super) const NO_ARGUMENT: FetchKind = FetchKind::Argument(0);

/// An expression that cannot be parsed to its end.
pub(super) struct Unread {
    /// Why not.
    pub(super) finding: Diagnostic,
    /// The part that was parsed before.
    pub(super) read: FetchKind,
}

impl From<Diagnostic> for Box<Unread> {
    fn from(finding: Diagnostic) -> Self {
        Self::new(Unread { finding, read: NOTHING })
    }
}

fn after(read: FetchKind, finding: Diagnostic) -> Box<Unread> {
    Box::new(Unread { finding, read })
}

type Parsed = Result<FetchKind, Box<Unread>>;

impl<'f> FetchParser<'f> {
    /// The parser of the first argument at a place, if that could be parsed.
    pub(super) fn new(
        place: Option<&'f Place>,
        kind: ProbeKind,
        features: &'f Features,
        names: &'f dyn KernelNames,
    ) -> Self {
        let site = match (place, kind) {
            (Some(Place::Address { .. } | Place::Event { .. }), _) => Site::Address,
            (_, ProbeKind::Entry | ProbeKind::Event) => Site::Entry,
            (_, ProbeKind::Return) => Site::Return,
        };
        let function = match place {
            Some(Place::Symbol { module, symbol, .. }) => Some((module.as_deref(), symbol.as_str())),
            _ => None,
        };
        Self { argument: 0, features, site, names, function }
    }
}

impl FetchParser<'_> {
    /// One expression; `depth` dereferences are around it.
    ///
    /// Recursion is bounded: the caller limits the length of the text to that of an expression, at
    /// most 255 bytes.
    pub(super) fn parse(&self, word: Word<'_>, depth: usize) -> (Fetch, Option<Diagnostic>) {
        let (kind, finding) = match self.kind(word, depth) {
            Ok(kind) => (kind, None),
            Err(unread) => {
                let Unread { finding, read } = *unread;
                // Problems of parts have their positions; all others are at the beginning of the
                // expression.
                let is_placed = finding.step != Step::Line;
                let step = if is_placed { finding.step } else { self.part(word, PartStep::Following) };
                (read, Some(finding.at(step)))
            }
        };
        (Fetch { kind, span: word.span() }, finding)
    }

    fn part(&self, word: Word<'_>, part: PartStep) -> Step {
        Step::part(self.argument, word.start, part)
    }

    fn kind(&self, word: Word<'_>, depth: usize) -> Parsed {
        if self.features.nesting_max.is_some_and(|max| depth >= max) {
            return Err(word.error(Code::TooManyNested, "too many nested dereferences").into());
        }
        match word.text.chars().next() {
            Some('$') => self.variable(word),
            Some('%') => Ok(register(word)?),
            Some('@') => Ok(memory(word)?),
            Some('+' | '-') => self.dereference(word, depth),
            Some('\\') => Ok(immediate(word)?),
            Some(c) if c.is_ascii_alphabetic() || c == '_' => self.btf(word),
            Some('(') if self.features.typecasts => Err(unsupported(word, "typecasts").into()),
            _ => Err(bad_fetch(word).into()),
        }
    }

    fn variable(&self, word: Word<'_>) -> Parsed {
        let name = &word.text[1..];
        if let Some(rest) = name.strip_prefix("retval") {
            // Kernels before function probes compare the whole word.
            if self.features.fprobe || self.features.own_types || rest.is_empty() {
                return self.retval(word, rest);
            }
        } else if let Some(rest) = name.strip_prefix("stack") {
            return Ok(self.stack(word, rest)?);
        } else if matches!(name, "comm" | "COMM") {
            return Ok(FetchKind::Comm);
        } else if let Some(rest) = name.strip_prefix("arg") {
            return self.argument(word, rest);
        } else if self.features.typecasts && name.starts_with("current") {
            return Err(unsupported(word, "`$current`").into());
        }
        Err(self.no_variable(word).into())
    }

    fn retval(&self, word: Word<'_>, rest: &str) -> Parsed {
        let is_other = !rest.is_empty() && !self.features.fprobe;
        if self.site != Site::Return && !is_other {
            let what = if self.site == Site::Address {
                "`$retval` needs a function name as the probe point, not an address"
            } else {
                "`$retval` is known only when the function returns"
            };
            return Err(word.error(Code::RetvalOnProbe, what).into());
        }
        if rest.is_empty() {
            return Ok(FetchKind::Retval);
        }
        if self.features.names_members() && rest.starts_with(['-', '.']) {
            let path = word.tail(word.text.len() - rest.len());
            let message = "a value that is a structure itself cannot be read";
            return self.path(word, BtfRoot::Retval, path, message);
        }
        if !self.features.btf_args {
            return Err(self.no_variable(word).into());
        }
        // The kernel looks for a parameter of that name.
        let root = BtfRoot::Parameter(word.text.to_owned());
        let problem = no_variable(Code::NoBtfarg, word).at(self.part(word, PartStep::LookUp));
        Err(after(FetchKind::Btf { root, members: Vec::new() }, problem))
    }

    fn argument(&self, word: Word<'_>, rest: &str) -> Parsed {
        let here = self.arguments_here();
        // Kernels with $argN in return probes check the number first and the place after it.
        if !here && !self.features.retprobe_args {
            return Err(self.no_arguments(Code::BadVar, word).into());
        }
        let Some(index) = number::decimal(rest) else {
            let problem = self.no_variable(word);
            let problem = if rest == "*" { problem.with_hint(Code::BadVarArgs.hint()) } else { problem };
            return Err(after(if self.features.fprobe { NO_ARGUMENT } else { NOTHING }, problem));
        };
        let index = u32::try_from(index).ok().filter(|index| (1..=STACK_WORDS).contains(index));
        let Some(index) = index else { return Err(after(NO_ARGUMENT, bad_argument_number(word))) };
        if !here {
            return Err(self.no_arguments(Code::NofentryArgs, word).into());
        }
        Ok(FetchKind::Argument(index))
    }

    /// Why the arguments of the function cannot be read at this place, in whatever form they are
    /// written.
    pub(super) fn no_arguments(&self, code: Code, word: Word<'_>) -> Diagnostic {
        let (message, hint) = match self.site {
            Site::Return => {
                let (module, function) = self.function.unwrap_or((None, "FUNCTION"));
                let module = module.map(|module| format!("{module}:")).unwrap_or_default();
                let entry = format!(
                    "read it there, with another probe: `p {module}{function} {}`; the events of one call have the same thread",
                    word.text
                );
                ("this kernel has the arguments of a function at its entry only, not when it returns", entry)
            }
            _ => (
                "function arguments need a function name as the probe point, not an address",
                "write the name of the function, or read the registers: NAME=%di".to_owned(),
            ),
        };
        word.error(code, message).with_hint(hint)
    }

    fn no_variable(&self, word: Word<'_>) -> Diagnostic {
        let arguments = if self.arguments_here() { "$argN, " } else { "" };
        let result = if self.site == Site::Return { "$retval, " } else { "" };
        let hint = format!("there are {arguments}{result}$stack, $stackN and $comm here");
        no_variable(Code::BadVar, word).with_hint(hint)
    }

    fn stack(&self, word: Word<'_>, rest: &str) -> Simple {
        if rest.is_empty() {
            return Ok(FetchKind::Stack);
        }
        let index = if rest.starts_with(|c: char| c.is_ascii_digit()) { number::decimal(rest) } else { None };
        match index {
            None => Err(self.no_variable(word)),
            Some(index) => match u32::try_from(index) {
                Ok(index) if index <= STACK_WORDS => Ok(FetchKind::StackNth(index)),
                _ => {
                    let message = format!("entry {index} is beyond the end of a kernel stack");
                    Err(word.error(Code::BadStackNum, message))
                }
            },
        }
    }

    fn dereference(&self, word: Word<'_>, depth: usize) -> Parsed {
        let negative = word.text.starts_with('-');
        let user = word.text[1..].starts_with('u');
        let body = word.tail(if user { 2 } else { 1 });
        let Some(open) = body.text.find('(') else {
            return Err(word.error(Code::DerefNeedBrace, "a dereference needs `(`").into());
        };
        let digits = &body.text[..open];
        let offset_span = Span::new(word.start, body.start + open);
        let signed = if negative { format!("-{digits}") } else { digits.to_owned() };
        let Some(offset) = number::signed(&signed) else {
            let message = if digits.is_empty() {
                "the offset of the dereference is missing".to_owned()
            } else {
                format!("`{digits}` is not an offset")
            };
            let code =
                if number::signed_is_too_large(&signed) { Code::DerefOffsRange } else { Code::BadDerefOffs };
            return Err(Diagnostic::error(code, offset_span, message).into());
        };
        let inside = body.tail(open + 1);
        let Some(close) = inside.text.rfind(')') else {
            let message = "the `(` of the dereference is not closed";
            return Err(Diagnostic::error(Code::DerefOpenBrace, Span::point(inside.end()), message).into());
        };
        let (inner, mut finding) = self.parse(inside.head(close), depth + 1);
        let rest = inside.tail(close + 1);
        let kept = i32::try_from(offset).ok();
        let own = || {
            let (code, span, message) = if !rest.text.is_empty() {
                let message = format!("the kernel ignores `{}` after the `)`", rest.text);
                (Code::IgnoredText, rest.span(), message)
            } else if kept.is_none() {
                let message = format!("the kernel would silently cut the offset {offset} to 32 bits");
                (Code::OffsetTruncated, offset_span, message)
            } else {
                return None;
            };
            Some(Diagnostic::error(code, span, message).at(self.part(rest, PartStep::Own)))
        };
        finding = finding.or_else(own);
        let read = FetchKind::Deref { user, offset: kept.unwrap_or_default(), inner: Box::new(inner) };
        finding.map_or(Ok(read.clone()), |finding| Err(after(read, finding)))
    }

    /// Whether the kernel knows the arguments of the function at this place.
    pub(super) fn arguments_here(&self) -> bool {
        match self.site {
            Site::Entry => true,
            Site::Return => self.features.retprobe_args,
            Site::Address => false,
        }
    }

    /// Whether the kernel replaces words that are a plain `$argN` by the names of parameters.
    pub(super) fn numbers_become_names(&self) -> bool {
        let found = || self.function.and_then(|(module, name)| self.names.finds_parameters(module, name));
        self.features.btf_args && found().unwrap_or(true)
    }

    fn btf(&self, word: Word<'_>) -> Parsed {
        if !self.features.fprobe && !self.features.own_types {
            return Err(bad_fetch(word).into());
        }
        let per_cpu = word.text.starts_with("this_cpu_ptr(") || word.text.starts_with("this_cpu_read(");
        if per_cpu && self.features.typecasts {
            return Err(unsupported(word, "per-CPU access").into());
        }
        if !self.features.names_parameters() || !self.arguments_here() {
            let problem = if self.arguments_here() {
                word.error(Code::NosupBtfarg, "this kernel does not know parameter names")
                    .with_hint("read the argument by its number: NAME=$argN:TYPE")
            } else {
                self.no_arguments(Code::NosupBtfarg, word)
            };
            return Err(problem.at(self.part(word, PartStep::Possible)).into());
        }
        let length = match word.text.find(['.', '-']) {
            Some(at) if self.features.names_members() => at,
            _ => word.text.len(),
        };
        let root = word.head(length);
        let message = "a parameter that is a structure itself cannot be read";
        let parameter = BtfRoot::Parameter(root.text.to_owned());
        let path = self.path(word, parameter, word.tail(length), message)?;
        if is_identifier(root.text) {
            return Ok(path);
        }
        let message = format!("`{}` is not the name of a parameter", root.text);
        let problem = word.error(Code::NoBtfarg, message);
        Err(after(path, problem.at(self.part(word, PartStep::LookUp))))
    }

    /// `->member.member->member` after a root, from the first separator on. The kernel splits at
    /// the next separator before it looks up the part in front of it
    /// (kernel/trace/trace_probe.c:parse_btf_arg, parse_btf_field, split_next_field).
    fn path(&self, word: Word<'_>, root: BtfRoot, path: Word<'_>, structure: &str) -> Parsed {
        let mut members = Vec::new();
        // The part that the kernel looks up next.
        let mut part = word;
        let mut rest = path;
        let finding = loop {
            if rest.text.is_empty() {
                break None;
            }
            let arrow = rest.text.starts_with("->");
            if !arrow && rest.text.starts_with('-') {
                let dash = Span::new(rest.start, rest.start + 1);
                let problem = Diagnostic::error(Code::BadHyphen, dash, "a single `-` in a member path");
                break Some(problem.at(self.part(part, PartStep::Following)));
            }
            let tail = rest.tail(if arrow { 2 } else { 1 });
            if !arrow && members.is_empty() {
                // Only pointers can be followed.
                let problem = tail.error(Code::NosupDatArg, structure);
                break Some(problem.at(self.part(part, PartStep::Following)));
            }
            part = tail.head(tail.text.find(['.', '-']).unwrap_or(tail.text.len()));
            rest = tail.tail(part.text.len());
            let (name, indices) = self.indexed(part.text);
            members.push(BtfMember { arrow, name: name.to_owned(), indices });
            // The kernel checks the text after the name before the name.
            let is_hyphen_next = rest.text.starts_with('-') && !rest.text.starts_with("->");
            if !is_hyphen_next && !is_identifier(name) {
                let message = format!("`{name}` is not the name of a member");
                let mut problem = part.error(Code::NoBtfField, message);
                if name.contains('[') {
                    problem =
                        problem.with_hint("an element of an array is `MEMBER[INDEX]`, with a decimal number");
                }
                break Some(problem.at(self.part(part, PartStep::LookUp)));
            }
        };
        let read = FetchKind::Btf { root, members };
        finding.map_or(Ok(read.clone()), |finding| Err(after(read, finding)))
    }
}

impl FetchParser<'_> {
    /// The name of a member and the indices behind it, in the one way in which they are written again. What is not
    /// that is a part of the name, as for the kernel, which knows no indices.
    fn indexed<'w>(&self, text: &'w str) -> (&'w str, Vec<u32>) {
        let as_name = (text, Vec::new());
        let Some((name, rest)) = text.split_once('[').filter(|_| self.features.own_types) else {
            return as_name;
        };
        let index = |digits: &str| digits.parse().ok().filter(|index: &u32| index.to_string() == digits);
        let indices = rest.strip_suffix(']').map(|rest| rest.split("][").map(index).collect());
        match indices {
            Some(Some(indices)) => (name, indices),
            _ => as_name,
        }
    }
}

type Simple = Result<FetchKind, Diagnostic>;

/// What has probably become of an expression that is missing.
pub(super) const EATEN_BY_SHELL: &str =
    "put the definition in single quotes: in double quotes a shell replaces `$arg1` and its kin by nothing";

fn register(word: Word<'_>) -> Simple {
    let name = &word.text[1..];
    Register::named(name).map(FetchKind::Register).ok_or_else(|| {
        let problem = word.error(Code::BadRegName, format!("there is no register `{}`", word.text));
        // `rdi`, `eax`, `rflags`: the kernel knows only the names without the width.
        match name.strip_prefix(['r', 'e']).and_then(Register::named) {
            Some(known) => problem.with_hint(format!("write `%{}`", known.name())),
            None => problem,
        }
    })
}

fn memory(word: Word<'_>) -> Simple {
    let bad = |code, message: String| Err(word.error(code, message));
    let rest = &word.text[1..];
    if rest.starts_with(|c: char| c.is_ascii_digit()) {
        return match number::unsigned(rest) {
            Some(address) => Ok(FetchKind::Memory(MemoryAddress::Address(address))),
            None if number::unsigned_is_too_large(rest) => {
                bad(Code::MemAddrRange, format!("`{rest}` is too large for an address"))
            }
            None => bad(Code::BadMemAddr, format!("`{rest}` is not an address")),
        };
    }
    if rest.starts_with('+') {
        return Err(word.error(Code::FileOnKprobe, "a kernel probe has no file to read from"));
    }
    let (symbol, offset) = rest.split_at(rest.find(['+', '-']).unwrap_or(rest.len()));
    // Whether such a symbol can exist is checked when the probe is registered: see
    // `ProbeDefinition::registration_problem`.
    Ok(FetchKind::Memory(match number::signed(offset) {
        Some(offset) => MemoryAddress::Symbol { symbol: symbol.to_owned(), offset },
        None => MemoryAddress::Symbol { symbol: rest.to_owned(), offset: 0 },
    }))
}

fn immediate(word: Word<'_>) -> Simple {
    let value = word.tail(1);
    if let Some(string) = value.text.strip_prefix('"') {
        return match string.strip_suffix('"') {
            Some(string) => Ok(FetchKind::ImmediateString(string.to_owned())),
            None => Err(Diagnostic::error(
                Code::ImmstrNoClose,
                Span::point(word.end()),
                "the string is not closed with `\"`",
            )),
        };
    }
    let unsigned = |text| (number::unsigned(text).map(i128::from), number::unsigned_is_too_large(text));
    let signed = |text| (number::signed(text).map(i128::from), number::signed_is_too_large(text));
    let (number, too_large) = match value.text.as_bytes().first() {
        Some(b'0'..=b'9') => unsigned(value.text),
        Some(b'-') => signed(value.text),
        Some(b'+') => signed(&value.text[1..]),
        _ => (None, false),
    };
    number.map(FetchKind::Immediate).ok_or_else(|| {
        let code = if too_large { Code::ImmRange } else { Code::BadImm };
        value.error(code, format!("`{}` is not a number of 64 bits", value.text))
    })
}

pub(super) fn bad_argument_number(word: Word<'_>) -> Diagnostic {
    word.error(Code::BadArgNum, format!("`{}` is not an argument of a function", word.text))
}

/// The problem of a variable that does not exist.
pub(super) fn no_variable(code: Code, word: Word<'_>) -> Diagnostic {
    word.error(code, format!("there is no variable `{}`", word.text))
}

fn bad_fetch(word: Word<'_>) -> Diagnostic {
    if word.text.is_empty() {
        return word.error(Code::BadFetchArg, "an expression is missing").with_hint(EATEN_BY_SHELL);
    }
    let problem = word.error(Code::BadFetchArg, format!("`{}` is not an expression", word.text));
    if word.text.starts_with('"') { problem.with_hint(FORMAT) } else { problem }
}

/// For those who write what other tools print.
const FORMAT: &str =
    "leave the format out: each field is printed with its name, as in `do_sys_openat2 filename:ustring`";

fn unsupported(word: Word<'_>, what: &str) -> Diagnostic {
    let message = format!("{what}: this kernel knows it, but it cannot be checked here yet");
    let hint = "read the member with its offset: NAME=+OFFSET($argN):TYPE";
    word.error(Code::UnsupportedFeature, message).with_hint(hint).by_kprobed()
}
