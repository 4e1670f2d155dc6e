//! Hidden arguments (guards) that show whether a number could be read from memory.
//!
//! A number that could not be read from memory leaves no trace in a record: the kernel writes
//! nothing, and its place keeps the bytes of an older record in the ring buffer. A string that
//! could not be read does leave a trace (see `dynamic`). So the daemon adds strings of its own to a
//! definition, which are read *through* the same memory as a number:
//!
//! * `__kpd_gK` guards field K (its place among the user's fields, from 0), `__kpd_gK_e` the end of
//!   an array. If one of them could not be read, the field could not be read either.
//! * `__kpd_end`, a constant string after all arguments, so that each guard and every string of the
//!   user has a descriptor after it, and a preset length that is not zero.
//!
//! Owns what a name says; [`guard`] of the definition language makes it. Never decodes a record. The
//! guards show nothing on kernels that give an unreadable string the length 0, as all did before
//! 6.6 and its backports (kernel/trace/trace_probe_tmpl.h:store_trace_args).
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use kprobed_lang::definition::guard;

/// Role of an argument, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// An argument of the user.
    User,
    /// The constant string after all arguments.
    End,
    /// A guard, which shows whether this field of the user could be read.
    Guard {
        /// Place among the user's fields, from 0.
        field: usize,
    },
    /// It has the prefix of hidden arguments, and this version does not know it.
    Unknown,
}

/// The role of the argument called `name`.
pub(super) fn role(name: &str) -> Role {
    let Some(hidden) = name.strip_prefix(guard::PREFIX) else { return Role::User };
    if name == guard::END {
        return Role::End;
    }
    let number = hidden.strip_prefix('g').map(|number| number.strip_suffix("_e").unwrap_or(number));
    match number.map(str::parse) {
        Some(Ok(field)) => Role::Guard { field },
        _ => Role::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_roles() {
        assert_eq!(role("count"), Role::User);
        assert_eq!(role("kpd_g0"), Role::User);
        assert_eq!(role("__kpd_end"), Role::End);
        assert_eq!(role("__kpd_g0"), Role::Guard { field: 0 });
        assert_eq!(role("__kpd_g17_e"), Role::Guard { field: 17 });
        for name in ["__kpd_", "__kpd_g", "__kpd_g_e", "__kpd_gx", "__kpd_g1_f", "__kpd_g-1", "__kpd_ends"] {
            assert_eq!(role(name), Role::Unknown, "{name}");
        }
    }
}
