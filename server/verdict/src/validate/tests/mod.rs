mod boot;
mod optimise;
mod oracle;
mod rules;
mod typed;
#[path = "../../../../fixtures/world.rs"]
mod world;
