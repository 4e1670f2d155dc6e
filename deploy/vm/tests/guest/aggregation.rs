//! Aggregations (hist triggers): exact counts of known workloads, known latencies and callers, and
//! nothing left in the kernel afterwards.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::aggregation_key::Key;
use kprobed_client::api::aggregation_spec::Aggregation as Kind;
use kprobed_client::api::key_value::Value;
use kprobed_client::api::stream_aggregation_request::Source;
use kprobed_client::api::{
    AggregationKey, AggregationRow, AggregationSnapshot, AggregationSpec, ContextKey, FieldKey,
    HistogramSpec, KeyScale, LatencySpec, ProbeState, SignedBucket, SumValue, sum_value,
};
use kprobed_vm::{daemon, progress};

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::effort;
use crate::fixture::{Fixture, Shared};

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        stacks_begin_at_the_probe,
    }
    Daemon {
        a_counted_probe_stays,
        an_aggregation_ends_with_its_event_and_says_why,
        commands_show_what_was_counted,
        counts_are_exact,
        events_of_the_host_are_counted,
        keys_are_shown_as_people_write_them,
        latencies_of_known_sleeps,
        own_threads_are_left_out_and_counted,
        what_was_not_read_is_counted_apart,
    }
    Seldom {
        functions_are_counted_without_a_probe,
        a_killed_daemon_leaves_nothing,
    }
};

fn field(name: &str, scale: KeyScale, bucket_size: u64) -> AggregationKey {
    let key = FieldKey { field: name.to_owned(), scale: scale.into(), bucket_size };
    AggregationKey { key: Some(Key::Field(key)) }
}

fn context(key: ContextKey) -> AggregationKey {
    AggregationKey { key: Some(Key::Context(key.into())) }
}

fn histogram(probe: &str, keys: Vec<AggregationKey>, sums: &[&str], filter: &str) -> AggregationSpec {
    let sums = sums.iter().map(|&sum| sum.to_owned()).collect();
    let spec = HistogramSpec {
        probe: probe.to_owned(),
        keys,
        sums,
        filter: filter.to_owned(),
        ..Default::default()
    };
    AggregationSpec { aggregation: Some(Kind::Histogram(spec)) }
}

/// Counts while `work` runs.
fn count(
    guest: &DaemonGuest,
    spec: AggregationSpec,
    work: impl FnOnce() -> Result<()>,
) -> Result<AggregationSnapshot> {
    let made = guest.wait_for(guest.client.create_aggregation("", spec, None))??;
    work()?;
    let (_, read) = guest.wait_for(guest.client.read_aggregation(&made.name))??;
    let last = guest.wait_for(guest.client.delete_aggregation(&made.name))??.context("no last snapshot")?;
    ensure!(last.hits >= read.hits && read.dropped == 0, "{read:?} {last:?}");
    no_instance_is_left(guest)?;
    Ok(read)
}

fn no_instance_is_left(guest: &DaemonGuest) -> Result<()> {
    let instances = guest.shell("ls /sys/kernel/tracing/instances")?;
    ensure!(!instances.contains("aggregation"), "an instance is left: {instances}");
    Ok(())
}

/// A guest whose kernel counts. Where it does not, the daemon says so.
fn guest_that_counts(fixture: &Fixture) -> Result<Option<Shared<'_>>> {
    let guest = fixture.daemon()?;
    if fixture.counts_events() {
        return Ok(Some(guest));
    }
    guest.add("p:seek ksys_lseek far=%si:s64")?;
    let answer = guest.ctl_says("hist seek --by far --for 1s")?.all();
    ensure!(answer.contains("it was built without `CONFIG_HIST_TRIGGERS`"), "{answer}");
    ensure!(answer.contains("`kprobectl hits` counts on every kernel"), "{answer}");
    Ok(None)
}

/// The first key of each row, with its count.
fn rows(snapshot: &AggregationSnapshot) -> Vec<(Option<Value>, u64)> {
    snapshot.rows.iter().map(|row| (only(row).cloned(), row.count)).collect()
}

/// Eight seeks by known distances.
fn seek(guest: &DaemonGuest) -> Result<()> {
    let each = "for far in -100 -100 0 1 2 3 4 700; do workload seek /dev/null $far; done";
    guest.shell(each).map(drop)
}

fn only(row: &AggregationRow) -> Option<&Value> {
    row.keys.first()?.value.as_ref()
}

fn counts_are_exact(fixture: &Fixture) -> Result<()> {
    let Some(guest) = guest_that_counts(fixture)? else { return Ok(()) };
    guest.add("p:seek ksys_lseek far=%si:s64 small=%si:s32")?;
    guest.wait_for(guest.client.set_enabled("seek", false))??;
    guest.ctl_tells("hist seek --by far --filter 'smal > 1' --for 1s", &["did you mean `small`?"])?;
    let seeks = || seek(&guest);
    let ours = "COMM == \"workload\"";
    let exact = count(
        &guest,
        histogram("seek", vec![field("small", KeyScale::Unspecified, 0)], &["far"], ours),
        seeks,
    )?;
    let found: Vec<_> =
        exact.rows.iter().map(|row| (only(row).cloned(), row.count, row.sums.clone())).collect();
    let row = |key, count, sum| {
        (Some(Value::Signed(key)), count, vec![SumValue { value: Some(sum_value::Value::Signed(sum)) }])
    };
    let expected = [
        row(-100, 2, -200),
        row(0, 1, 0),
        row(1, 1, 1),
        row(2, 1, 2),
        row(3, 1, 3),
        row(4, 1, 4),
        row(700, 1, 700),
    ];
    ensure!(found == expected && exact.hits == 8, "{exact:?}");
    let log2 = count(&guest, histogram("seek", vec![field("far", KeyScale::Log2, 0)], &[], ours), seeks)?;
    let bucket = |first, last, count| (Some(Value::SignedBucket(SignedBucket { first, last })), count);
    let expected =
        [bucket(i64::MIN, -1, 2), bucket(0, 1, 2), bucket(2, 2, 1), bucket(3, 4, 2), bucket(513, 1024, 1)];
    ensure!(rows(&log2) == expected, "{log2:?}");
    let linear = count(&guest, histogram("seek", vec![field("far", KeyScale::Linear, 4)], &[], ours), seeks)?;
    let expected = [bucket(-100, -97, 2), bucket(0, 3, 4), bucket(4, 7, 1), bucket(700, 703, 1)];
    ensure!(rows(&linear) == expected, "{linear:?}");
    let comm = count(&guest, histogram("seek", vec![context(ContextKey::Comm)], &[], ""), seeks)?;
    let workload = comm.rows.iter().find(|row| only(row) == Some(&Value::Text("workload".to_owned())));
    ensure!(workload.is_some_and(|row| row.count == 8), "{comm:?}");
    // Nothing was written to a buffer.
    ensure!(guest.ledger_of("kprobes/seek")?.read == 0, "{:?}", guest.ledger_of("kprobes/seek")?);
    Ok(())
}

/// Tracepoints, with the same field in both.
fn events_of_the_host_are_counted(fixture: &Fixture) -> Result<()> {
    let Some(guest) = guest_that_counts(fixture)? else { return Ok(()) };
    let [enter, exit] = ["raw_syscalls/sys_enter", "raw_syscalls/sys_exit"];
    for event in [enter, exit] {
        guest.ctl(&format!("add {event} --disabled"))?;
    }
    let calls = || guest.workload(&["getppid", "500"]).map(drop);
    let ours = "id == 110 && COMM == \"workload\"";
    let by_id =
        count(&guest, histogram(enter, vec![field("id", KeyScale::Unspecified, 0)], &[], ours), calls)?;
    ensure!(rows(&by_id) == [(Some(Value::Signed(110)), 500)], "{by_id:?}");
    let latency = LatencySpec {
        start_probe: enter.to_owned(),
        end_probe: exit.to_owned(),
        match_field: "id".to_owned(),
        start_filter: ours.to_owned(),
        end_filter: ours.to_owned(),
        ..Default::default()
    };
    let spec = AggregationSpec { aggregation: Some(Kind::Latency(latency)) };
    let measured = count(&guest, spec, calls)?;
    ensure!(measured.starts == 500 && measured.hits == 500, "{measured:?}");
    let bad = histogram(enter, Vec::new(), &[], "nosuch == 1");
    ensure!(guest.wait_for(guest.client.create_aggregation("", bad, None))?.is_err());
    let stacks = histogram(enter, vec![context(ContextKey::Stack)], &[], ours);
    ensure!(count(&guest, stacks, calls)?.rows.iter().map(|row| row.count).sum::<u64>() == 500);
    ensure!(guest.ledger_of(enter)?.read == 0, "nothing was written to a buffer");
    Ok(())
}

fn latencies_of_known_sleeps(fixture: &Fixture) -> Result<()> {
    let Some(guest) = guest_that_counts(fixture)? else { return Ok(()) };
    guest.add("p:nap hrtimer_nanosleep")?;
    guest.add("r:woke hrtimer_nanosleep ret=$retval:s64")?;
    let spec = LatencySpec {
        start_probe: "nap".to_owned(),
        end_probe: "woke".to_owned(),
        bucket_ns: 100_000_000,
        keys: vec![ContextKey::Comm.into()],
        end_filter: "ret == 0 && COMM == \"sleep\"".to_owned(),
        ..Default::default()
    };
    let spec = AggregationSpec { aggregation: Some(Kind::Latency(spec)) };
    let read = count(&guest, spec, || guest.shell("sleep 0.11; sleep 0.32; sleep 0.11").map(drop))?;
    ensure!(read.hits == 3 && read.starts >= 3 && read.match_dropped == 0, "{read:?}");
    let sum = |row: &AggregationRow| match row.sums.first().and_then(|sum| sum.value) {
        Some(sum_value::Value::Unsigned(sum)) => sum,
        _ => 0,
    };
    let total: u64 = read.rows.iter().map(sum).sum();
    // A guest that is emulated on a busy machine wakes up late, never early.
    ensure!((540_000_000..5_000_000_000).contains(&total), "{read:?}");
    for row in &read.rows {
        let Some(Value::UnsignedBucket(bucket)) = only(row) else { anyhow::bail!("{row:?}") };
        ensure!(bucket.last - bucket.first == 99_999_999 && bucket.first >= 100_000_000, "{row:?}");
        let average = sum(row) / row.count;
        ensure!((bucket.first..=bucket.last).contains(&average), "{row:?}");
    }
    ensure!(guest.tracefs("synthetic_events")?.is_empty());
    Ok(())
}

fn stacks_begin_at_the_probe(fixture: &Fixture) -> Result<()> {
    let Some(guest) = guest_that_counts(fixture)? else { return Ok(()) };
    guest.add("p:seek ksys_lseek")?;
    let keys = vec![context(ContextKey::Stack), context(ContextKey::Comm)];
    let work = || guest.workload(&["seek", "/dev/null", "5"]).map(drop);
    let read = count(&guest, histogram("seek", keys, &[], "COMM == \"workload\""), work)?;
    let [row] = read.rows.as_slice() else { anyhow::bail!("{read:?}") };
    let Some(Value::Stack(stack)) = only(row) else { anyhow::bail!("{read:?}") };
    let functions: Vec<_> = stack.frames.iter().filter_map(|frame| frame.split('+').next()).collect();
    ensure!(functions.first() == Some(&"ksys_lseek"), "{functions:?}");
    ensure!(functions.contains(&"do_syscall_64") && row.count == 1, "{functions:?}");
    Ok(())
}

/// An instruction inside of a function at which the kernel arms a probe by a jump: it cannot follow the stack from
/// there.
fn stack_of_a_jump(guest: &DaemonGuest) -> Result<()> {
    let place = guest.place_of_jump("ksys_lseek")?;
    guest.add(&format!("p:inside ksys_lseek+{place}"))?;
    guest.until("the jump", || {
        let armed = guest.shell("cat /sys/kernel/debug/kprobes/list")?;
        Ok(armed.lines().any(|line| line.contains("ksys_lseek+") && line.contains("[OPTIMIZED]")))
    })?;
    let spec = histogram("inside", vec![context(ContextKey::Stack)], &[], "COMM == \"workload\"");
    let made = guest.wait_for(guest.client.create_aggregation("", spec.clone(), None))??;
    ensure!(made.warnings.iter().any(|warning| warning.code == "INCOMPLETE_STACKS"), "{made:?}");
    guest.wait_for(guest.client.delete_aggregation(&made.name))??;
    let read = count(guest, spec, || guest.workload(&["seek", "/dev/null", "5"]).map(drop))?;
    let [row] = read.rows.as_slice() else { anyhow::bail!("{read:?}") };
    let Some(Value::Stack(stack)) = only(row) else { anyhow::bail!("{read:?}") };
    let first = format!("ksys_lseek+{place:#x}");
    ensure!(stack.incomplete && stack.frames.first() == Some(&first), "{stack:?}");
    let folded = counted_by(guest, "stacks inside --folded --filter 'COMM == \"workload\"'", || {
        guest.workload(&["seek", "/dev/null", "5"]).map(drop)
    })?;
    ensure!(folded.contains(";[missing];ksys_lseek 1"), "{folded}");
    guest.delete("inside").map(drop)
}

/// A seek's distance is the address that the probe reads: one that can be read, and one that cannot.
fn what_was_not_read_is_counted_apart(fixture: &Fixture) -> Result<()> {
    let Some(guest) = guest_that_counts(fixture)? else { return Ok(()) };
    let banner = guest.shell("awk '$3 == \"linux_banner\" { print $1 }' /proc/kallsyms")?;
    let readable = u64::from_str_radix(banner.trim(), 16)?.cast_signed().to_string();
    guest.add("p:seek ksys_lseek v=+0(%si):u64 t=+0(%si):string deep=+0(+0(%si)):string n=%si:u64")?;
    let seeks = || {
        for distance in [&readable, "16", &readable, "32", "48"] {
            guest.workload(&["seek", "/dev/null", distance])?;
        }
        Ok(())
    };
    let ours = "COMM == \"workload\"";
    let linux = u64::from_le_bytes(*b"Linux ve");
    let by = |key: &str, sums: &[&str], filter: &str| {
        let keys = vec![field(key, KeyScale::Unspecified, 0)];
        let filter = if filter.is_empty() { ours.to_owned() } else { format!("{ours} && {filter}") };
        count(&guest, histogram("seek", keys, sums, &filter), seeks)
    };
    let v = by("v", &[], "")?;
    ensure!(rows(&v) == [(Some(Value::Unsigned(linux)), 2)] && (v.hits, v.unread) == (2, Some(3)), "{v:?}");
    let t = by("t", &[], "")?;
    let [row] = t.rows.as_slice() else { anyhow::bail!("{t:?}") };
    let Some(Value::Text(text)) = only(row) else { anyhow::bail!("{t:?}") };
    ensure!(text.starts_with("Linux version") && (row.count, t.unread) == (2, Some(3)), "{t:?}");
    // The text is nowhere, or its pointer cannot be read.
    let deep = by("deep", &[], "")?;
    ensure!(deep.rows.is_empty() && (deep.hits, deep.unread) == (0, Some(5)), "{deep:?}");
    let sum = by("n", &["v"], "")?;
    ensure!(sum.hits == 2 && sum.unread == Some(3), "{sum:?}");
    // Neither a comparison nor its opposite holds.
    for (filter, hits) in
        [("v != 7", 2), ("v == 7", 0), ("!(v == 7)", 2), ("t != \"x\"", 2), ("(v == 7 || n == 16)", 1)]
    {
        let filtered = by("n", &[], filter)?;
        ensure!(filtered.hits == hits, "{filter}: {filtered:?}");
    }
    // The same holds for the filter of the probe itself, which is shown as it was written.
    for (filter, shown) in [("v != 7", 2), ("t != \"x\"", 2), ("!(v == 7) || n == 16", 3)] {
        let filter = format!("{ours} && ({filter})");
        let probe = guest.wait_for(guest.client.set_filter("seek", &filter))??;
        ensure!(probe.filter == filter && probe.state() == ProbeState::Armed, "{probe:?}");
        let before = guest.ledger_of("kprobes/seek")?.read;
        seeks()?;
        guest.until("the events", || Ok(guest.ledger_of("kprobes/seek")?.read >= before + shown))?;
        let read = guest.ledger_of("kprobes/seek")?.read - before;
        ensure!(read == shown, "{filter}: {read}");
    }
    guest.delete("seek")?;
    stack_of_a_jump(&guest)
}

/// An aggregation of `vfs_read` by task, with or without the daemon's own threads.
fn reads(include_self: bool) -> AggregationSpec {
    let spec = HistogramSpec {
        probe: "reads".to_owned(),
        keys: vec![context(ContextKey::Comm)],
        include_self,
        ..Default::default()
    };
    AggregationSpec { aggregation: Some(Kind::Histogram(spec)) }
}

/// Counts of the tasks whose name begins with that.
fn of_tasks(snapshot: &AggregationSnapshot, prefix: &str) -> u64 {
    let is_of = |row: &&AggregationRow| match only(row) {
        Some(Value::Text(comm)) => comm.starts_with(prefix),
        _ => false,
    };
    snapshot.rows.iter().filter(is_of).map(|row| row.count).sum()
}

/// The daemon reads its ledger, which hits the probe in its threads, while another process reads so
/// and so often. Both aggregations count the same hits of the other process; those of the daemon
/// are rows of the one, and the term `own` of the other.
fn own_threads_are_left_out_and_counted(fixture: &Fixture) -> Result<()> {
    let Some(guest) = guest_that_counts(fixture)? else { return Ok(()) };
    guest.add("p:reads vfs_read")?;
    guest.wait_for(guest.client.set_enabled("reads", false))??;
    let create = |name: &str, include_self| -> Result<()> {
        guest.wait_for(guest.client.create_aggregation(name, reads(include_self), None))??;
        Ok(())
    };
    create("without", false)?;
    create("with", true)?;
    let read = |name: &str| -> Result<AggregationSnapshot> {
        Ok(guest.wait_for(guest.client.read_aggregation(name))??.1)
    };
    // Each look is itself a hit of the daemon, so that the difference of both counts, which is the same
    // at all times, is known to lie between two numbers.
    let difference = || -> Result<(u64, u64, u64)> {
        let own = |snapshot: &AggregationSnapshot| snapshot.own.context("no term `own`");
        let (before, with, after) = (read("without")?, read("with")?, read("without")?);
        ensure!(with.own.is_none() && of_tasks(&after, "kprobed") == 0, "{with:?} {after:?}");
        let rows = of_tasks(&with, "kprobed");
        Ok((own(&before)?.saturating_sub(rows), own(&after)?.saturating_sub(rows), rows))
    };
    let (least, most, rows_before) = difference()?;
    // Checks of a stream run on threads that are started for them.
    for _ in 0..20 {
        let said = guest.ctl_fed("check -f -", "p:x vfs_read\n")?;
        ensure!(said.code == 0, "{said:?}");
    }
    for _ in 0..40 {
        guest.ledger_of("kprobes/reads")?;
    }
    guest.shell("dd if=/dev/zero of=/dev/null bs=1 count=1234 2> /dev/null")?;
    let (least_now, most_now, rows_now) = difference()?;
    ensure!(rows_now - rows_before > 20 * (most - least).max(1), "{rows_before} {rows_now} {least} {most}");
    ensure!(
        least.max(least_now) <= most.min(most_now),
        "`own` is not what its threads did: {least} to {most}, then {least_now} to {most_now}"
    );
    let (without, with) = (read("without")?, read("with")?);
    ensure!(of_tasks(&without, "dd") == of_tasks(&with, "dd"), "{without:?} {with:?}");
    ensure!((1234..1300).contains(&of_tasks(&without, "dd")), "{without:?}");
    // No thread has another name, by which it would be missed.
    let names = guest.shell("cat /proc/$(pidof kprobed)/task/*/comm")?;
    ensure!(names.lines().count() > 5 && names.lines().all(|name| name.starts_with("kprobed")), "{names}");
    for name in ["without", "with"] {
        guest.wait_for(guest.client.delete_aggregation(name))??;
    }

    let work = || {
        guest.ctl("ledger")?;
        guest.shell("dd if=/dev/zero of=/dev/null bs=1 count=100 2> /dev/null").map(drop)
    };
    let shown = counted_by(&guest, "hist reads --by comm", work)?;
    ensure!(
        !shown.contains("kprobed-") && shown.contains("by kprobed's own threads are left out"),
        "{shown}"
    );
    let shown = counted_by(&guest, "hist reads --by comm --include-self", work)?;
    ensure!(shown.contains("kprobed-control") && !shown.contains("are left out"), "{shown}");
    guest.delete("reads").map(drop)
}

fn a_counted_probe_stays(fixture: &Fixture) -> Result<()> {
    let Some(guest) = guest_that_counts(fixture)? else { return Ok(()) };
    guest.add("p:calls __x64_sys_getppid")?;
    let spec = || histogram("calls", Vec::new(), &[], "COMM == \"workload\"");
    let mut stream = guest.wait_for(guest.client.stream_aggregation(
        Source::Spec(spec()),
        Duration::from_millis(200),
        false,
    ))??;
    let refused = guest.delete("calls").err().context("a counted probe was deleted")?;
    ensure!(refused.to_string().contains("is counted by the aggregation"), "{refused:?}");
    guest.workload(&["getppid", "1000"])?;
    let snapshot = loop {
        let snapshot = guest.wait_for(stream.next())??.context("the stream has ended")?;
        // Earlier ones may have been taken in the middle of it.
        if snapshot.hits >= 1000 {
            break snapshot;
        }
    };
    ensure!(snapshot.hits == 1000 && snapshot.rows.len() == 1, "{snapshot:?}");
    // The aggregation goes with its stream.
    drop(stream);
    guest.until("its end", || Ok(guest.wait_for(guest.client.list_aggregations())??.is_empty()))?;
    guest.delete("calls").map(drop)
}

/// Another program takes the trigger away, without which the kernel keeps the event, and then the event.
fn an_aggregation_ends_with_its_event_and_says_why(fixture: &Fixture) -> Result<()> {
    let Some(guest) = guest_that_counts(fixture)? else { return Ok(()) };
    guest.add("p:calls __x64_sys_getppid")?;
    let spec = histogram("calls", Vec::new(), &[], "COMM == \"workload\"");
    let source = Source::Spec(spec);
    // Long enough that the event is made anew before the next reading, which finds no table.
    let interval = Duration::from_secs(15);
    let mut stream = guest.wait_for(guest.client.stream_aggregation(source, interval, false))??;
    let instance = guest.instance()?;
    guest.shell(&format!(
        "cd /sys/kernel/tracing; t=instances/kprobed-aggregation/events/kprobes/calls/trigger; \
         grep -v '^#' $t | sed 's/ .active.$//; s/^/!/' > /tmp/triggers; \
         while read -r line; do echo \"$line\" >> $t; done < /tmp/triggers; \
         echo 0 > {instance}/events/kprobes/calls/enable; echo '-:kprobes/calls' >> kprobe_events",
    ))?;
    guest.ctl_says("doctor --repair")?;
    guest.until("it is made anew", || Ok(guest.probe("calls")?.state() == ProbeState::Armed))?;
    let why = loop {
        match guest.wait_for(stream.next())? {
            Ok(Some(_)) => {}
            Ok(None) => break "the stream ended without a reason".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    ensure!(why.contains("has ended: another program has removed the event"), "{why}");
    guest.ctl_shows("audit", &["which is made again"])?;
    ensure!(guest.wait_for(guest.client.list_aggregations())??.is_empty());
    no_instance_is_left(&guest)?;
    guest.delete("calls").map(drop)
}

fn a_killed_daemon_leaves_nothing(fixture: &Fixture) -> Result<()> {
    let Some(mut guest) = guest_that_counts(fixture)? else { return Ok(()) };
    guest.add("p:nap hrtimer_nanosleep")?;
    guest.add("r:woke hrtimer_nanosleep ret=$retval:s64")?;
    guest.shell("echo 'somebodys_event u64 x' >> /sys/kernel/tracing/synthetic_events")?;
    let latency =
        LatencySpec { start_probe: "nap".to_owned(), end_probe: "woke".to_owned(), ..Default::default() };
    let spec = AggregationSpec { aggregation: Some(Kind::Latency(latency)) };
    guest.wait_for(guest.client.create_aggregation("naps", spec, None))??;
    guest.wait_for(guest.client.create_aggregation("all", histogram("nap", Vec::new(), &[], ""), None))??;
    guest.kill()?;
    ensure!(guest.shell("ls /sys/kernel/tracing/instances")?.contains("kprobed-aggregation"));
    guest.restart(daemon::DEFAULT_CONFIG)?;
    let instances = guest.shell("ls /sys/kernel/tracing/instances")?;
    ensure!(["kprobed\n", "kprobed-next\n"].contains(&instances.as_str()), "{instances}{}", guest.log());
    ensure!(guest.tracefs("synthetic_events")?.starts_with("somebodys_event"));
    ensure!(guest.tracefs("synthetic_events")?.lines().count() == 1);
    ensure!(guest.wait_for(guest.client.list_aggregations())??.is_empty());
    guest.shell("echo '!somebodys_event u64 x' >> /sys/kernel/tracing/synthetic_events")?;
    guest.delete("nap")?;
    guest.delete("woke")?;
    Ok(())
}

/// What commands say that count.
const COUNTS: &str = "until Ctrl-C";

/// Counts with a command while a shell does its work, and ends it as Ctrl-C does. What it has
/// printed.
fn counted_by(guest: &DaemonGuest, command: &str, work: impl Fn() -> Result<()>) -> Result<String> {
    let mut counting = guest.start_ctl_until(command, COUNTS)?;
    work()?;
    let said = counting.end_by_interrupt()?;
    no_instance_is_left(guest)?;
    Ok(said.stdout)
}

/// Nothing of a command is left: no probe, no aggregation, no event in the kernel.
fn nothing_is_left(guest: &DaemonGuest) -> Result<()> {
    let gone = || -> Result<bool> {
        let probes = guest.ctl("list --no-headers")?;
        let counted = guest.wait_for(guest.client.list_aggregations())??;
        Ok(probes.is_empty() && counted.is_empty() && guest.tracefs("kprobe_events")?.is_empty())
    };
    guest.until("nothing is left", gone).map(drop)
}

/// Functions and definitions that no probe has: the commands define them, count, and take them away.
fn functions_are_counted_without_a_probe(fixture: &Fixture) -> Result<()> {
    let Some(guest) = guest_that_counts(fixture)? else { return Ok(()) };
    let seek = || seek(&guest);
    let ours = "'COMM == \"workload\"'";
    let latency = counted_by(&guest, &format!("latency ksys_lseek --end-filter {ours} -o json"), seek)?;
    let read: serde_json::Value = serde_json::from_str(&latency).with_context(|| latency.clone())?;
    ensure!(read["hits"] == "8" && read["match_dropped"] == "0", "{read}");
    nothing_is_left(&guest)?;
    let defined = format!("hist 'p ksys_lseek far=%si:s64' --by far.log2 --filter {ours}");
    let drawn = counted_by(&guest, &defined, seek)?;
    ensure!(drawn.contains("(512, 1K]") && drawn.contains("8 hits, 0 dropped, 5 rows"), "{drawn}");
    nothing_is_left(&guest)?;
    let folded = counted_by(&guest, &format!("stacks ksys_lseek --filter {ours} --folded"), seek)?;
    ensure!(!folded.is_empty() && folded.lines().all(|line| line.contains(";ksys_lseek ")), "{folded}");
    nothing_is_left(&guest)?;

    // For a time, and the whole function.
    guest.ctl_shows("latency vfs_read --for 1s", &[" measured, ", " 0 not matched"])?;
    nothing_is_left(&guest)?;

    // A command that is killed in the middle leaves nothing either.
    for command in ["latency ksys_lseek", "hist ksys_lseek", "stacks ksys_lseek"] {
        drop(guest.start_ctl_until(command, COUNTS)?);
        nothing_is_left(&guest)?;
    }
    let kept = guest.ctl_says("hist ksys_lseek --keep seeks")?;
    ensure!(kept.code == 1 && kept.stderr.contains("kprobectl add --disabled 'NAME=ksys_lseek'"), "{kept:?}");
    nothing_is_left(&guest)?;
    hits_of_functions(&guest)
}

/// How often functions were hit, without an event that is recorded.
fn hits_of_functions(guest: &DaemonGuest) -> Result<()> {
    let read = guest.ledger()?.buffers.iter().map(|buffer| buffer.read).sum::<u64>();
    // Called by nothing else in the guest.
    let mut counting = guest.start_ctl_until("hits __x64_sys_getsid --for 3s -o json", "counting 1 probe")?;
    guest.call(2_000_000, 100)?;
    let said = counting.end()?;
    let row: serde_json::Value = serde_json::from_str(&said.stdout).with_context(|| format!("{said:?}"))?;
    ensure!(row["hits"] == "100" && row["nmissed"] == "0", "{said:?}");
    let rate = row["hits_per_second"].as_f64().context("no rate")?;
    ensure!((1.0..40.0).contains(&rate), "{said:?}");
    nothing_is_left(guest)?;
    let top = guest.ctl("hits --top 5 'vfs_*' --for 1s")?;
    let rows: Vec<&str> = top.lines().skip(1).collect();
    ensure!(rows.len() == 5 && rows.iter().all(|row| row.starts_with("vfs_")), "{top}");
    nothing_is_left(guest)?;
    // Many, and a command that is killed while it counts them.
    let begun = std::time::Instant::now();
    let many = effort::pick("__x64_sys_s*", "__x64_sys_*");
    let counting = guest.start_ctl_until(&format!("hits --top 5 '{many}' --for 60s --yes"), "counting ")?;
    let ready = begun.elapsed();
    progress::note(format_args!("{} in {ready:?}", counting.printed()?.trim()));
    drop(counting);
    nothing_is_left(guest)?;
    let after = guest.ledger()?.buffers.iter().map(|buffer| buffer.read).sum::<u64>();
    ensure!(after == read, "{} events were recorded", after - read);
    Ok(())
}

/// An error, a port, the lower half of a word, flags: as the text of an event has them.
fn keys_are_shown_as_people_write_them(fixture: &Fixture) -> Result<()> {
    let Some(guest) = guest_that_counts(fixture)? else { return Ok(()) };
    let of = |comm: &str| format!("--filter 'COMM == \"{comm}\"'");
    let work = || {
        guest.workload(&["open", "/tmp/nosuch", "0", "0", "3"])?;
        guest.shell("wget -q -O- http://127.0.0.1:9/ || true").map(drop)
    };
    for (what, comm, expected) in [
        ("do_sys_openat2%return --by retval", "workload", "-2 (ENOENT)  "),
        ("syscalls/sys_enter_openat --by dfd", "workload", "-100  "),
        ("syscalls/sys_enter_openat --by flags", "workload", "0x80000 (O_RDONLY|O_CLOEXEC)  "),
        ("'p tcp_connect sk->__sk_common.skc_dport' --by skc_dport", "wget", "9  "),
    ] {
        let table = counted_by(&guest, &format!("hist {what} {}", of(comm)), work)?;
        let is_row = |line: &str| line.trim_start().starts_with(expected);
        ensure!(table.lines().any(is_row), "{what}: no row {expected}\n{table}");
    }
    let ranges =
        guest.ctl_says("hist 'p tcp_connect sk->__sk_common.skc_dport' --by skc_dport.log2 --for 1s")?;
    ensure!(ranges.code != 0 && ranges.stderr.contains("it is recorded in network order"), "{ranges:?}");
    Ok(())
}

fn commands_show_what_was_counted(fixture: &Fixture) -> Result<()> {
    let Some(guest) = guest_that_counts(fixture)? else { return Ok(()) };
    guest.add("p:seek ksys_lseek far=%si:s64")?;
    guest.add("p:nap hrtimer_nanosleep")?;
    guest.add("r:woke hrtimer_nanosleep ret=$retval:s64")?;
    let seek = || seek(&guest);
    let ours = "--filter 'COMM == \"workload\"'";
    let json = |command: &str, work: &dyn Fn() -> Result<()>| -> Result<serde_json::Value> {
        let printed = counted_by(&guest, command, work)?;
        serde_json::from_str(&printed).with_context(|| printed.clone())
    };

    // Each call is in the histogram once, below its own power of two.
    let read = json(&format!("hist seek --by far.log2 --sum far {ours} -o json"), &seek)?;
    ensure!(read["hits"] == "8" && read["dropped"] == "0" && read["last"] == true, "{read}");
    let rows = read["rows"].as_array().context("no rows")?;
    // 64-bit numbers are text.
    let number = |value: &serde_json::Value| value.as_str().and_then(|text| text.parse::<i64>().ok());
    let count = |row: &serde_json::Value| number(&row["count"]).unwrap_or_default();
    ensure!(rows.iter().map(count).sum::<i64>() == 8, "{read}");
    let row = |last: i64| {
        let is_it = |row: &&serde_json::Value| number(&row["keys"][0]["signed_bucket"]["last"]) == Some(last);
        rows.iter().find(is_it).map(count)
    };
    ensure!([-1, 1, 2, 4, 1024].map(row) == [Some(2), Some(2), Some(1), Some(2), Some(1)], "{read}");
    // Signed or unsigned.
    let sum = |row: &serde_json::Value| {
        row["sums"][0].as_object().and_then(|sum| number(sum.values().next()?)).unwrap_or_default()
    };
    ensure!(rows.iter().map(sum).sum::<i64>() == 510, "{read}");
    let drawn = counted_by(&guest, &format!("hist seek --by far.log2 {ours}"), seek)?;
    ensure!(drawn.contains("(512, 1K]") && drawn.contains("8 hits, 0 dropped, 5 rows"), "{drawn}");
    ensure!(drawn.contains("p50 in [0, 1],") && drawn.contains("greatest in (512, 1K]"), "{drawn}");
    let table = counted_by(&guest, &format!("hist seek --by comm {ours}"), seek)?;
    ensure!(table.contains("workload") && table.contains("8 hits, 0 dropped, 1 row"), "{table}");

    // Flame graphs begin at the outermost function, and end at the probe.
    let folded = counted_by(&guest, &format!("stacks seek {ours} --folded"), seek)?;
    let counts = folded.lines().map(|line| {
        let (stack, count) = line.rsplit_once(' ').context("no count")?;
        ensure!(stack.ends_with(";ksys_lseek") && stack.contains("do_syscall_64;"), "{line}");
        Ok(count.parse::<u64>()?)
    });
    ensure!(counts.sum::<Result<u64>>()? == 8, "{folded}");

    // Who sleeps for 0.11 s has slept for 0.11 s, or a little more. The shell sleeps too, under
    // another name.
    let slept = "latency nap woke --by comm --end-filter 'ret == 0 && COMM == \"workload\"' -o json";
    let sleep = || guest.workload(&["numbers", "1", "2", "--pause-us", "110000"]).map(drop);
    let read = json(slept, &sleep)?;
    ensure!(read["hits"] == "2" && read["match_dropped"] == "0", "{read}");
    let total = read["rows"].as_array().into_iter().flatten().map(sum).sum::<i64>();
    ensure!((220_000_000..5_000_000_000).contains(&total), "{read}");

    // An aggregation that is kept goes on counting after the command has ended, until it is
    // removed.
    ensure!(guest.ctl(&format!("hist seek --keep seeks {ours}"))? == "seeks\n");
    seek()?;
    ensure!(guest.ctl("aggregations")?.contains("kprobes/seek"));
    guest.ctl_shows("aggregations read seeks", &["8 hits, 0 dropped"])?;
    let deleted = guest.ctl("aggregations delete seeks")?;
    ensure!(deleted == "seeks hits=8 dropped=0\n", "{deleted}");

    // A command that is killed leaves nothing in the kernel.
    drop(guest.start_ctl_until("hist seek", COUNTS)?);
    guest.until("its end", || Ok(guest.wait_for(guest.client.list_aggregations())??.is_empty()))?;
    ["seek", "nap", "woke"].iter().try_for_each(|probe| guest.delete(probe).map(drop))
}
