//! Metadata of probes: description, owner, file, lease and policy, which the kernel never gets.
//!
//! Owns their limits. Never decides when a lease has ended.

use std::time::{Duration, SystemTime};

/// Longest description, in bytes.
const MAX_DESCRIPTION: usize = 1024;

/// Longest owner, in bytes.
const MAX_OWNER: usize = 128;

/// Longest lease. A probe that must stay for longer has none.
const MAX_LEASE: Duration = Duration::from_hours(10 * 365 * 24);

/// Metadata of a probe besides its definition and its labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// For a time.
    Until {
        /// As requested: a renewal lasts as long again.
        duration: Duration,
        /// When it ends.
        expire_time: SystemTime,
    },
    /// As long as a client holds it.
    Held {
        /// Id of the hold.
        holder: String,
    },
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

impl LeaseTerm {
    /// A lease that begins now.
    pub fn begin(self, now: SystemTime) -> Lease {
        match self {
            Self::For(duration) => Lease::Until { duration, expire_time: now + duration },
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
    pub fn changed(&self, change: MetadataChange, now: SystemTime) -> Self {
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
    use super::*;

    #[test]
    fn a_change_leaves_the_rest_as_it_is() {
        let now = SystemTime::UNIX_EPOCH;
        let two_hours = Duration::from_hours(2);
        let change = MetadataChange {
            owner: Some("storage".to_owned()),
            lease: Some(Some(LeaseTerm::lasting(two_hours).unwrap())),
            ..MetadataChange::default()
        };
        let before = Metadata { description: "slow opens".to_owned(), ..Metadata::default() };
        let after = before.changed(change, now);
        let expire_time = now + two_hours;
        let expected = Metadata {
            description: "slow opens".to_owned(),
            owner: "storage".to_owned(),
            lease: Some(Lease::Until { duration: two_hours, expire_time }),
            ..Metadata::default()
        };
        assert_eq!(after, expected);
        let for_ever = MetadataChange { lease: Some(None), ..MetadataChange::default() };
        assert_eq!(after.changed(for_ever, now).lease, None);
        assert_eq!(after.changed(MetadataChange::default(), now + two_hours), expected);
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
