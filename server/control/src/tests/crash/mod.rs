//! Crash consistency on the host: a fault at each write to the kernel, and at each change of the disk, of each kind of
//! change of probes. What was acknowledged is there afterwards; any other change is there as a whole or not at all.
//!
//! A daemon is control and the database, over the kernel in memory and a simulated disk; it is driven by its handle.
//! The guest tests of `crash` do the same with the whole daemon, on real kernels, for few of the cases.
//!
//! `KPROBED_CRASH=delete,start` tries these kinds alone, and everything that another program does at each of their
//! writes; otherwise that is one thing at each write, in turn.

mod acts;
mod check;
mod daemon;
mod model;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kprobed_fake::{FakeKernel, Fault, Series};
use nix::errno::Errno;

use self::acts::{Act, KINDS};
use self::check::{check, check_beside_neighbour, check_live};
use self::daemon::{Daemon, Facts};
use self::model::{Expected, Term, base, shown};
use crate::Unit;
use crate::store::tests::disk::{Cut, Disk, Plan, Trouble};
use crate::store::tests::simulated;
use kprobed_trace::spool::{BootId, Cursor};

/// Kernel and disk while no daemon runs.
struct Image {
    kernel: FakeKernel,
    disk: Arc<Disk>,
}

impl Image {
    fn copy(&self) -> Self {
        Self { kernel: self.kernel.copy(), disk: self.disk.after(Cut::Nothing) }
    }

    /// What each case begins with: a daemon has the probes of the base, another program an event and an instance, and
    /// then the daemon was killed.
    async fn base(facts: &Arc<Facts>) -> Self {
        let kernel = FakeKernel::new(Series::V6_12, &facts.functions, daemon::EVENTS);
        check::make_foreign(&kernel);
        let image = Self { kernel, disk: simulated::empty().await };
        let daemon = Daemon::start(&image.kernel, &image.disk, facts).await.unwrap();
        acts::make_base(&daemon, &base()).await;
        let disk = daemon.kill().await;
        Self { disk, ..image }
    }
}

/// A fault, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Injury {
    /// At a write to the kernel.
    Kill,
    Refuse,
    /// Another program does this before a write to the kernel.
    Neighbour(usize),
    /// The same, with something else at each write.
    Neighbours,
    /// At a change of the disk.
    KillAtDisk,
    /// The disk is full from then on.
    Full,
    /// A call of the disk fails, once.
    DiskError,
}

impl Injury {
    /// `is_whole`: with everything that another program does, at each write.
    fn all(is_whole: bool) -> Vec<Self> {
        let mut all = vec![Self::Kill, Self::Refuse, Self::KillAtDisk, Self::Full, Self::DiskError];
        if is_whole {
            all.extend((0..check::NEIGHBOURS.len()).map(Self::Neighbour));
        } else {
            all.push(Self::Neighbours);
        }
        all
    }

    /// How far two cases are apart: SQLite makes many changes of the disk for one commit. `is_whole`: every one of
    /// them is a case.
    const fn stride(self, is_whole: bool) -> usize {
        match self {
            Self::KillAtDisk | Self::Full | Self::DiskError if !is_whole => 3,
            _ => 1,
        }
    }

    /// Whether what is shown can be another program's doing.
    const fn is_by_neighbour(self) -> bool {
        matches!(self, Self::Neighbour(_) | Self::Neighbours)
    }

    fn prepare(self, at: usize, daemon: &Daemon) {
        let calls = |trouble, calls| Some(Plan { trouble, first: at as u64, calls });
        let fault = match self {
            Self::Kill => Some(Fault::Kill),
            Self::Refuse => Some(Fault::Errno(Errno::EBUSY)),
            Self::Neighbour(number) => Some(Fault::Neighbour(check::NEIGHBOURS[number].1)),
            Self::Neighbours => Some(Fault::Neighbour(check::NEIGHBOURS[at % check::NEIGHBOURS.len()].1)),
            Self::KillAtDisk => {
                daemon.disk.kill_at(Some(at as u64));
                None
            }
            Self::Full => {
                // It is written in place, for which a full disk has room.
                daemon.disk.spare(Some(simulated::RESERVE));
                daemon.disk.fail(calls(Trouble::Full, u64::MAX));
                None
            }
            Self::DiskError => {
                daemon.disk.fail(calls(Trouble::Io, 1));
                None
            }
        };
        daemon.life.plan(fault.map(|fault| (at, fault)));
    }

    /// Whether it has happened.
    fn has_struck(self, daemon: &Daemon) -> bool {
        match self {
            Self::Kill | Self::Refuse | Self::Neighbour(_) | Self::Neighbours => daemon.life.changes().1,
            Self::KillAtDisk => daemon.life.is_over(),
            Self::Full | Self::DiskError => daemon.disk.failed() > 0,
        }
    }
}

/// One case. Returns whether the fault was made, and the writes to the kernel.
async fn case(
    image: &Image,
    facts: &Arc<Facts>,
    act: &Act,
    injury: Injury,
    at: usize,
) -> Result<bool, String> {
    let Image { kernel, disk } = image.copy();
    let mut scene = acts::prepare(act, &kernel, disk, facts).await?;
    let (expected, is_hit) = if act.is_start() {
        let mut daemon = Daemon::begin(&kernel, &scene.disk);
        injury.prepare(at, &daemon);
        let started = daemon.go_on(facts).await;
        let is_hit = injury.has_struck(&daemon);
        if let Err(error) = started
            && !is_hit
        {
            return Err(format!("it does not start: {error}"));
        }
        scene.changes = daemon.life.changes().0;
        scene.disk = daemon.kill().await;
        let expected = Expected::unchanged(&scene.before);
        (expected, is_hit)
    } else {
        let daemon = scene.daemon.take().ok_or("no daemon")?;
        injury.prepare(at, &daemon);
        let expected = acts::make(act, &daemon, &mut scene).await;
        let is_hit = injury.has_struck(&daemon);
        daemon.disk.fail(None);
        daemon.disk.kill_at(None);
        if !daemon.life.is_over() && !expected.is_stopped {
            let changes = daemon.life.changes().0;
            let checked = if injury.is_by_neighbour() && is_hit {
                check_beside_neighbour(&daemon).await
            } else {
                check_live(&daemon, &expected).await
            };
            // It may come to the fault only now, with what it does by itself.
            if !daemon.life.is_over() {
                checked.map_err(|error| told(&changes, "live", &error))?;
            }
        }
        let changes = daemon.life.changes().0;
        scene.disk = daemon.kill().await;
        scene.changes = changes;
        (expected, is_hit)
    };
    let again = Daemon::start(&kernel, &scene.disk, facts)
        .await
        .map_err(|error| told(&scene.changes, "afterwards", &format!("it does not start: {error}")))?;
    let checked = if injury.is_by_neighbour() && is_hit {
        check_beside_neighbour(&again).await
    } else {
        check(&again, &expected).await
    };
    again.kill().await;
    checked.map_err(|error| told(&scene.changes, "afterwards", &error))?;
    Ok(is_hit)
}

fn told(changes: &[String], when: &str, error: &str) -> String {
    format!("{when}: {error}\nwrites to the kernel:\n  {}", changes.join("\n  "))
}

/// The writes of a stop: all probes go off, then the instance goes, and then the events. Those of the host stay.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_leaves_nothing_behind() {
    let facts = Arc::new(Facts::new());
    let image = Image::base(&facts).await;
    let daemon = Daemon::start(&image.kernel, &image.disk, &facts).await.unwrap();
    let probes = daemon.probes().await;
    daemon.life.plan(None);
    daemon.control().stop().await;
    // Exporters and the audit log have their last words afterwards.
    let place = Cursor { boot_id: BootId([7; 16]), epoch: 1, sequence: 7 };
    daemon.store().set_exporter_place("jsonl", place).await.unwrap();
    daemon.store().close().await;
    let changes = daemon.life.changes().0;
    let at = |is_meant: &dyn Fn(&str) -> bool| {
        let found = changes.iter().enumerate().filter(|(_, change)| is_meant(change));
        found.map(|(index, _)| index).collect::<Vec<_>>()
    };
    let own = format!("tracing/instances/{}", daemon::INSTANCE);
    let off = at(&|change| change.starts_with(&own) && change.contains("/enable ") && change.ends_with('0'));
    let gone = at(&|change| change.starts_with(&own) && change.ends_with(" rmdir"));
    let deleted = at(&|change| change.starts_with("tracing/kprobe_events ") && change.contains("-:"));
    let of_host = probes.iter().filter(|probe| !probe.spec.definition.as_str().contains(':')).count();
    let there = probes.iter().filter(|probe| probe.own.is_some()).count();
    assert!(of_host > 0 && there > of_host, "{probes:?}");
    assert_eq!((off.len(), gone.len(), deleted.len()), (there, 1, there - of_host), "{changes:#?}");
    assert!(off.last() < gone.first() && gone.first() < deleted.first(), "{changes:#?}");
    daemon.dead().await;
    let theirs = image.kernel.neighbour();
    assert_eq!(theirs.text("kprobe_events").unwrap().lines().count(), 1, "that of another program");
}

/// However many requests wait, what the daemon does by itself is done in time.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_requests_hold_up_no_lease() {
    let facts = Arc::new(Facts::new());
    let image = Image::base(&facts).await;
    let daemon = Daemon::start(&image.kernel, &image.disk, &facts).await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (control, is_over) = (daemon.control().clone(), Arc::clone(&is_over));
        asking.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                control.ledger().await.unwrap();
            }
        });
    }
    acts::apply(&daemon, vec![acts::short()]).await;
    let begun = Instant::now();
    let is_ended = async || shown(&daemon.probes().await)["kprobes/short"].term == Term::Ended;
    while !is_ended().await {
        assert!(begun.elapsed() < Duration::from_secs(30), "its lease does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    is_over.store(true, Ordering::Relaxed);
    while let Some(one) = asking.join_next().await {
        one.unwrap();
    }
    daemon.kill().await;
}

/// Of changes that each have their own outcome, those that disarm go on without room for what they do.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_no_deletion_beside_a_creation() {
    let facts = Arc::new(Facts::new());
    let image = Image::base(&facts).await;
    let daemon = Daemon::start(&image.kernel, &image.disk, &facts).await.unwrap();
    Injury::Full.prepare(0, &daemon);
    let changes = vec![acts::delete("off"), acts::create("new0")];
    let outcomes = daemon.control().apply(&daemon::caller(), changes, Unit::Each).await.unwrap().outcomes;
    assert!(outcomes[0].is_ok() && outcomes[1].is_err(), "{outcomes:?}");
    daemon.disk.fail(None);
    let left = shown(&daemon.probes().await);
    assert!(!left.contains_key("kprobes/off") && !left.contains_key("kprobes/new0"), "{left:?}");
    daemon.kill().await;
}

/// Figures of a run.
#[derive(Default)]
struct Figures {
    cases: usize,
    faults: usize,
    failures: Vec<String>,
    by_kind: BTreeMap<&'static str, (usize, usize)>,
}

/// The kinds that are tried: all, or those that are named.
fn chosen(named: &str) -> Vec<(&'static str, Act)> {
    let is_named = |name: &str| named.is_empty() || named.split(',').any(|named| named == name);
    KINDS.iter().filter(|(name, _)| is_named(name)).map(|(name, act)| (*name, act())).collect()
}

/// Failures after which a run ends.
const MOST_FAILURES: usize = 12;

#[test]
fn nothing_acknowledged_is_lost() {
    let begun = Instant::now();
    // Most of a case is waiting: for a grace period of the kernel below, for a lease.
    let threads = 20 * simulated::cpus().len();
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let facts = Arc::new(Facts::new());
    let image = runtime().block_on(Image::base(&facts));
    let named = std::env::var("KPROBED_CRASH").unwrap_or_default();
    let is_whole = !named.is_empty();
    let injuries = Injury::all(is_whole);
    let work: Vec<_> = chosen(&named)
        .into_iter()
        .flat_map(|kind| injuries.iter().map(move |injury| (kind.clone(), *injury)))
        .collect();
    let next = AtomicUsize::new(0);
    let figures = std::sync::Mutex::new(Figures::default());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (runtime, next, figures, work) = (&runtime, &next, &figures, &work);
            let (image, facts) = (&image, &facts);
            scope.spawn(move || {
                simulated::stay_on_one_cpu();
                let runtime = runtime();
                while let Some(((name, act), injury)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // Kinds begin at different changes of the disk.
                    let stride = injury.stride(is_whole);
                    let first = name.len() % stride;
                    for at in (first..).step_by(stride) {
                        let outcome = runtime.block_on(case(image, facts, act, *injury, at));
                        let mut figures = figures.lock().unwrap();
                        figures.cases += 1;
                        let of_kind = figures.by_kind.entry(*name).or_default();
                        of_kind.0 += 1;
                        match outcome {
                            Ok(true) => {
                                of_kind.1 += 1;
                                figures.faults += 1;
                            }
                            Ok(false) => break,
                            Err(error) => {
                                figures.failures.push(format!("{name}, {injury:?} at {at}: {error}"));
                                if figures.failures.len() >= MOST_FAILURES {
                                    next.store(work.len(), Ordering::Relaxed);
                                }
                                break;
                            }
                        }
                    }
                }
            });
        }
    });
    let figures = figures.into_inner().unwrap();
    println!(
        "{} kinds of change, {} kinds of fault, {} cases, {} faults, {:.1} s",
        figures.by_kind.len(),
        injuries.len(),
        figures.cases,
        figures.faults,
        begun.elapsed().as_secs_f64()
    );
    for (kind, (cases, faults)) in &figures.by_kind {
        println!("  {kind}: {cases} cases, {faults} faults");
    }
    assert!(
        figures.failures.is_empty(),
        "{} failures:\n{}",
        figures.failures.len(),
        figures.failures.join("\n\n")
    );
    assert!(figures.faults > 0);
}
