//! Fan-out of a request to many hosts.
//!
//! Owns the run ([`Run`]), the account of each host's outcome ([`HostLedger`]) and the notation of
//! host names ([`names`]). It never chooses hosts, and it never prints.
//!
//! ```no_run
//! use kprobed_client::fleet::{FanOut, Host, Run};
//! use kprobed_client::{Client, ConnectOptions, Error};
//!
//! # async fn example(hosts: Vec<Host>) {
//! let mut run = Run::start(hosts, FanOut::default(), |_host: Host, client: Client| async move {
//!     client.list_probes("").await
//! });
//! while let Some(report) = run.next().await {
//!     match report.result {
//!         Ok(probes) => println!("{}: {} probes", report.host.name, probes.len()),
//!         Err(problem) => println!("{}: {problem}", report.host.name),
//!     }
//! }
//! assert!(run.ledger().closes());
//! # }
//! ```

mod ledger;
pub mod names;
mod run;

pub use ledger::{HostLedger, Outcome};
pub use run::{FanOut, Host, NoAnswer, Operation, Report, Run};
