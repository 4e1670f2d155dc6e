//! Recorded answers in place of the control thread, for benchmarks of the daemon's front without a
//! kernel.
//!
//! Owns which command gets which answer. Never changes anything.

use std::sync::Arc;
use std::time::SystemTime;

use kprobed_proto::v1;

use super::aggregation::{AggregationCommand, NumberedAggregation, no_aggregation};
use super::command::Command;
use super::controller::answer;
use super::{Applied, Changed, CommandQueue, CountedHits, Ledger, Probe, Reconciliation};
use kprobed_lang::model::HitProfile;

/// The answers given instead of by [`Controller::run`](super::Controller::run).
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The outcome of each change, unless it removes something.
    pub probe: Arc<Probe>,
    /// The hit counts.
    pub profiles: Vec<HitProfile>,
    /// The ledger.
    pub ledger: Ledger,
    /// The counts of each aggregation; its name and its times are those of the aggregation.
    pub snapshot: v1::AggregationSnapshot,
    /// The keys of the rows of that.
    pub keys: Vec<v1::AggregationColumn>,
    /// What a look finds.
    pub reconciliation: Reconciliation,
}

/// The aggregations of one run.
#[derive(Default)]
struct Made {
    /// How many there have been.
    count: u64,
    /// Those that are not deleted.
    now: Vec<NumberedAggregation>,
}

impl Recorded {
    /// Answers until all handles are gone. A command without an answer here fails as it does when
    /// the daemon stops.
    pub async fn run(self, mut queue: CommandQueue) {
        let mut made = Made::default();
        while let Some(queued) = queue.0.recv().await {
            match queued.command {
                Command::Apply(changes, _, reply) => {
                    let outcomes =
                        changes.iter().map(|_| Ok(Changed::Probe(Arc::clone(&self.probe)))).collect();
                    answer(reply, Ok(Applied { outcomes, plan: Vec::new() }));
                }
                Command::Aggregation(command) => self.aggregate(command, &mut made),
                Command::HitProfiles(reply) => answer(reply, Ok(self.profiles.clone())),
                Command::CountedHits(reply) => answer(reply, Ok(self.counted_hits())),
                Command::Sample(reply) => answer(reply, Ok(())),
                Command::Ledger(reply) => answer(reply, Ok(self.ledger.clone())),
                Command::Reconcile { reply, .. } => answer(reply, Ok(self.reconciliation.clone())),
                _ => {}
            }
        }
    }

    fn aggregate(&self, command: AggregationCommand, made: &mut Made) {
        match command {
            AggregationCommand::Create(_, request, reply) => {
                made.count += 1;
                let aggregation = Arc::new(v1::Aggregation {
                    name: format!("recorded_{}", made.count),
                    spec: Some(v1::AggregationSpec { aggregation: Some(request.spec) }),
                    create_time: Some(SystemTime::now().into()),
                    bound_to_stream: request.bound_to_stream,
                    keys: self.keys.clone(),
                    ..Default::default()
                });
                let numbered = NumberedAggregation { number: made.count, aggregation };
                made.now.push(numbered.clone());
                answer(reply, Ok(numbered));
            }
            AggregationCommand::Find(_, name, reply) => {
                let found = made.now.iter().find(|one| one.aggregation.name == name);
                answer(reply, found.cloned().ok_or_else(|| no_aggregation(&name)));
            }
            AggregationCommand::Delete(_, name, reply) => {
                made.now.retain(|one| one.aggregation.name != name);
                answer(reply, Ok(Some(self.snapshot(name))));
            }
            AggregationCommand::End(number, reply) => {
                made.now.retain(|one| one.number != number);
                answer(reply, Ok(()));
            }
            AggregationCommand::Read(_, which, reply) => {
                answer(reply, Ok(self.snapshot(which.aggregation.name.clone())));
            }
            AggregationCommand::List(_, reply) => {
                answer(reply, Ok(made.now.iter().map(|one| Arc::clone(&one.aggregation)).collect()));
            }
        }
    }

    /// None of them by the daemon itself.
    fn counted_hits(&self) -> Vec<CountedHits> {
        self.profiles.iter().map(|profile| CountedHits { profile: profile.clone(), own: Ok(0) }).collect()
    }

    fn snapshot(&self, name: String) -> v1::AggregationSnapshot {
        v1::AggregationSnapshot { name, time: Some(SystemTime::now().into()), ..self.snapshot.clone() }
    }
}
