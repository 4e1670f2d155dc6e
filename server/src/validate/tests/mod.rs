mod boot;
mod optimise;
mod oracle;
mod rules;
mod typed;
mod world;
