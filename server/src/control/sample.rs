//! Hit counts into history.

use std::time::SystemTime;

use super::controller::Controller;
use crate::model::HitProfile;

impl Controller {
    /// Stores the hit counts that have changed since the last sample, and drops those that are too old.
    pub(super) async fn sample(&mut self) {
        let profiles = match self.hit_profiles() {
            Ok(profiles) => profiles,
            Err(error) => return tracing::warn!(%error, "cannot read hit counts"),
        };
        let changed: Vec<_> = profiles
            .into_iter()
            .filter(|profile| self.sampled.get(&profile.uid) != Some(&profile.hits))
            .collect();
        if changed.is_empty() {
            return;
        }
        self.store_samples(&changed).await;
        let oldest = SystemTime::now().checked_sub(self.parts.sample_retention);
        if let Some(oldest) = oldest
            && let Err(error) = self.parts.store.drop_samples_before(oldest).await
        {
            tracing::warn!(%error, "cannot drop old hit counts");
        }
    }

    pub(super) async fn store_samples(&mut self, samples: &[HitProfile]) {
        match self.parts.store.add_samples(samples).await {
            Ok(()) => self.sampled.extend(samples.iter().map(|sample| (sample.uid, sample.hits))),
            Err(error) => tracing::warn!(%error, "cannot store hit counts"),
        }
    }
}
