//! bzImage: the uncompressed kernel (vmlinux) inside of a bootable image.

use super::ImageError;
use super::unpack::unpacked;
use crate::little_endian::u32_at;

/// Where the number of sectors of the real-mode part stands (Documentation/arch/x86/boot.rst), and
/// what follows it.
const SETUP_SECTORS_AT: usize = 0x1f1;
const BOOT_FLAG_AT: usize = 0x1fe;
const MAGIC_AT: usize = 0x202;
const PAYLOAD_OFFSET_AT: usize = 0x248;
const PAYLOAD_LENGTH_AT: usize = 0x24c;

const SECTOR_BYTES: u64 = 512;

/// The uncompressed kernel, an ELF file, of a bzImage of boot protocol 2.08 or later (2.6.25). An
/// ELF file is returned as it is.
///
/// # Errors
/// See [`ImageError`].
pub(super) fn vmlinux(image: Vec<u8>) -> Result<Vec<u8>, ImageError> {
    if image.starts_with(b"\x7fELF") {
        return Ok(image);
    }
    let packed = payload(&image)?;
    // The boot code itself unpacks to ELF, so a kernel that does not is none.
    unpacked(packed)
}

fn payload(image: &[u8]) -> Result<&[u8], ImageError> {
    let at = |at: usize, expected: &[u8]| image.get(at..).is_some_and(|rest| rest.starts_with(expected));
    if !at(BOOT_FLAG_AT, &[0x55, 0xaa]) || !at(MAGIC_AT, b"HdrS") {
        return Err(ImageError::NotAnImage);
    }
    let number = |at| u32_at(image, at).map(u64::from);
    // 0 stands for 4, for the sake of old boot loaders.
    let sectors = match image.get(SETUP_SECTORS_AT).copied().unwrap_or_default() {
        0 => 4,
        sectors => u64::from(sectors),
    };
    let (Some(offset), Some(length)) = (number(PAYLOAD_OFFSET_AT), number(PAYLOAD_LENGTH_AT)) else {
        return Err(ImageError::NotAnImage);
    };
    let start = (sectors + 1) * SECTOR_BYTES + offset;
    let cut_off = || ImageError::CutOff { offset: start, claimed_bytes: length, bytes: image.len() };
    let range = |start: u64, length: u64| {
        let start = usize::try_from(start).ok()?;
        image.get(start..start.checked_add(usize::try_from(length).ok()?)?)
    };
    range(start, length).filter(|payload| !payload.is_empty()).ok_or_else(cut_off)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write as _;

    /// A bzImage with that kernel in it.
    pub(in crate::kernel::image) fn bzimage(vmlinux: &[u8]) -> Vec<u8> {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(vmlinux).unwrap();
        let packed = gzip.finish().unwrap();
        let mut image = vec![0; 2 * 512];
        image[SETUP_SECTORS_AT] = 1;
        image[BOOT_FLAG_AT..MAGIC_AT - 2].copy_from_slice(&[0x55, 0xaa]);
        image[MAGIC_AT..MAGIC_AT + 4].copy_from_slice(b"HdrS");
        image[PAYLOAD_OFFSET_AT..PAYLOAD_OFFSET_AT + 4].copy_from_slice(&16u32.to_le_bytes());
        let length = u32::try_from(packed.len()).unwrap();
        image[PAYLOAD_LENGTH_AT..PAYLOAD_LENGTH_AT + 4].copy_from_slice(&length.to_le_bytes());
        [&image[..], &[0; 16], &packed, b"behind it"].concat()
    }

    #[test]
    fn the_payload_is_unpacked() {
        let image = bzimage(b"\x7fELF and so on");
        assert_eq!(vmlinux(image.clone()).unwrap(), b"\x7fELF and so on");
        assert_eq!(vmlinux(b"\x7fELF".to_vec()).unwrap(), b"\x7fELF");
        assert!(matches!(vmlinux(image[..1060].to_vec()), Err(ImageError::CutOff { offset: 1040, .. })));
        assert!(matches!(vmlinux(b"#!/bin/sh".to_vec()), Err(ImageError::NotAnImage)));
    }

    proptest! {
        #[test]
        fn any_header_is_survived(header in proptest::collection::vec(any::<u8>(), 0x250..0x260)) {
            let mut image = bzimage(b"\x7fELF");
            let length = header.len() - 0x205;
            image[SETUP_SECTORS_AT] = header[0];
            image[0x205..0x205 + length].copy_from_slice(&header[..length]);
            prop_assert!(vmlinux(image).map_or(true, |bytes| bytes.len() < 1 << 20));
        }
    }
}
