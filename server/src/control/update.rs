//! Changing a probe.

use std::sync::Arc;
use std::time::SystemTime;

use super::ControlError;
use super::command::UpdateRequest;
use super::controller::{Controller, in_kernel};
use super::create::settled_state;
use super::{Probe, ProbeState};
use crate::decode::Schema;
use crate::filter::{Filter, FilterError, Functions};
use crate::model::ProbeName;
use crate::store::Wanted;

impl Controller {
    pub(super) async fn update(&mut self, request: UpdateRequest) -> Result<Arc<Probe>, ControlError> {
        let probe = self.probe(&request.name)?;
        if let Some(key) = &request.request
            && self.parts.store.carried_out(key).await? == Some(probe.uid)
        {
            return Ok(probe);
        }
        check_etag(&probe, request.etag.as_deref())?;
        let labels = probe
            .labels
            .changed(&request.labels)
            .map_err(|error| ControlError::Labels { field: "set_labels", error })?;
        let labels_only = !request.labels.is_empty() && request.enabled.is_none() && request.filter.is_none();
        let enabled = request.enabled.unwrap_or(probe.enabled);
        let filter = request.filter.unwrap_or_else(|| probe.filter.clone());
        let new_filter = filter != probe.filter;
        // The kernel knows of no labels, and need not even have the probe.
        let state = if labels_only {
            probe.state.clone()
        } else {
            self.judge_change(&probe, enabled, new_filter.then_some(filter.as_str()))?
        };
        if request.validate_only {
            return Ok(Arc::new(Probe { enabled, filter, labels, state, ..Probe::clone(&probe) }));
        }
        let now = SystemTime::now();
        let wanted = Wanted { enabled, filter: &filter, labels: &labels };
        self.parts.store.update(probe.uid, wanted, now, request.request.as_ref()).await?;
        // Before it records: what it is hit from then on is recorded.
        self.note_enabling(&probe, enabled);
        if let Err(error) = self.apply(&probe, enabled, new_filter.then_some(filter.as_str())) {
            // The kernel keeps what it had, and so does the database.
            let before = Wanted { enabled: probe.enabled, filter: &probe.filter, labels: &probe.labels };
            self.parts.store.update(probe.uid, before, now, None).await?;
            self.note_switched(&probe, probe.enabled, &probe.filter);
            return Err(error);
        }
        self.note_switched(&probe, enabled, &filter);
        if let Some(live) = self.live.get_mut(&probe.uid) {
            live.ever_enabled |= enabled;
            live.source.origin.set_labels(labels.clone());
            self.parts.hub.selections_changed();
        }
        let revision = probe.revision + 1;
        tracing::info!(probe = %probe.name, enabled, filter, %labels, "updated");
        let updated =
            Probe { enabled, filter, labels, state, revision, update_time: now, ..Probe::clone(&probe) };
        let updated = self.parts.registry.put(updated);
        self.note_sharing();
        Ok(updated)
    }

    /// Whether a probe can be switched and filtered like that, and its state when it was.
    fn judge_change(
        &self,
        probe: &Probe,
        enabled: bool,
        new_filter: Option<&str>,
    ) -> Result<ProbeState, ControlError> {
        if let ProbeState::Failed(reason) = &probe.state {
            return Err(ControlError::NotInKernel { name: probe.name.clone(), reason: reason.clone() });
        }
        let report = self.parts.checker.check(&probe.definition)?.report;
        if enabled && !probe.enabled {
            self.require_firing(&report)?;
        }
        if let Some(filter) = new_filter.filter(|filter| !filter.is_empty()) {
            self.judge_filter(&probe.name, filter, probe.schema.as_deref())?;
        }
        Ok(settled_state(enabled, &report))
    }

    /// The filter goes first when switching on, and last when switching off: no event gets out that neither state would have let out.
    fn apply(&self, probe: &Probe, enabled: bool, filter: Option<&str>) -> Result<(), ControlError> {
        let instance = &self.parts.instance;
        if !in_kernel(&probe.state) {
            return Ok(());
        }
        if !enabled && probe.enabled {
            instance.set_enabled(&probe.name, false)?;
        }
        if let Some(filter) = filter {
            instance.set_filter(&probe.name, filter)?;
        }
        if enabled && !probe.enabled {
            instance.set_enabled(&probe.name, true)?;
        }
        Ok(())
    }

    /// Has the kernel judge a filter where it does no harm. When it refuses, we look for what is wrong too, so that there is a place and
    /// advice where the kernel has none.
    fn judge_filter(
        &self,
        name: &ProbeName,
        filter: &str,
        schema: Option<&Schema>,
    ) -> Result<(), ControlError> {
        self.tracefs().try_filter(name, filter).map_err(|(error, message)| {
            let found = schema.and_then(|schema| self.what_is_wrong(filter, schema).map(Box::new));
            ControlError::Filter { filter: filter.to_owned(), error, message, found }
        })
    }

    fn what_is_wrong(&self, filter: &str, schema: &Schema) -> Option<FilterError> {
        let facts = self.parts.facts.current().ok();
        let functions = facts.as_ref().map(|facts| &facts.symbols as &dyn Functions);
        Filter::parse(filter).and_then(|filter| filter.check_for_kernel(schema, functions)).err()
    }

    /// Judges a filter and sets it.
    pub(super) fn filter_in_kernel(
        &self,
        name: &ProbeName,
        filter: &str,
        schema: &Schema,
    ) -> Result<(), ControlError> {
        self.judge_filter(name, filter, Some(schema))?;
        Ok(self.parts.instance.set_filter(name, filter)?)
    }
}

/// Refuses when the probe is not what the caller thinks.
pub(super) fn check_etag(probe: &Probe, etag: Option<&str>) -> Result<(), ControlError> {
    match etag {
        Some(etag) if etag != probe.etag() => {
            Err(ControlError::Changed { name: probe.name.clone(), current: probe.etag() })
        }
        _ => Ok(()),
    }
}
