//! Requirements of a definition on its place.
//!
//! Owns the question. The kernel's parser looks up the symbol to know whether the place is a
//! function entry. This module has no symbols: it returns the problem if the place is not one, and
//! never decides whether it is.

use super::ast::{Argument, Fetch, FetchKind, MemoryAddress, Place, ProbeDefinition, ProbeKind};
use super::code::{Code, EINVAL, ENOENT};
use super::diagnostic::{Diagnostic, PartStep, Step, VariableWordStep};
use super::features::Features;

impl ProbeDefinition {
    /// The problem that this definition has if its place is a symbol but not the entry of a
    /// function: a return probe, or a parameter in an entry probe. `None` if it can be anywhere.
    ///
    /// The offset alone does not decide: `f+4` is the entry of `f` after an ENDBR, and `_stext+N`
    /// can be the entry of another function. The symbol of a module that is not loaded does not
    /// count as an entry, except for return probes, which wait.
    pub fn entry_requirement(&self, features: &Features) -> Option<Diagnostic> {
        let Place::Symbol { span, .. } = &self.place else { return None };
        if self.kind == ProbeKind::Return {
            let message = "a return probe must be at the entry of a function";
            return Some(Diagnostic::error(Code::BadRetprobe, *span, message).at(Step::Entry));
        }
        let message = "function arguments can only be read at the entry of a function";
        // Words that are a plain `$argN` are checked before all others (kernels from 6.5 on).
        let bare = |argument: &Argument| {
            let by_number = matches!(argument.fetch.kind, FetchKind::Argument(_) | FetchKind::AllArguments);
            features.fprobe && by_number && argument.name.is_none()
        };
        if let Some((index, argument)) = self.args.iter().enumerate().find(|(_, argument)| bare(argument)) {
            let step = Step::VariableWord(index, VariableWordStep::Entry);
            return Some(Diagnostic::error(Code::NofentryArgs, argument.span, message).at(step));
        }
        self.args.iter().enumerate().find_map(|(index, argument)| {
            let fetch = argument.fetch.root();
            let (code, part) = match fetch.kind {
                // Kernels with `$argN` in return probes check the number first.
                FetchKind::Argument(_) if features.retprobe_args => (Code::NofentryArgs, PartStep::LookUp),
                FetchKind::AllArguments => (Code::NofentryArgs, PartStep::Possible),
                FetchKind::Argument(_) => (Code::BadVar, PartStep::Possible),
                FetchKind::Btf { .. } => (Code::NosupBtfarg, PartStep::Possible),
                _ => return None,
            };
            let problem = Diagnostic::error(code, fetch.span, message).with_hint(Code::NofentryArgs.hint());
            Some(problem.at(Step::part(index, fetch.span.start, part)))
        })
    }

    /// A problem that every kernel finds when it registers the probe, and that the text shows: a
    /// function without a name, or a symbol to read from that cannot be one. The kernel still
    /// accepts the definition if it does not get as far as registering it.
    pub fn registration_problem(&self) -> Option<Diagnostic> {
        if matches!(&self.place, Place::Symbol { symbol, .. } if symbol.is_empty()) {
            let message = "the function is missing after the name of the module";
            let problem = Diagnostic::error(Code::BadProbeAddr, self.place.span(), message);
            return Some(problem.with_hint("write MODULE:FUNCTION"));
        }
        self.args.iter().find_map(|argument| argument.fetch.symbol_problem())
    }
}

impl Fetch {
    /// Why the text after the `@` of an expression cannot be `SYMBOL+OFFSET`, in the order of
    /// kernel/trace/trace_probe.c:traceprobe_update_arg.
    pub fn symbol_problem(&self) -> Option<Diagnostic> {
        let Self { kind: FetchKind::Memory(MemoryAddress::Symbol { symbol, .. }), span } = self.root() else {
            return None;
        };
        let problem =
            |errno, message| Diagnostic::error(Code::BadMemSymbol, *span, message).with_errno(errno);
        if let Some((name, _)) = symbol.split_once(['+', '-']) {
            return Some(problem(EINVAL, format!("what follows `{name}` is not an offset")));
        }
        symbol.is_empty().then(|| problem(ENOENT, "the symbol after `@` is missing".to_owned()))
    }
}
