//! Hit counts of the probes of many hosts, from NATS.

use std::time::{SystemTime, UNIX_EPOCH};

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use futures_util::StreamExt as _;
use kprobed_event::published::Topic;
use prost::Message as _;

use super::source::{NatsError, NatsSource};
use super::stream::from_time;
use crate::api::HitProfile;

/// How often a probe of a host was hit, at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct HostProfile {
    /// The host.
    pub host: String,
    /// The counts. Hosts publish those that have changed.
    pub profile: HitProfile,
}

impl NatsSource {
    /// Reads what was published of the hits of probes since a time; without one, the last of each.
    /// In the order of time for each probe.
    ///
    /// # Errors
    /// See [`NatsError`].
    pub async fn profiles(
        &self,
        since: Option<SystemTime>,
        is_wanted: impl Fn(&str, &str) -> bool,
    ) -> Result<Vec<HostProfile>, NatsError> {
        const ACTION: &str = "read the hits of probes";
        let deliver_policy = match since {
            Some(since) => from_time(since)?,
            None => DeliverPolicy::LastPerSubject,
        };
        let filter_subject = self.subjects.profiles();
        let config = OrderedConfig { filter_subject, deliver_policy, ..OrderedConfig::default() };
        let consumer = self.stream.create_consumer(config).await;
        let consumer = consumer.map_err(|error| NatsError::request(ACTION, &error))?;
        let mut pending = consumer.cached_info().num_pending;
        let mut messages = consumer.messages().await.map_err(|error| NatsError::request(ACTION, &error))?;
        let mut profiles = Vec::new();
        let failed = |reason: String| NatsError::Request { action: ACTION.to_owned(), reason };
        while pending > 0 {
            let message = match messages.next().await {
                Some(Ok(message)) => message,
                Some(Err(error)) => return Err(failed(error.to_string())),
                None => return Err(failed("the server ended the stream".to_owned())),
            };
            pending = message.info().map_err(|error| failed(error.to_string()))?.pending;
            let Some((host, Topic::Profile(probe))) = self.subjects.read(&message.subject) else { continue };
            if !is_wanted(&host, &probe) {
                continue;
            }
            let profile = HitProfile::decode(message.payload.clone());
            let profile = profile.map_err(|error| failed(format!("`{}`: {error}", message.subject)))?;
            let is_earlier = |since: SystemTime| {
                let time = profile.time.and_then(|time| SystemTime::try_from(time).ok());
                time.unwrap_or(UNIX_EPOCH) < since
            };
            if !since.is_some_and(is_earlier) {
                profiles.push(HostProfile { host, profile });
            }
        }
        profiles.sort_by(|a, b| (&a.host, &a.profile.probe).cmp(&(&b.host, &b.profile.probe)));
        Ok(profiles)
    }
}
