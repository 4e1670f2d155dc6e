//! Definitions by source lines: what a probe reads is what the variables of the source have, and no host needs debug
//! information.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use object::{Object as _, ObjectSection as _};

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::fixture::Fixture;
use crate::kernel_module::{Build, Function};
use crate::triggers::config;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        values_are_those_of_the_variables,
    }
};

/// The function of `lines/module.c` as compilers make it, with debug information: for kernels whose functions begin
/// with `endbr64`, and for others.
const ENDBR: &[u8] = include_bytes!("lines/endbr.o");
const PLAIN: &[u8] = include_bytes!("lines/plain.o");

/// The byte of the build id that both have.
const BUILD_ID: u8 = b'D';

/// What is written to the parameter of the module, which the function gets.
const WRITTEN: &str = "37";

/// A probe, and its fields with the values that the source gives them.
type Values = (&'static str, &'static [(&'static str, &'static str)]);

/// Definitions, with the probes of each.
const DEFINITIONS: &[(&str, &[Values])] = &[
    (
        "entry=kpd_lines:lines_called@module.c text:string name=parameter->name:string",
        &[("entry", &[("text_string", "\"37\""), ("name", "\"call\"")])],
    ),
    (
        "kpd_lines:lines_called:6 tens value low",
        &[("lines_called_L6", &[("tens", "3"), ("value", "37"), ("low", "153")])],
    ),
    // The variable of a block hides that of the function.
    ("kpd_lines:lines_called:15 value", &[("lines_called_L15", &[("value", "1003")])]),
    (
        "p:array kpd_lines:lines_called:17 value number=entries[1].number kind=entries[2].kind entries[1].urgent",
        &[("array", &[("value", "37"), ("number", "38"), ("kind", "6"), ("urgent", "1")])],
    ),
    // The daemon computes them: bits with a sign, and a register plus 1.
    (
        "signed=kpd_lines:lines_called:17 number=entries[1].number level=entries[2].level",
        &[("signed", &[("number", "38"), ("level", "-2")])],
    ),
    ("sum=kpd_lines:lines_called:22 value tens", &[("sum", &[("value", "151"), ("tens", "1003")])]),
    // A function that is only inlined, twice.
    (
        "kpd_lines:twice:3 doubled",
        &[("twice_L3", &[("doubled", "74")]), ("twice_L3_1", &[("doubled", "150")])],
    ),
];

/// Loads the module, and gives the client its debug information. Returns the name of that file.
fn prepare(guest: &DaemonGuest) -> Result<&'static str> {
    let build = Build::of(guest)?;
    let object = if build.body_at() > 5 { ENDBR } else { PLAIN };
    let file = object::File::parse(object)?;
    let code = file.section_by_name(".text").context("no code")?.data()?;
    let body = code.get(build.body_at()..).context("the function is too short")?;
    let module = build.module("kpd_lines", BUILD_ID, &Function::new("lines_called", body))?;
    guest.machine.put("/tmp/kpd_lines.ko", 0o644, &module)?;
    guest.shell("insmod /tmp/kpd_lines.ko && test ! -e /usr/lib/debug")?;
    fs::write(guest.home().join("lines.o"), object)?;
    Ok("lines.o")
}

fn values_are_those_of_the_variables(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon_with(&config())?;
    let file = prepare(&guest)?;
    for (definition, _) in DEFINITIONS {
        guest.ctl(&format!("add '{definition}' --debug {file}"))?;
    }
    let recording = guest.record(|| {
        let call = format!("printf {WRITTEN} > /sys/module/kpd_lines/parameters/call");
        guest.shell(&call).map(drop)
    })?;
    for (probe, fields) in DEFINITIONS.iter().flat_map(|(_, probes)| *probes) {
        let name = format!("kprobes/{probe}");
        let mut events = recording.events.iter().filter(|event| event.probe == name);
        let event = events.next().with_context(|| format!("{name} was not hit: {recording:?}"))?;
        ensure!(events.next().is_none(), "{name} was hit twice");
        for (field, value) in *fields {
            ensure!(event.field(field) == *value, "{name}: {field} is not {value}: {event:?}");
        }
    }
    // Where it came from stays with the probe.
    let shown = guest.ctl("get lines_called_L6")?;
    ensure!(shown.contains("module.c:33 (lines_called:6)"), "{shown}");
    let listed = guest.ctl(&format!("lines kpd_lines:lines_called:15-17 --debug {file} -o json"))?;
    ensure!(listed.contains("\"probeable\":true") && !listed.contains("\"probeable\":false"), "{listed}");
    let says = guest.ctl_says("check 'kpd_lines:lines_called:6'")?;
    ensure!(
        says.code == 1 && says.stderr.contains("no debug information of the module `kpd_lines`"),
        "{says:?}"
    );
    guest.delete_all()?;
    guest.shell("rmmod kpd_lines").map(drop)
}
