//! Names that are in use: some events of the kernel, and some probes of the daemon.

use std::collections::HashSet;

use kprobed_host::kernel::KernelFacts;
use kprobed_lang::definition::{Code, DeleteDefinition, Diagnostic, Features, ProbeDefinition, Span};
use kprobed_lang::model::ProbeName;
use kprobed_verdict::checker::{NamesInUse, Taken};

/// Events called `taken` are the kernel's, those called `ours` are the daemon's.
#[derive(Debug)]
pub(crate) struct SomeTaken;

impl NamesInUse for SomeTaken {
    fn free_event(&self, _group: &str, wanted: &str, _claimed: &HashSet<ProbeName>) -> String {
        wanted.to_owned()
    }

    fn taken(
        &self,
        definition: &ProbeDefinition,
        (group, event): (&str, &str),
        _facts: &KernelFacts,
        _features: &Features,
    ) -> Option<Taken> {
        let (code, ours) = match event {
            "taken" => (Code::EventExist, false),
            "ours" => (Code::ProbeExists, true),
            _ => return None,
        };
        let problem = Diagnostic::error(code, definition.place.span(), format!("`{event}` is in use"));
        Some(Taken { name: ProbeName::new(group, event).ok()?, ours, problem })
    }

    fn unrecordable(&self, _event: (&str, &str), _span: Span) -> Option<Diagnostic> {
        None
    }

    fn deleted_by(&self, delete: &DeleteDefinition) -> Result<Vec<ProbeName>, Diagnostic> {
        match &delete.event {
            Some(event) if event.text == "ours" => {
                Ok(ProbeName::new("kprobes", "ours").into_iter().collect())
            }
            _ => {
                let span = Span::new(delete.span.start, delete.span.end);
                Err(Diagnostic::error(Code::NoSuchProbe, span, "there is no such probe"))
            }
        }
    }
}
