//! Lifecycle of aggregations: creating, reading, expiring and deleting them.
//!
//! Owns the list of aggregations and their tracing instance. Which triggers one takes is decided in
//! [`super::plan`]; never parses the kernel's tables itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use kprobed_proto::v1;
use kprobed_proto::v1::aggregation_spec::Aggregation as Spec;
use tokio::time::Instant;

use super::plan::{Role, TriggerPlan};
use super::{AggregationCommand, CreateAggregation, LATENCY_FIELD, MAX_AGGREGATIONS, instance_name, result};
use crate::control::Probe;
use crate::control::controller::{Controller, answer, in_kernel};
use crate::control::harm::refuse_harm;
use crate::error::{Error, Reason};
use kprobed_host::kernel::TRACE_CLOCK;
use kprobed_host::tracefs::{Claim, Instance, InstanceOptions};
use kprobed_lang::model::ProbeName;
use kprobed_trace::decode::Schema;

/// All aggregations.
#[derive(Debug, Default)]
pub(in crate::control) struct Aggregations {
    /// With the daemon's claim on it.
    instance: Option<(Instance, Claim)>,
    by_name: BTreeMap<String, LiveAggregation>,
    made: u64,
}

#[derive(Debug)]
struct LiveAggregation {
    aggregation: Arc<v1::Aggregation>,
    plan: TriggerPlan,
    expires: Option<Instant>,
}

/// Buffers of the instance, in KiB. Small: no events are recorded in it.
const BUFFER_KIB: u64 = 64;

impl Aggregations {
    /// When the next one is to be deleted.
    pub(in crate::control) fn next_expiry(&self) -> Option<Instant> {
        self.by_name.values().filter_map(|live| live.expires).min()
    }

    /// Whether there are none.
    pub(in crate::control) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The probes that are counted.
    pub(in crate::control) fn counted(&self) -> impl Iterator<Item = ProbeName> {
        self.by_name.values().flat_map(|live| live.plan.tables.iter().map(|table| table.event.clone()))
    }

    /// The first aggregation that uses a probe.
    fn user_of(&self, probe: &ProbeName) -> Option<&str> {
        let uses = |live: &&LiveAggregation| live.plan.tables.iter().any(|table| table.event == *probe);
        self.by_name.values().find(uses).map(|live| live.aggregation.name.as_str())
    }

    fn live(&self, name: &str) -> Result<&LiveAggregation, Error> {
        self.by_name.get(name).ok_or_else(|| no_aggregation(name))
    }
}

impl Controller {
    pub(in crate::control) fn aggregate(&mut self, command: AggregationCommand) {
        match command {
            AggregationCommand::Create(request, reply) => answer(reply, self.create_aggregation(request)),
            AggregationCommand::Delete(name, reply) => answer(reply, self.delete_aggregation(&name)),
            AggregationCommand::Read(name, reply) => answer(reply, self.read_aggregation(&name)),
            AggregationCommand::List(reply) => {
                let all = self.aggregations.by_name.values();
                answer(reply, Ok(all.map(|live| Arc::clone(&live.aggregation)).collect()));
            }
        }
    }

    fn create_aggregation(&mut self, request: CreateAggregation) -> Result<Arc<v1::Aggregation>, Error> {
        let CreateAggregation { name, spec, ttl, bound_to_stream } = request;
        let all = &self.aggregations;
        if all.by_name.len() >= MAX_AGGREGATIONS {
            let message = format!(
                "there are {MAX_AGGREGATIONS} aggregations, the most that a host can have: delete one first"
            );
            return Err(Error::new(Reason::TOO_MANY_AGGREGATIONS, message));
        }
        let number = all.made + 1;
        let name = chosen_name(name, number)?;
        if all.by_name.contains_key(&name) {
            let message = format!("there is an aggregation `{name}` already");
            return Err(Error::new(Reason::AGGREGATION_EXISTS, message).with("aggregation", &name));
        }
        let (spec, plan) = self.plan_aggregation(spec, number)?;
        self.aggregations.made = number;
        let instance = self.aggregation_instance()?;
        if let Err(error) = self.put_aggregation_into_kernel(&instance, &plan) {
            self.drop_unused_instance();
            return Err(error);
        }
        let create_time = SystemTime::now();
        let aggregation = Arc::new(v1::Aggregation {
            name: name.clone(),
            spec: Some(v1::AggregationSpec { aggregation: Some(spec) }),
            create_time: Some(create_time.into()),
            expire_time: ttl.and_then(|ttl| create_time.checked_add(ttl)).map(Into::into),
            bound_to_stream,
            keys: plan.keys.clone(),
            sums: plan.sums.clone(),
        });
        let expires = ttl.and_then(|ttl| Instant::now().checked_add(ttl));
        let live = LiveAggregation { aggregation: Arc::clone(&aggregation), plan, expires };
        tracing::info!(aggregation = name, "counting");
        self.aggregations.by_name.insert(name, live);
        // It fires from now on, also if it is not recorded.
        self.budget.note_armed();
        Ok(aggregation)
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
                return Err(Error::new(Reason::NOT_BUILT, message).with("option", option));
            }
        }
        Ok(())
    }

    /// Decides on triggers, and puts full names of probes into the spec.
    fn plan_aggregation(&self, spec: Spec, number: u64) -> Result<(Spec, TriggerPlan), Error> {
        self.require_built(&spec)?;
        match spec {
            Spec::Histogram(spec) => {
                let (probe, schema) = self.countable(&spec.probe)?;
                self.judge_aggregation_filter(&probe.name, &spec.filter, "spec.histogram.filter")?;
                let plan = TriggerPlan::histogram(&spec, number, &probe.name, &schema)?;
                Ok((Spec::Histogram(v1::HistogramSpec { probe: probe.name.to_string(), ..spec }), plan))
            }
            Spec::Latency(spec) => {
                let (start, start_schema) = self.countable(&spec.start_probe)?;
                let (end, end_schema) = self.countable(&spec.end_probe)?;
                self.judge_aggregation_filter(&start.name, &spec.start_filter, "spec.latency.start_filter")?;
                self.judge_aggregation_filter(&end.name, &spec.end_filter, "spec.latency.end_filter")?;
                let ends = [(&start.name, &*start_schema), (&end.name, &*end_schema)];
                let plan = TriggerPlan::latency(&spec, number, ends, TRACE_CLOCK)?;
                let (start_probe, end_probe) = (start.name.to_string(), end.name.to_string());
                Ok((Spec::Latency(v1::LatencySpec { start_probe, end_probe, ..spec }), plan))
            }
        }
    }

    /// A probe that the kernel has, and its fields.
    fn countable(&self, name: &str) -> Result<(Arc<Probe>, Arc<Schema>), Error> {
        let probe = self.probe(name)?;
        self.require_own(&probe)?;
        match &probe.schema {
            Some(schema) if in_kernel(&probe.state) => {
                let schema = Arc::clone(schema);
                Ok((probe, schema))
            }
            _ => Err(Error::not_in_kernel(&probe.name, "it cannot be counted", "")),
        }
    }

    fn judge_aggregation_filter(
        &self,
        probe: &ProbeName,
        filter: &str,
        field: &'static str,
    ) -> Result<(), Error> {
        if filter.is_empty() {
            return Ok(());
        }
        if filter.contains('\n') {
            return Err(Error::bad_argument(field, "a filter is one line"));
        }
        refuse_harm(self.tracefs(), probe, filter)?;
        let judged = self.tracefs().try_filter(probe, filter);
        judged.map_err(|refused| Error::kernel_filter((field, filter), &refused, None))
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
            instance.remove_hist(&table.event, &table.trigger)?;
        }
        if let Some(synthetic) = &plan.synthetic {
            self.tracefs().remove_synthetic(synthetic)?;
        }
        Ok(())
    }

    fn read_aggregation(&self, name: &str) -> Result<v1::AggregationSnapshot, Error> {
        let live = self.aggregations.live(name)?;
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
        let leaves_out = live.plan.tables.iter().any(|table| table.role == Role::Own);
        Ok(v1::AggregationSnapshot {
            name: name.to_owned(),
            time: Some(time.into()),
            since: live.aggregation.create_time,
            delta: false,
            rows: result::rows(&live.plan, &tables),
            hits: sum(is_result, |table| table.hits),
            dropped: sum(is_result, |table| table.dropped),
            kernel_rows: u32::try_from(sum(is_result, |table| table.rows.len() as u64)).unwrap_or(u32::MAX),
            starts: sum(|role| role == Role::Starts, |table| table.hits),
            match_dropped: sum(is_match, |table| table.dropped),
            own: leaves_out.then(|| sum(|role| role == Role::Own, |table| table.hits)),
        })
    }

    fn delete_aggregation(&mut self, name: &str) -> Result<Option<v1::AggregationSnapshot>, Error> {
        let live = self.aggregations.live(name)?;
        let snapshot = self.read_aggregation(name);
        if let Some((instance, _)) = &self.aggregations.instance {
            self.take_aggregation_out_of_kernel(instance, &live.plan, live.plan.tables.len())?;
        }
        self.aggregations.by_name.remove(name);
        self.drop_unused_instance();
        tracing::info!(aggregation = name, "no longer counting");
        match snapshot {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(error) => {
                tracing::warn!(aggregation = name, %error, "cannot read the last counts");
                Ok(None)
            }
        }
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
    pub(in crate::control) fn expire_aggregations(&mut self) {
        let now = Instant::now();
        let expired = |live: &&LiveAggregation| live.expires.is_some_and(|expires| expires <= now);
        let over = self.aggregations.by_name.values().filter(expired);
        let over: Vec<_> = over.map(|live| live.aggregation.name.clone()).collect();
        for name in over {
            if let Err(error) = self.delete_aggregation(&name) {
                tracing::warn!(aggregation = name, %error, "cannot delete an expired aggregation");
                if let Some(live) = self.aggregations.by_name.get_mut(&name) {
                    live.expires = None;
                }
            }
        }
    }

    /// Deletes all of them.
    pub(in crate::control) fn delete_aggregations(&mut self) {
        let names: Vec<_> = self.aggregations.by_name.keys().cloned().collect();
        for name in names {
            if let Err(error) = self.delete_aggregation(&name) {
                tracing::warn!(aggregation = name, %error, "cannot delete an aggregation");
            }
        }
    }

    /// Deletes the aggregations that use a probe that is about to be deleted.
    pub(in crate::control) fn delete_aggregations_of(&mut self, probe: &ProbeName) {
        while let Some(name) = self.aggregations.user_of(probe).map(str::to_owned) {
            if let Err(error) = self.delete_aggregation(&name) {
                // Then the kernel refuses to remove the probe too.
                return tracing::warn!(aggregation = name, %error, "cannot delete an aggregation");
            }
        }
    }

    /// Refuses while a probe is counted.
    pub(in crate::control) fn require_uncounted(&self, probe: &ProbeName) -> Result<(), Error> {
        match self.aggregations.user_of(probe) {
            None => Ok(()),
            Some(aggregation) => {
                let message =
                    format!("`{probe}` is counted by the aggregation `{aggregation}`: delete that first");
                Err(Error::of_probe(Reason::COUNTED, probe, message).with("aggregation", aggregation))
            }
        }
    }
}

/// The requested name, or one made of the number of the aggregation.
fn chosen_name(name: String, number: u64) -> Result<String, Error> {
    if name.is_empty() {
        return Ok(format!("aggregation-{number}"));
    }
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.len() > 63 || !name.chars().all(good) {
        return Err(Error::bad_argument("name", "a name has 1 to 63 letters, digits, `_` and `-`"));
    }
    Ok(name)
}

/// There is no aggregation of that name.
pub(crate) fn no_aggregation(name: &str) -> Error {
    let message = format!("there is no aggregation `{name}`");
    Error::new(Reason::NO_SUCH_AGGREGATION, message).with("aggregation", name)
}
