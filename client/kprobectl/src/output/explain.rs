//! Explanations of definitions.

use std::io;

use kprobed_client::api::ExplainProbeResponse;
use kprobed_document::json::Json;

use super::Output;

impl Output {
    /// Prints what a definition does.
    pub(crate) fn explanation(&mut self, answer: &ExplainProbeResponse) -> io::Result<()> {
        // The text is what people get, put together of the rest.
        if self.structured(&Json::full(answer).without(&["text"]))? {
            return Ok(());
        }
        self.text(&answer.text)
    }
}
