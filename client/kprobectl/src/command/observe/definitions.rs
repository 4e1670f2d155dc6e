//! Definitions of a command's temporary probes: the lines that its arguments stand for.
//!
//! A call (`FUNCTION(ARGUMENTS) -> NAME`) is two lines. The return probe is the first of them, so that it records
//! before the entry probe: a call that is under way when the command begins lacks its entry, and none its return.

use kprobed_client::api::{Diagnostic, Diagnostics, RefusedBy};
use kprobed_client::{Error, RpcError};
use kprobed_lang::definition::{self, Call};
use tonic::Code;

use crate::command::Failure;

/// Lines of definitions, and which of them are the two ends of calls.
#[derive(Clone, Debug, Default)]
pub(in crate::command) struct Definitions {
    pub(super) lines: Vec<String>,
    pub(super) calls: Vec<CallLines>,
}

/// The lines of a call, by their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallLines {
    pub(super) function: String,
    pub(super) entry: usize,
    pub(super) exit: usize,
    /// How many calls of the same function are before it.
    pub(super) twins: usize,
}

impl Definitions {
    /// Reads the arguments of a command.
    ///
    /// # Errors
    /// The first problem of a call. Those of other definitions are the daemon's to find.
    pub(in crate::command) fn read(arguments: &[String]) -> Result<Self, Failure> {
        let mut all = Self::default();
        for text in arguments {
            match definition::call(text) {
                None => all.lines.push(text.clone()),
                Some(Err(problem)) => return Err(refused(text, &problem)),
                Some(Ok(Call { function, entry, exit })) => {
                    let twins = all.calls.iter().filter(|call| call.function == function).count();
                    let first = all.lines.len();
                    all.lines.extend([exit, entry]);
                    all.calls.push(CallLines { function, entry: first + 1, exit: first, twins });
                }
            }
        }
        Ok(all)
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether all of them are calls.
    pub(super) fn are_calls(&self) -> bool {
        !self.calls.is_empty() && self.lines.len() == 2 * self.calls.len()
    }
}

/// The failure that the daemon would answer.
fn refused(text: &str, problem: &definition::Diagnostic) -> Failure {
    let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    let finding = Diagnostic {
        code: problem.code.name().to_owned(),
        message: problem.message.clone(),
        hint: problem.hint.clone().unwrap_or_default(),
        span_start: place(problem.span.start),
        span_end: place(problem.span.end),
        by: RefusedBy::Kprobed.into(),
        ..Diagnostic::default()
    };
    let error = RpcError {
        code: Code::InvalidArgument,
        message: finding.message.clone(),
        reason: finding.code.clone(),
        metadata: Vec::new(),
        fields: Vec::new(),
        diagnostics: Some(Diagnostics { text: text.to_owned(), diagnostics: vec![finding] }),
        operation: String::new(),
    };
    Error::Rpc(Box::new(error)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_two_lines_and_the_return_probe_is_first() {
        let texts = ["vfs_read", "f(a) -> b", "f(c)", "ip_rcv(x64 skb)"].map(str::to_owned);
        let all = Definitions::read(&texts).unwrap();
        assert_eq!(
            all.lines,
            ["vfs_read", "r4096 f b=$retval", "p f a", "r4096 f", "p f c", "ip_rcv(x64 skb)"]
        );
        let call = |entry, twins| CallLines { function: "f".to_owned(), entry, exit: entry - 1, twins };
        assert_eq!(all.calls, [call(2, 0), call(4, 1)]);
        assert!(!all.are_calls() && Definitions::read(&texts[1..3]).unwrap().are_calls());
        assert!(Definitions::read(&["f(a) -> ".to_owned()]).is_err());
    }
}
