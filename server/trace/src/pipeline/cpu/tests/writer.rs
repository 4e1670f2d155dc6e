//! Model of the kernel's ring buffer writer: pages as it fills and returns them
//! (kernel/trace/ring_buffer.c).

/// A happening on one CPU.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    /// An event is recorded, this long after the one before it.
    Event { after_ns: u64, payload: Vec<u8> },
    /// An event is recorded and taken back.
    Discarded { after_ns: u32, words: usize },
    /// The kernel overwrites this number of unread events.
    Overwritten { events: u64 },
}

/// Layout of pages, on which the result must not depend.
#[derive(Clone, Debug)]
pub(super) struct Manner {
    /// Size of a sub-buffer.
    pub(super) sub_buffer_bytes: usize,
    /// After how many events the reader reads a page that is not full, repeated in a cycle. Empty:
    /// never before a page is full.
    pub(super) reads: Vec<usize>,
    /// Whether long times are written as absolute ones.
    pub(super) is_absolute: bool,
    /// Whether the unused end of a page is committed, as padding.
    pub(super) is_padded: bool,
}

/// Time stamp and commit word.
pub(super) const HEADER_BYTES: usize = 16;
const DELTA_BITS: u32 = 27;
const ABSOLUTE_BITS: u32 = 59;
const MISSED: u64 = 1 << 31;
const MISSED_STORED: u64 = 1 << 30;
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;

/// The pages that a reader gets.
pub(super) fn pages(start_ns: u64, happenings: &[Happening], manner: &Manner) -> Vec<Vec<u8>> {
    let mut writer = Writer {
        manner,
        handed_out: Vec::new(),
        now_ns: start_ns,
        data: Vec::new(),
        stamp_ns: start_ns,
        used: 0,
        missed: 0,
        events: 0,
        visits: 0,
    };
    for happening in happenings {
        writer.write(happening);
    }
    writer.hand_out();
    writer.handed_out
}

struct Writer<'a> {
    manner: &'a Manner,
    handed_out: Vec<Vec<u8>>,
    /// Time of what was written last.
    now_ns: u64,
    /// Data on the page that was not read.
    data: Vec<u8>,
    /// Time before it.
    stamp_ns: u64,
    /// Bytes of the page that are in use, including data that was read.
    used: usize,
    /// Events overwritten since the reader got the last page.
    missed: u64,
    /// Events since the last read.
    events: usize,
    /// Number of reads.
    visits: usize,
}

impl Writer<'_> {
    const fn capacity(&self) -> usize {
        self.manner.sub_buffer_bytes - HEADER_BYTES
    }

    fn write(&mut self, happening: &Happening) {
        match happening {
            Happening::Event { after_ns, payload } => {
                let before_ns = self.now_ns;
                self.now_ns += after_ns;
                let body = body(payload);
                let mut delta_ns = *after_ns;
                if self.used > 0 && delta_ns >> DELTA_BITS > 0 {
                    // Both are written at once, so they are on one page.
                    if self.used + 8 + body.len() > self.capacity() {
                        self.next_page();
                    } else {
                        self.stamp(before_ns, delta_ns);
                        delta_ns = 0;
                    }
                }
                self.append(&body, delta_ns);
                self.reader_comes_by();
            }
            Happening::Discarded { after_ns, words } => {
                self.now_ns += u64::from(*after_ns);
                let length = u32::try_from(4 + words * 4).unwrap();
                let body =
                    [&PADDING.to_le_bytes()[..], &length.to_le_bytes(), &vec![0xdd; words * 4]].concat();
                // As the first record of a page it would get a wrong delta (rb_event_discard), and
                // the next one would be late by that.
                if self.used + body.len() > self.capacity() {
                    self.next_page();
                } else if self.used > 0 {
                    self.append(&body, (*after_ns).into());
                }
            }
            Happening::Overwritten { events } => {
                self.next_page();
                self.missed += events;
            }
        }
    }

    /// The time stamp before an event that is long after the last one (rb_add_time_stamp).
    fn stamp(&mut self, before_ns: u64, delta_ns: u64) {
        let (kind, value) = if self.manner.is_absolute {
            (TIME_STAMP, (before_ns + delta_ns) & ((1 << ABSOLUTE_BITS) - 1))
        } else {
            (TIME_EXTEND, delta_ns)
        };
        let low = u32::try_from(value & ((1 << DELTA_BITS) - 1)).unwrap();
        self.data.extend((low << 5 | kind).to_le_bytes());
        self.data.extend(u32::try_from(value >> DELTA_BITS).unwrap().to_le_bytes());
        self.used += 8;
    }

    /// Writes a record whose header has no time yet. The first one of a page has the time of the
    /// page (rb_move_tail, __rb_reserve_next).
    fn append(&mut self, body: &[u8], delta_ns: u64) {
        if self.used + body.len() > self.capacity() {
            self.next_page();
        }
        let delta_ns = if self.used == 0 {
            self.stamp_ns = self.now_ns;
            0
        } else {
            u32::try_from(delta_ns).unwrap()
        };
        let (header, rest) = body.split_first_chunk().unwrap();
        self.data.extend((u32::from_le_bytes(*header) | delta_ns << 5).to_le_bytes());
        self.data.extend(rest);
        self.used += body.len();
    }

    /// Ends the page (rb_reset_tail) and gives it to the reader.
    fn next_page(&mut self) {
        let left = self.capacity() - self.used;
        if self.manner.is_padded && !self.data.is_empty() && left >= 4 {
            let header = if left < 8 { PADDING } else { PADDING | 1 << 5 };
            self.data.extend(header.to_le_bytes());
            if left >= 8 {
                self.data.extend(u32::try_from(left - 4).unwrap().to_le_bytes());
                self.data.resize(self.data.len() + left - 8, 0xee);
            }
        }
        self.hand_out();
        self.used = 0;
    }

    fn reader_comes_by(&mut self) {
        self.events += 1;
        let reads = &self.manner.reads;
        if !reads.is_empty() && self.events >= reads[self.visits % reads.len()] {
            self.visits += 1;
            self.events = 0;
            self.hand_out();
        }
    }

    /// Gives the unread data to the reader (ring_buffer_read_page). Later data on the page counts
    /// from the time of the last event read.
    fn hand_out(&mut self) {
        let data = std::mem::take(&mut self.data);
        let stamp_ns = std::mem::replace(&mut self.stamp_ns, self.now_ns);
        if data.is_empty() {
            return;
        }
        let mut commit = data.len() as u64;
        let mut stored = Vec::new();
        let missed = std::mem::take(&mut self.missed);
        if missed > 0 {
            // Added as signed numbers of 32 bits.
            commit |= MISSED | 0xffff_ffff_0000_0000;
            if self.capacity() - data.len() >= 8 {
                commit |= MISSED_STORED;
                stored.extend(missed.to_le_bytes());
            }
        }
        let mut page = [&stamp_ns.to_le_bytes()[..], &commit.to_le_bytes(), &data, &stored].concat();
        page.resize(self.manner.sub_buffer_bytes, 0xa5);
        self.handed_out.push(page);
    }
}

/// A record without its time: the length is in the header if it fits (rb_update_event).
fn body(payload: &[u8]) -> Vec<u8> {
    let words = payload.len() / 4;
    if (1..=28).contains(&words) {
        return [&u32::try_from(words).unwrap().to_le_bytes()[..], payload].concat();
    }
    let length = u32::try_from(payload.len() + 4).unwrap();
    [&0_u32.to_le_bytes()[..], &length.to_le_bytes(), payload].concat()
}
