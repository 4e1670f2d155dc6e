//! Turns: how many threads for control calls one peer may have at a time.
//!
//! Owns that a peer, however much it asks for, leaves a thread to the others, if there are others and more
//! than one thread. A turn is one poll of a task. It is never held while a task waits, nor while the kernel
//! may hold up a thread, so that no call waits for another one.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;

thread_local! {
    /// The turn of the task that this thread polls.
    static TURN: RefCell<Option<OwnedSemaphorePermit>> = const { RefCell::new(None) };
}

/// Does something that the kernel may hold up, such as reading files of tracefs while another program writes
/// there: other tasks go on elsewhere, those of the same peer too. What takes nothing but processor time
/// keeps its turn.
pub(crate) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    drop(TURN.take());
    tokio::task::block_in_place(work)
}

/// The turn that the thread had before a poll, and has again after it.
struct Polling(Option<OwnedSemaphorePermit>);

impl Drop for Polling {
    fn drop(&mut self) {
        TURN.set(self.0.take());
    }
}

/// The turns of one peer.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    places: Arc<Semaphore>,
    are_others: Arc<AtomicBool>,
}

impl Turns {
    /// All threads of this runtime but one. `are_others` says whether another peer has a connection.
    pub(crate) fn new(are_others: Arc<AtomicBool>) -> Self {
        let threads = Handle::try_current().map_or(1, |runtime| runtime.metrics().num_workers());
        Self { places: Arc::new(Semaphore::new((threads - 1).max(1))), are_others }
    }

    /// A task of the peer that takes turns.
    pub(crate) fn take<F>(&self, task: F) -> InTurn<F> {
        InTurn {
            places: PollSemaphore::new(Arc::clone(&self.places)),
            turns: self.clone(),
            task: Box::pin(task),
        }
    }
}

/// A task that takes turns.
pub(crate) struct InTurn<F> {
    turns: Turns,
    places: PollSemaphore,
    task: Pin<Box<F>>,
}

impl<F> InTurn<F> {
    /// The task, without turns from now on.
    pub(crate) fn into_inner(self) -> Pin<Box<F>> {
        self.task
    }
}

impl<F: Future> Future for InTurn<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let turn = if self.turns.are_others.load(Ordering::Relaxed) {
            ready!(self.places.poll_acquire(context))
        } else {
            None
        };
        let _before = Polling(TURN.replace(turn));
        self.task.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn a_thread_is_left_to_others() {
        let turns = Turns::new(Arc::new(AtomicBool::new(true)));
        // Two of them are polled, and do not give their turns back before the third was looked at.
        let together = Arc::new(std::sync::Barrier::new(2));
        let (mut tasks, mut releases) = (JoinSet::new(), Vec::new());
        let (told, mut polled) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..2 {
            let (release, released) = std::sync::mpsc::channel::<()>();
            releases.push(release);
            let (together, told) = (Arc::clone(&together), told.clone());
            tasks.spawn(turns.take(async move {
                together.wait();
                told.send(()).unwrap();
                released.recv().unwrap_err();
            }));
        }
        for _ in 0..2 {
            polled.recv().await.unwrap();
        }
        let mut third = turns.take(async {});
        let waits =
            std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut third).poll(context).is_pending()));
        assert!(waits.await, "a third thread was taken");
        drop(releases);
        third.await;
        tasks.join_all().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn without_others_all_threads_are_taken() {
        let turns = Turns::new(Arc::new(AtomicBool::new(false)));
        // Each of them waits in its poll for the other two.
        let together = Arc::new(std::sync::Barrier::new(3));
        let mut tasks = JoinSet::new();
        for _ in 0..3 {
            let together = Arc::clone(&together);
            tasks.spawn(turns.take(async move {
                together.wait();
            }));
        }
        tasks.join_all().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_task_that_blocks_has_no_turn() {
        let turns = Turns::new(Arc::new(AtomicBool::new(true)));
        let (told, news) = std::sync::mpsc::channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(turns.take(async move { blocking(|| news.recv().unwrap()) }));
        tasks.spawn(turns.take(async move {
            told.send(7).unwrap();
            7
        }));
        assert_eq!(tasks.join_all().await, [7, 7]);
        assert_eq!(turns.places.available_permits(), 1);
    }

    #[tokio::test]
    async fn a_task_that_waits_has_no_turn() {
        let turns = Turns::new(Arc::new(AtomicBool::new(true)));
        let (told, news) = tokio::sync::oneshot::channel();
        let (waits, tells) = (turns.take(news), turns.take(async move { told.send(7).unwrap() }));
        let (news, ()) = tokio::join!(waits, tells);
        assert_eq!(news.unwrap(), 7);
        // One that was given up while it waited for its turn keeps none waiting.
        let place = turns.places.acquire().await.unwrap();
        let mut given_up = turns.take(async {});
        std::future::poll_fn(|context| {
            assert!(Pin::new(&mut given_up).poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        drop((given_up, place));
        turns.take(async {}).await;
    }
}
