//! Labels and selectors out of requests.

use std::collections::HashMap;

use tonic::Status;

use super::status;
use crate::model::{LabelChange, LabelSelector, Labels};

/// The labels of a probe that is to be made.
pub(super) fn of(labels: HashMap<String, String>) -> Result<Labels, Status> {
    Labels::new(labels).map_err(|error| status::unlabelled("labels", &error))
}

/// What an update changes.
pub(super) fn change(set: HashMap<String, String>, remove: Vec<String>) -> Result<LabelChange, Status> {
    let set = Labels::new(set).map_err(|error| status::unlabelled("set_labels", &error))?;
    LabelChange::new(set, remove).map_err(|error| status::unlabelled("remove_labels", &error))
}

/// Which probes a listing is about.
pub(super) fn selector(text: &str) -> Result<LabelSelector, Status> {
    text.parse().map_err(|error| status::unlabelled("label_selector", &error))
}
