//! Commands. Those that share their arguments share a file.
//!
//! Owns the way from arguments to calls of the daemon and back to an exit code, and the columns of a command's own
//! lists. All output goes through `Output`. `dispatch` chooses the command.

pub(crate) mod add;
pub(crate) mod adopt;
pub(crate) mod aggregations;
pub(crate) mod apply;
pub(crate) mod audit;
pub(crate) mod auth;
pub(crate) mod check;
pub(crate) mod config;
pub(crate) mod debug;
pub(crate) mod describe;
pub(crate) mod doctor;
pub(crate) mod functions;
pub(crate) mod hist;
pub(crate) mod hits;
pub(crate) mod lines;
pub(crate) mod list;
pub(crate) mod observe;
pub(crate) mod rollout;
pub(crate) mod status;
pub(crate) mod update;

pub(crate) mod connection;
pub(crate) mod many_hosts;
pub(crate) mod probe_selection;

mod changes;
mod counting;
mod definitions;
mod documents;
mod failure;
mod image;
mod input;
mod stop_condition;

use clap::Args;

pub(crate) use failure::{Exit, Failure};

/// Arguments of a command that has none.
#[derive(Clone, Debug, Args)]
pub(crate) struct NoArguments {}
