//! Trips: why a probe was disarmed since it cost more than its budget.
//!
//! Owns the text, and its form in the database. Never disarms a probe.

use std::time::SystemTime;

use super::meter::{Breach, Scope};
use crate::Trouble;
use crate::probe::to_the_second;
use crate::store::Trip;
use kprobed_lang::model::ProbeName;

/// Why a probe is disarmed now.
pub(super) fn trouble_of(breach: &Breach, name: &ProbeName, now: SystemTime) -> Trouble {
    trouble(breach.scope, message(breach, now), name)
}

/// The trouble of a stored trip. One whose kind cannot be read disarms its probe too.
pub(crate) fn stored_trouble(stored: &Trip, name: &ProbeName) -> Trouble {
    let known = [Scope::PROBE, Scope::HOST].into_iter().find(|scope| scope.code == stored.code);
    trouble(known.unwrap_or(Scope::PROBE), stored.message.clone(), name)
}

/// To be stored.
pub(super) fn to_store(trouble: &Trouble) -> Trip {
    Trip { code: trouble.code.to_owned(), message: trouble.reason.clone() }
}

fn trouble(scope: Scope, reason: String, name: &ProbeName) -> Trouble {
    let hint = format!(
        "`kprobectl enable {name}` arms it again; choose an address that is hit less often first, or raise the budget in the daemon's configuration"
    );
    Trouble { code: scope.code, reason, hint }
}

/// What was measured, in a sentence.
fn message(breach: &Breach, now: SystemTime) -> String {
    let Breach { scope, limit_ns_per_s, taken_ns_per_s, rate, .. } = breach;
    let took = format!(
        "disarmed at {}: it was hit {:.0} times a second, each hit takes {:.0} ns, together {} of processor time a second",
        to_the_second(now),
        rate.runs_per_s,
        rate.hit_ns,
        milliseconds(rate.ns_per_s())
    );
    let is_of_all = *scope == Scope::HOST;
    let together = if is_of_all { format!(" of {}", milliseconds(*taken_ns_per_s)) } else { String::new() };
    let Scope { setting, whose, .. } = scope;
    format!("{took}{together}; {whose} may take {} (`{setting}`)", milliseconds(*limit_ns_per_s as f64))
}

fn milliseconds(ns: f64) -> String {
    format!("{:.1} ms", ns / 1e6)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::meter::Rate;
    use super::*;
    use kprobed_lang::model::ProbeUid;

    fn trouble(scope: Scope) -> Trouble {
        let rate = Rate { runs_per_s: 812_345.4, hit_ns: 500.0 };
        let uid = ProbeUid(7);
        let breach = Breach { uid, scope, limit_ns_per_s: 50_000_000, taken_ns_per_s: 500e6, rate };
        let now = SystemTime::UNIX_EPOCH + Duration::from_mins(1);
        trouble_of(&breach, &"kprobes/a".parse().unwrap(), now)
    }

    #[test]
    fn the_reason_has_the_figures() {
        let of_probe = trouble(Scope::PROBE);
        assert_eq!(
            of_probe.reason,
            "disarmed at 1970-01-01T00:01:00Z: it was hit 812345 times a second, each hit takes 500 ns, together 406.2 ms of processor time a second; a probe may take 50.0 ms (`budget.probe_ns_per_s`)"
        );
        assert_eq!(
            of_probe.hint,
            "`kprobectl enable kprobes/a` arms it again; choose an address that is hit less often first, or raise the budget in the daemon's configuration"
        );
        assert_eq!(
            trouble(Scope::HOST).reason,
            "disarmed at 1970-01-01T00:01:00Z: it was hit 812345 times a second, each hit takes 500 ns, together 406.2 ms of processor time a second of 500.0 ms; all probes of the host together may take 50.0 ms (`budget.host_ns_per_s`)"
        );
    }

    #[test]
    fn what_is_stored_is_read_again() {
        let name = "kprobes/a".parse().unwrap();
        for scope in [Scope::PROBE, Scope::HOST] {
            let trouble = trouble(scope);
            assert_eq!(stored_trouble(&to_store(&trouble), &name), trouble);
        }
    }
}
