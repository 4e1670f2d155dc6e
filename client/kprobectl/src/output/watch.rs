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
struct WatchView<'a> {
    /// Of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    #[serde(flatten)]
    message: Json,
    probe: Option<ProbeView>,
}

impl Output {
    /// Prints a message of a watch: a line or a document for a probe, a note for the rest. `host`:
    /// one of several.
    pub(crate) fn watched(&mut self, host: Option<&str>, message: &WatchProbesResponse) -> io::Result<()> {
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
            self.structured_stream(&WatchView { host, message, probe })?;
            return Ok(());
        }
        let Some(probe) = probe else {
            let of_host = host.map_or_else(String::new, |host| format!("{}: ", super::data::one_line(host)));
            match message.event() {
                WatchEvent::Synced => self.note(&format!("{of_host}these are all; changes follow")),
                WatchEvent::Restarted => self.note(&format!(
                    "{of_host}changes may have been missed while there was no connection: all probes follow"
                )),
                _ => {}
            }
            return Ok(());
        };
        // When the state began, which for a change is when it was noticed.
        let since = rfc3339(probe.state_time.as_ref()).unwrap_or_else(|| "-".to_owned());
        let (state, state_tone) = state(probe);
        if self.format == Format::Yaml {
            let of_host = host.map_or_else(String::new, |host| format!("{}, ", super::data::one_line(host)));
            self.line(&format!("---\n# {of_host}{event}, {state}"))?;
            self.documents(std::slice::from_ref(probe))?;
            return Ok(());
        }
        let of_host = host.map_or_else(String::new, |host| format!("{}  ", super::data::one_line(host)));
        let mut line = format!(
            "{since}  {of_host}{}  {}  {}",
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
