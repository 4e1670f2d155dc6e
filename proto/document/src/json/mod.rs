//! Messages of the API in protobuf's JSON mapping (<https://protobuf.dev/programming-guides/json>),
//! as JSON and YAML.
//!
//! Owns the one form in which a message is printed, driven by the descriptors of the API:
//! names of fields as in the protos, 64-bit numbers as text, enums by name, times in RFC 3339. No
//! field is copied by hand, so that a new field of a message needs no change here. Never decides
//! which messages are printed.

#[cfg(test)]
mod tests;
mod write;

pub use write::Json;

use std::sync::LazyLock;

use kprobed_proto::v1;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};

/// A message that has a JSON form.
pub trait ApiMessage: Message {
    /// Its name in the protos, without the package.
    const NAME: &'static str;
}

macro_rules! api_messages {
    ($($message:ident)*) => {
        $(impl ApiMessage for v1::$message {
            const NAME: &'static str = stringify!($message);
        })*
    };
}

api_messages! {
    Aggregation
    AttachedEvent
    AuditEntry
    CheckAccessResponse
    CodeInstruction
    DeletedProbe
    DescribeFunctionResponse
    Diagnostic
    ExporterLedger
    ForeignEvent
    Function
    GetCallerResponse
    GetHostResponse
    GetLedgerResponse
    HitCost
    HitProfile
    HitSeries
    Lease
    MeaningChange
    Probe
    ProbeLedger
    ProbeSpec
    ProbeStateRecord
    ReconciledProbe
    SpoolLedger
    SubscriberLedger
    WatchProbesResponse
}

/// The descriptors of the API.
static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    #[expect(clippy::expect_used, reason = "the build has made them")]
    DescriptorPool::decode(kprobed_proto::FILE_DESCRIPTOR_SET).expect("descriptors of the API")
});

fn descriptor<M: ApiMessage>() -> MessageDescriptor {
    let name = format!("kprobed.v1.{}", M::NAME);
    #[expect(clippy::expect_used, reason = "a test asks for every message that has a form")]
    POOL.get_message_by_name(&name).expect("a message of the API")
}

/// A message with its fields by descriptor.
fn reflected<M: ApiMessage>(message: &M) -> DynamicMessage {
    let mut reflected = DynamicMessage::new(descriptor::<M>());
    let outcome = reflected.transcode_from(message);
    debug_assert!(outcome.is_ok(), "the same message: {outcome:?}");
    reflected
}
