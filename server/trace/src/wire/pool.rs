//! Pool of message buffers.
//!
//! Owns buffers, which it uses again once no subscriber holds the message in them: fresh memory
//! would fault in its pages for each message, which costs more than writing the message. Never
//! changes a message that is in use.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};

/// Number of buffers that are kept: that many messages can be in use before the pool allocates new
/// memory.
const BUFFERS: usize = 16;

/// Smaller messages get memory of their own. A subscriber that does not read may keep a message for
/// long, and with it the whole buffer.
const SMALLEST_BYTES: usize = 24 << 10;

/// Buffer sizes are multiples of this.
const STEP_BYTES: usize = 32 << 10;

/// Buffers for messages. Several threads may make messages at once.
#[derive(Debug, Default)]
pub struct MessagePool {
    buffers: Mutex<Vec<BytesMut>>,
}

impl MessagePool {
    /// Makes a message of about `bytes` bytes; it may become longer, at the price of a copy.
    pub(super) fn message(&self, bytes: usize, write: impl FnOnce(&mut BytesMut)) -> Bytes {
        if bytes < SMALLEST_BYTES {
            let mut buffer = BytesMut::with_capacity(bytes);
            write(&mut buffer);
            return buffer.freeze();
        }
        let mut buffer =
            self.take(bytes).unwrap_or_else(|| BytesMut::with_capacity(bytes.next_multiple_of(STEP_BYTES)));
        write(&mut buffer);
        let message = buffer.split().freeze();
        let mut buffers = self.buffers();
        if buffers.len() < BUFFERS {
            buffers.push(buffer);
        }
        message
    }

    /// A buffer whose message no subscriber holds any more.
    fn take(&self, bytes: usize) -> Option<BytesMut> {
        let mut buffers = self.buffers();
        let free = buffers.iter_mut().position(|buffer| buffer.try_reclaim(bytes))?;
        Some(buffers.swap_remove(free))
    }

    fn buffers(&self) -> MutexGuard<'_, Vec<BytesMut>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(pool: &MessagePool, bytes: usize) -> Bytes {
        pool.message(bytes, |buffer| buffer.resize(bytes, 7))
    }

    #[test]
    fn memory_is_used_again_once_a_message_is_gone() {
        let pool = MessagePool::default();
        let first = message(&pool, 40 << 10);
        let (place, held) = (first.as_ptr(), message(&pool, 40 << 10));
        assert_ne!(held.as_ptr(), place, "the first one is still there");
        drop(first);
        assert_eq!(message(&pool, 50 << 10).as_ptr(), place);
        assert!(held.iter().all(|byte| *byte == 7) && held.len() == 40 << 10);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let pool = MessagePool::default();
        let messages: Vec<_> = (0..40).map(|_| message(&pool, 30 << 10)).collect();
        assert_eq!((messages.len(), pool.buffers().len()), (40, BUFFERS));
        message(&pool, 100);
        assert_eq!(pool.buffers().len(), BUFFERS, "small ones are not of it");
    }
}
