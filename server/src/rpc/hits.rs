//! Hits of `ProbeService`: the current counts, and hits over time.
//!
//! Owns ranges and pages. Never counts a hit.

use std::collections::HashSet;
use std::time::SystemTime;

use kprobed_proto::v1;

use super::messages;
use super::probes::non_empty;
use super::services::Services;
use kprobed_control::error::Error;
use kprobed_control::store::RateQuery;
use kprobed_control::{Registry, Sight};
use kprobed_lang::model::{Glob, HitProfile, LabelSelector, ProbeUid};

/// Longest interval, in seconds: a year.
const MAX_STEP_S: u32 = 366 * 86_400;

impl Services {
    /// Reads the current counts, or those of a range.
    pub(super) async fn hits(
        &self,
        request: v1::ListHitsRequest,
        sight: &Sight,
    ) -> Result<v1::ListHitsResponse, Error> {
        let has_range =
            request.end_time.is_some() || request.step_seconds != 0 || !request.page_token.is_empty();
        if request.start_time.is_none() && !has_range {
            let profiles = self.current_hits(request, sight).await?;
            return Ok(v1::ListHitsResponse { profiles, ..Default::default() });
        }
        let query = query(request, &self.access.registry, sight, SystemTime::now())?;
        // Further pages are about the same time.
        if query.after == 0 {
            self.control.sample().await?;
        }
        let page = self.storage.store.rates(&query).await?;
        Ok(v1::ListHitsResponse {
            profiles: Vec::new(),
            series: page.series,
            step_seconds: u32::try_from(page.step_s).unwrap_or(u32::MAX),
            next_page_token: page.next.map(|next| next.to_string()).unwrap_or_default(),
        })
    }

    async fn current_hits(
        &self,
        request: v1::ListHitsRequest,
        sight: &Sight,
    ) -> Result<Vec<v1::HitProfile>, Error> {
        let glob = non_empty(request.name_glob).map(Glob::new);
        let selector = messages::selector("label_selector", &request.label_selector)?;
        let selected = |uid: ProbeUid| {
            selector.is_empty()
                || self.access.registry.by_uid(uid).is_some_and(|probe| selector.matches(&probe.spec.labels))
        };
        let is_wanted = |profile: &HitProfile| {
            glob.as_ref().is_none_or(|glob| glob.matches_name(&profile.name))
                && selected(profile.uid)
                && sight.shows_uid(&self.access.registry, profile.uid)
        };
        Ok(if request.with_own {
            let counted = self.control.counted_hits().await?;
            counted.iter().filter(|one| is_wanted(&one.profile)).map(messages::counted_hits).collect()
        } else {
            let profiles = self.control.hit_profiles().await?;
            profiles.iter().filter(|profile| is_wanted(profile)).map(messages::profile).collect()
        })
    }
}

/// What a request asks of the past.
fn query(
    request: v1::ListHitsRequest,
    registry: &Registry,
    sight: &Sight,
    now: SystemTime,
) -> Result<RateQuery, Error> {
    let start = request.start_time.and_then(|time| SystemTime::try_from(time).ok()).ok_or_else(|| {
        Error::bad_argument("start_time", "`start_time` must be set: it says where the range begins")
    })?;
    let end = match request.end_time {
        None => now,
        Some(time) => SystemTime::try_from(time).map_err(|_not_a_time| {
            Error::bad_argument("end_time", "`end_time` is out of range: leave it out for now")
        })?,
    };
    if start >= end {
        return Err(Error::bad_argument(
            "start_time",
            "`start_time` must be before `end_time`, which is now if it is absent",
        ));
    }
    if !(1..=MAX_STEP_S).contains(&request.step_seconds) {
        let message = format!("`step_seconds` must be from 1 to {MAX_STEP_S}, which is a year");
        return Err(Error::bad_argument("step_seconds", message));
    }
    if request.with_own {
        return Err(Error::bad_argument("with_own", "`with_own` is of the current counters: leave it out"));
    }
    let after = non_empty(request.page_token).map(|token| token.parse::<i64>()).transpose();
    let after = after.map_err(|_number| Error::page_token())?;
    let selector = messages::selector("label_selector", &request.label_selector)?;
    Ok(RateQuery {
        start,
        end,
        step_s: request.step_seconds.into(),
        names: non_empty(request.name_glob).map(Glob::new),
        uids: selected(registry, &selector, sight),
        after: after.unwrap_or(0),
    })
}

/// The probes that a selector matches, and that are shown. Absent if these are all, also those that were
/// deleted.
fn selected(registry: &Registry, selector: &LabelSelector, sight: &Sight) -> Option<HashSet<ProbeUid>> {
    if selector.is_empty() && sight.is_everything() {
        return None;
    }
    let probes = registry.all().into_iter();
    let selected = probes.filter(|probe| selector.matches(&probe.spec.labels) && sight.shows(probe));
    Some(selected.map(|probe| probe.uid).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kprobed_client::{Error, RpcError};
    use kprobed_rights::Roles;
    use tonic::Status;

    use super::*;
    use kprobed_control::auth::{AuditQueue, Caller, Rights};
    use kprobed_control::error;
    use kprobed_control::store::Store;

    fn time(seconds: i64) -> prost_types::Timestamp {
        prost_types::Timestamp { seconds, nanos: 0 }
    }

    fn asked(start: i64, end: Option<i64>, step_seconds: u32) -> v1::ListHitsRequest {
        v1::ListHitsRequest {
            start_time: Some(time(start)),
            end_time: end.map(time),
            step_seconds,
            ..Default::default()
        }
    }

    #[tokio::test]
    async fn bad_requests_name_their_field() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), SystemTime::now()).await.unwrap();
        let rights = Arc::new(Rights::new(Roles::default(), AuditQueue::new().0));
        let sight = Sight::new(&rights, Caller::daemon());
        let now = SystemTime::try_from(time(1000)).unwrap();
        let query = |request| query(request, &Registry::default(), &sight, now);
        let field = |request| match query(request).map(drop).map_err(|error| Error::from(Status::from(error)))
        {
            Err(Error::Rpc(error)) => RpcError::clone(&error).fields[0].field.clone(),
            other => panic!("{other:?}"),
        };
        let without_start = v1::ListHitsRequest { start_time: None, ..asked(1, None, 60) };
        assert_eq!(field(without_start), "start_time");
        assert_eq!(field(asked(1000, None, 60)), "start_time");
        assert_eq!(field(asked(9, Some(9), 60)), "start_time");
        assert_eq!(field(asked(9, Some(i64::MIN), 60)), "end_time");
        assert_eq!(field(asked(9, None, 0)), "step_seconds");
        assert_eq!(field(asked(9, None, MAX_STEP_S + 1)), "step_seconds");
        let token = v1::ListHitsRequest { page_token: "x".to_owned(), ..asked(9, None, 1) };
        assert_eq!(field(token), "page_token");
        let selector = v1::ListHitsRequest { label_selector: "a in".to_owned(), ..asked(9, None, 1) };
        assert_eq!(field(selector), "label_selector");
        let own = v1::ListHitsRequest { with_own: true, ..asked(9, None, 1) };
        assert_eq!(field(own), "with_own");
        let fine = query(asked(9, None, 1)).unwrap();
        assert_eq!((fine.end, fine.uids, fine.after), (now, None, 0));
        // If a range has too many points, the error says which step is possible.
        let too_many = store.rates(&query(asked(9, Some(9_000_000), 1)).unwrap()).await.unwrap_err();
        let Error::Rpc(error) = Error::from(Status::from(error::Error::from(too_many))) else { panic!() };
        assert_eq!(
            (error.reason.as_str(), error.fields[0].field.as_str()),
            ("TOO_MANY_POINTS", "step_seconds")
        );
        let fix = error.metadata.iter().find(|(key, _)| key == "fix").unwrap();
        assert!(fix.1.contains("at least 240 seconds"), "{error:?}");
    }
}
