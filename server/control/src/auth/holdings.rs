//! Holdings: what each principal holds now, and how fast it asks for checks.
//!
//! Owns the counts that exist in memory only: connections, streams, bytes of queues, and the rate of
//! checks. Probes are counted by the control thread, which owns them. Never decides how much is
//! allowed: the caller gives the bound.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kprobed_rights::{Bound, Limit};

/// The time over which a rate is counted: so many checks can come at once.
const RATE_TIME: Duration = Duration::from_secs(1);

/// What a principal has of something, and what it asks for, in the unit of its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// What it holds now.
    pub held: u64,
    /// What it asked for in addition. Of a lease: its seconds; `u64::MAX` for one without an end.
    pub more: u64,
}

/// What a principal holds or asks for, beyond a limit.
pub(super) fn what(limit: Limit, asked: Asked) -> String {
    let Asked { held, more } = asked;
    let plural = if held == 1 { "" } else { "s" };
    match limit {
        Limit::Probes => format!("has {held} probe{plural}"),
        Limit::Streams => format!("has {held} stream{plural}"),
        Limit::Connections => format!("has {held} connection{plural}"),
        Limit::ChecksPerSecond => format!("has had {held} check{plural} in a second"),
        Limit::LeaseMaxS if more == u64::MAX => "asks for a probe without a lease".to_owned(),
        Limit::LeaseMaxS => format!("asks for a lease of {more} s"),
        Limit::QueueBytes => format!("has queues of {held} bytes, and asks for {more} more"),
        Limit::HostsPerCommand => format!("asks {more} hosts in one command"),
        Limit::Aggregations => format!("has {held} aggregation{plural}"),
    }
}

/// What to do about it.
pub(super) const fn remedy(limit: Limit) -> &'static str {
    match limit {
        Limit::Probes => "delete a probe of yours (`kprobectl delete NAME`)",
        Limit::Streams => "end a stream of yours",
        Limit::Connections => "use one connection for several calls, or close one of yours",
        Limit::ChecksPerSecond => {
            "try again in a second, or check many definitions in one stream (`kprobectl check -f`)"
        }
        Limit::LeaseMaxS => "give the probe a lease (`--lease`) within the limit, and renew it",
        Limit::QueueBytes => "ask for a smaller queue (`delivery.queue_bytes`), or end a stream of yours",
        Limit::HostsPerCommand => "name fewer hosts (`--hosts`, `--host-selector`)",
        Limit::Aggregations => "delete an aggregation of yours (`kprobectl aggregations delete NAME`)",
    }
}

/// What one principal holds.
#[derive(Debug, Default)]
struct Account {
    /// By what is limited, but for checks.
    held: BTreeMap<Limit, u64>,
    /// When all of its checks will have been worth their time.
    checks_until: Option<Instant>,
}

impl Account {
    fn held(&self, limit: Limit) -> u64 {
        self.held.get(&limit).copied().unwrap_or_default()
    }

    /// Counts checks. Returns how long it takes until all of them are worth their time.
    fn pace(&mut self, count: u64, most: u64, now: Instant) -> Duration {
        let before = self.checks_until.map_or(now, |until| until.max(now));
        // At most a day: a rate of 0 has no end.
        let worth = RATE_TIME.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX)).as_secs_f64()
            / most.max(1) as f64;
        let after = before + Duration::from_secs_f64(worth.min(86_400.0));
        self.checks_until = Some(after);
        after.saturating_duration_since(now)
    }

    fn is_empty(&self, now: Instant) -> bool {
        self.held.values().all(|held| *held == 0) && self.checks_until.is_none_or(|until| until <= now)
    }
}

/// What all principals hold, by account ([`kprobed_rights::Principal::account`]).
#[derive(Debug, Default)]
pub struct Holdings(Mutex<HashMap<String, Account>>);

/// A part of a limit. It is given back when this is dropped.
#[derive(Debug)]
pub struct Share {
    holdings: Arc<Holdings>,
    account: String,
    limit: Limit,
    amount: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut accounts = self.holdings.accounts();
        let Some(account) = accounts.get_mut(&self.account) else { return };
        if let Some(held) = account.held.get_mut(&self.limit) {
            *held = held.saturating_sub(self.amount);
        }
        if account.is_empty(Instant::now()) {
            accounts.remove(&self.account);
        }
    }
}

impl Holdings {
    fn accounts(&self) -> MutexGuard<'_, HashMap<String, Account>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an account holds of something that is counted here; of checks, those of the last second.
    pub fn held(&self, account: &str, limit: Limit, bound: Option<&Bound>) -> u64 {
        let accounts = self.accounts();
        let Some(found) = accounts.get(account) else { return 0 };
        match bound {
            Some(bound) if limit == Limit::ChecksPerSecond => {
                recent(found.checks_until, bound.most, Instant::now())
            }
            _ => found.held(limit),
        }
    }

    /// Takes a part of a limit, or returns the bound and what is held of it if that is too much.
    pub(super) fn take(
        self: &Arc<Self>,
        account: String,
        limit: Limit,
        amount: u64,
        bound: Option<Bound>,
    ) -> Result<Share, (Bound, u64)> {
        let mut accounts = self.accounts();
        let held = accounts.get(&account).map_or(0, |known| known.held(limit));
        let after = held.saturating_add(amount);
        if let Some(bound) = bound.filter(|bound| after > bound.most) {
            return Err((bound, held));
        }
        accounts.entry(account.clone()).or_default().held.insert(limit, after);
        drop(accounts);
        Ok(Share { holdings: Arc::clone(self), account, limit, amount })
    }

    /// Counts checks of an account that may have `most` a second, whether there is room for them or
    /// not. Returns how long it has to wait to be within its rate again.
    pub(super) fn pace(&self, account: String, count: u64, most: u64, now: Instant) -> Duration {
        self.asking(now).entry(account).or_default().pace(count, most, now).saturating_sub(RATE_TIME)
    }

    /// All accounts, without those that hold nothing any more: they are not looked at again.
    fn asking(&self, now: Instant) -> MutexGuard<'_, HashMap<String, Account>> {
        let mut accounts = self.accounts();
        accounts.retain(|_, account| !account.is_empty(now));
        accounts
    }

    /// Counts one check, unless the account has had its checks of this second: then returns how many.
    pub(super) fn check(&self, account: String, most: u64, now: Instant) -> Result<(), u64> {
        let mut accounts = self.asking(now);
        let account = accounts.entry(account).or_default();
        let had = recent(account.checks_until, most, now);
        if had >= most {
            return Err(had);
        }
        account.pace(1, most, now);
        Ok(())
    }
}

/// Checks that are not worth their time yet.
fn recent(until: Option<Instant>, most: u64, now: Instant) -> u64 {
    let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
    // Rounded up: a check that is worth half of its time is one.
    let checks = u128::from(most).saturating_mul(left.as_nanos()).div_ceil(RATE_TIME.as_nanos());
    u64::try_from(checks).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use kprobed_rights::RuleName;

    use super::*;

    #[test]
    fn a_share_is_given_back() {
        let holdings = Arc::<Holdings>::default();
        let bound = |limit, most| {
            let rule = RuleName { role: "team".to_owned(), line: 7 };
            Some(Bound { limit, most, rule })
        };
        let take = |amount| {
            let bound = bound(Limit::QueueBytes, 100);
            holdings.take("uid:1".to_owned(), Limit::QueueBytes, amount, bound)
        };
        let first = take(60).unwrap();
        assert_eq!(take(41).unwrap_err().1, 60);
        let second = take(40).unwrap();
        drop(first);
        assert_eq!(holdings.held("uid:1", Limit::QueueBytes, None), 40);
        // Another account, and another limit, are counted apart.
        let other = holdings.take("uid:2".to_owned(), Limit::QueueBytes, 1000, None).unwrap();
        let bound = bound(Limit::Streams, 1);
        let stream = holdings.take("uid:1".to_owned(), Limit::Streams, 1, bound).unwrap();
        drop(second);
        assert_eq!(holdings.held("uid:1", Limit::QueueBytes, None), 0);
        assert_eq!(holdings.accounts().len(), 2);
        drop((other, stream));
        assert!(holdings.accounts().is_empty(), "what holds nothing takes no memory");
    }

    #[test]
    fn what_is_held_is_counted() {
        let has = |limit, held| what(limit, Asked { held, more: 1 });
        assert_eq!([1, 2].map(|held| has(Limit::Probes, held)), ["has 1 probe", "has 2 probes"]);
        assert_eq!(has(Limit::Aggregations, 1), "has 1 aggregation");
        assert_eq!([0, 1].map(|held| has(Limit::Streams, held)), ["has 0 streams", "has 1 stream"]);
        // A role may allow no lease of that length, and what has ended is counted for another hour.
        assert!(!remedy(Limit::Probes).contains("lease"));
    }

    #[test]
    fn a_rate_is_a_rate() {
        let (holdings, begin) = (Holdings::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        let check = |ms| holdings.check("uid:1".to_owned(), 10, at(ms));
        for _ in 0..10 {
            check(0).unwrap();
        }
        assert_eq!(check(0), Err(10));
        assert_eq!(check(99), Err(10));
        check(100).unwrap();
        assert_eq!(check(100), Err(10));
        // A stream is slowed down instead: 30 checks take 3 s, and one second was in advance.
        let mut waits = Vec::new();
        for _ in 0..3 {
            waits.push(holdings.pace("uid:2".to_owned(), 10, 10, begin).as_millis());
        }
        assert_eq!(waits, [0, 1000, 2000]);
        assert_eq!(holdings.check("uid:3".to_owned(), 0, begin), Err(0), "none at all");
        // What was long ago is forgotten, whatever was asked and refused.
        assert_eq!(holdings.accounts().len(), 3);
        holdings.check("uid:5".to_owned(), 10, at(30_000)).unwrap();
        assert_eq!(holdings.accounts().len(), 1);
        let refused =
            Bound { limit: Limit::Streams, most: 0, rule: RuleName { role: "team".to_owned(), line: 7 } };
        let holdings = Arc::new(holdings);
        assert!(holdings.take("uid:6".to_owned(), Limit::Streams, 1, Some(refused)).is_err());
        assert_eq!(holdings.accounts().len(), 1);
        holdings.pace("uid:4".to_owned(), 1, 10, at(120_000));
        assert_eq!(holdings.accounts().len(), 1);
    }
}
