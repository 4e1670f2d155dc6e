//! Decompression of kernel images and packages: gzip, xz, lzma, zstd, lz4.
//!
//! Owns telling the formats apart by their first bytes. Every byte is distrusted: no input gives
//! more than [`MAX_BYTES`].

mod lz4;

use std::io::{self, Read};

use super::ImageError;

/// No kernel, and no package of one, is longer when it is unpacked.
const MAX_BYTES: u64 = 2 << 30;

/// Memory for the dictionary of an LZMA stream: kernels are packed with up to 128 MiB
/// (scripts/xz_wrap.sh).
const LZMA_MEMORY_KIB: u32 = 256 << 10;

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Gzip,
    Xz,
    Lzma,
    Zstd,
    Lz4,
}

impl Format {
    /// The format of these bytes (scripts/extract-vmlinux; lib/decompress.c).
    ///
    /// # Errors
    /// [`ImageError::Packing`] for those that are known and not supported, and for all others.
    pub(super) fn of(packed: &[u8]) -> Result<Self, ImageError> {
        let unsupported = |name: &str| Err(ImageError::Packing { format: name.to_owned() });
        match packed {
            [0x1f, 0x8b, ..] => Ok(Self::Gzip),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Ok(Self::Xz),
            [0x5d, 0, 0, ..] => Ok(Self::Lzma),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Ok(Self::Zstd),
            [0x02, 0x21, 0x4c, 0x18, ..] => Ok(Self::Lz4),
            [b'B', b'Z', b'h', ..] => unsupported("bzip2"),
            [0x89, b'L', b'Z', b'O', ..] => unsupported("LZO"),
            other => {
                let first: Vec<_> = other.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
                unsupported(&format!("`{}`", first.join(" ")))
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Lzma => "lzma",
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
        }
    }
}

/// A reader of the unpacked bytes.
///
/// # Errors
/// [`ImageError::Packing`] and [`ImageError::Unpack`].
pub(super) fn reader<'a>(packed: &'a [u8]) -> Result<Box<dyn Read + 'a>, ImageError> {
    let format = Format::of(packed)?;
    let failed = |reason: String| ImageError::Unpack { format: format.name(), reason };
    let unlimited: Box<dyn Read + 'a> = match format {
        Format::Gzip => Box::new(flate2::read::GzDecoder::new(packed)),
        Format::Xz => Box::new(lzma_rust2::XzReader::new(packed, false)),
        Format::Lzma => Box::new(
            lzma_rust2::LzmaReader::new_mem_limit(packed, LZMA_MEMORY_KIB, None)
                .map_err(|error| failed(error.to_string()))?,
        ),
        Format::Zstd => Box::new(
            ruzstd::decoding::StreamingDecoder::new(packed).map_err(|error| failed(error.to_string()))?,
        ),
        Format::Lz4 => Box::new(io::Cursor::new(lz4::unpacked(packed).map_err(failed)?)),
    };
    Ok(Box::new(unlimited.take(MAX_BYTES)))
}

/// All of the unpacked bytes. What follows the packed ones is not looked at.
///
/// # Errors
/// [`ImageError::Packing`] and [`ImageError::Unpack`].
pub(super) fn unpacked(packed: &[u8]) -> Result<Vec<u8>, ImageError> {
    let format = Format::of(packed)?;
    let mut bytes = Vec::new();
    reader(packed)?
        .read_to_end(&mut bytes)
        .map_err(|error| ImageError::Unpack { format: format.name(), reason: error.to_string() })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write as _;

    #[test]
    fn formats_are_told_apart() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"a kernel").unwrap();
        let gzip = gzip.finish().unwrap();
        assert_eq!(unpacked(&gzip).unwrap(), b"a kernel");
        assert!(matches!(unpacked(&gzip[..gzip.len() / 2]), Err(ImageError::Unpack { format: "gzip", .. })));
        for (packed, name) in [(&b"BZh91AY"[..], "bzip2"), (&[1, 2, 3, 4, 5], "`01 02 03 04`"), (&[], "``")] {
            let Err(ImageError::Packing { format }) = unpacked(packed) else { panic!("{name}") };
            assert_eq!(format, name);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(kind in 0..5usize, rest in proptest::collection::vec(any::<u8>(), 0..200)) {
            let magics: [&[u8]; 5] =
                [&[0x1f, 0x8b, 8, 0], &[0xfd, b'7', b'z', b'X', b'Z', 0], &[0x5d, 0, 0], &[0x28, 0xb5, 0x2f, 0xfd], &[2, 0x21, 0x4c, 0x18]];
            let packed = [magics[kind], &rest].concat();
            if let Ok(bytes) = unpacked(&packed) {
                prop_assert!(bytes.len() as u64 <= MAX_BYTES);
            }
        }
    }
}
