//! Kernel images: facts of a kernel that was not booted, from the package of a distribution.
//!
//! Owns finding the image in a package or directory, unpacking it, and reading its symbols, tables
//! and texts. Never judges a probe, and never takes the image for the state of a running kernel:
//! what boot may change is in [`BootSites`].
//!
//! ```text
//! package (find) -> bzimage, unpack (vmlinux) -> kallsyms (symbols) -> tables, boot (facts)
//! ```

mod boot;
mod bzimage;
mod error;
mod kallsyms;
mod package;
pub(super) mod tables;
mod unpack;

use std::path::Path;

pub use boot::{BootSite, BootSites};
pub use error::ImageError;
pub use package::{file_of_package, is_package};

use super::{KernelText, SymbolTable};

/// The image of a kernel.
#[derive(Debug)]
pub struct KernelImage {
    /// `uname -r`.
    pub release: String,
    /// `uname -v`.
    pub version: String,
    /// Text that tracefs would show as `README`; empty when the kernel has no tracefs.
    pub readme: String,
    /// Names and addresses, without KASLR.
    pub symbols: SymbolTable,
    /// Code and data as the image has them.
    pub text: KernelText,
}

impl KernelImage {
    /// Reads the kernel of a Debian package, of a directory, or of a file (`vmlinuz` or `vmlinux`).
    ///
    /// # Errors
    /// See [`ImageError`].
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        Self::parse(package::image(path)?)
    }

    /// Reads a bzImage or a vmlinux.
    ///
    /// # Errors
    /// See [`ImageError`].
    pub fn parse(image: Vec<u8>) -> Result<Self, ImageError> {
        let text = KernelText::of_image(bzimage::vmlinux(image)?).ok_or(ImageError::NotAnImage)?;
        let symbols = text.loaded().find_map(|(base, memory)| kallsyms::decode(base, memory));
        let symbols = symbols.ok_or(ImageError::NoSymbols)?;
        let (release, version) = tables::release(&text, &symbols)?;
        let readme = tables::readme(&text, &symbols);
        Ok(Self { release, version, readme, symbols, text })
    }
}
