//! The hosts of a context.

use std::collections::BTreeMap;
use std::path::Path;

use kprobed_client::fleet::names;

use super::targets::NamedHost;
use super::{Config, ConfigError, Context, Inventory, is_name};

impl Context {
    /// Its hosts and groups, with those of its inventory file.
    pub(crate) fn whole(&self) -> Result<Inventory, ConfigError> {
        let mut whole = Inventory { hosts: self.hosts.clone(), groups: self.groups.clone() };
        if let Some(path) = &self.inventory {
            let path = beside(path)?;
            let text = std::fs::read_to_string(&path)
                .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
            let file: Inventory = serde_yaml_ng::from_str(&text)
                .map_err(|error| ConfigError::Form { path, problem: error.to_string() })?;
            for (name, entry) in file.hosts {
                if whole.hosts.insert(name.clone(), entry).is_some() {
                    return Err(ConfigError::Twice(name));
                }
            }
            whole.groups.extend(file.groups);
        }
        Ok(whole)
    }
}

impl Inventory {
    /// Each host by its own name, sorted. Addresses and domains have the name in place of `{}`.
    pub(crate) fn expanded(&self) -> Result<Vec<NamedHost>, ConfigError> {
        let mut all = BTreeMap::new();
        for (key, entry) in &self.hosts {
            let entry = entry.clone().unwrap_or_default();
            for name in names::expand(key)? {
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
        for (group, members) in &self.groups {
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
