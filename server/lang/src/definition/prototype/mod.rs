//! Function prototypes, the language of the function-based events of 2018.
//!
//! Owns lexer, parser and syntax tree of prototypes, and the line of today for each. Never judges
//! that line: the kernel's grammar does. A prototype names a function and what to record of each of
//! its parameters: `ip_rcv(x64 skb | int skb[32], NULL, string s)`.
//!
//! What the construct reads, with `s` for the size of the type and `p` for the parameter (argument
//! `$argN`, counted by commas):
//!
//! | construct | is |
//! |---|---|
//! | `T a` | the value `p` |
//! | `T a[N]`, `T a+M[N]` | memory at `p + M + N*s` |
//! | `T a[N][K]` | every bracket but the last loads a pointer |
//! | `T[n] a`, `string a` | memory at `p`: these are never values |
//! | `T a=0xADDR`, `T a=$SYMBOL` | memory there; takes no parameter |
//! | `A \| B` | both of the same parameter |
//! | `NULL` | nothing of this parameter |
//!
//! The sources of 2018 disagree about three forms; each is read as people usually mean it, with a
//! warning that names a spelling on which all agree (`AMBIGUOUS_PROTOTYPE`). A form that a probe
//! cannot record is refused (`NO_EQUIVALENT`): a parameter plus a constant. Parts that are left
//! open are completed (`COMPLETED`): names for fixed addresses and for fields that share one,
//! arrays of more than 64 elements in several arguments, and `char[n]` read up to its NUL whatever
//! `n`.
//!
//! The function becomes the place, the event's name, and its group is `functions`, as it was then.

mod ast;
mod parse;
#[cfg(test)]
mod tests;
mod translate;
mod walk;

pub use ast::{Atom, Field, FieldType, Prototype, Source, Step, StepKind};
pub use parse::parse;

use super::ast::Definition;
use super::features::Features;
use super::parse as kernel;
use super::parse::Parsed;
use super::short::UnknownKernel;

/// The probe of the only prototype in `text`, on the kernel that `features` describes, with the part that can be parsed
/// of its line.
pub(super) fn read(text: &str, features: &Features) -> Parsed {
    let translated = parse(text).and_then(|read| Ok((translate::translate(&read, features)?, read.span)));
    let ((line, warnings), span) = match translated {
        Ok(translated) => translated,
        Err(findings) => return Parsed { tree: None, findings },
    };
    let mut parsed = line.moved_to_text(kernel::read(line.line(), features, &UnknownKernel));
    if let Some(Definition::Probe(probe)) = &mut parsed.tree {
        probe.span = span;
        probe.warnings = warnings;
    }
    parsed
}
