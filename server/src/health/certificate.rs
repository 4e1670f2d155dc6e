//! Expiry check of the certificate for clients over TCP.
//!
//! Owns the finding. Never reads the certificate.

use std::time::SystemTime;

use super::{HostCheck, failed, ok, warning};

/// Days before its expiry from which on the check is a warning.
const RENEWAL_DAYS: u64 = 30;

/// Whether the certificate for clients expires soon.
pub fn certificate_check(end: SystemTime, now: SystemTime) -> HostCheck {
    const ID: &str = "certificate";
    let fix = "put the renewed certificate and its key in its place, and restart the daemon";
    let Ok(left) = end.duration_since(now) else {
        return failed(
            ID,
            "the certificate for clients has ended: they cannot connect over TCP".to_owned(),
            fix,
        );
    };
    let days = left.as_secs() / 86_400;
    let finding = format!("the certificate for clients ends in {days} days");
    if days < RENEWAL_DAYS { warning(ID, finding, fix) } else { ok(ID, finding) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::health::CheckStatus;

    #[test]
    fn a_certificate_is_a_warning_a_month_before_it_ends() {
        let end = SystemTime::UNIX_EPOCH + Duration::from_hours(24 * 100);
        let after =
            |days: u64| certificate_check(end, SystemTime::UNIX_EPOCH + Duration::from_hours(24 * days));
        assert_eq!(
            (after(70).status(), after(70).finding.as_str()),
            (CheckStatus::Ok, "the certificate for clients ends in 30 days")
        );
        assert_eq!(after(71).status(), CheckStatus::Warning);
        assert_eq!(after(100).status(), CheckStatus::Warning);
        assert_eq!(after(101).status(), CheckStatus::Failed);
        assert!(!after(101).fix.is_empty());
    }
}
