//! Canned answers of the fake daemon.

use std::collections::HashMap;

use kprobed_client::api::probe_change::Change;
use kprobed_client::api::probe_outcome::Outcome;
use kprobed_client::api::*;
use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::pb;

pub(super) fn time(seconds: i64) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: 1_769_860_800 + seconds, nanos: 0 }
}

pub(super) fn field(name: &str, kind: FieldType, width: u32, base: FieldBase) -> EventField {
    EventField {
        name: name.to_owned(),
        r#type: kind.into(),
        width,
        base: base.into(),
        fault_detected: true,
        ..Default::default()
    }
}

pub(super) fn schema() -> EventSchema {
    EventSchema {
        schema_id: 1,
        probe: "kprobes/open".to_owned(),
        probe_uid: 1,
        is_return: false,
        fields: vec![
            field("dfd", FieldType::Signed, 4, FieldBase::Decimal),
            field("filename", FieldType::String, 0, FieldBase::Unspecified),
        ],
    }
}

/// A probe of an event of the host.
pub(super) fn host_event() -> Probe {
    let name = "raw_syscalls/sys_enter".to_owned();
    let fields = vec![field("id", FieldType::Signed, 8, FieldBase::Decimal)];
    let schema = EventSchema { probe: name.clone(), probe_uid: 3, fields, ..schema() };
    Probe { name, uid: 3, schema: Some(schema), ..probe("kprobes/open") }
}

fn labels() -> HashMap<String, String> {
    [("team", "storage"), ("tier", "2")].map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

pub(super) fn probe(name: &str) -> Probe {
    let is_open = name == "kprobes/open";
    Probe {
        name: name.to_owned(),
        uid: 1,
        definition: "p:open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string".to_owned(),
        kernel_definition: "p:kprobes/open do_sys_openat2 dfd=%di:s32 filename=+0(%si):string".to_owned(),
        kind: if is_open { ProbeKind::Entry } else { ProbeKind::Return }.into(),
        enabled: true,
        filter: if is_open { "dfd == -100" } else { "" }.to_owned(),
        state: if is_open { ProbeState::Armed } else { ProbeState::HeldBack }.into(),
        state_reason: if is_open { "" } else { "MODULE_ABSENT" }.to_owned(),
        state_message: if is_open { "" } else { "module `btrfs` is not loaded" }.to_owned(),
        create_time: Some(time(0)),
        update_time: Some(time(60)),
        etag: "e1".to_owned(),
        labels: if is_open { labels() } else { HashMap::new() },
        schema: is_open.then(schema),
        warnings: if is_open { Vec::new() } else { vec![warning()] },
        location: "do_sys_openat2+0x0".to_owned(),
        description: if is_open { "slow opens" } else { "" }.to_owned(),
        owner: if is_open { "storage" } else { "" }.to_owned(),
        on_kernel_change: KernelChange::Hold.into(),
        ..Probe::default()
    }
}

fn warning() -> Diagnostic {
    Diagnostic {
        severity: Severity::Warning.into(),
        code: "INLINED".to_owned(),
        message: "some calls are inlined and will not be seen".to_owned(),
        hint: String::new(),
        span_start: 7,
        span_end: 21,
        by: 0,
    }
}

pub(super) fn finding(text: &str) -> Diagnostic {
    Diagnostic {
        severity: Severity::Error.into(),
        code: "BAD_INSN_BNDRY".to_owned(),
        message: "probe point is not an instruction boundary".to_owned(),
        hint: "`+5` works".to_owned(),
        span_start: text.find(' ').map_or(0, |at| u32::try_from(at).unwrap() + 1),
        span_end: u32::try_from(text.len()).unwrap(),
        by: RefusedBy::Kernel.into(),
    }
}

/// One of the probes that there are.
pub(super) fn existing(name: &str) -> Result<Probe, Status> {
    match name {
        "open" | "kprobes/open" => Ok(probe("kprobes/open")),
        "kprobes/waiting" => Ok(probe("kprobes/waiting")),
        super::line::OF_LINE => Ok(super::line::of_line()),
        super::calls::ENTRY | super::calls::EXIT => Ok(super::calls::probe(name)),
        _ => Err(Status::not_found(format!("there is no probe `{name}`"))),
    }
}

/// The outcome of one of several deletions.
pub(super) fn deletion(asked: &DeleteProbeRequest) -> Outcome {
    match existing(&asked.name) {
        Ok(Probe { name, .. }) => {
            let profile = (name == "kprobes/open").then(|| profile(7));
            Outcome::Deleted(DeletedProbe { name, profile, ..Default::default() })
        }
        Err(status) => outcome(Err(status)),
    }
}

/// What would be done for a change that is only checked.
pub(super) fn plan(change: &Change) -> Option<PlannedStep> {
    let (validate_only, command) = match change {
        Change::Create(request) => {
            (request.validate_only, format!("echo '{}' >> kprobe_events", request.definition))
        }
        Change::Update(request) => {
            (request.validate_only, format!("echo 1 > instances/kprobed/events/{}/enable", request.name))
        }
        Change::Delete(request) => {
            (request.validate_only, format!("echo '-:{}' >> kprobe_events", request.name))
        }
    };
    validate_only.then(|| PlannedStep { command, ..Default::default() })
}

/// The outcome of another change.
pub(super) fn outcome(outcome: Result<Probe, Status>) -> Outcome {
    match outcome {
        Ok(probe) => Outcome::Probe(Box::new(probe)),
        Err(status) => Outcome::Failed(FailedRequest {
            code: status.code().into(),
            message: status.message().to_owned(),
            details: pb::Status::decode(status.details()).unwrap_or_default().details,
        }),
    }
}

/// When one of several changes has failed, the others are taken back.
pub(super) fn all_or_nothing(outcomes: &mut [ProbeOutcome]) {
    let has_failed = |one: &ProbeOutcome| matches!(one.outcome, Some(Outcome::Failed(_)));
    if !outcomes.iter().any(has_failed) {
        return;
    }
    let info = pb::ErrorInfo {
        reason: "BATCH_FAILED".to_owned(),
        domain: "kprobed".to_owned(),
        metadata: [].into(),
    };
    for one in outcomes.iter_mut().filter(|one| !has_failed(one)) {
        one.outcome = Some(Outcome::Failed(FailedRequest {
            code: Code::Aborted.into(),
            message: "another change of the request failed".to_owned(),
            details: vec![any("google.rpc.ErrorInfo", info.encode_to_vec())],
        }));
    }
}

fn any(name: &str, value: Vec<u8>) -> prost_types::Any {
    prost_types::Any { type_url: format!("type.googleapis.com/{name}"), value }
}

/// A refusal with all details that the API has.
pub(super) fn refused(text: &str) -> Status {
    let finding = finding(text);
    let message = finding.message.clone();
    let info =
        pb::ErrorInfo { reason: finding.code.clone(), domain: "kprobed".to_owned(), metadata: [].into() };
    let diagnostics = Diagnostics { text: text.to_owned(), diagnostics: vec![finding] };
    let status = pb::Status {
        code: Code::InvalidArgument.into(),
        message: message.clone(),
        details: vec![
            any("google.rpc.ErrorInfo", info.encode_to_vec()),
            any("kprobed.v1.Diagnostics", diagnostics.encode_to_vec()),
        ],
    };
    Status::with_details(Code::InvalidArgument, message, status.encode_to_vec().into())
}

pub(super) fn check(definition: &str) -> CheckProbeResponse {
    let instruction = |offset, code: &[u8], text: &str, refusal: &str| Instruction {
        offset,
        code: code.to_vec(),
        text: text.to_owned(),
        probeable: refusal.is_empty(),
        refusal: refusal.to_owned(),
    };
    let mut answer = CheckProbeResponse {
        verdict: Verdict::Accepted.into(),
        kernel_definition: "p:kprobes/open do_sys_openat2".to_owned(),
        canonical: "p:kprobes/open do_sys_openat2".to_owned(),
        name: "kprobes/open".to_owned(),
        location: "do_sys_openat2+0x0".to_owned(),
        listing: vec![
            instruction(0, &[0x0f, 0x1f, 0x44, 0, 0], "nopl 0x0(%rax,%rax,1)", ""),
            instruction(5, &[0x55], "push %rbp", ""),
        ],
        ..Default::default()
    };
    if definition.contains("+3") {
        answer.verdict = Verdict::Refused.into();
        answer.errno = 84;
        answer.errno_name.replace_range(.., "EILSEQ");
        answer.rule.replace_range(.., "BAD_INSN_BNDRY");
        answer.set_by(RefusedBy::Kernel);
        answer.kernel_reason.replace_range(.., "BAD_INSN_BNDRY");
        answer.location.replace_range(.., "do_sys_openat2+0x3");
        answer.diagnostics = vec![finding(definition)];
        (answer.nearest_before, answer.nearest_after) = (Some(0), Some(5));
    }
    answer.lines = lines(definition);
    if answer.lines.len() > 1 {
        answer.verdict = Verdict::Refused.into();
        answer.notes = vec![format!("`{definition}` leaves out 2 functions")];
    }
    answer
}

/// What short forms stand for.
fn lines(definition: &str) -> Vec<String> {
    match definition {
        "openat" => vec!["p do_sys_openat2 $arg*".to_owned()],
        "open*" => ["p:open do_sys_openat2", "p:waiting do_sys_openat2"].map(str::to_owned).into(),
        "twin_*" => ["p twin_a", "p twin_b"].map(str::to_owned).into(),
        "*" => vec!["p:open do_sys_openat2".to_owned(); 101],
        "*/*switch*" | "sch*/*" | "sched/*" => {
            ["sched/sched_switch", "sched/sched_wakeup"].map(str::to_owned).into()
        }
        _ => Vec::new(),
    }
}

/// Verdicts on all lines of a text that are no comments, two in a message.
pub(super) fn checks(text: &str) -> Vec<CheckProbesResponse> {
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    let checked: Vec<_> = lines
        .map(|(definition, line)| {
            let mut check = check(definition);
            check.listing.clear();
            CheckedDefinition { line, offset: 0, definition: definition.to_owned(), check: Some(check) }
        })
        .collect();
    checked.chunks(2).map(|checked| CheckProbesResponse { checked: checked.to_vec() }).collect()
}

pub(super) fn profile(hits: u64) -> HitProfile {
    HitProfile {
        probe: "kprobes/open".to_owned(),
        probe_uid: 1,
        boot_id: "b0".to_owned(),
        time: Some(time(0)),
        hits,
        nmissed: 1,
        ..HitProfile::default()
    }
}

/// One exporter that runs, and one that fails.
fn exporters() -> Vec<ExporterLedger> {
    let time = Some(time(0));
    let running = ExporterLedger {
        name: "jsonl".to_owned(),
        start_time: time,
        read: Some(15),
        acknowledged: 8,
        queued: Some(2),
        expired: 1,
        not_selected: 4,
        destination: "/var/log/kprobed/events.jsonl".to_owned(),
        state: ExporterState::Running.into(),
        acknowledged_time: time,
        cursor: Some(Cursor { boot_id: "boot".to_owned(), epoch: 3, sequence: 13 }),
        ..Default::default()
    };
    let failing = ExporterLedger {
        name: "otlp".to_owned(),
        start_time: time,
        acknowledged: 3,
        dropped: 2,
        unknown_gaps: 1,
        failures: 7,
        destination: "http://127.0.0.1:4317".to_owned(),
        state: ExporterState::Failing.into(),
        error: "connect to `http://127.0.0.1:4317`: connection refused".to_owned(),
        failing_since: time,
        failures_in_a_row: 5,
        retry_time: time,
        refusal: "2 records had no body".to_owned(),
        place_error: "the disk is full".to_owned(),
        ..Default::default()
    };
    vec![running, failing]
}

pub(super) fn ledger() -> GetLedgerResponse {
    GetLedgerResponse {
        problems: Vec::new(),
        exporters: exporters(),
        probes: vec![
            ProbeLedger {
                probe: "kprobes/open".to_owned(),
                probe_uid: 1,
                hits: Some(13),
                nmissed: 1,
                read: 6,
                read_span: Some(TermSpan { first_ns: 1_000_000, last_ns: 2_500_000_000 }),
                undecodable: 1,
                not_read: 6,
                lost: Some(2),
                filtered: Some(0),
                paused: 0,
                loss_is_shared: false,
                disabled: 1,
                own: Some(3),
                unexplained: Some(0),
            },
            ProbeLedger { probe: "sched/sched_switch".to_owned(), read: 3, ..Default::default() },
        ],
        buffers: vec![BufferLedger {
            read: 6,
            overrun: 2,
            resets: 1,
            undecodable: 1,
            pages: 4,
            buffer_bytes: 65_536,
            overrun_span: Some(TermSpan { first_ns: 7_000, last_ns: 8_000 }),
            ..Default::default()
        }],
        subscribers: vec![SubscriberLedger {
            subscriber_id: 1,
            start_time: Some(time(0)),
            read: 20,
            delivered: 4,
            delivered_span: Some(TermSpan { first_ns: 1_000_000, last_ns: 2_000_000 }),
            queued: 1,
            dropped: 1,
            limited: 2,
            sampled_out: 3,
            filtered: 4,
            not_selected: 5,
            replayed: 9,
            expired: 1,
            loss_records: 2,
            overflow: OverflowPolicy::DropNewest.into(),
            ..Default::default()
        }],
        settled: true,
        spool: Some(SpoolLedger {
            read: 6,
            stored: 4,
            in_memory: 1,
            not_stored: 1,
            available: 100,
            expired: 50,
            bytes: 4096,
            oldest_time: Some(time(-60)),
            last_error: "no space left on device".to_owned(),
            damaged: Vec::new(),
        }),
    }
}

pub(super) fn host() -> GetHostResponse {
    GetHostResponse {
        audit_head: Some(AuditHead { sequence: 4, digest: vec![0; 32] }),
        hostname: "testhost".to_owned(),
        kernel_release: "6.12.1".to_owned(),
        kernel_version: "#1 SMP".to_owned(),
        machine: "x86_64".to_owned(),
        boot_id: "b0".to_owned(),
        cpus: 2,
        daemon_version: "0.1.0".to_owned(),
        daemon_start_time: Some(time(0)),
        tracefs: "/sys/kernel/tracing".to_owned(),
        instance: "kprobed".to_owned(),
        trace_clock: "mono".to_owned(),
        buffer_kib: 4096,
        sub_buffer_bytes: 4096,
        features: vec![KernelFeature {
            id: "symstr".to_owned(),
            available: true,
            description: "symbols as text".to_owned(),
        }],
        checks: vec![
            HostCheck {
                id: "tracefs_mounted".to_owned(),
                status: CheckStatus::Ok.into(),
                finding: "mounted at /sys/kernel/tracing".to_owned(),
                fix: String::new(),
            },
            HostCheck {
                id: "ftrace_enabled".to_owned(),
                status: CheckStatus::Failed.into(),
                finding: "`kernel.ftrace_enabled` is 0".to_owned(),
                fix: "sysctl kernel.ftrace_enabled=1".to_owned(),
            },
        ],
        labels: [("zone".to_owned(), "eu-1a".to_owned())].into(),
        foreign_probes: vec![ForeignProbe {
            name: "other/thing".to_owned(),
            kernel_definition: "p:other/thing vfs_read".to_owned(),
        }],
        processor_time: Some(prost_types::Duration { seconds: 2, nanos: 0 }),
        uptime: Some(prost_types::Duration { seconds: 100, nanos: 0 }),
        // That of the fixture with debug information (client/lines/tests/fixtures/kernel.elf).
        kernel_build: Some(KernelBuild {
            name: "6.12.1".to_owned(),
            build_id: "0123456789abcdef0123456789abcdef01234567".to_owned(),
        }),
        module_builds: Vec::new(),
    }
}

/// What a daemon answers without a look at its host.
pub(super) fn basics(host: GetHostResponse) -> GetHostResponse {
    GetHostResponse {
        buffer_kib: 0,
        sub_buffer_bytes: 0,
        features: Vec::new(),
        checks: Vec::new(),
        foreign_probes: Vec::new(),
        ..host
    }
}

pub(super) fn numbers(numbers: &[i32]) -> Column {
    Column { values: numbers.iter().flat_map(|number| number.to_le_bytes()).collect(), ..Default::default() }
}

pub(super) fn texts(texts: &[&[u8]]) -> Column {
    let mut offsets = vec![0_u32];
    for text in texts {
        offsets.push(offsets[offsets.len() - 1] + u32::try_from(text.len()).unwrap());
    }
    let offsets = offsets.into_iter().flat_map(u32::to_le_bytes).collect();
    Column { offsets, data: texts.concat().into(), ..Default::default() }
}

/// Events with their threads, and the microseconds since the first that there is.
pub(super) fn group(schema_id: u32, rows: &[(i32, u32)], columns: Vec<Column>) -> EventGroup {
    EventGroup {
        schema_id,
        rows: u32::try_from(rows.len()).unwrap(),
        base_ns: 1_000_000,
        offsets_ns: rows.iter().flat_map(|(_, us)| (us * 1000).to_le_bytes()).collect(),
        tids: rows.iter().flat_map(|(tid, _)| tid.to_le_bytes()).collect(),
        flags: vec![0].into(),
        preempt_counts: vec![0].into(),
        ips: 0x1000_u64.to_le_bytes().to_vec().into(),
        columns,
        ..Default::default()
    }
}

/// Three events on CPU 1: of `cat`, of `ls`, and one whose file name could not be read.
pub(crate) fn batch(sequence: u64) -> EventBatch {
    let names = Column { faults: vec![0b100].into(), ..texts(&[b"/etc/passwd", b"/tmp/\xff", b""]) };
    let rows = [(131, 0), (132, 1000), (131, 2000)];
    let group = EventGroup {
        flags: vec![0, 1, 0x48].into(),
        preempt_counts: vec![0, 1, 0xff].into(),
        ..group(1, &rows, vec![numbers(&[-100, 3, -100]), names])
    };
    EventBatch {
        cpu: 1,
        sequence,
        log_events: 3,
        groups: vec![group],
        tasks: vec![
            Task { tid: 131, comm: b"cat".to_vec(), tgid: 130 },
            Task { tid: 132, comm: b"ls".to_vec(), tgid: 0 },
        ],
        symbols: vec![Symbol { address: 0x1000, text: "do_sys_openat2+0x0/0x170".to_owned() }],
        clock: Some(clock()),
    }
}

pub(super) fn clock() -> ClockMapping {
    ClockMapping { wall_offset_ns: 1_769_860_800_000_000_000, error_bound_ns: 100, sampled_at_ns: 0 }
}

/// The fake's trace clock stands still, at a second after its boot.
pub(super) fn clock_reading() -> ReadClockResponse {
    ReadClockResponse {
        boot_id: "b0".to_owned(),
        clock_name: "boot".to_owned(),
        received_ns: 1_000_000_000,
        sent_ns: 1_000_000_000,
        clock: Some(clock()),
    }
}

pub(super) fn loss() -> Loss {
    Loss {
        cause: LossCause::Overrun.into(),
        cpu: Some(1),
        count: Some(12),
        before_ns: 1_000_000,
        gaps: 1,
        pause: None,
    }
}

/// Events that a history has forgotten.
pub(super) fn expired(count: u64) -> Loss {
    Loss { cause: LossCause::Expired.into(), count: Some(count), gaps: 1, ..Default::default() }
}

pub(crate) fn cursor(sequence: u64) -> Cursor {
    Cursor { boot_id: "b0".to_owned(), epoch: 2, sequence }
}

pub(super) fn epoch(sequence: u64) -> EpochStarted {
    EpochStarted { cursor: Some(cursor(sequence)), may_miss: false }
}

pub(super) fn started() -> StreamStarted {
    StreamStarted {
        subscriber_id: 1,
        clock: Some(clock()),
        clock_name: "mono".to_owned(),
        ..Default::default()
    }
}

/// What the kernel could do: all of the filter for one probe, and nothing for another, which has a
/// field less.
pub(super) fn checked_filter(selection: &EventSelection) -> Vec<ProbeFilter> {
    if selection.filter.is_empty() {
        return Vec::new();
    }
    let exact = ProbeFilter {
        probe: "kprobes/open".to_owned(),
        kernel_filter: format!("{} && 1", selection.filter),
        exact: true,
        ..Default::default()
    };
    let unusable = ProbeFilter {
        probe: "kprobes/waiting".to_owned(),
        problem: Some(finding(&selection.filter)),
        ..Default::default()
    };
    let all = [exact, unusable];
    let selected = |name: &str| {
        selection.probes.is_empty() || selection.probes.iter().any(|glob| glob.ends_with(&name[8..]))
    };
    all.into_iter().filter(|found| selected(&found.probe)).collect()
}

/// A watch: two probes, of which one changes, and the other one goes.
pub(super) fn watched() -> Vec<WatchProbesResponse> {
    let message = |event: WatchEvent, probe: Option<Probe>, token: &str| WatchProbesResponse {
        event: event.into(),
        probe: probe.map(|probe| Probe { schema: None, ..probe }),
        resume_token: token.to_owned(),
    };
    let drifted = Probe {
        state: ProbeState::Drifted.into(),
        state_reason: "SWITCHED_OFF".to_owned(),
        state_message: "its event is switched off in the daemon's instance".to_owned(),
        ..probe("kprobes/open")
    };
    vec![
        message(WatchEvent::Present, Some(probe("kprobes/open")), ""),
        message(WatchEvent::Present, Some(probe("kprobes/waiting")), ""),
        message(WatchEvent::Synced, None, "a.1"),
        message(WatchEvent::Changed, Some(drifted), "a.2"),
        message(WatchEvent::Deleted, Some(probe("kprobes/waiting")), "a.3"),
    ]
}
