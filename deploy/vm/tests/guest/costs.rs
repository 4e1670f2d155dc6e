//! Cost of a call and of a look with few probes and with many: counted in reads, and shown in
//! processor time.
//!
//! `KPROBED_VM_COSTS=10,100,1000,10000` sets the numbers of probes. What grows with them is what
//! the kernel itself lists of all events.

use anyhow::{Context as _, Result, bail, ensure};
use kprobed_client::Client;
use kprobed_client::api::probe_change::Change;
use kprobed_client::api::{CreateProbeRequest, ListProbesRequest, ReconcileOutcome};

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        calls_and_looks_beside_many_probes,
    }
};

/// The calls, and how many lists of all events each of them reads at most: a definition is proven
/// by the list of what is registered, read before and after it, and hits are only in the list of
/// all hits.
const LISTS: [(&str, u64); 5] = [
    ("define and delete", 6),
    ("enable and disable", 3),
    ("get", 0),
    ("a page of the list", 0),
    ("ledger", 2),
];

/// Lines of such a list that the kernel gives with one read, at least.
const LINES_AT_ONCE: u64 = 50;

/// How often each is done.
const TIMES: usize = 3;

/// CPU time of the daemon in nanoseconds, and how often it has read from files.
#[derive(Clone, Copy, Debug)]
struct Cost {
    cpu_ns: u64,
    reads: u64,
}

fn cost(guest: &DaemonGuest) -> Result<Cost> {
    let text = guest.shell(
        "cat /proc/$(pidof kprobed)/task/*/schedstat | awk '{ sum += $1 } END { printf \"%.0f\\n\", sum }'; \
         grep syscr /proc/$(pidof kprobed)/io | cut -d' ' -f2",
    )?;
    let numbers: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    match numbers.as_slice() {
        [cpu_ns, reads] => Ok(Cost { cpu_ns: *cpu_ns, reads: *reads }),
        _ => bail!("{text}"),
    }
}

/// What doing something costs: the least of several times, since the daemon reads for itself too.
fn each(guest: &DaemonGuest, act: impl Fn() -> Result<()>) -> Result<Cost> {
    let mut before = cost(guest)?;
    let mut least = Cost { cpu_ns: u64::MAX, reads: u64::MAX };
    for _ in 0..TIMES {
        act()?;
        let after = cost(guest)?;
        // A thread that has ended takes its time with it: it is shown, and nothing is proven by it.
        least.cpu_ns = least.cpu_ns.min(after.cpu_ns.saturating_sub(before.cpu_ns));
        least.reads = least.reads.min(after.reads - before.reads);
        before = after;
    }
    Ok(least)
}

/// Defines probes that do not record until there are so many.
fn define(guest: &DaemonGuest, numbers: std::ops::Range<usize>) -> Result<()> {
    let requests: Vec<_> = numbers
        .map(|number| {
            Change::Create(CreateProbeRequest {
                definition: format!("p:cost/n{number} __x64_sys_getpgid"),
                ..Default::default()
            })
        })
        .collect();
    for requests in requests.chunks(Client::CHANGES_AT_ONCE) {
        let outcomes = guest.wait_for(guest.client.apply_probes(requests.to_vec()))??;
        outcomes.into_iter().collect::<Result<Vec<_>, _>>()?;
    }
    Ok(())
}

/// One call of each kind about one probe, beside one that records.
fn calls(guest: &DaemonGuest) -> Result<Vec<(&'static str, Cost)>> {
    let page = || ListProbesRequest { page_size: 5, ..Default::default() };
    let mut costs = Vec::new();
    // The probe is another one each time, but is there for as long as the others need it.
    let one = || guest.wait_for(guest.client.set_enabled("cost/n1", true))?.map(drop).map_err(Into::into);
    let off = || guest.wait_for(guest.client.set_enabled("cost/n1", false))?.map(drop).map_err(Into::into);
    costs.push((
        "define and delete",
        each(guest, || {
            guest.add("p:cost/one __x64_sys_getpgid")?;
            guest.delete("cost/one").map(drop)
        })?,
    ));
    costs.push(("enable and disable", each(guest, || one().and_then(|()| off()))?));
    costs.push(("get", each(guest, || Ok(guest.wait_for(guest.client.get_probe("cost/n1"))?.map(drop)?))?));
    costs.push((
        "a page of the list",
        each(guest, || Ok(guest.wait_for(guest.client.list_probes_page(page()))?.map(drop)?))?,
    ));
    costs.push(("ledger", each(guest, || guest.ledger().map(drop))?));
    Ok(costs)
}

fn calls_and_looks_beside_many_probes(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:cost/records __x64_sys_getsid")?;
    let mut made = 0;
    let mut first: Option<Vec<(&str, Cost)>> = None;
    for size in effort::numbers("KPROBED_VM_COSTS", &[10, 100])? {
        define(&guest, made..size)?;
        made = size;
        let look = each(&guest, || {
            let all = guest.wait_for(guest.client.reconcile_probes(false))??;
            ensure!(
                all.len() == size + 1 && all.iter().all(|one| one.outcome() == ReconcileOutcome::AsWanted)
            );
            Ok(())
        })?;
        let tell = |what: &str, cost: Cost| {
            fixture.note(format_args!(
                "{what}, beside {size} probes: {} us of CPU, {} reads",
                cost.cpu_ns / 1000,
                cost.reads
            ));
        };
        // A request ends with a second look, for its answer: three short files of each probe, read
        // to their end, and some lists.
        tell("two looks", look);
        ensure!(look.reads <= 2 * (8 * size as u64 + 80), "{look:?} beside {size} probes");
        let costs = calls(&guest)?;
        for (what, cost) in &costs {
            tell(what, *cost);
        }
        for ((what, few), (_, many)) in first.iter().flatten().zip(&costs) {
            let lists = LISTS.iter().find(|(name, _)| name == what).map(|(_, lists)| *lists);
            let more = lists.context("a call without a bound")? * (size as u64 / LINES_AT_ONCE + 1) + 2;
            ensure!(many.reads <= few.reads + more, "{what}: {few:?}, and beside {size} probes {many:?}");
        }
        first.get_or_insert(costs);
    }
    guest.delete_all()
}
