//! Merge of the events of many hosts in one order of time.
//!
//! Owns the clocks ([`ClockOffset`]: the offset of each host, with its error bound), the order, and
//! the states of hosts that others wait for ([`HostState`]). The order is exact up to the error
//! bounds of the clocks: an event is delivered when every host has reported that no earlier one
//! follows. There is no fixed delay. Two events of different hosts that are closer together than
//! the error bounds may have happened in the other order; two of one host never have.
//!
//! No host waits longer than [`MergeOptions::max_wait`] for one that is silent. What that host
//! sends later, and what is older than delivered events, is marked ([`MergedEvent::late`]) and
//! counted; nothing is left out.
//!
//! ```no_run
//! use kprobed_client::event::StreamRequest;
//! use kprobed_client::fleet::Host;
//! use kprobed_client::merge::{MergeOptions, MergedItem, MergedStream};
//!
//! # async fn example(hosts: Vec<Host>) {
//! let mut merged = MergedStream::open(hosts, StreamRequest::new().probe("kprobes/*"), MergeOptions::default());
//! while let Some(item) = merged.next().await {
//!     match item {
//!         MergedItem::Event(event) => println!("{} {} {}", event.corrected_ns, event.host, event.row.probe()),
//!         MergedItem::Loss { host, loss, .. } => println!("{host}: events are missing: {loss:?}"),
//!         MergedItem::State(change) => println!("{}: {}", change.host, change.state.name()),
//!         _ => {}
//!     }
//! }
//! # }
//! ```

mod clock;
mod feed;
mod item;
mod lane;
mod member;
#[cfg(feature = "nats")]
mod nats_feed;
mod order;
mod roster;
mod stream;

pub use clock::{ClockOffset, Exchange};
pub use item::{HostAccount, HostState, MergedEvent, MergedItem, StateChange};
pub use stream::{MergeOptions, MergedStream};
