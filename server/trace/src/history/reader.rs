//! History reader of one subscription.
//!
//! Owns the conversion of a spool entry to a delivery: the stored message for a subscriber that
//! wants everything, and otherwise columns that pass through the subscriber's selection. It blocks
//! on the disk: never call it from a task of the async runtime.

use std::collections::HashMap;
use std::sync::Arc;

use super::stored;
use crate::pipeline::{
    Delivery, Item, Loss, LossCause, Order, Origin, Replay, ReplayStart, Since, Span, Subscription,
};
use crate::spool::{
    Cursor, EntryKind, EpochStart, HistoryStart, Limit, Missing, MissingCause, Spool, SpoolEntry, SpoolError,
    SpoolItem, SpoolReader,
};

/// The most that entries of the log are out of the order of time, as long as no reader thread is
/// held up: each of them rests for up to about fifty milliseconds on its own.
const DISORDER_NS: u64 = 1_000_000_000;

/// Bytes of entries after which no more are read at once: a full batch, or many small ones. A stream that replays holds
/// no more than one that follows the present.
const READ_BYTES: usize = 128 << 10;

/// Reader of the history for one subscription.
#[derive(Debug)]
pub struct HistoryReader {
    reader: SpoolReader,
    subscription: Arc<Subscription>,
    replay: Replay,
    begin: ReplayStart,
    /// Origins of the run that is being read, by schema number.
    origins: HashMap<u32, Arc<Origin>>,
    /// The same origins as a list, once an entry needs it.
    all_origins: Option<Arc<[Arc<Origin>]>>,
    is_first: bool,
    last_ns: u64,
    watermark_ns: u64,
}

impl HistoryReader {
    pub(super) fn open(
        spool: &Spool,
        start: HistoryStart,
        subscription: Arc<Subscription>,
    ) -> Result<Self, SpoolError> {
        let start = match start {
            // Sampling keeps one in this many of them.
            HistoryStart::Last(wanted) => {
                HistoryStart::Last(wanted.saturating_mul(subscription.view().sample_one_in.max(1)))
            }
            start => start,
        };
        let (replay, mut origins, mut counted) = (Replay::default(), HashMap::new(), 0_u64);
        let reader = spool.reader(start, |entry| {
            let events: u64 = match entry.kind {
                EntryKind::Schema => {
                    if let Some(origin) = stored::origin(&entry.payload) {
                        origins.insert(origin.schema_id, Arc::new(origin));
                        replay.forget();
                    }
                    0
                }
                EntryKind::Loss => 0,
                EntryKind::Events if subscription.view().is_of_everything() => entry.events.into(),
                EntryKind::Events => stored::batch(&entry.payload, &origins)
                    .map_or(0, |draft| subscription.wanted_of(&replay, &draft)),
            };
            counted += events;
            events
        })?;
        let begin = match start {
            HistoryStart::SinceWall(wall_ns) => {
                ReplayStart { since: Some(Since::wall(wall_ns)), ..ReplayStart::default() }
            }
            HistoryStart::Last(wanted) => {
                ReplayStart { skip: counted.saturating_sub(wanted), ..ReplayStart::default() }
            }
            HistoryStart::Cursor(_) | HistoryStart::Oldest => ReplayStart::default(),
        };
        Ok(Self {
            reader,
            subscription,
            // Those of the count are of all runs that it passed.
            replay: Replay::default(),
            begin,
            origins: HashMap::new(),
            all_origins: None,
            is_first: true,
            last_ns: 0,
            watermark_ns: 0,
        })
    }

    /// The next items: [`Item::Epoch`], [`Item::Batch`], [`Item::Loss`] and [`Item::Watermark`]. There are none if no
    /// event was selected. The second value is whether the reader has returned everything that was stored when it was
    /// made or last extended.
    ///
    /// # Errors
    /// See [`SpoolReader::next`].
    pub(crate) fn next_items(&mut self) -> Result<(Vec<Item>, bool), SpoolError> {
        let mut items = Vec::new();
        let mut bytes = 0;
        while bytes < READ_BYTES {
            match self.reader.next()? {
                None => return Ok((items, true)),
                Some(SpoolItem::EpochStart(start)) => self.begin_epoch(start, &mut items),
                Some(SpoolItem::Missing(missing)) => items.push(Item::Loss(self.missing(&missing))),
                Some(SpoolItem::Entry(entry)) => {
                    bytes += entry.payload.len();
                    self.take(&entry, &mut items);
                }
            }
        }
        Ok((items, false))
    }

    /// Extends the reader to everything stored until now. Returns the number of events of this run
    /// that it has not returned yet.
    pub fn extend(&mut self) -> u64 {
        let end = self.reader.extend();
        let at = self.reader.cursor();
        end.sequence.saturating_sub(if at.epoch == end.epoch { at.sequence } else { 0 })
    }

    /// Extends the reader to a limit.
    pub(crate) fn extend_to(&mut self, limit: Limit) {
        self.reader.extend_to(limit);
    }

    /// The position after what it has returned.
    pub fn cursor(&self) -> Cursor {
        self.reader.cursor()
    }

    /// The loss of events between those returned and the live stream, which begins at `sequence`,
    /// if there are any.
    pub(crate) fn missing_before(&self, sequence: u64) -> Option<Loss> {
        let events = sequence.checked_sub(self.cursor().sequence).filter(|events| *events > 0)?;
        self.subscription.count_loss(0);
        Some(Loss::anywhere(LossCause::NotStored, Some(events)))
    }

    fn begin_epoch(&mut self, start: EpochStart, items: &mut Vec<Item>) {
        let may_miss = !self.is_first && start.previous_ended_cleanly == Some(false);
        items.push(Item::Epoch { cursor: start.at, may_miss });
        self.is_first = false;
        self.begin.since.iter_mut().for_each(Since::forget_time_stamp);
        self.replay.forget();
        self.origins.clear();
        self.all_origins = None;
        (self.last_ns, self.watermark_ns) = (0, 0);
    }

    fn missing(&self, missing: &Missing) -> Loss {
        let count = missing.events();
        let cause = match missing.cause {
            MissingCause::Expired => LossCause::Expired,
            MissingCause::NotStored => LossCause::NotStored,
            MissingCause::Damaged => LossCause::Damaged,
        };
        self.subscription.count_loss(if cause == LossCause::Expired { count.unwrap_or(0) } else { 0 });
        Loss::anywhere(cause, count)
    }

    fn take(&mut self, entry: &SpoolEntry, items: &mut Vec<Item>) {
        match entry.kind {
            EntryKind::Schema => {
                if let Some(origin) = stored::origin(&entry.payload) {
                    self.learn(origin);
                } else {
                    tracing::warn!(schema = entry.key, "malformed schema in the history");
                }
            }
            EntryKind::Loss => {
                let loss = stored::loss(&entry.payload);
                if let Some(loss) = loss.filter(|_| !self.is_before(entry)) {
                    self.subscription.count_loss(0);
                    items.push(Item::Loss(loss));
                }
            }
            EntryKind::Events => self.take_events(entry, items),
        }
    }

    fn learn(&mut self, origin: Origin) {
        self.origins.insert(origin.schema_id, Arc::new(origin));
        self.all_origins = None;
        self.replay.forget();
    }

    /// Whether a loss was noticed before the time that the subscriber asked for.
    fn is_before(&self, entry: &SpoolEntry) -> bool {
        self.begin.since.is_some_and(|since| since.is_after(entry.last_ns, entry.wall_offset_ns))
    }

    fn take_events(&mut self, entry: &SpoolEntry, items: &mut Vec<Item>) {
        let as_it_is = self.subscription.view().is_of_everything() && self.begin.is_done();
        if as_it_is {
            self.subscription.count_replayed(entry.events.into());
            items.push(Item::Batch(self.as_it_is(entry)));
        } else if let Some(draft) = stored::batch(&entry.payload, &self.origins) {
            let (delivery, limited) = self.subscription.replay(
                &self.replay,
                &draft,
                (entry.sequence, entry.last_ns),
                &mut self.begin,
            );
            items.extend(delivery.map(Item::Batch));
            items.extend(limited.map(Item::Loss));
        } else {
            tracing::warn!(sequence = entry.sequence, "malformed events in the history");
            self.subscription.count_loss(0);
            let count = Some(entry.events.into());
            items.push(Item::Loss(Loss::on(entry.key, LossCause::Damaged, count, entry.first_ns)));
        }
        self.last_ns = self.last_ns.max(entry.last_ns);
        // This is well after the requested time: all further entries are later.
        if self.is_past_begin(entry) {
            self.begin.since = None;
        }
        self.tell_watermark(items);
    }

    fn is_past_begin(&mut self, entry: &SpoolEntry) -> bool {
        let since = self.begin.since.as_mut();
        since.is_some_and(|since| {
            let (begin_ns, _) = since.reach(entry.last_ns, entry.wall_offset_ns);
            entry.first_ns > begin_ns.saturating_add(DISORDER_NS)
        })
    }

    fn tell_watermark(&mut self, items: &mut Vec<Item>) {
        let watermark_ns = self.last_ns.saturating_sub(DISORDER_NS);
        if self.subscription.view().order == Order::Time && watermark_ns > self.watermark_ns {
            self.watermark_ns = watermark_ns;
            items.push(Item::Watermark(watermark_ns));
        }
    }

    fn as_it_is(&mut self, entry: &SpoolEntry) -> Delivery {
        let origins = &self.origins;
        let all = self.all_origins.get_or_insert_with(|| origins.values().cloned().collect());
        Delivery {
            cpu: entry.key,
            sequence: entry.sequence,
            log_events: entry.events.into(),
            events: entry.events.into(),
            span: Span { first_ns: entry.first_ns, last_ns: entry.last_ns },
            wall_offset_ns: entry.wall_offset_ns,
            origins: Arc::clone(all),
            message: entry.payload.clone(),
        }
    }
}
