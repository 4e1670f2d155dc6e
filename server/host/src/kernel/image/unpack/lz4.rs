//! The legacy LZ4 frame format of kernel images (`lz4 -l`; lib/decompress_unlz4.c): blocks, each
//! with its packed length before it.

const MAGIC: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];

/// Every block but the last one has this length when it is unpacked.
const BLOCK_BYTES: usize = 8 << 20;

/// The build of x86 appends the length of the unpacked kernel (scripts/Makefile.lib:size_append).
const TRAILER_BYTES: usize = 4;

/// The unpacked bytes. What follows the blocks may be the length of all of them.
pub(super) fn unpacked(packed: &[u8]) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    let mut block = vec![0; BLOCK_BYTES];
    let mut offset = 0;
    loop {
        let rest = packed.get(offset..).unwrap_or_default();
        if rest.len() <= TRAILER_BYTES {
            return Ok(all);
        }
        let Some((head, rest)) = rest.split_first_chunk() else { return Ok(all) };
        let at = offset;
        offset += head.len();
        // Frames may follow each other.
        if *head == MAGIC {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(content: &[u8]) -> Vec<u8> {
        // A block of literals only: a token with the length in its upper half, then the bytes.
        assert!(content.len() < 15);
        let token = u8::try_from(content.len() << 4).unwrap();
        let length = u32::try_from(content.len() + 1).unwrap();
        [&length.to_le_bytes()[..], &[token], content].concat()
    }

    #[test]
    fn blocks_follow_each_other() {
        let packed = [&MAGIC[..], &framed(b"first "), &framed(b"second"), &12u32.to_le_bytes()].concat();
        assert_eq!(unpacked(&packed).unwrap(), b"first second");
        assert_eq!(unpacked(&packed[..13]).unwrap_err(), "the block at offset 4 is cut off");
        let damaged = [&MAGIC[..], &5u32.to_le_bytes(), &[0xff; 5]].concat();
        assert!(unpacked(&damaged).unwrap_err().starts_with("the block at offset 4 is damaged: "));
    }
}
