//! Fuzzed properties of parsers, one module for each parser.
//!
//! Owns the properties. Each module has a `check` that takes any bytes and panics if a property
//! does not hold. The fuzzer calls it with generated input (`fuzz_targets`); the daemon's test
//! suite compiles these files into a test and calls it with the corpus and mutations of it
//! (`server/tests/daemon/fuzz`). It never uses anything of the daemon and of the client library other than
//! their public functions.

pub mod batch;
pub mod blacklist;
pub mod btf;
pub mod definition;
pub mod error_log;
pub mod file;
pub mod filter;
pub mod format;
pub mod hist;
pub mod kallsyms;
pub mod kprobe_events;
pub mod lines;
pub mod prototype;
pub mod records;
pub mod registered;
pub mod schema;
pub mod spool;
pub mod traceable;

mod kernels;

/// A property over any bytes.
pub type Check = fn(&[u8]);

/// Every target, by the name of its directory in the corpus.
pub const TARGETS: &[(&str, Check)] = &[
    ("batch", batch::check),
    ("blacklist", blacklist::check),
    ("btf", btf::check),
    ("definition", definition::check),
    ("error_log", error_log::check),
    ("file", file::check),
    ("filter", filter::check),
    ("format", format::check),
    ("hist", hist::check),
    ("kallsyms", kallsyms::check),
    ("kprobe_events", kprobe_events::check),
    ("lines", lines::check),
    ("prototype", prototype::check),
    ("records", records::check),
    ("registered", registered::check),
    ("schema", schema::check),
    ("spool", spool::check),
    ("traceable", traceable::check),
];
