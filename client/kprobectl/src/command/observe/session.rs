//! One run of `observe` or `trace` on one daemon, from the request to the exit code.

use std::time::Duration;

use kprobed_client::event::{ResumingStream, Started, StreamRequest, TimeOrdered};

use super::cursor_file::CursorFile;
use super::follow::{End, EventSource, Follow, Traced};
use super::options::OutputOptions;
use super::selection_notes::ObservedSources;
use super::temporary_probes::TemporaryProbes;
use crate::command::child::Child;
use crate::command::connection::connect;
use crate::command::stop_condition::{StopCondition, StopReason};
use crate::command::{Exit, Failure};
use crate::global::Global;
use crate::output::{EventPrinter, Output};

/// Events that the command holds back to put them in the order of time.
const ORDERED_EVENTS: usize = 1_000_000;

/// A stream to follow, with its limits.
pub(in crate::command) struct Session {
    pub(in crate::command) request: StreamRequest,
    /// Temporary probes.
    pub(in crate::command) definitions: Vec<String>,
    /// The program to run as a child process. Empty for none.
    pub(in crate::command) command: Vec<String>,
    pub(in crate::command) count: Option<u64>,
    pub(in crate::command) duration: Option<Duration>,
    pub(in crate::command) quiet: bool,
    pub(in crate::command) form: OutputOptions,
    /// Put events into the order of time here as well.
    pub(in crate::command) ordered: bool,
    pub(in crate::command) cursor_file: Option<CursorFile>,
    /// The stream has an end.
    pub(in crate::command) ends: bool,
    /// Do not connect again.
    pub(in crate::command) once: bool,
}

/// What a stream was opened with.
struct Prepared {
    source: EventSource,
    traced: Option<Traced>,
    observing: Option<String>,
}

impl Session {
    pub(in crate::command) async fn run(
        mut self,
        global: &Global,
        output: &mut Output,
    ) -> Result<Exit, Failure> {
        let mut stop = StopCondition::new(None).map_err(Failure::Signals)?;
        for field in &self.form.fields {
            self.request = self.request.field(field.clone());
        }
        // The daemon deletes probes that were already defined when their hold is dropped.
        let Prepared { source, traced, observing } = tokio::select! {
            prepared = self.prepare(global, output) => prepared?,
            _ = stop.wait() => return Err(Failure::Interrupted),
        };
        // The stream has begun before anything records, and everything records before the program
        // runs: however short it is, its events are in the stream.
        let is_over = match &traced {
            None => false,
            Some(traced) => tokio::select! {
                biased;
                () = stop.signal() => true,
                enabled = traced.probes.enable(output) => {
                    enabled?;
                    false
                }
            },
        };
        let style = self.form.style(global, observing, self.quiet, None);
        let mut printer = EventPrinter::new(output, style);
        printer.start()?;
        let runs = !self.command.is_empty() && !is_over;
        let child = if runs { Some(Child::start(&self.command)?) } else { None };
        // The duration counts from here: events can arrive now.
        stop.begin(self.duration);
        stop.or_after(child.as_ref());
        let ordered = self.ordered.then(|| TimeOrdered::new(ORDERED_EVENTS));
        let follow = Follow {
            source,
            limit: self.count,
            ordered,
            cursor_file: self.cursor_file,
            cut_sequence: None,
            traced,
        };
        let limited =
            self.count.is_some() || self.duration.is_some() || self.ends || !self.command.is_empty();
        let mut exit = match follow.run(is_over, &mut stop, &mut printer).await {
            Ok(End::Enough | End::Stopped(StopReason::Elapsed | StopReason::ChildEnded)) => Ok(Exit::Success),
            // Without a limit an interrupt is the regular end; with one, it is early.
            Ok(End::Stopped(StopReason::Signal)) => {
                Ok(if limited { Exit::Interrupted } else { Exit::Success })
            }
            Ok(End::ByDaemon) if self.ends => Ok(Exit::Success),
            Ok(End::ByDaemon) => Err(Failure::StreamEnded),
            Err(failure) => Err(failure.in_stream()),
        };
        if !exit.as_ref().is_err_and(Failure::is_broken_pipe) {
            printer.print_summary();
        }
        if let (Some(child), Ok(Exit::Success)) = (child, &exit) {
            tokio::select! {
                how = child.wait() => how.iter().for_each(|how| output.note(how)),
                () = stop.signal() => exit = Ok(Exit::Interrupted),
            }
        }
        exit
    }

    /// Connects, makes the probes and begins the stream of their events.
    async fn prepare(&self, global: &Global, output: &mut Output) -> Result<Prepared, Failure> {
        let mut request = self.request.clone();
        let client = connect(global).await?;
        let temporary = if self.definitions.is_empty() {
            None
        } else {
            let temporary = TemporaryProbes::define(&client, &self.definitions, output).await?;
            for name in temporary.names() {
                request = request.probe(name.clone());
            }
            Some(temporary)
        };
        let mut observing = None;
        let mut selected = None;
        if !self.quiet {
            let sources = ObservedSources::by(&client, &request).await?;
            if !self.ends {
                if temporary.is_none() {
                    sources.note_silence(&request, output);
                }
                observing = Some(sources.description());
            }
            sources.note_lacking_fields(&self.form.fields, output);
            selected = temporary.is_none().then_some(sources);
        }
        let mut note_filters = |started: &Started| {
            if let Some(sources) = &selected {
                sources.note_filters(&started.filters, output);
            }
        };
        // Temporary probes end with the connection, so that it is not made again.
        if self.once || temporary.is_some() {
            let stream = client.stream_events(request).await?;
            note_filters(stream.started());
            let subscriber_id = stream.started().subscriber_id;
            let traced = temporary.map(|probes| Traced { probes, subscriber_id });
            return Ok(Prepared { source: EventSource::Once(Box::new(stream)), traced, observing });
        }
        let stream = ResumingStream::open(&client, request).await?;
        stream.started().into_iter().for_each(note_filters);
        Ok(Prepared { source: EventSource::Resuming(Box::new(stream)), traced: None, observing })
    }
}
