//! Messages of the API in protobuf's JSON mapping (<https://protobuf.dev/programming-guides/json>),
//! as JSON and YAML.
//!
//! Owns the one form in which a message is printed and read, driven by the descriptors of the API:
//! names of fields as in the protos, 64-bit numbers as text, enums by name, times in RFC 3339. No
//! field is copied by hand, so that a new field of a message needs no change here. Never decides
//! which messages are printed.

mod read;
#[cfg(test)]
pub(crate) mod tests;
mod write;

pub(crate) use read::{Unread, message};
pub use write::Json;

use std::sync::LazyLock;

use kprobed_proto::v1;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};

use crate::place::Problem;
use crate::tree;

/// A message that has a JSON form.
pub trait ApiMessage: Message + Default {
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
    Approval
    AttachedEvent
    AuditEntry
    CheckAccessResponse
    CodeInstruction
    DeletedProbe
    DescribeFunctionResponse
    Diagnostic
    ExplainProbeResponse
    Exporter
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
    ListCostsResponse
    MeaningChange
    Probe
    ProbeFilter
    ProbeLedger
    ProbeSpec
    ProbeStateRecord
    ReconciledProbe
    RevokeApprovalsResponse
    SettingChange
    SpoolLedger
    SubscriberLedger
    TryProbeResponse
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

/// Reads messages from a text: one document of JSON, or documents of YAML.
///
/// # Errors
/// The problem of the first message that cannot be read, with its place. A text without a message
/// is an error too.
pub fn read<M: ApiMessage>(text: &str) -> Result<Vec<M>, Problem> {
    let read = |node: &tree::Node| {
        message(node).map_err(|Unread { place, message, hint }| Problem::new(text, place, message, hint))
    };
    let messages = tree::read(text)?.iter().map(read).collect::<Result<Vec<M>, _>>()?;
    if messages.is_empty() {
        let place = crate::Place { line: 1, column: 1, length: 1 };
        return Err(Problem::new(text, place, "there is no document in it", ""));
    }
    Ok(messages)
}
