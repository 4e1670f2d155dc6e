//! The threads that serve a connection: those for control calls, or those for streams.
//!
//! A connection begins on the threads for control calls. With its first stream it moves to those
//! for streams, with all its tasks. Otherwise the tasks of streams would delay control calls: one
//! turn of each stream for every step of a call.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::turns::{InTurn, Turns};

/// The lane of one connection.
#[derive(Clone, Debug)]
pub(super) struct Lane(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    control: Handle,
    streams: Handle,
    /// Among the control calls, the peer's.
    turns: Turns,
    has_streams: AtomicBool,
    /// Whether the connection is served by the threads for streams now.
    has_moved: AtomicBool,
    changed: Notify,
}

impl Lane {
    /// Begins among the control calls of this runtime.
    pub(super) fn new(streams: Handle, turns: Turns) -> Self {
        let control = Handle::current();
        Self(Arc::new(Shared {
            control,
            streams,
            turns,
            has_streams: AtomicBool::new(false),
            has_moved: AtomicBool::new(false),
            changed: Notify::new(),
        }))
    }

    /// The runtime that serves streams.
    pub(super) fn streams(&self) -> &Handle {
        &self.0.streams
    }

    /// Whether it has, or had, a stream.
    pub(super) fn has_streams(&self) -> bool {
        self.0.has_streams.load(Ordering::Acquire)
    }

    /// A stream begins.
    pub(super) fn take_streams(&self) {
        if !self.0.has_streams.swap(true, Ordering::AcqRel) {
            self.0.changed.notify_one();
        }
    }

    /// The threads for streams begin to serve the connection. To be called by one of them.
    pub(super) fn moved(&self) {
        self.0.has_moved.store(true, Ordering::Release);
    }

    /// Whether they do.
    pub(super) fn has_moved(&self) -> bool {
        self.0.has_moved.load(Ordering::Acquire)
    }

    /// Waits for the first stream.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }
}

impl<F> hyper::rt::Executor<F> for Lane
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        if self.has_streams() {
            self.0.streams.spawn(future);
        } else {
            self.0.control.spawn(Movable { lane: self.clone(), task: Some(self.0.turns.take(future)) });
        }
    }
}

/// A task that moves to the threads for streams.
struct Movable<F> {
    lane: Lane,
    task: Option<InTurn<F>>,
}

impl<F> Future for Movable<F>
where
    F: Future<Output = ()> + Send + 'static,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(task) = &mut self.task else { return Poll::Ready(()) };
        if Pin::new(task).poll(context).is_ready() {
            return Poll::Ready(());
        }
        if !self.lane.has_streams() {
            return Poll::Pending;
        }
        if let Some(task) = self.task.take() {
            self.lane.streams().spawn(task.into_inner());
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use hyper::rt::Executor as _;
    use tokio::runtime::Builder;
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    #[test]
    fn a_task_goes_over_with_the_first_stream() {
        let runtime = |name: &str| {
            Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build().unwrap()
        };
        let (control, streams) = (runtime("control"), runtime("streams"));
        let lane =
            control.block_on(async { Lane::new(streams.handle().clone(), Turns::new(Arc::default())) });
        let (told, mut names) = mpsc::unbounded_channel();
        let (begin, begun) = oneshot::channel::<()>();
        let place = move || std::thread::current().name().map(str::to_owned);
        let inner = lane.clone();
        control.block_on(async {
            lane.execute(async move {
                told.send(place()).unwrap();
                begun.await.unwrap();
                inner.take_streams();
                tokio::task::yield_now().await;
                told.send(place()).unwrap();
            });
            assert_eq!(names.recv().await.unwrap().as_deref(), Some("control"));
            begin.send(()).unwrap();
            assert_eq!(names.recv().await.unwrap().as_deref(), Some("streams"));
            lane.changed().await;
        });
    }
}
