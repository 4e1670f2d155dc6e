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

/// A reader of the unpacked bytes.
///
/// # Errors
/// [`ImageError::Packing`] and [`ImageError::Unpack`].
pub(super) fn reader(packed: &[u8]) -> Result<Box<dyn Read + '_>, ImageError> {
    opened(packed).map(|(_, reader)| reader)
}

/// The format of these bytes (scripts/extract-vmlinux; lib/decompress.c), and a reader of the
/// unpacked ones.
fn opened(packed: &[u8]) -> Result<(&'static str, Box<dyn Read + '_>), ImageError> {
    let unsupported = |name: &str| Err(ImageError::Packing { format: name.to_owned() });
    let (format, reader): (_, Result<Box<dyn Read + '_>, String>) = match packed {
        [0x1f, 0x8b, ..] => ("gzip", Ok(Box::new(flate2::read::GzDecoder::new(packed)))),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            ("xz", Ok(Box::new(lzma_rust2::XzReader::new(packed, false))))
        }
        [0x5d, 0, 0, ..] => match lzma_rust2::LzmaReader::new_mem_limit(packed, LZMA_MEMORY_KIB, None) {
            Ok(reader) => ("lzma", Ok(Box::new(reader))),
            Err(error) => ("lzma", Err(error.to_string())),
        },
        [0x28, 0xb5, 0x2f, 0xfd, ..] => match ruzstd::decoding::StreamingDecoder::new(packed) {
            Ok(reader) => ("zstd", Ok(Box::new(reader))),
            Err(error) => ("zstd", Err(error.to_string())),
        },
        [0x02, 0x21, 0x4c, 0x18, ..] => match lz4::unpacked(packed) {
            Ok(bytes) => ("lz4", Ok(Box::new(io::Cursor::new(bytes)))),
            Err(reason) => ("lz4", Err(reason)),
        },
        [b'B', b'Z', b'h', ..] => return unsupported("bzip2"),
        [0x89, b'L', b'Z', b'O', ..] => return unsupported("LZO"),
        other => {
            let first: Vec<_> = other.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
            return unsupported(&format!("`{}`", first.join(" ")));
        }
    };
    match reader {
        Ok(reader) => Ok((format, Box::new(reader.take(MAX_BYTES)))),
        Err(reason) => Err(ImageError::Unpack { format, reason }),
    }
}

/// All of the unpacked bytes. What follows the packed ones is not looked at.
///
/// # Errors
/// [`ImageError::Packing`] and [`ImageError::Unpack`].
pub(super) fn unpacked(packed: &[u8]) -> Result<Vec<u8>, ImageError> {
    let (format, mut reader) = opened(packed)?;
    let mut bytes = Vec::new();
    let read = reader.read_to_end(&mut bytes);
    read.map_err(|error| ImageError::Unpack { format, reason: error.to_string() })?;
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
