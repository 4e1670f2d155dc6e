//! Where the events of a run come from, and how each thing in them is printed.
//!
//! The events of one daemon are printed batch by batch, as they come; those of many hosts are merged in one order of
//! time first. The place in the file of `--cursor` never passes an event that was not printed: after a crash some
//! events may be printed again, and none is missed.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};
use std::{fs, io};

use kprobed_client::Client;
use kprobed_client::api::StreamStarted;
use kprobed_client::event::format::Origin;
use kprobed_client::event::{
    Batch, Cursor, Interruption, ResumingItem, ResumingStream, Row, StreamItem, TimeOrdered,
};
use kprobed_client::fleet::{Operation as _, Outcome, names};
use kprobed_client::merge::{HostAccount, HostState, MergedEvent, MergedItem, MergedStream};

use super::joined::JoinedCalls;
use super::temporary_probes::Last;
use crate::command::Failure;
use crate::config::replace;
use crate::output::EventPrinter;

/// Events that the command holds back to put them in the order of time.
const ORDERED_EVENTS: usize = 1_000_000;

/// Where events come from.
pub(super) enum Source {
    One(Box<OneHost>),
    Many(Box<ManyHosts>),
}

/// What came.
pub(super) enum Step {
    /// Events or a gap, which were printed, or nothing for people.
    Printed,
    /// The state of a host is known, or has changed.
    Host { name: String, is_live: bool },
    /// Nothing more comes.
    Over,
}

/// Stream of one daemon. Its host has no name here.
pub(super) struct OneHost {
    stream: ResumingStream,
    /// Whether a lost connection ends it.
    once: bool,
    /// Events that wait for others, in the order of time.
    ordered: Option<TimeOrdered>,
    cursor_file: Option<CursorFile>,
    /// Where the limit cut a batch, which is not printed to its end.
    cut: Option<Cut>,
    /// Where the run before ended, until the first batch arrives: it may be one that was cut there.
    before: Option<Place>,
    /// Which events are the last ones, when the probes are deleted.
    last: Option<Last>,
    is_over: bool,
    /// The connection was lost, and is not made again yet.
    is_lost: bool,
    /// The run of the daemon that the stream is in.
    epoch: Option<u64>,
    /// The calls that are shown.
    calls: JoinedCalls,
}

/// Merged stream of many hosts.
pub(super) struct ManyHosts {
    merged: MergedStream,
    /// Hosts of which nothing is known yet.
    connecting: HashSet<String>,
    /// All selected hosts, those included that are not in the stream.
    hosts: usize,
    /// Events before this are not shown, in nanoseconds since 1970.
    since_ns: Option<i64>,
    /// The calls that are shown.
    calls: JoinedCalls,
}

impl Source {
    /// The stream of one daemon.
    pub(super) fn of_one(
        stream: ResumingStream,
        once: bool,
        is_ordered: bool,
        cursor_file: Option<CursorFile>,
        calls: JoinedCalls,
    ) -> Self {
        Self::One(Box::new(OneHost {
            stream,
            once,
            ordered: is_ordered.then(|| TimeOrdered::new(ORDERED_EVENTS)),
            before: cursor_file.as_ref().and_then(|file| file.saved.clone()),
            cursor_file,
            cut: None,
            last: None,
            is_over: false,
            is_lost: false,
            epoch: None,
            calls,
        }))
    }

    /// The streams of many.
    pub(super) fn of_many(
        merged: MergedStream,
        hosts: usize,
        calls: JoinedCalls,
        since_ns: Option<i64>,
    ) -> Self {
        let connecting = merged.accounts().into_iter().map(|account| account.host).collect();
        Self::Many(Box::new(ManyHosts { merged, connecting, hosts, since_ns, calls }))
    }

    /// Waits for the next thing, and prints it.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn step(&mut self, printer: &mut EventPrinter<'_>) -> Result<Step, Failure> {
        match self {
            Self::One(one) => one.step(printer).await,
            Self::Many(many) => many.step(printer).await,
        }
    }

    /// The connection to a host whose stream has begun. Absent for a single daemon.
    pub(super) fn client(&self, host: &str) -> Option<Client> {
        match self {
            Self::One(_) => None,
            Self::Many(many) => many.merged.client(host),
        }
    }

    /// Whether all hosts have been heard of.
    pub(super) fn is_known(&self) -> bool {
        match self {
            Self::One(_) => true,
            Self::Many(many) => many.connecting.is_empty(),
        }
    }

    /// Whether a host did not answer, or does not any longer.
    pub(super) fn has_missing(&self) -> bool {
        matches!(self, Self::Many(many) if many.merged.has_missing())
    }

    /// Gives a host up whose probes could not be enabled.
    ///
    /// # Errors
    /// The failure itself, if no other host is left.
    pub(super) fn give_up(&mut self, host: &str, failure: Failure) -> Result<(), Failure> {
        let Self::Many(many) = self else { return Err(failure) };
        many.merged.give_up(host, failure.to_string(), failure.outcome());
        Ok(())
    }

    /// What a host said when its stream began; the only one has no name.
    pub(super) fn started(&self, host: &str) -> Option<&StreamStarted> {
        match self {
            Self::One(one) => one.stream.started(),
            Self::Many(many) => many.merged.started(host),
        }
    }

    /// Hosts that take no requests any more.
    pub(super) fn gone(&self) -> HashSet<String> {
        match self {
            Self::One(one) => one.is_over.then(String::new).into_iter().collect(),
            Self::Many(many) => {
                let accounts = many.merged.accounts().into_iter();
                let gone = accounts.filter(|account| account.state == HostState::GivenUp);
                gone.map(|account| account.host).collect()
            }
        }
    }

    /// The events of a host end here.
    pub(super) fn end_host(&mut self, host: &str, last: Last) {
        match self {
            Self::One(one) => one.last = Some(last),
            Self::Many(many) => {
                if let Last::Before(trace_ns) = last {
                    many.merged.end_host(host, trace_ns);
                }
            }
        }
    }

    /// Which of the last events may be missing, if some may. `failed`: hosts whose probes still record; `why`: why
    /// reading has ended.
    pub(super) fn unread(
        &self,
        recording: &HashSet<String>,
        failed: &[(String, String)],
        why: &str,
        printer: &EventPrinter<'_>,
    ) -> Option<String> {
        match self {
            Self::One(one) => match &one.last {
                Some(Last::Unknown(why)) => Some(why.clone()),
                _ if !one.is_whole(printer) => Some(why.to_owned()),
                _ => (!failed.is_empty()).then(|| "the probes still record".to_owned()),
            },
            Self::Many(many) => {
                let mut unread: Vec<String> = failed.iter().map(|(_, host)| host.clone()).collect();
                let accounts = many.merged.accounts().into_iter();
                let open = accounts.filter(|account| account.state != HostState::Ended);
                unread.extend(open.map(|account| account.host).filter(|host| recording.contains(host)));
                let hosts = names::fold(unread.iter().map(String::as_str));
                (!unread.is_empty()).then(|| format!("{hosts} did not send them"))
            }
        }
    }

    /// Ends reading, and prints what has arrived, up to the limit.
    pub(super) async fn finish(&mut self, printer: &mut EventPrinter<'_>) -> Result<(), Failure> {
        match self {
            Self::One(one) => {
                if let Some(ordered) = &mut one.ordered {
                    ordered.finish();
                }
                one.print_ordered(printer)?;
                one.calls.finish(printer)?;
                printer.summary.late = one.ordered.as_ref().map_or(0, TimeOrdered::late_events);
            }
            Self::Many(many) => {
                many.merged.finish();
                while !printer.is_full() && !matches!(many.step(printer).await?, Step::Over) {}
                many.calls.finish(printer)?;
                let accounts = many.merged.accounts();
                printer.summary.delivered = accounts.iter().map(|account| account.read).sum();
                printer.summary.late = accounts.iter().map(|account| account.late).sum();
            }
        }
        Ok(())
    }

    /// Whether the place should be saved now.
    pub(super) fn is_save_due(&self) -> bool {
        matches!(self, Self::One(one) if one.cursor_file.as_ref().is_some_and(CursorFile::is_due))
    }

    /// Saves the place: every event before it has been printed.
    pub(super) fn save(&mut self) -> Result<(), Failure> {
        match self {
            Self::One(one) => one.save(),
            Self::Many(_) => Ok(()),
        }
    }

    /// The accounts of hosts that have names.
    pub(super) fn accounts(&self) -> Vec<HostAccount> {
        match self {
            Self::One(_) => Vec::new(),
            Self::Many(many) => many.merged.accounts(),
        }
    }

    /// Of many hosts, those that answer, and all.
    pub(super) fn answering(&self) -> Option<(usize, usize)> {
        let Self::Many(many) = self else { return None };
        let accounts = many.merged.accounts();
        Some((accounts.iter().filter(|account| account.outcome == Outcome::Answered).count(), many.hosts))
    }
}

impl OneHost {
    async fn step(&mut self, printer: &mut EventPrinter<'_>) -> Result<Step, Failure> {
        if self.is_over || matches!(self.last, Some(Last::Unknown(_))) || self.is_whole(printer) {
            return Ok(Step::Over);
        }
        match self.stream.next().await? {
            Some(ResumingItem::Item(StreamItem::Started(_))) => {
                printer.summary.reconnects += u64::from(std::mem::take(&mut self.is_lost));
                return Ok(Step::Host { name: String::new(), is_live: true });
            }
            Some(ResumingItem::Item(item)) => self.print(item, printer)?,
            Some(ResumingItem::Interrupted(Interruption { error: Some(error), .. })) if self.once => {
                return Err(error.into());
            }
            Some(ResumingItem::Interrupted(interruption)) if !self.once => {
                self.is_lost = true;
                printer.interrupted(&interruption)?;
            }
            Some(ResumingItem::Interrupted(_)) | None => {
                self.is_over = true;
                return Ok(Step::Over);
            }
        }
        Ok(Step::Printed)
    }

    /// Whether all that the daemon had for this command when the probes were deleted has come.
    fn is_whole(&self, printer: &EventPrinter<'_>) -> bool {
        let Some(Last::Counted { events, left_out }) = self.last else { return false };
        // The queue reports what it left out after the events before that.
        printer.summary.delivered >= events && printer.summary.left_out() >= left_out
    }

    fn print(&mut self, item: StreamItem, printer: &mut EventPrinter<'_>) -> Result<(), Failure> {
        match item {
            StreamItem::Started(_) | StreamItem::Schema(_) => {}
            StreamItem::Loss(loss) => {
                printer.loss(None, &loss)?;
                self.calls.gap("", &loss, &[]);
            }
            StreamItem::CaughtUp(cursor) => printer.caught_up(&cursor)?,
            StreamItem::Epoch(epoch) => {
                if let Some(ordered) = &mut self.ordered {
                    ordered.finish();
                }
                self.print_ordered(printer)?;
                let number = epoch.cursor.epoch;
                let is_restart = self.epoch.replace(number).is_some_and(|before| before != number);
                if (is_restart || epoch.may_miss) && !printer.is_full() {
                    printer.new_run(None, &epoch, is_restart)?;
                }
                if is_restart {
                    self.calls.begin_anew("", printer)?;
                }
            }
            StreamItem::Watermark(watermark) => {
                if let Some(ordered) = &mut self.ordered {
                    ordered.advance(watermark.watermark_ns);
                }
                self.print_ordered(printer)?;
            }
            StreamItem::Batch(batch) => {
                printer.summary.delivered += batch.len() as u64;
                let Some(ordered) = &mut self.ordered else {
                    return self.print_batch(&batch, printer);
                };
                self.calls.arrived(&batch);
                ordered.push(batch);
                self.print_ordered(printer)?;
            }
        }
        Ok(())
    }

    fn print_batch(&mut self, batch: &Batch, printer: &mut EventPrinter<'_>) -> Result<(), Failure> {
        let first = self.first_of(batch);
        let mut rows = batch.rows();
        while let Some(row) = rows.next() {
            if first.is_after(&row) {
                printer.summary.delivered = printer.summary.delivered.saturating_sub(1);
                continue;
            }
            printer.row(&row, None)?;
            if printer.is_full() {
                let rest = rows.next().map(|row| Rest { ns: row.timestamp_ns(), number: row.number() });
                self.cut = rest.map(|rest| Cut { sequence: batch.sequence(), rest });
                break;
            }
        }
        Ok(())
    }

    /// The first event of a batch that the run before did not print: any, if it printed none of them. The events of a
    /// batch are of one CPU, and in the order of time.
    fn first_of(&mut self, batch: &Batch) -> Rest {
        let place = self.before.take().filter(|place| {
            place.cursor.sequence == batch.sequence() && self.epoch == Some(place.cursor.epoch)
        });
        place.and_then(|place| place.rest).unwrap_or_default()
    }

    fn print_ordered(&mut self, printer: &mut EventPrinter<'_>) -> Result<(), Failure> {
        let Some(ordered) = &mut self.ordered else { return Ok(()) };
        while !printer.is_full() {
            if ordered.is_next_hurried() {
                self.calls.close(printer)?;
            }
            let Some(row) = ordered.next_row() else { break };
            self.calls.row(&row, None, printer)?;
        }
        Ok(())
    }

    fn save(&mut self) -> Result<(), Failure> {
        let (Some(cursor_file), Some(cursor)) = (&mut self.cursor_file, self.stream.cursor()) else {
            return Ok(());
        };
        let waiting = self.ordered.as_ref().and_then(TimeOrdered::oldest_sequence);
        let mut cursor = cursor.clone();
        let cut = self.cut.map(|cut| cut.sequence);
        cursor.sequence = [waiting, cut].into_iter().flatten().fold(cursor.sequence, u64::min);
        cursor_file.save(&cursor, self.cut.map(|cut| cut.rest))
    }
}

impl ManyHosts {
    async fn step(&mut self, printer: &mut EventPrinter<'_>) -> Result<Step, Failure> {
        let Some(item) = self.merged.next().await else { return Ok(Step::Over) };
        match item {
            MergedItem::Event(MergedEvent { host, row, corrected_ns, late })
                if self.since_ns.is_none_or(|since_ns| corrected_ns >= since_ns) =>
            {
                let corrected_ns = corrected_ns.max(0).unsigned_abs();
                let origin = Some(Origin { host, corrected_ns, late });
                self.calls.row(&row, origin, printer)?;
            }
            MergedItem::Loss { host, loss, arrived } => {
                printer.loss(Some(host), &loss)?;
                self.calls.gap(host, &loss, &arrived);
            }
            MergedItem::NewRun { host, run, is_restart } => {
                printer.new_run(Some(host), &run, is_restart)?;
                self.calls.begin_anew(host, printer)?;
            }
            MergedItem::Malformed { host, problem, cursor } => {
                printer.gap(host, &problem, cursor.as_ref())?;
                self.calls.begin_anew(host, printer)?;
            }
            MergedItem::State(change) => {
                printer.host_state(&change, self.hosts)?;
                if change.state != HostState::Connecting {
                    self.connecting.remove(change.host);
                    let is_live = change.state == HostState::Live;
                    return Ok(Step::Host { name: change.host.to_owned(), is_live });
                }
            }
            // An event from before that time, or a kind of item that this command does not know yet.
            _ => {}
        }
        Ok(Step::Printed)
    }
}

/// How often the place is saved on the way.
const INTERVAL: Duration = Duration::from_secs(1);

/// Where a batch begins that is not printed to its end, and its first event that is not printed.
#[derive(Clone, Copy)]
struct Cut {
    sequence: u64,
    rest: Rest,
}

/// The first event of a batch that is not printed: its time, and its number, which orders events of one time.
#[derive(Clone, Copy, Default, PartialEq)]
struct Rest {
    ns: u64,
    number: u64,
}

impl Rest {
    /// Whether this event of the batch was printed.
    fn is_after(self, row: &Row<'_>) -> bool {
        row.timestamp_ns() < self.ns || (row.timestamp_ns() == self.ns && row.number() < self.number)
    }
}

/// A place in the events: the cursor, and of a batch that was cut there, its first event that is not printed. In a
/// file, `BOOT:EPOCH:SEQUENCE`, and the time and the number after blanks.
#[derive(Clone)]
struct Place {
    cursor: Cursor,
    rest: Option<Rest>,
}

impl FromStr for Place {
    type Err = <Cursor as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let cut = text.split_once(' ').and_then(|(cursor, rest)| {
            let (ns, number) = rest.split_once(' ')?;
            Some((cursor, Rest { ns: ns.parse().ok()?, number: number.parse().ok()? }))
        });
        let (cursor, rest) = cut.map_or((text, None), |(cursor, rest)| (cursor, Some(rest)));
        Ok(Self { cursor: cursor.parse()?, rest })
    }
}

/// A file with a place in it.
pub(super) struct CursorFile {
    path: PathBuf,
    saved: Option<Place>,
    saved_at: Instant,
}

impl CursorFile {
    /// Reads the file; one that does not exist yet will be made.
    ///
    /// # Errors
    /// When it cannot be read, or is something else.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let saved = match fs::read_to_string(path) {
            Ok(text) => Some(text.trim().parse().map_err(|error| {
                let hint = "remove the file to begin with new events";
                Failure::usage(format!("cannot use `{}`: {error}", path.display()), hint)
            })?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(why) => return Err(Failure::unreadable(path, &why)),
        };
        Ok(Self { path: path.to_owned(), saved, saved_at: Instant::now() })
    }

    /// Where to continue.
    pub(super) fn cursor(&self) -> Option<&Cursor> {
        self.saved.as_ref().map(|place| &place.cursor)
    }

    /// Whether it is time to save the place again.
    pub(super) fn is_due(&self) -> bool {
        self.saved_at.elapsed() >= INTERVAL
    }

    /// Saves a place, with the first event that is not printed if a batch was cut there. The file is replaced as a
    /// whole, so that it is never half written or empty, even if the machine stops.
    ///
    /// # Errors
    /// When the file cannot be written.
    fn save(&mut self, cursor: &Cursor, rest: Option<Rest>) -> Result<(), Failure> {
        self.saved_at = Instant::now();
        // At the place of the run before, nothing was printed: its cut still holds.
        let is_there = |saved: &Place| saved.cursor == *cursor && (rest.is_none() || saved.rest == rest);
        if self.saved.as_ref().is_some_and(is_there) {
            return Ok(());
        }
        let behind = rest.map(|Rest { ns, number }| format!(" {ns} {number}")).unwrap_or_default();
        replace(&self.path, format!("{cursor}{behind}\n").as_bytes())?;
        self.saved = Some(Place { cursor: cursor.clone(), rest });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_the_file_stays_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("place"), directory.path().join("link"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for sequence in [3, 5] {
            fs::write(&file, format!("b0:2:{sequence}\n")).unwrap();
            let cursor = Cursor { boot_id: "b0".to_owned(), epoch: 2, sequence: sequence + 1 };
            CursorFile::open(&link).unwrap().save(&cursor, None).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), format!("b0:2:{}\n", sequence + 1));
        }
    }

    #[test]
    fn a_cut_stays_until_there_is_another_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("place");
        let cursor = |sequence| Cursor { boot_id: "b0".to_owned(), epoch: 2, sequence };
        let saved = |sequence, rest: Option<(u64, u64)>| {
            let mut file = CursorFile::open(&path).unwrap();
            file.save(&cursor(sequence), rest.map(|(ns, number)| Rest { ns, number })).unwrap();
            fs::read_to_string(&path).unwrap()
        };
        assert_eq!(saved(3, Some((70, 4))), "b0:2:3 70 4\n");
        assert_eq!(saved(3, None), "b0:2:3 70 4\n", "nothing came");
        assert_eq!(saved(3, Some((70, 5))), "b0:2:3 70 5\n", "the next event of the same time");
        assert_eq!(saved(6, None), "b0:2:6\n");
        for text in ["b0:2:3 x 4", "b0:2:3 70 4 1", "x 70 4"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }
}
