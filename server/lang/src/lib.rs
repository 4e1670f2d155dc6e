//! Languages of kprobed: definitions of probes in every dialect, labels and names.
//!
//! Owns text, trees, diagnostics, and the vocabulary of the domain (`model`). Plain functions over
//! text and values: never does I/O, and knows no kernel, no messages and no database. The language
//! of filters is a crate of its own, `kprobed-filter`, because clients evaluate it too.
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as kprobed_lang;

pub mod definition;
pub mod model;
#[doc(hidden)]
#[path = "../../fixtures/samples/features.rs"]
pub mod samples;
