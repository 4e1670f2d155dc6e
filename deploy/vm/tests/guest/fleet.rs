//! A fleet of three hosts with two kernels: `kprobectl` with contexts and certificates, a dry run,
//! roll-outs, and the events of all hosts in one order while one of them is killed and returns.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::daemon;
use kprobed_vm::lab::GuestOptions;
use kprobed_vm::machine::{Command as GuestCommand, PATIENCE};
use serde_json::Value;
use tempfile::TempDir;

use crate::Test;
use crate::certificates::{self, Authority, kill_tls, serve_tls};
use crate::daemon::{DaemonGuest, Running, Said, kprobectl, wait};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Rarely {
        three_hosts_are_one_fleet,
    }
};

/// No other program calls `getsid`.
const PROBE: &str = "p:kprobes/numbers __x64_sys_getsid n=+0x70(%di):s32";

const ROLL_OUT: &str = "rollout apply --hosts all --waves 1,100%";

const ALL_ANSWERED: &str =
    "hosts: 3 targeted = 3 answered + 0 refused + 0 failed + 0 timed out + 0 unreachable + 0 not tried";

/// In the order of their names, which is that of waves. `db1` has the other kernel.
const NAMES: [&str; 3] = ["db1", "web1", "web2"];

/// The guests, and the files of a client.
struct Fleet {
    directory: TempDir,
    /// Whether `db1` has the older kernel, or both others.
    db1_is_older: bool,
    guests: BTreeMap<&'static str, DaemonGuest>,
}

impl Fleet {
    fn boot(fixture: &Fixture) -> Result<Self> {
        let lab = fixture.lab()?;
        let disk = lab.disk(&fixture.disk_name("fleet-db1"), true)?;
        let other = GuestOptions { kernel: fixture.other_kernel()?, disk: Some(disk), ..fixture.options()? };
        let config = daemon::DEFAULT_CONFIG;
        let guests = BTreeMap::from([
            (NAMES[0], DaemonGuest::over(lab.boot(&other)?, config)?),
            (NAMES[1], fixture.own_daemon("fleet-web1", config)?),
            (NAMES[2], fixture.own_daemon("fleet-web2", config)?),
        ]);
        let db1_is_older = !fixture.is_older_than(6, 10);
        let fleet = Self { directory: tempfile::tempdir()?, db1_is_older, guests };
        let authority = Authority::new()?;
        for guest in fleet.guests.values() {
            authority.certify(guest)?;
            guest.stop()?;
            serve_tls(guest)?;
        }
        authority.write_client(fleet.directory.path())?;
        fs::write(
            fleet.path("wanted.yaml"),
            format!("probe: kprobes/numbers\ndefinition: '{PROBE}'\nenabled: true\n"),
        )?;
        fleet.configure()?;
        Ok(fleet)
    }

    /// Makes the context, as a person would.
    fn configure(&self) -> Result<()> {
        let context = "config set-context test --ca ca.pem --cert client.pem --key client.key --domain";
        self.succeed(&format!("{context} {}", certificates::DAEMON))?;
        self.succeed("config use-context test")?;
        let mut config = fs::read_to_string(self.path("config.yaml"))?;
        config.push_str("    hosts:\n");
        for (name, guest) in &self.guests {
            let address = guest.machine.address(daemon::PORT).context("the machine forwards no port")?;
            let role = name.trim_end_matches(|digit: char| digit.is_ascii_digit());
            writeln!(config, "      {name}: {{address: '{address}', labels: {{role: {role}}}}}")?;
        }
        Ok(fs::write(self.path("config.yaml"), config)?)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn guest(&self, name: &str) -> Result<&DaemonGuest> {
        self.guests.get(name).context("no such host")
    }

    fn run(&self, arguments: &str) -> Result<Said> {
        Said::new(&kprobectl(self.directory.path(), arguments)?.output()?)
    }

    fn succeed(&self, arguments: &str) -> Result<Said> {
        let said = self.run(arguments)?;
        ensure!(said.code == 0, "kprobectl {arguments}: {}", said.all());
        Ok(said)
    }

    /// Calls the probed function once on a host, with a number.
    fn call(&self, host: &str, number: i64) -> Result<()> {
        self.guest(host)?.call(number, 1)
    }

    /// The names of the probes of each host, as its daemon says over its socket.
    fn probes(&self) -> Result<Vec<Vec<String>>> {
        let list = |guest: &DaemonGuest| {
            Ok(guest.shell("kprobectl list -o name")?.lines().map(str::to_owned).collect())
        };
        self.guests.values().map(list).collect()
    }
}

fn three_hosts_are_one_fleet(fixture: &Fixture) -> Result<()> {
    // Between its kernel and the other one, functions have changed that this is about.
    if fixture.is_older_than(6, 1) {
        return Ok(());
    }
    let fleet = Fleet::boot(fixture)?;
    certificates_count_on_both_sides(&fleet)?;
    kernels_are_told_apart(&fleet)?;
    a_refusal_of_the_last_wave_changes_nothing(&fleet)?;
    a_gate_puts_everything_back(&fleet)?;
    let applied = fleet.succeed(&format!("{ROLL_OUT} -f wanted.yaml --soak 1s"))?;
    ensure!(fleet.probes()? == vec![vec!["kprobes/numbers".to_owned()]; 3], "{}", applied.all());
    one_order_while_a_host_is_killed(&fleet)
}

fn certificates_count_on_both_sides(fleet: &Fleet) -> Result<()> {
    let listed = fleet.succeed("list --hosts all")?;
    ensure!(listed.all().contains(ALL_ANSWERED), "{}", listed.all());
    let some = fleet.succeed("ledger -L role=web")?;
    ensure!(some.all().contains("hosts: 2 targeted = 2 answered"), "{}", some.all());
    // A client with a certificate of another authority.
    fs::create_dir_all(fleet.path("stranger"))?;
    Authority::new()?.write_client(&fleet.path("stranger"))?;
    let stranger = "--ca ca.pem --cert stranger/client.pem --key stranger/client.key";
    let refused =
        fleet.run(&format!("list --hosts all {stranger} --domain {} --timeout 20s", certificates::DAEMON))?;
    ensure!(refused.code == 3 && refused.all().contains("3 unreachable"), "{}", refused.all());
    ensure!(refused.all().contains("does not accept the certificate of this client"), "{}", refused.all());
    // Hosts that are not those which their certificates say.
    let refused = fleet.run(
        "list --hosts all --ca ca.pem --cert client.pem --key client.key --domain other.test --timeout 20s",
    )?;
    ensure!(refused.code == 3 && refused.all().contains("3 unreachable"), "{}", refused.all());
    let again = fleet.succeed("list --hosts @failed")?;
    ensure!(again.all().contains(ALL_ANSWERED), "{}", again.all());
    Ok(())
}

/// `inet_csk_accept` lost two of its parameters in 6.10, and cachestat(2) came with 6.5.
fn kernels_are_told_apart(fleet: &Fleet) -> Result<()> {
    let differs = fleet.succeed("check 'p:accept inet_csk_accept a=%si' --hosts all")?;
    for part in [
        "does not record the same on them",
        "(db1, 1 host)",
        "a=%si: parameter flags (s32)",
        "(web[1-2], 2 hosts)",
        "a=%si: parameter arg (struct proto_accept_arg *)",
        ALL_ANSWERED,
    ] {
        ensure!(differs.all().contains(part), "{part}: {}", differs.all());
    }
    let strict = fleet.run("check 'p:accept inet_csk_accept a=%si' --hosts all --strict")?;
    ensure!(strict.code == 1, "{}", strict.all());
    let missing = fleet.run("check 'p:new __x64_sys_cachestat' --hosts all -o json")?;
    ensure!(missing.code == 1, "{}", missing.all());
    let verdicts: BTreeMap<String, String> = missing
        .objects()?
        .iter()
        .filter(|object| object["host"].is_string())
        .map(|object| (text(&object["host"]), object.to_string()))
        .collect();
    ensure!(verdicts.len() == 3, "{}", missing.all());
    for (host, answer) in verdicts {
        ensure!(
            answer.contains("\"VERDICT_REFUSED\"") == ((host == "db1") == fleet.db1_is_older),
            "{host}: {answer}"
        );
    }
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The first host takes the change and the others do not: it is not changed either.
fn a_refusal_of_the_last_wave_changes_nothing(fleet: &Fleet) -> Result<()> {
    let before = fleet.probes()?;
    let parameter = if fleet.db1_is_older { "flags" } else { "arg" };
    let flags = format!(
        "probe: kprobes/flags\ndefinition: 'p:kprobes/flags inet_csk_accept f={parameter}'\nenabled: true\n"
    );
    fs::write(fleet.path("flags.yaml"), flags)?;
    let planned = fleet.run("rollout plan -f flags.yaml --hosts all --waves 1,100% -o json")?;
    ensure!(planned.code == 1, "{}", planned.all());
    let plan: Value = serde_json::from_str(&planned.stdout).with_context(|| planned.all().clone())?;
    let hosts = plan["hosts"].as_array().with_context(|| planned.all().clone())?;
    ensure!(hosts.len() == 3, "{}", planned.all());
    for host in hosts {
        let takes_it = host["name"] == "db1";
        ensure!((host["step"] == "accepted") == takes_it, "{host}");
        ensure!(host["note"].as_str().is_some_and(|note| note.is_empty() == takes_it), "{host}");
    }
    let refused = fleet.run(&format!("{ROLL_OUT} -f flags.yaml --soak 1s -o json"))?;
    ensure!(refused.code == 1, "{}", refused.all());
    let objects = refused.objects()?;
    let events: Vec<_> = objects.iter().filter_map(|object| object["event"].as_str()).collect();
    ensure!(events == ["started", "accepted", "gate_failed", "undoing", "undone"], "{}", refused.all());
    let after = fleet.probes()?;
    ensure!(after == before, "{before:?} became {after:?}: {}", refused.all());
    Ok(())
}

/// One host is busier than the gate allows: it is in the last wave, and the hosts before it are put
/// back too.
fn a_gate_puts_everything_back(fleet: &Fleet) -> Result<()> {
    let before = fleet.probes()?;
    let busy = &fleet.guest("web2")?.machine;
    let workload =
        GuestCommand::new("workload").args(["numbers", "1000000", "1000000", "--pause-us", "1000"]);
    busy.spawn("busy", &workload.args(["--until", "/tmp/enough"]))?;
    let failed = fleet.run(&format!("{ROLL_OUT} -f wanted.yaml --soak 2s --gate hits<=20/s -o json"))?;
    ensure!(failed.code == 1, "{}", failed.all());
    let objects = failed.objects()?;
    let events: Vec<_> = objects.iter().map(|object| text(&object["event"])).collect();
    let first = |name: &str| events.iter().position(|event| event == name);
    ensure!(
        first("passed") < first("gate_failed") && first("passed").is_some(),
        "db1 passes: {}",
        failed.all()
    );
    ensure!(failed.all().contains("hits<=20/s") && failed.all().contains("web2"), "{}", failed.all());
    let status = fleet.run("rollout status -o json")?;
    ensure!(status.stdout.contains("\"undone\""), "{}", status.all());
    let after = fleet.probes()?;
    ensure!(after == before, "{before:?} became {after:?}: {}", failed.all());
    fleet.guest("web2")?.shell("touch /tmp/enough")?;
    busy.wait("busy", PATIENCE)?;
    Ok(())
}

/// Waits until what `kprobectl observe` has written is as a test wants it.
fn until(observer: &Running, what: &str, holds: impl Fn(&[Value]) -> bool) -> Result<()> {
    let missing = || format!("{what}: {:?}", observer.printed());
    wait(PATIENCE, missing, || Ok(holds(&observer.objects()?).then_some(())))
}

fn of_type<'a>(objects: &'a [Value], name: &str) -> impl Iterator<Item = &'a Value> {
    let name = name.to_owned();
    objects.iter().filter(move |object| object["type"] == *name)
}

/// The states of a host, in turn.
fn states(objects: &[Value], host: &str) -> Vec<String> {
    of_type(objects, "host_state")
        .filter(|object| object["host"] == host)
        .map(|object| text(&object["state"]))
        .collect()
}

fn one_order_while_a_host_is_killed(fleet: &Fleet) -> Result<()> {
    let observe = "observe kprobes/numbers --hosts all --max-wait 4s -o json";
    let mut observer = Running::start(kprobectl(fleet.directory.path(), observe)?)?;
    let is_now = |objects: &[Value], host: &str, state: &str| {
        states(objects, host).last().is_some_and(|last| last == state)
    };
    until(&observer, "all are there", |objects| NAMES.iter().all(|host| is_now(objects, host, "live")))?;
    // To none of them anything happens, and they say so: for three times as long as one may be silent,
    // none is late.
    std::thread::sleep(Duration::from_secs(12));
    let idle = observer.objects()?;
    let is_live =
        |host: &&str| is_now(&idle, host, "live") && !states(&idle, host).contains(&"late".to_owned());
    ensure!(NAMES.iter().all(is_live) && of_type(&idle, "event").next().is_none(), "{idle:?}");
    let mut called = BTreeMap::from(NAMES.map(|host| (host, 0_u64)));
    let mut next = 0;
    let mut call = |hosts: &[&'static str]| -> Result<usize> {
        for host in hosts {
            fleet.call(host, next)?;
            *called.entry(host).or_default() += 1;
            next += 1;
        }
        usize::try_from(next).map_err(Into::into)
    };
    let shown = |count: usize| move |objects: &[Value]| of_type(objects, "event").count() == count;
    for _ in 0..5 {
        call(&NAMES)?;
    }
    until(&observer, "events of all", shown(15))?;

    let killed = fleet.guest("db1")?;
    kill_tls(killed)?;
    let count = call(&["web1", "web2", "web1"])?;
    until(&observer, "the others go on", shown(count))?;
    until(&observer, "it is late", |objects| is_now(objects, "db1", "late"))?;
    serve_tls(killed)?;
    until(&observer, "it is back", |objects| is_now(objects, "db1", "back"))?;
    let mut count = 0;
    for _ in 0..5 {
        count = call(&NAMES)?;
    }
    until(&observer, "events of all again", shown(count))?;
    let objects = observer.end_by_interrupt()?.objects()?;

    let events: Vec<_> = of_type(&objects, "event").collect();
    let numbers: Vec<_> = events.iter().map(|event| event["fields"]["n"].as_i64()).collect();
    ensure!(numbers == (0..next).map(Some).collect::<Vec<_>>(), "{events:?}");
    ensure!(events.is_sorted_by_key(|event| text(&event["corrected_time"])), "{events:?}");
    ensure!(events.iter().all(|event| event["late"] != true), "{events:?}");
    for host in NAMES {
        let account =
            of_type(&objects, "host").find(|object| object["host"] == host).context("no account")?;
        let of_host = events.iter().filter(|event| event["host"] == host).count() as u64;
        ensure!(Some(&of_host) == called.get(host), "{host}: {called:?} {events:?}");
        ensure!(account["closes"] == true && account["outcome"] == "answered", "{account}");
        ensure!(account["shown"] == of_host && account["read"] == of_host, "{account}");
        // The daemon that was killed says once what its history may lack. It lacks nothing: every
        // call was seen.
        let may_miss = of_type(&objects, "epoch").filter(|object| object["host"] == host).count();
        ensure!(may_miss == usize::from(host == "db1"), "{host}: {objects:?}");
        ensure!(account["lost"] == 0, "{account}");
    }
    let ledger = &objects.last().context("no line")?["ledger"];
    ensure!(ledger["targeted"] == 3 && ledger["answered"] == 3, "{ledger}");
    // The accounts of the daemons that ran all the time say the same.
    for host in ["web1", "web2"] {
        let guest = fleet.guest(host)?;
        let ledger: Value = serde_json::from_str(&guest.shell("kprobectl ledger -o json")?)?;
        let probes = ledger["probes"].as_array().context("no probes")?;
        let numbers = probes.iter().find(|probe| probe["probe"] == "kprobes/numbers");
        let count = called.get(host).with_context(|| format!("no calls on {host}"))?;
        // 64-bit numbers are text.
        let count = Value::from(count.to_string());
        ensure!(numbers.is_some_and(|probe| probe["read"] == count), "{ledger}");
    }
    Ok(())
}
