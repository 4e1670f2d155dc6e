//! Decompression of kernel images and packages: gzip, xz, lzma, zstd, lz4.
//!
//! Owns telling the formats apart by their first bytes. Every byte is distrusted: no input gives
//! more than [`MAX_BYTES`].

use std::io::{self, Read};

use super::ImageError;

/// No kernel, and no package of one, is longer when it is unpacked.
const MAX_BYTES: u64 = 2 << 30;

/// Memory for the dictionary of an LZMA stream: kernels are packed with up to 128 MiB
/// (scripts/xz_wrap.sh).
const LZMA_MEMORY_KIB: u32 = 256 << 10;

/// What a frame of the legacy LZ4 format begins with (`lz4 -l`; lib/decompress_unlz4.c).
const LZ4_MAGIC: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];

/// Every block of that format but the last one has this length when it is unpacked.
const LZ4_BLOCK_BYTES: usize = 8 << 20;

/// The build of x86 appends the length of the unpacked kernel (scripts/Makefile.lib:size_append).
const LZ4_TRAILER_BYTES: usize = 4;

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
        [0x02, 0x21, 0x4c, 0x18, ..] => match lz4(packed) {
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

/// The unpacked bytes of the legacy LZ4 format: blocks, each with its packed length before it. What follows them may be
/// the length of all of them.
fn lz4(packed: &[u8]) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    let mut block = vec![0; LZ4_BLOCK_BYTES];
    let mut offset = 0;
    loop {
        let rest = packed.get(offset..).unwrap_or_default();
        if rest.len() <= LZ4_TRAILER_BYTES {
            return Ok(all);
        }
        let Some((head, rest)) = rest.split_first_chunk() else { return Ok(all) };
        let at = offset;
        offset += head.len();
        // Frames may follow each other.
        if *head == LZ4_MAGIC {
            continue;
        }
        let length = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
        let content = rest.get(..length).ok_or_else(|| format!("the block at offset {at} is cut off"))?;
        let written = lz4_flex::block::decompress_into(content, &mut block)
            .map_err(|error| format!("the block at offset {at} is damaged: {error}"))?;
        all.extend_from_slice(block.get(..written).unwrap_or_default());
        offset += length;
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

    fn framed(content: &[u8]) -> Vec<u8> {
        // A block of literals only: a token with the length in its upper half, then the bytes.
        assert!(content.len() < 15);
        let token = u8::try_from(content.len() << 4).unwrap();
        let length = u32::try_from(content.len() + 1).unwrap();
        [&length.to_le_bytes()[..], &[token], content].concat()
    }

    #[test]
    fn blocks_follow_each_other() {
        let packed = [&LZ4_MAGIC[..], &framed(b"first "), &framed(b"second"), &12u32.to_le_bytes()].concat();
        assert_eq!(lz4(&packed).unwrap(), b"first second");
        assert_eq!(lz4(&packed[..13]).unwrap_err(), "the block at offset 4 is cut off");
        let damaged = [&LZ4_MAGIC[..], &5u32.to_le_bytes(), &[0xff; 5]].concat();
        assert!(lz4(&damaged).unwrap_err().starts_with("the block at offset 4 is damaged: "));
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
