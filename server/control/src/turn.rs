//! Turns of principals at the control thread: one command of each in turn, whoever asks for how many.
//!
//! Owns in which order commands are carried out, and how many of one principal wait. Never carries one out: that
//! is [`super::controller`].

use std::collections::VecDeque;

use tokio::sync::OwnedSemaphorePermit;

use super::command::Command;
use crate::places::Places;

/// Commands of one principal that may wait for the control thread. More wait in their callers, which hold them.
pub(super) const MOST_OF_ONE: usize = 16;

/// Who asks: the account of a principal. Empty for the daemon, and for requests that change nothing.
pub(super) type Account = String;

/// A command on its way to the control thread.
#[derive(Debug)]
pub(super) struct QueuedCommand {
    account: Account,
    pub(super) command: Command,
    /// Given back when the control thread takes the command.
    place: Option<OwnedSemaphorePermit>,
}

impl QueuedCommand {
    /// A command that waits, once its principal has a place for it.
    pub(super) async fn new(command: Command, places: &Places<Account>) -> Self {
        let account = command.caller().map(|caller| caller.principal.account()).unwrap_or_default();
        let place = places.take(&account).await;
        Self { account, command, place }
    }

    /// A command that the control thread gives to itself.
    pub(super) fn of_the_daemon(command: Command) -> Self {
        Self { account: Account::new(), command, place: None }
    }
}

/// Commands that wait, those of each principal in their order.
#[derive(Debug, Default)]
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
        let mut all = self.waiting.iter_mut().chain(&mut self.last);
        match all.find(|(account, _)| *account == queued.account) {
            Some((_, commands)) => commands.push_back(queued),
            None => self.waiting.push_back((queued.account.clone(), VecDeque::from([queued]))),
        }
    }

    /// The next command.
    pub(super) fn next(&mut self) -> Option<Command> {
        self.waiting.extend(self.last.take().filter(|(_, commands)| !commands.is_empty()));
        let (account, mut commands) = self.waiting.pop_front()?;
        let QueuedCommand { command, place, .. } = commands.pop_front()?;
        drop(place);
        self.last = Some((account, commands));
        self.was_taken = true;
        Some(command)
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
    pub(super) fn put_back(&mut self, command: Command) {
        let (account, mut commands) = self.last.take().unwrap_or_default();
        commands.push_front(QueuedCommand { account: account.clone(), command, place: None });
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
    use crate::auth::{Caller, Operation};
    use crate::{Controller, CreateRequest};

    fn caller(uid: u32) -> Caller {
        let principal = Principal::of_names(&[format!("uid:{uid}")]).unwrap();
        Caller::new(Arc::new(principal), Method::named("CreateProbe").unwrap(), Operation::default())
    }

    fn who(command: &Command) -> String {
        command.caller().map(|caller| caller.principal.account()).unwrap_or_default()
    }

    /// Whatever is due is done between two commands, and a command is carried out between two of that.
    #[test]
    fn commands_and_what_is_due_take_turns() {
        let mut turns = Turns::default();
        assert!(!turns.has_turn(), "none waits");
        for _ in 0..2 {
            turns.push(QueuedCommand::of_the_daemon(Command::Stop(None)));
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
        assert_eq!(who(&turns.next().unwrap()), "uid:1");
        for uid in [2, 2, 3] {
            ask(uid);
        }
        arrive(&mut turns).await;
        let mut order = Vec::new();
        for _ in 0..7 {
            order.push(who(&turns.next().unwrap()));
            arrive(&mut turns).await;
        }
        assert_eq!(order, ["uid:2", "uid:3", "uid:1", "uid:2", "uid:1", "uid:1", "uid:1"]);
        // What is put back keeps its turn.
        let next = turns.next().unwrap();
        turns.put_back(next);
        ask(4);
        arrive(&mut turns).await;
        assert_eq!(who(&turns.next().unwrap()), "uid:1");
        assert_eq!(who(&turns.next().unwrap()), "uid:4");
        asking.abort_all();
    }
}
