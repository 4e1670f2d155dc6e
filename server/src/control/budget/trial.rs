//! Trial: how often a place is run into, counted with a probe that is armed for a moment.
//!
//! Owns how long that takes, and its end if it costs too much. The probe is one that its caller
//! could make, under a temporary name; nothing of it is shown, stored or left.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::cost::HitCost;
use super::seen::{MOST_BYTES, shares_of_user_addresses};
use super::temporary::{GROUP, Temporary, TemporaryError};
use crate::auth::Caller;
use crate::control::ControlError;
use crate::control::apply::{Grounds, Judged};
use crate::control::command::{CreateRequest, Reply};
use crate::control::controller::Controller;
use kprobed_verdict::checker::DefinitionText;

/// Its event. There is one trial at a time.
const EVENT: &str = "trial";

/// Time between two looks at the count.
const LOOK: Duration = Duration::from_millis(10);

/// What a trial may cost, if probes have no budget, in nanoseconds.
const MOST_NS: u64 = 50_000_000;

/// Try a definition.
#[derive(Clone, Debug)]
pub struct TrialRequest {
    /// The client's text.
    pub definition: Arc<DefinitionText>,
    /// How long it is armed.
    pub duration: Duration,
}

/// What a trial has found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// Hits, with the runs that the kernel skipped.
    pub runs: u64,
    /// How long the probe was armed.
    pub duration: Duration,
    /// What one hit takes, by the values that were read.
    pub cost: HitCost,
    /// Whether it ended early, since it cost as much as a probe may cost in a second.
    pub has_ended_early: bool,
}

impl Controller {
    /// Arms a probe for a moment and counts its hits. Judged as the creation of the probe is, except for
    /// limits on probes that stay. It ends with the caller.
    pub(in crate::control) async fn try_probe(
        &mut self,
        caller: &Caller,
        request: TrialRequest,
        reply: &Reply<Trial>,
    ) -> Result<Trial, ControlError> {
        let TrialRequest { definition, duration } = request;
        let checker = Arc::clone(&self.parts.checker);
        let mut grounds = Grounds::new(checker.recent_facts(), self.observer.observe(&[]));
        let create =
            CreateRequest { definition, enabled: true, validate_only: true, ..CreateRequest::default() };
        let Judged::Work(work) = self.judge_new(caller, create, &mut grounds).await? else {
            return Err(ControlError::Stopping);
        };
        let probe = &work.job.probe;
        let cost = self.parts.costs.table().hit(probe.kind, probe.arming, &probe.kernel_definition);
        let most_ns = self.parts.budget.probe_ns_per_s.unwrap_or(MOST_NS);
        let line = renamed(&probe.kernel_definition);
        let mut temporary = Temporary::make(self.tracefs(), &self.parts.instance_options.name)?;
        let counted = count(&mut temporary, &line, duration, most_ns as f64 / cost.ns, reply).await;
        let shares = shares_of_user_addresses(&line, &temporary.recorded(MOST_BYTES).unwrap_or_default());
        let removed = temporary.remove();
        let (runs, duration, has_ended_early) = counted?;
        removed?;
        let costs = self.parts.costs.table();
        let cost = costs.hit_with(probe.kind, probe.arming, (&probe.kernel_definition, &shares));
        tracing::info!(definition = line, runs, ?duration, "tried a probe");
        Ok(Trial { runs, duration, cost, has_ended_early })
    }
}

/// Counts until the time is over, until there are more hits than `most`, or until the caller has gone.
async fn count(
    temporary: &mut Temporary<'_>,
    line: &str,
    time: Duration,
    most: f64,
    reply: &Reply<Trial>,
) -> Result<(u64, Duration, bool), TemporaryError> {
    let event = temporary.arm(EVENT, line)?;
    let begun = Instant::now();
    loop {
        let left = time.saturating_sub(begun.elapsed());
        sleep(left.min(LOOK)).await;
        let (runs, elapsed) = (temporary.hits(&event)?, begun.elapsed());
        let is_dear = runs as f64 > most && elapsed < time;
        if elapsed >= time || is_dear || reply.is_closed() {
            return Ok((runs, elapsed, is_dear));
        }
    }
}

/// A line of `kprobe_events` with the name of the trial.
fn renamed(line: &str) -> String {
    let (head, rest) = line.split_once(' ').unwrap_or((line, ""));
    let kind = head.split_once(':').map_or(head, |(kind, _)| kind);
    format!("{kind}:{GROUP}/{EVENT} {rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_is_another_one() {
        for (line, expected) in [
            (
                "p:kprobes/open vfs_open a=%di:u64 b=+0(%si):string",
                "p:kprobed_temporary/trial vfs_open a=%di:u64 b=+0(%si):string",
            ),
            ("r16:mine/done vfs_open+0x0", "r16:kprobed_temporary/trial vfs_open+0x0"),
        ] {
            assert_eq!(renamed(line), expected);
        }
    }
}
