//! Texts in the answers of the API: which of them can name or describe a probe, an event, an aggregation, a function
//! or an address.
//!
//! Owns the list. A text that is not in it fails the test that reads it.

use std::collections::{BTreeMap, BTreeSet};

use prost_reflect::{Kind, MessageDescriptor};

/// The texts of each message, those with a star about such a thing.
const TEXTS: &str = "\
AdoptProbeResponse: enabled_in\n\
Aggregation: *name *creator\n\
AggregationColumn: *name\n\
AggregationSnapshot: *name\n\
ArgumentSpec: *name\n\
AuditEntry: digest *record *principal method change rule request_id operation *probe *definition *filter *reason\n\
AuditHead: digest\n\
CallerLimit: name role\n\
CheckAccessResponse: *reason role *reads *functions *module\n\
CheckProbeResponse: errno_name rule *kernel_definition *name *location kernel_reason *canonical *explanation *lines *notes\n\
CheckedDefinition: definition\n\
CheckedMeaning: prototype code\n\
CheckedValue: argument written meaning parameter\n\
CodeInstruction: *code *text rule refusal *probes\n\
Column: *values offsets data faults\n\
Cursor: boot_id\n\
DeclarationProblem: *file *probe *message *hint\n\
DeleteProbeResponse: note\n\
DeletedProbe: *name note\n\
Diagnostic: code *message *hint\n\
EventField: *name\n\
EventGroup: offsets_ns tids flags preempt_counts *ips *return_ips\n\
EventRow: *probe comm *location *return_location unproven\n\
EventSchema: *probe\n\
ExporterLedger: name destination error refusal place_error\n\
FailedRequest: *message\n\
Fetch: register immediate_string\n\
FetchMember: name\n\
FetchParameter: name\n\
FetchSymbol: symbol\n\
FieldKey: *field\n\
ForeignEvent: *name *kernel_definitions *place *enabled_in *obstacle *obstacle_message *definition\n\
ForeignProbe: *name *kernel_definition\n\
Function: *name *module *place\n\
FunctionDescription: *name *module prototype return_type return_fetch_type other_prototypes\n\
GetCallerResponse: principal names roles methods\n\
GetHostResponse: hostname kernel_release kernel_version machine boot_id daemon_version tracefs instance trace_clock labels\n\
HistogramSpec: *probe *sums *filter\n\
HitProfile: *probe boot_id own_unknown\n\
HitSeries: *probe boot_id kernel_release\n\
HoldProbesResponse: holder\n\
HostCheck: id *finding *fix\n\
Instruction: *code *text refusal\n\
KernelBuild: name build_id\n\
KernelFeature: id description\n\
KeyValue: *text *symbol shown\n\
LatencySpec: *start_probe *end_probe *match_field *start_filter *end_filter\n\
Lease: holder\n\
ListForeignProbesResponse: *next_page_token\n\
ListFunctionsResponse: *next_page_token *suggestions\n\
ListHitsResponse: next_page_token\n\
ListProbesResponse: *next_page_token\n\
MeaningChange: *offered_definition\n\
MeaningDifference: code *argument *message *before *after\n\
MemberDescription: name path c_type fetch_type\n\
NamedValue: *name text\n\
NumberName: name\n\
ParameterDescription: name c_type argument fetch_type\n\
PlannedStep: *event *command\n\
Probe: *name *definition *kernel_definition *filter *state_reason *etag *location *labels *state_hint *description *owner *declared_by *state_message *creator\n\
ProbeFilter: *probe *kernel_filter *unproven\n\
ProbeLedger: *probe\n\
ProbeSpec: *group *event\n\
ProbeStateRecord: *state_reason *state_message *state_hint\n\
ReadClockResponse: boot_id clock_name\n\
ReconciledProbe: *name *found_reason *found_message *message\n\
RecordingProblem: *probe *reason *hint *message\n\
SpoolLedger: last_error damaged\n\
StackKey: *frames\n\
StreamStarted: hostname kernel_release clock_name\n\
StructureDescription: c_type\n\
Symbol: *text\n\
SymbolPlace: *module *symbol\n\
Task: comm\n\
ThreadKey: comm\n\
Value: *text *bytes *symbol\n\
WatchProbesResponse: resume_token\n\
";

fn classed() -> BTreeMap<&'static str, BTreeMap<&'static str, bool>> {
    let fields = |line: &'static str| {
        let fields = line.split_whitespace();
        fields.map(|field| (field.trim_start_matches('*'), field.starts_with('*'))).collect()
    };
    TEXTS.lines().filter_map(|line| line.split_once(": ")).map(|(name, list)| (name, fields(list))).collect()
}

/// The texts in a message, and in the messages in it, that are about such a thing, as `MESSAGE.FIELD`.
pub(super) fn about(message: &MessageDescriptor) -> BTreeSet<String> {
    let (classed, mut found, mut known) = (classed(), BTreeSet::new(), BTreeSet::new());
    let mut left = vec![message.clone()];
    while let Some(message) = left.pop() {
        if !known.insert(message.full_name().to_owned()) {
            continue;
        }
        for field in message.fields() {
            let name = format!("{}.{}", message.name(), field.name());
            match field.kind() {
                Kind::Message(inner) if !field.is_map() && inner.package_name() == "kprobed.v1" => {
                    left.push(inner);
                }
                Kind::Message(_) if !field.is_map() => {}
                Kind::String | Kind::Bytes | Kind::Message(_) => {
                    let is_about = classed.get(message.name()).and_then(|fields| fields.get(field.name()));
                    let is_about = is_about.unwrap_or_else(|| panic!("say in TEXTS what `{name}` tells"));
                    if *is_about {
                        found.insert(name);
                    }
                }
                _ => {}
            }
        }
    }
    found
}
