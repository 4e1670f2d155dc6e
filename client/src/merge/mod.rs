//! Events of many hosts in one order of time.
//!
//! Owns the clocks ([`ClockOffset`]: how far each host's is from this one, and how well that is known), the order, and what is said of hosts that
//! keep the others waiting ([`HostState`]). The order is exact, up to what the clocks allow: an event goes when every host has said that
//! nothing earlier of it will come. Nothing waits for a fixed time in the hope that it is enough. Two events of different hosts that are
//! closer to each other than the error bounds of their clocks may have happened the other way round; of one host, never.
//!
//! A host that says nothing for [`MergeOptions::max_wait`] holds up no other any longer. What it sends later, and what is older than events
//! that went before, is marked ([`MergedEvent::late`]) and counted; nothing is left out.
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
//!         MergedItem::Loss { host, loss } => println!("{host}: events are missing: {loss:?}"),
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
mod options;
mod order;
#[cfg(feature = "nats")]
mod published;
mod roster;
mod state;
mod stream;
mod time_map;

pub use clock::{ClockOffset, Exchange};
pub use item::{MergedEvent, MergedItem};
pub use options::MergeOptions;
pub use state::{HostAccount, HostState, StateChange};
pub use stream::MergedStream;
