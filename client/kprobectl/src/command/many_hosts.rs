//! One command on many hosts.
//!
//! Owns the plan and the confirmation before a change, the limit of open files (`RLIMIT_NOFILE`), which each connection
//! counts against, and the exit code of the whole. A command prints to an output that is kept for each host; equal
//! answers are shown once. The limit is raised only if a command needs more: child processes inherit it, and programs
//! that use `select` expect the usual limit of 1,024.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use kprobed_client::Client;
use kprobed_client::fleet::{FanOut, Host, HostLedger, NoAnswer, Operation, Outcome, Run};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::stop_condition::StopCondition;
use super::{Exit, Failure};
use crate::config::{replace, state_file};
use crate::global::{Fleet, Global};
use crate::output::{Contrast, HostOutput, HostRecord, Judged, Output};
use crate::progress::Progress;

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

/// One operation on many hosts.
pub(super) struct HostRun<T> {
    run: Run<(HostRecord, T), Problem>,
    timeout: Duration,
    /// A signal has ended it.
    pub(super) is_interrupted: bool,
    is_change: bool,
    /// Of the hosts that are accounted for. Hidden if answers are printed as they come.
    progress: Progress,
    done: usize,
}

/// Failure of an operation on one host, with what was printed before it: a part of a change may have been made.
pub(super) struct Problem {
    outcome: Outcome,
    exit: Exit,
    reason: String,
    kernel: String,
    said: Box<HostOutput>,
}

impl Problem {
    /// A failure, after what was printed before it.
    pub(super) fn new(failure: &Failure, mut output: Output) -> Self {
        let exit = failure.report(&mut output);
        Self { reason: failure.to_string(), ..Self::refused(failure.outcome(), exit, output) }
    }

    fn refused(outcome: Outcome, exit: Exit, output: Output) -> Self {
        let said = Box::new(output.into_kept());
        Self { outcome, exit, reason: String::new(), kernel: String::new(), said }
    }
}

impl Operation for Problem {
    fn outcome(&self) -> Outcome {
        self.outcome
    }
}

/// Why a host has no answer.
pub(super) struct Missing {
    pub(super) reason: String,
    /// Exit code of the failure.
    exit: Exit,
}

impl<T: Send + 'static> HostRun<T> {
    /// Begins. The operation prints to an output of its own for each host.
    pub(super) fn start<A>(
        global: &Global,
        fleet: &Fleet,
        output: &Output,
        is_change: bool,
        operation: impl Fn(Client, Output) -> A + Send + Sync + 'static,
    ) -> Self
    where
        A: Future<Output = Result<(T, Output), Problem>> + Send + 'static,
    {
        let shared = Arc::new((operation, output.keeping()));
        let run = Run::start(
            fleet.hosts.clone(),
            fan_out(global, fleet, is_change),
            move |host: Host, client: Client| {
                let shared = Arc::clone(&shared);
                async move {
                    let output = shared.1.keeping();
                    // The kernel first: without it, the answer cannot be grouped.
                    let kernel = match client.host_basics().await {
                        Ok(host) => host.kernel_release,
                        Err(error) => return Err(Problem::new(&error.into(), output)),
                    };
                    let (value, output) = match (shared.0)(client, output).await {
                        Ok(done) => done,
                        Err(problem) => return Err(Problem { kernel, ..problem }),
                    };
                    let (outcome, said) = (Outcome::Answered, output.into_kept());
                    Ok((HostRecord { host: host.name, outcome, kernel, said }, value))
                }
            },
        );
        let progress = if output.is_structured() {
            Progress::hidden()
        } else {
            output.progress("waiting for hosts", fleet.hosts.len())
        };
        Self { run, timeout: global.timeout, is_interrupted: false, is_change, progress, done: 0 }
    }

    /// The next host: its record, and its answer. None: every host is accounted for.
    pub(super) async fn next(
        &mut self,
        stop: &mut StopCondition,
    ) -> Option<(HostRecord, Result<T, Missing>)> {
        let report = loop {
            tokio::select! {
                report = self.run.next() => break report,
                () = stop.signal() => {
                    self.is_interrupted = true;
                    self.run.interrupt();
                }
            }
        };
        let Some(report) = report else {
            self.progress = Progress::hidden();
            return None;
        };
        self.done += 1;
        self.progress.set(self.done);
        let outcome = report.outcome();
        let host = report.host.name;
        let (kernel, said, reason, exit) = match report.result {
            Ok((record, value)) => return Some((record, Ok(value))),
            Err(NoAnswer::Operation(error)) => match outcome {
                Outcome::Refused => (error.kernel, *error.said, error.reason, error.exit),
                // The deadlines of the request and of the host are equal: either may be noticed first.
                Outcome::TimedOut => {
                    let said = HostOutput { messages: no_answer_within(self.timeout), ..*error.said };
                    (error.kernel, said, error.reason, Exit::Success)
                }
                _ => (error.kernel, *error.said, error.reason, Exit::Success),
            },
            Err(why) => {
                let text = text_of(&why, self.is_change);
                (String::new(), HostOutput::messages(text.clone()), text, Exit::Success)
            }
        };
        Some((HostRecord { host, outcome, kernel, said }, Err(Missing { reason, exit })))
    }

    /// The account until now.
    pub(super) fn ledger(&self) -> HostLedger {
        self.run.ledger()
    }
}

/// How many hosts are asked at once, and for how long. How many changes a command makes on a host is known only
/// there: each of its requests has a limit by their number, and so the host has the one of the largest request.
fn fan_out(global: &Global, fleet: &Fleet, is_change: bool) -> FanOut {
    let changes = if is_change { Client::CHANGES_AT_ONCE } else { 1 };
    FanOut {
        parallel: fleet.parallel.unwrap_or(FanOut::default().parallel),
        deadline: Client::time_for_changes(global.timeout, changes),
        fail_fast: global.fail_fast,
    }
}

fn text_of(why: &NoAnswer<Problem>, is_change: bool) -> String {
    match why {
        NoAnswer::Unreachable(error) => error.without_target(),
        NoAnswer::TimedOut(deadline) => no_answer_within(*deadline),
        NoAnswer::Interrupted if is_change => {
            "interrupted before it answered: check before you repeat it".to_owned()
        }
        NoAnswer::Interrupted => "interrupted before it answered".to_owned(),
        NoAnswer::NotTried => "the run ended before".to_owned(),
        NoAnswer::Broken(problem) => problem.clone(),
        _ => "no answer".to_owned(),
    }
}

fn no_answer_within(deadline: Duration) -> String {
    format!("no answer within {deadline:?}")
}

/// Runs a command on all hosts.
pub(crate) async fn run(
    command: HostCommand,
    global: &Global,
    fleet: &Fleet,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let (exit, missing) = ask_all(command, global, fleet, output).await?;
    remember(fleet, missing.iter().map(String::as_str), output);
    exit
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
    if is_confirmed(global, fleet) {
        return Ok(());
    }
    let (limit, hosts) = (fleet.confirm_above.unwrap_or(CONFIRM_ABOVE), fleet.hosts.len());
    if let Some(plan) = plan {
        ask_all(plan, global, fleet, output).await?.0?;
    }
    Err(not_confirmed(hosts, limit))
}

/// So many hosts are not changed without a confirmation.
pub(super) fn not_confirmed(hosts: usize, limit: u64) -> Failure {
    let message = format!("this would change {hosts} hosts, and more than {limit} need a confirmation");
    Failure::usage(message, "add `--yes`")
}

/// Whether so many hosts can be changed.
pub(super) fn is_confirmed(global: &Global, fleet: &Fleet) -> bool {
    global.yes || fleet.hosts.len() as u64 <= fleet.confirm_above.unwrap_or(CONFIRM_ABOVE)
}

/// Saves the names of the hosts without an answer for `@failed`.
#[expect(single_use_lifetimes, reason = "`impl Trait` needs a name for it")]
pub(super) fn remember<'a>(fleet: &Fleet, missing: impl Iterator<Item = &'a str>, output: &mut Output) {
    let names: String = missing.flat_map(|host| [host, "\n"]).collect();
    if let Some(path) = state_file(fleet.context.as_deref())
        && let Err(error) = replace(&path, names.as_bytes())
    {
        output.note(&format!("`--hosts @failed` will not know of this run: {error}"));
    }
}

/// Asks all hosts, prints their answers, and returns the exit code and the names of hosts without
/// an answer. A change is made on all hosts, even if their answers cannot be printed.
async fn ask_all(
    command: HostCommand,
    global: &Global,
    fleet: &Fleet,
    output: &mut Output,
) -> Result<(Result<Exit, Failure>, Vec<String>), Failure> {
    let mut stop = StopCondition::new()?;
    raise_for(&fan_out(global, fleet, command.is_change), fleet.hosts.len())?;
    let (is_change, is_strict) = (command.is_change, command.is_strict);
    let shared = global.clone();
    let mut run = HostRun::start(global, fleet, output, is_change, move |client, output| {
        on_one(command.clone(), Global { client: Some(client), ..shared.clone() }, output)
    });
    let (mut records, mut judged) = (Vec::new(), Vec::new());
    let (mut missing, mut worst, mut refused) = (Vec::new(), Exit::Success, Exit::Success);
    let mut printed = Ok(());
    while let Some((record, answer)) = run.next(&mut stop).await {
        match answer {
            Ok((exit, verdicts)) => {
                worst = worst.max(exit);
                judged.push((record.host.clone(), record.kernel.clone(), verdicts));
            }
            Err(why) => {
                refused = refused.max(why.exit);
                missing.push(record.host.clone());
            }
        }
        let record_printed = output.host_record(&record);
        if is_change {
            printed = printed.and(record_printed);
        } else {
            record_printed?;
        }
        // JSON and YAML are printed as answers arrive; as text, equal answers are shown once at the
        // end.
        if !output.is_structured() {
            records.push(record);
        }
    }
    let ledger = run.ledger();
    // Hosts that refused are among the missing ones.
    if !global.tolerate.covers(ledger.missing(), ledger.targeted()) {
        worst = worst.max(refused);
    }
    let contrasts = Contrast::find(&judged);
    if is_strict && !contrasts.iter().all(Contrast::is_harmless) {
        worst = worst.max(Exit::Refused);
    }
    let exit = exit(&ledger, worst, global);
    let printed = printed.and_then(|()| output.hosts(&records, &contrasts, &ledger)).map_err(Failure::from);
    let ended = match printed {
        // The reader needs no more output, and all hosts were asked.
        Err(closed) if closed.is_broken_pipe() => Ok(exit),
        printed => printed.map(|()| exit),
    };
    Ok((ended, missing))
}

/// Runs the command on one host.
async fn on_one(
    command: HostCommand,
    global: Global,
    output: Output,
) -> Result<((Exit, Vec<Judged>), Output), Problem> {
    let (result, mut output) = (command.run)(global, output).await;
    match result {
        Ok(exit) if command.is_change && exit != Exit::Success => {
            let outcome = if exit == Exit::Refused { Outcome::Refused } else { Outcome::Failed };
            Err(Problem::refused(outcome, exit, output))
        }
        Ok(exit) => Ok(((exit, output.take_judged()), output)),
        Err(failure) => Err(Problem::new(&failure, output)),
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

/// Descriptors for everything but connections.
const OTHERS: u64 = 64;

/// Raises the limit so that this many connections can be open at a time.
///
/// # Errors
/// When the hard limit is lower; `instead` is the other way out, for the hint.
pub(super) fn raise(connections: usize, instead: &str) -> Result<(), Failure> {
    let needed = OTHERS.saturating_add(connections as u64);
    // Without a limit that can be read, connections themselves say what is wrong.
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return Ok(()) };
    if needed <= soft || needed <= hard && setrlimit(Resource::RLIMIT_NOFILE, needed, hard).is_ok() {
        return Ok(());
    }
    let message = format!(
        "{connections} connections need {needed} open files, and the limit of this process is {hard}"
    );
    Err(Failure::usage(message, &format!("raise it (`ulimit -Hn {needed}` as root), or {instead}")))
}

/// Raises the limit for a run over this many hosts.
///
/// # Errors
/// As [`raise`].
pub(super) fn raise_for(fan_out: &FanOut, hosts: usize) -> Result<(), Failure> {
    // Those to the last hosts may be closing while those to the next are made.
    raise(fan_out.parallel.get().min(hosts) * 2, "lower `--parallel`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_as_far_as_it_is_needed_and_no_further() {
        let soft = || getrlimit(Resource::RLIMIT_NOFILE).unwrap().0;
        let (before, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 200, hard).unwrap();
        raise(100, "").unwrap();
        assert_eq!(soft(), 200);
        raise(300, "").unwrap();
        assert_eq!(soft(), 364);
        let connections = usize::try_from(hard).unwrap();
        let refused = raise(connections, "walk").unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "{hard} connections need {} open files, and the limit of this process is {hard}",
                hard + 64
            )
        );
        assert_eq!(refused.hints(), [format!("raise it (`ulimit -Hn {}` as root), or walk", hard + 64)]);
        setrlimit(Resource::RLIMIT_NOFILE, before, hard).unwrap();
    }
}
