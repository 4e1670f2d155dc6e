//! The body of a request: its messages are bounded in number, in size, in memory and in time.
//!
//! Owns the refusal of a message by its header, before it is received, and by the number of its fields, before they
//! become values. Never reads a field.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::call_memory::Charge;
use kprobed_control::error::{Error, Reason};

/// Bytes before a message: whether it is compressed, and its length (the gRPC over HTTP2 protocol,
/// "Length-Prefixed-Message").
const HEADER: usize = 5;

/// Most fields of a message, without those inside of them. In memory, a field of two bytes can be hundreds of bytes.
const MOST_FIELDS: u64 = 4096;

/// The fields of a message, counted as they arrive (the encoding of Protocol Buffers, "Message Structure").
#[derive(Debug, Default)]
struct Fields {
    count: u64,
    part: Part,
    /// What is known of the number that is being received, and how many bits that is.
    number: (u64, u32),
}

/// What comes next in a message.
#[derive(Clone, Copy, Debug, Default)]
enum Part {
    /// The number and the type of a field.
    #[default]
    Key,
    /// A value that is a number.
    Number,
    /// The length of a value.
    Length,
    /// So many bytes of a value.
    Bytes(u64),
}

impl Fields {
    fn receive(&mut self, mut bytes: &[u8]) {
        while let [byte, rest @ ..] = bytes {
            if let Part::Bytes(left) = self.part {
                let now = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                bytes = bytes.get(now..).unwrap_or_default();
                let left = left - now as u64;
                self.part = if left > 0 { Part::Bytes(left) } else { Part::Key };
                continue;
            }
            bytes = rest;
            let (known, bits) = self.number;
            let number = known | u64::from(byte & 0x7f).checked_shl(bits).unwrap_or_default();
            if byte & 0x80 != 0 {
                self.number = (number, bits.saturating_add(7));
                continue;
            }
            self.number = (0, 0);
            self.part = match self.part {
                Part::Key => {
                    self.count += 1;
                    match number & 7 {
                        0 => Part::Number,
                        1 => Part::Bytes(8),
                        2 => Part::Length,
                        5 => Part::Bytes(4),
                        // A group begins or ends: its fields count as those of the message.
                        _ => Part::Key,
                    }
                }
                Part::Length if number > 0 => Part::Bytes(number),
                Part::Length | Part::Number | Part::Bytes(_) => Part::Key,
            };
        }
    }
}

/// How far the messages in a body have been received.
#[derive(Debug, Default)]
struct Messages {
    header: Vec<u8>,
    /// Bytes of the message that are still to come.
    left: u64,
    /// Bytes of the message that are here.
    here: u64,
    /// Messages that have begun.
    begun: u64,
    fields: Fields,
}

/// A message is refused.
fn too_long(message: String, most: u64) -> Error {
    Error::new(Reason::MESSAGE_TOO_LONG, message)
        .with("most", &most)
        .fix("divide it: ApplyProbes takes changes in several calls, CheckProbes text in several messages")
}

impl Messages {
    /// Looks at the next bytes. Refuses a message that is longer than `most`, or has too many fields.
    fn receive(&mut self, mut bytes: &[u8], most: u64) -> Result<(), Error> {
        while !bytes.is_empty() {
            if self.left > 0 {
                let now = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
                let (of_message, rest) = bytes.split_at(now);
                bytes = rest;
                self.left -= now as u64;
                self.here += now as u64;
                self.fields.receive(of_message);
                if self.fields.count > MOST_FIELDS {
                    let message = format!(
                        "a message of the request has more fields than the {MOST_FIELDS} that it can have"
                    );
                    return Err(too_long(message, MOST_FIELDS));
                }
                continue;
            }
            let (header, rest) = bytes.split_at(bytes.len().min(HEADER - self.header.len()));
            self.header.extend_from_slice(header);
            bytes = rest;
            if let [_, length @ ..] = self.header.as_slice()
                && let Ok(length) = <[u8; 4]>::try_from(length)
            {
                let length = u64::from(u32::from_be_bytes(length));
                if length > most {
                    let message = format!(
                        "a message of the request has {length} bytes, and the longest may have {most} (`listen.max_message_kib`)"
                    );
                    return Err(too_long(message, most));
                }
                (self.left, self.here, self.fields) = (length, 0, Fields::default());
                self.begun += 1;
                self.header.clear();
            }
        }
        Ok(())
    }
}

/// A body with its limits.
pub(super) struct RequestBody<B> {
    inner: B,
    messages: Messages,
    /// The longest message.
    most_bytes: u64,
    /// What the message that is being received takes.
    charge: Arc<Charge>,
    /// When all of it must be here, and how long that is. Absent for a stream of requests.
    deadline: Option<(Pin<Box<Sleep>>, Duration)>,
}

impl<B> RequestBody<B> {
    pub(super) fn new(inner: B, most_bytes: u64, charge: Arc<Charge>, within: Option<Duration>) -> Self {
        let deadline = within.map(|within| (Box::pin(sleep(within)), within));
        Self { inner, messages: Messages::default(), most_bytes, charge, deadline }
    }

    fn receive(&mut self, bytes: &Bytes) -> Result<(), Error> {
        self.messages.receive(bytes, self.most_bytes)?;
        // The charge is for one message: of a call that keeps its request, all others would be free.
        if self.messages.begun > 1 && self.deadline.is_some() {
            let message = "the request has a second message, and the method takes one";
            return Err(Error::new(Reason::BAD_MESSAGE, message));
        }
        self.charge.set(self.messages.here)
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) else {
            let Some((sleep, within)) = &mut self.deadline else { return Poll::Pending };
            ready!(sleep.as_mut().poll(context));
            let message =
                format!("the request did not arrive within {within:?} (`listen.request_timeout_s`)");
            return Poll::Ready(Some(Err(Error::new(Reason::REQUEST_TOO_SLOW, message).into())));
        };
        let Some(frame) = frame else { return Poll::Ready(None) };
        let frame = frame.map_err(|error| Status::from_error(Box::new(error)));
        Poll::Ready(Some(frame.and_then(|frame| {
            if let Some(data) = frame.data_ref() {
                self.receive(data)?;
            }
            Ok(frame)
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};
    use tonic::Code;

    use super::*;
    use crate::front::admission::Peer;
    use crate::front::call_memory::CallMemory;

    fn message(bytes: usize) -> Vec<u8> {
        let length = u32::try_from(bytes).unwrap().to_be_bytes();
        [&[0], &length[..], &vec![7; bytes]].concat()
    }

    #[test]
    fn messages_are_known_however_they_are_cut() {
        let whole = [message(300), message(0), message(17)].concat();
        for piece in [1, 2, 3, 7, 100, whole.len()] {
            let mut messages = Messages::default();
            for bytes in whole.chunks(piece) {
                messages.receive(bytes, 300).unwrap();
            }
            assert_eq!((messages.left, messages.here), (0, 17));
            let refused = whole.chunks(piece).find_map(|bytes| messages.receive(bytes, 299).err());
            let refused = refused.unwrap().message;
            assert!(refused.contains("has 300 bytes, and the longest may have 299"), "{refused}");
        }
    }

    /// What is inside a field is not counted, and may look like fields.
    #[test]
    fn fields_are_counted_however_they_are_cut() {
        let number = b"\x08\xff\xff\xff\xff\x7f";
        let fixed = b"\x11\x08\x01\x08\x01\x08\x01\x08\x01\x1d\x08\x01\x08\x01";
        let long = [&b"\xa2\x01\x82\x01"[..], &b"\x0a\0".repeat(65)].concat();
        let message = [&number[..], fixed, &long, b"\x0a\0\x0a\0\x08\x01"].concat();
        for piece in [1, 2, 3, 7, 50, message.len()] {
            let mut fields = Fields::default();
            message.chunks(piece).for_each(|bytes| fields.receive(bytes));
            assert_eq!(fields.count, 7, "in pieces of {piece}");
        }
    }

    /// Each is hundreds of times as large in memory as in the request.
    #[test]
    fn a_message_of_very_many_fields_is_refused_before_it_is_read() {
        let with = |fields: u64| {
            let fields = b"\x0a\0".repeat(usize::try_from(fields).unwrap());
            let length = u32::try_from(fields.len()).unwrap().to_be_bytes();
            let message = [&[0], &length[..], &fields].concat();
            Messages::default().receive(&message, 1 << 20)
        };
        with(MOST_FIELDS).unwrap();
        let refused = with(MOST_FIELDS + 1).unwrap_err();
        assert_eq!(refused.value("most"), Some("4096"));
        assert!(refused.message.contains("has more fields than the 4096"), "{refused}");
    }

    /// The messages of a stream are read one by one. Those of other calls would all be kept.
    #[tokio::test]
    async fn only_a_stream_of_requests_has_a_second_message() {
        let memory = Arc::new(CallMemory::new(1000));
        let body = |within| {
            let charge = Arc::new(memory.charge(Peer::User(1)));
            let messages = [message(0), message(0)].concat();
            RequestBody::new(Full::new(Bytes::from(messages)), 100, charge, within)
        };
        body(None).collect().await.unwrap();
        let second = body(Some(Duration::from_mins(1))).collect().await.unwrap_err();
        assert_eq!(second.code(), Code::InvalidArgument);
        assert!(second.message().contains("second message"), "{second}");
    }

    #[tokio::test]
    async fn a_long_message_and_a_lot_of_them_are_refused() {
        let memory = Arc::new(CallMemory::new(1000));
        let body = |bytes: usize, most| {
            let charge = Arc::new(memory.charge(Peer::User(1)));
            RequestBody::new(Full::new(Bytes::from(message(bytes))), most, charge, None)
        };
        let long = body(101, 100).collect().await.unwrap_err();
        assert_eq!(long.code(), Code::ResourceExhausted);
        assert!(long.message().contains("`listen.max_message_kib`"), "{long}");
        let held = body(400, 1000);
        let charge = Arc::clone(&held.charge);
        held.collect().await.unwrap();
        let full = body(101, 1000).collect().await.unwrap_err();
        assert!(full.message().contains("`listen.call_memory_mib`"), "{full}");
        drop(charge);
        body(101, 1000).collect().await.unwrap();
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_is_refused() {
        let memory = Arc::new(CallMemory::new(1000));
        let never = http_body_util::StreamBody::new(futures_util::stream::pending::<
            Result<Frame<Bytes>, std::convert::Infallible>,
        >());
        let charge = Arc::new(memory.charge(Peer::User(1)));
        let body = RequestBody::new(never, 100, charge, Some(Duration::from_millis(1)));
        let late = body.collect().await.unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded);
        assert!(late.message().contains("`listen.request_timeout_s`"), "{late}");
    }
}
