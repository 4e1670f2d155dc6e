//! Access to aggregations: who may read one, who may delete it, and how many one principal has.
//!
//! Owns what an aggregation is for rules: its probes as they are now, and who made it. Never decides itself:
//! [`kprobed_rights`] does.

use std::sync::Arc;

use kprobed_proto::v1;
use kprobed_proto::v1::aggregation_key::Key;
use kprobed_proto::v1::aggregation_spec::Aggregation as Spec;
use kprobed_rights::{Method, Object, Read};
use tokio::time::Instant;

use super::life::no_aggregation;
use super::plan::TriggerPlan;
use super::{MAX_AGGREGATIONS, MAX_OF_ONE, NumberedAggregation};
use crate::auth::{Caller, Rights, Share};
use crate::error::{Error, Reason};
use crate::{Probe, Registry, Sight};
use kprobed_lang::model::{ProbeName, ProbeUid};
use kprobed_trace::decode::Schema;
use kprobed_trace::filter::{buckets_tell_address, is_place};

/// An aggregation that counts.
#[derive(Debug)]
pub(super) struct LiveAggregation {
    /// Tells it from others of its name.
    pub(super) number: u64,
    pub(super) aggregation: Arc<v1::Aggregation>,
    /// The probes that are counted. A probe that is made again under the name of one of them is another one.
    pub(super) probes: Vec<ProbeUid>,
    pub(super) plan: TriggerPlan,
    pub(super) expires: Option<Instant>,
    /// Runs of the probe whose events are counted that the kernel had skipped before. Absent for
    /// an event of the host.
    pub(super) nmissed_before: Option<u64>,
    /// Starts that were counted before the ends: nothing could measure them.
    pub(super) starts_before: u64,
    /// Its part of the limit of who made it.
    pub(super) _share: Option<Share>,
}

impl LiveAggregation {
    pub(super) fn numbered(&self) -> NumberedAggregation {
        NumberedAggregation { number: self.number, aggregation: Arc::clone(&self.aggregation) }
    }

    fn spec(&self) -> Option<&Spec> {
        self.aggregation.spec.as_ref().and_then(|spec| spec.aggregation.as_ref())
    }

    fn is_of(&self, account: &str) -> bool {
        self.aggregation.creator == account
    }
}

/// What decides about aggregations.
pub(super) struct Access<'a> {
    pub(super) rights: &'a Arc<Rights>,
    pub(super) registry: &'a Registry,
}

impl Access<'_> {
    /// Refuses an aggregation whose probes the caller may not observe now. A probe that the caller may not look at
    /// is not named.
    pub(super) fn require(&self, caller: &Caller, live: &LiveAggregation) -> Result<(), Error> {
        let name = &live.aggregation.name;
        let sight = Sight::new(self.rights, caller.clone());
        for uid in &live.probes {
            let probe = self.registry.by_uid(*uid).ok_or_else(|| no_aggregation(name))?;
            let object = counted(&probe, live.spec());
            if sight.shows(&probe) {
                self.rights.require(caller, Some(&object))?;
            } else {
                self.rights.require_hidden(caller, &object, &format!("the aggregation `{name}`"))?;
            }
        }
        Ok(())
    }

    /// Whether the caller may observe all probes of an aggregation.
    pub(super) fn allows(&self, caller: &Caller, live: &LiveAggregation) -> bool {
        live.probes.iter().all(|uid| {
            let probe = self.registry.by_uid(*uid);
            let allows = |probe: Arc<Probe>| self.rights.allows(caller, Some(&counted(&probe, live.spec())));
            probe.is_some_and(allows)
        })
    }

    /// The refusal of a change of a probe that an aggregation counts, which is named to those who may list it.
    pub(super) fn counted_by(&self, caller: &Caller, probe: &ProbeName, counting: &LiveAggregation) -> Error {
        let lists = caller.method.and_then(|_| Method::named("ListAggregations"));
        let caller = Caller { method: lists, ..caller.clone() };
        let refused = |message: String| Error::of_probe(Reason::COUNTED, probe, message);
        if !self.allows(&caller, counting) {
            let message =
                format!("`{probe}` is counted by an aggregation that you may not see: ask who made it");
            return refused(message)
                .fix("a client that may `administer` the daemon can delete the aggregation");
        }
        let name = &counting.aggregation.name;
        refused(format!("`{probe}` is counted by the aggregation `{name}`: delete that first"))
            .with("aggregation", name)
    }

    /// Refuses the deletion of an aggregation that is another principal's, unless the caller administers the daemon.
    pub(super) fn require_deletion(&self, caller: &Caller, live: &LiveAggregation) -> Result<(), Error> {
        if live.is_of(&caller.principal.account()) || self.rights.administers(caller) {
            return Ok(());
        }
        self.require(caller, live)?;
        Err(self.rights.not_of(caller, &format!("the aggregation `{}`", live.aggregation.name)))
    }

    /// Refuses one more aggregation if there are too many, or too many of this caller by what the daemon allows.
    pub(super) fn require_place(caller: &Caller, all: &[&LiveAggregation]) -> Result<(), Error> {
        let (account, count) = (caller.principal.account(), all.len());
        let held = all.iter().filter(|live| live.is_of(&account)).count();
        let message = if count >= MAX_AGGREGATIONS {
            format!(
                "there are {MAX_AGGREGATIONS} aggregations, the most that a host can have: delete one first"
            )
        } else if caller.method.is_some() && held >= MAX_OF_ONE {
            let principal = &caller.principal;
            format!(
                "`{principal}` has {MAX_OF_ONE} aggregations, the most of one principal: delete one of yours first"
            )
        } else {
            return Ok(());
        };
        Err(Error::new(Reason::TOO_MANY_AGGREGATIONS, message))
    }
}

/// What rules are compared with when a probe is counted. Besides its fields, call stacks are read; and where the
/// kernel is, by names of numbers that are no place of a probe, by buckets of addresses, and by filters that compare
/// addresses.
pub(super) fn counted<'a>(probe: &'a Probe, spec: Option<&Spec>) -> Object<'a> {
    let mut object = probe.object();
    if has_stacks(spec) {
        object.reads = object.reads.with(Read::StackTraces);
    }
    let filters = match spec {
        Some(Spec::Histogram(spec)) => [spec.filter.as_str(), ""],
        Some(Spec::Latency(spec)) => [spec.start_filter.as_str(), spec.end_filter.as_str()],
        None => ["", ""],
    };
    for filter in filters {
        object.reads = object.reads.and(probe.footprint.reads_of_filter(filter, probe.schema.as_deref()));
    }
    if has_keys_of_addresses(spec, probe.schema.as_deref()) {
        object.reads = object.reads.with(Read::Addresses);
    }
    object
}

/// Whether keys tell where the kernel is: numbers that a definition or a caller can choose become names of symbols, or
/// numbers that can be addresses are put into buckets whose bounds the caller chooses.
fn has_keys_of_addresses(spec: Option<&Spec>, schema: Option<&Schema>) -> bool {
    let Some(Spec::Histogram(spec)) = spec else { return false };
    let can_hold_address =
        |name: &str| schema.is_none_or(|schema| schema.can_hold_address(name).unwrap_or_default());
    spec.keys.iter().any(|key| match &key.key {
        Some(Key::Field(field)) => match field.scale() {
            v1::KeyScale::Symbol | v1::KeyScale::SymbolOffset => !is_place(&field.field),
            v1::KeyScale::Linear => can_hold_address(&field.field) && buckets_tell_address(field.bucket_size),
            v1::KeyScale::Unspecified | v1::KeyScale::Log2 => false,
        },
        _ => false,
    })
}

/// Whether call stacks are among the keys.
pub(super) fn has_stacks(spec: Option<&Spec>) -> bool {
    let stack = v1::ContextKey::Stack;
    match spec {
        Some(Spec::Histogram(spec)) => {
            spec.keys.iter().any(|key| key.key == Some(Key::Context(stack.into())))
        }
        Some(Spec::Latency(spec)) => spec.keys().any(|key| key == stack),
        None => false,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use kprobed_rights::{Limit, Principal, Roles};

    use super::*;
    use crate::aggregation::plan::Counted;
    use crate::auth::{AuditQueue, Operation};
    use crate::samples::{self, probe as test_probe};
    use kprobed_trace::decode::{FieldKind, FieldSchema, Notation};
    use kprobed_trace::filter::Proofs;

    const ROLES: &str = "[[role]]\nname = \"net\"\nprincipals = [\"user:ann\", \"user:ben\"]\n[[role.allow]]\n\
        methods = [\"observe\"]\ngroups = [\"net\"]\nreads = [\"all\"]\n\
        [[role]]\nname = \"storage\"\nprincipals = [\"user:sue\"]\n[[role.allow]]\n\
        methods = [\"observe\", \"read\"]\ngroups = [\"storage\"]\nreads = [\"all\"]\n[role.limits]\naggregations = 2\n\
        [[role]]\nname = \"admin\"\nprincipals = [\"user:root\"]\n[[role.allow]]\nmethods = [\"administer\", \
        \"DeleteAggregation\"]\ngroups = [\"none\"]\nreads = []\n";

    fn rights() -> Arc<Rights> {
        Arc::new(Rights::new(Roles::parse(ROLES).unwrap(), AuditQueue::new().0))
    }

    fn caller(user: &str, method: &str) -> Caller {
        let principal = Principal::of_names(&[format!("user:{user}")]).unwrap();
        Caller::new(Arc::new(principal), Method::named(method).unwrap(), Operation::default())
    }

    /// An aggregation of this probe.
    pub(crate) fn live(name: &str, number: u64, by: &str, probe: &Probe) -> LiveAggregation {
        let spec =
            v1::HistogramSpec { probe: probe.name.to_string(), include_self: true, ..Default::default() };
        let schema = Schema { fields: Vec::new(), is_return: false };
        let plan = {
            let counted = Counted { probe: &probe.name, schema: &schema, proofs: &Proofs::default() };
            TriggerPlan::histogram(&spec, number, counted).unwrap()
        };
        let aggregation = v1::Aggregation {
            name: name.to_owned(),
            spec: Some(v1::AggregationSpec { aggregation: Some(Spec::Histogram(spec)) }),
            creator: caller(by, "CreateAggregation").principal.account(),
            ..Default::default()
        };
        let (aggregation, probes) = (Arc::new(aggregation), vec![probe.uid]);
        LiveAggregation {
            number,
            aggregation,
            probes,
            plan,
            expires: None,
            nmissed_before: None,
            starts_before: 0,
            _share: None,
        }
    }

    #[test]
    fn names_and_comparisons_of_numbers_say_where_the_kernel_is() {
        let mut probe = test_probe(1, "net/rx");
        probe.footprint.reads = kprobed_rights::Reads::NONE;
        let key = |field: &str, scale: v1::KeyScale| {
            let field = v1::FieldKey { field: field.to_owned(), scale: scale.into(), bucket_size: 0 };
            vec![v1::AggregationKey { key: Some(Key::Field(field)) }]
        };
        let tells = |keys: Vec<v1::AggregationKey>, filter: &str| {
            let filter = filter.to_owned();
            let spec = Spec::Histogram(v1::HistogramSpec { keys, filter, ..Default::default() });
            counted(&probe, Some(&spec)).reads.has(Read::Addresses)
        };
        for scale in [v1::KeyScale::Symbol, v1::KeyScale::SymbolOffset] {
            assert!(tells(key("x", scale), ""));
            // No client chooses where a function returns to.
            assert!(!tells(key("__probe_ret_ip", scale), ""));
        }
        assert!(!tells(key("x", v1::KeyScale::Log2), "common_pid == 7"));
        assert!(tells(key("x", v1::KeyScale::Log2), "__probe_ip > 0xffffffff80000000"));
        let filter = "x > 0xffffffff80000000".to_owned();
        let spec = Spec::Latency(v1::LatencySpec { end_filter: filter, ..Default::default() });
        assert!(counted(&probe, Some(&spec)).reads.has(Read::Addresses));
    }

    /// Their bounds are numbers that the caller chooses, and an address is below one or not.
    #[test]
    fn buckets_of_addresses_say_where_the_kernel_is() {
        let mut probe = test_probe(1, "net/rx");
        probe.footprint.reads = kprobed_rights::Reads::NONE;
        let field = |name: &str, bytes| FieldSchema::new(name, FieldKind::Unsigned { bytes });
        let fields = vec![field("pointer", 8), field("size", 4)];
        probe.schema = Some(Arc::new(Schema { fields, is_return: false }));
        let tells = |name: &str, bucket_size| {
            let scale = v1::KeyScale::Linear.into();
            let field = v1::FieldKey { field: name.to_owned(), scale, bucket_size };
            let keys = vec![v1::AggregationKey { key: Some(Key::Field(field)) }];
            let spec = Spec::Histogram(v1::HistogramSpec { keys, ..Default::default() });
            counted(&probe, Some(&spec)).reads.has(Read::Addresses)
        };
        assert!(tells("pointer", 0xffff_ffff_8123_4567) && tells("pointer", 200));
        // Bits that are the same wherever the kernel is; half of an address; and what the plan refuses.
        assert!(!tells("pointer", 4096) && !tells("size", 200) && !tells("no_field", 200));
    }

    /// What has no symbol is its address in such a text, which the kernel compares as it is.
    #[test]
    fn comparisons_with_texts_of_addresses_say_where_the_kernel_is() {
        let mut probe = test_probe(1, "net/rx");
        probe.footprint.reads = kprobed_rights::Reads::NONE;
        let field =
            |name: &str, notation| FieldSchema { notation, ..FieldSchema::new(name, FieldKind::String) };
        let fields = vec![field("caller", Notation::Symbol), field("path", Notation::Number)];
        probe.schema = Some(Arc::new(Schema { fields, is_return: false }));
        let tells = |filter: &str| {
            let filter = filter.to_owned();
            let spec = Spec::Histogram(v1::HistogramSpec { filter, ..Default::default() });
            counted(&probe, Some(&spec)).reads.has(Read::Addresses)
        };
        assert!(tells("caller ~ \"0xffffffff8*\"") && tells("path == \"a\" || !(caller == \"b\")"));
        assert!(!tells("path ~ \"0xffffffff8*\""));
        // The filter of the probe itself.
        assert!(!probe.object().reads.has(Read::Addresses));
        probe.record.spec.filter = "caller ~ \"0xffffffff8*\"".to_owned();
        assert!(probe.object().reads.has(Read::Addresses));
    }

    #[test]
    fn an_aggregation_is_read_by_those_who_may_observe_its_probes_as_they_are_now() {
        let (rights, registry) = (rights(), Registry::default());
        let probe = test_probe(1, "net/rx");
        samples::note(&registry, probe.clone());
        let access = Access { rights: &rights, registry: &registry };
        let counts = live("opens", 1, "ann", &probe);
        let read = |user: &str| access.require(&caller(user, "StreamAggregation"), &counts);
        assert!(read("ann").is_ok() && read("ben").is_ok());
        let refused = read("sue").unwrap_err();
        // She gave the name of the aggregation, and learns nothing of the probe.
        let text = format!("{refused} {:?}", refused.metadata);
        assert!(text.contains("on the aggregation `opens`: ") && !text.contains("net/rx"), "{text}");
        assert!(!access.allows(&caller("sue", "ListAggregations"), &counts));
        // Its probe is deleted, and another one has its name: what counts is not that one.
        samples::forget(&registry, "net/rx");
        samples::note(&registry, test_probe(2, "net/rx"));
        assert_eq!(read("ann").unwrap_err().reason, Reason::NO_SUCH_AGGREGATION);
        assert!(!access.allows(&caller("ann", "ListAggregations"), &counts));
    }

    #[test]
    fn only_its_maker_deletes_an_aggregation_or_who_administers() {
        let (rights, registry) = (rights(), Registry::default());
        let probe = test_probe(1, "net/rx");
        samples::note(&registry, probe.clone());
        let access = Access { rights: &rights, registry: &registry };
        let mut counts = live("opens", 1, "ann", &probe);
        // Users without an id have the same account: these differ by it.
        Arc::make_mut(&mut counts.aggregation).creator = "uid:1000".to_owned();
        let by = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let principal = Arc::new(Principal::of_names(&names).unwrap());
            let method = Method::named("DeleteAggregation").unwrap();
            let caller = Caller::new(principal, method, Operation::default());
            access.require_deletion(&caller, &counts).map_err(|error| error.message)
        };
        assert_eq!(by(&["user:ann", "uid:1000"]), Ok(()));
        assert_eq!(by(&["user:root", "uid:0"]), Ok(()));
        // It may observe the same probes.
        let refused = by(&["user:ben", "uid:1001"]).unwrap_err();
        assert_eq!(
            refused,
            "`user:ben` may not call `DeleteAggregation` on the aggregation `opens`: only who made it may, and who may \
             administer the daemon"
        );
        assert!(by(&["user:sue", "uid:1002"]).unwrap_err().contains("does not allow the group"));
    }

    #[test]
    fn an_aggregation_is_named_to_those_who_may_list_it() {
        let (rights, registry) = (rights(), Registry::default());
        let probe = test_probe(1, "net/rx");
        samples::note(&registry, probe.clone());
        let access = Access { rights: &rights, registry: &registry };
        let counts = live("opens", 1, "ann", &probe);
        let told = |caller: &Caller| {
            let error = access.counted_by(caller, &probe.name, &counts);
            assert_eq!(error.reason, Reason::COUNTED);
            format!("{error} {:?}", error.metadata)
        };
        assert!(
            told(&caller("ben", "DeleteProbe")).contains("by the aggregation `opens`: delete that first")
        );
        assert!(told(&Caller::daemon()).contains("`opens`"));
        for user in ["sue", "root", "zoe"] {
            let text = told(&caller(user, "DeleteProbe"));
            assert!(text.contains("that you may not see") && !text.contains("opens"), "{user}: {text}");
        }
    }

    #[test]
    fn one_principal_does_not_take_all_places() {
        let probe = test_probe(1, "net/rx");
        let many = |count: usize, by: &str| -> Vec<_> {
            (0..count).map(|number| live("x", number as u64, by, &probe)).collect()
        };
        let mut of_ann = many(MAX_OF_ONE, "ann");
        for one in &mut of_ann {
            Arc::make_mut(&mut one.aggregation).creator = "uid:1000".to_owned();
        }
        let place = |name: &str, uid: &str, all: &[LiveAggregation]| {
            let principal = Principal::of_names(&[name.to_owned(), uid.to_owned()]).unwrap();
            let method = Method::named("CreateAggregation").unwrap();
            let caller = Caller::new(Arc::new(principal), method, Operation::default());
            Access::require_place(&caller, &all.iter().collect::<Vec<_>>()).map_err(|error| error.reason)
        };
        assert_eq!(place("user:ann", "uid:1000", &of_ann[1..]), Ok(()));
        assert_eq!(place("user:ann", "uid:1000", &of_ann), Err(Reason::TOO_MANY_AGGREGATIONS));
        assert_eq!(place("user:ben", "uid:1001", &of_ann), Ok(()));
        let mut both = of_ann;
        both.extend(many(MAX_OF_ONE, "ben"));
        assert_eq!(place("user:carl", "uid:1003", &both), Err(Reason::TOO_MANY_AGGREGATIONS));
        // A role says less, and what is held is given back with the aggregation.
        let (sue, rights) = (caller("sue", "CreateAggregation"), rights());
        let held: Vec<_> = (0..2).map(|_| rights.take(&sue, Limit::Aggregations, 1).unwrap()).collect();
        let refused = rights.take(&sue, Limit::Aggregations, 1).unwrap_err();
        assert_eq!(refused.reason, Reason::ROLE_LIMIT);
        assert!(
            refused.message.contains("has 2 aggregations: the limit `aggregations` of role `storage`"),
            "{refused}"
        );
        drop(held);
        assert!(rights.take(&sue, Limit::Aggregations, 1).is_ok());
    }
}
