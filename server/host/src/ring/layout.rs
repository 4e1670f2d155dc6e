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
pub enum LayoutError {
    /// A field is not described.
    #[error("header_page does not describe `{field}`")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// An offset or size is not a number.
    #[error("header_page has no usable {key} for `{field}`")]
    Number {
        /// The field.
        field: &'static str,
        /// `offset` or `size`.
        key: &'static str,
    },
    /// A header word is not 64 bits wide.
    #[error("`{field}` of header_page has {bytes} bytes, not 8")]
    Width {
        /// The field.
        field: &'static str,
        /// Its size in bytes.
        bytes: usize,
    },
    /// The data area is empty, or larger than a commit word can say.
    #[error("a sub-buffer with {bytes} bytes of data at offset {offset} is not possible")]
    Data {
        /// Where the data area begins, in bytes.
        offset: usize,
        /// Its size in bytes.
        bytes: usize,
    },
}

impl PageLayout {
    /// Reads `events/header_page` (kernel/trace/ring_buffer.c:ring_buffer_print_page_header). Its
    /// `overwrite` line marks a bit and is not a field, and its `signed` column changed between
    /// releases: both are ignored.
    pub fn parse(header_page: &str) -> Result<Self, LayoutError> {
        let (timestamp_at, _) = word(header_page, "timestamp")?;
        let (commit_at, _) = word(header_page, "commit")?;
        let (data_at, data_bytes) = field(header_page, "data")?;
        let impossible = LayoutError::Data { offset: data_at, bytes: data_bytes };
        if data_bytes == 0 || u64::try_from(data_bytes).map_or(true, |bytes| bytes > COMMIT_MASK) {
            return Err(impossible);
        }
        let sub_buffer_bytes = data_at.checked_add(data_bytes).ok_or(impossible)?;
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

fn word(text: &str, name: &'static str) -> Result<(usize, usize), LayoutError> {
    match field(text, name)? {
        (offset, 8) => Ok((offset, 8)),
        (_, bytes) => Err(LayoutError::Width { field: name, bytes }),
    }
}

/// Offset and size of the field `name`. Lines are `field: TYPE
/// NAME;\toffset:N;\tsize:N;\tsigned:N;`.
fn field(text: &str, name: &'static str) -> Result<(usize, usize), LayoutError> {
    let rest = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("field:")?.split_once(';'))
        .find_map(|(declaration, rest)| {
            (declaration.split_ascii_whitespace().last()? == name).then_some(rest)
        })
        .ok_or(LayoutError::Missing { field: name })?;
    let number = |key: &'static str| {
        rest.split(';')
            .find_map(|part| part.trim().strip_prefix(key)?.strip_prefix(':')?.parse().ok())
            .ok_or(LayoutError::Number { field: name, key })
    };
    Ok((number("offset")?, number("size")?))
}
