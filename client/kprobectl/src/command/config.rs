//! `kprobectl config`: show hosts, show and change contexts.

use std::io;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;

use super::connection::selected;
use super::{Exit, Failure};
use crate::config::{Config, ConfigError, NamedHost, is_name};
use crate::global::Global;
use crate::output::{Cell, Column, Output, Row};

/// Arguments of `config`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/config.txt"))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

impl Arguments {
    /// Whether it prints a list.
    pub(crate) fn prints_list(&self) -> bool {
        matches!(self.action, Action::GetContexts | Action::GetHosts)
    }

    /// Whether it writes a context.
    pub(crate) fn sets_context(&self) -> bool {
        matches!(self.action, Action::SetContext(_))
    }
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// List contexts
    GetContexts,
    /// Make a context the current one
    UseContext {
        /// Its name
        name: String,
    },
    /// Print the name of the current context
    CurrentContext,
    /// Create a context, or change the given properties of one; --server, --ca, --cert, --key,
    /// --domain and --parallel are properties too, and variables of the environment are not
    SetContext(SetContext),
    /// Delete a context
    DeleteContext {
        /// Its name
        name: String,
    },
    /// Print the configuration
    View,
    /// List the hosts that --hosts and --host-selector select [default: all hosts of the context]
    GetHosts,
}

#[derive(Clone, Debug, Args)]
struct SetContext {
    /// Its name
    name: String,
    /// Port of addresses that have none [default: none]
    #[arg(long)]
    port: Option<u16>,
    /// Number of hosts above which changes need --yes [default: 20]
    #[arg(long, value_name = "HOSTS")]
    confirm_above: Option<u64>,
    /// A file with more `hosts` and `groups` [default: none]
    #[arg(long, value_name = "FILE")]
    inventory: Option<PathBuf>,
}

/// A context in a list.
#[derive(Serialize)]
struct ListedContext {
    name: String,
    #[serde(rename = "current")]
    is_current: bool,
    server: Option<String>,
    hosts: usize,
}

impl Row for ListedContext {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("CURRENT", |context| Cell::text(if context.is_current { "*" } else { "" })),
        Column::new("NAME", |context| Cell::text(&context.name)),
        Column::new("HOSTS", |context| Cell::number(context.hosts as u64)),
        Column::new("SERVER", |context| Cell::text(context.server.as_deref().unwrap_or_default())),
    ];

    fn name(&self) -> String {
        self.name.clone()
    }

    fn json(&self) -> io::Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}

impl Row for NamedHost {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("NAME", |host| Cell::text(&host.name)),
        Column::new("ADDRESS", |host| Cell::text(&host.address)),
        Column::new("LABELS", |host| {
            let labels: Vec<_> = host.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            Cell::text(labels.join(","))
        }),
        Column::new("GROUPS", |host| Cell::text(host.groups.join(","))),
    ];

    fn json(&self) -> io::Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let mut config = Config::read()?;
    match arguments.action {
        Action::GetContexts => {
            let listed = config.contexts.iter().map(|(name, context)| {
                let is_current = config.current_context.as_ref() == Some(name);
                let hosts = context.named_hosts()?.len();
                Ok(ListedContext { name: name.clone(), is_current, hosts, server: context.server.clone() })
            });
            let listed = listed.collect::<Result<Vec<_>, ConfigError>>()?;
            output.rows(&listed)?;
            if listed.is_empty() {
                output.remark("there are no contexts: `kprobectl config set-context` makes one");
            }
        }
        Action::CurrentContext => {
            let name = config.current_context.ok_or(ConfigError::NoCurrent)?;
            if !output.structured(&name)? {
                output.line(&name)?;
            }
        }
        // Paths of keys, and never what is in them.
        Action::View => {
            if !output.structured(&config)? {
                output.yaml(&config)?;
            }
        }
        Action::GetHosts => {
            let context = config.context(global.context.as_deref())?;
            output.rows(&selected(global, context).await?)?;
        }
        Action::UseContext { name } => {
            Config::use_context(&name)?;
            output.note(&format!("`{name}` is the current context"));
        }
        Action::DeleteContext { name } => {
            if config.contexts.remove(&name).is_none() {
                return Err(ConfigError::NoContext(name).into());
            }
            config.current_context = config.current_context.filter(|current| *current != name);
            config.write()?;
            output.note(&format!("the context `{name}` is deleted"));
        }
        Action::SetContext(wanted) => {
            let name = wanted.name.clone();
            set_context(&mut config, global, wanted)?;
            config.write()?;
            output.note(&format!("the context `{name}` is written"));
        }
    }
    Ok(Exit::Success)
}

fn set_context(config: &mut Config, global: &Global, wanted: SetContext) -> Result<(), ConfigError> {
    if !is_name(&wanted.name) {
        return Err(ConfigError::Name(wanted.name));
    }
    // From here and from the file's directory the same: paths that are given are relative to here.
    let absolute = |path: &PathBuf| {
        std::path::absolute(path).map_err(|source| ConfigError::Read { path: path.clone(), source })
    };
    let context = config.contexts.entry(wanted.name).or_default();
    for (place, given) in
        [(&mut context.ca, &global.ca), (&mut context.cert, &global.cert), (&mut context.key, &global.key)]
    {
        if let Some(path) = given {
            *place = Some(absolute(path)?);
        }
    }
    if let Some(path) = &wanted.inventory {
        context.inventory = Some(absolute(path)?);
    }
    context.server = global.server.clone().or(context.server.take());
    context.domain = global.domain.clone().or(context.domain.take());
    context.port = wanted.port.or(context.port);
    context.parallel = global.parallel.or(context.parallel);
    context.confirm_above = wanted.confirm_above.or(context.confirm_above);
    Ok(())
}
