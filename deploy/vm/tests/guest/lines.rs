//! Definitions by source lines: what a probe reads is what the variables of the source have, before an update and after
//! it, and no host needs debug information.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use object::{Object as _, ObjectSection as _};

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::fixture::Fixture;
use crate::kernel_module::{Build, Function};
use crate::rebuilt_module::load;
use crate::triggers::{config, wait_for_note};

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        values_are_those_of_the_variables,
    }
    Seldom {
        a_probe_goes_to_its_line_after_an_update,
    }
};

/// The function of `lines/module.c` as compilers make it, with debug information: for kernels whose functions begin
/// with `endbr64`, and for others.
const ENDBR: &[u8] = include_bytes!("lines/endbr.o");
const PLAIN: &[u8] = include_bytes!("lines/plain.o");

/// The same of the source that [`updated`] returns.
const ENDBR_UPDATED: &[u8] = include_bytes!("lines/endbr-updated.o");
const PLAIN_UPDATED: &[u8] = include_bytes!("lines/plain-updated.o");

/// The source.
const SOURCE: &str = include_str!("lines/module.c");

/// The byte of the build id that both have, and that of those after the update.
const BUILD_IDS: [u8; 2] = [b'D', b'E'];

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

/// The source after an update: two lines more, before the line with `keep(tens)`.
fn updated() -> String {
    SOURCE.replacen("\tkeep(tens);", "\tif (low == 255)\n\t\tkeep(low);\n\tkeep(tens);", 1)
}

/// Puts both builds of the module into the guest, as `/tmp/BYTE.ko` by the byte of its build id, and gives the client
/// their debug information (`BYTE.o`) and sources (`BYTE/module.c`).
fn prepare(guest: &DaemonGuest) -> Result<()> {
    let build = Build::of(guest)?;
    let objects = if build.body_at() > 5 { [ENDBR, ENDBR_UPDATED] } else { [PLAIN, PLAIN_UPDATED] };
    for ((build_id, object), source) in BUILD_IDS.into_iter().zip(objects).zip([SOURCE.to_owned(), updated()])
    {
        let file = object::File::parse(object)?;
        let code = file.section_by_name(".text").context("no code")?.data()?;
        let body = code.get(build.body_at()..).context("the function is too short")?;
        let module = build.module("kpd_lines", build_id, &Function::new("lines_called", body))?;
        guest.machine.put(&format!("/tmp/{build_id}.ko"), 0o644, &module)?;
        fs::write(guest.home().join(format!("{build_id}.o")), object)?;
        let sources = guest.home().join(build_id.to_string());
        fs::create_dir_all(&sources)?;
        fs::write(sources.join("module.c"), source)?;
    }
    guest.shell("test ! -e /usr/lib/debug").map(drop)
}

/// Calls the function. These probes are hit once, and have these values.
fn expect(guest: &DaemonGuest, probes: &[Values]) -> Result<()> {
    let recording = guest.record(|| {
        let call = format!("printf {WRITTEN} > /sys/module/kpd_lines/parameters/call");
        guest.shell(&call).map(drop)
    })?;
    for (probe, fields) in probes {
        let name = format!("kprobes/{probe}");
        let mut events = recording.events.iter().filter(|event| event.probe == name);
        let event = events.next().with_context(|| format!("{name} was not hit: {recording:?}"))?;
        ensure!(events.next().is_none(), "{name} was hit twice");
        for (field, value) in *fields {
            ensure!(event.field(field) == *value, "{name}: {field} is not {value}: {event:?}");
        }
    }
    Ok(())
}

fn values_are_those_of_the_variables(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon_with(&config())?;
    prepare(&guest)?;
    let [build_id, _] = BUILD_IDS;
    let file = format!("{build_id}.o");
    load(&guest, build_id)?;
    for (definition, _) in DEFINITIONS {
        guest.ctl(&format!("add '{definition}' --debug {file}"))?;
    }
    let probes: Vec<_> = DEFINITIONS.iter().flat_map(|(_, probes)| *probes).copied().collect();
    expect(&guest, &probes)?;
    // Where it came from stays with the probe.
    guest.ctl_shows("get lines_called_L6", &["module.c:33 (lines_called:6)"])?;
    let listed = guest.ctl_says(&format!("lines kpd_lines:lines_called:15-17 --debug {file} -o json"))?;
    let of_place = |probeable: &str| listed.stdout.contains(&format!("\"probeable\":{probeable}"));
    ensure!(of_place("true") && !of_place("false") && !of_place("null"), "{listed:?}");
    // It is the last function of its module, wherever the next symbol is.
    let code = guest.ctl_says("describe kpd_lines:lines_called --code -o json")?.objects()?;
    let is_inside = |one: &serde_json::Value| one["offset"].as_u64().is_some_and(|offset| offset < 0x8000);
    ensure!(code.iter().all(is_inside), "{:?}", code.last());
    let says = guest.ctl_says("check 'kpd_lines:lines_called:6'")?;
    ensure!(
        says.code == 1 && says.stderr.contains("no debug information of the module `kpd_lines`"),
        "{says:?}"
    );
    guest.delete_all()?;
    guest.shell("rmmod kpd_lines").map(drop)
}

/// Another build of the module has the line elsewhere: a place of a function, and the second of an inlined one.
fn a_probe_goes_to_its_line_after_an_update(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon_with(&config())?;
    prepare(&guest)?;
    let [before, after] = BUILD_IDS;
    let definitions = ["kpd_lines:lines_called:6 tens value low", "kpd_lines:twice:3 doubled"];
    let probes: Vec<_> = DEFINITIONS
        .iter()
        .filter(|(line, _)| definitions.contains(line))
        .flat_map(|(_, probes)| *probes)
        .copied()
        .collect();
    ensure!(probes.len() == 3, "{probes:?}");
    load(&guest, before)?;
    for definition in definitions {
        guest.ctl(&format!("add '{definition}' --debug {before}.o --source {before}"))?;
    }
    expect(&guest, &probes)?;
    guest.shell("rmmod kpd_lines")?;
    load(&guest, after)?;
    for (probe, _) in &probes {
        wait_for_note(&guest, probe, "CODE_CHANGED")?;
        let files = format!("--debug {after}.o --source {after}");
        let said = guest.ctl_says(&format!("lines --port kprobes/{probe} {files} -o yaml"))?;
        ensure!(said.code == 0 && said.stderr.contains("text"), "{said:?}");
        let applied = guest.ctl_fed("apply -f -", &said.stdout)?;
        ensure!(applied.code == 0, "{applied:?}\n{}", said.stdout);
        wait_for_note(&guest, probe, "Armed")?;
    }
    expect(&guest, &probes)?;
    // What it is made of now stays with the probe.
    guest.ctl_shows("get lines_called_L6", &["module.c:35 (lines_called:8)"])?;
    guest.delete_all()?;
    guest.shell("rmmod kpd_lines").map(drop)
}
