//! One command on many hosts.
//!
//! Owns which commands can run so, the plan and the confirmation before a change, and the exit code of
//! the whole. A command prints to an output that is kept for each host; equal answers are shown once.

use std::sync::Arc;

use kprobed_client::fleet::{FanOut, Host, HostLedger, NoAnswer, Operation, Outcome, Run};
use kprobed_client::{Client, Error};

use super::observe::TemporaryProbes;
use super::open_file_limit::raise_for;
use super::{
    Exit, Failure, apply, check, connection, diff, doctor, documents, exporters, get, input, ledger, list,
    profile,
};
use crate::config::{replace, state_file};
use crate::global::{Fleet, Format, Global};
use crate::output::{Contrast, HostRecord, Judged, Output, Said};

/// A change on more hosts than this needs `--yes`.
pub(super) const CONFIRM_ABOVE: u64 = 20;

/// A command that can run on many hosts.
#[derive(Clone, Debug)]
pub(crate) enum HostCommand {
    Check(check::Arguments),
    Apply(apply::Arguments),
    Diff(diff::Arguments),
    List(list::Arguments),
    Get(get::Arguments),
    Profile(profile::Arguments),
    Ledger(ledger::Arguments),
    Exporters(exporters::Arguments),
    Doctor(doctor::Arguments),
    /// The plan of `trace` for definitions. It changes nothing.
    Plan(Vec<String>),
}

/// Result of a command on one host.
struct Answer {
    exit: Exit,
    kernel: String,
    data: String,
    messages: String,
    judged: Vec<Judged>,
}

/// Failure of a command on one host, with its messages.
struct Problem {
    outcome: Outcome,
    exit: Exit,
    kernel: String,
    messages: String,
}

impl Operation for Problem {
    fn outcome(&self) -> Outcome {
        self.outcome
    }
}

/// Refuses output formats that answers of many hosts do not have.
pub(crate) fn judge_format(format: Format) -> Result<(), Failure> {
    if matches!(format, Format::Csv | Format::Folded) {
        let message = "answers of many hosts have the forms table, wide, json and yaml".to_owned();
        return Err(Failure::usage(message, Some("use `-o json`".to_owned())));
    }
    Ok(())
}

impl HostCommand {
    /// Reads input that all hosts share. False: it cannot be read, which was reported.
    async fn prepare(&mut self, output: &mut Output) -> Result<bool, Failure> {
        match self {
            Self::Check(arguments) => {
                if arguments.file.as_deref().is_some_and(|file| file.as_os_str() == "-") {
                    let message = "standard input can be read once, and every host needs it".to_owned();
                    return Err(Failure::usage(message, Some("write it to a file".to_owned())));
                }
                if arguments.definition == ["-"] {
                    arguments.definition = vec![input::definition(&arguments.definition).await?];
                }
                Ok(true)
            }
            Self::Apply(arguments) => Self::readable(&arguments.files, output).await,
            Self::Diff(arguments) => Self::readable(&arguments.files, output).await,
            _ => Ok(true),
        }
    }

    async fn readable(files: &apply::Files, output: &mut Output) -> Result<bool, Failure> {
        Ok(documents::read(&files.files, files.recursive, output).await?.is_some())
    }

    /// The dry run of this command, if it changes anything.
    fn plan(&self) -> Option<Self> {
        match self {
            Self::Apply(arguments) if !arguments.dry_run => {
                let mut plan = arguments.clone();
                plan.dry_run = true;
                Some(Self::Apply(plan))
            }
            _ => None,
        }
    }

    /// Whether a result other than success is a refusal, and not the answer itself.
    fn can_be_refused(&self) -> bool {
        matches!(self, Self::Apply(_) | Self::Plan(_))
    }

    /// Whether different meanings on different hosts count as a refusal.
    fn is_strict(&self) -> bool {
        match self {
            Self::Check(arguments) => arguments.strict,
            Self::Apply(arguments) => arguments.strict,
            _ => false,
        }
    }

    async fn run(self, global: &Global, output: &mut Output) -> Result<Exit, Failure> {
        match self {
            Self::Check(arguments) => check::run(global, arguments, output).await,
            Self::Apply(arguments) => apply::run(global, arguments, output).await,
            Self::Diff(arguments) => diff::answer(global, arguments, output).await,
            Self::List(arguments) => list::run(global, arguments, output).await,
            Self::Get(arguments) => get::run(global, arguments, output).await,
            Self::Profile(arguments) => profile::run(global, arguments, output).await,
            Self::Ledger(arguments) => ledger::run(global, arguments, output).await,
            Self::Exporters(arguments) => exporters::run(global, arguments, output).await,
            Self::Doctor(arguments) => doctor::run(global, arguments, output).await,
            Self::Plan(definitions) => {
                TemporaryProbes::plan(&connection::connect(global).await?, &definitions, output).await
            }
        }
    }
}

/// Runs a command on all hosts.
pub(crate) async fn run(
    mut asked: HostCommand,
    global: &Global,
    fleet: Fleet,
    output: &mut Output,
) -> Result<Exit, Failure> {
    if !asked.prepare(output).await? {
        return Ok(Exit::Refused);
    }
    if let Some(plan) = asked.plan() {
        confirm(plan, global, &fleet, output).await?;
    }
    let (exit, missing) = ask_all(asked, global, &fleet, output).await?;
    remember(&fleet, &missing, output);
    Ok(exit)
}

/// Shows only the plan of a change on many hosts, unless it is confirmed.
///
/// # Errors
/// When there are more hosts than are changed without `--yes`.
pub(super) async fn confirm(
    plan: HostCommand,
    global: &Global,
    fleet: &Fleet,
    output: &mut Output,
) -> Result<(), Failure> {
    let limit = fleet.confirm_above.unwrap_or(CONFIRM_ABOVE);
    let hosts = fleet.hosts.len();
    if hosts as u64 <= limit || global.yes {
        return Ok(());
    }
    ask_all(plan, global, fleet, output).await?;
    let message = format!("this would change {hosts} hosts, and more than {limit} need a confirmation");
    Err(Failure::usage(message, Some("add `--yes`".to_owned())))
}

/// Saves the names of the hosts without an answer for `@failed`.
pub(super) fn remember(fleet: &Fleet, missing: &str, output: &mut Output) {
    if let Some(path) = state_file(fleet.context.as_deref())
        && let Err(error) = replace(&path, missing.as_bytes())
    {
        output.note(&format!("`--hosts @failed` will not know of this run: {error}"));
    }
}

/// Asks all hosts, prints their answers, and returns the exit code and the names of hosts without
/// an answer.
async fn ask_all(
    asked: HostCommand,
    global: &Global,
    fleet: &Fleet,
    output: &mut Output,
) -> Result<(Exit, String), Failure> {
    let default = FanOut::default();
    let fan_out = FanOut {
        parallel: fleet.parallel.unwrap_or(default.parallel),
        deadline: global.timeout,
        fail_fast: global.fail_fast,
    };
    raise_for(&fan_out, fleet.hosts.len())?;
    let is_strict = asked.is_strict();
    let mut judged = Vec::new();
    let shared = Arc::new((asked, global.clone(), output.keeping()));
    let operation = move |_host: Host, client: Client| {
        let shared = Arc::clone(&shared);
        async move {
            let (asked, global, output) = &*shared;
            on_one(asked.clone(), global, client, output.keeping()).await
        }
    };
    let mut run = Run::start(fleet.hosts.clone(), fan_out, operation);
    let (mut records, mut missing, mut worst) = (Vec::new(), String::new(), Exit::Success);
    loop {
        let report = tokio::select! {
            report = run.next() => report,
            interrupted = tokio::signal::ctrl_c() => {
                interrupted.map_err(Failure::Signals)?;
                run.interrupt();
                continue;
            }
        };
        let Some(report) = report else { break };
        let outcome = report.outcome();
        let (host, result) = (report.host.name, report.result);
        let record = match result {
            Ok(answer) => {
                worst = worst.max(answer.exit);
                judged.push((host.clone(), answer.kernel.clone(), answer.judged));
                let said = Said { data: answer.data, messages: answer.messages };
                HostRecord { host, outcome, kernel: answer.kernel, said }
            }
            Err(why) => {
                missing.push_str(&host);
                missing.push('\n');
                let (kernel, messages) = match why {
                    NoAnswer::Operation { error, .. } => {
                        worst =
                            worst.max(if outcome == Outcome::Refused { error.exit } else { Exit::Success });
                        // The deadlines of the request and of the host are equal: either may be
                        // noticed first.
                        let messages = match outcome {
                            Outcome::TimedOut => text_of(&NoAnswer::TimedOut(global.timeout)),
                            _ => error.messages,
                        };
                        (error.kernel, messages)
                    }
                    // Without the address, so that hosts with the same problem are shown together.
                    NoAnswer::Unreachable(Error::Connect { kind, .. }) => (String::new(), kind.to_string()),
                    other => (String::new(), text_of(&other)),
                };
                HostRecord { host, outcome, kernel, said: Said { data: String::new(), messages } }
            }
        };
        output.host_record(&record)?;
        // JSON and YAML are printed as answers arrive; as text, equal answers are shown once at the
        // end.
        if !output.is_structured() {
            records.push(record);
        }
    }
    let ledger = run.ledger();
    let contrasts = Contrast::find(&judged);
    if is_strict && !contrasts.iter().all(Contrast::is_harmless) {
        worst = worst.max(Exit::Refused);
    }
    output.hosts(&records, &contrasts, &ledger)?;
    Ok((exit(&ledger, worst, global), missing))
}

fn text_of(why: &NoAnswer<Problem>) -> String {
    match why {
        NoAnswer::Unreachable(error) => error.to_string(),
        NoAnswer::Operation { error, .. } => error.messages.clone(),
        NoAnswer::TimedOut(deadline) => format!("no answer within {deadline:?}"),
        NoAnswer::Interrupted => "interrupted before it answered: check before you repeat it".to_owned(),
        NoAnswer::NotTried => "the run ended before".to_owned(),
        NoAnswer::Broken(problem) => problem.clone(),
        _ => "no answer".to_owned(),
    }
}

/// Runs the command on one host.
async fn on_one(
    asked: HostCommand,
    global: &Global,
    client: Client,
    mut output: Output,
) -> Result<Answer, Problem> {
    let global = Global { client: Some(client.clone()), ..global.clone() };
    let can_be_refused = asked.can_be_refused();
    // The kernel first: without it, the answer cannot be grouped.
    let kernel = match client.host_basics().await {
        Ok(host) => host.kernel_release,
        Err(error) => {
            let outcome = error.outcome();
            let failure = Failure::from(error);
            let exit = failure.report(&mut output);
            let (_, messages) = output.into_kept();
            return Err(Problem { outcome, exit, kernel: String::new(), messages });
        }
    };
    match asked.run(&global, &mut output).await {
        Ok(exit) => {
            let judged = output.take_judged();
            let (data, messages) = output.into_kept();
            if can_be_refused && exit != Exit::Success {
                let outcome = if exit == Exit::Refused { Outcome::Refused } else { Outcome::Failed };
                return Err(Problem { outcome, exit, kernel, messages });
            }
            Ok(Answer { exit, kernel, data, messages, judged })
        }
        Err(failure) => {
            let outcome = failure.outcome();
            let exit = failure.report(&mut output);
            let (_, messages) = output.into_kept();
            Err(Problem { outcome, exit, kernel, messages })
        }
    }
}

/// The exit code of the whole, as `kprobectl --help` promises it.
pub(super) fn exit(ledger: &HostLedger, worst: Exit, global: &Global) -> Exit {
    let any = |outcomes: &[Outcome]| outcomes.iter().any(|outcome| ledger.count(*outcome) > 0);
    let missing = if global.tolerate.covers(ledger.missing(), ledger.targeted()) {
        Exit::Success
    } else if any(&[Outcome::Failed, Outcome::NotTried]) {
        Exit::Interrupted
    } else if any(&[Outcome::TimedOut, Outcome::Unreachable]) {
        Exit::Unreachable
    } else {
        Exit::Refused
    };
    if ledger.closes() { missing.max(worst) } else { Exit::Interrupted }
}
