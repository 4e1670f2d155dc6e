//! The guest machine: it boots, runs commands, and keeps its disk.

use anyhow::{Result, ensure};
use kprobed_vm::lab::GuestOptions;
use kprobed_vm::machine::Command;

use crate::Test;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        boots_the_kernel_that_was_asked_for,
    }
    Harness {
        disk_survives_a_power_cut,
    }
};

fn boots_the_kernel_that_was_asked_for(fixture: &Fixture) -> Result<()> {
    let release = fixture.daemon()?.shell("uname -r")?;
    ensure!(release.trim() == fixture.kernel()?.release, "{release}");
    Ok(())
}

fn disk_survives_a_power_cut(fixture: &Fixture) -> Result<()> {
    let lab = fixture.lab()?;
    let name = format!("test-{}", fixture.series());
    let options = GuestOptions { disk: Some(lab.disk(&name, true)?), ..GuestOptions::new(fixture.kernel()?) };
    let machine = lab.boot(&options)?;
    let written = machine.exec(&Command::shell("echo kept > /var/lib/kprobed/file && sync"))?;
    ensure!(written.status.success(), "{written:?}");
    machine.power_cut();
    let machine = lab.boot(&options)?;
    ensure!(machine.get("/var/lib/kprobed/file")? == b"kept\n");
    machine.power_off()?;
    Ok(())
}
