//! One command on many hosts.
//!
//! Owns which commands can be run so, the plan before a change, and the exit code of the whole. What a command does on each
//! host is its own business: it prints to an output that is kept, and equal answers are shown once.

use std::sync::Arc;

use kprobed_client::fleet::{FanOut, Host, HostLedger, NoAnswer, Operation, Outcome, Run};
use kprobed_client::{Client, Error};

use super::connection::Fleet;
use super::descriptors::make_room_for;
use super::{
    Command, Exit, Failure, apply, check, connection, definition, diff, doctor, documents, exporters, get,
    ledger, list, observe, profile,
};
use crate::cli::{Format, Global};
use crate::config::{replace, state_file};
use crate::output::{Contrast, HostRecord, Judged, Output, Said};

/// Above so many hosts a change asks for `--yes`.
pub(super) const CONFIRM_ABOVE: u64 = 20;

/// A command that many hosts can be asked for.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    Check(check::Arguments),
    Apply(apply::Arguments),
    Diff(diff::Arguments),
    List(list::Arguments),
    Get(get::Arguments),
    Profile(profile::Arguments),
    Ledger(ledger::Arguments),
    Exporters(exporters::Arguments),
    Doctor(doctor::Arguments),
    /// What would be made of definitions. It changes nothing.
    Plan(Vec<String>),
}

/// What a command did on one host.
struct Answer {
    exit: Exit,
    kernel: String,
    data: String,
    messages: String,
    judged: Vec<Judged>,
}

/// Why it did not, and what it printed.
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

/// Refuses forms that the answers of many hosts do not have.
pub(super) fn judge_format(format: Format) -> Result<(), Failure> {
    if matches!(format, Format::Csv | Format::Folded) {
        let message = "answers of many hosts have the forms table, wide, json and yaml".to_owned();
        return Err(Failure::usage(message, Some("use `-o json`".to_owned())));
    }
    Ok(())
}

impl Asked {
    /// The command for many hosts.
    ///
    /// # Errors
    /// When it is not for many.
    pub(super) fn new(command: Command) -> Result<Self, Failure> {
        match command {
            Command::Check(arguments) => Ok(Self::Check(arguments)),
            Command::Apply(arguments) => Ok(Self::Apply(arguments)),
            Command::Diff(arguments) => Ok(Self::Diff(arguments)),
            Command::List(arguments) if !arguments.watch => Ok(Self::List(arguments)),
            Command::Get(arguments) => Ok(Self::Get(arguments)),
            Command::Profile(arguments) => Ok(Self::Profile(arguments)),
            Command::Ledger(arguments) => Ok(Self::Ledger(arguments)),
            Command::Exporters(arguments) => Ok(Self::Exporters(arguments)),
            Command::Doctor(arguments) => Ok(Self::Doctor(arguments)),
            _ => Err(Failure::one_host_only()),
        }
    }

    /// Reads what is read once for all hosts. False: it cannot be read, and that was reported.
    async fn prepare(&mut self, output: &mut Output) -> Result<bool, Failure> {
        match self {
            Self::Check(arguments) => {
                if arguments.file.as_deref().is_some_and(|file| file.as_os_str() == "-") {
                    let message = "standard input can be read once, and every host needs it".to_owned();
                    return Err(Failure::usage(message, Some("write it to a file".to_owned())));
                }
                if arguments.definition == ["-"] {
                    arguments.definition = vec![definition::definition(&arguments.definition).await?];
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

    /// The same without a change, if it changes anything.
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

    /// Whether an answer other than success is a refusal, and not the answer itself.
    fn can_be_refused(&self) -> bool {
        matches!(self, Self::Apply(_) | Self::Plan(_))
    }

    /// Whether hosts that would record different things are a refusal.
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
                observe::plan(&connection::connect(global).await?, &definitions, output).await
            }
        }
    }
}

/// Runs a command on all hosts.
pub(super) async fn run(
    mut asked: Asked,
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

/// Sees to it that a change on many hosts is wanted: otherwise it only shows the plan.
///
/// # Errors
/// When there are more hosts than are changed without `--yes`.
pub(super) async fn confirm(
    plan: Asked,
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

/// Keeps the names of the hosts without an answer for the next run.
pub(super) fn remember(fleet: &Fleet, missing: &str, output: &mut Output) {
    if let Some(path) = state_file(fleet.context.as_deref())
        && let Err(error) = replace(&path, missing.as_bytes())
    {
        output.note(&format!("`--hosts @failed` will not know of this run: {error}"));
    }
}

/// Asks all hosts, prints what they say, and returns the exit code with the names of those without an answer.
async fn ask_all(
    asked: Asked,
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
    make_room_for(&fan_out, fleet.hosts.len())?;
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
                        // The deadlines of the request and of the host are the same: which is noticed first is chance.
                        let messages = match outcome {
                            Outcome::TimedOut => text_of(&NoAnswer::TimedOut(global.timeout)),
                            _ => error.messages,
                        };
                        (error.kernel, messages)
                    }
                    // Without the address, so that hosts with the same trouble are shown together.
                    NoAnswer::Unreachable(Error::Connect { kind, .. }) => (String::new(), kind.to_string()),
                    other => (String::new(), text_of(&other)),
                };
                HostRecord { host, outcome, kernel, said: Said { data: String::new(), messages } }
            }
        };
        output.host_record(&record)?;
        // Programs have it already; for people equal answers are put together at the end.
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
    asked: Asked,
    global: &Global,
    client: Client,
    mut output: Output,
) -> Result<Answer, Problem> {
    let global = Global { client: Some(client.clone()), ..global.clone() };
    let can_be_refused = asked.can_be_refused();
    // Asked first: a change that cannot be told from another kernel's is not worth making.
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
