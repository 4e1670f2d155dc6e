//! Turns of principals at the control thread: one command of each in turn, whoever asks for how many.
//!
//! Owns in which order commands are carried out, and how many of one principal wait. Never carries one out: that
//! is [`super::controller`].

use std::collections::VecDeque;
use std::sync::Weak;

use tokio::sync::OwnedSemaphorePermit;

use super::command::Command;
use crate::auth::Caller;

/// Commands of one principal that may wait for the control thread. More wait in their callers, which hold them.
pub(super) const MOST_OF_ONE: usize = 16;

/// Who asks: the account of a principal. Empty for the daemon, and for requests that change nothing.
pub(super) type Account = String;

/// A command on its way to the control thread.
pub(super) struct QueuedCommand {
    /// Who asks. Absent for the daemon, for what only reads, and for repairs, which are of all probes.
    pub(super) caller: Option<Caller>,
    /// What it asks for, for the log.
    pub(super) kind: &'static str,
    /// Whether it may write to the kernel.
    pub(super) writes: bool,
    /// Its caller holds this for as long as it waits. Absent if the command is carried out in any case.
    pub(super) alive: Option<Weak<()>>,
    pub(super) command: Command,
    /// Given back when the control thread takes the command.
    pub(super) place: Option<OwnedSemaphorePermit>,
}

impl QueuedCommand {
    /// A command that is carried out whether its caller waits or not, and writes nothing to the kernel.
    pub(super) fn new(command: Command) -> Self {
        Self { caller: None, kind: "", writes: false, alive: None, command, place: None }
    }

    pub(super) fn account(&self) -> Account {
        self.caller.as_ref().map(|caller| caller.principal.account()).unwrap_or_default()
    }

    /// Whether the caller has gone: its deadline has passed, it has cancelled the call, or its connection has closed.
    pub(super) fn is_abandoned(&self) -> bool {
        self.alive.as_ref().is_some_and(|alive| alive.strong_count() == 0)
    }
}

/// Commands that wait, those of each principal in their order.
#[derive(Default)]
pub(super) struct Turns {
    /// Principals in the order of their turns. None is there without a command.
    waiting: VecDeque<(Account, VecDeque<QueuedCommand>)>,
    /// Whose command was taken last, and its others. Whoever comes meanwhile goes first.
    last: Option<(Account, VecDeque<QueuedCommand>)>,
    /// A command was taken since the last question for a turn.
    was_taken: bool,
}

impl Turns {
    /// A command waits.
    pub(super) fn push(&mut self, queued: QueuedCommand) {
        let account = queued.account();
        let mut all = self.waiting.iter_mut().chain(&mut self.last);
        match all.find(|(known, _)| *known == account) {
            Some((_, commands)) => commands.push_back(queued),
            None => self.waiting.push_back((account, VecDeque::from([queued]))),
        }
    }

    /// The next command.
    pub(super) fn next(&mut self) -> Option<QueuedCommand> {
        self.waiting.extend(self.last.take().filter(|(_, commands)| !commands.is_empty()));
        let (account, mut commands) = self.waiting.pop_front()?;
        let taken = commands.pop_front()?;
        self.last = Some((account, commands));
        self.was_taken = true;
        Some(QueuedCommand { place: None, ..taken })
    }

    /// Whether the next turn is that of a command, whatever else is due: one waits, and none has just been carried out.
    pub(super) fn has_turn(&mut self) -> bool {
        !std::mem::take(&mut self.was_taken) && !self.is_empty()
    }

    /// Whether no command waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.last.as_ref().is_none_or(|(_, commands)| commands.is_empty())
    }

    /// The command that was taken last is the next one all the same.
    pub(super) fn put_back(&mut self, taken: QueuedCommand) {
        let (account, mut commands) = self.last.take().unwrap_or_default();
        commands.push_front(taken);
        self.waiting.push_front((account, commands));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use kprobed_rights::{Method, Principal};
    use tokio::task::JoinSet;

    use super::*;
    use crate::auth::Operation;
    use crate::{Controller, CreateRequest};

    fn caller(uid: u32) -> Caller {
        let principal = Principal::of_names(&[format!("uid:{uid}")]).unwrap();
        Caller::new(Arc::new(principal), Method::named("CreateProbe").unwrap(), Operation::default())
    }

    /// Whatever is due is done between two commands, and a command is carried out between two of that.
    #[test]
    fn commands_and_what_is_due_take_turns() {
        let mut turns = Turns::default();
        assert!(!turns.has_turn(), "none waits");
        for _ in 0..2 {
            turns.push(QueuedCommand::new(Command::Stop(None)));
        }
        for _ in 0..2 {
            assert!(turns.has_turn() && turns.has_turn(), "until it has had its turn");
            assert!(turns.next().is_some());
            assert!(!turns.has_turn(), "what is due comes now");
        }
        assert!(!turns.has_turn() && turns.is_empty());
    }

    /// However many changes of one principal wait, another one waits for the change that is under way, and for none of
    /// those behind it.
    #[tokio::test]
    async fn many_changes_of_one_hold_up_another_by_one() {
        let (control, mut queue) = Controller::channel();
        let mut asking = JoinSet::new();
        let mut ask = |uid: u32| {
            let control = control.clone();
            asking.spawn(async move { drop(control.create(&caller(uid), CreateRequest::default()).await) });
        };
        (0..100).for_each(|_| ask(1));
        let mut turns = Turns::default();
        let mut arrive = async |turns: &mut Turns| {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let mut arrived = 0;
            while let Ok(queued) = queue.0.try_recv() {
                turns.push(queued);
                arrived += 1;
            }
            arrived
        };
        assert_eq!(arrive(&mut turns).await, MOST_OF_ONE, "the others wait in their callers");
        // Under way.
        assert_eq!(turns.next().unwrap().account(), "uid:1");
        for uid in [2, 2, 3] {
            ask(uid);
        }
        arrive(&mut turns).await;
        let mut order = Vec::new();
        for _ in 0..7 {
            order.push(turns.next().unwrap().account());
            arrive(&mut turns).await;
        }
        assert_eq!(order, ["uid:2", "uid:3", "uid:1", "uid:2", "uid:1", "uid:1", "uid:1"]);
        // What is put back keeps its turn.
        let next = turns.next().unwrap();
        turns.put_back(next);
        ask(4);
        arrive(&mut turns).await;
        assert_eq!(turns.next().unwrap().account(), "uid:1");
        assert_eq!(turns.next().unwrap().account(), "uid:4");
        asking.abort_all();
    }
}
