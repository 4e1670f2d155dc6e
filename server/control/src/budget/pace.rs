//! Pace: when the hit counts are looked at next.
//!
//! Owns the times between looks: short ones while a budget is nearly spent and while a probe is
//! new, longer and longer ones otherwise, and none at all once the readers alone notice when rates
//! rise. Never looks itself.

use std::time::Duration;

use tokio::time::Instant;

use super::meter::Found;

/// The longest time between two looks while a budget is nearly spent, or a probe is new.
const CLOSE: Duration = Duration::from_millis(50);

/// The shortest one: rates over less time mean little.
const SHORTEST: Duration = Duration::from_millis(10);

/// How long a probe is new.
const NEW: Duration = Duration::from_secs(1);

/// How long it is looked closely after the readers had many events.
const AFTER_ACTIVITY: Duration = Duration::from_millis(200);

/// The longest time between two looks if hits can come that no reader sees: those of probes with a
/// filter, and of probes that are only counted.
const UNSEEN: Duration = Duration::from_secs(1);

/// The pace.
#[derive(Debug)]
pub(super) struct Pace {
    next: Option<Instant>,
    last: Option<Instant>,
    interval: Duration,
    close_until: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { next: None, last: None, interval: CLOSE, close_until: None }
    }
}

impl Pace {
    /// When the next look is due. Absent while none is.
    pub(super) const fn next(&self) -> Option<Instant> {
        self.next
    }

    /// A probe was armed: its count at the next look is what its spending begins with. Clients that arm
    /// one probe after the other cause no more looks than a single new probe does.
    pub(super) fn note_armed(&mut self, now: Instant) {
        match (self.next, self.close_until) {
            (Some(next), Some(until)) if next <= until => self.close_until = Some(until.max(now + NEW)),
            _ => self.look_closely(now, NEW),
        }
    }

    /// The readers had many events.
    pub(super) fn note_activity(&mut self, now: Instant) {
        self.look_closely(now, AFTER_ACTIVITY);
    }

    fn look_closely(&mut self, now: Instant, time: Duration) {
        let until = now + time;
        self.close_until = Some(self.close_until.map_or(until, |known| known.max(until)));
        self.interval = CLOSE;
        // Not sooner after the last look than makes a rate.
        let at = self.last.map_or(now, |last| now.max(last + SHORTEST));
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// A look is done. `any` says whether a probe can fire, `unseen` whether one can without a
    /// reader that notices.
    pub(super) fn looked(&mut self, now: Instant, found: &Found, any: bool, unseen: bool) {
        self.last = Some(now);
        self.next = if !any {
            *self = Self { last: self.last, ..Self::default() };
            None
        } else if found.is_near {
            self.interval = CLOSE;
            Some(now + found.lasts.unwrap_or(CLOSE).clamp(SHORTEST, CLOSE))
        } else if self.close_until.is_some_and(|until| now < until) {
            Some(now + CLOSE)
        } else {
            self.interval = self.interval.saturating_mul(2);
            let next = now + self.interval.min(UNSEEN);
            (unseen || self.interval <= UNSEEN).then_some(next)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Found = Found { breaches: Vec::new(), is_near: true, lasts: None };

    /// The times between looks until there are none, or `most` of them.
    fn pauses(pace: &mut Pace, mut now: Instant, found: &Found, unseen: bool, most: usize) -> Vec<u128> {
        let mut pauses = Vec::new();
        while pauses.len() < most {
            pace.looked(now, found, true, unseen);
            let Some(next) = pace.next() else { break };
            pauses.push(next.duration_since(now).as_millis());
            now = next;
        }
        pauses
    }

    #[test]
    fn a_new_probe_is_looked_at_closely_and_then_not_at_all() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        assert_eq!(pace.next(), None, "idle is idle");
        pace.note_armed(now);
        assert_eq!(pace.next(), Some(now));
        let all = pauses(&mut pace, now, &Found::default(), false, 1000);
        assert_eq!((all.len(), &all[..20]), (24, &[50; 20][..]));
        assert_eq!(all[20..], [100, 200, 400, 800]);
        assert_eq!(pace.next(), None);
        // The readers notice that it is hit.
        let later = now + Duration::from_hours(1);
        pace.note_activity(later);
        assert_eq!(pace.next(), Some(later));
        assert_eq!(pauses(&mut pace, later, &NEAR, false, 100), [50; 100]);
    }

    #[test]
    fn a_thousand_new_probes_are_looked_at_as_often_as_one() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        let (mut looks, mut now) = (0, begin);
        for _ in 0..1000 {
            pace.note_armed(now);
            if pace.next().is_some_and(|next| next <= now) {
                pace.looked(now, &Found::default(), true, false);
                looks += 1;
            }
            now += Duration::from_millis(3);
        }
        // Every 50 ms, at the first creation from then on.
        assert_eq!(looks, 3000_u32.div_ceil(51));
        let rest = pauses(&mut pace, now, &Found::default(), false, 1000);
        assert_eq!((rest.len(), rest.last()), (24, Some(&800)), "and the last one as long as the first");
    }

    #[test]
    fn hits_that_no_reader_sees_are_looked_for_once_a_second() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        pace.note_armed(now);
        let all = pauses(&mut pace, now, &Found::default(), true, 40);
        assert_eq!(all[24..], [1000; 16]);
        pace.looked(now, &Found::default(), false, true);
        assert_eq!(pace.next(), None, "no probe can fire");
    }

    #[test]
    fn a_budget_that_ends_soon_is_looked_at_then() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        let lasts = |millis| Found { lasts: Some(Duration::from_millis(millis)), ..NEAR };
        for (millis, pause) in [(0, 10), (23, 23), (700, 50)] {
            assert_eq!(pauses(&mut pace, now, &lasts(millis), false, 1), [pause]);
        }
        // Two notices at once are one look, and not right after the last one.
        pace.note_activity(now + Duration::from_millis(1));
        assert_eq!(pace.next(), Some(now + SHORTEST));
    }
}
