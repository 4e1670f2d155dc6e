//! Loop from the events of a run to the printer, and its end: temporary probes are deleted, and what they recorded
//! until then is printed.

use std::time::Duration;

use kprobed_client::fleet::names;
use tokio::time::Instant;

use super::observed::AllCounts;
use super::session::Session;
use super::source::{Source, Step};
use super::temporary_probes::{Deleted, Enabled, HostProbes};
use crate::command::Failure;
use crate::command::stop_condition::{Child, StopCondition, StopReason, until};
use crate::output::{EventPrinter, Recorded};

/// How long the last events may take after the probes are deleted.
const REST: Duration = Duration::from_secs(5);

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The limit of events was reached.
    Enough,
    /// A signal, or the time was up.
    Stopped(StopReason),
    /// Nothing more comes.
    Over,
    /// A host did not answer, and nothing was to be done after that.
    Failed,
    /// A signal, before anything was followed.
    Interrupted,
}

/// A run under way.
pub(super) struct Follow<'a> {
    pub(super) session: &'a Session,
    pub(super) source: Source,
    /// Temporary probes.
    pub(super) probes: HostProbes,
    /// What is observed of one daemon. Absent if the stream does not follow new events, or with `--quiet`.
    pub(super) observing: Option<String>,
    /// Counts of the observed probes, if the end of the command is to say which runs the kernel skipped.
    pub(super) before: Option<AllCounts>,
    /// Whether one host without an answer ends the run.
    pub(super) fail_fast: bool,
    /// All hosts are known, and all temporary probes record.
    pub(super) has_begun: bool,
}

impl Follow<'_> {
    /// Follows to the end, and saves the place on the way.
    pub(super) async fn follow(
        &mut self,
        stop: &mut StopCondition,
        printer: &mut EventPrinter<'_>,
    ) -> Result<End, Failure> {
        let mut pending = false;
        loop {
            // Of one daemon nothing is read before its probes record: its first events come after the headings.
            let is_held = matches!(self.source, Source::One(_)) && self.probes.is_enabling();
            let step = tokio::select! {
                biased;
                reason = stop.wait() => return Ok(End::Stopped(reason)),
                enabled = self.probes.enabled() => {
                    self.enabled(enabled, printer)?;
                    self.begin(stop, printer)?;
                    continue;
                }
                step = self.source.step(printer), if !is_held => step?,
                // Nothing has arrived: flush the output.
                () = std::future::ready(()), if pending => {
                    printer.flush()?;
                    pending = false;
                    continue;
                }
            };
            pending = true;
            match step {
                Step::Over => return Ok(End::Over),
                Step::Printed => {}
                Step::Host { name, is_live } => {
                    if is_live {
                        self.count(&name);
                        self.probes.enable(&name, self.source.started(&name).cloned());
                    }
                    self.begin(stop, printer)?;
                }
            }
            if printer.is_full() {
                return Ok(End::Enough);
            }
            if self.fail_fast && self.source.has_missing() {
                return Ok(End::Failed);
            }
            // On a terminal every line is flushed.
            if printer.is_terminal() {
                printer.flush()?;
            }
            if self.source.is_save_due() {
                printer.flush()?;
                self.source.save()?;
            }
        }
    }

    /// Reads the counts of the observed probes of a host whose stream has begun.
    fn count(&mut self, host: &str) {
        if let (Some(before), Some(client)) = (&mut self.before, self.source.client(host)) {
            before.begin(host, client, self.probes.select(host, self.session.request.clone()));
        }
    }

    /// Reports what is observed, and starts the child process, when every host is known and all probes record:
    /// however short the program is, its events are in the stream.
    fn begin(&mut self, stop: &mut StopCondition, printer: &mut EventPrinter<'_>) -> Result<(), Failure> {
        if self.has_begun || self.probes.is_enabling() || !self.source.is_known() {
            return Ok(());
        }
        printer.start()?;
        let answering = self.source.answering();
        if answering.is_none_or(|(here, _)| here > 0) && !self.session.command.is_empty() {
            stop.child = Some(Child::start(&self.session.command)?);
        }
        self.has_begun = true;
        // The duration counts from here: events can arrive now.
        stop.begin(self.session.duration);
        let hosts = answering.map(|(here, hosts)| format!("{here} of {hosts} hosts"));
        match hosts.or_else(|| self.observing.take()) {
            Some(what) => Ok(printer.observing(&what)?),
            None => Ok(()),
        }
    }

    /// Reports what a host answered when its probes were enabled.
    fn enabled(&mut self, (host, result): Enabled, printer: &mut EventPrinter<'_>) -> Result<(), Failure> {
        match result {
            Ok(messages) => printer.host_messages(&host, messages)?,
            Err(failure) => {
                self.source.give_up(&host, failure)?;
                self.probes.forget(&host);
            }
        }
        Ok(())
    }

    /// Deletes the temporary probes, and prints what they recorded until then, unless the limit was
    /// reached.
    pub(super) async fn delete(
        &mut self,
        end: Result<End, Failure>,
        stop: &mut StopCondition,
        printer: &mut EventPrinter<'_>,
    ) -> Result<End, Failure> {
        if self.session.definitions.is_empty() {
            return end;
        }
        let mut end = end.inspect_err(|_| printer.summary.unread = Some(AN_ERROR.to_owned()))?;
        let recording = self.probes.names();
        let is_one = matches!(self.source, Source::One(_));
        let subscriber_id = |host: &str| self.source.started(host).map(|started| started.subscriber_id);
        let gone = self.source.gone();
        let mut deleting = self.probes.delete(&gone, subscriber_id, is_one);
        let mut recorded = gone.is_empty().then(Recorded::default);
        let mut failed: Vec<(String, String)> = Vec::new();
        let mut is_shown = !matches!(end, End::Enough);
        let (mut patience, mut why) = (None, "the stream ended before them");
        while !deleting.is_empty() || is_shown {
            if deleting.is_empty() {
                patience.get_or_insert_with(|| Instant::now() + REST);
            }
            tokio::select! {
                biased;
                // A second signal stops the wait. The daemons delete the probes by themselves.
                () = stop.signal() => {
                    end = End::Stopped(StopReason::Signal);
                    why = "interrupted";
                    break;
                }
                Some(deleted) = deleting.join_next() => {
                    let Ok(Deleted { host, skipped, failure, last, recorded: more }) = deleted else {
                        recorded = None;
                        continue;
                    };
                    recorded = recorded.zip(more).map(|(sum, more)| sum + more);
                    for runs in skipped {
                        printer.summary.skip(runs);
                    }
                    self.source.end_host(&host, last);
                    failed.extend(failure.map(|error| (error.to_string(), host)));
                }
                () = until(patience) => {
                    why = "the daemon did not send them in time";
                    break;
                }
                step = self.source.step(printer), if is_shown => {
                    is_shown = match step {
                        Ok(step) => !matches!(step, Step::Over),
                        Err(failure) => {
                            printer.summary.unread = Some(AN_ERROR.to_owned());
                            return Err(failure);
                        }
                    };
                    if printer.is_full() {
                        is_shown = false;
                        end = End::Enough;
                    }
                }
            }
        }
        if deleting.is_empty() {
            printer.summary.recorded = recorded;
        }
        if !matches!(end, End::Enough) {
            printer.summary.unread = self.source.unread(&recording, &failed, why, printer);
        }
        failed.sort_unstable();
        for same in failed.chunk_by(|one, other| one.0 == other.0) {
            let hosts = names::fold(same.iter().map(|(_, host)| host.as_str()));
            let of = if hosts.is_empty() { hosts } else { format!("{hosts}: ") };
            let reason = same.first().map_or("", |(reason, _)| reason.as_str());
            printer.note(&format!("{of}the daemon deletes the probes when this command has ended: {reason}"));
        }
        Ok(end)
    }
}

/// Why the last events may be missing after a failure.
const AN_ERROR: &str = "an error came before them";
