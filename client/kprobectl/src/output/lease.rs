//! Leases of probes: the time that is left.

use std::io;

use jiff::Timestamp;
use kprobed_client::api::Probe;

use super::Output;
use super::time::rfc3339;

/// How long a probe is still there: `1h 59m 3s`, `ended`, or `held` for one that goes with a
/// client. Empty if it stays.
pub(super) fn left(probe: &Probe, now: Timestamp) -> String {
    let Some(lease) = &probe.lease else { return String::new() };
    if lease.duration.is_none() {
        return "held".to_owned();
    }
    let end = lease.expire_time.as_ref().and_then(|time| Timestamp::new(time.seconds, time.nanos).ok());
    let Some(end) = end else { return "unknown".to_owned() };
    let seconds = end.duration_since(now).as_secs();
    if seconds <= 0 {
        return "ended".to_owned();
    }
    let parts =
        [(seconds / 86_400, "d"), (seconds / 3600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let parts: Vec<_> =
        parts.iter().filter(|(n, _)| *n > 0).map(|(count, unit)| format!("{count}{unit}")).collect();
    parts.join(" ")
}

/// The same with the time of day at which it ends.
pub(super) fn sentence(probe: &Probe, now: Timestamp) -> String {
    let Some(lease) = &probe.lease else { return String::new() };
    match rfc3339(lease.expire_time.as_ref()) {
        Some(time) => format!("{} (until {time})", left(probe, now)),
        None => format!("held by a client ({})", lease.holder),
    }
}

impl Output {
    /// Prints probes whose leases were renewed, and the time that is left.
    pub(crate) fn probes_renewed(&mut self, probes: &[Probe]) -> io::Result<()> {
        if self.probes_structured(probes)? {
            return Ok(());
        }
        let now = Timestamp::now();
        for probe in probes {
            match sentence(probe, now) {
                lease if lease.is_empty() => self.line(&format!("{} stays", probe.name))?,
                lease => self.line(&format!("{} {lease}", probe.name))?,
            }
            self.note_state(probe);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kprobed_client::api::Lease;

    use super::*;

    #[test]
    fn the_time_that_is_left() {
        let now = Timestamp::new(1_000_000, 0).unwrap();
        let ending = |seconds: i64| Probe {
            lease: Some(Lease {
                duration: Some(prost_types::Duration { seconds: 7200, nanos: 500_000_000 }),
                expire_time: Some(prost_types::Timestamp { seconds: 1_000_000 + seconds, nanos: 0 }),
                holder: String::new(),
            }),
            ..Default::default()
        };
        let left_of = |seconds| left(&ending(seconds), now);
        assert_eq!((left_of(7143).as_str(), left_of(86_400).as_str()), ("1h 59m 3s", "1d"));
        assert_eq!(
            (left_of(0).as_str(), left_of(-5).as_str(), left_of(1).as_str()),
            ("ended", "ended", "1s")
        );
        assert_eq!(sentence(&ending(60), now), "1m (until 1970-01-12T13:47:40Z)");
        let held = Lease { holder: "hold-1".to_owned(), ..Lease::default() };
        let held = Probe { lease: Some(held), ..Default::default() };
        assert_eq!(
            (left(&held, now).as_str(), sentence(&held, now).as_str()),
            ("held", "held by a client (hold-1)")
        );
        let stays = Probe::default();
        assert_eq!((left(&stays, now).as_str(), sentence(&stays, now).as_str()), ("", ""));
    }
}
