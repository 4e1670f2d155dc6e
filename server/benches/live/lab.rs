//! The conditions of a measurement, the same for every side: workload, number of events, directory.

use std::path::{Path, PathBuf};

use crate::arguments::Arguments;
use crate::host::Tracefs;
use crate::workload::Workload;

/// The place and the terms of a measurement.
#[derive(Debug)]
pub(crate) struct Lab<'a> {
    pub(crate) tracefs: &'a Tracefs,
    pub(crate) arguments: &'a Arguments,
    pub(crate) workload: Workload,
    pub(crate) directory: &'a Path,
}

impl Lab<'_> {
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The words that every tool prints in the text of an event.
    pub(crate) fn words(&self) -> Vec<String> {
        self.workload.events().iter().map(|event| format!("{}:", event.name)).collect()
    }
}
