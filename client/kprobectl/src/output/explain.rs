//! Explanations of definitions.

use std::io;

use kprobed_client::api::ExplainProbeResponse;
use serde::Serialize;

use super::Output;
use super::data::dialect;
use super::diagnostic::DiagnosticView;
use kprobed_document::spec::Spec;

/// An explanation, as JSON and YAML.
#[derive(Serialize)]
struct ExplanationView<'a> {
    dialect: Option<&'static str>,
    kernel_definition: &'a str,
    definition_2009: Option<&'a str>,
    when: &'a str,
    arguments: Vec<ArgumentView<'a>>,
    fields: Vec<FieldView<'a>>,
    assumptions: &'a [String],
    warnings: Vec<DiagnosticView<'a>>,
    #[serde(serialize_with = "kprobed_document::spec::serialize")]
    spec: Option<Spec>,
}

/// One argument, as JSON and YAML.
#[derive(Serialize)]
struct ArgumentView<'a> {
    text: &'a str,
    meaning: &'a str,
}

/// One field, as JSON and YAML.
#[derive(Serialize)]
struct FieldView<'a> {
    name: &'a str,
    r#type: Option<&'a str>,
}

impl Output {
    /// Prints what a definition does.
    pub(crate) fn explanation(&mut self, answer: &ExplainProbeResponse) -> io::Result<()> {
        let arguments = answer.arguments.iter();
        let fields = answer.fields.iter();
        let view = ExplanationView {
            dialect: dialect(answer.dialect()),
            kernel_definition: &answer.kernel_definition,
            definition_2009: Some(answer.definition_2009.as_str()).filter(|text| !text.is_empty()),
            when: &answer.when,
            arguments: arguments.map(|one| ArgumentView { text: &one.text, meaning: &one.meaning }).collect(),
            fields: fields
                .map(|one| FieldView {
                    name: &one.name,
                    r#type: Some(one.r#type.as_str()).filter(|ty| !ty.is_empty()),
                })
                .collect(),
            assumptions: &answer.assumptions,
            warnings: answer.warnings.iter().map(DiagnosticView::new).collect(),
            spec: answer.spec.as_ref().and_then(Spec::from_message),
        };
        if self.structured(&view)? {
            return Ok(());
        }
        self.raw(answer.text.as_bytes())
    }
}
