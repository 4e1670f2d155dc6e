//! Probe definitions: the languages in which they are written, from text to syntax tree and back.
//!
//! Owns lexer, parser, syntax tree, canonical text and diagnostics for lines of `kprobe_events`
//! (`p`, `r` and `-`), and the other dialects that become such lines: the words of 2009 and the
//! function prototypes of 2018. Plain functions over text: never reads files, symbols or addresses
//! of the running kernel. Whether a place exists and can be probed is decided elsewhere, with what
//! [`ProbeDefinition::entry_requirement`] says about the definition.
//!
//! A text takes this route, once:
//!
//! 1. `line` cuts it into words with their positions.
//!    A call (`call`) is two such texts, an entry probe and a return probe: whoever asks for it defines both.
//! 2. `dialect` says which language it is. What people type becomes a line (`short`), or several.
//!    `GROUP/EVENT` is an event of the host (`event`). Words of
//!    2009 (`legacy`) and prototypes (`prototype`) become a line of the kernel's language;
//!    `rewrite` knows where each part of it comes from.
//! 3. The kernel's grammar reads the line: `parse` the head and the place, `argument` and `fetch`
//!    the arguments, `types` and `program` what fits. It knows no other dialect. It always gives
//!    what could be read, and everything that is wrong, each with the [`Step`] of the kernel.
//!
//! Names of parameters and members stay names here. The code that knows the types of the kernel
//! resolves them, and checks with [`exceeded_limits`] whether the kernel still accepts the
//! resulting line.
//!
//! The parser of the kernel's lines accepts what the parser of the running kernel accepts, as
//! described by [`Features`], and refuses the rest with the kernel's code at the kernel's position.
//! It differs on purpose in these cases:
//!
//! | text | kernel | here |
//! |---|---|---|
//! | `pjunk:x f`, `+0(%di)junk`, `$arg*junk` | ignores the junk | `IGNORED_TEXT` |
//! | `p:g/enable f` | accepts; it collides with a control file | `RESERVED_EVENT_NAME` |
//! | a group `enable` | the same | `RESERVED_GROUP_NAME` |
//! | `+0x100000000(%di)` | cuts the offset to 32 bits | `OFFSET_TRUNCATED` |
//! | 129th argument | 6.1 drops it; 6.12 refuses without a log | `TOO_MANY_ARGS` there |
//! | more than 3072 fixed bytes | older kernels accept, and lose records uncounted | `EVENT_TOO_BIG` |
//! | `p :f` (an empty module) | waits forever for that module | `NO_MODULE_NAME` |
//! | `$arg0` without a name, with BTF | reads before its table of parameters | `BAD_ARG_NUM` |
//! | `\"` | before the fix, an empty string | `IMMSTR_NO_CLOSE` |
//! | `$comm:u8` | refused; before 6.5 without a log | `NEED_STRING_TYPE` |
//! | `:string[N]` on a kernel without the fix | writes elsewhere | `DANGEROUS_ARRAY`: see [`dangerous`] |
//! | the vsyscall page | stops | `DANGEROUS_MEMORY`: see [`dangerous`] |
//! | an argument called `__kpd_...` | accepts | `RESERVED_ARG_NAME`: see [`guard`] |
//! | a NUL, or a character with the byte 0xa0 | cuts the line or the word | `BAD_CHARACTER` |
//!
//! The kernel's own caret is off in two cases, and the spans here are not: inside `±uOFFS(...)` and
//! `+-OFFS(...)` it is one byte early for each; and on kernels from 6.5 on, type errors that are
//! found after the expression (`BAD_BITFIELD`, `BAD_STRING`, `BAD_SYMSTRING`) are late by the
//! length of the outermost `±OFFS(`.

mod argument;
mod ast;
mod call;
mod code;
pub mod computed;
mod cutter;
pub mod dangerous;
mod diagnostic;
mod dialect;
mod event;
pub mod explain;
mod features;
mod fetch;
pub mod guard;
mod legacy;
mod limits;
mod line;
mod names;
mod parse;
pub mod path;
mod program;
pub mod prototype;
mod render;
mod requirement;
mod rewrite;
pub mod short;
#[cfg(test)]
pub(crate) mod tests;
mod types;

pub use ast::{
    Argument, BaseType, BtfMember, BtfRoot, Definition, DeleteDefinition, Fetch, FetchKind, MemoryAddress,
    Name, Place, ProbeDefinition, ProbeKind, Register, Type, Width,
};
pub use call::{Call, call};
pub use code::Code;
pub use cutter::{CutDefinition, Cutter};
pub use diagnostic::{
    ArgumentStep, Diagnostic, PartStep, RefusedBy, Severity, Step, VariableWordStep, listed, merged,
};
pub use dialect::{Dialect, Reading, parse, parse_any, parse_any_knowing, parse_as};
pub use features::Features;
pub use kprobed_filter::Span;
pub(crate) use kprobed_filter::number;
pub use limits::exceeded_limits;
pub use names::{ARGUMENT_NAME_MAX_BYTES, is_identifier, name_members};
