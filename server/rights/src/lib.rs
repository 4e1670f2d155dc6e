//! Rights: principals, what roles allow, and the decision about a request.
//!
//! Owns principals, the language of role files, the table of methods, what a definition reads, the
//! decision, and the limits of a principal. Plain functions over values: never does I/O, and knows no
//! sockets, no messages and no database.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod bound;
mod decision;
mod file;
mod limits;
mod method;
mod pattern;
mod principal;
mod reads;
mod role;
#[cfg(test)]
mod tests;

pub use bound::Bound;
pub use decision::{Decision, Question, RuleName};
pub use file::RoleProblem;
pub use limits::{Amount, Limit, Limits};
pub use method::{METHODS, Method, Scope, Verb};
pub use pattern::{PatternError, PrincipalPattern};
pub use principal::Principal;
pub use reads::{Read, Reads};
pub use role::{Known, Object, Role, Roles};
