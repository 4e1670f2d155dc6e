//! Record walk: the events of a page, with their times.
//!
//! Owns record headers and the arithmetic of time. Never looks into a payload.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::page::PageError;

/// Record types in the low five bits of a header (include/linux/ring_buffer.h:enum
/// ring_buffer_type); smaller ones are data.
const TYPE_PADDING: u32 = 29;
const TYPE_TIME_EXTEND: u32 = 30;
const TYPE_TIME_STAMP: u32 = 31;

const TYPE_BITS: u32 = 5;
const TYPE_MASK: u32 = 0x1f;

/// Bits of time in a record header; the second word of an extend or absolute stamp continues above
/// them (TS_SHIFT).
const DELTA_BITS: u32 = 27;

/// What an absolute stamp cannot hold of a time: its upper five bits (TS_MSB, 5.13).
const ABSOLUTE_BITS: u32 = 59;

/// One event as it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Time of the event, in nanoseconds of the trace clock.
    pub timestamp_ns: u64,
    /// The payload. Its length is rounded up to four bytes, so it does not show the size of the
    /// last field.
    pub payload: &'a [u8],
}

/// Iterator over the records of a page. It skips padding, discarded events and time records, and
/// accounts for their time. It ends after the first error.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    data_bytes: usize,
    now_ns: u64,
}

impl<'a> Records<'a> {
    pub(super) const fn new(timestamp_ns: u64, data: &'a [u8]) -> Self {
        Self { rest: data, data_bytes: data.len(), now_ns: timestamp_ns }
    }

    /// Offset of the next bytes to read.
    const fn at(&self) -> usize {
        self.data_bytes.saturating_sub(self.rest.len())
    }

    /// Calls `found` with every record, in order, and with the data of the page from its payload on
    /// (or less): a caller that decodes many records can then read the same number of bytes of
    /// each. It is faster than the iterator: nearly all records have one simple form, and while
    /// they do, the state of the walk stays in registers.
    ///
    /// # Errors
    /// [`PageError`], after all records before it.
    #[inline]
    pub fn each(mut self, mut found: impl FnMut(Record<'a>, &'a [u8])) -> Result<(), PageError> {
        while !self.rest.is_empty() {
            let (mut rest, mut now_ns) = (self.rest, self.now_ns);
            while let Some((record, onward)) = short(&mut rest, &mut now_ns) {
                found(record, onward);
            }
            (self.rest, self.now_ns) = (rest, now_ns);
            if let Some(record) = self.other()? {
                found(record, record.payload);
            }
        }
        Ok(())
    }

    /// One step for a record that is not of the simple form.
    #[cold]
    #[inline(never)]
    fn other(&mut self) -> Result<Option<Record<'a>>, PageError> {
        if self.rest.is_empty() { Ok(None) } else { self.step() }
    }

    /// Steps over one record and returns it if it carries an event
    /// (kernel/trace/ring_buffer.c:rb_event_length, rb_event_data_length).
    #[inline]
    fn step(&mut self) -> Result<Option<Record<'a>>, PageError> {
        let (header, after) = self.word("record header", self.rest)?;
        let (kind, delta) = (header & TYPE_MASK, u64::from(header >> TYPE_BITS));
        match kind {
            0 => {
                let (length, after) = self.word("length word of the record", after)?;
                let payload_bytes = self.beyond_length_word(length)?;
                self.data(delta, after, payload_bytes).map(Some)
            }
            TYPE_PADDING => self.padding(delta, after).map(|()| None),
            TYPE_TIME_EXTEND => {
                let (high, after) = self.word("time extend", after)?;
                self.now_ns = self.now_ns.wrapping_add((u64::from(high) << DELTA_BITS) | delta);
                self.rest = after;
                Ok(None)
            }
            TYPE_TIME_STAMP => {
                let (high, after) = self.word("absolute time stamp", after)?;
                self.now_ns = complete((u64::from(high) << DELTA_BITS) | delta, self.now_ns);
                self.rest = after;
                Ok(None)
            }
            words => self.data(delta, after, (words << 2) as usize).map(Some),
        }
    }

    /// A record whose payload of `bytes` begins with `after`.
    #[inline]
    fn data(&mut self, delta: u64, after: &'a [u8], bytes: usize) -> Result<Record<'a>, PageError> {
        let Some((payload, rest)) = after.split_at_checked(bytes) else {
            let available = self.rest.len();
            let needed = available.saturating_sub(after.len()).saturating_add(bytes);
            return Err(PageError::BeyondData { part: "record", at: self.at(), needed, available });
        };
        self.now_ns = self.now_ns.wrapping_add(delta);
        self.rest = rest;
        Ok(Record { timestamp_ns: self.now_ns, payload })
    }

    /// A discarded event, or the unused end of the page. The delta of a discarded event counts,
    /// because the writer counted the next one from it (rb_event_discard); the filler at the end of
    /// a page has a delta of 1 that nothing follows (rb_reset_tail).
    fn padding(&mut self, delta: u64, after: &'a [u8]) -> Result<(), PageError> {
        if delta == 0 {
            self.rest = &[];
            return Ok(());
        }
        let (length, after) = self.word("length word of the padding", after)?;
        let bytes = self.beyond_length_word(length)?;
        let Some(rest) = after.get(bytes..) else {
            let (needed, available) = (bytes.saturating_add(8), self.rest.len());
            return Err(PageError::BeyondData { part: "padding", at: self.at(), needed, available });
        };
        self.now_ns = self.now_ns.wrapping_add(delta);
        self.rest = rest;
        Ok(())
    }

    /// The first word of `bytes`, and what follows it.
    #[inline]
    fn word(&self, part: &'static str, bytes: &'a [u8]) -> Result<(u32, &'a [u8]), PageError> {
        let (word, after) =
            bytes.split_first_chunk().ok_or_else(|| PageError::CutShort { part, at: self.at() })?;
        Ok((u32::from_le_bytes(*word), after))
    }

    /// The rest of a length that includes its own word.
    fn beyond_length_word(&self, length: u32) -> Result<usize, PageError> {
        let rest = length.checked_sub(4).filter(|rest| rest % 4 == 0);
        rest.and_then(|rest| usize::try_from(rest).ok())
            .ok_or(PageError::LengthInvalid { at: self.at(), length })
    }
}

/// Steps over a record whose length is in its header, if there is one. Its payload is the beginning
/// of the returned bytes.
#[inline]
fn short<'a>(rest: &mut &'a [u8], now_ns: &mut u64) -> Option<(Record<'a>, &'a [u8])> {
    let (header, after) = rest.split_first_chunk()?;
    let header = u32::from_le_bytes(*header);
    let words = header & TYPE_MASK;
    if words == 0 || words >= TYPE_PADDING {
        return None;
    }
    let (payload, behind) = after.split_at_checked((words << 2) as usize)?;
    *now_ns = now_ns.wrapping_add(u64::from(header >> TYPE_BITS));
    *rest = behind;
    Some((Record { timestamp_ns: *now_ns, payload }, after))
}

/// The full time of an absolute stamp, which has only 59 bits, from a time shortly before it
/// (kernel/trace/ring_buffer.c:rb_fix_abs_ts). A time without the upper bits stays as it is even if
/// it is before `previous_ns`: clocks that are not synchronised step back.
fn complete(absolute: u64, previous_ns: u64) -> u64 {
    let upper = previous_ns >> ABSOLUTE_BITS << ABSOLUTE_BITS;
    let full = absolute | upper;
    if upper != 0 && full < previous_ns { full.wrapping_add(1 << ABSOLUTE_BITS) } else { full }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, PageError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            match self.step() {
                Ok(None) => {}
                Ok(Some(record)) => return Some(Ok(record)),
                Err(error) => {
                    self.rest = &[];
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
