//! `kprobectl ledger`: the account of every event.

use clap::Args;

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
`kprobectl help ledger` explains every column. Exits with 1 when the ledger is settled and does not close.

Examples:
  kprobectl ledger
  kprobectl ledger -o wide
  kprobectl ledger -o json
  kprobectl ledger -o json | jq '.exporters[] | select(.state == \"EXPORTER_STATE_FAILING\") | .error'";

/// With the meaning of every column; the names in brackets are those of `-o json`.
pub(crate) const AFTER_LONG_HELP: &str = "\
A row closes if its terms add up. The ledger is settled if nothing was recorded while the daemon read
it: then all its terms belong to one moment. `?` is a term that is not known.

Probes: HITS = READ + UNDECODABLE + NOT READ, and NOT READ = LOST + DISABLED + FILTERED + OWN,
since the probe was defined or the daemon started
  HITS         runs of the handler (kprobe_profile) [hits]; not counted for attached events
  READ         events that the daemon read and decoded [read, read_span]
  UNDECODABLE  events that it read and could not decode [undecodable]
  NOT READ     hits of which it read no event [not_read]
  LOST         hits that were lost in the ring buffers or in a pause [lost]; `?` if the buffers lost
               events while several probes recorded [loss_is_shared], since the kernel counts losses
               for all probes together, or if another program emptied a buffer
  PAUSED       the part of LOST while the daemon paused recording, to delete another probe or to
               enlarge the buffers [paused]
  DISABLED     hits while the probe was disabled, and an aggregation or another program used it
               [disabled]
  FILTERED     hits that the filter held back [filtered]; with OWN if the probe had a filter
  OWN          hits by threads of kprobed itself [own]: the kernel counts them and does not record
               them, since each would cause the next. Derived: hits while another program had
               switched recording off unnoticed are in it too
  NMISSED      runs of the handler that the kernel skipped [nmissed]; no part of HITS
  FIRST READ, LAST READ  time stamps of the events, in seconds of the trace clock

Buffers, one for each CPU
  CPU             its number [cpu]
  READ            events that the daemon read and decoded [read, read_span]
  OVERRUN         events that the kernel overwrote before the daemon read them
                  [overrun, overrun_span]
  COMMIT OVERRUN  events that the kernel gave up because writers were nested too deep
                  [commit_overrun]
  DROPPED EVENTS  events that the kernel refused because the buffer was full and another program
                  had switched overwriting off [dropped_events]
  RESETS          times that another program emptied the buffer [resets]; the kernel does not
                  count the events lost by it
  UNDECODABLE     events that the daemon read and could not decode [undecodable]
  PAGES           pages with events that it read [pages]
  BYTES           size of the buffer [buffer_bytes]
  FIRST READ, LAST READ        time stamps of the events, in seconds of the trace clock
  FIRST OVERRUN, LAST OVERRUN  time stamps of the first events after those gaps

Subscribers: READ = DELIVERED + QUEUED + DROPPED + LIMITED + SAMPLED OUT + FILTERED + NOT SELECTED
  SUBSCRIBER    its number [subscriber_id]
  SINCE         when it subscribed [start_time]
  READ          events that the daemon read since then [read]
  DELIVERED     events that it sent to the subscriber [delivered, delivered_span]
  QUEUED        events that wait to be sent [queued]
  DROPPED       events that did not fit into the queue [dropped, dropped_span]; OVERFLOW is the
                policy [overflow]
  LIMITED       events over the subscriber's own limit on the rate [limited]
  SAMPLED OUT   events that its sampling left out [sampled_out]
  FILTERED      events that its filter held back [filtered]
  NOT SELECTED  events of probes that it did not ask for [not_selected]
  REPLAYED      events of the history that it was sent [replayed]; no part of READ
  EXPIRED       events of the history that it asked for and that were deleted [expired]; no part of
                READ
  LOSS RECORDS  gaps that it was sent [loss_records]
  FIRST DELIVERED, LAST DELIVERED, FIRST DROPPED, LAST DROPPED  time stamps of those events

Enabled probes that do not record as requested, because another program has disabled, filtered or
removed their events, are listed below the tables with the reason [problems]

History [spool]: READ = STORED + IN MEMORY + NOT STORED
  HISTORY READ  events that the daemon read while the history was kept [read]
  STORED        events that it wrote [stored]
  IN MEMORY     events that wait until the disk works again [in_memory]; `observe --since` does not
                show them yet
  NOT STORED    events that it could not write: the disk was full, failed, or was too slow
                [not_stored]
  AVAILABLE     events on disk now, of all runs of the daemon [available]
  EXPIRED       events that it deleted since it started, to stay within the limits [expired]
  BYTES         bytes on disk [bytes]
  OLDEST        time of the oldest event on disk [oldest_time]
The last error of the history [last_error] is printed below.

Exporters [exporters]: READ = ACKNOWLEDGED + QUEUED + DROPPED + EXPIRED + NOT SELECTED
  EXPORTER      its section of the configuration [name]; the daemon has one for each section
                `[export.*]` that sends events, and each reads the log of events at its own pace
  DESTINATION   where it sends [destination]; shown to those who may call `GetHost`, as errors are
  STATE         what it is doing [state]: starting, running, or failing
  READ          events of the log since the exporter or the daemon was started [read, start_time]
  ACKNOWLEDGED  events that the receiver accepted [acknowledged]
  QUEUED        events that it has not read yet; they wait in the history [queued]; `?` while it
                reads an earlier run of the daemon
  DROPPED       events that the receiver refused finally [dropped]
  EXPIRED       events that were no longer in the history [expired]; gaps of unknown size are
                counted beside them [unknown_gaps]
  NOT SELECTED  events that its settings leave out [not_selected]
  FAILURES      attempts that failed; what they sent is sent again [failures]
  ACKNOWLEDGED AT  when the receiver last accepted something [acknowledged_time]
  CURSOR        where it goes on [cursor]
What is wrong is printed below: the last error of an exporter that fails, and when it tries again
[error, failing_since, failures_in_a_row, retry_time], why its receiver refused events finally
[refusal], and why its place cannot be written down [place_error].

Exits with 1 when the ledger is settled and does not close.

Examples:
  kprobectl ledger
  kprobectl ledger -o wide
  kprobectl ledger -o json
  kprobectl ledger -o json | jq '.exporters[] | select(.state == \"EXPORTER_STATE_FAILING\") | .error'";

/// Arguments of `ledger`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP, after_long_help = AFTER_LONG_HELP)]
pub(crate) struct Arguments {}

pub(crate) async fn run(
    global: &Global,
    _arguments: Arguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let ledger = client.ledger().await?;
    let closes = output.ledger(&ledger)?;
    Ok(if closes || !ledger.settled { Exit::Success } else { Exit::Refused })
}
