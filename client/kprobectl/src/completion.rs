//! Completion in shells. Commands and options come from the grammar, names of hosts and contexts from the
//! configuration, other names from the daemon.
//!
//! Owns which arguments name what, and how long a shell waits for a daemon. Never says why there is nothing to offer:
//! a shell would print that into the line that is being typed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::sync::OnceLock;
use std::time::Duration;
use std::{env, iter};

use clap::{Command, Parser as _};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use kprobed_client::Client;
use kprobed_client::api::{Function, ListFunctionsRequest};
use tokio::time::{Instant, timeout_at};

use crate::cli::{Cli, VARIABLE};
use crate::command::connection::connect;
use crate::command::functions::events_of;
use crate::config::Config;
use crate::global::Global;
use crate::help;

/// How long all questions to the daemon may take.
const PATIENCE: Duration = Duration::from_millis(250);

/// The most functions that are offered.
const FUNCTIONS_MAX: u32 = 200;

/// What the function of a system call is called before its name.
const SYSTEM_CALL: &str = "__x64_sys_";

/// Options that say which daemon is asked.
const CONNECTION: [&str; 6] = ["--server", "--context", "--ca", "--cert", "--key", "--domain"];

/// Options that say that it is not one daemon.
const MANY_HOSTS: [&str; 3] = ["--hosts", "--host-selector", "-L"];

/// What an argument names.
#[derive(Clone, Copy, Debug)]
enum Names {
    Probes,
    /// Functions, system calls and events.
    Places,
    Both,
    Fields,
}

/// What the arguments of these names are in all commands but those [`APART`].
const ARGUMENTS: [(&str, Names); 18] = [
    ("names", Names::Probes),
    ("glob", Names::Probes),
    ("words", Names::Probes),
    ("probes", Names::Probes),
    ("definition", Names::Places),
    ("definitions", Names::Places),
    ("function", Names::Places),
    ("pattern", Names::Places),
    ("probe", Names::Both),
    ("start", Names::Both),
    ("end", Names::Both),
    ("filter", Names::Fields),
    ("start_filter", Names::Fields),
    ("end_filter", Names::Fields),
    ("match_field", Names::Fields),
    ("keys", Names::Fields),
    ("sums", Names::Fields),
    ("fields", Names::Fields),
];

/// Commands whose arguments name other things.
const APART: [&str; 4] = ["adopt", "aggregations", "config", "rollout"];

/// Answers a shell, if one asks. `false`: this is a command to carry out.
pub(crate) fn answer() -> bool {
    let asked = CompleteEnv::with_factory(grammar).var(VARIABLE).bin("kprobectl").completer("kprobectl");
    let directory = env::current_dir().ok();
    asked.try_complete(env::args_os(), directory.as_deref()).unwrap_or(true)
}

/// The grammar with what its arguments name.
fn grammar() -> Command {
    let grammar = help::grammar()
        .mut_arg("context", |argument| argument.add(ArgValueCompleter::new(contexts)))
        .mut_arg("hosts", |argument| argument.add(ArgValueCompleter::new(hosts)));
    grammar.mut_subcommands(|command| {
        if APART.contains(&command.get_name()) {
            return command;
        }
        command.mut_args(|argument| {
            let known = ARGUMENTS.iter().find(|(id, _)| *id == argument.get_id().as_str());
            let Some((_, names)) = known else { return argument };
            argument.add(ArgValueCompleter::new(move |current: &OsStr| candidates(*names, current)))
        })
    })
}

fn candidates(names: Names, current: &OsStr) -> Vec<CompletionCandidate> {
    let found = current.to_str().and_then(|current| ask(names, current));
    found.unwrap_or_default().into_iter().map(CompletionCandidate::new).collect()
}

/// Contexts of the configuration.
fn contexts(current: &OsStr) -> Vec<CompletionCandidate> {
    let (Ok(config), Some(current)) = (Config::read(), current.to_str()) else { return Vec::new() };
    config
        .contexts
        .into_keys()
        .filter(|name| name.starts_with(current))
        .map(CompletionCandidate::new)
        .collect()
}

/// Hosts of the context and their groups, for the last name of a list.
fn hosts(current: &OsStr) -> Vec<CompletionCandidate> {
    let line = line();
    let words: Vec<&str> = line.iter().flat_map(|word| word.split('=')).collect();
    let named = words.windows(2).find(|words| words[0] == "--context").map(|words| words[1]);
    let (Ok(config), Some(current)) = (Config::read(), current.to_str()) else { return Vec::new() };
    let Ok(Some((_, context))) = config.context(named) else { return Vec::new() };
    let hosts = context.named_hosts().unwrap_or_default();
    let names = hosts.into_iter().flat_map(|host| iter::once(host.name).chain(host.groups));
    let names: BTreeSet<String> = names.chain(["all".to_owned()]).collect();
    let (before, begun) = current.rfind(',').map_or(("", current), |comma| current.split_at(comma + 1));
    let offered = names.iter().filter(|name| name.starts_with(begun));
    offered.map(|name| CompletionCandidate::new(format!("{before}{name}"))).collect()
}

/// The words that are typed after the name of this command.
fn line() -> Vec<String> {
    let line = env::args_os().skip_while(|word| word != "--").skip(2);
    line.filter_map(|word| word.into_string().ok()).collect()
}

/// Asks the daemon that the line names. Nothing if it does not answer in time.
fn ask(names: Names, current: &str) -> Option<Vec<String>> {
    static UNTIL: OnceLock<Instant> = OnceLock::new();
    let until = *UNTIL.get_or_init(|| Instant::now() + PATIENCE);
    let line = line();
    let global = connection(&line)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let found = runtime
        .block_on(async { timeout_at(until, Box::pin(find(&global, names, &line, current))).await.ok() });
    // A name that is being resolved is not waited for.
    runtime.shutdown_background();
    found?
}

/// The options of a line that say which daemon is meant. Nothing if they are not whole, or say several.
fn connection(line: &[String]) -> Option<Global> {
    let mut words = vec!["kprobectl".to_owned(), "options".to_owned()];
    let mut rest = line.iter();
    while let Some(word) = rest.next() {
        let option = word.split('=').next().unwrap_or(word);
        if MANY_HOSTS.contains(&option) {
            return None;
        }
        if CONNECTION.contains(&option) {
            words.push(word.clone());
            if option == word {
                words.push(rest.next()?.clone());
            }
        }
    }
    Some(Cli::try_parse_from(words).ok()?.global)
}

async fn find(global: &Global, names: Names, line: &[String], current: &str) -> Option<Vec<String>> {
    let client = connect(global).await.ok()?;
    let mut found = match names {
        Names::Probes => probes(&client, current).await,
        Names::Places => places(&client, current).await,
        Names::Both => {
            let (mut both, places) = tokio::join!(probes(&client, current), places(&client, current));
            both.extend(places);
            both
        }
        Names::Fields => fields(&client, line, current).await,
    };
    found.retain(|name| name.starts_with(current));
    found.sort_unstable();
    found.dedup();
    Some(found)
}

/// Probes by their names, and by those of their events alone if one is begun.
async fn probes(client: &Client, current: &str) -> Vec<String> {
    let probes = client.list_probes("").await.unwrap_or_default();
    let mut names = Vec::with_capacity(2 * probes.len());
    for probe in probes {
        let event = probe.name.split('/').nth(1).filter(|_| !current.is_empty());
        names.extend(event.map(str::to_owned));
        names.push(probe.name);
    }
    names
}

/// Functions, system calls and events whose names begin so. Nothing for a letter, which begins thousands.
async fn places(client: &Client, current: &str) -> Vec<String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'/');
    if current.len() < 2 || !current.bytes().all(is_name) {
        return Vec::new();
    }
    let group = if current.contains('/') { "*" } else { "*/*" };
    let (functions, calls, events) = tokio::join!(
        functions(client, current.to_owned()),
        functions(client, format!("{SYSTEM_CALL}{current}")),
        client.check_probe(format!("{current}{group}")),
    );
    let calls = calls.iter().filter_map(|function| function.name.strip_prefix(SYSTEM_CALL));
    let mut names: Vec<String> = calls.map(str::to_owned).collect();
    names.extend(functions.into_iter().map(|function| function.name));
    names.extend(events.iter().flat_map(events_of));
    names
}

async fn functions(client: &Client, prefix: String) -> Vec<Function> {
    let request = ListFunctionsRequest {
        pattern: format!("{prefix}*"),
        traceable_only: true,
        page_size: FUNCTIONS_MAX,
        ..Default::default()
    };
    client.list_functions_page(request).await.map(|page| page.functions).unwrap_or_default()
}

/// Fields of the probes and definitions of the line, for the last name of an expression.
async fn fields(client: &Client, line: &[String], current: &str) -> Vec<String> {
    let before = current.trim_end_matches(|letter: char| letter.is_alphanumeric() || letter == '_');
    let mut found = Vec::new();
    let words = line.iter().skip(1).filter(|word| !word.starts_with('-') && *word != current);
    for word in words {
        let schema = match client.get_probe(word).await {
            Ok(probe) => probe.schema,
            Err(_) => client.check_probe(word.as_str()).await.ok().and_then(|answer| answer.schema),
        };
        let fields = schema.into_iter().flat_map(|schema| schema.fields);
        found.extend(fields.map(|field| format!("{before}{}", field.name)));
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_name_is_of_an_argument() {
        let whole = grammar();
        let commands = || whole.get_subcommands().filter(|command| !APART.contains(&command.get_name()));
        for (id, _) in ARGUMENTS {
            let has = |command: &Command| command.get_arguments().any(|argument| argument.get_id() == id);
            assert!(commands().any(has), "no command has an argument `{id}`");
        }
        assert!(APART.iter().all(|name| whole.find_subcommand(name).is_some()));
    }

    #[test]
    fn the_daemon_is_that_of_the_line() {
        let of = |line: &str| connection(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(of("get --server /a x").unwrap().server.as_deref(), Some("/a"));
        assert_eq!(of("--server=/b get").unwrap().server.as_deref(), Some("/b"));
        for line in ["get --server", "get --hosts all", "get --hosts=all", "-L a=b get", "--server a:b:c get"]
        {
            assert!(of(line).is_none(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_line_ends_it(line in prop::collection::vec("(--server|--hosts|--ca|-|=|get|[ -~]{0,8}|.){1,2}", 0..6)) {
            connection(&line);
        }
    }
}
