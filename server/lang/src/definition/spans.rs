//! Comparing definitions by what they mean.

use super::Span;
use super::ast::{Fetch, FetchKind, Place, ProbeDefinition};

impl ProbeDefinition {
    /// A copy without positions and warnings: equal for two texts that say the same.
    #[must_use]
    pub fn without_spans(&self) -> Self {
        let mut plain = self.clone();
        plain.span = Span::default();
        plain.warnings.clear();
        for name in [&mut plain.group, &mut plain.event].into_iter().flatten() {
            name.span = Span::default();
        }
        match &mut plain.place {
            Place::Symbol { span, .. } | Place::Address { span, .. } => *span = Span::default(),
        }
        for argument in &mut plain.args {
            argument.span = Span::default();
            if let Some(name) = &mut argument.name {
                name.span = Span::default();
            }
            if let Some(ty) = &mut argument.ty {
                ty.span = Span::default();
            }
            clear(&mut argument.fetch);
        }
        plain
    }
}

fn clear(fetch: &mut Fetch) {
    fetch.span = Span::default();
    if let FetchKind::Deref { inner, .. } = &mut fetch.kind {
        clear(inner);
    }
}
