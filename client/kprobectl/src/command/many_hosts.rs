//! One command on many hosts.
//!
//! Owns the plan and the confirmation before a change, and the exit code of the whole. A command prints
//! to an output that is kept for each host; equal answers are shown once.

use std::pin::Pin;
use std::sync::Arc;

use kprobed_client::fleet::{FanOut, Host, HostLedger, NoAnswer, Operation, Outcome, Run};
use kprobed_client::{Client, Error};

use super::open_file_limit::raise_for;
use super::{Exit, Failure};
use crate::config::{replace, state_file};
use crate::global::{Fleet, Format, Global};
use crate::output::{Contrast, HostOutput, HostRecord, Judged, Output};

/// A change on more hosts than this needs `--yes`.
pub(super) const CONFIRM_ABOVE: u64 = 20;

/// The run of a command on one host, with what it printed.
pub(crate) type OnHost = Pin<Box<dyn Future<Output = (Result<Exit, Failure>, Output)> + Send>>;

/// A command that runs on each of many hosts.
#[derive(Clone)]
pub(crate) struct HostCommand {
    /// Runs it on the host of the options.
    pub(crate) run: Arc<dyn Fn(Global, Output) -> OnHost + Send + Sync>,
    /// A result other than success is a refusal, and not the answer itself.
    pub(crate) is_change: bool,
    /// Different meanings on different hosts count as a refusal.
    pub(crate) is_strict: bool,
}

/// Result of a command on one host.
struct Answer {
    exit: Exit,
    kernel: String,
    said: HostOutput,
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

/// Runs a command on all hosts.
pub(crate) async fn run(
    command: HostCommand,
    global: &Global,
    fleet: &Fleet,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let (exit, missing) = ask_all(command, global, fleet, output).await?;
    remember(fleet, &missing, output);
    Ok(exit)
}

/// Shows only the plan of a change on many hosts, if it has one, unless it is confirmed.
///
/// # Errors
/// When there are more hosts than are changed without `--yes`.
pub(crate) async fn confirm(
    plan: Option<HostCommand>,
    global: &Global,
    fleet: &Fleet,
    output: &mut Output,
) -> Result<(), Failure> {
    let limit = fleet.confirm_above.unwrap_or(CONFIRM_ABOVE);
    let hosts = fleet.hosts.len();
    if hosts as u64 <= limit || global.yes {
        return Ok(());
    }
    if let Some(plan) = plan {
        ask_all(plan, global, fleet, output).await?;
    }
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
    command: HostCommand,
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
    let is_strict = command.is_strict;
    let mut judged = Vec::new();
    let shared = Arc::new((command, global.clone(), output.keeping()));
    let operation = move |_host: Host, client: Client| {
        let shared = Arc::clone(&shared);
        async move {
            let (command, global, output) = &*shared;
            on_one(command, global, client, output.keeping()).await
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
                HostRecord { host, outcome, kernel: answer.kernel, said: answer.said }
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
                HostRecord { host, outcome, kernel, said: HostOutput::messages(messages) }
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
    command: &HostCommand,
    global: &Global,
    client: Client,
    mut output: Output,
) -> Result<Answer, Problem> {
    let global = Global { client: Some(client.clone()), ..global.clone() };
    // The kernel first: without it, the answer cannot be grouped.
    let kernel = match client.host_basics().await {
        Ok(host) => host.kernel_release,
        Err(error) => {
            let outcome = error.outcome();
            let failure = Failure::from(error);
            let exit = failure.report(&mut output);
            let messages = output.into_kept().messages;
            return Err(Problem { outcome, exit, kernel: String::new(), messages });
        }
    };
    let (result, mut output) = (command.run)(global, output).await;
    match result {
        Ok(exit) => {
            let judged = output.take_judged();
            let said = output.into_kept();
            if command.is_change && exit != Exit::Success {
                let outcome = if exit == Exit::Refused { Outcome::Refused } else { Outcome::Failed };
                return Err(Problem { outcome, exit, kernel, messages: said.messages });
            }
            Ok(Answer { exit, kernel, said, judged })
        }
        Err(failure) => {
            let outcome = failure.outcome();
            let exit = failure.report(&mut output);
            let messages = output.into_kept().messages;
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
