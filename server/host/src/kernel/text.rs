//! Kernel memory: code bytes of the running kernel (`/proc/kcore`) or of a kernel image.
//!
//! Owns reading them. Never takes an image for the running kernel: the kernel patches itself at
//! boot (alternatives, retpolines, static calls), so that the bytes, and even the instruction
//! boundaries, of the file are not those of memory. What boot may change is in
//! [`super::BootSites`].

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::ReadError;
use crate::little_endian::{u16_at, u32_at, u64_at};

/// Why kernel memory could not be read.
#[derive(Debug, Error)]
pub enum TextError {
    /// The file could not be opened or read: no CAP_SYS_RAWIO, or the kernel is locked down
    /// (confidentiality).
    #[error(transparent)]
    Read(ReadError),
    /// The file is not a 64-bit little-endian ELF core.
    #[error("`{path}` is not a 64-bit core file", path = path.display())]
    NotCore {
        /// The file.
        path: PathBuf,
    },
    /// No segment of the core holds these addresses.
    #[error("no kernel memory at {address:#x}")]
    Unmapped {
        /// First address asked for.
        address: u64,
    },
}

/// A program header: `size` bytes at virtual address `address` are at `offset` of the file. Memory
/// that an image has no bytes for is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    address: u64,
    offset: u64,
    size: u64,
}

/// Reader of kernel memory.
#[derive(Debug)]
pub struct KernelText {
    source: Source,
    segments: Vec<Segment>,
}

/// An ELF file.
#[derive(Debug)]
enum Source {
    Core { path: PathBuf, file: File },
    Image(Vec<u8>),
}

const ELF_HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const PT_LOAD: u32 = 1;
/// Where a program header has the size of what is in the file (`p_filesz`), and of what it is
/// loaded to (`p_memsz`).
const FILE_SIZE_AT: usize = 32;
const MEMORY_SIZE_AT: usize = 40;

impl KernelText {
    /// Opens the core file and reads where it has which memory.
    ///
    /// # Errors
    /// [`TextError::Read`] and [`TextError::NotCore`].
    pub fn open(path: &Path) -> Result<Self, TextError> {
        let io = |source| TextError::Read(ReadError { path: path.to_owned(), source });
        let file = File::open(path).map_err(io)?;
        let mut header = [0; ELF_HEADER_BYTES];
        file.read_exact_at(&mut header, 0).map_err(io)?;
        let not_core = || TextError::NotCore { path: path.to_owned() };
        let (table_offset, count) = parse_header(&header).ok_or_else(not_core)?;
        let mut table = vec![0; PROGRAM_HEADER_BYTES * usize::from(count)];
        file.read_exact_at(&mut table, table_offset).map_err(io)?;
        let segments = table
            .chunks_exact(PROGRAM_HEADER_BYTES)
            .filter_map(|header| parse_segment(header, MEMORY_SIZE_AT))
            .collect();
        Ok(Self { source: Source::Core { path: path.to_owned(), file }, segments })
    }

    /// The memory that an uncompressed kernel image (`vmlinux`) is loaded to, with the bytes of the
    /// image. None when the bytes are not a 64-bit little-endian ELF file.
    pub fn of_image(vmlinux: Vec<u8>) -> Option<Self> {
        let header = vmlinux.first_chunk()?;
        let (table_offset, count) = parse_header(header)?;
        let table = vmlinux.get(usize::try_from(table_offset).ok()?..)?;
        let headers = table.chunks_exact(PROGRAM_HEADER_BYTES).take(count.into());
        let segments = headers.filter_map(|header| parse_segment(header, FILE_SIZE_AT)).collect();
        Some(Self { source: Source::Image(vmlinux), segments })
    }

    /// Whether this is a kernel as it was built, before boot changed anything.
    pub(super) fn is_image(&self) -> bool {
        matches!(self.source, Source::Image(_))
    }

    /// The segments of an image that lie in kernel memory, each with the address of its first byte.
    /// Empty for a running kernel.
    pub(super) fn loaded(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let image = match &self.source {
            Source::Image(image) => image.as_slice(),
            Source::Core { .. } => &[],
        };
        let bytes = move |segment: &Segment| {
            let start = usize::try_from(segment.offset).ok()?;
            image.get(start..start.checked_add(usize::try_from(segment.size).ok()?)?)
        };
        let in_kernel = self.segments.iter().filter(|segment| segment.address != 0);
        in_kernel.filter_map(move |segment| Some((segment.address, bytes(segment)?)))
    }

    /// A reader for many small pieces.
    pub fn in_order(&self) -> OrderedReader<'_> {
        OrderedReader { text: self, start: 0, block: Vec::new() }
    }

    /// Reads `length` bytes from `address` on.
    ///
    /// # Errors
    /// [`TextError::Unmapped`] when the range is not inside of one segment, [`TextError::Read`] when
    /// reading fails.
    pub fn read(&self, address: u64, length: usize) -> Result<Vec<u8>, TextError> {
        let bytes = self.read_up_to(address, length)?;
        if bytes.len() < length {
            return Err(TextError::Unmapped { address });
        }
        Ok(bytes)
    }

    /// Reads `length` bytes from `address` on, or fewer where the segment ends.
    ///
    /// # Errors
    /// [`TextError::Unmapped`] when `address` is in no segment, [`TextError::Read`] when reading
    /// fails.
    pub fn read_up_to(&self, address: u64, length: usize) -> Result<Vec<u8>, TextError> {
        let unmapped = || TextError::Unmapped { address };
        let left = |segment: &Segment| segment.size.checked_sub(address.checked_sub(segment.address)?);
        let (segment, left) = self
            .segments
            .iter()
            .find_map(|segment| Some((segment, left(segment).filter(|left| *left > 0)?)))
            .ok_or_else(unmapped)?;
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(length);
        let offset = segment.offset.checked_add(address - segment.address).ok_or_else(unmapped)?;
        match &self.source {
            Source::Core { path, file } => {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, offset)
                    .map_err(|source| TextError::Read(ReadError { path: path.clone(), source }))?;
                Ok(bytes)
            }
            Source::Image(image) => {
                let start = usize::try_from(offset).ok().filter(|start| *start < image.len());
                let rest = start.and_then(|start| image.get(start..)).ok_or_else(unmapped)?;
                Ok(rest.get(..length).unwrap_or(rest).to_vec())
            }
        }
    }
}

/// Reads small pieces whose addresses mostly ascend, with one system call for many of them.
#[derive(Debug)]
pub struct OrderedReader<'a> {
    text: &'a KernelText,
    start: u64,
    block: Vec<u8>,
}

/// Read at once by [`OrderedReader`].
const BLOCK_BYTES: u64 = 64 << 10;

impl OrderedReader<'_> {
    /// The bytes at `address`, if they can be read.
    pub(crate) fn array_at<const N: usize>(&mut self, address: u64) -> Option<[u8; N]> {
        if let Some(bytes) = self.held(address) {
            return Some(bytes);
        }
        self.start = address & !(BLOCK_BYTES - 1);
        self.block = self.text.read(self.start, usize::try_from(BLOCK_BYTES).ok()?).unwrap_or_default();
        match self.held(address) {
            Some(bytes) => Some(bytes),
            // Across two blocks, or at the edge of a segment.
            None => self.text.read(address, N).ok()?.try_into().ok(),
        }
    }

    fn held<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let offset = usize::try_from(address.checked_sub(self.start)?).ok()?;
        self.block.get(offset..offset.checked_add(N)?)?.try_into().ok()
    }
}

/// Puts bytes that belong at `address` into code that begins at `start`, as far as it reaches.
pub(super) fn overlay(code: &mut [u8], start: u64, address: u64, bytes: &[u8]) {
    for (address, byte) in (address..).zip(bytes) {
        let offset = address.checked_sub(start).and_then(|offset| usize::try_from(offset).ok());
        if let Some(place) = offset.and_then(|offset| code.get_mut(offset)) {
            *place = *byte;
        }
    }
}

/// Offset and number of the program headers.
fn parse_header(header: &[u8; ELF_HEADER_BYTES]) -> Option<(u64, u16)> {
    const CLASS_64_LITTLE_ENDIAN: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
    if !header.starts_with(&CLASS_64_LITTLE_ENDIAN)
        || usize::from(u16_at(header, 54)?) != PROGRAM_HEADER_BYTES
    {
        return None;
    }
    Some((u64_at(header, 32)?, u16_at(header, 56)?))
}

fn parse_segment(header: &[u8], size_at: usize) -> Option<Segment> {
    (u32_at(header, 0)? == PT_LOAD).then_some(())?;
    Some(Segment { address: u64_at(header, 16)?, offset: u64_at(header, 8)?, size: u64_at(header, size_at)? })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::samples::{self, image};
    use proptest::prelude::*;
    use std::io::Write as _;

    /// A core file with one segment of `memory` at `address`.
    pub(in crate::kernel) fn core(address: u64, memory: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&samples::core(&[(address, memory.to_vec())])).unwrap();
        file
    }

    #[test]
    fn reads_inside_of_segments_only() {
        let base = 0xffff_ffff_8100_0000;
        let file = core(base, &[1, 2, 3, 4]);
        check_reads(base, &KernelText::open(file.path()).unwrap());
        let image = image(base, &[1, 2, 3, 4]);
        check_reads(base, &image);
        assert_eq!(image.loaded().collect::<Vec<_>>(), [(base, &[1, 2, 3, 4][..])]);
        assert!(KernelText::of_image(vec![0; 64]).is_none());
    }

    fn check_reads(base: u64, text: &KernelText) {
        assert_eq!(text.read(base + 1, 2).unwrap(), [2, 3]);
        assert!(matches!(text.read(base + 3, 2), Err(TextError::Unmapped { .. })));
        assert_eq!(text.read_up_to(base + 3, 2).unwrap(), [4]);
        assert!(matches!(text.read(base - 1, 1), Err(TextError::Unmapped { .. })));
        assert!(matches!(text.read(u64::MAX, 2), Err(TextError::Unmapped { .. })));
        let mut reader = text.in_order();
        assert_eq!(reader.array_at(base + 2), Some([3, 4]));
        assert_eq!(reader.array_at::<4>(base + 2), None);
    }

    proptest! {
        #[test]
        fn any_file_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..400), address: u64) {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&bytes).unwrap();
            if let Ok(text) = KernelText::open(file.path()) {
                prop_assert!(text.read(address, 16).is_ok_and(|bytes| bytes.len() == 16) || text.read(address, 16).is_err());
            }
        }

        #[test]
        fn any_image_is_survived(mut bytes in proptest::collection::vec(any::<u8>(), 120..400), address: u64, small in 0..200u8) {
            bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
            bytes[32..40].copy_from_slice(&64u64.to_le_bytes());
            bytes[54..58].copy_from_slice(&[56, 0, 1, 0]);
            bytes[64..68].copy_from_slice(&PT_LOAD.to_le_bytes());
            bytes[72..80].copy_from_slice(&u64::from(small).to_le_bytes());
            bytes[80..88].copy_from_slice(&address.to_le_bytes());
            let text = KernelText::of_image(bytes).unwrap();
            prop_assert!(text.loaded().count() <= 1);
            prop_assert!(text.read_up_to(address, 16).map_or(true, |bytes| bytes.len() <= 16));
        }
    }
}
