//! Attached events: recording trace events of the host that the daemon did not define, and ending
//! that.
//!
//! Owns the order of attaching and detaching. Everything happens in the daemon's own instance.
//! Never touches the definition of the event, or what other instances do with it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use kprobed_audit::Entry;

use super::attached::{AttachedEvent, AttachedState, Attachment};
use super::audited::Allowed;
use super::command::{AttachRequest, DetachRequest, Sourced};
use super::controller::{Controller, ControllerParts};
use super::harm::refuse_harm;
use super::observed::Switch;
use super::plan::PlannedStep;
use super::source::{compile_options, event_source};
use super::step::{self, Aim, Seen, Step};
use crate::auth::Caller;
use crate::error::{Error, Reason};
use crate::store::{Owed, Phase, StoredAttachment};
use kprobed_host::tracefs::{Instance, TracefsError};
use kprobed_lang::model::{ProbeName, ProbeUid};
use kprobed_trace::decode::CompileOptions;
use kprobed_trace::pipeline::{EventSource, SourceTable};

impl Controller {
    pub(super) async fn attach(&mut self, caller: &Caller, request: AttachRequest) -> Result<Sourced, Error> {
        let AttachRequest { name, filter, validate_only } = request;
        let rule = self.require_on_event(caller, &name, &filter)?;
        let entry = Allowed { caller, rule, request: None }.on_event("attach", &name, &filter);
        let waiting = self.attached.get(&name);
        let recorded = waiting.map(|waiting| waiting.state(&name, &self.observer, &self.parts.instance));
        if recorded == Some(AttachedState::Recording) {
            return Err(Error::attached(name));
        }
        if validate_only {
            let plan = self.plan_attach(&name, &filter).await?;
            return Ok(Sourced { event: None, plan });
        }
        let event = if recorded.is_some() {
            self.try_again(&name, filter, &entry).await?
        } else {
            self.noted(caller, "attach", &name.to_string(), recordable(&self.parts, &name))?;
            self.attach_anew(name, filter, &entry).await?
        };
        Ok(Sourced { event: Some(event), plan: Vec::new() })
    }

    /// What would be done to attach an event. A filter is judged as far as that disturbs nothing:
    /// if the event is recorded already, the kernel judges the filter when it is attached.
    async fn plan_attach(&self, name: &ProbeName, filter: &str) -> Result<Vec<PlannedStep>, Error> {
        recordable(&self.parts, name)?;
        refuse_harm(self.tracefs(), name, filter)?;
        let instance = &self.parts.instance;
        let seen = seen(instance, name)?;
        if seen.switch == Switch::Off && !filter.is_empty() {
            self.try_first_filter(name, filter, &seen.filter).await?;
        }
        let planned = step::change(&seen, Aim { enabled: Some(true), filter }).into_iter();
        Ok(planned.map(|step| PlannedStep::for_event(instance.name(), name, step)).collect())
    }

    /// Has the kernel judge a filter in the daemon's instance, in which the event is off and has
    /// the filter `before`: in the top instance other programs can use it. Meanwhile the event
    /// counts as one that is being attached: if the daemon ends in between, the filter stays, and
    /// the next start clears it.
    pub(super) async fn try_first_filter(
        &self,
        name: &ProbeName,
        filter: &str,
        before: &str,
    ) -> Result<(), Error> {
        let trial = if self.attached.contains_key(name) {
            // It has its row.
            None
        } else {
            Some(self.parts.store.begin_attach(name, filter, SystemTime::now(), None).await?)
        };
        let tried = first_filter(&self.parts.instance, name, filter);
        // When that fails, the row stays for the next daemon.
        self.parts.instance.set_filter(name, before)?;
        if let Some(trial) = trial {
            self.parts.store.owe(vec![Owed::Attachment(trial)]).await;
        }
        tried
    }

    /// Attaches an event that is [`recordable`].
    async fn attach_anew(
        &mut self,
        name: ProbeName,
        filter: String,
        entry: &Entry,
    ) -> Result<AttachedEvent, Error> {
        let create_time = SystemTime::now();
        let uid = self.parts.store.begin_attach(&name, &filter, create_time, Some(entry)).await?;
        let undo = |error: &Error| {
            vec![Owed::Attachment(uid), Owed::Note(Box::new(entry.failed(error.to_string())))]
        };
        let source = match record(&self.parts, &self.sources, uid, &name, &filter) {
            Ok(source) => source,
            Err(error) => {
                self.parts.store.owe(undo(&error)).await;
                return Err(error);
            }
        };
        if let Err(error) = self.parts.store.settle_attach(uid, &filter, None).await {
            let error = error.into();
            if self.stop_recording(&name, uid) {
                self.parts.store.owe(undo(&error)).await;
            }
            return Err(error);
        }
        tracing::info!(event = %name, filter, "attached");
        Ok(self.attached_now(name, Attachment { uid, filter, create_time, source: Ok(source) }))
    }

    /// Attaches an event again that was attached before and is not recorded. If that fails, it goes
    /// on waiting.
    async fn try_again(
        &mut self,
        name: &ProbeName,
        filter: String,
        entry: &Entry,
    ) -> Result<AttachedEvent, Error> {
        let Some(waiting) = self.attached.get(name) else {
            return Err(Error::not_attached(name));
        };
        let (uid, create_time, before) = (waiting.uid, waiting.create_time, waiting.filter.clone());
        self.sources.remove(&[uid]);
        let mut recorded = recordable(&self.parts, name)
            .and_then(|()| record(&self.parts, &self.sources, uid, name, &filter));
        if recorded.is_ok() {
            self.restore_instance();
            if let Err(error) = self.parts.instance.set_recording(true) {
                self.stop_recording(name, uid);
                recorded = Err(error.into());
            }
        }
        let source = match recorded {
            Ok(source) => source,
            Err(error) => {
                if let Some(waiting) = self.attached.get_mut(name) {
                    waiting.source = Err(error.to_string());
                }
                return Err(error);
            }
        };
        if let Err(error) = self.parts.store.settle_attach(uid, &filter, Some((&before, entry))).await {
            self.stop_recording(name, uid);
            if let Some(waiting) = self.attached.get_mut(name) {
                waiting.source = Err(error.to_string());
            }
            return Err(error.into());
        }
        tracing::info!(event = %name, filter, "attached again");
        Ok(self.attached_now(name.clone(), Attachment { uid, filter, create_time, source: Ok(source) }))
    }

    /// Ends the recording of an event that could not be attached after all. Returns whether it is
    /// off.
    fn stop_recording(&mut self, name: &ProbeName, uid: ProbeUid) -> bool {
        let is_off = take_back(&self.parts, name);
        self.readers.drain();
        self.sources.remove(&[uid]);
        is_off
    }

    fn attached_now(&mut self, name: ProbeName, attachment: Attachment) -> AttachedEvent {
        let event = attachment.event(&name, &self.observer, &self.parts.instance);
        self.attached.insert(name, attachment);
        self.note_sharing();
        event
    }

    pub(super) async fn detach(
        &mut self,
        caller: &Caller,
        request: &DetachRequest,
    ) -> Result<Sourced, Error> {
        let DetachRequest { name, validate_only } = request;
        let rule = self.require_on_event(caller, name, "")?;
        let Some(attachment) = self.attached.get(name) else {
            return Err(Error::not_attached(name));
        };
        // Its counters go on until the last event was read.
        let last = attachment.event(name, &self.observer, &self.parts.instance);
        if *validate_only {
            let steps =
                if is_there(&self.parts, name) { detaching(&self.parts.instance, name)? } else { Vec::new() };
            let instance = self.parts.instance.name();
            let plan = steps.into_iter().map(|step| PlannedStep::for_event(instance, name, step)).collect();
            return Ok(Sourced { event: Some(last), plan });
        }
        let entry = Allowed { caller, rule, request: None }.on_event("detach", name, &last.filter);
        self.parts.store.begin_detach(last.uid, &last.filter, &entry).await?;
        if let Err(error) = switch_off(&self.parts, name) {
            self.keep_recording(name, &last.filter);
            let note = Owed::Note(Box::new(entry.failed(error.to_string())));
            self.parts.store.owe(vec![Owed::Detachment(last.uid, last.filter), note]).await;
            return Err(error);
        }
        // What was recorded before is still delivered; after that nothing of it is in the buffers.
        self.readers.drain();
        self.sources.remove(&[last.uid]);
        self.attached.remove(name);
        // The database says that it goes. The row may stay for a while.
        self.parts.store.owe(vec![Owed::Attachment(last.uid)]).await;
        tracing::info!(event = %name, "detached");
        Ok(Sourced { event: Some(last), plan: Vec::new() })
    }

    /// Records an event again that could not be detached: it may be off by then, or without its
    /// filter.
    fn keep_recording(&mut self, name: &ProbeName, filter: &str) {
        let Some(attachment) = self.attached.get_mut(name).filter(|attached| attached.source.is_ok()) else {
            return;
        };
        let instance = &self.parts.instance;
        let on = instance.set_filter(name, filter).and_then(|()| instance.set_enabled(name, true));
        if let Err(error) = on {
            tracing::warn!(event = %name, %error, "cannot go on recording an event that could not be detached");
            attachment.source = Err(error.to_string());
        }
    }

    /// All attached events, by name.
    pub(super) fn attached_events(&self) -> Vec<AttachedEvent> {
        let (observer, instance) = (&self.observer, &self.parts.instance);
        self.attached.iter().map(|(name, attachment)| attachment.event(name, observer, instance)).collect()
    }

    /// How many attached events record.
    pub(super) fn recording_attached(&self) -> usize {
        self.attached.values().filter(|attachment| attachment.source.is_ok()).count()
    }
}

/// Restores all attached events of the database: what was acknowledged is recorded again; what
/// was never acknowledged, or was being detached, is removed.
pub(super) async fn bring_back(
    parts: &ControllerParts,
    sources: &SourceTable,
) -> Result<BTreeMap<ProbeName, Attachment>, Error> {
    let mut attached = BTreeMap::new();
    for row in parts.store.attachments().await? {
        let StoredAttachment { uid, name, filter, phase, create_time, unreadable } = row;
        if let Some(why) = unreadable {
            switch_off(parts, &name)?;
            let source =
                Err(format!("its row in the database was damaged: {why}: detach it, and attach it again"));
            attached.insert(name, Attachment { uid, filter, create_time, source });
            continue;
        }
        match phase {
            Phase::Pending | Phase::Removing => {
                switch_off(parts, &name)?;
                parts.store.owe(vec![Owed::Attachment(uid)]).await;
            }
            Phase::Settled => {
                let source = recordable(parts, &name)
                    .and_then(|()| record(parts, sources, uid, &name, &filter))
                    .map_err(|error| error.to_string());
                if let Err(reason) = &source {
                    tracing::warn!(event = %name, reason, "cannot attach an event again");
                }
                attached.insert(name, Attachment { uid, filter, create_time, source });
            }
        }
    }
    Ok(attached)
}

/// Refuses what cannot be attached.
fn recordable(parts: &ControllerParts, name: &ProbeName) -> Result<(), Error> {
    if parts.registry.get(name).is_some() {
        let message =
            format!("`{name}` is a probe of this daemon: its events are streamed without being attached");
        return Err(Error::of_probe(Reason::OWN_PROBE, name, message).field("name"));
    }
    if !parts.instance.has_event(name) {
        return Err(Error::no_event(name));
    }
    if !parts.instance.has_switch(name) {
        let message = format!("`{name}` cannot be recorded by itself: it describes what a tracer writes");
        return Err(Error::new(Reason::EVENT_HAS_NO_SWITCH, message).with("event", name));
    }
    Ok(())
}

/// Filters an event and switches it on. When a step fails, it is off and without a filter.
fn record(
    parts: &ControllerParts,
    sources: &SourceTable,
    uid: ProbeUid,
    name: &ProbeName,
    filter: &str,
) -> Result<Arc<EventSource>, Error> {
    let options = options_of_foreign_probe(parts, name)?.unwrap_or_default();
    let (id, source) = event_source(&parts.mounted.tracefs, uid, name, &options)?;
    refuse_harm(&parts.mounted.tracefs, name, filter)?;
    let steps = step::change(&seen(&parts.instance, name)?, Aim { enabled: Some(true), filter });
    for step in steps {
        if step == Step::Enable {
            // No event is read without its source, and none that an earlier run let through.
            sources.insert([(id, Arc::clone(&source))]);
        }
        if let Err(error) = take(&parts.instance, name, &step) {
            take_back(parts, name);
            sources.remove(&[uid]);
            return Err(error);
        }
    }
    Ok(source)
}

/// Takes a step of an event that is being attached.
fn take(instance: &Instance, name: &ProbeName, step: &Step) -> Result<(), Error> {
    match step {
        Step::Disable => instance.set_enabled(name, false)?,
        Step::Filter { after, .. } => first_filter(instance, name, after)?,
        Step::Enable => instance.set_enabled(name, true)?,
        Step::Define { .. } | Step::Delete => {}
    }
    Ok(())
}

/// Takes back all steps of attaching: a filter that stayed would be taken over when the event is
/// adopted. Returns whether the event is off.
fn take_back(parts: &ControllerParts, name: &ProbeName) -> bool {
    let switched_off = switch_off(parts, name);
    if let Err(error) = &switched_off {
        tracing::error!(event = %name, %error, "cannot switch off an event that could not be attached");
    }
    switched_off.is_ok()
}

/// What our instance has of an event. If it is on, it is switched off first: an earlier run of the
/// daemon left it on, or it has lost its filter.
fn seen(instance: &Instance, name: &ProbeName) -> Result<Seen, TracefsError> {
    let is_on = instance.is_enabled(name)?;
    let switch = if is_on { Switch::On } else { Switch::Off };
    Ok(Seen { switch, filter: instance.filter(name)?, unarmed: is_on })
}

/// Sets the filter of an event that is off.
fn first_filter(instance: &Instance, name: &ProbeName, filter: &str) -> Result<(), Error> {
    let set = instance.set_first_filter(name, filter);
    set.map_err(|refused| Error::kernel_filter(("filter", filter), &refused, None))
}

/// Which fields of another program's probe are not read from memory, by its definition in the
/// kernel. Absent for other events.
fn options_of_foreign_probe(
    parts: &ControllerParts,
    name: &ProbeName,
) -> Result<Option<CompileOptions>, Error> {
    let list = parts.mounted.tracefs.kprobe_list()?;
    let definition = list.lines_of(name).next().and_then(|line| parts.checker.parse_probe(line).ok());
    // It has the kernel's own way with names of symbols.
    Ok(definition.map(|definition| CompileOptions { named: HashSet::new(), ..compile_options(&definition) }))
}

/// Whether our instance has the event, and it is not one of our probes: a probe can have taken the
/// name of an event that was waiting.
fn is_there(parts: &ControllerParts, name: &ProbeName) -> bool {
    parts.registry.get(name).is_none() && parts.instance.has_event(name)
}

/// The steps that end the recording of an event.
fn detaching(instance: &Instance, name: &ProbeName) -> Result<Vec<Step>, TracefsError> {
    Ok(vec![Step::Disable, Step::Filter { before: instance.filter(name)?, after: String::new() }])
}

/// Switches an event off in our instance, and waits until no handler writes it any more. An event
/// that has gone counts as off.
fn switch_off(parts: &ControllerParts, name: &ProbeName) -> Result<(), Error> {
    if !is_there(parts, name) {
        return Ok(());
    }
    for step in detaching(&parts.instance, name)? {
        match step {
            Step::Disable => parts.instance.set_enabled(name, false)?,
            // The kernel waits for all that use the old one.
            Step::Filter { .. } => parts.instance.clear_filter_and_settle(name)?,
            Step::Define { .. } | Step::Enable | Step::Delete => {}
        }
    }
    Ok(())
}
