//! Metadata of probes: description, owner, file, lease and policy, which the kernel never gets.
//!
//! Owns their limits, and how the end of a lease is counted over a reboot. Never decides when a lease
//! has ended.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// Longest description, in bytes.
const MAX_DESCRIPTION: usize = 1024;

/// Longest owner, in bytes.
const MAX_OWNER: usize = 128;

/// Longest lease. A probe that must stay for longer has none.
const MAX_LEASE: Duration = Duration::from_hours(10 * 365 * 24);

/// The least by which the wall clock was set that is shown in the end of a lease.
const NOTABLE: Duration = Duration::from_secs(1);

/// Metadata of a probe besides its definition and its labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// What it is for, for people.
    pub description: String,
    /// The person or team to contact.
    pub owner: String,
    /// The file that declares it. Absent for one that a client made.
    pub declared_by: Option<String>,
    /// How long the probe lasts. Absent: without end.
    pub lease: Option<Lease>,
    /// What the daemon does if the kernel has changed.
    pub on_kernel_change: KernelChange,
}

/// How long a probe lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lease {
    /// For a time.
    Until {
        /// As requested: a renewal lasts as long again.
        duration: Duration,
        /// When it ends.
        end: Moment,
    },
    /// As long as a client holds it.
    Held {
        /// Id of the hold.
        holder: String,
    },
}

/// A time by the two clocks that leases are counted by: since the boot within a boot, and the wall clock
/// over a reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// By the wall clock, as it was set when this was computed.
    pub wall: SystemTime,
    /// The boot.
    pub boot_id: Arc<str>,
    /// Since that boot, in nanoseconds of CLOCK_BOOTTIME, which goes on while the host sleeps and which
    /// no program can set.
    pub boot_ns: u64,
}

/// A lease as requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseTerm {
    /// For so long from now on.
    For(Duration),
    /// As long as this hold lasts.
    Held(String),
}

/// What the daemon does with a probe that may record something else on another kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelChange {
    /// It does not arm the probe before a client has accepted it.
    #[default]
    Hold,
    /// It arms the probe all the same.
    ArmAnyway,
}

/// What an update changes. Absent: stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetadataChange {
    /// What it is for.
    pub description: Option<String>,
    /// The person or team to contact.
    pub owner: Option<String>,
    /// The file that declares it, or none.
    pub declared_by: Option<Option<String>>,
    /// Its lease, or none.
    pub lease: Option<Option<LeaseTerm>>,
    /// What the daemon does if the kernel has changed.
    pub on_kernel_change: Option<KernelChange>,
}

/// A text or a lease that a probe cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct MetadataError {
    /// The field of the request.
    pub field: &'static str,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Moment {
    /// So much later.
    #[must_use]
    pub fn after(&self, duration: Duration) -> Self {
        let wall = self.wall.checked_add(duration).unwrap_or(self.wall);
        let boot_ns = self.boot_ns.saturating_add(nanoseconds(duration));
        Self { wall, boot_ns, boot_id: Arc::clone(&self.boot_id) }
    }

    /// The same moment in the boot of `now`. Over a reboot the wall clock decides, which may be wrong:
    /// the moment is at most `most` ahead.
    #[must_use]
    pub fn in_boot_of(&self, now: &Self, most: Duration) -> Self {
        if self.boot_id == now.boot_id {
            return self.clone();
        }
        let left = self.wall.duration_since(now.wall).unwrap_or_default().min(most);
        Self { wall: self.wall, ..now.after(left) }
    }

    /// What the wall clock shows then, by how it is set now: at this time of the same boot. The same time
    /// as ever, if that is less than a second away. Times before 1970 are cut.
    pub fn wall_seen_from(&self, (wall, boot_ns): (SystemTime, u64)) -> SystemTime {
        let ahead = Duration::from_nanos(self.boot_ns.saturating_sub(boot_ns));
        let behind = Duration::from_nanos(boot_ns.saturating_sub(self.boot_ns));
        let seen = wall.checked_sub(behind).unwrap_or(SystemTime::UNIX_EPOCH);
        let seen = seen.checked_add(ahead).unwrap_or(seen).max(SystemTime::UNIX_EPOCH);
        let moved = seen.duration_since(self.wall).unwrap_or_else(|earlier| earlier.duration());
        if moved < NOTABLE { self.wall } else { seen }
    }
}

/// Nanoseconds, at most what fits: more than 500 years.
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl LeaseTerm {
    /// A lease that begins now.
    pub fn begin(self, now: &Moment) -> Lease {
        match self {
            Self::For(duration) => Lease::Until { duration, end: now.after(duration) },
            Self::Held(holder) => Lease::Held { holder },
        }
    }

    /// A lease of this duration.
    ///
    /// # Errors
    /// [`MetadataError`] for one that ends at once, or lasts ten years or more.
    pub fn lasting(duration: Duration) -> Result<Self, MetadataError> {
        let message = if duration < Duration::from_secs(1) {
            "a lease must last at least one second"
        } else if duration > MAX_LEASE {
            "a lease must last at most ten years: leave it out for a probe that is to stay"
        } else {
            return Ok(Self::For(duration));
        };
        Err(MetadataError { field: "lease", message: message.to_owned() })
    }
}

impl MetadataChange {
    /// Whether it leaves everything as it is.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Metadata {
    /// The metadata after a change. A lease begins now.
    #[must_use]
    pub fn changed(&self, change: MetadataChange, now: &Moment) -> Self {
        let MetadataChange { description, owner, declared_by, lease, on_kernel_change } = change;
        Self {
            description: description.unwrap_or_else(|| self.description.clone()),
            owner: owner.unwrap_or_else(|| self.owner.clone()),
            declared_by: declared_by.unwrap_or_else(|| self.declared_by.clone()),
            lease: lease.map_or_else(|| self.lease.clone(), |lease| lease.map(|term| term.begin(now))),
            on_kernel_change: on_kernel_change.unwrap_or(self.on_kernel_change),
        }
    }

    /// Checks a description.
    ///
    /// # Errors
    /// [`MetadataError`] for one that is too long, or has control characters other than line feeds
    /// and tabs.
    pub fn check_description(description: &str) -> Result<(), MetadataError> {
        check("description", description, MAX_DESCRIPTION, &['\n', '\t'])
    }

    /// Checks an owner.
    ///
    /// # Errors
    /// [`MetadataError`] for one that is too long, or has control characters.
    pub fn check_owner(owner: &str) -> Result<(), MetadataError> {
        check("owner", owner, MAX_OWNER, &[])
    }
}

fn check(field: &'static str, text: &str, most: usize, allowed: &[char]) -> Result<(), MetadataError> {
    let error = |message| Err(MetadataError { field, message });
    if text.len() > most {
        return error(format!("`{field}` has {} bytes, and can have at most {most}", text.len()));
    }
    match text.chars().find(|found| found.is_control() && !allowed.contains(found)) {
        Some(found) => error(format!("`{field}` cannot have the control character {found:?}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    /// After so many hours of a boot, when the wall clock shows so many since 1970.
    fn moment(boot_id: &str, up: u32, shown: u32) -> Moment {
        let wall = SystemTime::UNIX_EPOCH + HOUR * shown;
        Moment { wall, boot_id: boot_id.into(), boot_ns: nanoseconds(HOUR * up) }
    }

    #[test]
    fn within_a_boot_the_wall_clock_does_not_matter() {
        let end = moment("a", 5, 500_000).after(2 * HOUR);
        assert_eq!(end, moment("a", 7, 500_002));
        for shown in [0, 499_000, 500_001, 900_000] {
            assert_eq!(end.in_boot_of(&moment("a", 6, shown), HOUR), end);
        }
        // What is shown follows it.
        let at = |up, shown| (moment("a", up, shown).wall, moment("a", up, shown).boot_ns);
        let seen = |up, shown| end.wall_seen_from(at(up, shown));
        assert_eq!(seen(6, 900_000), moment("a", 0, 900_001).wall);
        assert_eq!(seen(9, 900_000), moment("a", 0, 899_998).wall);
        assert_eq!(seen(9, 1), SystemTime::UNIX_EPOCH);
        let (wall, boot_ns) = at(6, 500_001);
        assert_eq!(
            end.wall_seen_from((wall + NOTABLE / 2, boot_ns)),
            end.wall,
            "clocks are not read at once"
        );
    }

    #[test]
    fn over_a_reboot_the_wall_clock_decides() {
        let end = moment("a", 7, 500_002);
        let seen = |shown| end.in_boot_of(&moment("b", 1, shown), 2 * HOUR);
        assert_eq!(seen(500_000), moment("b", 3, 500_002));
        assert_eq!(seen(500_001), moment("b", 2, 500_002));
        // It ended while the host was off.
        assert_eq!((seen(500_002), seen(700_000)), (moment("b", 1, 500_002), moment("b", 1, 500_002)));
        // The clock is not set yet: it lasts no longer than it was given for.
        assert_eq!((seen(0), seen(499_999)), (moment("b", 3, 500_002), moment("b", 3, 500_002)));
    }

    proptest! {
        #[test]
        fn no_clock_makes_a_lease_longer_than_it_was(
            most_ns: u64,
            [end_wall_ns, end_boot_ns, wall_ns, boot_ns]: [u64; 4],
            same_boot: bool,
        ) {
            let at = |ns| SystemTime::UNIX_EPOCH + Duration::from_nanos(ns);
            let end = Moment { wall: at(end_wall_ns), boot_id: "a".into(), boot_ns: end_boot_ns };
            let boot_id = if same_boot { "a" } else { "b" };
            let now = Moment { wall: at(wall_ns), boot_id: boot_id.into(), boot_ns };
            let seen = end.in_boot_of(&now, Duration::from_nanos(most_ns));
            if same_boot {
                prop_assert_eq!(seen, end);
            } else {
                prop_assert!(seen.boot_ns <= boot_ns.saturating_add(most_ns) && seen.boot_id == now.boot_id);
            }
        }
    }

    #[test]
    fn a_change_leaves_the_rest_as_it_is() {
        let now = moment("a", 1, 0);
        let two_hours = Duration::from_hours(2);
        let change = MetadataChange {
            owner: Some("storage".to_owned()),
            lease: Some(Some(LeaseTerm::lasting(two_hours).unwrap())),
            ..MetadataChange::default()
        };
        let before = Metadata { description: "slow opens".to_owned(), ..Metadata::default() };
        let after = before.changed(change, &now);
        let expected = Metadata {
            description: "slow opens".to_owned(),
            owner: "storage".to_owned(),
            lease: Some(Lease::Until { duration: two_hours, end: moment("a", 3, 2) }),
            ..Metadata::default()
        };
        assert_eq!(after, expected);
        let for_ever = MetadataChange { lease: Some(None), ..MetadataChange::default() };
        assert_eq!(after.changed(for_ever, &now).lease, None);
        assert_eq!(after.changed(MetadataChange::default(), &now.after(two_hours)), expected);
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        assert!(Metadata::check_description("two\nlines\twith a tab").is_ok());
        assert!(Metadata::check_description(&"x".repeat(MAX_DESCRIPTION)).is_ok());
        let refused = [
            Metadata::check_description(&"x".repeat(MAX_DESCRIPTION + 1)),
            Metadata::check_description("\x1b[2J"),
            Metadata::check_owner("two\nlines"),
            LeaseTerm::lasting(Duration::ZERO).map(drop),
            LeaseTerm::lasting(Duration::MAX).map(drop),
        ];
        let fields: Vec<_> = refused.into_iter().map(|result| result.unwrap_err().field).collect();
        assert_eq!(fields, ["description", "description", "owner", "lease", "lease"]);
    }
}
