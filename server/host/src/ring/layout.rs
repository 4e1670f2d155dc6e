//! Sub-buffer layout: offsets and sizes from the `events/header_page` file.
//!
//! Owns its grammar. The data size in it follows the `buffer_subbuf_size_kb` of the same instance
//! (6.8 and later), so a layout is valid for one instance and until that file is written. Never
//! reads the file itself.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::page::COMMIT_MASK;

/// Offsets and sizes within a sub-buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    pub(super) timestamp_at: usize,
    pub(super) commit_at: usize,
    pub(super) data_at: usize,
    data_bytes: usize,
    sub_buffer_bytes: usize,
}

/// Why a text is not the `events/header_page` of a 64-bit kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LayoutError(String);

impl PageLayout {
    /// Reads `events/header_page` (kernel/trace/ring_buffer.c:ring_buffer_print_page_header). Its
    /// `overwrite` line marks a bit and is not a field, and its `signed` column changed between
    /// releases: both are ignored.
    pub fn parse(header_page: &str) -> Result<Self, LayoutError> {
        let (timestamp_at, _) = word(header_page, "timestamp")?;
        let (commit_at, _) = word(header_page, "commit")?;
        let (data_at, data_bytes) = field(header_page, "data")?;
        let impossible = || {
            let message =
                format!("a sub-buffer with {data_bytes} bytes of data at offset {data_at} is not possible");
            LayoutError(message)
        };
        if data_bytes == 0 || u64::try_from(data_bytes).map_or(true, |bytes| bytes > COMMIT_MASK) {
            return Err(impossible());
        }
        let sub_buffer_bytes = data_at.checked_add(data_bytes).ok_or_else(impossible)?;
        Ok(Self { timestamp_at, commit_at, data_at, data_bytes, sub_buffer_bytes })
    }

    /// Size of a sub-buffer in bytes. Every read(2) of `trace_pipe_raw` must ask for exactly this
    /// many: after a shorter one, the next read returns the rest of the same page.
    pub const fn sub_buffer_bytes(&self) -> usize {
        self.sub_buffer_bytes
    }

    /// How many bytes of records fit into a sub-buffer.
    pub const fn data_capacity_bytes(&self) -> usize {
        self.data_bytes
    }
}

fn word(text: &str, name: &str) -> Result<(usize, usize), LayoutError> {
    match field(text, name)? {
        (offset, 8) => Ok((offset, 8)),
        (_, bytes) => Err(LayoutError(format!("`{name}` of header_page has {bytes} bytes, not 8"))),
    }
}

/// Offset and size of the field `name`. Lines are `field: TYPE
/// NAME;\toffset:N;\tsize:N;\tsigned:N;`.
fn field(text: &str, name: &str) -> Result<(usize, usize), LayoutError> {
    let rest = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("field:")?.split_once(';'))
        .find_map(|(declaration, rest)| {
            (declaration.split_ascii_whitespace().last()? == name).then_some(rest)
        })
        .ok_or_else(|| LayoutError(format!("header_page does not describe `{name}`")))?;
    let number = |key: &str| {
        rest.split(';')
            .find_map(|part| part.trim().strip_prefix(key)?.strip_prefix(':')?.parse().ok())
            .ok_or_else(|| LayoutError(format!("header_page has no usable {key} for `{name}`")))
    };
    Ok((number("offset")?, number("size")?))
}
