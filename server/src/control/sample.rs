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
    }

    pub(super) async fn store_samples(&mut self, samples: &[HitProfile]) {
        let oldest = SystemTime::now().checked_sub(self.parts.sample_retention);
        match self.parts.store.add_samples(samples, oldest).await {
            Ok(()) => {
                self.sampled.extend(samples.iter().map(|sample| (sample.uid, sample.hits)));
                if std::mem::take(&mut self.sampling_fails) {
                    tracing::info!("stores hit counts again");
                }
            }
            // Once: the next sample will fail in the same way.
            Err(error) if !self.sampling_fails => {
                self.sampling_fails = true;
                tracing::warn!(%error, "cannot store hit counts");
            }
            Err(error) => tracing::debug!(%error, "cannot store hit counts"),
        }
    }
}
