//! Requests of declaration files: judged by the same rules as those of clients, and marked with the
//! file.
//!
//! Owns their conversion. Never reads a file.

use kprobed_proto::v1;
use tonic::Status;

use super::{changes, spec};
use crate::control::{ControlError, CreateRequest, Probe, UpdateRequest};
use crate::messages;
use kprobed_verdict::checker::{Checker, DefinitionText};

/// Why a request cannot be made or was refused, and what to do; the second is empty if the first
/// says it.
type Refused = (String, String);

/// A probe as a message, without its definition as fields.
pub(crate) fn message(probe: &Probe) -> v1::Probe {
    messages::probe(probe)
}

/// A definition as fields.
pub(crate) fn read(checker: &Checker, definition: &str) -> Result<v1::ProbeSpec, Refused> {
    let read = checker.probe(&DefinitionText::new(definition)).map_err(|error| refused(&error.into()))?;
    Ok(spec::write(&read))
}

/// A request to create a probe that a file declares.
pub(crate) fn creation(request: v1::CreateProbeRequest, file: &str) -> Result<CreateRequest, Refused> {
    let mut create = changes::creation(request).map_err(|status| unusable(&status))?;
    create.metadata.declared_by = Some(Some(file.to_owned()));
    Ok(create)
}

/// A request to change a probe that a file declares.
pub(crate) fn update(request: v1::UpdateProbeRequest, file: &str) -> Result<UpdateRequest, Refused> {
    let mut update = changes::update(request).map_err(|status| unusable(&status))?;
    update.take_over = true;
    update.metadata.declared_by = Some(Some(file.to_owned()));
    Ok(update)
}

/// The message of a refusal, and its hint.
pub(crate) fn refused(error: &ControlError) -> Refused {
    let hint = match error {
        ControlError::Definition { diagnostics, .. } => {
            diagnostics.first().and_then(|first| first.hint.clone())
        }
        ControlError::Refused { refusal, .. } => Some(refusal.hint.clone()),
        ControlError::NotInKernel { hint, .. } => Some(hint.clone()),
        _ => None,
    };
    (error.to_string(), hint.unwrap_or_default())
}

fn unusable(status: &Status) -> Refused {
    (status.message().to_owned(), String::new())
}
