//! Encoded responses: events that are serialised once and sent to many clients.
//!
//! The generated types would serialise a message again for each client. The bytes on the wire are the same.

use bytes::{Buf, BufMut, Bytes};
use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, skip_field};

/// A serialised `kprobed.v1.StreamEventsResponse`. It can be sent, and not be read: a client uses
/// [`crate::v1::StreamEventsResponse`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamEventsResponse(Bytes);

impl From<Bytes> for StreamEventsResponse {
    fn from(message: Bytes) -> Self {
        Self(message)
    }
}

impl From<StreamEventsResponse> for Bytes {
    fn from(response: StreamEventsResponse) -> Self {
        response.0
    }
}

impl From<crate::v1::StreamEventsResponse> for StreamEventsResponse {
    fn from(message: crate::v1::StreamEventsResponse) -> Self {
        Self(prost::Message::encode_to_vec(&message).into())
    }
}

impl prost::Message for StreamEventsResponse {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        buffer.put_slice(&self.0);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        skip_field(wire_type, tag, buffer, context)
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// `kprobed.v1.EventService` with such responses.
#[allow(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::pedantic,
    clippy::clone_on_ref_ptr,
    clippy::disallowed_methods,
    missing_docs,
    unused_qualifications,
    reason = "generated code"
)]
mod service {
    include!(concat!(env!("OUT_DIR"), "/encoded/kprobed.v1.rs"));
}

pub use service::event_service_server;
