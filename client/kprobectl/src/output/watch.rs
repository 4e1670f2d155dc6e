//! Changes of probes for `list --watch`.

use std::io;

use kprobed_client::api::{WatchEvent, WatchProbesResponse};
use kprobed_document::json::Json;
use serde::Serialize;

use super::Output;
use super::probe::{ProbeView, kind, labels_text, state};
use super::style::Tone;
use super::time::rfc3339;
use crate::global::Format;

/// A message of a watch, as JSON and YAML.
#[derive(Serialize)]
struct WatchView {
    #[serde(flatten)]
    message: Json,
    probe: Option<ProbeView>,
}

impl Output {
    /// Prints a message of a watch: a line or a document for a probe, a note for the rest.
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
        if self.format == Format::Json {
            let (message, probe) = (Json::full(message).without(&["probe"]), probe.map(ProbeView::new));
            self.structured_stream(&WatchView { message, probe })?;
            return Ok(());
        }
        let Some(probe) = probe else {
            match message.event() {
                WatchEvent::Synced => self.note("these are all; changes follow"),
                WatchEvent::Restarted => {
                    let missed =
                        "changes may have been missed while there was no connection: all probes follow";
                    self.note(missed);
                }
                _ => {}
            }
            return Ok(());
        };
        // When the state began, which for a change is when it was noticed.
        let since = rfc3339(probe.state_time.as_ref()).unwrap_or_else(|| "-".to_owned());
        let (state, state_tone) = state(probe);
        if self.format == Format::Yaml {
            self.line(&format!("---\n# {event}, {state}"))?;
            self.documents(std::slice::from_ref(probe))?;
            return Ok(());
        }
        let mut line = format!(
            "{since}  {}  {}  {}",
            self.style.paint(tone, &format!("{event:<7}")),
            super::data::one_line(&probe.name),
            self.style.paint(state_tone, state)
        );
        if self.is_wide() {
            for text in [kind(probe), &probe.location, &probe.filter, &labels_text(probe)] {
                line.push_str("  ");
                line.push_str(&super::data::one_line(if text.is_empty() { "-" } else { text }));
            }
        }
        if !probe.state_message.is_empty() {
            line.push_str("  ");
            line.push_str(&super::data::one_line(&probe.state_message));
        }
        self.line(&line)
    }
}
