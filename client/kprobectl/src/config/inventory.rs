//! Inventory of a context: its hosts by name, with addresses, labels and groups.

use std::collections::BTreeMap;
use std::path::Path;

use kprobed_client::fleet::names;
use kprobed_lang::model::Glob;
use serde::Serialize;

use super::{Config, ConfigError, Context, Inventory, is_name};

/// A host of the inventory, or an address that was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NamedHost {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) domain: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) groups: Vec<String>,
    /// It is an address and nothing else: the inventory does not have it.
    #[serde(skip)]
    pub(crate) is_address: bool,
}

impl NamedHost {
    pub(super) fn is_called(&self, pattern: &str) -> bool {
        Glob::new(pattern).matches(&self.name)
    }

    /// A host that is an address and nothing else.
    pub(super) fn of_address(address: &str) -> Self {
        Self {
            name: address.to_owned(),
            address: address.to_owned(),
            domain: None,
            labels: BTreeMap::new(),
            groups: Vec::new(),
            is_address: true,
        }
    }

    /// The name in its certificate, if that is not the host of its address. `of_all` is the name
    /// for all hosts, in which `{}` stands for the host's name in the inventory.
    pub(crate) fn certificate_name(&self, of_all: Option<&String>) -> Option<String> {
        let of_all = of_all.filter(|of_all| !self.is_address || !of_all.contains("{}"));
        self.domain.clone().or_else(|| of_all.map(|domain| domain.replace("{}", &self.name)))
    }
}

impl Context {
    /// Each of its hosts by its own name, sorted, with those of its inventory file. Addresses and domains have the name
    /// in place of `{}`.
    pub(crate) fn named_hosts(&self) -> Result<Vec<NamedHost>, ConfigError> {
        let (mut hosts, mut groups) = (self.hosts.clone(), self.groups.clone());
        if let Some(path) = &self.inventory {
            let path = beside(path)?;
            let text = std::fs::read_to_string(&path)
                .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
            let file: Inventory =
                super::read_yaml(&text).map_err(|problem| ConfigError::Form { path, problem })?;
            for (name, entry) in file.hosts {
                if hosts.insert(name.clone(), entry).is_some() {
                    return Err(ConfigError::Twice(name));
                }
            }
            groups.extend(file.groups);
        }
        let mut all = BTreeMap::new();
        for (key, entry) in hosts {
            let entry = entry.unwrap_or_default();
            for name in names::expand(&key)? {
                if !is_name(&name) {
                    return Err(ConfigError::Name(name));
                }
                let put = |text: &String| text.replace("{}", &name);
                let host = NamedHost {
                    address: entry.address.as_ref().map_or_else(|| name.clone(), put),
                    domain: entry.domain.as_ref().map(put),
                    labels: entry.labels.clone(),
                    groups: Vec::new(),
                    is_address: false,
                    name: name.clone(),
                };
                if all.insert(name.clone(), host).is_some() {
                    return Err(ConfigError::Twice(name));
                }
            }
        }
        for (group, members) in &groups {
            for member in members {
                let wanted = names::expand(member)?;
                for host in all.values_mut().filter(|host| wanted.iter().any(|wanted| host.is_called(wanted)))
                {
                    if host.groups.last() != Some(group) {
                        host.groups.push(group.clone());
                    }
                }
            }
        }
        Ok(all.into_values().collect())
    }
}

/// A path that is relative to the configuration file.
pub(super) fn beside(path: &Path) -> Result<std::path::PathBuf, ConfigError> {
    let file = Config::path()?;
    Ok(file.parent().map_or_else(|| path.to_owned(), |directory| directory.join(path)))
}
