//! What becomes of probes, as it happens.

use std::io;

use kprobed_client::api::{WatchEvent, WatchProbesResponse};
use serde::Serialize;

use super::Output;
use super::probe::{ProbeView, state};
use super::style::Tone;
use super::time::rfc3339;

/// A message of a watch, for programs.
#[derive(Serialize)]
struct WatchView<'a> {
    event: &'static str,
    probe: Option<ProbeView<'a>>,
    resume_token: &'a str,
}

impl Output {
    /// Prints a message of a watch: a line for a probe, a note for the rest.
    pub(crate) fn watched(&mut self, message: &WatchProbesResponse) -> io::Result<()> {
        let (event, tone) = match message.event() {
            WatchEvent::Present => ("present", Tone::Faint),
            WatchEvent::Synced => ("synced", Tone::Faint),
            WatchEvent::Added => ("added", Tone::Good),
            WatchEvent::Changed => ("changed", Tone::Plain),
            WatchEvent::Deleted => ("deleted", Tone::Doubtful),
            WatchEvent::Restarted => ("restarted", Tone::Bad),
            WatchEvent::Unspecified => ("unknown", Tone::Plain),
        };
        let probe = message.probe.as_ref();
        let view = WatchView { event, probe: probe.map(ProbeView::new), resume_token: &message.resume_token };
        if self.structured_stream(&view)? {
            return Ok(());
        }
        let Some(probe) = probe else {
            match message.event() {
                WatchEvent::Synced => self.note("these are all; changes follow"),
                WatchEvent::Restarted => {
                    self.note(
                        "changes may have been missed while there was no connection: all probes follow",
                    );
                }
                _ => {}
            }
            return Ok(());
        };
        // When the state began, which for a change is when it was noticed.
        let since = rfc3339(probe.state_time.as_ref()).unwrap_or_else(|| "-".to_owned());
        let (state, state_tone) = state(probe);
        let mut line = format!(
            "{since}  {}  {}  {}",
            self.style.paint(tone, &format!("{event:<7}")),
            super::data::one_line(&probe.name),
            self.style.paint(state_tone, state)
        );
        if !probe.state_message.is_empty() {
            line.push_str("  ");
            line.push_str(&super::data::one_line(&probe.state_message));
        }
        self.line(&line)
    }
}
