//! Numbers in the byte order of x86-64, in bytes that may end before them.

/// The number of 16 bits at an offset.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().map(|number| u16::from_le_bytes(*number))
}

/// The number of 32 bits at an offset.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|number| u32::from_le_bytes(*number))
}

/// The number of 64 bits at an offset.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..)?.first_chunk().map(|number| u64::from_le_bytes(*number))
}
