//! Probes that a command changes: by name, glob or label selector.

use clap::Args;
use kprobed_client::Client;
use kprobed_client::api::{ListProbesRequest, Probe};

use super::Failure;
use super::label_arguments::selector;
use crate::glob;

/// The probes to change.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ProbeSelection {
    /// GROUP/EVENT, EVENT if only one probe has it, or a glob of names (`*`, `?`)
    #[arg(required_unless_present = "selector", value_name = "NAME")]
    pub(super) names: Vec<String>,
    /// Change all probes whose labels match, as for `list`; with globs, those of them
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector)]
    pub(super) selector: Option<String>,
    /// Also change probes that a file of the daemon declares; they then no longer belong to it
    #[arg(long)]
    pub(super) take_over: bool,
}

/// A probe that a command is about.
#[derive(Clone, Debug)]
pub(super) struct ChosenProbe {
    pub(super) name: String,
    /// As it was listed. Absent for a probe that was named.
    pub(super) listed: Option<Probe>,
}

impl ChosenProbe {
    /// Makes sure that what is changed is what was listed. Empty for a probe that was named.
    pub(super) fn etag(&self) -> String {
        self.listed.as_ref().map(|probe| probe.etag.clone()).unwrap_or_default()
    }

    /// The probe, as it was listed or is now.
    pub(super) async fn probe(self, client: &Client) -> Result<Probe, Failure> {
        match self.listed {
            Some(probe) => Ok(probe),
            None => Ok(client.get_probe(&self.name).await?),
        }
    }
}

/// The probes of these names and globs or, if there is a selector, those that fit a glob and the selector.
///
/// # Errors
/// When nothing fits, or there are a name and a selector.
pub(super) async fn choose(
    client: &Client,
    mut names: Vec<String>,
    selector: Option<&str>,
) -> Result<Vec<ChosenProbe>, Failure> {
    if names.is_empty() {
        names.extend(selector.map(|_| String::new()));
    }
    let mut chosen: Vec<ChosenProbe> = Vec::with_capacity(names.len());
    for name in names {
        if !name.is_empty() && !name.contains(['*', '?']) {
            if selector.is_some() {
                let message = format!("`{name}` names one probe, and `--selector` selects by labels");
                let hint = "leave one of them out; a glob such as `kprobes/*` goes with `--selector`";
                return Err(Failure::usage(message, hint));
            }
            chosen.push(ChosenProbe { name, listed: None });
            continue;
        }
        let request = ListProbesRequest {
            name_glob: glob::of_names(&name),
            label_selector: selector.unwrap_or_default().to_owned(),
            ..Default::default()
        };
        let probes = client.select_probes(request).await?;
        if probes.is_empty() {
            let fitting: Vec<_> =
                Some(name.as_str()).filter(|name| !name.is_empty()).into_iter().chain(selector).collect();
            return Err(Failure::no_match(&fitting.join("` with labels `")));
        }
        let is_new = |probe: &Probe| chosen.iter().all(|one| one.name != probe.name);
        let new: Vec<_> = probes.into_iter().filter(is_new).collect();
        chosen.extend(
            new.into_iter().map(|probe| ChosenProbe { name: probe.name.clone(), listed: Some(probe) }),
        );
    }
    Ok(chosen)
}
