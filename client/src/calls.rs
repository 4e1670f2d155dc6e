//! Calls with one answer, one entry each: its name here, the call of the API with its request, and, where callers
//! need only a part of the answer, the field that they get.

use std::collections::HashMap;
use std::time::Duration;

use kprobed_proto::v1::access_service_client::AccessServiceClient;
use kprobed_proto::v1::aggregation_service_client::AggregationServiceClient;
use kprobed_proto::v1::audit_service_client::AuditServiceClient;
use kprobed_proto::v1::event_service_client::EventServiceClient;
use kprobed_proto::v1::host_service_client::HostServiceClient;
use kprobed_proto::v1::kernel_service_client::KernelServiceClient;
use kprobed_proto::v1::lease_service_client::LeaseServiceClient;
use kprobed_proto::v1::probe_service_client::ProbeServiceClient;
use kprobed_proto::v1::reconcile_service_client::ReconcileServiceClient;
use tonic::transport::Channel;

use crate::aggregation::to_proto_duration;
use crate::api::{
    AdoptProbeRequest, AdoptProbeResponse, Aggregation, AggregationSnapshot, AggregationSpec,
    CheckAccessRequest, CheckAccessResponse, CheckProbeRequest, CheckProbeResponse, CreateAggregationRequest,
    CreateProbeRequest, DeleteAggregationRequest, DeleteProbeRequest, DescribeFunctionRequest,
    DescribeFunctionResponse, DisassembleFunctionRequest, DisassembleFunctionResponse, GetCallerRequest,
    GetCallerResponse, GetHostRequest, GetHostResponse, GetLedgerRequest, GetLedgerResponse, GetProbeRequest,
    GetProbeResponse, HitProfile, HostView, ListAggregationsRequest, ListForeignProbesRequest,
    ListForeignProbesResponse, ListFunctionsRequest, ListFunctionsResponse, ListHitsRequest,
    ListHitsResponse, ListProbesRequest, ListProbesResponse, Probe, ProbeKind, ProbeStateRecord,
    ReadClockRequest, ReadClockResponse, ReconcileProbesRequest, ReconcileProbesResponse, UpdateProbeRequest,
};
use crate::client::Client;
use crate::error::Error;

/// The largest message that is accepted: far above what the daemon puts into one.
pub(crate) const MAX_MESSAGE_BYTES: usize = 16 << 20;

macro_rules! services {
    ($($name:ident: $service:ident)*) => {
        impl Client {$(
            pub(crate) fn $name(&self) -> $service<Channel> {
                $service::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
            }
        )*}
    };
}

services! {
    access: AccessServiceClient
    counting: AggregationServiceClient
    audit: AuditServiceClient
    events: EventServiceClient
    hosts: HostServiceClient
    kernel: KernelServiceClient
    leases: LeaseServiceClient
    probes: ProbeServiceClient
    reconciling: ReconcileServiceClient
}

/// `name(arguments) -> Answer = service.call(request);`, with `.field` behind it for a field of the answer, and
/// `=> field` for one that the daemon always sets. First either all that change nothing, or, after `change_one`, all
/// that change something: an error without an answer tells the two apart.
macro_rules! calls {
    ($how:ident: $(
        $(#[$doc:meta])*
        $name:ident($($argument:ident: $kind:ty),*) -> $answer:ty
            = $service:ident.$call:ident($request:expr) $(=> $always:ident)? $(.$field:ident)?;
    )*) => {
        impl Client {$(
            $(#[$doc])*
            pub async fn $name(&self, $($argument: $kind),*) -> Result<$answer, Error> {
                let answer = self.$how($request, async |request| self.$service().$call(request).await).await?;
                calls!(@field answer $(=> $always)? $(.$field)?)
            }
        )*}
    };
    (@field $answer:ident) => { Ok($answer) };
    (@field $answer:ident.$field:ident) => { Ok($answer.$field) };
    (@field $answer:ident => $field:ident) => {
        $answer.$field.ok_or(Error::Incomplete(stringify!($field)))
    };
}

calls! {
    change_one:
    /// Defines a probe.
    create_probe(request: CreateProbeRequest) -> Probe = probes.create_probe(request) => probe;
    /// Changes a probe.
    update_probe(request: UpdateProbeRequest) -> Probe = probes.update_probe(request) => probe;
    /// Switches recording on or off.
    set_enabled(name: &str, enabled: bool) -> Probe
        = probes.update_probe(UpdateProbeRequest { enabled: Some(enabled), ..update(name) }) => probe;
    /// Replaces the kernel filter. An empty one removes it.
    set_filter(name: &str, filter: &str) -> Probe
        = probes.update_probe(UpdateProbeRequest { filter: Some(filter.to_owned()), ..update(name) }) => probe;
    /// Sets some labels and removes others.
    change_labels(name: &str, set_labels: HashMap<String, String>, remove_labels: Vec<String>) -> Probe
        = probes.update_probe(UpdateProbeRequest { set_labels, remove_labels, ..update(name) }) => probe;
    /// Removes a probe. Returns its last hit counts, if the kernel had it.
    delete_probe(request: DeleteProbeRequest) -> Option<HitProfile> = probes.delete_probe(request).profile;
    /// Makes a probe of an event that the kernel has, without defining it again. An event that cannot be adopted is
    /// refused with the reason `NOT_ADOPTABLE`.
    adopt_probe(request: AdoptProbeRequest) -> AdoptProbeResponse = reconciling.adopt_probe(request);
    /// Creates an aggregation. The daemon chooses the name if it is empty.
    create_aggregation(name: &str, spec: AggregationSpec, ttl: Option<Duration>) -> Aggregation
        = counting.create_aggregation(CreateAggregationRequest {
            name: name.to_owned(),
            spec: Some(spec),
            ttl: ttl.map(to_proto_duration),
        }) => aggregation;
    /// Deletes an aggregation. Returns its last counts, if the daemon could read them.
    delete_aggregation(name: &str) -> Option<AggregationSnapshot>
        = counting.delete_aggregation(DeleteAggregationRequest { name: name.to_owned() }).snapshot;
}

calls! {
    call:
    /// Reads one probe by its name.
    get_probe(name: &str) -> Probe
        = probes.get_probe(GetProbeRequest { name: name.to_owned(), with_states: false }) => probe;
    /// Reads one probe, and what else the request asks for: [`Client::get_probe`] returns the probe alone.
    get(request: GetProbeRequest) -> GetProbeResponse = probes.get_probe(request);
    /// Lists one page of probes.
    list_probes_page(request: ListProbesRequest) -> ListProbesResponse = probes.list_probes(request);
    /// Asks whether the running kernel would accept a probe. Changes nothing.
    check_probe(definition: impl Into<String>) -> CheckProbeResponse
        = probes.check_probe(CheckProbeRequest { definition: definition.into(), ..Default::default() });
    /// Asks the same, and for the definition in words.
    explain_probe(definition: impl Into<String>) -> CheckProbeResponse
        = probes.check_probe(CheckProbeRequest { definition: definition.into(), explain: true, ..Default::default() });
    /// Asks what the request says: also about a definition with a name beside it.
    check(request: CheckProbeRequest) -> CheckProbeResponse = probes.check_probe(request);
    /// Reads current hit counts, or one page of hits over time.
    list_hits_page(request: ListHitsRequest) -> ListHitsResponse = probes.list_hits(request);
    /// Reads the current hit counts of all probes whose names match a glob. An empty glob matches all.
    hits(name_glob: &str) -> Vec<HitProfile>
        = probes.list_hits(ListHitsRequest { name_glob: name_glob.to_owned(), ..Default::default() }).profiles;
    /// Describes the host. The daemon looks at all of it: [`Client::host_basics`] is for names, versions and what
    /// the daemon itself costs.
    host() -> GetHostResponse = hosts.get_host(GetHostRequest { view: HostView::Full.into(), modules: Vec::new() });
    /// What the daemon holds of its host: names, kernel, boot, versions, and its own processor time. The daemon
    /// reads nothing for it, and returns neither checks nor features.
    host_basics() -> GetHostResponse = hosts.get_host(GetHostRequest { view: HostView::Basic.into(), modules: Vec::new() });
    /// The builds of the kernel and of those of these modules that are loaded, with what [`Client::host_basics`] says.
    host_builds(modules: Vec<String>) -> GetHostResponse
        = hosts.get_host(GetHostRequest { view: HostView::Basic.into(), modules });
    /// Reads the clocks of the host.
    read_clock() -> ReadClockResponse = hosts.read_clock(ReadClockRequest {});
    /// Lists all aggregations by name.
    list_aggregations() -> Vec<Aggregation> = counting.list_aggregations(ListAggregationsRequest {}).aggregations;
    /// Reads the ledger: the account of every event, and the state of exporters.
    ledger() -> GetLedgerResponse = events.get_ledger(GetLedgerRequest {});
    /// Shows who the daemon takes this client for, and its roles.
    caller() -> GetCallerResponse = access.get_caller(GetCallerRequest {});
    /// Asks whether a principal may call a method. Changes nothing.
    check_access(request: CheckAccessRequest) -> CheckAccessResponse = access.check_access(request);
    /// Shows the instructions of a function (`[MODULE:]NAME`, `NAME+OFFSET` or an address) as places for a probe of
    /// this kind. When several functions have the name, the answer has candidates instead.
    disassemble_function(function: &str, kind: ProbeKind) -> DisassembleFunctionResponse
        = kernel.disassemble_function(DisassembleFunctionRequest { function: function.to_owned(), kind: kind.into() });
    /// Describes the parameters and the return type of a function, and with a path the structure that a parameter
    /// leads to.
    describe_function(request: DescribeFunctionRequest) -> DescribeFunctionResponse = kernel.describe_function(request);
    /// Finds one page of functions.
    list_functions_page(request: ListFunctionsRequest) -> ListFunctionsResponse = kernel.list_functions(request);
    /// Lists one page of foreign kprobe events.
    foreign_probes_page(request: ListForeignProbesRequest) -> ListForeignProbesResponse
        = reconciling.list_foreign_probes(request);
    /// Has the daemon look at all its probes now, and change nothing. Returns what was found, and in `plan` what
    /// would be done.
    plan_reconcile(force: bool) -> ReconcileProbesResponse
        = reconciling.reconcile_probes(ReconcileProbesRequest { force, validate_only: true });
}

impl Client {
    /// Reads one probe, and the states that it has had, the latest first.
    pub async fn get_probe_and_states(&self, name: &str) -> Result<(Probe, Vec<ProbeStateRecord>), Error> {
        let answer = self.get(GetProbeRequest { name: name.to_owned(), with_states: true }).await?;
        Ok((answer.probe.ok_or(Error::Incomplete("probe"))?, answer.states))
    }
}

fn update(name: &str) -> UpdateProbeRequest {
    UpdateProbeRequest { name: name.to_owned(), ..UpdateProbeRequest::default() }
}
