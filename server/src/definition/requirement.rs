//! What a definition asks of its place.
//!
//! The kernel's parser looks up the symbol to know whether the place is a function entry. This module has no
//! symbols: it says what would be wrong if it is not one, and leaves the question to those who have.

use super::ast::{Argument, FetchKind, Place, ProbeDefinition, ProbeKind};
use super::code::Code;
use super::diagnostic::Diagnostic;
use super::features::Features;

impl ProbeDefinition {
    /// The problem that this definition has if its place is a symbol but not the entry of a function: a
    /// return probe, or a parameter in an entry probe. `None` if it can be anywhere.
    ///
    /// An offset does not tell: `f+4` is the entry of `f` behind an ENDBR, and `_stext+N` can be the entry of
    /// another function. The symbol of a module that is not loaded counts as no entry, except for return
    /// probes, which wait.
    pub fn entry_requirement(&self, features: &Features) -> Option<Diagnostic> {
        let Place::Symbol { span, .. } = &self.place else { return None };
        if self.kind == ProbeKind::Return {
            let message = "a return probe must be at the entry of a function";
            return Some(Diagnostic::error(Code::BadRetprobe, *span, message));
        }
        // Words that are `$argN` and nothing else are looked at before all others (kernels from 6.5 on).
        let bare = |argument: &&Argument| {
            let by_number = matches!(argument.fetch.kind, FetchKind::Argument(_) | FetchKind::AllArguments);
            features.fprobe && by_number && argument.name.is_none()
        };
        if let Some(argument) = self.args.iter().find(bare) {
            let message = "function arguments can only be read at the entry of a function";
            return Some(Diagnostic::error(Code::NofentryArgs, argument.span, message));
        }
        self.args.iter().find_map(|argument| {
            let mut fetch = &argument.fetch;
            while let FetchKind::Deref { inner, .. } = &fetch.kind {
                fetch = inner;
            }
            let code = match fetch.kind {
                FetchKind::Argument(_) if features.retprobe_args => Code::NofentryArgs,
                FetchKind::AllArguments => Code::NofentryArgs,
                FetchKind::Argument(_) => Code::BadVar,
                FetchKind::Btf { .. } => Code::NosupBtfarg,
                _ => return None,
            };
            let message = "function arguments can only be read at the entry of a function";
            Some(Diagnostic::error(code, fetch.span, message).with_hint(Code::NofentryArgs.hint()))
        })
    }
}
