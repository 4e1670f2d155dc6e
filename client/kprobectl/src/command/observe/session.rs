//! From what is to be followed to an exit code.

use std::time::Duration;

use kprobed_client::Client;
use kprobed_client::event::{ResumingStream, StreamRequest, TimeOrdered};

use super::follow::{End, Follow, Source};
use super::notes::Selected;
use super::options::Form;
use super::place::Place;
use super::temporary::Temporary;
use crate::cli::Global;
use crate::command::child::Child;
use crate::command::connection::connect;
use crate::command::stop::{Stop, StopReason};
use crate::command::{Exit, Failure};
use crate::output::{EventPrinter, Output};

/// Events that the command holds back to put them in the order of time.
const ORDERED_EVENTS: usize = 1_000_000;

/// What to follow, and how long.
pub(super) struct Session {
    pub(super) request: StreamRequest,
    /// Probes that are there for this only.
    pub(super) definitions: Vec<String>,
    /// A program to run meanwhile. Empty for none.
    pub(super) command: Vec<String>,
    pub(super) count: Option<u64>,
    pub(super) duration: Option<Duration>,
    pub(super) quiet: bool,
    pub(super) form: Form,
    /// Put events into the order of time here as well.
    pub(super) ordered: bool,
    pub(super) place: Option<Place>,
    /// The stream has an end.
    pub(super) ends: bool,
    /// Do not connect again.
    pub(super) once: bool,
}

/// What a stream was opened with.
struct Prepared {
    client: Client,
    source: Source,
    temporary: Option<Temporary>,
    observing: Option<String>,
}

impl Session {
    pub(super) async fn run(mut self, global: &Global, output: &mut Output) -> Result<Exit, Failure> {
        let mut stop = Stop::new(self.duration).map_err(Failure::Signals)?;
        for field in &self.form.fields {
            self.request = self.request.field(field.clone());
        }
        // Whatever was made by then goes with its hold.
        let Prepared { client, source, temporary, observing } = tokio::select! {
            prepared = self.prepare(global, output) => prepared?,
            _ = stop.wait() => return Err(Failure::Interrupted),
        };
        if let Some(temporary) = &temporary {
            temporary.enable(output).await?;
        }
        let child = if self.command.is_empty() { None } else { Some(Child::start(&self.command)?) };
        // The time begins when there is something to see.
        stop.begin(self.duration);
        stop.or_after(child.as_ref());
        let style = self.form.style(global, observing, self.quiet, None);
        let mut printer = EventPrinter::new(output, style);
        let ordered = self.ordered.then(|| TimeOrdered::new(ORDERED_EVENTS));
        let follow = Follow {
            source,
            limit: self.count,
            stop,
            ordered,
            place: self.place,
            cut_sequence: None,
            temporary: temporary.map(|temporary| (client, temporary)),
            subscriber: None,
        };
        let limited = self.count.is_some() || self.duration.is_some() || self.ends || child.is_some();
        let exit = match follow.run(&mut printer).await {
            Ok(End::Enough | End::Stopped(StopReason::Elapsed | StopReason::ChildEnded)) => Ok(Exit::Success),
            // Without a limit an interrupt is how following ends; with one, it comes too early.
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
        if let (Some(child), Ok(Exit::Success)) = (child, &exit)
            && let Some(how) = child.wait().await
        {
            output.note(&how);
        }
        exit
    }

    /// Connects, makes the probes and subscribes to their events.
    async fn prepare(&self, global: &Global, output: &mut Output) -> Result<Prepared, Failure> {
        let mut request = self.request.clone();
        let client = connect(global).await?;
        let temporary = if self.definitions.is_empty() {
            None
        } else {
            let temporary = Temporary::define(&client, &self.definitions, output).await?;
            for name in temporary.names() {
                request = request.probe(name.clone());
            }
            Some(temporary)
        };
        let mut observing = None;
        if !self.quiet {
            let selected = Selected::by(&client, &request).await?;
            if !self.ends {
                if temporary.is_none() {
                    selected.note_silence(&request, output);
                }
                observing = Some(selected.description());
            }
            selected.note_lacking_fields(&self.form.fields, output);
            if temporary.is_none() {
                selected.note_push_down(&client, &request, output).await?;
            }
        }
        // Probes that are there for this only go with the connection: there is nothing to connect to again.
        let source = if self.once || temporary.is_some() {
            Source::Once(Box::new(client.stream_events(request).await?))
        } else {
            Source::Resuming(Box::new(ResumingStream::open(&client, request).await?))
        };
        Ok(Prepared { client, source, temporary, observing })
    }
}
