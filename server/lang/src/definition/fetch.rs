//! The expression of an argument: text to syntax tree.
//!
//! Follows kernel/trace/trace_probe.c:parse_probe_arg and parse_probe_vars (5.15, 6.12, 7.3): the same forms
//! in the same order, so that the first problem is the kernel's. Whether a form is usable with a type, and
//! whether it fits the fetch program, is decided in `program`.

use super::Span;
use super::ast::{BtfMember, BtfRoot, Fetch, FetchKind, MemoryAddress, Register};
use super::code::Code;
use super::diagnostic::Diagnostic;
use super::features::Features;
use super::legacy::{self, BareWords, OldWord, Parameters};
use super::line::Word;
use super::names::is_identifier;
use super::number;

/// Highest N of `$stackN` and `$argN`: words of a kernel stack of 16 KiB (`PARAM_MAX_STACK`).
const STACK_WORDS: u64 = 2048;

/// What the kernel's parser knows about the place (its `TPARG_FL_FENTRY` and `TPARG_FL_RETURN`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Site {
    /// An entry probe at a symbol. Whether it is a function entry is for later: see `entry_requirement`.
    Entry,
    /// A return probe at a symbol.
    Return,
    /// An address, of which the parser knows nothing.
    Address,
}

/// Reads expressions at one place, for one kernel.
pub(super) struct FetchParser<'f> {
    pub(super) features: &'f Features,
    pub(super) site: Site,
    /// What bare words mean.
    pub(super) bare: BareWords,
    /// Which parameters the function has, as far as that is known.
    pub(super) parameters: &'f dyn Parameters,
    /// The place is not the start of a symbol.
    pub(super) inside: bool,
    /// Module and function that the place names.
    pub(super) function: Option<(Option<&'f str>, &'f str)>,
}

type Parsed = Result<FetchKind, Diagnostic>;

impl FetchParser<'_> {
    /// One expression; `depth` dereferences are around it.
    ///
    /// Recursion is bounded: the caller limits the length of the text to that of an expression, at most 255
    /// bytes.
    pub(super) fn parse(&self, word: Word<'_>, depth: usize) -> Result<Fetch, Diagnostic> {
        if self.features.nesting_max.is_some_and(|max| depth >= max) {
            return Err(Diagnostic::error(Code::TooManyNested, word.span(), "too many nested dereferences"));
        }
        let kind = match word.text.chars().next() {
            Some('$') => self.variable(word),
            Some('%') => register(word),
            Some('@') => memory(word),
            Some('+' | '-') => self.dereference(word, depth),
            Some('\\') => immediate(word),
            Some(c) if c.is_ascii_alphabetic() || c == '_' => self.btf(word),
            Some('(') if self.features.typecasts => Err(unsupported(word, "typecasts")),
            _ => Err(bad_fetch(word)),
        }?;
        Ok(Fetch { kind, span: word.span() })
    }

    fn variable(&self, word: Word<'_>) -> Parsed {
        let name = &word.text[1..];
        if let Some(rest) = name.strip_prefix("retval") {
            // Kernels before function probes compare the whole word.
            if self.features.fprobe || self.features.own_types || rest.is_empty() {
                return self.retval(word, rest);
            }
        } else if let Some(rest) = name.strip_prefix("stack") {
            return stack(word, rest);
        } else if matches!(name, "comm" | "COMM") {
            return Ok(FetchKind::Comm);
        } else if let Some(rest) = name.strip_prefix("arg") {
            return self.argument(word, rest);
        } else if self.features.typecasts && name.starts_with("current") {
            return Err(unsupported(word, "`$current`"));
        }
        Err(Diagnostic::error(Code::BadVar, word.span(), format!("there is no variable `{}`", word.text)))
    }

    fn retval(&self, word: Word<'_>, rest: &str) -> Parsed {
        let is_other = !rest.is_empty() && !self.features.fprobe;
        if self.site != Site::Return && !is_other {
            let what = if self.site == Site::Address {
                "`$retval` needs a function name as the place, not an address"
            } else {
                "`$retval` is known only when the function returns"
            };
            return Err(Diagnostic::error(Code::RetvalOnProbe, word.span(), what));
        }
        if rest.is_empty() {
            return Ok(FetchKind::Retval);
        }
        if self.features.names_members() && rest.starts_with(['-', '.']) {
            let members = members(word.tail(word.text.len() - rest.len()))?;
            return Ok(FetchKind::Btf { root: BtfRoot::Retval, members });
        }
        let code = if self.features.btf_args { Code::NoBtfarg } else { Code::BadVar };
        Err(Diagnostic::error(code, word.span(), format!("there is no variable `{}`", word.text)))
    }

    fn argument(&self, word: Word<'_>, rest: &str) -> Parsed {
        let here = self.arguments_here();
        // Kernels with $argN in return probes look at the number first and at the place then.
        if !here && !self.features.retprobe_args {
            let message = match self.site {
                Site::Address => "function arguments need a function name as the place, not an address",
                _ => "this kernel cannot read function arguments when the function returns",
            };
            return Err(Diagnostic::error(Code::BadVar, word.span(), message));
        }
        let Some(index) = number::decimal(rest) else {
            let problem =
                Diagnostic::error(Code::BadVar, word.span(), format!("there is no variable `{}`", word.text));
            return Err(if rest == "*" { problem.with_hint(Code::BadVarArgs.hint()) } else { problem });
        };
        if index == 0 || index > STACK_WORDS {
            return Err(bad_argument_number(word));
        }
        if !here {
            return Err(Diagnostic::error(
                Code::NofentryArgs,
                word.span(),
                "function arguments need a function name as the place, not an address",
            ));
        }
        u32::try_from(index).ok().map(FetchKind::Argument).ok_or_else(|| bad_argument_number(word))
    }

    fn dereference(&self, word: Word<'_>, depth: usize) -> Parsed {
        let negative = word.text.starts_with('-');
        let user = word.text[1..].starts_with('u');
        let body = word.tail(if user { 2 } else { 1 });
        let Some(open) = body.text.find('(') else {
            return Err(Diagnostic::error(Code::DerefNeedBrace, word.span(), "a dereference needs `(`"));
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
            return Err(Diagnostic::error(code, offset_span, message));
        };
        let inside = body.tail(open + 1);
        let Some(close) = inside.text.rfind(')') else {
            return Err(Diagnostic::error(
                Code::DerefOpenBrace,
                Span::point(inside.end()),
                "the `(` of the dereference is not closed",
            ));
        };
        let inner = self.parse(inside.head(close), depth + 1)?;
        let rest = inside.tail(close + 1);
        if !rest.text.is_empty() {
            return Err(Diagnostic::error(
                Code::IgnoredText,
                rest.span(),
                format!("the kernel ignores `{}` after the `)`", rest.text),
            ));
        }
        let offset = i32::try_from(offset).ok().ok_or_else(|| {
            let message = format!("the kernel would silently cut the offset {offset} to 32 bits");
            Diagnostic::error(Code::OffsetTruncated, offset_span, message)
        })?;
        Ok(FetchKind::Deref { user, offset, inner: Box::new(inner) })
    }

    /// Whether the kernel knows the arguments of the function at this place.
    pub(super) fn arguments_here(&self) -> bool {
        match self.site {
            Site::Entry => true,
            Site::Return => self.features.retprobe_args,
            Site::Address => false,
        }
    }

    /// Whether the kernel puts the names of parameters in the place of words that are a plain `$argN`.
    pub(super) fn numbers_become_names(&self) -> bool {
        let found = || self.function.and_then(|(module, name)| self.parameters.found_by_kernel(module, name));
        self.features.btf_args && found().unwrap_or(true)
    }

    /// The word of 2009 that `word` is read as, if it is.
    pub(super) fn old_word(&self, word: Word<'_>) -> Option<OldWord> {
        let old = match self.bare {
            BareWords::Kernel => false,
            BareWords::OldWhereFree => OldWord::named(word.text).is_some() && !self.is_parameter(word),
            BareWords::Old => true,
        };
        OldWord::named(word.text).filter(|_| old)
    }

    /// Whether `word` can be the name of a parameter: only where the function is known not to have it, or where no kernel takes names,
    /// it cannot.
    fn is_parameter(&self, word: Word<'_>) -> bool {
        let known = self.function.and_then(|(module, name)| self.parameters.has(module, name, word.text));
        self.arguments_here() && known.unwrap_or(self.features.btf_args)
    }

    fn old(&self, old: OldWord, word: Word<'_>) -> Parsed {
        match old {
            OldWord::Stack => Ok(FetchKind::Stack),
            OldWord::StackNth => stack(word, &word.text[1..]),
            OldWord::Retval => self.retval(word, ""),
            OldWord::ReturnAddress => Err(legacy::misplaced_return_address(word, self.site == Site::Return)),
            OldWord::Argument(index) if self.inside && self.site != Site::Return => {
                legacy::argument_location(index)
                    .filter(|_| u64::from(index) < STACK_WORDS)
                    .ok_or_else(|| bad_argument_number(word))
            }
            OldWord::Argument(index) => self.argument(word, &u64::from(index).saturating_add(1).to_string()),
        }
    }

    fn btf(&self, word: Word<'_>) -> Parsed {
        if let Some(old) = self.old_word(word) {
            return self.old(old, word);
        }
        if !self.features.fprobe && !self.features.own_types {
            return Err(bad_fetch(word));
        }
        let per_cpu = word.text.starts_with("this_cpu_ptr(") || word.text.starts_with("this_cpu_read(");
        if per_cpu && self.features.typecasts {
            return Err(unsupported(word, "per-CPU access"));
        }
        if !self.features.names_parameters() || !self.arguments_here() {
            let message = if self.features.names_parameters() {
                "parameter names need a function name as the place"
            } else {
                "this kernel does not know parameter names"
            };
            return Err(with_dialect_hint(word, Diagnostic::error(Code::NosupBtfarg, word.span(), message)));
        }
        let length = match word.text.find(['.', '-']) {
            Some(at) if self.features.names_members() => at,
            _ => word.text.len(),
        };
        let root = word.head(length);
        let path = word.tail(length);
        if path.text.starts_with('.') {
            return Err(Diagnostic::error(
                Code::NosupDatArg,
                path.tail(1).span(),
                "a parameter that is a structure itself cannot be read",
            ));
        }
        let members = if path.text.is_empty() { Vec::new() } else { members(path)? };
        if !is_identifier(root.text) {
            return Err(Diagnostic::error(
                Code::NoBtfarg,
                word.span(),
                format!("`{}` is not the name of a parameter", root.text),
            ));
        }
        Ok(FetchKind::Btf { root: BtfRoot::Parameter(root.text.to_owned()), members })
    }
}

fn stack(word: Word<'_>, rest: &str) -> Parsed {
    if rest.is_empty() {
        return Ok(FetchKind::Stack);
    }
    let index = if rest.starts_with(|c: char| c.is_ascii_digit()) { number::decimal(rest) } else { None };
    match index {
        None => {
            Err(Diagnostic::error(Code::BadVar, word.span(), format!("there is no variable `{}`", word.text)))
        }
        Some(index) => match u32::try_from(index) {
            Ok(index) if u64::from(index) <= STACK_WORDS => Ok(FetchKind::StackNth(index)),
            _ => Err(Diagnostic::error(
                Code::BadStackNum,
                word.span(),
                format!("entry {index} is beyond the end of a kernel stack"),
            )),
        },
    }
}

fn register(word: Word<'_>) -> Parsed {
    let name = &word.text[1..];
    Register::named(name).map(FetchKind::Register).ok_or_else(|| {
        let problem =
            Diagnostic::error(Code::BadRegName, word.span(), format!("there is no register `{}`", word.text));
        // `rdi`, `eax`, `rflags`: the kernel knows only the names without the width.
        match name.strip_prefix(['r', 'e']).and_then(Register::named) {
            Some(known) => problem.with_hint(format!("write `%{}`", known.name())),
            None => problem,
        }
    })
}

fn memory(word: Word<'_>) -> Parsed {
    let bad = |code, message: String| Err(Diagnostic::error(code, word.span(), message));
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
        return Err(Diagnostic::error(
            Code::FileOnKprobe,
            word.span(),
            "a kernel probe has no file to read from",
        ));
    }
    let (symbol, offset) = rest.split_at(rest.find(['+', '-']).unwrap_or(rest.len()));
    // Whether there can be such a symbol is asked when the probe is registered: see `ProbeDefinition::registration_problem`.
    Ok(FetchKind::Memory(match number::signed(offset) {
        Some(offset) => MemoryAddress::Symbol { symbol: symbol.to_owned(), offset },
        None => MemoryAddress::Symbol { symbol: rest.to_owned(), offset: 0 },
    }))
}

fn immediate(word: Word<'_>) -> Parsed {
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
        Diagnostic::error(code, value.span(), format!("`{}` is not a number of 64 bits", value.text))
    })
}

/// `->member.member->member`, from the first separator on.
fn members(path: Word<'_>) -> Result<Vec<BtfMember>, Diagnostic> {
    let mut members = Vec::new();
    let mut rest = path;
    while !rest.text.is_empty() {
        let arrow = rest.text.starts_with("->");
        if !arrow && rest.text.starts_with('-') {
            let dash = Span::new(rest.start, rest.start + 1);
            return Err(Diagnostic::error(Code::BadHyphen, dash, "a single `-` in a member path"));
        }
        let tail = rest.tail(if arrow { 2 } else { 1 });
        let name = tail.head(tail.text.find(['.', '-']).unwrap_or(tail.text.len()));
        if !is_identifier(name.text) {
            return Err(Diagnostic::error(
                Code::NoBtfField,
                name.span(),
                format!("`{}` is not the name of a member", name.text),
            ));
        }
        members.push(BtfMember { arrow, name: name.text.to_owned() });
        rest = tail.tail(name.text.len());
    }
    // `$retval.member`: as for a parameter, only pointers can be followed.
    match members.first() {
        Some(first) if !first.arrow => Err(Diagnostic::error(
            Code::NosupDatArg,
            path.tail(1).span(),
            "a value that is a structure itself cannot be read",
        )),
        _ => Ok(members),
    }
}

pub(super) fn bad_argument_number(word: Word<'_>) -> Diagnostic {
    Diagnostic::error(
        Code::BadArgNum,
        word.span(),
        format!("`{}` is not an argument of a function", word.text),
    )
}

fn bad_fetch(word: Word<'_>) -> Diagnostic {
    let message = if word.text.is_empty() {
        "an expression is missing".to_owned()
    } else {
        format!("`{}` is not an expression", word.text)
    };
    with_dialect_hint(word, Diagnostic::error(Code::BadFetchArg, word.span(), message))
}

fn with_dialect_hint(word: Word<'_>, problem: Diagnostic) -> Diagnostic {
    match legacy::modern_spelling(word.text) {
        Some(hint) => problem.with_hint(hint),
        None => problem,
    }
}

fn unsupported(word: Word<'_>, what: &str) -> Diagnostic {
    Diagnostic::error(
        Code::UnsupportedFeature,
        word.span(),
        format!("{what}: this kernel knows it, but it cannot be checked here yet"),
    )
    .with_hint("read the member with its offset: NAME=+OFFSET($argN):TYPE")
    .by_kprobed()
}
