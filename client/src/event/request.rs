//! Request of an event stream.
//!
//! It builds messages of the API and checks nothing: the daemon does.

use std::time::{Duration, SystemTime};

use crate::api;
use crate::api::stream_start::Start;
use kprobed_event::Cursor;

/// A subscription under construction. The default is all events of all probes from now on,
/// including future probes.
///
/// ```
/// use kprobed_client::api::EventOrder;
/// use kprobed_client::event::StreamRequest;
///
/// let request = StreamRequest::new()
///     .probe("kprobes/*")
///     .label_selector("team in (storage,net),!reviewed")
///     .filter("dfd == -100 && filename ~ \"/etc/*\"")
///     .last_events(1000)
///     .order(EventOrder::Time);
/// assert_eq!(request.selection().probes, ["kprobes/*"]);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamRequest {
    selection: api::EventSelection,
    fields: Vec<String>,
    start: Option<Start>,
    until_now: bool,
    delivery: api::Delivery,
}

impl StreamRequest {
    /// All events from now on.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only probes whose names match this glob (`*`, `?`) or one of those that were given before.
    #[must_use]
    pub fn probe(mut self, glob: impl Into<String>) -> Self {
        self.selection.probes.push(glob.into());
        self
    }

    /// Only probes whose labels match, as kubectl writes it: `key=value`, `key!=value`, `key`,
    /// `!key`, `key in (a,b)`, `key notin (a,b)`, with commas between. Replaces the selector that
    /// was given before.
    #[must_use]
    pub fn label_selector(mut self, selector: impl Into<String>) -> Self {
        self.selection.label_selector = selector.into();
        self
    }

    /// Only events that pass this filter, in the language of the kernel's event filters. `comm`,
    /// `pid`, `tgid`, `cpu`, `probe` and `host` are what all events have; a field of the probe with
    /// one of these names is `fields.NAME`. Replaces an earlier filter.
    #[must_use]
    pub fn filter(mut self, filter: impl Into<String>) -> Self {
        self.selection.filter = filter.into();
        self
    }

    /// Only every `events`-th event that passes everything else. 0 and 1: all.
    #[must_use]
    pub fn sample_one_in(mut self, events: u64) -> Self {
        self.selection.sample_one_in = events;
        self
    }

    /// Only this field, and those that were given before: a field of a probe, or `tid`, `comm`,
    /// `context` or `location`.
    #[must_use]
    pub fn field(mut self, name: impl Into<String>) -> Self {
        self.fields.push(name.into());
        self
    }

    /// Begin with the first event that this cursor has not seen.
    #[must_use]
    pub fn after(self, cursor: Cursor) -> Self {
        Self { start: Some(Start::Cursor(cursor.into())), ..self }
    }

    /// Begin with the first event of the history at or after this time.
    #[must_use]
    pub fn since(self, time: SystemTime) -> Self {
        Self { start: Some(Start::Since(time.into())), ..self }
    }

    /// Begin with the history, this many selected events back.
    #[must_use]
    pub fn last_events(self, events: u64) -> Self {
        Self { start: Some(Start::LastEvents(events)), ..self }
    }

    /// Begin with the oldest event of the history.
    #[must_use]
    pub fn oldest(self) -> Self {
        Self { start: Some(Start::Oldest(true)), ..self }
    }

    /// End after the events that happened before the call.
    #[must_use]
    pub fn until_now(self) -> Self {
        Self { until_now: true, ..self }
    }

    /// Order of events. For the order of time, see [`super::TimeOrdered`].
    #[must_use]
    pub fn order(mut self, order: api::EventOrder) -> Self {
        self.delivery.order = order.into();
        self
    }

    /// How events are delivered: their order and pace, and the queue in the daemon. Replaces what was given before.
    #[must_use]
    pub fn delivery(self, delivery: api::Delivery) -> Self {
        Self { delivery, ..self }
    }

    /// In the order of time: have the daemon say at least this often how far it has read, even if
    /// nothing happens, so that events of other hosts need not wait. In whole milliseconds; zero:
    /// only when something happens.
    #[must_use]
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.delivery.heartbeat_ms = u32::try_from(interval.as_millis()).unwrap_or(u32::MAX);
        self
    }

    /// Which events it selects.
    pub fn selection(&self) -> &api::EventSelection {
        &self.selection
    }

    /// Whether the stream has an end: see [`StreamRequest::until_now`].
    pub fn ends(&self) -> bool {
        self.until_now
    }

    /// Whether it requests no past events.
    pub(super) fn starts_now(&self) -> bool {
        self.start.is_none()
    }

    /// Whether a full queue ends the stream.
    pub(super) fn disconnects_on_overflow(&self) -> bool {
        self.delivery.overflow() == api::OverflowPolicy::Disconnect
    }
}

impl From<StreamRequest> for api::StreamEventsRequest {
    fn from(request: StreamRequest) -> Self {
        Self {
            start: Some(api::StreamStart { start: request.start, until_now: request.until_now }),
            selection: Some(request.selection),
            fields: request.fields,
            delivery: Some(request.delivery),
            form: api::EventForm::Columns.into(),
        }
    }
}
