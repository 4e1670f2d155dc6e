//! Trip: why and when a probe was disarmed since it cost more than its budget.
//!
//! Owns that record, its text, and when it ends by itself. Never disarms a probe.

use std::time::{Duration, SystemTime};

use super::meter::Breach;
use crate::control::Trouble;
use crate::store::StoredTrip;
use kprobed_lang::model::{ProbeName, ProbeUid};

/// The reasons that are stored.
const CODES: [&str; 6] = [
    "OVER_PROBE_BUDGET",
    "OVER_GROUP_BUDGET",
    "OVER_LABEL_BUDGET",
    "OVER_ROLLOUT_BUDGET",
    "OVER_CREATOR_BUDGET",
    "OVER_HOST_BUDGET",
];

/// The longest time after which a probe is armed again by itself.
const LONGEST_PAUSE: Duration = Duration::from_hours(24);

/// A probe that was disarmed for its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trip {
    /// When.
    pub time: SystemTime,
    /// How often it was disarmed without a client that has enabled it in between, from 1.
    pub times: u32,
    /// When it is armed again by itself. Absent for never.
    pub rearm: Option<SystemTime>,
    /// The reason, with its figures.
    pub trouble: Trouble,
}

impl Trip {
    /// Disarmed now.
    pub(super) fn now(
        breach: &Breach,
        name: &ProbeName,
        times: u32,
        (now, rearm_after): (SystemTime, Option<Duration>),
    ) -> Self {
        let pause =
            rearm_after.map(|first| first.saturating_mul(1 << (times - 1).min(16)).min(LONGEST_PAUSE));
        let rearm = pause.and_then(|pause| now.checked_add(pause));
        let code = breach.payer.code();
        Self { time: now, times, rearm, trouble: trouble(code, message(breach, now), name, rearm) }
    }

    /// As it was stored. Absent if it is over, or of an unknown kind.
    pub(in crate::control) fn stored(stored: StoredTrip, name: &ProbeName) -> Option<Self> {
        let StoredTrip { times, time, rearm, is_open, code, message, .. } = stored;
        let code = CODES.into_iter().find(|known| *known == code)?;
        is_open.then(|| Self { time, times, rearm, trouble: trouble(code, message, name, rearm) })
    }

    /// To be stored.
    pub(super) fn to_store(&self, uid: ProbeUid, is_open: bool) -> StoredTrip {
        StoredTrip {
            uid,
            times: self.times,
            time: self.time,
            rearm: self.rearm,
            is_open,
            code: self.trouble.code.to_owned(),
            message: self.trouble.reason.clone(),
        }
    }
}

fn trouble(code: &'static str, reason: String, name: &ProbeName, rearm: Option<SystemTime>) -> Trouble {
    let again = rearm.map_or_else(String::new, |time| format!("it is armed again at {}, or ", seconds(time)));
    let hint = format!(
        "{again}`kprobectl enable {name}` arms it again; choose a place that is hit less often first, or raise the budget in the daemon's configuration"
    );
    Trouble { code, reason, hint }
}

/// What was measured, in a sentence.
fn message(breach: &Breach, now: SystemTime) -> String {
    let Breach { payer, limit_ns_per_s, taken_ns_per_s, rate, .. } = breach;
    let took = format!(
        "disarmed at {}: it was hit {:.0} times a second, each hit takes {:.0} ns, together {} of processor time a second",
        seconds(now),
        rate.runs_per_s,
        rate.hit_ns,
        milliseconds(rate.ns_per_s())
    );
    let together = match payer {
        super::payer::Payer::Probe(_) => String::new(),
        _ => format!(" of {}", milliseconds(*taken_ns_per_s)),
    };
    format!(
        "{took}{together}; {payer} may take {} (`{}`)",
        milliseconds(*limit_ns_per_s as f64),
        payer.setting()
    )
}

fn milliseconds(ns: f64) -> String {
    format!("{:.1} ms", ns / 1e6)
}

/// A time to the second.
fn seconds(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    prost_types::Timestamp::from(SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::meter::Rate;
    use super::super::payer::Payer;
    use super::*;

    fn breach(payer: Payer) -> Breach {
        let rate = Rate { runs_per_s: 812_345.4, hit_ns: 500.0 };
        Breach { uid: ProbeUid(7), payer, limit_ns_per_s: 50_000_000, taken_ns_per_s: 500e6, rate }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn the_reason_has_the_figures() {
        let name = "kprobes/a".parse().unwrap();
        let trip = Trip::now(&breach(Payer::Probe(ProbeUid(7))), &name, 1, (at(60), None));
        assert_eq!(
            trip.trouble.reason,
            "disarmed at 1970-01-01T00:01:00Z: it was hit 812345 times a second, each hit takes 500 ns, together 406.2 ms of processor time a second; a probe may take 50.0 ms (`budget.probe_ns_per_s`)"
        );
        assert_eq!(
            trip.trouble.hint,
            "`kprobectl enable kprobes/a` arms it again; choose a place that is hit less often first, or raise the budget in the daemon's configuration"
        );
        let by_creator = Payer::Creator("uid:1000".to_owned());
        let trip = Trip::now(&breach(by_creator), &name, 1, (at(60), None));
        let of = "all probes that `uid:1000` has made together may take 50.0 ms (`budget.creator_ns_per_s`)";
        assert!(trip.trouble.reason.ends_with(&format!(" a second of 500.0 ms; {of}")), "{trip:?}");
        let trip = Trip::now(&breach(Payer::Host), &name, 1, (at(60), None));
        assert_eq!(
            trip.trouble.reason,
            "disarmed at 1970-01-01T00:01:00Z: it was hit 812345 times a second, each hit takes 500 ns, together 406.2 ms of processor time a second of 500.0 ms; all probes of the host together may take 50.0 ms (`budget.host_ns_per_s`)"
        );
    }

    #[test]
    fn pauses_are_doubled_and_bounded() {
        let name = "kprobes/a".parse().unwrap();
        let pause = |times| {
            let minute = Some(Duration::from_mins(1));
            let trip = Trip::now(&breach(Payer::Host), &name, times, (at(0), minute));
            trip.rearm.unwrap().duration_since(at(0)).unwrap().as_secs()
        };
        assert_eq!([1, 2, 3, 4, 40].map(pause), [60, 120, 240, 480, 86_400]);
    }

    #[test]
    fn what_is_stored_is_read_again() {
        let name = "kprobes/a".parse().unwrap();
        let payers = [
            Payer::Probe(ProbeUid(7)),
            Payer::Group("kprobes".to_owned()),
            Payer::Label("team".to_owned(), "storage".to_owned()),
            Payer::Rollout("7".to_owned()),
            Payer::Creator("uid:1000".to_owned()),
            Payer::Host,
        ];
        for payer in payers {
            let trip = Trip::now(&breach(payer), &name, 2, (at(60), Some(Duration::from_mins(1))));
            assert_eq!(Trip::stored(trip.to_store(ProbeUid(7), true), &name), Some(trip.clone()));
            assert_eq!(Trip::stored(trip.to_store(ProbeUid(7), false), &name), None, "it was armed again");
        }
    }
}
