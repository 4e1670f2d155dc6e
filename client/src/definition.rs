//! Definition of a probe in a request: text, or fields.

use crate::api::{CheckProbeRequest, CreateProbeRequest, ExplainProbeRequest, ProbeSpec};

/// A definition to send: text in any dialect, or fields. Calls that need one take whatever can
/// become one.
///
/// ```
/// use kprobed_client::Definition;
/// use kprobed_client::api::{CreateProbeRequest, ProbeKind, ProbePlace, ProbeSpec, SymbolPlace, probe_place};
///
/// let place = probe_place::Place::Symbol(SymbolPlace { symbol: "vfs_read".to_owned(), ..Default::default() });
/// let spec = ProbeSpec {
///     kind: ProbeKind::Return.into(),
///     place: Some(ProbePlace { place: Some(place) }),
///     ..Default::default()
/// };
/// let request = CreateProbeRequest { enabled: true, ..Definition::from(spec).into() };
/// assert!(request.definition.is_empty() && request.spec.is_some());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Definition {
    /// Text in any dialect.
    Text(String),
    /// Fields.
    Spec(ProbeSpec),
}

impl Definition {
    /// The two fields of a request: one of them is empty.
    fn fields(self) -> (String, Option<ProbeSpec>) {
        match self {
            Self::Text(text) => (text, None),
            Self::Spec(spec) => (String::new(), Some(spec)),
        }
    }
}

impl From<&str> for Definition {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Definition {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&String> for Definition {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<ProbeSpec> for Definition {
    fn from(spec: ProbeSpec) -> Self {
        Self::Spec(spec)
    }
}

impl From<Definition> for CreateProbeRequest {
    fn from(definition: Definition) -> Self {
        let (definition, spec) = definition.fields();
        Self { definition, spec, ..Self::default() }
    }
}

impl From<Definition> for CheckProbeRequest {
    fn from(definition: Definition) -> Self {
        let (definition, spec) = definition.fields();
        Self { definition, spec }
    }
}

impl From<Definition> for ExplainProbeRequest {
    fn from(definition: Definition) -> Self {
        let (definition, spec) = definition.fields();
        Self { definition, spec }
    }
}
