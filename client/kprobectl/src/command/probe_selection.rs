//! Probes that a command changes: by name, or by a glob or a label selector.

use kprobed_client::Client;
use kprobed_client::api::{ListProbesRequest, Probe, UpdateProbeRequest};

use super::{Exit, Failure};
use crate::glob;
use crate::output::Output;

/// A probe that a command is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChosenProbe {
    pub(super) name: String,
    /// Makes sure that what is changed is what was listed. Empty for a probe that was named.
    pub(super) etag: String,
}

/// The probes of these names or, if there is a glob or a selector, those that fit both.
///
/// # Errors
/// [`Failure::NoMatch`] when nothing fits.
pub(super) async fn choose(
    client: &Client,
    names: Vec<String>,
    pattern: Option<String>,
    selector: Option<String>,
) -> Result<Vec<ChosenProbe>, Failure> {
    if pattern.is_none() && selector.is_none() {
        return Ok(names.into_iter().map(|name| ChosenProbe { name, etag: String::new() }).collect());
    }
    let request = ListProbesRequest {
        name_glob: glob::of_names(pattern.as_deref().unwrap_or_default()),
        label_selector: selector.clone().unwrap_or_default(),
        ..Default::default()
    };
    let probes = client.select_probes(request).await?;
    if probes.is_empty() {
        let asked: Vec<_> = pattern.into_iter().chain(selector).collect();
        return Err(Failure::NoMatch(asked.join("` with labels `")));
    }
    Ok(probes.into_iter().map(|Probe { name, etag, .. }| ChosenProbe { name, etag }).collect())
}

/// Changes probes, and reports each failure. Returns those that were changed, and the worst exit code.
pub(super) async fn update(
    client: &Client,
    requests: &[UpdateProbeRequest],
    output: &mut Output,
) -> (Vec<Probe>, Exit) {
    let (mut probes, mut exit) = (Vec::with_capacity(requests.len()), Exit::Success);
    for requests in requests.chunks(Client::CHANGES_AT_ONCE) {
        let outcomes = client.update_probes(requests.to_vec()).await.unwrap_or_else(|error| vec![Err(error)]);
        for outcome in outcomes {
            match outcome {
                Ok(probe) => probes.push(probe),
                Err(error) => exit = exit.max(Failure::from(error).report(output)),
            }
        }
    }
    (probes, exit)
}
