//! Name resolution: names and types from BTF become offsets, registers and types that every kernel
//! reads.
//!
//! Owns [`resolve`], which takes a definition as it was written and returns one without words that
//! need BTF: `file->f_inode->i_ino` becomes `+64(+32($arg1)):u64`. A kernel that resolves names by
//! itself (6.5 and later, if it was built so) gets the resolved line too, so that it reads exactly
//! what the line shows. What such a kernel refuses is refused here with its code, at its position,
//! in its order (kernel/trace/trace_probe.c of 6.12: traceprobe_expand_meta_args, parse_btf_arg,
//! parse_btf_field); on other kernels everything that can be resolved is accepted. Never judges the
//! place.
//!
//! If no type is written, the kernel's default is kept for numbers, enumerations and pointers. In
//! some cases a better one is chosen, which the resolved line shows:
//!
//! | what | kernel | here |
//! |---|---|---|
//! | array of `char` | its first 8 bytes, in hexadecimal | `string` |
//! | array of numbers, enumerations, pointers | its first 8 bytes | an array of that type, at most 64 |
//! | structure that only wraps one value (`atomic_t`, `kuid_t`) | 8 bytes from there on | that value |
//! | other structure of 1, 2 or 4 bytes | 8 bytes from there on | so many bytes, in hexadecimal |
//! | bit-field | shifted in 64 bits, of which only some were read | `bWIDTH@OFFSET/SIZE` |
//! | enumeration of less than 4 bytes | 4 bytes from there on | its own size |
//! | pointer to a function | a number | its symbol |
//! | `struct in6_addr` | its first 8 bytes | its 16 bytes |
//! | parameter behind one that is passed in two registers or in memory | the wrong register | the right one |
//!
//! What has the type `path` becomes the reads of [`whole_path`], whatever the kernel resolves by itself.
//!
//! A pointer to `char` stays a number: BTF does not say whether it points to the kernel's memory or
//! to a program's. `:string` and `:ustring` read the text that it points to.

mod advice;
mod default;
mod describe;
mod doubts;
mod expand;
mod function;
mod known;
pub(crate) mod notation;
mod passing;
mod path;
mod problems;
mod resolve;
pub(crate) mod system_call;
mod whole_path;

pub use advice::advise;
pub use describe::{DescribeError, describe_function, describe_members};
pub use doubts::doubts;
pub(crate) use function::{Function, look_up_only};
pub use function::{has_parameter, kernel_finds_parameters};
pub use known::{known_function, tells_programs_memory};
pub use resolve::{Note, Resolution, resolve, resolve_names};
