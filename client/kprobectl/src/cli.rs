//! Command line of `kprobectl`: the commands and the main help.
//!
//! Owns the list of commands, and which daemons each of them talks to.

use std::future::{Ready, ready};
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use clap_complete::env::Shells;

use crate::command::probe_selection::ProbeSelection;
use crate::command::{
    Exit, Failure, NoArguments, add, adopt, aggregations, apply, audit, auth, check, config, debug, describe,
    doctor, functions, hist, hits, lines, list, observe, rollout, status, update,
};
use crate::global::Global;
use crate::output::Output;

/// Define kernel probes, and follow their events.
#[derive(Debug, Parser)]
#[command(name = "kprobectl", version, after_help = include_str!("command/help/kprobectl.txt"), max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The daemons that a command talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// None, or it finds them itself.
    Own,
    /// One.
    One,
    /// Each of the selected ones apart: their answers are shown side by side.
    Each,
    /// The same, and it changes what they have.
    Change,
    /// All of the selected ones together: what they send is merged or added up.
    Together,
}

/// Makes the grammar, and the choice of what to run, of one list of commands.
macro_rules! commands {
    (
        each host { $($(#[$help:meta])* $name:ident($arguments:ty) => $run:path, $reach:ident;)* }
        itself { $($(#[$own_help:meta])* $own:ident($own_arguments:ty) => $own_run:path, $own_reach:ident;)* }
    ) => {
        /// What to do.
        #[derive(Clone, Debug, Subcommand)]
        #[expect(clippy::large_enum_variant, reason = "there is one, or one for each host")]
        pub(crate) enum Command {
            $($(#[$help])* $name($arguments),)*
            $($(#[$own_help])* $own($own_arguments),)*
        }

        impl Command {
            const fn usual_reach(&self) -> Reach {
                match self {
                    $(Self::$name(_) => Reach::$reach,)*
                    $(Self::$own(_) => Reach::$own_reach,)*
                }
            }

            /// Runs it on one host, which may be one of many.
            pub(crate) async fn run_on_host(self, global: &Global, output: &mut Output) -> Result<Exit, Failure> {
                match self {
                    $(Self::$name(arguments) => Box::pin($run(global, arguments, output)).await,)*
                    _ => Err(Failure::one_host_only()),
                }
            }

            /// Runs it for one daemon, for many together, or for none.
            pub(crate) async fn run(self, global: &Global, output: &mut Output) -> Result<Exit, Failure> {
                match self {
                    $(Self::$own(arguments) => Box::pin($own_run(global, arguments, output)).await,)*
                    command => command.run_on_host(global, output).await,
                }
            }
        }
    };
}

commands! {
    each host {
        /// Define a probe and start recording
        Add(add::Arguments) => add::run, Change;
        /// Create and change probes as documents describe them
        Apply(apply::Arguments) => apply::run, Change;
        /// Show what `apply` would change
        Diff(apply::DiffArguments) => apply::diff, Each;
        /// Check whether a kernel would accept a probe
        Check(check::Arguments) => check::run, Each;
        /// Show the parameters, types and code of a function
        Describe(describe::Arguments) => describe::run, Each;
        /// Show the lines of a source that can be probed
        Lines(lines::Arguments) => lines::run, Each;
        /// Show the variables at a line, and how a probe reads them
        Vars(lines::VarsArguments) => lines::vars, Each;
        /// Find functions by name
        #[command(visible_alias = "symbols")]
        Functions(functions::Arguments) => functions::run, Each;
        /// List probes
        #[command(visible_alias = "ls")]
        List(list::Arguments) => list::run, Each;
        /// Show all properties of probes, or list probes
        Get(list::GetArguments) => list::get, Each;
        /// Switch recording on
        #[command(after_help = include_str!("command/help/enable.txt"))]
        Enable(ProbeSelection) => update::enable, Change;
        /// Switch recording off, and keep the probes
        #[command(after_help = include_str!("command/help/disable.txt"))]
        Disable(ProbeSelection) => update::disable, Change;
        /// Change filters, leases and owners, or accept held-back probes
        Update(update::Arguments) => update::run, Change;
        /// Set and remove labels
        Label(update::LabelArguments) => update::label, Change;
        /// Delete probes
        #[command(visible_alias = "rm")]
        Delete(update::DeleteArguments) => update::delete, Change;
        /// Make probes of kprobe events that the daemon did not define
        Adopt(adopt::Arguments) => adopt::run, Change;
        /// Show how often probes were hit, and what that takes
        #[command(visible_alias = "profile")]
        Hits(hits::Arguments) => hits::run, Each;
        /// Show the account of every event, and the state of exporters
        #[command(after_help = include_str!("command/help/ledger.txt"))]
        Ledger(NoArguments) => status::ledger, Each;
        /// Show health, probes, hits and losses on one page
        #[command(after_help = include_str!("command/help/status.txt"))]
        Status(NoArguments) => status::run, Each;
        /// Check the host and say how to fix it, or repair the probes
        Doctor(doctor::Arguments) => doctor::run, Each;
        /// Show who changed, was refused, or received what
        Audit(audit::Arguments) => audit::run, Each;
        /// Show who you are to the daemon, and what roles allow
        Auth(auth::Arguments) => auth::run, Each;
        /// Print the versions of this command and the daemon
        Version(status::VersionArguments) => status::version, Each;
    }
    itself {
        /// Follow events, or read the history
        Observe(observe::Arguments) => observe::run, Together;
        /// Define probes while the command runs, and follow their events
        Trace(observe::TraceArguments) => observe::trace, Together;
        /// Count events in the kernel, by fields, tasks or CPUs
        Hist(hist::Arguments) => hist::run, Together;
        /// Measure in the kernel the time between two probes
        Latency(hist::LatencyArguments) => hist::latency, Together;
        /// Count the call stacks that lead to a probe: `hist --by stack`
        Stacks(hist::Arguments) => hist::stacks, Together;
        /// List, read and delete aggregations
        Aggregations(aggregations::Arguments) => aggregations::run, One;
        /// Collect what a maintainer needs to understand a daemon
        Debug(debug::Arguments) => debug::run, One;
        /// Change the probes of a fleet in waves; undo it if a gate fails
        Rollout(rollout::Arguments) => rollout::run, Own;
        /// Show and change contexts: hosts, groups, and how to reach them
        Config(config::Arguments) => config::run, Own;
        /// Show the options that every command has
        Options(NoArguments) => options, Own;
        /// Explain what can be traced, and how it is written
        #[command(after_help = LANGUAGE)]
        Language(NoArguments) => language, Own;
        /// Show one-liners for what people ask most often
        #[command(after_help = RECIPES)]
        Recipes(NoArguments) => recipes, Own;
        /// Print the script with which a shell completes
        Completion(CompletionArguments) => completion, Own;
    }
}

/// The page of the language, which is also one of the manual.
const LANGUAGE: &str = include_str!("../../../deploy/docs/reference/definitions.md");

/// The page of recipes, which is also one of the manual.
const RECIPES: &str = include_str!("../../../deploy/docs/howto/recipes.md");

fn language(_: &Global, _: NoArguments, output: &mut Output) -> Ready<Result<Exit, Failure>> {
    ready(printed(LANGUAGE, output))
}

fn recipes(_: &Global, _: NoArguments, output: &mut Output) -> Ready<Result<Exit, Failure>> {
    ready(printed(RECIPES, output))
}

fn printed(page: &str, output: &mut Output) -> Result<Exit, Failure> {
    output.raw(page.as_bytes())?;
    Ok(Exit::Success)
}

fn options(_: &Global, _: NoArguments, output: &mut Output) -> Ready<Result<Exit, Failure>> {
    let whole = Cli::command();
    let every = whole.get_arguments().filter(|argument| argument.is_global_set());
    let page = clap::Command::new("kprobectl")
        .about("Options that every command has")
        .disable_help_flag(true)
        .max_term_width(100)
        .help_template("{about-with-newline}\n{all-args}")
        .args(every.cloned().map(|argument| argument.hide_env_values(true)))
        .render_long_help();
    ready(printed(&page.to_string(), output))
}

/// The variable by which the script of a shell says that it asks.
pub(crate) const VARIABLE: &str = "KPROBECTL_COMPLETE";

/// Arguments of `completion`.
#[derive(Clone, Copy, Debug, Args)]
#[command(after_help = include_str!("command/help/completion.txt"))]
pub(crate) struct CompletionArguments {
    /// Shell to print the script for
    shell: Shell,
}

fn completion(
    _: &Global,
    arguments: CompletionArguments,
    output: &mut Output,
) -> Ready<Result<Exit, Failure>> {
    ready(script(arguments.shell, output))
}

/// Prints the script by which a shell asks this command.
fn script(shell: Shell, output: &mut Output) -> Result<Exit, Failure> {
    let (shells, shell) = (Shells::builtins(), shell.to_string());
    let Some(completer) = shells.completer(&shell) else {
        return Err(Failure::new(Exit::Usage, format!("there is no script for `{shell}`"), []));
    };
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "kprobectl", "kprobectl", "kprobectl", &mut script)?;
    output.raw(&script)?;
    Ok(Exit::Success)
}

impl Command {
    /// The daemons that it talks to.
    pub(crate) fn reach(&self) -> Reach {
        match self {
            Self::Version(arguments) if arguments.client => Reach::Own,
            Self::Check(arguments) if arguments.images.are_given() => Reach::Own,
            Self::Lines(arguments) if arguments.make_index.is_some() => Reach::Own,
            _ if self.is_endless() => Reach::One,
            Self::Doctor(arguments) if arguments.repair => Reach::Change,
            Self::Hits(arguments) if arguments.may_define() => Reach::Change,
            _ => self.usual_reach(),
        }
    }

    /// Whether it writes down the options of the connection.
    pub(crate) fn keeps_options(&self) -> bool {
        matches!(self, Self::Config(arguments) if arguments.sets_context())
    }

    /// Whether its output ends only when it is interrupted.
    pub(crate) fn is_endless(&self) -> bool {
        match self {
            Self::Audit(arguments) => arguments.selection.follow,
            Self::List(arguments) => arguments.listing.watch,
            Self::Get(arguments) => arguments.listing.watch,
            _ => false,
        }
    }

    /// How long it takes by itself, whatever the daemon takes.
    pub(crate) fn lasts(&self) -> Duration {
        match self {
            Self::Hits(arguments) => arguments.duration.unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }

    /// Whether it waits for signals itself, to end its streams in order.
    pub(crate) fn handles_signals(&self) -> bool {
        match self {
            Self::Aggregations(_) | Self::Rollout(_) => true,
            Self::Hits(arguments) => arguments.duration.is_some(),
            _ => self.reach() == Reach::Together,
        }
    }

    /// Reads files, whole if several hosts share them.
    ///
    /// # Errors
    /// When one cannot be read.
    pub(crate) async fn read_files(&mut self, is_shared: bool) -> Result<(), Failure> {
        match self {
            Self::Apply(arguments) => arguments.files.read().await,
            Self::Diff(arguments) => arguments.files.read().await,
            Self::Delete(arguments) => arguments.read_files().await,
            Self::Auth(arguments) => arguments.read_files().await,
            Self::Add(add::Arguments { file: Some(file), .. })
            | Self::Check(check::Arguments { file: Some(file), .. })
                if is_shared =>
            {
                file.read().await
            }
            _ => Ok(()),
        }
    }

    /// The same command as a dry run, which changes nothing; absent if it has none.
    pub(crate) fn plan(&self) -> Option<Self> {
        let mut plan = self.clone();
        *plan.dry_run()? = true;
        Some(plan)
    }

    /// Whether it is a dry run already.
    pub(crate) fn is_dry_run(&self) -> bool {
        self.clone().dry_run().is_some_and(|dry_run| *dry_run)
    }

    fn dry_run(&mut self) -> Option<&mut bool> {
        match self {
            Self::Add(arguments) => Some(&mut arguments.dry_run),
            Self::Adopt(arguments) => Some(&mut arguments.dry_run),
            Self::Apply(arguments) => Some(&mut arguments.dry_run),
            Self::Delete(arguments) => Some(&mut arguments.dry_run),
            Self::Label(arguments) => Some(&mut arguments.dry_run),
            Self::Doctor(arguments) => Some(&mut arguments.dry_run),
            _ => None,
        }
    }

    /// Whether different meanings on different hosts count as a refusal.
    pub(crate) fn is_strict(&self) -> bool {
        match self {
            Self::Check(arguments) => arguments.strict,
            Self::Apply(arguments) => arguments.strict,
            _ => false,
        }
    }

    /// Whether it prints a list, which has the forms `name` and `csv` too.
    pub(crate) fn prints_list(&self) -> bool {
        match self {
            Self::Aggregations(arguments) => arguments.prints_list(),
            Self::Audit(arguments) => arguments.command.is_none(),
            Self::Auth(arguments) => arguments.prints_list(),
            Self::Config(arguments) => arguments.prints_list(),
            Self::Describe(arguments) => arguments.code,
            Self::Doctor(arguments) => arguments.repair,
            Self::List(arguments) => !arguments.listing.watch,
            Self::Get(arguments) => !arguments.listing.watch,
            Self::Check(_) | Self::Ledger(_) | Self::Status(_) | Self::Version(_) | Self::Debug(_) => false,
            _ => self.reach() != Reach::Together && self.reach() != Reach::Own,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }

    /// What `kprobectl` is called with in a line for a shell.
    fn called_with(line: &str) -> Vec<String> {
        let mut commands = vec![Vec::new()];
        let mut word: Option<String> = None;
        let mut quote = None;
        for character in line.chars().chain([' ']) {
            match (quote, character) {
                (Some(open), _) if character == open => quote = None,
                (None, '\'' | '"') => {
                    quote = Some(character);
                    word.get_or_insert_default();
                }
                (None, ' ' | '|' | '>' | ';' | '&') => {
                    commands.last_mut().unwrap().extend(word.take());
                    if character != ' ' {
                        commands.push(Vec::new());
                    }
                }
                (Some(_) | None, _) => word.get_or_insert_default().push(character),
            }
        }
        commands.into_iter().find(|words| words.first().is_some_and(|word| word == "kprobectl")).unwrap()
    }

    /// A command and all below it, with their names behind `kprobectl`.
    fn every(whole: &clap::Command) -> Vec<(String, &clap::Command)> {
        let mut found = vec![(String::new(), whole)];
        let mut next = 0;
        while let Some((path, command)) = found.get(next).cloned() {
            next += 1;
            found.extend(command.get_subcommands().map(|inner| {
                let name = format!("{path} {}", inner.get_name());
                (name.trim_start().to_owned(), inner)
            }));
        }
        found
    }

    /// Whether the help of a command is a page of the manual.
    fn is_page(command: &str) -> bool {
        ["language", "recipes"].contains(&command)
    }

    #[test]
    fn every_page_is_looked_at() {
        let pages = include_str!("../tests/kprobectl/snapshots/kprobectl__help__pages.snap");
        let whole = Cli::command();
        let commands = every(&whole);
        assert!(commands.len() > 45, "{}", commands.len());
        for (path, _) in commands.into_iter().filter(|(path, _)| !path.is_empty()) {
            assert!(pages.contains(&format!("\n# kprobectl {path} --help\n")), "no test looks at `{path}`");
        }
    }

    /// The terminal breaks lines: a paragraph that is broken in its source is broken twice.
    #[test]
    fn a_paragraph_of_help_is_one_line() {
        let whole = Cli::command();
        // A page of the manual is no wider than a terminal.
        for (path, command) in every(&whole).into_iter().filter(|(path, _)| !is_page(path)) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<_> = help.lines().collect();
            for two in lines.windows(2) {
                let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ');
                let is_broken = is_text(two[0]) && is_text(two[1]) && !two[0].ends_with(':');
                assert!(!is_broken, "`{path}`: {two:#?}");
            }
        }
    }

    #[test]
    fn every_command_has_examples_that_it_accepts() {
        let mut parsed = 0;
        let whole = Cli::command();
        for (path, command) in every(&whole) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let (_, examples) = help.split_once("Examples:\n").unwrap_or_default();
            let wide = examples.lines().find(|line| line.chars().count() > 80);
            assert_eq!(wide, None, "`{path}`: what a terminal wraps cannot be copied");
            let examples = examples.replace(" \\\n", "");
            let mut own = 0;
            // What a shell puts in is not known here.
            for line in examples.lines().filter(|line| !line.contains("$(")) {
                let words = called_with(line);
                own += usize::from(words.iter().skip(1).any(|word| word == command.get_name()));
                parsed += 1;
                if let Err(error) = Cli::try_parse_from(&words) {
                    panic!("{line}\n{words:?}\n{error}");
                }
            }
            let is_exempt = path.contains(' ') || ["", "options"].contains(&path.as_str()) || is_page(&path);
            assert!(own > 0 || is_exempt, "`{path}` has no example");
        }
        assert!(parsed > 80, "{parsed} examples");
    }

    /// The commands of a page: whole lines for a shell, and the names of commands in its sentences.
    fn commands_of(page: &str) -> (Vec<&str>, Vec<&str>) {
        let (mut lines, mut names, mut fenced) = (Vec::new(), Vec::new(), false);
        for line in page.lines() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            } else if fenced {
                let line = line.strip_prefix("$ ").unwrap_or(line);
                let line = line.strip_prefix("sudo ").unwrap_or(line);
                lines.extend(line.split("  #").next().filter(|line| line.starts_with("kprobectl ")));
            } else {
                let quoted = line.split('`').skip(1).step_by(2);
                let called = quoted.filter_map(|text| text.strip_prefix("kprobectl ")?.split(' ').next());
                names.extend(called.filter(|name| !name.starts_with('-')));
            }
        }
        (lines, names)
    }

    #[test]
    fn pages_have_commands_that_it_accepts() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut directories = vec![root.join("deploy"), root.join("proto"), root.join("client/python")];
        let mut pages = vec![root.join("README.md"), root.join("client/README.md")];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    directories.push(path);
                } else if path.extension().is_some_and(|extension| extension == "md") {
                    pages.push(path);
                }
            }
        }
        let (mut findings, mut whole, mut named) = (Vec::new(), 0, 0);
        for page in pages {
            let text = std::fs::read_to_string(&page).unwrap();
            let (lines, names) = commands_of(&text);
            // `...` stands for what the reader fills in, and `"$` begins a variable of the shell.
            let is_whole = |line: &&str| !["...", "\"$"].iter().any(|part| line.contains(part));
            for line in lines.into_iter().filter(is_whole) {
                whole += 1;
                let parsed = Cli::try_parse_from(called_with(line));
                findings.extend(parsed.err().map(|error| format!("{}: {line}\n{error}", page.display())));
            }
            for name in names.into_iter().filter(|name| *name != "help") {
                named += 1;
                if Cli::command().find_subcommand(name).is_none() {
                    findings.push(format!("{}: there is no command `kprobectl {name}`", page.display()));
                }
            }
        }
        assert!(
            findings.is_empty(),
            "pages have commands that kprobectl does not take:\n{}",
            findings.join("\n")
        );
        assert!(whole > 25 && named > 50, "{whole} lines, {named} names");
    }

    /// What only a guest runs is found here when a command is renamed.
    #[test]
    fn guest_tests_call_commands_that_there_are() {
        let whole = Cli::command();
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/vm/tests/guest");
        let mut called = 0;
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for call in [".ctl(\"", ".ctl_says(\"", ".ctl(&format!(\"", ".ctl_says(&format!(\""] {
                for line in text.split(call).skip(1) {
                    let name = line.split([' ', '"']).next().unwrap_or_default();
                    if name.starts_with(|first: char| first.is_ascii_lowercase()) {
                        called += 1;
                        assert!(whole.find_subcommand(name).is_some(), "{}: `{name}`", path.display());
                    }
                }
            }
        }
        assert!(called > 40, "{called} calls");
    }
}
