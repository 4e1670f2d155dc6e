mod boot;
mod optimise;
mod oracle;
mod rules;
mod typed;
pub(crate) mod world;
