//! Tests of the cost of the two views. Their tracefs is a few files, which can be removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::FutureExt as _;
use tempfile::TempDir;
use tonic::Code;

use kprobed_rights::Roles;

use super::*;
use crate::doctor::{Doctor, SkippedRuns, UNLOCK};
use crate::export::Exporters;
use crate::health::Storage;
use crate::rpc::Access;
use kprobed_control::auth::{AuditQueue, Caller, Rights};
use kprobed_control::store::Store;
use kprobed_control::{Controller, Foreign, Observer, ProbeStates, Registry};
use kprobed_host::kernel::{BuildIds, FactsCache, KernelPaths};
use kprobed_host::tracefs::{CurrentInstance, HitCounts, Instance, Tracefs};
use kprobed_lang::samples::v6_12;
use kprobed_trace::pipeline::samples;
use kprobed_verdict::checker::Checker;

const HEADER_PAGE: &str = include_str!("../../../fixtures/ring/small-mix/header_page");

fn write_tracefs(root: &Path) {
    let instance = root.join("instances/i");
    fs::create_dir_all(root.join("events")).unwrap();
    fs::create_dir_all(&instance).unwrap();
    fs::write(root.join("kprobe_events"), "p:foreign/open do_sys_openat2\n").unwrap();
    fs::write(root.join("events/header_page"), HEADER_PAGE).unwrap();
    for (name, text) in [
        ("buffer_size_kb", "4096\n"),
        ("set_event_pid", ""),
        ("trace_clock", "[boot]\n"),
        ("tracing_on", "1\n"),
    ] {
        fs::write(instance.join(name), text).unwrap();
    }
}

/// A sysfs with the build ids of a kernel, `0a0a`, and of the module `nf_tables`, `0b0b`.
fn sysfs(directory: &TempDir) -> PathBuf {
    let root = directory.path().join("sys");
    for (place, byte) in [("kernel/notes", 0x0a), ("module/nf_tables/notes/.note.gnu.build-id", 0x0b)] {
        let note = [&[4, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0", &[byte, byte, 0, 0]].concat();
        fs::create_dir_all(root.join(place).parent().unwrap()).unwrap();
        fs::write(root.join(place), note).unwrap();
    }
    root
}

async fn server(directory: &TempDir) -> Services {
    let nowhere = || PathBuf::from("/nonexistent");
    let root = directory.path().join("tracing");
    write_tracefs(&root);
    let paths = KernelPaths { procfs: nowhere(), sysfs: nowhere(), tracefs: nowhere(), debugfs: nowhere() };
    let facts = Arc::new(FactsCache::new(paths));
    let tracefs = Tracefs::new(&root, "/nonexistent");
    let instance = Arc::new(CurrentInstance::new(Instance::find(&tracefs, "i").unwrap()));
    let registry = Arc::<Registry>::default();
    // No thread takes commands: a command would never be answered. The daemon is not stopping.
    let (control, commands) = Controller::channel();
    Box::leak(Box::new(commands));
    let observer = Observer::new(tracefs.clone(), Arc::clone(&instance), nowhere(), nowhere());
    let host = HostIdentity {
        hostname: "h".to_owned(),
        kernel_release: "6.12.1".to_owned(),
        kernel_version: "#1 SMP".to_owned(),
        machine: "x86_64".to_owned(),
        boot_id: "b".to_owned(),
    };
    let store = Store::open(directory.path(), SystemTime::now()).await.unwrap();
    let rights = Arc::new(Rights::new(Roles::default(), AuditQueue::new().0));
    let checker = Arc::new(Checker::new(v6_12(), Arc::clone(&facts)));
    Services {
        info: HostInfo {
            host,
            cpus: 2,
            start: SystemTime::now(),
            started: Instant::now(),
            build_ids: Arc::new(BuildIds::read(&nowhere(), &sysfs(directory))),
        },
        states: ProbeStates { observer, control: control.clone(), registry: Arc::clone(&registry) },
        control,
        access: Access { rights, registry: Arc::clone(&registry) },
        costs: Arc::default(),
        holds: Arc::default(),
        vanished_after: Duration::from_secs(40),
        foreign: Foreign {
            tracefs: tracefs.clone(),
            registry: Arc::clone(&registry),
            checker: Arc::clone(&checker),
            own_instances: Instance::both_names("i"),
        },
        storage: Storage {
            store,
            state_directory: directory.path().to_owned(),
            history: None,
            unknown_uids: 0,
        },
        checker,
        doctor: Doctor {
            tracefs,
            instance,
            facts,
            registry,
            procfs: nowhere(),
            lockdown: root.join("lockdown"),
            had_kprobe_events: true,
            skipped: SkippedRuns::since(SystemTime::UNIX_EPOCH, HitCounts::default(), None),
        },
        declarations: Arc::default(),
        labels: Arc::default(),
        exporters: Exporters::default(),
        export_filters: Vec::new(),
        hub: samples::hub(),
        reloads: Arc::default(),
        tls: None,
    }
}

fn request(view: v1::HostView) -> Request<v1::GetHostRequest> {
    let mut request = Request::new(v1::GetHostRequest { view: view.into(), modules: Vec::new() });
    request.extensions_mut().insert(Caller::daemon());
    request
}

/// Answers at once, without waiting for anything.
fn basic(server: &Services) -> v1::GetHostResponse {
    let answer = server.get_host(request(v1::HostView::Basic)).now_or_never();
    answer.unwrap().unwrap().into_inner()
}

fn since(times: (Option<prost_types::Duration>, Option<prost_types::Duration>)) -> (Duration, Duration) {
    let time = |time: Option<prost_types::Duration>| Duration::try_from(time.unwrap()).unwrap();
    (time(times.0), time(times.1))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_tells_the_builds_of_its_kernel_and_of_modules() {
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory).await;
    let build =
        |name: &str, build_id: &str| v1::KernelBuild { name: name.to_owned(), build_id: build_id.to_owned() };
    let ask = |names: Vec<String>| {
        let mut request = request(v1::HostView::Basic);
        request.get_mut().modules = names;
        server.get_host(request)
    };
    let names = ["nf_tables", "absent", "../kernel"].map(str::to_owned).to_vec();
    let answer = ask(names).await.unwrap().into_inner();
    assert_eq!(answer.kernel_build, Some(build("6.12.1", "0a0a")));
    assert_eq!(answer.module_builds, [build("nf_tables", "0b0b")]);
    let refusal = ask(vec!["m".to_owned(); 1001]).await.unwrap_err();
    assert!(refusal.message().contains("1001 modules"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_basic_answer_looks_at_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory).await;
    for view in [v1::HostView::Unspecified, v1::HostView::Full] {
        let full = server.get_host(request(view)).await.unwrap().into_inner();
        assert_eq!((full.buffer_kib, full.sub_buffer_bytes), (4096, 4080 + 16));
        assert_eq!(full.foreign_probes[0].name, "foreign/open");
        assert!(full.checks.len() > 8 && !full.features.is_empty(), "{full:?}");
        // The basic view is the full one without what was looked up.
        let basic = basic(&server);
        let both = v1::GetHostResponse {
            buffer_kib: 0,
            sub_buffer_bytes: 0,
            features: Vec::new(),
            checks: Vec::new(),
            foreign_probes: Vec::new(),
            audit_head: None,
            processor_time: basic.processor_time,
            uptime: basic.uptime,
            ..full
        };
        assert_eq!(basic, both);
    }
    // Without tracefs each check says why it failed, those of other things are answered; the basic view is the same.
    let before = basic(&server);
    fs::remove_dir_all(directory.path().join("tracing")).unwrap();
    let full = server.get_host(request(v1::HostView::Full)).await.unwrap().into_inner();
    assert_eq!((full.buffer_kib, full.sub_buffer_bytes), (0, 0));
    let status = |id: &str| full.checks.iter().find(|check| check.id == id).map(v1::HostCheck::status);
    for id in ["tracefs", "recording", "ring_buffer"] {
        assert_eq!(status(id), Some(v1::CheckStatus::Failed), "{id}: {full:?}");
    }
    for id in ["database", "lockdown"] {
        assert_eq!(status(id), Some(v1::CheckStatus::Ok), "{id}: {full:?}");
    }
    assert!(full.checks.iter().all(|check| !check.finding.is_empty()), "{full:?}");
    // What keeps everything out is what is to be mended.
    fs::create_dir(directory.path().join("tracing")).unwrap();
    fs::write(directory.path().join("tracing/lockdown"), "none integrity [confidentiality]\n").unwrap();
    let locked = server.get_host(request(v1::HostView::Full)).await.unwrap().into_inner();
    for id in ["lockdown", "tracefs", "recording", "kernel_code"] {
        let check = locked.checks.iter().find(|check| check.id == id).unwrap();
        assert_eq!((check.status(), check.fix.as_str()), (v1::CheckStatus::Failed, UNLOCK), "{check:?}");
    }
    let after = basic(&server);
    let (processor_time, uptime) = (before.processor_time, before.uptime);
    assert_eq!(v1::GetHostResponse { processor_time, uptime, ..after }, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemon_says_what_it_has_used() {
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory).await;
    let used = |answer: v1::GetHostResponse| since((answer.processor_time, answer.uptime));
    let (first, begun) = used(basic(&server));
    // The kernel counts in steps: repeated until one has passed.
    let (mut second, mut now) = used(basic(&server));
    while second == first {
        (second, now) = used(basic(&server));
    }
    assert!(second > first && now > begun, "{first:?} {second:?} {begun:?} {now:?}");
    assert!(now <= server.info.started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_of_a_later_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory).await;
    let mut later = request(v1::HostView::Full);
    later.get_mut().view = 9;
    let refused = server.get_host(later).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("`view` has a value"), "{refused:?}");
}
