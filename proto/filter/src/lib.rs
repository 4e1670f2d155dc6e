//! Event filters of subscriptions, in the language of the kernel's event filters.
//!
//! Owns the grammar (kernel/trace/trace_events_filter.c), the types of fields, and which events a
//! filter selects. Plain functions over text and decoded events: no I/O. A filter that works here is
//! also a kernel filter of a probe and selects the same events, as far as it names fields that the
//! kernel knows; [`BoundFilter::kernel_text`] makes such a text of what the kernel can do.
//!
//! ```text
//! FIELD OPERATOR VALUE    with && || ! ( )
//! numbers: == != < <= > >= &
//! texts in quotes: == != ~ (a pattern with * ? [set] \, with ! before it for the opposite)
//! FIELD.function == NAME or 0xADDRESS      FIELD & CPUS{LIST}
//! ```
//!
//! Fields are those of the probe, `__probe_ip` or `__probe_func` and `__probe_ret_ip`,
//! `common_pid`, `common_type`, `common_flags`, `common_preempt_count`, `CPU` (`cpu`, `common_cpu`)
//! and `COMM` (`comm`); and those of subscriptions: `pid` (a thread id), `tgid`, `probe`
//! (`GROUP/EVENT`) and `host`. A field of the probe that has one of these names is `fields.NAME`.
//!
//! Numbers are compared as they are shown: those of a field in network order in the order of the host. `-ENOENT` and
//! `O_WRONLY|O_CREAT` are numbers, and a text in quotes that is shown for a number stands for it:
//! `state == "SS_CONNECTED"`, `dev == "8:1"`.
//! [`Filter::for_kernel`] makes a filter of it that compares what is recorded.
//!
//! Neither a comparison with a value that could not be read nor its opposite holds, so that only
//! other comparisons select such events. The kernel compares with whatever was in its buffer, unless
//! the filter says what proves a field: [`Filter::certain`]. It also differs on purpose in these cases:
//!
//! | text | kernel | here |
//! |---|---|---|
//! | `u8field < 256`, `s8field > 255` | truncates the number: never true, or another number | `ILLEGAL_INTVAL` |
//! | `CPU & 1` | never true | `ILLEGAL_FIELD_OP` |
//! | `field == CPUS{1,2}`, `field != CPUS{1,2}` | never true; always true | `CONSTANT_TERM` |
//! | `CPUS{0-N}`, `CPUS{,}` | `N` is the last CPU; no CPU | `INVALID_CPULIST` |
//! | `field & CPUS{all}` | the CPUs that the host can have | those that any host can have: 0 to 8191 |
//! | `CPUS{8000}` with fewer CPUs | `INVALID_CPULIST` | selects nothing |
//! | `text ~ "1*"` | compares the pattern literally | `LITERAL_PATTERN` |
//! | `text == "a*"` | compares `*` as a character | `LITERAL_PATTERN` |
//! | `comm ~ "*end"` | looks at the end of the array of 16 bytes | looks at the end of the name |
//! | `text ~ "a[!b]"` before 6.12 | the class also matches the end of the text | matches one character |
//! | an array of numbers of 1, 2, 4 or 8 bytes | compares all its bytes as one number | the same |
//! | an array of numbers of another size | crashes before 6.1, never true since | `ILLEGAL_FIELD_OP`, never written |
//! | `pointer.ustring == "text"` | reads the memory of the task (not of fields of probes) | `USER_POINTER` |
//! | `number.ustring == 1` | ignores the suffix | `EXPECT_DIGIT` |
//! | `texts.function`, with two texts | takes the descriptors for an address | `ILLEGAL_FIELD_OP` |
//! | `(field.function == name)` | takes `name)` for the name | takes `name` |
//! | `comm`, if the probe has a field of that name | that field | the name of the task; the field is `fields.comm` |
//! | `.function`, `CPUS{}` on 6.1 | unknown | the same as on 6.12 |
//! | `stacktrace == 1` (6.3) | never true | `FIELD_NOT_FOUND` |
//! | `comm` | the name when the probe is hit | the name that is known when the event is read |

mod addresses;
mod ast;
mod bind;
mod cpus;
mod errno;
mod error;
mod fields;
mod interfaces;
mod kernel;
pub mod names;
mod notation;
pub mod number;
mod open_flags;
mod parse;
mod pattern;
mod program;
mod proof;
mod push_down;
mod schema;
mod span;
mod term;
mod test;

use std::fmt;

use ast::Expression;
use bind::{Binder, Node};
use fields::{Fields, Source};
use program::KernelNames;

pub use addresses::{KERNEL_ADDRESSES, buckets_tell_address, is_place};
pub use bind::Binding;
pub use error::{FilterCode, FilterError};
pub use interfaces::{FilterEvent, Functions};
pub use notation::{Names, Notation, Position, push_ipv6, sign_extended, swapped};
pub use program::Program;
pub use push_down::{KernelFilterFeatures, PushDown};
pub use schema::{Base, FieldKind, FieldSchema, Schema};
pub use span::{Excerpt, Span};

/// A filter, of which the syntax is good. Prints its canonical text, which can be longer than what
/// was read: it has blanks everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    expression: Expression,
}

/// A filter for the events of one probe.
#[derive(Debug, Clone)]
pub enum BoundFilter {
    /// All of them are selected.
    Always,
    /// None is.
    Never,
    /// It depends on the event.
    Program(Program),
}

impl Filter {
    /// Reads a filter. Fields are looked at by [`Filter::bind`].
    ///
    /// # Errors
    /// The first problem of the text.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        Ok(Self { expression: parse::parse(text)? })
    }

    /// Checks fields and types against those of a probe, and folds what is the same for all of its
    /// events. An unknown field is not a problem if another part decides: `probe == "g/a" &&
    /// field_of_a == 1` selects no event of other probes.
    ///
    /// # Errors
    /// The first problem. Spans are those of the text that was parsed.
    /// [`FilterError::is_unknown_field`] shows that the filter may fit another probe.
    pub fn bind(&self, schema: &Schema, binding: &Binding<'_>) -> Result<BoundFilter, FilterError> {
        let fields = Fields { schema, with_ours: true };
        let names = Some((binding.probe, binding.host));
        let tree = Binder { fields, names, functions: binding.functions }.node(&self.expression, false)?;
        Ok(match tree {
            Node::Constant(true) => BoundFilter::Always,
            Node::Constant(false) => BoundFilter::Never,
            Node::Unknown(error) => return Err(error),
            tree => {
                let kernel_names = KernelNames {
                    cpu: fields.kernel_name(Source::Cpu),
                    comm: fields.kernel_name(Source::Comm),
                };
                let may_fault = may_fault(&tree, schema);
                BoundFilter::Program(Program::new(tree, kernel_names, may_fault))
            }
        })
    }

    /// Looks for what the kernel has against this text as the filter of a probe: names that only
    /// subscriptions know are problems here, and what the kernel takes on no good grounds is none, but
    /// for a number that it cuts. Whether it takes the text is for the kernel to say.
    ///
    /// # Errors
    /// The first problem.
    pub fn check_for_kernel(
        &self,
        schema: &Schema,
        functions: Option<&dyn Functions>,
    ) -> Result<(), FilterError> {
        let fields = Fields { schema, with_ours: false };
        match (Binder { fields, names: None, functions }).node(&self.expression, false)? {
            Node::Unknown(error) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Filter {
    /// Whether it compares addresses with functions (`FIELD.function`), which needs the kernel's
    /// symbols.
    pub fn has_functions(&self) -> bool {
        let mut found = false;
        self.expression.terms(&mut |term| found |= term.suffix == Some(ast::Suffix::Function));
        found
    }

    /// Shows every field that it names, and where.
    pub fn fields<'a>(&'a self, show: &mut impl FnMut(&'a str, Span)) {
        self.expression.terms(&mut |term| show(&term.field, term.field_span));
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.expression.fmt(f)
    }
}

impl BoundFilter {
    /// Whether an event of the probe is selected.
    #[inline]
    pub fn matches(&self, event: &impl FilterEvent) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Program(program) => program.matches(event),
        }
    }
}

/// Whether a comparison is with a value that may be marked as one that could not be read.
fn may_fault(node: &Node, schema: &Schema) -> bool {
    match node {
        Node::Constant(_) | Node::Unknown(_) => false,
        Node::Literal(literal) => match literal.source {
            Source::Own { index, .. } => schema.fields.get(index).is_some_and(|field| field.may_fault),
            _ => false,
        },
        Node::All(parts) | Node::Any(parts) => parts.iter().any(|part| may_fault(part, schema)),
    }
}
