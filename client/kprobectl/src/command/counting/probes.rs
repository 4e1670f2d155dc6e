//! Probes of an aggregation on one host: those that exist, and temporary ones for everything else that was written.
//!
//! Owns that choice. A word that names a probe is that probe; anything else is a definition, as for `trace`, of a
//! probe that is defined disabled, counted, and deleted with the command.

use kprobed_client::api::aggregation_spec::Aggregation;
use kprobed_client::api::{AggregationSpec, CheckProbeResponse, CreateProbeRequest, LatencySpec, Verdict};
use kprobed_client::{Client, Error};

use crate::command::Failure;
use crate::command::definitions::{checked, definitions};
use crate::command::observe::TemporaryProbes;
use crate::command::probe_selection::glob_of_names;
use crate::lines::Lines;
use crate::output::Output;

/// Whether a word is the name of a probe that the daemon has. It may name several: then the daemon says so.
pub(in crate::command) async fn is_probe(client: &Client, word: &str) -> Result<bool, Error> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    if word.is_empty() || !word.chars().all(is_name) {
        return Ok(false);
    }
    Ok(!client.list_probes(&glob_of_names(word)).await?.is_empty())
}

/// What a specification names, as it was written, and the host has no probe of. `latency FUNCTION` has no second
/// name, and means a function always.
pub(super) async fn undefined(client: &Client, spec: &AggregationSpec) -> Result<Vec<String>, Failure> {
    let words = match &spec.aggregation {
        Some(Aggregation::Histogram(spec)) => vec![&spec.probe],
        Some(Aggregation::Latency(spec)) if spec.end_probe.is_empty() => {
            return Ok(ends(&spec.start_probe)?.to_vec());
        }
        Some(Aggregation::Latency(spec)) => vec![&spec.start_probe, &spec.end_probe],
        None => Vec::new(),
    };
    let mut undefined = Vec::new();
    for word in words {
        if !is_probe(client, word.trim()).await? {
            undefined.push(word.clone());
        }
    }
    Ok(undefined)
}

/// Defines the probes that a specification needs and the host does not have, and puts their names into it. None: the
/// host has them all.
pub(super) async fn define(
    client: &Client,
    lines: &Lines,
    spec: &mut AggregationSpec,
    output: &mut Output,
) -> Result<Option<TemporaryProbes>, Failure> {
    let undefined = undefined(client, spec).await?;
    if undefined.is_empty() {
        return Ok(None);
    }
    let mut defined = Vec::with_capacity(undefined.len());
    for word in possible(client, spec, &undefined).await? {
        let word = &word;
        let words = std::slice::from_ref(word);
        let meant = definitions(client, lines, words, true, output).await?.lines;
        let [line] = meant.as_slice() else { return Err(several(word, meant.len())) };
        defined.push(line.clone());
    }
    let temporary = TemporaryProbes::define(client, defined, &CreateProbeRequest::default(), output).await?;
    let mut names = temporary.probes().iter().map(|probe| probe.name.clone());
    let places = match &mut spec.aggregation {
        Some(Aggregation::Histogram(spec)) => vec![&mut spec.probe],
        Some(Aggregation::Latency(LatencySpec { start_probe, end_probe, .. })) => {
            vec![start_probe, end_probe]
        }
        None => Vec::new(),
    };
    let both_ends = undefined.len() == places.len();
    for place in places {
        if (both_ends || undefined.contains(place))
            && let Some(name) = names.next()
        {
            *place = name;
        }
    }
    Ok(Some(temporary))
}

/// The ends of a system call, for `latency` of a word that is not a function: the daemon knows what it means, and
/// why it has no ends. A function is counted without its parameters; one of a module that is not loaded is none.
async fn possible(
    client: &Client,
    spec: &AggregationSpec,
    undefined: &[String],
) -> Result<Vec<String>, Failure> {
    if let Some(Aggregation::Latency(LatencySpec { start_probe, end_probe, .. })) = &spec.aggregation
        && let (true, [entry, _]) = (end_probe.is_empty(), undefined)
        && !is_there(&checked(client, entry).await?)
    {
        let word = start_probe.trim();
        return Ok(vec![word.to_owned(), format!("{word}%return")]);
    }
    Ok(undefined.to_vec())
}

/// Whether a probe would be in the kernel now, and not only when a module is loaded.
fn is_there(check: &CheckProbeResponse) -> bool {
    let waits = check.diagnostics.iter().any(|found| found.code == "MODULE_ABSENT");
    check.verdict() == Verdict::Accepted && !waits
}

/// Refuses what can be no function, before any host is asked.
pub(super) fn judge(spec: &AggregationSpec) -> Result<(), Failure> {
    match &spec.aggregation {
        Some(Aggregation::Latency(spec)) if spec.end_probe.is_empty() => ends(&spec.start_probe).map(drop),
        _ => Ok(()),
    }
}

/// Entry and return of a function.
fn ends(function: &str) -> Result<[String; 2], Failure> {
    let function = function.trim();
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':');
    if function.is_empty() || !function.chars().all(is_name) {
        let message =
            format!("one argument is a function, from its entry to its return, and `{function}` is none");
        let hint = "write `kprobectl latency FUNCTION`, or START and END: two probes, or two definitions";
        return Err(Failure::usage(message, hint));
    }
    Ok([format!("p {function}"), format!("r {function}")])
}

/// A word that means several probes, where one is counted.
fn several(word: &str, probes: usize) -> Failure {
    Failure::refused(
        format!("`{word}` means {probes} probes, and this counts one"),
        &format!("`kprobectl hits --top 20 '{word}' --for 5s` counts how often each of them is hit"),
    )
}

/// Refuses to keep what needs probes that end with the command.
pub(super) fn not_kept(undefined: &[String]) -> Option<Failure> {
    let word = undefined.first()?;
    let lines = undefined.iter().zip(["NAME", "NAME_END"]);
    let lines: Vec<_> =
        lines.map(|(word, name)| format!("`kprobectl add --disabled '{}'`", named(word, name))).collect();
    let message =
        format!("`--keep` counts on when the command has ended, and `{word}` is not a probe that stays");
    Some(Failure::refused(message, &format!("define it first: {}", lines.join(" and "))))
}

/// What was written, with a name. A short form keeps its fields, and may be a system call: only `NAME=` goes with it.
/// An event has its own name, and so may a definition.
fn named(word: &str, name: &str) -> String {
    let is_short = |word: &str| !word.contains([':', ' ', '(', '/']);
    match (word.strip_prefix("p "), word.strip_prefix("r ")) {
        (Some(rest), _) if is_short(rest) => format!("{name}={rest}"),
        (Some(rest), _) => format!("p:{name} {rest}"),
        (_, Some(rest)) if is_short(rest) => format!("{name}={rest}%return"),
        (_, Some(rest)) => format!("r:{name} {rest}"),
        _ if is_short(word) => format!("{name}={word}"),
        _ => word.to_owned(),
    }
}

/// Refuses to define probes on more hosts than are changed without `--yes`.
pub(super) fn not_confirmed(undefined: &[String], hosts: usize) -> Option<Failure> {
    let word = undefined.first()?;
    let message = format!("there is no probe `{word}`, and this would define one on {hosts} hosts");
    Some(Failure::refused(message, "add `--yes`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_argument_of_latency_is_a_function() {
        assert_eq!(ends(" vfs_read ").unwrap(), ["p vfs_read", "r vfs_read"]);
        assert_eq!(ends("ext4:ext4_sync_file").unwrap()[1], "r ext4:ext4_sync_file");
        for other in ["", "p:a vfs_read", "sched/sched_switch", "f(int a)", "vfs_*"] {
            assert!(ends(other).is_err(), "{other}");
        }
    }

    #[test]
    fn what_cannot_be_kept_says_what_to_type() {
        let hints = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
            not_kept(&words).unwrap().hints().concat()
        };
        assert_eq!(hints(&["vfs_read"]), "define it first: `kprobectl add --disabled 'NAME=vfs_read'`");
        assert_eq!(
            hints(&["p f", "r f"]),
            "define it first: `kprobectl add --disabled 'NAME=f'` and \
             `kprobectl add --disabled 'NAME_END=f%return'`"
        );
        assert_eq!(
            hints(&["p:open do_sys_open"]),
            "define it first: `kprobectl add --disabled 'p:open do_sys_open'`"
        );
        let named = |word: &str| named(word, "NAME");
        assert_eq!(named("openat"), "NAME=openat");
        assert_eq!(named("vfs_read%return"), "NAME=vfs_read%return");
        assert_eq!(named("sched/sched_switch"), "sched/sched_switch");
        assert_eq!(named("vfs_read count"), "vfs_read count");
        assert_eq!(named("p vfs_read count"), "p:NAME vfs_read count");
        assert_eq!(named("r ext4:ext4_sync_file"), "r:NAME ext4:ext4_sync_file");
        assert!(not_kept(&[]).is_none() && not_confirmed(&[], 30).is_none());
    }
}
