//! Errors of filters: code, span, message and hint.
//!
//! Owns the catalogue of codes. It never decides whether a filter is wrong.

use thiserror::Error;

use crate::Span;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident $name:literal;)*) => {
        /// What is wrong with a filter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum FilterCode {
            $($(#[$doc])* $variant,)*
        }

        impl FilterCode {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The kernel's name of the error without its `FILT_ERR_`
            /// (kernel/trace/trace_events_filter.c, the list `ERRORS`), or a name in the same style
            /// for what only we report.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

codes! {
    /// No text, or none but `0`, which takes a filter away.
    NoFilter "NO_FILTER";
    /// kprobed's: as long as a page, which the kernel refuses without an error code.
    TooLong "FILTER_TOO_LONG";
    /// kprobed's: a NUL, at which the kernel truncates the text.
    BadCharacter "BAD_CHARACTER";
    /// No field where one is expected.
    ExpectField "INVALID_FILTER";
    /// Something between two terms that is not `&&` or `||`.
    ExpectConnective "TOO_MANY_PREDS";
    /// `(` without `)`.
    TooManyOpen "TOO_MANY_OPEN";
    /// `)` without `(`.
    TooManyClose "TOO_MANY_CLOSE";
    /// No such operator, or not one for this value.
    InvalidOp "INVALID_OP";
    /// kprobed's: neither `.function` nor `.ustring`.
    UnknownSuffix "UNKNOWN_SUFFIX";
    /// No value where one is expected, or a text without quotes.
    InvalidValue "INVALID_VALUE";
    /// Not a number, or one that is too large or negative for the field.
    IllegalIntval "ILLEGAL_INTVAL";
    /// A text of 256 bytes, a number of 24 characters, or more.
    OperandTooLong "OPERAND_TOO_LONG";
    /// No quote at the end of a text.
    MissingQuote "MISSING_QUOTE";
    /// `CPUS` without `{`.
    MissingBraceOpen "MISSING_BRACE_OPEN";
    /// `CPUS{` without `}`.
    MissingBraceClose "MISSING_BRACE_CLOSE";
    /// Not a list of CPUs, or an empty one.
    InvalidCpulist "INVALID_CPULIST";
    /// kprobed's: a pattern that the kernel compares literally.
    LiteralPattern "LITERAL_PATTERN";
    /// No such field.
    FieldNotFound "FIELD_NOT_FOUND";
    /// A number for a text.
    ExpectString "EXPECT_STRING";
    /// A text for a number.
    ExpectDigit "EXPECT_DIGIT";
    /// The field cannot be compared like this.
    IllegalFieldOp "ILLEGAL_FIELD_OP";
    /// kprobed's: the text at a pointer, which may have changed when the event is read.
    UserPointer "USER_POINTER";
    /// No such function.
    NoFunction "NO_FUNCTION";
    /// kprobed's: it is the same for every event.
    Constant "CONSTANT_TERM";
    /// kprobed's: it would tell a kernel address to a client that may not see addresses.
    Address "ADDRESS_NOT_ALLOWED";
}

/// Why a text is not a filter, or not one for the events of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct FilterError {
    /// What kind of problem.
    pub code: FilterCode,
    /// The part of the text that it is about, in bytes.
    pub span: Span,
    /// What is wrong and why, for people.
    pub message: String,
    /// What to write instead. Never empty.
    pub hint: String,
}

impl FilterError {
    /// A problem. The hint must not be empty.
    pub fn new(code: FilterCode, span: Span, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code, span, message: message.into(), hint: hint.into() }
    }

    /// Whether the filter ends where a term is expected: behind `&&`, `||` or `!`.
    pub fn is_cut_off(&self) -> bool {
        self.code == FilterCode::ExpectField && self.span.start == self.span.end
    }

    /// Whether the filter may be good for the events of another probe: a field is not known for this one.
    pub fn is_unknown_field(&self) -> bool {
        self.code == FilterCode::FieldNotFound
    }
}
