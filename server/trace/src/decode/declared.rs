//! Declared types of a tracepoint's fields: what their C types say beyond size and sign.
//!
//! Owns these types. Kprobe events have none: their definitions say more.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::Notation;
use kprobed_host::tracefs::format::{Field, Shape};

/// Whether the field is an `int` in 64 bits without a sign, as those of system calls are
/// (kernel/trace/trace_syscalls.c:syscall_enter_define_fields): the caller leaves anything in the upper half.
pub(super) fn is_lower_half(field: &Field) -> bool {
    field.shape == Shape::Scalar { size: 8 } && !field.signed && matches!(words(field), "int" | "pid_t")
}

/// Whether the field is an argument of a system call that is bits: its format shows all of them in hexadecimal.
pub(super) fn is_flags(field: &Field) -> bool {
    field.shape == Shape::Scalar { size: 8 } && !field.signed && field.name.ends_with("flags")
}

/// Whether the field is a pointer.
pub(super) fn is_pointer(field: &Field) -> bool {
    field.shape == Shape::Scalar { size: 8 } && field.type_text.ends_with('*')
}

/// How people write its numbers, in this event.
pub(super) fn notation(field: &Field, event: &str) -> Notation {
    let Shape::Scalar { size } = field.shape else { return Notation::Number };
    match (words(field), size) {
        ("__be16", 2) | ("__be32", 4) | ("__be64", 8) => Notation::NetworkOrder,
        ("dev_t", 4) => Notation::Device,
        ("umode_t", 2 | 8) => Notation::Octal,
        ("bool", 1) => Notation::Bool,
        // What a system call returned.
        ("long", 8) if field.name == "ret" && event.starts_with("sys_exit") => Notation::Errno,
        _ if is_flags(field) && matches!(event, "sys_enter_open" | "sys_enter_openat") => Notation::OpenFlags,
        _ => Notation::Number,
    }
}

fn words(field: &Field) -> &str {
    field.type_text.strip_prefix("const ").unwrap_or(&field.type_text)
}
