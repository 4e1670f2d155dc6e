//! Changing a probe.

use std::sync::Arc;
use std::time::SystemTime;

use super::command::UpdateRequest;
use super::controller::Controller;
use super::create::{refuse, settled_state};
use super::harm::refuse_harm;
use super::observed::{ObservedEvent, Switch, lost};
use super::{CheckOutcome, ControlError, own};
use super::{Probe, ProbeState};
use crate::decode::Schema;
use crate::filter::{Filter, FilterError, Functions};
use crate::store::{Settings, Undo};
use crate::tracefs::OwnEvent;

/// What a request changes in the kernel.
enum Change {
    /// Nothing: labels, or the intent for a probe that the kernel does not have.
    Nothing,
    /// Our event, which looked like this.
    Event(Before, OwnEvent),
    /// The kernel has lost it: it is defined anew.
    Define(Box<CheckOutcome>),
}

/// What an event was like before a change.
#[derive(Clone)]
struct Before {
    switch: Switch,
    filter: String,
    unarmed: bool,
    /// It did not record what was asked, so that what became of its hits is not known.
    drifted: bool,
}

impl Controller {
    pub(super) async fn update(&mut self, request: UpdateRequest) -> Result<Arc<Probe>, ControlError> {
        let probe = self.probe(&request.name)?;
        if let Some(key) = &request.request
            && self.parts.store.carried_out(key).await? == Some(probe.uid)
        {
            return Ok(self.shown(&probe));
        }
        check_etag(&probe, request.etag.as_deref())?;
        let labels = probe
            .labels
            .changed(&request.labels)
            .map_err(|error| ControlError::Labels { field: "set_labels", error })?;
        let wanted = Probe {
            enabled: request.enabled.unwrap_or(probe.enabled),
            filter: request.filter.clone().unwrap_or_else(|| probe.filter.clone()),
            labels,
            ..Probe::clone(&probe)
        };
        let (wanted, change) = self.judge_change(&probe, wanted, &request)?;
        if request.validate_only {
            return Ok(Arc::new(wanted));
        }
        let wanted = Probe { revision: probe.revision + 1, update_time: SystemTime::now(), ..wanted };
        let (before, intent) = (settings(&probe), settings(&wanted));
        self.parts.store.update(probe.uid, &before, &intent, request.request.as_ref()).await?;
        // Before it records: what it is hit from then on is recorded.
        self.note_enabling(&probe, wanted.enabled);
        let updated = match self.carry_out_change(&request, wanted, change).await {
            Ok(updated) => updated,
            Err(error) => {
                // The kernel keeps what it had, and so does the database.
                let request = request.request.map(|request| request.id);
                self.parts.store.undo(Undo::Update { uid: probe.uid, before, request }).await;
                self.note_switched(&probe, probe.enabled, &probe.filter);
                return Err(error);
            }
        };
        self.note_switched(&probe, updated.enabled, &updated.filter);
        if let Some(live) = self.live.get_mut(&probe.uid) {
            live.ever_enabled |= updated.enabled;
            live.source.origin.set_labels(updated.labels.clone());
            self.parts.hub.selections_changed();
        }
        let Probe { name, enabled, filter, labels, .. } = &updated;
        tracing::info!(probe = %name, enabled, filter, %labels, "updated");
        let updated = self.parts.registry.put(updated);
        self.note_sharing();
        Ok(self.shown(&updated))
    }

    /// Whether a probe can be changed like that, and what is to be done in the kernel. Judged by what the kernel has now, and not by what was
    /// done before: to enable a probe that somebody else has switched off, filtered or removed is to repair it.
    fn judge_change(
        &self,
        probe: &Arc<Probe>,
        wanted: Probe,
        request: &UpdateRequest,
    ) -> Result<(Probe, Change), ControlError> {
        let new_filter = request.filter.as_ref().filter(|filter| **filter != probe.filter);
        if request.enabled.is_none() && request.filter.is_none() && !request.labels.is_empty() {
            // The kernel knows of no labels, and need not even have the probe.
            return Ok((wanted, Change::Nothing));
        }
        let observed = self.observer.observe(std::slice::from_ref(probe));
        let event = observed.events.get(&probe.uid);
        match (event, &probe.own) {
            (Some(ObservedEvent::There { switch, filter, unarmed, .. }), Some(own)) => {
                let report = self.parts.checker.check(&probe.definition)?.report;
                if wanted.enabled && (request.enabled.is_some() || !probe.enabled) {
                    self.require_firing(&report)?;
                }
                if let Some(filter) = new_filter.filter(|filter| !filter.is_empty()) {
                    self.judge_filter(own, filter, probe.schema.as_deref())?;
                }
                let drifted = probe.enabled && observed.state(probe) != ProbeState::Armed;
                let before = Before { switch: *switch, filter: filter.clone(), unarmed: *unarmed, drifted };
                let state = settled_state(wanted.enabled, &report);
                Ok((Probe { state, ..wanted }, Change::Event(before, own.clone())))
            }
            // What is not there is off, and can be wanted so.
            (Some(ObservedEvent::Lost(_)), _) if request.enabled == Some(false) && new_filter.is_none() => {
                Ok((wanted, Change::Nothing))
            }
            (Some(ObservedEvent::Lost(_)), _) if request.enabled == Some(true) => {
                if self.tracefs().has_event(probe.name.group(), probe.name.event()) {
                    return Err(ControlError::ExistsForeign { name: probe.name.clone() });
                }
                let outcome = self.parts.checker.check(&probe.definition)?;
                refuse(&probe.definition, &outcome, None)?;
                self.require_firing(&outcome.report)?;
                let line = self.parts.checker.kernel_line(&outcome.definition, probe.name.event().to_owned());
                let wanted = Probe {
                    kernel_definition: line.text,
                    state: settled_state(true, &outcome.report),
                    location: outcome.report.location.clone(),
                    arming: outcome.report.arming,
                    ..wanted
                };
                Ok((wanted, Change::Define(Box::new(outcome))))
            }
            (event, _) => {
                let trouble = match (&probe.state, event) {
                    (ProbeState::Failed(trouble), _) => trouble.clone(),
                    (_, Some(event)) => lost(event),
                    (_, None) => lost(&ObservedEvent::Unknown("it was not looked at".to_owned())),
                };
                let (reason, hint) = (trouble.reason, trouble.hint);
                Err(ControlError::NotInKernel { name: probe.name.clone(), reason, hint })
            }
        }
    }

    async fn carry_out_change(
        &mut self,
        request: &UpdateRequest,
        mut wanted: Probe,
        change: Change,
    ) -> Result<Probe, ControlError> {
        match change {
            Change::Nothing => {}
            Change::Event(before, event) => {
                if before.drifted
                    && let Some(live) = self.live.get_mut(&wanted.uid)
                {
                    live.account.note_silence();
                }
                if let Err(error) = self.change_event(&event, &before, &wanted, request) {
                    self.undo_change(&event, &before);
                    return Err(error);
                }
            }
            Change::Define(outcome) => {
                let CheckOutcome { definition, report, .. } = *outcome;
                // What the buffers still hold of the event that was lost is read as what it was.
                self.readers.drain();
                self.forget_live(&wanted);
                self.put_into_kernel(&mut wanted, &definition, &report)?;
                let listing = wanted.own.as_ref().map(|own| own.listing.clone()).unwrap_or_default();
                let (uid, line) = (wanted.uid, &wanted.kernel_definition);
                if let Err(error) = self.parts.store.redefined(uid, line, &listing).await {
                    self.take_back(wanted);
                    return Err(error.into());
                }
                tracing::info!(probe = %wanted.name, "defined a probe anew that the kernel had lost");
            }
        }
        Ok(wanted)
    }

    /// The filter goes first when switching on, and last when switching off: no event gets out that neither state would have let out.
    fn change_event(
        &self,
        event: &OwnEvent,
        before: &Before,
        wanted: &Probe,
        request: &UpdateRequest,
    ) -> Result<(), ControlError> {
        let (tracefs, instance) = (self.tracefs(), &self.parts.instance);
        let switch = |on| {
            own::switch(tracefs, instance, event, on)
                .map_err(ControlError::from)
                .and_then(|found| own::require(found, &event.name))
        };
        if request.enabled == Some(false) && before.switch != Switch::Off {
            switch(false)?;
        }
        if before.filter.trim() != wanted.filter.trim() {
            own::require(own::set_filter(tracefs, instance, event, &wanted.filter)?, &event.name)?;
        }
        if request.enabled == Some(true) {
            if before.unarmed {
                switch(false)?;
            }
            if before.unarmed || before.switch != Switch::On {
                switch(true)?;
            }
            if !instance.is_recording()? {
                instance.set_recording(true)?;
            }
        }
        Ok(())
    }

    /// Leaves an event as it was before a change that failed.
    fn undo_change(&self, event: &OwnEvent, before: &Before) {
        let (tracefs, instance) = (self.tracefs(), &self.parts.instance);
        let undone = own::set_filter(tracefs, instance, event, &before.filter)
            .and_then(|_found| own::switch(tracefs, instance, event, before.switch != Switch::Off));
        if let Err(error) = undone {
            tracing::warn!(probe = %event.name, %error, "cannot undo a change that failed");
        }
    }

    /// Has the kernel judge a filter where it does no harm. When it refuses, we look for what is wrong too, so that there is a place and
    /// advice where the kernel has none.
    fn judge_filter(
        &self,
        event: &OwnEvent,
        filter: &str,
        schema: Option<&Schema>,
    ) -> Result<(), ControlError> {
        own::require(self.tracefs().presence(event)?, &event.name)?;
        refuse_harm(self.tracefs(), &event.name, filter)?;
        self.tracefs().try_filter(&event.name, filter).map_err(|(error, message)| {
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
        event: &OwnEvent,
        filter: &str,
        schema: &Schema,
    ) -> Result<(), ControlError> {
        self.judge_filter(event, filter, Some(schema))?;
        own::require(own::set_filter(self.tracefs(), &self.parts.instance, event, filter)?, &event.name)
    }
}

/// What clients can change of a probe, as it is.
fn settings(probe: &Probe) -> Settings {
    Settings {
        enabled: probe.enabled,
        filter: probe.filter.clone(),
        labels: probe.labels.clone(),
        revision: probe.revision,
        time: probe.update_time,
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
