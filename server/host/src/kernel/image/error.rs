//! Errors of reading a kernel image, and hints for them.

use thiserror::Error;

use super::super::ReadError;

/// Errors of a kernel image, or of the package or directory that should hold one. Which that is,
/// only [`ImageError::Read`] says.
#[derive(Debug, Error)]
pub enum ImageError {
    /// A file or directory could not be read.
    #[error(transparent)]
    Read(ReadError),
    /// A package or directory without a kernel.
    #[error("there is no kernel image in it: neither `boot/vmlinuz-*` nor `lib/modules/*/vmlinuz`")]
    NoImage,
    /// A directory with several kernels.
    #[error("there are several kernel images in it: {}", found.join(", "))]
    SeveralImages {
        /// Their places in it.
        found: Vec<String>,
    },
    /// A package that is damaged.
    #[error("the package cannot be read: {reason}")]
    Package {
        /// What is wrong with it.
        reason: String,
    },
    /// Bytes that are neither a bzImage nor a vmlinux.
    #[error("not a kernel image for x86-64: neither a bzImage (`vmlinuz`) nor an ELF file (`vmlinux`)")]
    NotAnImage,
    /// A bzImage whose header contradicts its length.
    #[error(
        "the kernel image is cut off: its header speaks of {claimed_bytes} bytes at offset {offset}, and it has {bytes}"
    )]
    CutOff {
        /// Where the packed kernel begins.
        offset: u64,
        /// How long it is by the header.
        claimed_bytes: u64,
        /// How long the file is.
        bytes: usize,
    },
    /// A kernel that is packed in a way that is not known here.
    #[error("the kernel image is packed as {format}, which is not supported")]
    Packing {
        /// The name of the format, or its first bytes.
        format: String,
    },
    /// A kernel whose packed part is damaged.
    #[error("the kernel image cannot be unpacked ({format}): {reason}")]
    Unpack {
        /// The name of the format.
        format: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A kernel without its table of symbols (CONFIG_KALLSYMS), or with one of a form that is not
    /// known.
    #[error("the kernel image has no table of symbols that can be read (CONFIG_KALLSYMS)")]
    NoSymbols,
    /// A kernel whose table of symbols does not name data (CONFIG_KALLSYMS_ALL), so that its tables
    /// cannot be found.
    #[error("the kernel image does not say where its `{symbol}` is (CONFIG_KALLSYMS_ALL)")]
    NoTable {
        /// The symbol that is missing.
        symbol: &'static str,
    },
}

impl ImageError {
    /// A hint for the operator.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Read(_) => None,
            Self::NoImage => Some(
                "give the package with the kernel itself, `linux-image-RELEASE` or `linux-binary-RELEASE`, not a meta package, headers or debug information",
            ),
            Self::SeveralImages { .. } => Some("give one of them"),
            Self::Package { .. } | Self::CutOff { .. } | Self::Unpack { .. } => Some("fetch it again"),
            Self::NotAnImage => {
                Some("give a Debian package, a `vmlinuz`, a `vmlinux`, or a directory with one")
            }
            Self::Packing { .. } => {
                Some("unpack it with `scripts/extract-vmlinux` of the kernel and give the `vmlinux`")
            }
            Self::NoSymbols | Self::NoTable { .. } => Some("boot this kernel and ask the daemon in it"),
        }
    }
}
