//! Metadata of probes in requests: description, owner, lease and policy.
//!
//! Owns which values are refused. Never decides what a lease does.

use kprobed_proto::v1;

use kprobed_control::error::Error;
use kprobed_lang::model::{KernelChange, LeaseTerm, Metadata, MetadataChange, MetadataError};

/// Longest id of a hold, in bytes.
const MAX_HOLDER: usize = 128;

/// The metadata of a new probe.
pub(super) fn of(request: &v1::CreateProbeRequest) -> Result<MetadataChange, Error> {
    checked(MetadataChange {
        description: Some(request.description.clone()),
        owner: Some(request.owner.clone()),
        declared_by: None,
        lease: request.lease.as_ref().map(lease).transpose().map_err(refused)?,
        on_kernel_change: policy(request.on_kernel_change()),
    })
}

/// The metadata changes of an update.
pub(super) fn change(request: &v1::UpdateProbeRequest) -> Result<MetadataChange, Error> {
    checked(MetadataChange {
        description: request.description.clone(),
        owner: request.owner.clone(),
        declared_by: request.take_over.then_some(None),
        lease: request.lease.as_ref().map(lease).transpose().map_err(refused)?,
        on_kernel_change: policy(request.on_kernel_change()),
    })
}

fn checked(change: MetadataChange) -> Result<MetadataChange, Error> {
    let description = change.description.as_deref().map_or(Ok(()), Metadata::check_description);
    let owner = change.owner.as_deref().map_or(Ok(()), Metadata::check_owner);
    description.and(owner).map_err(refused)?;
    Ok(change)
}

fn refused(error: MetadataError) -> Error {
    Error::bad_argument(error.field, error.message)
}

/// The lease of a request. Absent if it has neither a duration nor a holder: the probe stays.
fn lease(lease: &v1::Lease) -> Result<Option<LeaseTerm>, MetadataError> {
    let refuse = |message: &str| Err(MetadataError { field: "lease", message: message.to_owned() });
    match (&lease.duration, lease.holder.as_str()) {
        (None, "") => Ok(None),
        (Some(duration), "") => match std::time::Duration::try_from(*duration) {
            Ok(duration) => LeaseTerm::lasting(duration).map(Some),
            Err(_negative) => refuse("the duration of a lease cannot be negative"),
        },
        (None, holder) if holder.len() <= MAX_HOLDER => Ok(Some(LeaseTerm::Held(holder.to_owned()))),
        (None, _) => refuse("`lease.holder` cannot be the id of a hold: `HoldProbes` answers one"),
        (Some(_), _) => refuse("a lease has either a duration or a holder, and not both"),
    }
}

const fn policy(policy: v1::KernelChange) -> Option<KernelChange> {
    match policy {
        v1::KernelChange::Unspecified => None,
        v1::KernelChange::Hold => Some(KernelChange::Hold),
        v1::KernelChange::ArmAnyway => Some(KernelChange::ArmAnyway),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::rpc::messages;
    use kprobed_lang::model::Moment;

    fn epoch() -> Moment {
        Moment { wall: SystemTime::UNIX_EPOCH, boot_id: "boot".into(), boot_ns: 0 }
    }

    fn asked(seconds: Option<i64>, holder: &str) -> v1::Lease {
        let duration = seconds.map(|seconds| prost_types::Duration { seconds, nanos: 0 });
        v1::Lease { duration, expire_time: None, holder: holder.to_owned() }
    }

    #[test]
    fn a_lease_is_one_of_three() {
        assert_eq!(lease(&asked(None, "")), Ok(None));
        let hour = LeaseTerm::For(Duration::from_hours(1));
        assert_eq!(lease(&asked(Some(3600), "")), Ok(Some(hour.clone())));
        assert_eq!(lease(&asked(None, "a hold")), Ok(Some(LeaseTerm::Held("a hold".to_owned()))));
        for wrong in
            [asked(Some(1), "both"), asked(Some(-1), ""), asked(Some(0), ""), asked(None, &"x".repeat(129))]
        {
            assert_eq!(lease(&wrong).unwrap_err().field, "lease", "{wrong:?}");
        }
        let message = messages::lease(&hour.begin(&epoch()), (SystemTime::UNIX_EPOCH, 0));
        assert_eq!(message.expire_time.map(|time| time.seconds), Some(3600));
        assert_eq!(lease(&message), Ok(Some(LeaseTerm::For(Duration::from_hours(1)))));
    }

    #[test]
    fn a_creation_and_an_update_say_the_same() {
        let create = v1::CreateProbeRequest {
            description: "slow opens".to_owned(),
            on_kernel_change: v1::KernelChange::ArmAnyway.into(),
            ..Default::default()
        };
        let made = Metadata::default().changed(of(&create).unwrap(), &epoch());
        assert_eq!(
            (made.description.as_str(), made.on_kernel_change),
            ("slow opens", KernelChange::ArmAnyway)
        );
        let untouched = change(&v1::UpdateProbeRequest::default()).unwrap();
        assert!(untouched.is_empty());
        assert_eq!(made.changed(untouched, &epoch()), made);
        let refused = of(&v1::CreateProbeRequest { owner: "a\u{1b}".to_owned(), ..Default::default() });
        assert_eq!(refused.unwrap_err().reason.code, tonic::Code::InvalidArgument);
    }
}
