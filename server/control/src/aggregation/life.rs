//! Lifecycle of aggregations: creating, reading, expiring and deleting them.
//!
//! Owns the list of aggregations and their tracing instance. Which triggers one takes is decided in
//! [`super::plan`]; never parses the kernel's tables itself.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kprobed_audit::{Action, Entry};
use kprobed_proto::v1;
use kprobed_proto::v1::aggregation_spec::Aggregation as Spec;
use kprobed_rights::{Limit, RuleName};
use nix::errno::Errno;
use tokio::time::Instant;

use super::access::{Access, LiveAggregation, counted, has_stacks};
use super::plan::{Counted, Role, TriggerPlan};
use super::{CreateAggregation, LATENCY_FIELD, MAX_AGGREGATIONS, NumberedAggregation, instance_name, result};
use crate::audited;
use crate::auth::Caller;
use crate::controller::Controller;
use crate::error::{Error, Reason};
use crate::own;
use crate::source::read_format;
use crate::store::OWN_NAME;
use crate::{Probe, permission};
use kprobed_host::kernel::TRACE_CLOCK;
use kprobed_host::tracefs::{Claim, Instance, InstanceOptions};
use kprobed_lang::model::ProbeName;
use kprobed_trace::decode::Schema;
use kprobed_trace::filter::Proofs;
use kprobed_verdict::validate::Arming;

/// All aggregations.
#[derive(Debug, Default)]
pub(crate) struct Aggregations {
    /// With the daemon's claim on it.
    instance: Option<(Instance, Claim)>,
    by_name: BTreeMap<String, LiveAggregation>,
    made: u64,
    /// The last ones that the daemon has ended by itself, by their numbers, and why: for those who still read them.
    ended: VecDeque<(u64, &'static str)>,
}

/// Buffers of the instance, in KiB. Small: no events are recorded in it.
const BUFFER_KIB: u64 = 64;

/// When an aggregation whose time is over and that could not be deleted is deleted again.
const EXPIRED_AGAIN: Duration = Duration::from_secs(30);

impl Aggregations {
    /// When the next one is to be deleted.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.by_name.values().filter_map(|live| live.expires).min()
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The probes that are counted.
    pub(crate) fn counted(&self) -> impl Iterator<Item = ProbeName> {
        self.by_name.values().flat_map(|live| live.plan.tables.iter().map(|table| table.event.clone()))
    }

    /// The first aggregation that uses a probe.
    fn user_of(&self, probe: &ProbeName) -> Option<&LiveAggregation> {
        let uses = |live: &&LiveAggregation| live.plan.tables.iter().any(|table| table.event == *probe);
        self.by_name.values().find(uses)
    }

    fn live(&self, name: &str) -> Result<&LiveAggregation, Error> {
        self.by_name.get(name).ok_or_else(|| no_aggregation(name))
    }

    /// The aggregation itself, and not another one that has its name now.
    fn same(&self, which: &NumberedAggregation) -> Result<&LiveAggregation, Error> {
        let name = &which.aggregation.name;
        self.live(name).ok().filter(|live| live.number == which.number).ok_or_else(|| {
            match self.ended.iter().find(|(number, _)| *number == which.number) {
                Some((_, why)) => Error {
                    message: format!("the aggregation `{name}` has ended: {why}"),
                    ..no_aggregation(name)
                },
                None => no_aggregation(name),
            }
        })
    }

    fn note_end(&mut self, number: u64, why: &'static str) {
        self.ended.truncate(MAX_AGGREGATIONS - 1);
        self.ended.push_front((number, why));
    }

    /// The requested name, or the first free one that is made of a number, from that of the aggregation on.
    fn free_name(&self, wanted: String, number: u64) -> Result<String, Error> {
        if wanted.is_empty() {
            let mut names = (number..).map(|number| format!("aggregation-{number}"));
            let free = names.find(|name| !self.by_name.contains_key(name));
            return free.ok_or_else(|| Error::internal("there is no further name for an aggregation"));
        }
        let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if wanted.len() > 63 || !wanted.chars().all(good) {
            return Err(Error::bad_argument("name", "a name has 1 to 63 letters, digits, `_` and `-`"));
        }
        if self.by_name.contains_key(&wanted) {
            let message = format!("there is an aggregation `{wanted}` already");
            return Err(Error::new(Reason::AGGREGATION_EXISTS, message).with("aggregation", &wanted));
        }
        Ok(wanted)
    }
}

impl Controller {
    pub(super) fn find_aggregation(&self, caller: &Caller, name: &str) -> Result<NumberedAggregation, Error> {
        let live = self.aggregations.live(name)?;
        self.access().require(caller, live)?;
        Ok(live.numbered())
    }

    pub(super) fn read_aggregation_for(
        &self,
        caller: &Caller,
        which: &NumberedAggregation,
    ) -> Result<v1::AggregationSnapshot, Error> {
        let live = self.aggregations.same(which)?;
        self.access().require(caller, live)?;
        self.read_aggregation(live)
    }

    /// Those whose probes the caller may observe, by name.
    pub(super) fn shown_aggregations(&self, caller: &Caller) -> Vec<Arc<v1::Aggregation>> {
        let all = self.aggregations.by_name.values();
        let shown = all.filter(|live| self.access().allows(caller, live));
        shown.map(|live| Arc::clone(&live.aggregation)).collect()
    }

    pub(super) async fn end_aggregation_of_stream(&mut self, number: u64) -> Result<(), Error> {
        let of_stream = self.aggregations.by_name.values().find(|live| live.number == number);
        match of_stream.map(|live| live.aggregation.name.clone()) {
            // It is gone already, with a probe of it or by a request.
            None => Ok(()),
            Some(name) => self.end_aggregation(&name, "its stream has ended").await,
        }
    }

    pub(super) async fn create_aggregation(
        &mut self,
        caller: &Caller,
        request: CreateAggregation,
    ) -> Result<NumberedAggregation, Error> {
        let CreateAggregation { name, spec, ttl, bound_to_stream } = request;
        let (probes, rule) = self.observed_by(caller, &spec)?;
        Access::require_place(caller, &self.aggregations.by_name.values().collect::<Vec<_>>())?;
        let share = self.parts.rights.take(caller, Limit::Aggregations, 1)?;
        let number = self.aggregations.made + 1;
        let name = self.aggregations.free_name(name, number)?;
        let uids = probes.iter().map(|probe| probe.uid).collect();
        let (spec, plan) = self.plan_aggregation(spec, number, &probes)?;
        self.aggregations.made = number;
        let nmissed_before = self.nmissed(&plan);
        let entry = described(audited::entry("count", (caller, rule)), &name, &plan);
        // It is a change of the kernel: nothing is counted without its entry.
        self.parts.store.add_audit(std::slice::from_ref(&entry)).await?;
        let made = self.aggregation_instance().and_then(|instance| {
            let put = self.put_aggregation_into_kernel(&instance, &plan);
            if put.is_err() {
                self.drop_unused_instance();
            }
            put.map(|()| starts(&instance, &plan))
        });
        let starts_before = match made {
            Ok(starts) => starts,
            Err(error) => {
                self.parts.store.tell(vec![entry.failed(error.to_string())]).await;
                return Err(error);
            }
        };
        let create_time = SystemTime::now();
        let aggregation = Arc::new(v1::Aggregation {
            name: name.clone(),
            spec: Some(v1::AggregationSpec { aggregation: Some(spec) }),
            create_time: Some(create_time.into()),
            expire_time: ttl.and_then(|ttl| create_time.checked_add(ttl)).map(Into::into),
            bound_to_stream,
            keys: plan.keys.iter().map(|key| key.column.clone()).collect(),
            sums: plan.sums.clone(),
            creator: caller.principal.account(),
            warnings: plan.warnings.clone(),
        });
        let expires = ttl.and_then(|ttl| Instant::now().checked_add(ttl));
        let live = LiveAggregation {
            number,
            aggregation,
            probes: uids,
            plan,
            expires,
            nmissed_before,
            starts_before,
            _share: Some(share),
        };
        let numbered = live.numbered();
        tracing::info!(aggregation = name, "counting");
        self.aggregations.by_name.insert(name, live);
        // It fires from now on, also if it is not recorded.
        self.budget.note_armed();
        Ok(numbered)
    }

    fn access(&self) -> Access<'_> {
        Access { rights: &self.parts.rights, registry: &self.parts.registry }
    }

    /// The probes that a caller wants counted, with the last rule by which it may observe one.
    fn observed_by(
        &self,
        caller: &Caller,
        spec: &Spec,
    ) -> Result<(Vec<Arc<Probe>>, Option<RuleName>), Error> {
        let names = match spec {
            Spec::Histogram(spec) => vec![spec.probe.as_str()],
            Spec::Latency(spec) => vec![spec.start_probe.as_str(), spec.end_probe.as_str()],
        };
        let (mut probes, mut rule) = (Vec::with_capacity(names.len()), None);
        for name in names {
            let probe = self.probe(caller, name)?;
            let object = counted(&probe, Some(spec));
            rule = permission::on_probe(&self.parts.rights, caller, &probe, &object)?;
            probes.push(probe);
        }
        Ok((probes, rule))
    }

    /// Refuses what the kernel was built without (kernel/trace/trace.c:readme_msg).
    fn require_built(&self, spec: &Spec) -> Result<(), Error> {
        let readme = self.tracefs().readme()?;
        let is_latency = matches!(spec, Spec::Latency(_));
        for (part, needed, option) in [
            ("hist trigger", true, "CONFIG_HIST_TRIGGERS"),
            ("synthetic_events", is_latency, "CONFIG_SYNTH_EVENTS"),
        ] {
            if needed && !readme.contains(part) {
                let message = format!("this kernel cannot count events: it was built without `{option}`");
                let fix = "`kprobectl hits` counts on every kernel, and `kprobectl trace` shows each event";
                return Err(Error::new(Reason::NOT_BUILT, message).with("option", option).fix(fix));
            }
        }
        Ok(())
    }

    /// Decides on triggers, and puts full names of probes into the spec.
    fn plan_aggregation(
        &self,
        spec: Spec,
        number: u64,
        probes: &[Arc<Probe>],
    ) -> Result<(Spec, TriggerPlan), Error> {
        self.require_built(&spec)?;
        match (spec, probes) {
            (Spec::Histogram(spec), [probe]) => {
                let (schema, proofs) = self.countable(probe, &spec.filter, "spec.histogram.filter")?;
                let counted = Counted { probe: &probe.name, schema: &schema, proofs: &proofs };
                let mut plan = TriggerPlan::histogram(&spec, number, counted)?;
                if has_stacks(Some(&Spec::Histogram(spec.clone()))) && self.becomes_a_jump(probe) {
                    plan.note_stacks(probe);
                }
                Ok((Spec::Histogram(v1::HistogramSpec { probe: probe.name.to_string(), ..spec }), plan))
            }
            (Spec::Latency(spec), [start, end]) => {
                let of_start = self.countable(start, &spec.start_filter, "spec.latency.start_filter")?;
                let of_end = self.countable(end, &spec.end_filter, "spec.latency.end_filter")?;
                let ends = [(start, &of_start), (end, &of_end)].map(|(probe, (schema, proofs))| Counted {
                    probe: &probe.name,
                    schema,
                    proofs,
                });
                let plan = TriggerPlan::latency(&spec, number, ends, TRACE_CLOCK)?;
                let (start_probe, end_probe) = (start.name.to_string(), end.name.to_string());
                Ok((Spec::Latency(v1::LatencySpec { start_probe, end_probe, ..spec }), plan))
            }
            _ => Err(Error::internal("an aggregation counts one probe, or measures between two")),
        }
    }

    /// Whether the kernel is expected to arm a probe by a jump in the end.
    fn becomes_a_jump(&self, probe: &Probe) -> bool {
        let checker = &self.parts.checker;
        let checked = checker.check_text(&probe.spec.definition, &mut checker.recent_facts());
        checked.is_ok_and(|outcome| outcome.predicted_arming() == Some(Arming::Optimised))
    }

    /// The fields of a probe that the kernel has, and what shows that they were read. Has the kernel judge the filter
    /// in this field of the request.
    fn countable(
        &self,
        probe: &Probe,
        filter: &str,
        field: &'static str,
    ) -> Result<(Arc<Schema>, Proofs), Error> {
        let list = self.tracefs().kprobe_list()?;
        own::require(own::presence(self.tracefs(), &list, probe)?, &probe.name)?;
        let Some(schema) = probe.schema.as_ref().filter(|_| probe.state.is_in_kernel()) else {
            return Err(Error::not_in_kernel(&probe.name, "it cannot be counted", ""));
        };
        if filter.contains('\n') {
            return Err(Error::bad_argument(field, "a filter is one line"));
        }
        if !filter.is_empty()
            && let Some(event) = &probe.own
        {
            self.executor().judge_written(event, (field, filter), Some(schema))?;
        }
        let proofs = Proofs::of(&read_format(self.tracefs(), &probe.name)?).of_shown(Some(schema));
        Ok((Arc::clone(schema), proofs))
    }

    fn aggregation_instance(&mut self) -> Result<Instance, Error> {
        if let Some((instance, _)) = &self.aggregations.instance {
            return Ok(instance.clone());
        }
        let name = instance_name(&self.parts.instance_options.name);
        let options = InstanceOptions {
            name,
            buffer_kib: BUFFER_KIB,
            buffer_max_kib: BUFFER_KIB,
            sub_buffer_kib: 0,
            clock: TRACE_CLOCK,
        };
        let (instance, claim) = Instance::open_or_create(self.tracefs(), &options)?;
        self.aggregations.instance = Some((instance.clone(), claim));
        Ok(instance)
    }

    /// Makes the synthetic event and the triggers; undoes what was done when a step fails.
    fn put_aggregation_into_kernel(&self, instance: &Instance, plan: &TriggerPlan) -> Result<(), Error> {
        if let Some(synthetic) = &plan.synthetic {
            self.tracefs().define_synthetic(synthetic, &format!("u64 {LATENCY_FIELD}"))?;
        }
        for (done, table) in plan.tables.iter().enumerate() {
            if let Err(error) = instance.add_hist(&table.event, &table.trigger) {
                self.take_aggregation_out_of_kernel(instance, plan, done)?;
                let errno = error.error.errno();
                return Err(Error::new(Reason::TRIGGER_REFUSED, error.to_string()).with("errno", &errno));
            }
        }
        Ok(())
    }

    /// Removes the first `tables` triggers and the synthetic event.
    fn take_aggregation_out_of_kernel(
        &self,
        instance: &Instance,
        plan: &TriggerPlan,
        tables: usize,
    ) -> Result<(), Error> {
        for table in plan.tables.iter().take(tables).rev() {
            match instance.remove_trigger(&table.event, &table.trigger.to_string()) {
                // Its event has gone, and the trigger with it.
                Err(error) if error.errno() == Errno::ENOENT as i32 => {}
                removed => removed?,
            }
        }
        if let Some(synthetic) = &plan.synthetic {
            self.tracefs().remove_synthetic(synthetic)?;
        }
        Ok(())
    }

    /// How many runs the kernel has skipped until now of the probe whose events are counted. What was counted is read
    /// also if this cannot be.
    fn nmissed(&self, plan: &TriggerPlan) -> Option<u64> {
        let has_role = |of: fn(Role) -> bool| plan.tables.iter().find(|table| of(table.role));
        // Results of latencies are events that the kernel makes of the ends.
        let ends = has_role(|role| role == Role::Ends);
        let counted = ends.or_else(|| has_role(|role| matches!(role, Role::Result { .. })));
        Some(self.kernel_hits().ok()?.get(&counted?.event)?.nmissed)
    }

    fn read_aggregation(&self, live: &LiveAggregation) -> Result<v1::AggregationSnapshot, Error> {
        let name = live.aggregation.name.as_str();
        let Some((instance, _)) = &self.aggregations.instance else {
            return Err(no_aggregation(name));
        };
        let time = SystemTime::now();
        let mut tables = Vec::new();
        for table in &live.plan.tables {
            let read = instance.hist(&table.event, &table.trigger)?;
            tables.push(read.map_err(|error| {
                let message = format!("cannot read what the kernel has counted: {error}");
                Error::new(Reason::UNREADABLE_TABLE, message)
            })?);
        }
        let sum = |of: fn(Role) -> bool, term: fn(&kprobed_host::tracefs::hist::HistTable) -> u64| -> u64 {
            let wanted = tables.iter().zip(&live.plan.tables).filter(|(_, planned)| of(planned.role));
            wanted.map(|(table, _)| term(table)).sum()
        };
        let is_result = |role| matches!(role, Role::Result { .. });
        let is_match = |role| matches!(role, Role::Starts | Role::Ends);
        let has = |role: Role| live.plan.tables.iter().any(|table| table.role == role);
        Ok(v1::AggregationSnapshot {
            name: name.to_owned(),
            time: Some(time.into()),
            since: live.aggregation.create_time,
            delta: false,
            rows: result::rows(&live.plan, &tables),
            hits: sum(is_result, |table| table.hits),
            dropped: sum(is_result, |table| table.dropped),
            kernel_rows: u32::try_from(sum(is_result, |table| table.rows.len() as u64)).unwrap_or(u32::MAX),
            starts: sum(|role| role == Role::Starts, |table| table.hits).saturating_sub(live.starts_before),
            match_dropped: sum(is_match, |table| table.dropped),
            nmissed: self
                .nmissed(&live.plan)
                .zip(live.nmissed_before)
                .map(|(now, before)| now.saturating_sub(before)),
            own: has(Role::Own).then(|| sum(|role| role == Role::Own, |table| table.hits)),
            unread: has(Role::Unread).then(|| sum(|role| role == Role::Unread, |table| table.hits)),
        })
    }

    /// Deletes an aggregation for who made it, or for who administers the daemon.
    pub(super) async fn delete_aggregation_for(
        &mut self,
        caller: &Caller,
        name: &str,
    ) -> Result<Option<v1::AggregationSnapshot>, Error> {
        let live = self.aggregations.live(name)?;
        self.access().require_deletion(caller, live)?;
        let is_observed = self.access().allows(caller, live);
        let rule = self.parts.rights.require(caller, None)?;
        let entry = described(audited::entry("stop counting", (caller, rule)), name, &live.plan);
        self.parts.store.tell(vec![entry.clone()]).await;
        match self.delete_aggregation(name) {
            Ok(last) => Ok(last.filter(|_| is_observed)),
            Err(error) => {
                self.parts.store.tell(vec![entry.failed(error.to_string())]).await;
                Err(error)
            }
        }
    }

    /// Deletes an aggregation for a reason of the daemon's own.
    async fn end_aggregation(&mut self, name: &str, reason: &'static str) -> Result<(), Error> {
        let ended = Entry { reason: reason.to_owned(), ..Entry::new(Action::Ended, OWN_NAME) };
        let live = self.aggregations.live(name)?;
        let (number, entry) = (live.number, described(ended, name, &live.plan));
        self.delete_aggregation(name)?;
        self.aggregations.note_end(number, reason);
        self.parts.store.tell(vec![entry]).await;
        Ok(())
    }

    fn delete_aggregation(&mut self, name: &str) -> Result<Option<v1::AggregationSnapshot>, Error> {
        let live = self.aggregations.live(name)?;
        let snapshot = self.read_aggregation(live);
        if let Some((instance, _)) = &self.aggregations.instance {
            self.take_aggregation_out_of_kernel(instance, &live.plan, live.plan.tables.len())?;
        }
        self.aggregations.by_name.remove(name);
        self.drop_unused_instance();
        tracing::info!(aggregation = name, "no longer counting");
        let told = |error: &Error| tracing::warn!(aggregation = name, %error, "cannot read the last counts");
        Ok(snapshot.inspect_err(told).ok())
    }

    fn drop_unused_instance(&mut self) {
        if self.aggregations.by_name.is_empty()
            && let Some((instance, _claim)) = self.aggregations.instance.take()
            && let Err(error) = instance.remove()
        {
            tracing::warn!(%error, "cannot remove the instance of aggregations");
        }
    }

    /// Deletes the aggregations that have expired.
    pub(crate) async fn expire_aggregations(&mut self) {
        let now = Instant::now();
        let expired = |live: &&LiveAggregation| live.expires.is_some_and(|expires| expires <= now);
        let over = self.aggregations.by_name.values().filter(expired);
        let over: Vec<_> = over.map(|live| live.aggregation.name.clone()).collect();
        for name in over {
            if let Err(error) = self.end_aggregation(&name, "its time is over").await {
                tracing::warn!(aggregation = name, %error, "cannot delete an expired aggregation");
                if let Some(live) = self.aggregations.by_name.get_mut(&name) {
                    live.expires = Some(now + EXPIRED_AGAIN);
                }
            }
        }
    }

    /// Deletes all of them.
    pub(crate) async fn delete_aggregations(&mut self) {
        let names: Vec<_> = self.aggregations.by_name.keys().cloned().collect();
        for name in names {
            if let Err(error) = self.end_aggregation(&name, "the daemon stops").await {
                tracing::warn!(aggregation = name, %error, "cannot delete an aggregation");
            }
        }
    }

    /// Deletes the aggregations that use a probe whose event is about to be deleted, or that has lost its event.
    pub(crate) async fn delete_aggregations_of(&mut self, probe: &ProbeName, reason: &'static str) {
        while let Some(live) = self.aggregations.user_of(probe) {
            let name = live.aggregation.name.clone();
            if let Err(error) = self.end_aggregation(&name, reason).await {
                // Then the kernel refuses to remove the probe too.
                return tracing::warn!(aggregation = name, %error, "cannot delete an aggregation");
            }
        }
    }

    /// Refuses while a probe is counted. The aggregation is named to those who may list it.
    pub(crate) fn require_uncounted(&self, caller: &Caller, probe: &ProbeName) -> Result<(), Error> {
        let Some(counting) = self.aggregations.user_of(probe) else { return Ok(()) };
        Err(self.access().counted_by(caller, probe, counting))
    }
}

/// Starts that were counted until now. The kernel takes the trigger of the ends only after that of the starts, and the
/// write takes milliseconds.
fn starts(instance: &Instance, plan: &TriggerPlan) -> u64 {
    let starts = plan.tables.iter().filter(|table| table.role == Role::Starts);
    let read = starts.filter_map(|table| instance.hist(&table.event, &table.trigger).ok()?.ok());
    read.map(|table| table.hits).sum()
}

/// An entry of the audit log about an aggregation: its probes, its name and its triggers.
fn described(entry: Entry, name: &str, plan: &TriggerPlan) -> Entry {
    let is_counted = |role| matches!(role, Role::Starts | Role::Ends | Role::Result { .. });
    let counts = plan.tables.iter().filter(|table| is_counted(table.role));
    let mut probes: Vec<_> = counts.map(|table| table.event.to_string()).collect();
    probes.dedup();
    let triggers: Vec<_> = plan.tables.iter().map(|table| table.trigger.to_string()).collect();
    Entry { probe: probes.join(","), definition: format!("{name}: {}", triggers.join("; ")), ..entry }
}

impl TriggerPlan {
    /// Notes where stacks begin that the kernel cannot follow, and warns of them.
    fn note_stacks(&mut self, probe: &Probe) {
        let hint = match probe.location.split_once('+') {
            Some((function, offset)) if offset != "0x0" => {
                format!("count at the entry of the function, whose stacks are whole: `p {function}`")
            }
            _ => "with `sysctl debug.kprobes-optimization=0` the kernel arms no probe by a jump".to_owned(),
        };
        self.warnings.push(v1::Diagnostic {
            severity: v1::Severity::Warning.into(),
            code: "INCOMPLETE_STACKS".to_owned(),
            message: format!(
                "the kernel arms `{}` by a jump and cannot follow the call stack from there: frames after {} are missing",
                probe.name, probe.location
            ),
            hint,
            ..Default::default()
        });
        self.place = Some(probe.location.clone());
    }
}

/// There is no aggregation of that name.
pub(crate) fn no_aggregation(name: &str) -> Error {
    let message = format!("there is no aggregation `{name}`");
    Error::new(Reason::NO_SUCH_AGGREGATION, message).with("aggregation", name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregation::access::tests::live;
    use crate::samples::probe as test_probe;

    #[test]
    fn an_aggregation_is_not_another_one_of_its_name() {
        let mut all = Aggregations::default();
        let first = live("opens", 1, "ann", &test_probe(1, "net/rx"));
        let of_stream = first.numbered();
        all.by_name.insert("opens".to_owned(), first);
        assert_eq!(all.same(&of_stream).unwrap().number, 1);
        all.by_name.insert("opens".to_owned(), live("opens", 2, "sue", &test_probe(2, "storage/fs")));
        assert_eq!(all.live("opens").unwrap().number, 2, "it has the name");
        let error = all.same(&of_stream).unwrap_err();
        assert_eq!(
            (error.reason, error.message.as_str()),
            (Reason::NO_SUCH_AGGREGATION, "there is no aggregation `opens`")
        );
        // Of one that the daemon has ended, who reads it hears why; who knows its name alone does not.
        for number in 1..200 {
            all.note_end(number, "a probe of it is removed");
        }
        assert_eq!(all.same(&of_stream).unwrap_err().message, "there is no aggregation `opens`", "long ago");
        all.note_end(1, "its time is over");
        let error = all.same(&of_stream).unwrap_err();
        assert_eq!(
            (error.reason, error.message.as_str()),
            (Reason::NO_SUCH_AGGREGATION, "the aggregation `opens` has ended: its time is over")
        );
        assert_eq!(all.live("closes").unwrap_err().message, "there is no aggregation `closes`");
        assert_eq!(all.ended.len(), MAX_AGGREGATIONS);
    }

    #[test]
    fn a_name_that_the_daemon_would_choose_keeps_nobody_from_counting() {
        let mut all = Aggregations::default();
        assert_eq!(all.free_name(String::new(), 1).unwrap(), "aggregation-1");
        for name in ["aggregation-1", "aggregation-2"] {
            all.by_name.insert(name.to_owned(), live(name, 1, "ann", &test_probe(1, "net/rx")));
        }
        assert_eq!(all.free_name(String::new(), 1).unwrap(), "aggregation-3");
        assert_eq!(
            all.free_name("aggregation-2".to_owned(), 1).unwrap_err().reason,
            Reason::AGGREGATION_EXISTS
        );
        assert_eq!(all.free_name("a b".to_owned(), 1).unwrap_err().reason, Reason::BAD_ARGUMENT);
    }
}
