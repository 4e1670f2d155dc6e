//! Memory of a guest's kernel.

use std::ops::Range;

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::machine::Command;

use crate::daemon::DaemonGuest;

/// Reads memory of the kernel.
pub(crate) struct Memory<'a> {
    guest: &'a DaemonGuest,
    /// Addresses, and where they are in the file.
    segments: Vec<(Range<u64>, u64)>,
}

impl<'a> Memory<'a> {
    const PAGE: u64 = 4096;

    pub(crate) fn new(guest: &'a DaemonGuest) -> Result<Self> {
        let headers = Self::read_file(guest, 0, 16)?;
        let word = |at: usize| {
            headers.get(at..at + 8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
        };
        let count = headers.get(56).copied().context("no core")?;
        let segment = |index: usize| {
            let at = 64 + 56 * index;
            let (offset, start, size) = (word(at + 8)?, word(at + 16)?, word(at + 40)?);
            Some((start..start.checked_add(size)?, offset))
        };
        Ok(Self { guest, segments: (0..count.into()).filter_map(segment).collect() })
    }

    fn read_file(guest: &DaemonGuest, page: u64, pages: u64) -> Result<Vec<u8>> {
        let command = format!("dd if=/proc/kcore bs={} skip={page} count={pages} 2> /dev/null", Self::PAGE);
        let output = guest.machine.exec(&Command::shell(command))?;
        ensure!(output.status.success(), "{:?}", output.status);
        Ok(output.stdout)
    }

    pub(crate) fn read(&self, addresses: &Range<u64>) -> Result<Vec<u8>> {
        let is_in = |segment: &&(Range<u64>, u64)| segment.0.contains(&addresses.start);
        let (segment, offset) = self.segments.iter().find(is_in).context("no memory there")?;
        let offset = offset + (addresses.start - segment.start);
        let length = addresses.end.min(segment.end) - addresses.start;
        let before = offset % Self::PAGE;
        let bytes = Self::read_file(self.guest, offset / Self::PAGE, (before + length).div_ceil(Self::PAGE))?;
        let begin = usize::try_from(before)?;
        Ok(bytes.get(begin..begin + usize::try_from(length)?).context("memory is missing")?.to_vec())
    }
}
