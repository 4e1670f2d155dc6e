//! `kprobectl hits`: hits and skipped runs of probes, now and in the past, and the processor time that they take.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, SystemTime};

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use kprobed_client::Client;
use kprobed_client::api::{
    CreateProbeRequest, HitProfile, ListHitsRequest, ListProbesRequest, Probe, ProbeKind, ProbeState,
};

use super::connection::connect;
use super::counting::is_probe;
use super::definitions::definitions;
use super::observe::{NO_EVENT, TemporaryProbes};
use super::probe_selection::glob_of_names;
use super::stop_condition::StopCondition;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{
    Cell, Chart, Column, MessageRow, Output, ProbeCost, counted, hits_of_others, one_line, own_hits,
    to_proto_time,
};
use crate::quantity::{duration, point_in_time, step};

/// The usual length of an interval: the shortest that the daemon keeps. Costs are of the last one.
const STEP_S: u32 = 60;

/// Arguments of `hits`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/hits.txt"))]
pub(crate) struct Arguments {
    /// Only probes whose names match (`*`, `?`); with --for also functions [default: all probes]
    glob: Option<String>,
    /// Count for this time, and show the rates
    #[arg(long = "for", alias = "duration", value_name = "DURATION", value_parser = duration, conflicts_with_all = ["step", "since", "until", "cost"])]
    pub(crate) duration: Option<Duration>,
    /// Show only the N that were hit most often, the most frequent first [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["since", "until", "cost"])]
    top: Option<u32>,
    /// Only probes whose current labels match, as for `list` [default: all]
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    selector: String,
    /// Count the hits by kprobed's own threads like others
    #[arg(long, conflicts_with_all = ["step", "since", "until"])]
    include_self: bool,
    /// Show the processor time that probes take
    #[arg(long, conflicts_with_all = ["include_self", "step", "since", "until"])]
    pub(crate) cost: bool,
    /// Length of an interval in whole seconds, such as `5m` or `1d`; needs --since [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = step, requires = "since")]
    step: Option<u32>,
    /// Show hits over time since then: how long ago (`10m`), a time of day (`07:00`), or a date with
    /// a time [default: the current counts]
    #[arg(long, value_name = "TIME", value_parser = point_in_time)]
    since: Option<Timestamp>,
    /// The time until then, in the same forms [default: now]
    #[arg(long, value_name = "TIME", value_parser = point_in_time, requires = "since")]
    until: Option<Timestamp>,
}

impl Arguments {
    /// Whether it may define temporary probes.
    pub(crate) fn may_define(&self) -> bool {
        self.duration.is_some()
            && self.selector.is_empty()
            && self.glob.as_deref().is_some_and(is_of_functions)
    }
}

/// Whether a word can mean functions: names of probes have a slash when they are not alone.
fn is_of_functions(word: &str) -> bool {
    !word.trim().is_empty() && (word.contains(char::is_whitespace) || !word.contains('/'))
}

impl MessageRow for HitProfile {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("PROBE", |profile| Cell::text(&profile.probe)),
        Column::new("HITS", |profile| Cell::number(hits_of_others(profile))),
        Column::optional("OWN", own_hits),
        Column::optional("NMISSED", |profile| Cell::number(profile.nmissed)),
        Column::wide("PROBE UID", |profile| Cell::text(profile.probe_uid.to_string())),
        Column::wide("BOOT ID", |profile| Cell::text(&profile.boot_id)),
        Column::wide("TIME", |profile| Cell::time(profile.time.as_ref())),
    ];
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    if let Some(duration) = arguments.duration {
        return count(global, arguments, duration, output).await;
    }
    let client = connect(global).await?;
    let name_glob = glob_of_names(arguments.glob.as_deref().unwrap_or_default());
    let label_selector = arguments.selector.clone();
    let hits = ListHitsRequest { name_glob, label_selector, ..Default::default() };
    if let Some(since) = arguments.since {
        return rates(&client, &arguments, hits, since, output).await;
    }
    let probes = probes_of(&hits);
    if arguments.cost {
        return costs(&client, probes, hits, output).await;
    }
    let hits = ListHitsRequest { with_own: !arguments.include_self, ..hits };
    let (mut profiles, mut events) =
        tokio::try_join!(client.select_hits(hits), client.select_probes(probes))?;
    events.retain(|probe| probe.kind() == ProbeKind::Event);
    if let Some(top) = arguments.top {
        profiles.sort_by_key(|profile| Reverse(hits_of_others(profile)));
        cut(&mut profiles, top, hits_of_others, output);
    }
    output.rows(&profiles)?;
    note_unknown_own(profiles.iter().map(|profile| profile.own_unknown.as_str()), output);
    if let Some(first) = events.first() {
        output.remark(&format!(
            "the kernel does not count hits of events such as `{}`: `kprobectl ledger` shows what was recorded of them",
            first.name
        ));
    } else if profiles.is_empty() {
        output.remark("no probe matches: `kprobectl list` shows all");
    }
    Ok(Exit::Success)
}

/// The request for hits of the last time, in intervals of so many seconds.
pub(super) fn hits_of_last(time: Duration, step_seconds: u32, name_glob: &str) -> ListHitsRequest {
    let since = Timestamp::now().checked_sub(time).unwrap_or(Timestamp::UNIX_EPOCH);
    ListHitsRequest {
        name_glob: name_glob.to_owned(),
        start_time: Some(to_proto_time(since)),
        step_seconds,
        ..Default::default()
    }
}

/// The request for the probes of which another one asks the hits.
fn probes_of(hits: &ListHitsRequest) -> ListProbesRequest {
    let ListHitsRequest { name_glob, label_selector, .. } = hits.clone();
    ListProbesRequest { name_glob, label_selector, ..Default::default() }
}

/// Says why hits by kprobed's own threads are not known, each reason once.
#[expect(single_use_lifetimes, reason = "`impl Trait` needs a name for it")]
fn note_unknown_own<'a>(reasons: impl Iterator<Item = &'a str>, output: &mut Output) {
    let reasons: BTreeSet<_> = reasons.filter(|reason| !reason.is_empty()).collect();
    for reason in reasons {
        output.remark(&format!("`?`: HITS includes those by kprobed's own threads: {reason}"));
    }
}

/// Keeps the first rows, and says how many more there are.
fn cut<T>(rows: &mut Vec<T>, top: u32, hits: impl Fn(&T) -> u64, output: &mut Output) {
    let rest = rows.split_off(rows.len().min(usize::try_from(top).unwrap_or(usize::MAX)));
    if !rest.is_empty() {
        let hits: u64 = rest.iter().map(hits).sum();
        let probes = if rest.len() == 1 { "probe has" } else { "probes have" };
        output.remark(&format!("{} more {probes} {hits} hits together: `--top` hides them", rest.len()));
    }
}

/// Counts hits for some time, or until a signal, and shows what was counted until then.
async fn count(
    global: &Global,
    arguments: Arguments,
    duration: Duration,
    output: &mut Output,
) -> Result<Exit, Failure> {
    if global.client.is_some() {
        // The command that asks several hosts waits for signals.
        let counting = Box::pin(Counting::begin(global, &arguments, duration, output)).await?;
        tokio::time::sleep(duration).await;
        counting.end(arguments.top, output).await?;
        return Ok(Exit::Success);
    }
    let left = arguments
        .may_define()
        .then_some("the daemon deletes what this command has defined: `kprobectl list` shows the probes");
    let mut stop = StopCondition::new()?;
    let begun = Box::pin(Counting::begin(global, &arguments, duration, output));
    let counting = stop.unless_stopped(begun, left).await?;
    stop.begin(Some(duration));
    let reason = stop.wait().await;
    stop.begin(None);
    // A second signal stops the wait.
    stop.unless_stopped(Box::pin(counting.end(arguments.top, output)), left).await?;
    Ok(reason.exit(true))
}

/// Hits that are being counted: of probes that exist, or of temporary ones.
struct Counting {
    client: Client,
    temporary: Option<TemporaryProbes>,
    hits: ListHitsRequest,
    before: Vec<HitProfile>,
}

impl Counting {
    async fn begin(
        global: &Global,
        arguments: &Arguments,
        duration: Duration,
        output: &mut Output,
    ) -> Result<Self, Failure> {
        let client = connect(global).await?;
        let word = arguments.glob.clone().unwrap_or_default();
        let temporary = if arguments.may_define() && !is_probe(&client, word.trim()).await? {
            let form = CreateProbeRequest {
                enabled: true,
                filter: NO_EVENT.to_owned(),
                ..CreateProbeRequest::default()
            };
            let words = std::slice::from_ref(&word);
            let lines = definitions(&client, &global.lines, words, global.yes, output).await?.lines;
            Some(TemporaryProbes::define(&client, lines, &form, output).await?)
        } else {
            None
        };
        let name_glob = if temporary.is_some() { String::new() } else { glob_of_names(&word) };
        let with_own = temporary.is_none() && !arguments.include_self;
        let label_selector = arguments.selector.clone();
        let hits = ListHitsRequest { name_glob, label_selector, with_own, ..Default::default() };
        let before = client.select_hits(hits.clone()).await?;
        if let Some(temporary) = &temporary {
            let count = counted(temporary.probes().len(), "probe");
            output.note(&format!("counting {count} for {duration:?}"));
        }
        Ok(Self { client, temporary, hits, before })
    }

    /// Shows what was counted, and deletes what was defined for it.
    async fn end(self, top: Option<u32>, output: &mut Output) -> Result<(), Failure> {
        let Self { client, temporary, hits, before } = self;
        let probes = probes_of(&hits);
        let after = client.select_hits(hits).await?;
        let mut probes = client.select_probes(probes).await?;
        if let Some(temporary) = &temporary {
            let own: HashSet<_> = temporary.probes().iter().map(|probe| probe.uid).collect();
            probes.retain(|probe| own.contains(&probe.uid));
            // If this fails, the daemon deletes them when the command has ended.
            temporary.delete().await.ok();
        }
        for probe in probes.iter().filter(|probe| probe.state() == ProbeState::Tripped) {
            let why = one_line(&probe.state_message);
            output.note(&format!(
                "the daemon has disarmed `{}`, and it was not counted to the end: {why}",
                probe.name
            ));
        }
        let mut rows = grown(probes, &before, &after, temporary.is_some());
        rows.sort_by_key(|row| Reverse(row.hits()));
        if let Some(top) = top {
            cut(&mut rows, top, ProbeCost::hits, output);
        }
        output.rows(&rows)?;
        note_unknown_own(rows.iter().map(ProbeCost::own_unknown), output);
        Ok(())
    }
}

/// What was counted between two readings, of the probes that are in both.
fn grown(
    probes: Vec<Probe>,
    before: &[HitProfile],
    after: &[HitProfile],
    is_temporary: bool,
) -> Vec<ProbeCost> {
    let by_uid = |profiles: &[HitProfile]| -> HashMap<i64, HitProfile> {
        profiles.iter().map(|profile| (profile.probe_uid, profile.clone())).collect()
    };
    let (before, after) = (by_uid(before), by_uid(after));
    let time = |profile: &HitProfile| SystemTime::try_from(profile.time?).ok();
    let counted = |probe: Probe| {
        let (then, now) = (before.get(&probe.uid)?, after.get(&probe.uid)?);
        let time = time(now)?.duration_since(time(then)?).ok()?;
        // One reading that does not know them says nothing about the time between both.
        let own = now.own.zip(then.own).map(|(now, then)| now.saturating_sub(then));
        let mut reasons = [now, then].into_iter().map(|reading| &reading.own_unknown);
        let reason = reasons.find(|reason| !reason.is_empty()).filter(|_| own.is_none());
        let counted = HitProfile {
            hits: now.hits.saturating_sub(then.hits),
            own,
            own_unknown: reason.cloned().unwrap_or_default(),
            nmissed: now.nmissed.saturating_sub(then.nmissed),
            ..HitProfile::default()
        };
        Some(ProbeCost::counted(probe, is_temporary, counted, time))
    };
    probes.into_iter().filter_map(counted).collect()
}

/// What probes take by their hits of the last time.
async fn costs(
    client: &Client,
    probes: ListProbesRequest,
    hits: ListHitsRequest,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let start = Timestamp::now() - SignedDuration::from_secs(STEP_S.into());
    let hits = ListHitsRequest { start_time: Some(to_proto_time(start)), step_seconds: STEP_S, ..hits };
    let (probes, rates) = tokio::try_join!(client.select_probes(probes), client.hits_over_time(hits))?;
    output.rows(&probes.into_iter().map(|probe| ProbeCost::new(probe, &rates)).collect::<Vec<_>>())?;
    Ok(Exit::Success)
}

/// Hits over time.
async fn rates(
    client: &Client,
    arguments: &Arguments,
    hits: ListHitsRequest,
    since: Timestamp,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let step = arguments.step.unwrap_or(STEP_S);
    let request = ListHitsRequest {
        start_time: Some(to_proto_time(since)),
        end_time: arguments.until.map(to_proto_time),
        step_seconds: step,
        ..hits
    };
    let rates = client.hits_over_time(request).await?;
    if rates.step_seconds > step {
        let kept = if rates.step_seconds.is_multiple_of(3600) { "hour" } else { "minute" };
        output.note(&format!(
            "the step is {} seconds: some of that time is kept by the {kept} only",
            rates.step_seconds
        ));
    }
    let end = arguments.until.unwrap_or_else(Timestamp::now);
    output.hits_over_time(rates, &Chart { start: since, end })?;
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_probes_have_a_slash_and_functions_have_none() {
        for functions in ["vfs_*", "vfs_read", "p:a/b vfs_read", "do_sys_openat2(int dfd)"] {
            assert!(is_of_functions(functions), "{functions}");
        }
        for probes in ["", " ", "kprobes/*", "*/open"] {
            assert!(!is_of_functions(probes), "{probes}");
        }
    }

    #[test]
    fn what_was_counted_is_the_difference_of_two_readings() {
        let profile = |probe_uid, seconds, hits, own, nmissed| HitProfile {
            probe_uid,
            time: Some(prost_types::Timestamp { seconds, nanos: 0 }),
            hits,
            own: Some(own),
            nmissed,
            ..HitProfile::default()
        };
        let probe = |uid| Probe { uid, name: format!("a/{uid}"), ..Probe::default() };
        let before = [profile(1, 10, 100, 10, 1), profile(2, 10, 5, 0, 0)];
        let after = [profile(1, 12, 160, 30, 5), profile(3, 12, 7, 0, 0)];
        let rows = grown(vec![probe(1), probe(2), probe(3)], &before, &after, false);
        // The others were not there all the time.
        assert_eq!(rows.iter().map(ProbeCost::hits).collect::<Vec<_>>(), [40]);
    }

    #[test]
    fn own_hits_are_left_out_only_if_both_readings_know_them() {
        let reading = |seconds, hits, own: Option<u64>| HitProfile {
            time: Some(prost_types::Timestamp { seconds, nanos: 0 }),
            hits,
            own,
            own_unknown: if own.is_none() { "the probe has a filter" } else { "" }.to_owned(),
            ..HitProfile::default()
        };
        for (then, now) in [(Some(30), None), (None, Some(30)), (None, None)] {
            let (before, after) = ([reading(10, 100, then)], [reading(12, 160, now)]);
            let rows = grown(vec![Probe::default()], &before, &after, false);
            let told: Vec<_> = rows.iter().map(|row| (row.hits(), row.own_unknown())).collect();
            assert_eq!(told, [(60, "the probe has a filter")], "{then:?} {now:?}");
        }
    }
}
