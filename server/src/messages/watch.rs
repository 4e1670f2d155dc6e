//! API messages of a watch of probes, and the tokens of its positions.

use kprobed_proto::v1;

use super::probe;
use crate::control::{WatchPosition, Watched, WatchedEvent};

/// One thing that a watch tells.
pub(crate) fn watched(watched: &Watched) -> v1::WatchProbesResponse {
    let event = match watched.event {
        WatchedEvent::Present => v1::WatchEvent::Present,
        WatchedEvent::Synced => v1::WatchEvent::Synced,
        WatchedEvent::Added => v1::WatchEvent::Added,
        WatchedEvent::Changed => v1::WatchEvent::Changed,
        WatchedEvent::Deleted => v1::WatchEvent::Deleted,
        WatchedEvent::Restarted => v1::WatchEvent::Restarted,
    };
    v1::WatchProbesResponse {
        event: event.into(),
        probe: watched.probe.as_ref().map(|found| v1::Probe { schema: None, ..probe(found) }),
        resume_token: watched.position.map(watch_token).unwrap_or_default(),
    }
}

/// A position as a text.
fn watch_token(position: WatchPosition) -> String {
    format!("{:x}.{}", position.run, position.sequence)
}

/// The position of a token. None if the text is not a token.
pub(crate) fn watch_position(token: &str) -> Option<WatchPosition> {
    let (run, sequence) = token.split_once('.')?;
    Some(WatchPosition { run: u64::from_str_radix(run, 16).ok()?, sequence: sequence.parse().ok()? })
}
