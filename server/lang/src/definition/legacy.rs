//! Legacy words: the first version of the language (2009), in which variables had no `$`.
//!
//! Owns these words, what each is today, and the way back. Never parses anything else: head, place, `NAME=`,
//! `%REG`, `@SYM` and `±OFFS(...)` were the same then and are parsed by today's parser, so that the
//! syntax tree and its spans are the same for both.
//!
//! | word | meaning | today |
//! |---|---|---|
//! | `sN`, `sa` | Nth entry of the stack, stack address | `$stackN`, `$stack` |
//! | `aN` at a function | argument N, from 0 | `$arg(N+1)` |
//! | `aN` elsewhere | the value in the place of argument N | the register or the stack entry |
//! | `rv` | return value | `$retval` |
//! | `ra` | return address | no argument: see below |
//!
//! In a return probe, `aN` is the value at entry. A warning says so, and one says if `aN` is not
//! read at a function's entry.
//!
//! A word without `NAME=` is its own name, as the listings of 2009 show it: `rv` becomes
//! `rv=$retval`.
//!
//! Every event of a return probe carries the return address (`__probe_ret_ip`) today, so a plain
//! `ra` adds nothing to the definition; a warning at the word says which field has it. `NAME=ra`
//! and `+8(ra)` would need an argument and are refused.
//!
//! Kernels with BTF read a bare word as the name of a parameter, and functions with a parameter
//! `sa` or `ra` exist. [`BareWords`] is the rule for that, and [`KernelNames`] knows which functions
//! those are.
//!
//! [`rewritten`] turns a line with such words into a line of today, which the kernel's grammar
//! parses.

use super::Span;
use super::ast::{Argument, Fetch, FetchKind, Place, ProbeDefinition, ProbeKind};
use super::code::Code;
use super::diagnostic::{Diagnostic, PartStep, Step};
use super::features::Features;
use super::fetch::{FetchParser, STACK_WORDS, Site, bad_argument_number};
use super::line::Word;
use super::parse::place_of;
use super::rewrite::Rewritten;
use super::short::KernelNames;

/// The meaning of a bare word such as `a0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BareWords {
    /// A word of 2009 if the running kernel does not accept it, else what the kernel reads it as.
    OldWhereFree,
    /// A word of 2009, whatever the running kernel reads it as.
    Old,
}

/// A word of 2009.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OldWord {
    /// `aN`.
    Argument(u32),
    /// `sN`.
    StackNth,
    /// `sa`.
    Stack,
    /// `rv`.
    Retval,
    /// `ra`.
    ReturnAddress,
}

impl OldWord {
    /// The word of 2009 with this spelling.
    pub(super) fn named(text: &str) -> Option<Self> {
        let index = |prefix: char| -> Option<u32> {
            let digits = text.strip_prefix(prefix)?;
            if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok() } else { None }
        };
        match text {
            "rv" => Some(Self::Retval),
            "ra" => Some(Self::ReturnAddress),
            "sa" => Some(Self::Stack),
            _ => index('a').map(Self::Argument).or_else(|| index('s').map(|_| Self::StackNth)),
        }
    }
}

/// Today's spelling of a word of the old language, if it is one.
pub(super) fn modern_spelling(word: &str) -> Option<String> {
    Some(match OldWord::named(word)? {
        OldWord::Retval => "the return value is written `$retval` today".to_owned(),
        OldWord::Stack => "the stack address is written `$stack` today".to_owned(),
        OldWord::ReturnAddress => {
            "leave it out: every event of a return probe carries the return address".to_owned()
        }
        OldWord::Argument(index) => {
            format!("function arguments count from one today: `$arg{}`", index.checked_add(1)?)
        }
        OldWord::StackNth => format!("stack entries are written `$stack{}` today", &word[1..]),
    })
}

/// The problem of an `ra` that is not a whole argument of a return probe.
fn misplaced_return_address(span: Span, in_return_probe: bool) -> Diagnostic {
    if in_return_probe {
        let message = "the return address is a field of the event: it takes no name and cannot be followed";
        return Diagnostic::error(Code::NoEquivalent, span, message)
            .with_hint("write `ra` alone, or leave it out: the field is `__probe_ret_ip`");
    }
    Diagnostic::error(Code::NoEquivalent, span, "`ra` is known only when the function returns")
        .with_hint("at the entry of a function the return address is `$stack0`")
}

/// Adds hints to errors of the kernel's language at words of 2009, and to such words that are names
/// of parameters.
pub(super) fn explain_old_words(text: &str, findings: &mut [Diagnostic]) {
    // Where the kernel has no arguments at all, another spelling of them does not help.
    let is_old = |finding: &&mut Diagnostic| {
        let is_general = finding.hint.as_deref() == Some(finding.code.hint());
        finding.code == Code::BadFetchArg || finding.code == Code::NosupBtfarg && is_general
    };
    for finding in findings.iter_mut().filter(is_old) {
        if let Some(hint) = text.get(finding.span.range()).and_then(modern_spelling) {
            finding.hint = Some(hint);
        }
    }
}

/// A parameter may really have the name `a0` or `rv`; more likely the definition is older than BTF.
pub(super) fn read_as_parameter(argument: &Argument) -> Option<Diagnostic> {
    let fetch = argument.fetch.root();
    let name = fetch.parameter()?;
    let hint = modern_spelling(name)?;
    let message = format!("`{name}` is read as the name of a parameter of the function");
    Some(Diagnostic::warning(Code::OldDialect, fetch.span, message).with_hint(hint))
}

/// A line with words of 2009 as a line of today.
pub(super) struct OldLine {
    /// The line.
    pub(super) rewritten: Rewritten,
    /// What differs from 2009.
    pub(super) warnings: Vec<Diagnostic>,
    /// Words without an equivalent of today.
    pub(super) findings: Vec<Diagnostic>,
}

/// The line of today, if this one contains words of 2009.
pub(super) fn rewritten(
    words: &[Word<'_>],
    features: &Features,
    bare: BareWords,
    names: &dyn KernelNames,
) -> Option<OldLine> {
    let [head, place_word, arguments @ ..] = words else { return None };
    let (kind, place) = place_of(*head, *place_word, features)?;
    let rewriter = Rewriter {
        fetch: FetchParser::new(place.as_ref(), kind, features, names),
        starts_function: matches!(&place, Some(Place::Symbol { offset: 0, .. })),
        bare,
    };
    let mut line = OldLine { rewritten: Rewritten::default(), warnings: Vec::new(), findings: Vec::new() };
    for word in [head, place_word] {
        line.rewritten.begin_word(word.span());
        line.rewritten.copy(*word);
    }
    let mut is_old = false;
    let mut index = 0;
    for word in arguments {
        let (value, is_whole) = innermost(*word);
        let Some(old) = rewriter.old_word(value) else {
            line.rewritten.begin_word(word.span());
            line.rewritten.copy(*word);
            index += 1;
            continue;
        };
        is_old = true;
        if old == OldWord::ReturnAddress && rewriter.is_return() && value.text == word.text {
            let message =
                "the return address is the field `__probe_ret_ip` of every event: no argument is added";
            line.warnings.push(Diagnostic::warning(Code::OldDialect, word.span(), message));
            continue;
        }
        rewriter.rewrite(old, *word, value, is_whole, index, &mut line);
        index += 1;
    }
    is_old.then_some(line)
}

/// Rewrites the words of one line.
struct Rewriter<'f> {
    fetch: FetchParser<'f>,
    /// Whether the place is the start of the function that it names.
    starts_function: bool,
    bare: BareWords,
}

impl Rewriter<'_> {
    /// Whether this is a return probe of a function. One at an address is not known to be.
    fn is_return(&self) -> bool {
        self.fetch.site == Site::Return
    }

    /// The word of 2009 in `word`, if it is one.
    fn old_word(&self, word: Word<'_>) -> Option<OldWord> {
        let old = OldWord::named(word.text)?;
        (self.bare == BareWords::Old || !self.is_parameter(word)).then_some(old)
    }

    /// Whether `word` can be the name of a parameter. It cannot if the function is known not to
    /// have it, or if no kernel resolves names at this place.
    fn is_parameter(&self, word: Word<'_>) -> bool {
        let FetchParser { features, names, function, .. } = self.fetch;
        let known = function.and_then(|(module, function)| names.has_parameter(module, function, word.text));
        self.fetch.arguments_here() && known.unwrap_or(features.btf_args)
    }

    /// Adds the word with `value`, which is `old`, in today's spelling.
    fn rewrite(
        &self,
        old: OldWord,
        word: Word<'_>,
        value: Word<'_>,
        is_whole: bool,
        index: usize,
        line: &mut OldLine,
    ) {
        let is_return = self.is_return();
        let mut warn =
            |message| line.warnings.push(Diagnostic::warning(Code::OldDialect, value.span(), message));
        let today = match old {
            OldWord::Stack => "$stack".to_owned(),
            OldWord::StackNth => format!("$stack{}", &value.text[1..]),
            OldWord::Retval => "$retval".to_owned(),
            OldWord::ReturnAddress => {
                let step = Step::part(index, value.start, PartStep::Following);
                line.findings.push(misplaced_return_address(value.span(), is_return).at(step));
                // A placeholder that parses without a problem.
                "$stack".to_owned()
            }
            OldWord::Argument(number) if self.starts_function || is_return => {
                if is_return {
                    let message = format!(
                        "`a{number}` is the value that the argument had when the function was entered"
                    );
                    warn(message);
                }
                format!("$arg{}", u64::from(number) + 1)
            }
            OldWord::Argument(number) => {
                let located = number.checked_add(1).and_then(FetchKind::of_argument);
                let located = located.map(|kind| Fetch { kind, span: value.span() });
                match located {
                    Some(located) if number < STACK_WORDS => {
                        warn(format!(
                            "`a{number}` is read as `{located}`, which holds the argument only where the function starts"
                        ));
                        located.to_string()
                    }
                    _ => {
                        let step = Step::part(index, value.start, PartStep::Following);
                        line.findings.push(bad_argument_number(value).at(step));
                        "$stack".to_owned()
                    }
                }
            }
        };
        let out = &mut line.rewritten;
        out.begin_word(word.span());
        if is_whole {
            // A word is its own name.
            out.copy(value);
            out.put("=", Span::point(value.start));
        }
        out.copy(word.head(value.start - word.start));
        out.replace(value, &today);
        out.copy(word.tail(value.end() - word.start));
    }
}

/// The innermost part of an argument's dereferences, and whether it is the whole expression of an
/// argument without a name.
fn innermost(word: Word<'_>) -> (Word<'_>, bool) {
    let (is_named, body) = word.split_once('=').map_or((false, word), |(_, body)| (true, body));
    let expression = body.split_once(':').map_or(body, |(expression, _)| expression);
    let mut value = expression;
    while value.text.starts_with(['+', '-'])
        && let Some((_, inside)) = value.split_once('(')
        && let Some(close) = inside.text.rfind(')')
    {
        value = inside.head(close);
    }
    (value, !is_named && value.text.len() == expression.text.len())
}

/// The definition as a line of 2009, if the first version of the language can express it. It must have a name for every
/// argument. Parsing the line in that dialect gives the definition. Types, groups, user memory, constants and names
/// from BTF came later. The return address is a field of every return event today, so there is never an `ra`.
pub(super) fn old_form(definition: &ProbeDefinition) -> Option<String> {
    if definition.group.is_some() || definition.maxactive.is_some() {
        return None;
    }
    let letter = match definition.kind {
        ProbeKind::Entry => 'p',
        ProbeKind::Return => 'r',
        ProbeKind::Event => return None,
    };
    let event = definition.event.as_ref().map(|event| format!(":{}", event.text)).unwrap_or_default();
    let at_function = match &definition.place {
        Place::Symbol { module: None, offset, .. } => *offset == 0,
        Place::Symbol { module: Some(_), .. } => return None,
        Place::Address { .. } | Place::Event { .. } => false,
    };
    let mut words = vec![format!("{letter}{event}"), definition.place.to_string()];
    for argument in &definition.args {
        words.push(argument_form(argument, at_function)?);
    }
    Some(words.join(" "))
}

fn argument_form(argument: &Argument, at_function: bool) -> Option<String> {
    if argument.ty.is_some() {
        return None;
    }
    let fetch = fetch_form(&argument.fetch, at_function)?;
    let name = argument.name.as_ref()?;
    // A word is its own name.
    if name.text == fetch { Some(fetch) } else { Some(format!("{}={fetch}", name.text)) }
}

fn fetch_form(fetch: &Fetch, at_function: bool) -> Option<String> {
    Some(match &fetch.kind {
        FetchKind::Argument(index) if at_function => format!("a{}", index.checked_sub(1)?),
        FetchKind::StackNth(index) => format!("s{index}"),
        FetchKind::Stack => "sa".to_owned(),
        FetchKind::Retval => "rv".to_owned(),
        FetchKind::Register(_) | FetchKind::Memory(_) => fetch.to_string(),
        FetchKind::Deref { user: false, offset, inner } => {
            let sign = if *offset < 0 { '-' } else { '+' };
            format!("{sign}{}({})", offset.unsigned_abs(), fetch_form(inner, at_function)?)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::ast::Definition;
    use super::super::dialect::{Dialect, parse_as};
    use super::*;
    use crate::definition::tests::strategies::definitions;
    use crate::samples::{v6_1, v6_12, v7_3};

    fn read(text: &str, features: &Features) -> ProbeDefinition {
        match parse_as(Dialect::Legacy, text, features).result {
            Ok(Definition::Probe(read)) => read.with_explicit_names(),
            other => panic!("{text}: {other:?}"),
        }
    }

    /// Every form of the documents of 2009, and its rendering.
    #[test]
    fn documented_forms() {
        let same = [
            "p:myprobe do_sys_open dfd=a0 filename=a1 flags=a2 mode=a3",
            "p:myprobe do_sys_open a0 a1 a2 a3",
            "p do_sys_open",
            "p:x do_sys_open+4 r=%ax",
            "p:x 0xffffffff81000000 r=%ax",
            "p:x f n=s0 m=s12 a=sa",
            "p:x f s0 sa",
            "p:x f m=@0xffffffff81000000 n=@jiffies o=@jiffies+8 p=@jiffies-8",
            "p:x f m=+8(a0) n=-16(sa) o=+4(+8(%di)) q=+0(s3)",
            "r:myretprobe do_sys_open rv",
            "r do_sys_open value=rv next=+8(rv)",
        ];
        for features in [v6_1(), v6_12()] {
            for text in same {
                assert_eq!(old_form(&read(text, &features)).as_deref(), Some(text));
            }
        }
        for (text, written) in [
            ("r:myretprobe do_sys_open rv ra", "r:myretprobe do_sys_open rv"),
            ("r f+0 rv", "r f rv"),
            ("p f %ax @16", "p f arg1=%ax arg2=@16"),
            // Outside of a function's entry, `a0` is the register at that place.
            ("p f+4 a0 a6", "p f+4 a0=%di a6=s1"),
        ] {
            assert_eq!(old_form(&read(text, &v6_1())).as_deref(), Some(written), "{text}");
        }
    }

    #[test]
    fn what_came_later_has_no_such_form() {
        for text in [
            "p:g/x f",
            "r10 f",
            "p mod:f",
            "p f a0:u8",
            "p f x=+u0(a0)",
            "p f \\1",
            "p f $comm",
            "p f x=+0(a0):string",
        ] {
            assert_eq!(old_form(&read(text, &v6_12())), None, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

        #[test]
        fn the_form_of_2009_says_the_same(definition in definitions()) {
            let definition = ProbeDefinition { group: None, maxactive: None, ..definition };
            let name = definition.event.as_ref().map_or_else(String::new, |event| format!(":{}", event.text));
            let line = definition.render("g", "e").replacen(":g/e", &name, 1);
            let Ok(Definition::Probe(read_now)) = parse_as(Dialect::Kernel, &line, &v7_3()).result else {
                return Ok(());
            };
            let named = read_now.with_explicit_names();
            let simple = ProbeDefinition {
                args: named.args.iter().filter(|one| argument_form(one, false).is_some()).cloned().collect(),
                ..named.without_spans()
            };
            for meant in [named, simple] {
                if let Some(text) = old_form(&meant)
                    && let Ok(Definition::Probe(again)) = parse_as(Dialect::Legacy, &text, &v7_3()).result
                {
                    prop_assert_eq!(again.with_explicit_names().without_spans(), meant.without_spans(), "{}", text);
                }
            }
        }
    }
}
