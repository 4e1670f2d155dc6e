//! Probes that a command is about: by name, glob or label selector; and labels as arguments.
//!
//! Owns their notation. It never checks keys, values or the meaning of a selector: the daemon does.

use std::collections::HashMap;

use clap::Args;
use kprobed_client::Client;
use kprobed_client::api::{ListProbesRequest, Probe};

use super::{Exit, Failure};

/// The probes to change.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ProbeSelection {
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
            name_glob: glob_of_names(&name),
            label_selector: selector.unwrap_or_default().to_owned(),
            ..Default::default()
        };
        let probes = client.select_probes(request).await?;
        if probes.is_empty() {
            let fitting: Vec<_> =
                Some(name.as_str()).filter(|name| !name.is_empty()).into_iter().chain(selector).collect();
            let message = format!("no probe matches `{}`", fitting.join("` with labels `"));
            return Err(Failure::refused(message, "`kprobectl list` shows all probes"));
        }
        let is_new = |probe: &Probe| chosen.iter().all(|one| one.name != probe.name);
        let new: Vec<_> = probes.into_iter().filter(is_new).collect();
        chosen.extend(
            new.into_iter().map(|probe| ChosenProbe { name: probe.name.clone(), listed: Some(probe) }),
        );
    }
    Ok(chosen)
}

/// The glob of a pattern of probe names: a bare event name matches it in any group, and `*` matches
/// all.
pub(super) fn glob_of_names(pattern: &str) -> String {
    match pattern {
        "*" => String::new(),
        _ if pattern.is_empty() || pattern.contains('/') => pattern.to_owned(),
        _ => format!("*/{pattern}"),
    }
}

/// Reads a selector for a command that changes what it selects.
///
/// An empty one selects everything: that is more likely an empty variable of a script than meant.
pub(super) fn selector(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("an empty selector would select all probes".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

/// Reads `KEY=VALUE`.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// The labels of a new probe.
pub(super) fn labels(pairs: &[(String, String)]) -> Result<HashMap<String, String>, Failure> {
    let mut labels = HashMap::with_capacity(pairs.len());
    for (key, value) in pairs {
        if labels.insert(key.clone(), value.clone()).is_some() {
            return Err(Failure::new(Exit::Usage, format!("the label `{key}` is given twice"), []));
        }
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_selects() {
        assert_eq!(selector("team"), Ok("team".to_owned()));
        assert!(selector("").is_err() && selector(" ").is_err());
    }
}
