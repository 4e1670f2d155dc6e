//! `kprobectl functions`: functions and events by name.

use clap::Args;
use kprobed_client::Client;
use kprobed_client::api::{CheckProbeResponse, CheckedDefinition, Function, ListFunctionsRequest, Verdict};

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::{Format, Global};
use crate::output::{Cell, Column, MessageRow, Output, Tone};

/// Arguments of `functions`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/functions.txt"))]
pub(crate) struct Arguments {
    /// A glob for whole names (`*`, `?`), or a part of a name
    #[arg(default_value = "", hide_default_value = true, required_unless_present = "module")]
    pattern: String,
    /// Only functions of this loaded module [default: of the kernel and all modules]
    #[arg(short, long, default_value = "", hide_default_value = true)]
    module: String,
    /// Only functions that ftrace can trace
    #[arg(short, long)]
    traceable: bool,
    /// Events of the host instead of functions: GROUP/EVENT as a glob, or a part of an event's name
    #[arg(short, long, conflicts_with_all = ["module", "traceable"])]
    events: bool,
}

/// Words before the name of a function that say what a probe of it is, and the kernel itself, which is not a module.
const KINDS: [&str; 12] =
    ["kprobe", "k", "p", "kretprobe", "kr", "r", "fentry", "kfunc", "fexit", "kretfunc", "vmlinux", "kernel"];

/// An event of the host, with what the daemon makes of it.
impl MessageRow for CheckedDefinition {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("EVENT", |event| Cell::text(&event.definition)),
        Column::wide("FIELDS", |event| {
            let schema = event.check.as_ref().and_then(|check| check.schema.as_ref());
            let fields = schema.into_iter().flat_map(|schema| &schema.fields);
            Cell::text(fields.map(|field| field.name.as_str()).collect::<Vec<_>>().join(" "))
        }),
    ];
}

impl MessageRow for Function {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("FUNCTION", |function| Cell::text(&function.name)),
        Column::new("MODULE", |function| Cell::text(&function.module)),
        Column::new("SIZE", |function| Cell::number(function.size_bytes)),
        Column::new("TRACEABLE", |function| yes_or_no(function.traceable, true)),
        Column::new("BLACKLISTED", |function| yes_or_no(function.blacklisted, false)),
        Column::new("PLACE", |function| Cell::text(&function.place)),
    ];
}

fn yes_or_no(yes: bool, good: bool) -> Cell {
    Cell::toned(if yes { "yes" } else { "no" }, if yes == good { Tone::Plain } else { Tone::Bad })
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    if arguments.events {
        return events(&client, &arguments.pattern, global.output, output).await;
    }
    let Arguments { pattern, module, traceable, .. } = arguments;
    let (pattern, module) = plain(&pattern, module);
    let request = ListFunctionsRequest {
        pattern: pattern.clone(),
        module: module.clone(),
        traceable_only: traceable,
        ..Default::default()
    };
    let answer = client.list_functions(request).await?;
    if answer.functions.is_empty() {
        let hints = answer.suggestions.iter().map(|name| format!("did you mean `{name}`?"));
        return Err(Failure::new(Exit::Refused, nothing(&pattern, &module, traceable), hints));
    }
    output.rows(&answer.functions)?;
    Ok(Exit::Success)
}

/// A pattern and its module. Other tools put the kind of a probe or the module before the name (`kprobe:vfs_read`,
/// `btrfs:btrfs_sync_file`), and the kernel puts the module behind it (`btrfs_sync_file [btrfs]`).
fn plain(pattern: &str, module: String) -> (String, String) {
    let is_apart = |(name, _): &(&str, &str)| name.ends_with([' ', '\t']);
    let listed = pattern.strip_suffix(']').and_then(|text| text.split_once('[')).filter(is_apart);
    let (name, behind) = listed.map_or((pattern, ""), |(name, module)| (name.trim_end(), module));
    let (before, name) = name.rsplit_once(':').unwrap_or(("", name));
    let is_module = |word: &&str| !word.is_empty() && !KINDS.contains(word);
    match before.split(':').rfind(is_module).unwrap_or(behind) {
        "" => (name.to_owned(), module),
        other if module.is_empty() || module == other => (name.to_owned(), other.to_owned()),
        _ => (pattern.to_owned(), module),
    }
}

/// Lists events. The daemon reads a glob of them as a short form of their probes.
async fn events(
    client: &Client,
    pattern: &str,
    format: Format,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let glob = event_glob(pattern);
    let answer = client.check_probe(glob.as_str()).await?;
    let mut names = events_of(&answer);
    if names.is_empty() && answer.verdict() == Verdict::Accepted {
        names.push(glob);
    }
    if names.is_empty() {
        let why = answer.diagnostics.into_iter().next().unwrap_or_default();
        return Err(Failure::new(Exit::Refused, why.message, Some(why.hint).filter(|hint| !hint.is_empty())));
    }
    let rows = if matches!(format, Format::Table | Format::Name) {
        let row = |definition| CheckedDefinition { definition, ..Default::default() };
        names.into_iter().map(row).collect()
    } else {
        let text = names.join("\n").into_bytes();
        // With listings, an answer has the fields of an event.
        let mut checks = client.check_probes(tokio_stream::once(text), true).await?;
        let mut rows = Vec::with_capacity(names.len());
        while let Some(checked) = checks.next().await? {
            rows.push(checked);
        }
        rows
    };
    output.rows(&rows)?;
    Ok(Exit::Success)
}

/// The glob that a pattern for events means.
fn event_glob(pattern: &str) -> String {
    let pattern = pattern.replacen(':', "/", 1);
    match (pattern.contains('/'), pattern.contains(['*', '?'])) {
        (true, _) => pattern,
        (false, true) => format!("*/{pattern}"),
        (false, false) => format!("*/*{pattern}*"),
    }
}

/// The events for which a short form stands.
pub(crate) fn events_of(answer: &CheckProbeResponse) -> Vec<String> {
    let of_line = |line: &String| line.split(' ').find(|word| word.contains('/')).map(str::to_owned);
    answer.lines.iter().filter_map(of_line).collect()
}

/// What was looked for and is not there.
fn nothing(pattern: &str, module: &str, traceable: bool) -> String {
    let function = if traceable { "no traceable function" } else { "no function" };
    match (pattern, module) {
        ("", module) => format!("module `{module}` has {function}"),
        (pattern, "") => format!("{function} matches `{pattern}`"),
        (pattern, module) => format!("{function} of module `{module}` matches `{pattern}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_for_events_is_a_glob_of_whole_names() {
        for (pattern, glob) in [
            ("sched:*", "sched/*"),
            ("sched/sched_*", "sched/sched_*"),
            ("exec", "*/*exec*"),
            ("*_exec", "*/*_exec"),
        ] {
            assert_eq!(event_glob(pattern), glob);
        }
    }

    #[test]
    fn patterns_of_other_tools_are_understood() {
        for (pattern, name, module) in [
            ("vfs_*", "vfs_*", ""),
            ("kprobe:vfs_*", "vfs_*", ""),
            ("p:vfs_read", "vfs_read", ""),
            ("fentry:vmlinux:vfs_read", "vfs_read", ""),
            ("kfunc:btrfs:btrfs_sync_file", "btrfs_sync_file", "btrfs"),
            ("btrfs:*", "*", "btrfs"),
            ("btrfs_sync_file [btrfs]", "btrfs_sync_file", "btrfs"),
            ("btrfs_sync_file\t[btrfs]", "btrfs_sync_file", "btrfs"),
        ] {
            assert_eq!(plain(pattern, String::new()), (name.to_owned(), module.to_owned()), "{pattern}");
        }
        let of_ext4 = |pattern| plain(pattern, "ext4".to_owned());
        assert_eq!(of_ext4("kprobe:a*"), ("a*".to_owned(), "ext4".to_owned()));
        assert_eq!(of_ext4("btrfs:a*"), ("btrfs:a*".to_owned(), "ext4".to_owned()));
    }

    #[test]
    fn what_is_not_there_is_named() {
        assert_eq!(nothing("vfs_raed", "", false), "no function matches `vfs_raed`");
        assert_eq!(nothing("", "ext4", true), "module `ext4` has no traceable function");
        assert_eq!(nothing("a*", "ext4", false), "no function of module `ext4` matches `a*`");
    }
}
