//! Facts of a kernel that decide about a probe: symbols, code bytes, traceable functions,
//! blacklist, types, modules.
//!
//! Owns reading and holding them, from the running kernel or from the image of one that was not
//! booted. Never writes anything, and never decides: that is `kprobed_verdict::validate`.

mod armed;
mod behaviour;
mod blacklist;
pub mod btf;
mod build_id;
mod clock;
mod facts;
mod functions;
mod host_identity;
mod image;
mod landings;
mod livepatches;
mod optimisation;
mod patch_sites;
mod similar;
mod symbol;
mod symbols;
mod text;
mod watch;

pub use armed::ArmedProbes;
pub use behaviour::Behaviour;
pub use blacklist::Blacklist;
pub use build_id::BuildIds;
pub use clock::{ClockMapping, TRACE_CLOCK, processor_time, trace_clock_ns};
pub use facts::{FactsCache, FactsError, KernelFacts, KernelPaths, RecentFacts};
use functions::CALL_SITE_NOP;
pub use functions::TraceableFunctions;
pub use host_identity::{HostIdentity, threads_of_this_process};
pub use image::{BootSite, BootSites, ImageError, KernelImage, file_of_package, is_package};
pub use kprobed_filter::names::nearest_name;
pub use landings::{Landing, Way};
pub use livepatches::{Livepatches, Progress, Redirect};
pub use optimisation::Optimisation;
pub use patch_sites::PatchSites;
pub use symbol::{Located, Symbol};
pub use symbols::SymbolTable;
pub use text::{KernelText, TextError};
pub use watch::{FileWatch, ModuleWatch};

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A file of the kernel could not be read.
#[derive(Debug, Error)]
#[error("cannot read `{path}`: {source}", path = path.display())]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// Room for the first read of a file. Some files answer only one read, however small it was, and nothing after that
/// (kernel/trace/trace_events.c:show_header): it must be large enough for all of them.
const FIRST_READ_BYTES: usize = 8 << 10;

/// Reads a file of one of the kernel's file systems whole. Such files do not tell their size, and are not asked: that
/// would be two of six system calls, for each file of each probe.
pub(crate) fn read_whole(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(FIRST_READ_BYTES);
    File::open(path)?.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a text file of procfs, sysfs or debugfs whole. Bytes that are not UTF-8 are replaced:
/// names there are ASCII.
pub(crate) fn read_text(path: &Path) -> Result<String, ReadError> {
    let bytes = read_whole(path).map_err(|source| ReadError { path: path.to_owned(), source })?;
    Ok(text_of(bytes))
}

/// Bytes as text. Those that are not UTF-8 are replaced.
pub(crate) fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// An address as the kernel prints it, with `0x` or without.
pub(crate) fn hex(word: &str) -> Option<u64> {
    u64::from_str_radix(word.trim().trim_start_matches("0x"), 16).ok()
}
