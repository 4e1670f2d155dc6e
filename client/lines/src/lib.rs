//! Source lines and variables of a kernel, as places and arguments of kprobes, by its debug information.
//!
//! A file of debug information in, definitions out: the file of the kernel or of a module is on the client,
//! and no probed host needs it. Everything is a plain function over bytes and values; nothing is opened,
//! asked for or written here.
//!
//! In it:
//!
//! - **Files** ([`Image`]): ELF of x86-64, sections compressed with zlib or zstd, modules (`.ko`) with their
//!   relocations, supplementary files (`.gnu_debugaltlink`), split files (`.dwo`, `.dwp`); DWARF 4 and 5.
//! - **Definitions** ([`Definition`]): the grammar of `perf probe`. [`Origin`] is the comment behind the
//!   kernel's line by which a probe keeps the source line that it was made from, and [`DebugInfo::port`] finds that
//!   line on another build, or says why it is in doubt.
//! - **Places** ([`Place`]): all addresses of a function or a line, copies of inlined functions included,
//!   each by a symbol that the kernel cannot mistake for another one, with the other lines that begin there.
//! - **Variables** ([`Argument`]): what the name means in C at that place, and what fetches its value:
//!   registers, memory around the frame or a pointer, statics, constants, members, elements, bit-fields. A
//!   value that no single argument fetches comes as several arguments and a rule by which the daemon
//!   computes it ([`Computed`](kprobed_lang::definition::computed::Computed)). What is not understood is
//!   refused: a value is never guessed. A refusal names the nearest lines at which the variable lives.
//! - **Index** ([`write_index`]): the answers of one kernel, by build id, in a tenth of the size of its file.
//!
//! Not in it: types in units of their own (`-fdebug-types-section`), languages other than C, function names
//! as patterns.
//!
//! Files are not trusted. What a file can make large is bounded: sections by their compressed size,
//! expressions, lists, scopes and types by fixed numbers.
//!
//! ```
//! use kprobed_lines::{DebugInfo, Definition, Image};
//!
//! # fn main() -> Result<(), kprobed_lines::LinesError> {
//! # let bytes = include_bytes!("../tests/fixtures/module-5.o");
//! let image = Image::read(bytes)?;
//! let info = DebugInfo::read(&image, None, &[])?;
//! let definition = Definition::parse("opened=member request->size request->flags.urgent")?;
//! let places = info.places(&definition.target, &|_| None)?;
//! let line = info.line(&definition, &places[0], 0)?;
//! assert_eq!(line.text, "p:opened fixture:member+0 size=+8(%di):u32 urgent=+12(%di):b1@3/8");
//! # Ok(())
//! # }
//! ```

mod anchor;
mod dwarf;
mod error;
mod grammar;
mod image;
mod index;
mod model;
mod origin;
mod port;
mod resolve;
mod symbols;
mod value;
mod written;

pub use error::{LinesError, Result};
pub use grammar::{Definition, Expression, Step, Target, Wanted, Within};
pub use image::{Identity, Image};
pub use index::write_index;
pub use origin::Origin;
pub use port::{Carried, MadeOfLine, Ported};
pub use resolve::{Argument, DebugInfo, Fetch, Line, Place, SourceLine, Sources, Visible};
pub use written::Listing;
