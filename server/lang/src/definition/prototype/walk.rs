//! Address walk: from a parameter to the memory from which a field is read.
//!
//! Owns the meaning of the steps after a name: `+N` counts bytes, `[N]` counts elements and reads,
//! and every bracket that is followed by another step loads a pointer, whatever the type of the
//! field. The end of the walk is read with the type of the field; if the sources of 2018 disagree
//! about that, a warning names a spelling on which they agree. Never chooses a type.

use super::super::Span;
use super::super::ast::{BaseType, Fetch, FetchKind, Name};
use super::super::code::Code;
use super::super::diagnostic::Diagnostic;
use super::ast::{Field, Step, StepKind};

/// What `field`, or the first element of its array, is read from: it starts at `parameter` and goes on with `steps`.
pub(super) fn walk(
    field: &Field,
    name: &Name,
    steps: &[Step],
    parameter: FetchKind,
    warnings: &mut Vec<Diagnostic>,
) -> Result<Fetch, Diagnostic> {
    let mut walk = Walk {
        pointer: Fetch { kind: parameter, span: name.span },
        offset: 0,
        end: name.span.end,
        pending: false,
        brackets: 0,
    };
    for step in steps {
        walk.step(*step, field.ty.atom.bytes())?;
    }
    let warn = |message: &str, safe: String| {
        Diagnostic::warning(Code::AmbiguousPrototype, field.span, message)
            .with_hint(format!("`{safe}` says the same and cannot be misread"))
    };
    match (field.ty.atom.base, field.ty.count) {
        (BaseType::String, _) => {
            if walk.pending && walk.brackets == 1 {
                let message = "the bracket is read as a pointer to the string, not as its first byte";
                warnings.push(warn(message, with_step(field, name, steps, StepKind::Add(0))));
            }
            if steps.iter().any(|step| matches!(step.kind, StepKind::Index(1..))) {
                let message = "an index of a string counts 4 bytes, as in 2018";
                warnings.push(warn(message, in_bytes(field, name, steps)));
            }
            if walk.pending {
                walk.load();
            }
            Ok(walk.memory())
        }
        (_, Some(_)) => {
            if walk.pending && walk.brackets > 1 {
                walk.load();
            } else if walk.pending {
                let message = "the array is read in place, not through a pointer that is there";
                warnings.push(warn(message, spelled(field, name, &[StepKind::Add(walk.bytes())])));
            }
            Ok(walk.memory())
        }
        (_, None) if walk.brackets == 0 && walk.offset == 0 => Ok(walk.pointer),
        (_, None) if walk.brackets == 0 => {
            let message =
                format!("this is the parameter plus {}, and a probe cannot add without reading", walk.offset);
            let read = with_step(field, name, steps, StepKind::Index(0));
            let plain = spelled(field, name, &[]);
            Err(Diagnostic::error(Code::NoEquivalent, field.span, message)
                .with_hint(format!("write `{read}` for the memory there, or `{plain}` and add later")))
        }
        (_, None) => {
            if !walk.pending {
                let message = "the memory behind the last `+` is read, not the address itself";
                warnings.push(warn(message, with_step(field, name, steps, StepKind::Index(0))));
            }
            Ok(walk.memory())
        }
    }
}

struct Walk {
    pointer: Fetch,
    /// Bytes after the pointer.
    offset: i32,
    /// End of the last step.
    end: usize,
    /// Whether the last step was a bracket, so that a further step needs a pointer from there.
    pending: bool,
    brackets: usize,
}

impl Walk {
    fn step(&mut self, step: Step, element_bytes: u64) -> Result<(), Diagnostic> {
        if self.pending {
            self.load();
        }
        let bytes = match step.kind {
            StepKind::Add(bytes) => Some(bytes),
            StepKind::Index(index) => {
                self.pending = true;
                self.brackets += 1;
                index.checked_mul(element_bytes)
            }
        };
        let sum = bytes.and_then(|bytes| self.bytes().checked_add(bytes));
        self.offset = sum.and_then(|sum| i32::try_from(sum).ok()).ok_or_else(|| {
            let message = "the offset does not fit the 32 bits that the kernel has for it";
            Diagnostic::error(Code::OffsetTruncated, step.span, message)
        })?;
        self.end = step.span.end;
        Ok(())
    }

    fn bytes(&self) -> u64 {
        u64::from(self.offset.unsigned_abs())
    }

    /// Takes the memory at the offset for a new pointer.
    fn load(&mut self) {
        let span = Span::new(self.pointer.span.start, self.end);
        self.pointer = Fetch { span, ..self.pointer.clone().followed(self.offset) };
        self.offset = 0;
        self.pending = false;
    }

    fn memory(self) -> Fetch {
        self.pointer.followed(self.offset)
    }
}

/// The field with other steps.
fn spelled(field: &Field, name: &Name, steps: &[StepKind]) -> String {
    let steps: String = steps.iter().map(ToString::to_string).collect();
    format!("{} {}{steps}", field.ty, name.text)
}

/// The field with one step more.
fn with_step(field: &Field, name: &Name, steps: &[Step], more: StepKind) -> String {
    let mut kinds: Vec<_> = steps.iter().map(|step| step.kind).collect();
    kinds.push(more);
    spelled(field, name, &kinds)
}

/// The field with every index as bytes.
fn in_bytes(field: &Field, name: &Name, steps: &[Step]) -> String {
    let kinds = steps.iter().flat_map(|step| match step.kind {
        StepKind::Index(index @ 1..) => {
            vec![StepKind::Add(index.saturating_mul(field.ty.atom.bytes())), StepKind::Index(0)]
        }
        kind => vec![kind],
    });
    spelled(field, name, &kinds.collect::<Vec<_>>())
}
