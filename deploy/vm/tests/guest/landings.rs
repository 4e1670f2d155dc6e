//! Places that the kernel would replace by a jump over code that is entered from elsewhere: the daemon
//! refuses them, and no others.
//!
//! Where code leads is found here in another way than by the daemon: by decoding all functions of the
//! guest's kernel and of its modules, on the host.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use iced_x86::{Decoder, DecoderOptions, OpKind};
use kprobed_client::api::{CheckProbeResponse, ProbeKind, ProbeState, Verdict};

use crate::Test;
use crate::daemon::{DaemonGuest, TRACEFS, wait};
use crate::differential::{Random, daemon_answers};
use crate::effort;
use crate::fixture::Fixture;
use crate::kernel_memory::Memory;
use crate::kernel_module::{Build, Function};
use crate::triggers::{config, wait_for_note};
use crate::verdicts::{Symbol, symbols};

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        no_jump_covers_what_other_code_enters,
    }
    Seldom {
        a_place_in_a_module_is_judged_when_that_is_loaded,
        what_an_earlier_daemon_accepted_is_held_back,
    }
};

/// The rule.
const RULE: &str = "JUMP_OVER_LANDING";

/// Bytes of the jump.
const JUMP_BYTES: u64 = 5;

/// How long the kernel may take to make jumps, which it begins after a fraction of a second.
const OPTIMISED_WITHIN: Duration = Duration::from_secs(20);

/// How many of the places are also tried in the kernel.
fn places_tried() -> usize {
    effort::pick(15, 40)
}

/// One of so many places is judged, beside those that are also tried if they are refused.
fn one_of() -> usize {
    effort::pick(4, 1)
}

/// Functions of devices and tests that no guest has, so that code around them does not run.
const IDLE: [&str; 10] =
    ["nvme", "hvc", "hyperv", "hv_", "pcie", "tpm", "alg_test", "ptp_", "cxl_", "serdev_"];

/// A function.
struct Code {
    addresses: Range<u64>,
    name: String,
    module: Option<String>,
    bytes: Vec<u8>,
}

/// The functions of a kernel and its modules, in the order of their addresses.
struct Text {
    functions: Vec<Code>,
    kernel_start: u64,
    /// How often each name occurs.
    names: HashMap<String, usize>,
}

/// A place whose jump would cover a landing.
struct Covering {
    function: String,
    address: u64,
    /// As it is written in a definition.
    place: String,
    /// Whether a jump or a call of another symbol leads there.
    from_another: bool,
}

impl Covering {
    /// Whether the kernel is asked too, if the place is refused.
    fn is_tried(&self) -> bool {
        self.from_another && IDLE.iter().any(|prefix| self.function.starts_with(prefix))
    }
}

impl Text {
    /// Of a guest as it runs now, without probes.
    fn of(guest: &DaemonGuest) -> Result<(Self, Vec<Landing>)> {
        let listed = guest.shell("cat /proc/kallsyms")?;
        let symbols: Vec<_> = symbols(&listed).filter(|symbol| symbol.address >= 1 << 63).collect();
        let address = |name: &str| {
            let found = symbols.iter().find(|symbol| symbol.name == name);
            found.map(|symbol| symbol.address).with_context(|| name.to_owned())
        };
        let kernel = address("_stext")?..address("_etext")?;
        let memory = Memory::new(guest)?;
        let mut names: HashMap<String, usize> = HashMap::new();
        for symbol in &symbols {
            *names.entry(symbol.name.to_owned()).or_default() += 1;
        }
        let mut sorted = symbols.clone();
        sorted.sort_by_key(|symbol| symbol.address);
        sorted.dedup_by_key(|symbol| symbol.address);
        let mut addresses: Vec<(Range<u64>, &str, Option<&str>)> = Vec::new();
        // Where the code of each module is; that of the kernel has no name.
        let mut regions: BTreeMap<&str, Range<u64>> = BTreeMap::from([("", kernel.clone())]);
        for (index, &Symbol { address: start, kind, name, module }) in sorted.iter().enumerate() {
            let is_code = matches!(kind, "t" | "T" | "w" | "W");
            let of_others = |module: &str| module == "bpf" || module.starts_with("__builtin");
            if !is_code || module.map_or(!kernel.contains(&start), of_others) {
                continue;
            }
            let next = sorted.get(index + 1).map_or(u64::MAX, |next| next.address);
            // The last function of a module ends with its page at the latest here.
            let end = if module.is_some() { next.min((start | 0xfff) + 1) } else { next.min(kernel.end) };
            if let Some(module) = module {
                let region = regions.entry(module).or_insert(start..end);
                region.end = end;
            }
            addresses.push((start..end, name, module));
        }
        let mut code = BTreeMap::new();
        for (module, region) in &regions {
            code.insert(*module, memory.read(region)?);
        }
        let mut functions = Vec::new();
        for (addresses, name, module) in addresses {
            let region = module.unwrap_or_default();
            let begin = regions.get(region).context("no region")?.start;
            let [from, to] = [addresses.start, addresses.end].map(|at| usize::try_from(at - begin));
            let bytes = code.get(region).and_then(|code| code.get(from.ok()?..to.ok()?));
            let bytes = bytes.with_context(|| format!("the code of {name} is missing"))?.to_vec();
            functions.push(Code {
                addresses,
                name: name.to_owned(),
                module: module.map(str::to_owned),
                bytes,
            });
        }
        let text = Self { functions, kernel_start: kernel.start, names };
        let mut landings = text.branches();
        let table = |start: &str, stop: &str| -> Result<(u64, Vec<u8>)> {
            let memory_of = address(start)?..address(stop)?;
            Ok((memory_of.start, memory.read(&memory_of)?))
        };
        let (start, bytes) = table("__start___ex_table", "__stop___ex_table")?;
        landings.extend(text.leads((start, &bytes), 12).filter(|landing| !landing.is_own));
        let (start, bytes) = table("__start___jump_table", "__stop___jump_table")?;
        landings.extend(text.leads((start, &bytes), 16));
        Ok((text, landings))
    }

    /// The function that an address is in.
    fn of_address(&self, address: u64) -> Option<&Code> {
        let after = self.functions.partition_point(|code| code.addresses.start <= address);
        self.functions.get(after.checked_sub(1)?).filter(|code| code.addresses.contains(&address))
    }

    /// The landing at an address, if that is in the middle of a function.
    fn landing(&self, from: u64, to: u64, is_branch: bool) -> Option<Landing> {
        let code = self.of_address(to).filter(|code| code.addresses.start != to)?;
        let is_own = code.addresses.contains(&from);
        Some(Landing { to, is_own, is_branch })
    }

    /// Where direct jumps and calls lead to that are not jumps of the function itself.
    fn branches(&self) -> Vec<Landing> {
        let mut found = Vec::new();
        for code in &self.functions {
            let mut decoder = Decoder::with_ip(64, &code.bytes, code.addresses.start, DecoderOptions::NONE);
            while decoder.can_decode() {
                let instruction = decoder.decode();
                if instruction.is_invalid() {
                    break;
                }
                if instruction.op0_kind() == OpKind::NearBranch64 {
                    let landing = self.landing(instruction.ip(), instruction.near_branch_target(), true);
                    found.extend(landing.filter(|landing| !landing.is_own || instruction.is_call_near()));
                }
            }
        }
        found
    }

    /// What a table says whose entries begin with two addresses, each as a distance from itself.
    fn leads<'a>(
        &'a self,
        (start, bytes): (u64, &'a [u8]),
        entry_bytes: usize,
    ) -> impl Iterator<Item = Landing> + 'a {
        (start..).step_by(entry_bytes).zip(bytes.chunks_exact(entry_bytes)).filter_map(move |(at, entry)| {
            let address = |at: u64, bytes: &[u8]| {
                Some(at.wrapping_add_signed(i32::from_le_bytes(bytes.try_into().ok()?).into()))
            };
            let (from, to) = (address(at, entry.get(..4)?)?, address(at + 4, entry.get(4..8)?)?);
            self.of_address(from)?;
            self.landing(from, to, false)
        })
    }

    /// The places at which an instruction begins, and whose jump would cover a landing.
    fn covering(&self, landings: &[Landing]) -> Vec<Covering> {
        let mut by_function: BTreeMap<u64, Vec<&Landing>> = BTreeMap::new();
        for landing in landings {
            if let Some(code) = self.of_address(landing.to) {
                by_function.entry(code.addresses.start).or_default().push(landing);
            }
        }
        let mut found = Vec::new();
        for (start, landings) in by_function {
            let Some(code) = self.of_address(start) else { continue };
            let mut decoder = Decoder::with_ip(64, &code.bytes, start, DecoderOptions::NONE);
            while decoder.can_decode() {
                let instruction = decoder.decode();
                let at = instruction.ip();
                if instruction.is_invalid() {
                    break;
                }
                let mut covered = landings
                    .iter()
                    .filter(|landing| (at + 1..at + JUMP_BYTES).contains(&landing.to))
                    .peekable();
                if covered.peek().is_some() {
                    let place = self.place(code, at - start);
                    let from_another = covered.any(|landing| landing.is_branch && !landing.is_own);
                    found.extend(place.map(|place| Covering {
                        function: code.name.clone(),
                        address: at,
                        place,
                        from_another,
                    }));
                }
            }
        }
        found
    }

    fn place(&self, code: &Code, offset: u64) -> Option<String> {
        let is_alone = self.names.get(&code.name) == Some(&1);
        match &code.module {
            Some(module) => is_alone.then(|| format!("{module}:{}+{offset}", code.name)),
            None if is_alone => Some(format!("{}+{offset}", code.name)),
            None => Some(format!("_stext+{}", code.addresses.start + offset - self.kernel_start)),
        }
    }
}

/// A place to which code leads.
#[derive(Clone, Copy, Debug)]
struct Landing {
    to: u64,
    /// Whether the code is of the same function.
    is_own: bool,
    /// Whether it is a jump or a call, and no entry of a table.
    is_branch: bool,
}

/// Some of many, evenly spread.
fn some<T>(of: &[T], at_most: usize) -> impl Iterator<Item = &T> {
    of.iter().step_by(of.len().div_ceil(at_most).max(1))
}

/// Which of these places the kernel replaces by jumps, beside one that it certainly does. They must be
/// in different functions: a probe under a jump prevents that.
fn optimised<'a>(guest: &DaemonGuest, places: &[&'a Covering]) -> Result<Vec<&'a Covering>> {
    let control = guest.place_of_jump("kernel_clone")?;
    let mut lines = format!("p:jumps/control kernel_clone+{control}\n");
    let mut removals = "-:jumps/control\n".to_owned();
    for (index, Covering { place, .. }) in places.iter().enumerate() {
        writeln!(lines, "p:jumps/e{index} {place}")?;
        writeln!(removals, "-:jumps/e{index}")?;
    }
    // Line by line, so that a refusal names its line.
    guest.shell(&format!(
        "printf %s '{lines}' | while read line; do echo \"$line\" >> {TRACEFS}/kprobe_events || {{ echo \"$line\" >&2; exit 1; }}; done \\
         && echo 1 > {TRACEFS}/events/jumps/enable"
    ))?;
    let is_control = |line: &&str| line.contains(&format!(" kernel_clone+{control:#x} "));
    let list = || guest.shell("sed 's/$/ /' /sys/kernel/debug/kprobes/list");
    // The kernel makes all jumps at once.
    let with_control = || {
        let is_made =
            |list: &String| list.lines().filter(is_control).any(|line| line.contains("[OPTIMIZED]"));
        Ok(Some(list()?).filter(is_made))
    };
    let list = wait(OPTIMISED_WITHIN, || format!("the kernel makes no jumps: {:?}", list()), with_control)?;
    let addresses = guest.shell(&format!("grep ':jumps/e' {TRACEFS}/kprobe_events | wc -l"))?;
    ensure!(addresses.trim() == places.len().to_string(), "{addresses} of {} places", places.len());
    guest.shell(&format!(
        "echo 0 > {TRACEFS}/events/jumps/enable && echo '{removals}' >> {TRACEFS}/kprobe_events"
    ))?;
    // By address: the control may be in the function of a place, and functions share names.
    let jumps: HashSet<u64> = list
        .lines()
        .filter(|line| line.contains("[OPTIMIZED]"))
        .map(|line| {
            let address = line.split_ascii_whitespace().next().unwrap_or_default();
            u64::from_str_radix(address, 16).with_context(|| line.to_owned())
        })
        .collect::<Result<_>>()?;
    Ok(places.iter().filter(|one| jumps.contains(&one.address)).copied().collect())
}

/// One place of each function.
fn one_each<'a>(places: &[&'a Covering]) -> Vec<&'a Covering> {
    let mut places = places.to_vec();
    places.dedup_by(|next, kept| next.function == kept.function);
    places
}

fn no_jump_covers_what_other_code_enters(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // Most of them are loaded.
    guest.shell("for file in /lib/kprobed-guest/modules/*.ko; do insmod $file 2> /dev/null; done; true")?;
    let (text, landings) = Text::of(&guest)?;
    let all = text.covering(&landings);
    let (places, mut random) = (all.len(), Random::of_theme("landings"));
    let is_judged =
        |one: &Covering| one.is_tried() || one.function == FUNCTION || random.below(one_of()) == 0;
    let covering: Vec<_> = all.into_iter().filter(is_judged).collect();
    let lines: Vec<String> =
        covering.iter().enumerate().map(|(index, one)| format!("p:jumps/e{index} {}", one.place)).collect();
    let first = Instant::now();
    guest.wait_for(guest.client.check_probe(&lines[0]))??;
    let (first, begun) = (first.elapsed(), Instant::now());
    let answers = daemon_answers(&guest, &lines)?;
    let checked = begun.elapsed();
    let judged: Vec<(&Covering, &CheckProbeResponse)> = covering.iter().zip(&answers).collect();
    let of = |is: &dyn Fn(&CheckProbeResponse) -> bool| -> Vec<&Covering> {
        judged.iter().filter(|(_, answer)| is(answer)).map(|(one, _)| *one).collect()
    };
    let refused = of(&|answer| answer.rule == RULE);
    let accepted = of(&|answer| answer.verdict() == Verdict::Accepted);
    let functions = one_each(&refused).len();
    let modules = refused.iter().filter(|one| one.place.contains(':')).count();
    fixture.note(format_args!(
        "{} functions, {} landings, {places} places before them, of which {} are judged: {} in {functions} functions refused, {modules} of them in modules, {} accepted; the first check took {first:.1?}, all {checked:.1?}",
        text.functions.len(),
        landings.len(),
        covering.len(),
        refused.len(),
        accepted.len(),
    ));
    // All that is accepted, the kernel never replaces by a jump.
    let accepted = one_each(&accepted);
    let tried: Vec<_> = some(&accepted, places_tried()).copied().collect();
    let wrong = optimised(&guest, &tried)?;
    let wrong: Vec<_> = wrong.iter().map(|one| &one.place).collect();
    ensure!(wrong.is_empty(), "accepted, and the kernel makes jumps of them: {wrong:?}");
    // What is refused, it does: tried where no code runs.
    let refused: Vec<_> = refused.iter().filter(|one| one.is_tried()).copied().collect();
    let refused = one_each(&refused);
    let tried: Vec<_> = some(&refused, places_tried()).copied().collect();
    let made = optimised(&guest, &tried)?;
    let made: Vec<_> = made.iter().map(|one| &one.place).collect();
    let tried: Vec<_> = tried.iter().map(|one| &one.place).collect();
    ensure!(made == tried, "refused are {tried:?}, and the kernel makes jumps of {made:?} alone");
    fixture.note(format_args!("the kernel would have made jumps of {made:?}"));
    ensure!(
        fixture.series() != "6.1" || made.len() > 5 && functions * one_of() > 100,
        "not every way was tested"
    );
    unlikely_part_runs(&guest, fixture.series(), &covering)
}

/// A function whose unlikely code runs when a parameter of a module gets too long a text. Some builds
/// of the kernel have split it off, so that it jumps back into the function.
const FUNCTION: &str = "param_set_copystring";

/// Makes it run.
fn write_too_much(guest: &DaemonGuest) -> Result<()> {
    let long = "a".repeat(1500);
    guest.shell(&format!("! echo {long} > /sys/module/firmware_class/parameters/path"))?;
    let said = guest.shell("dmesg | grep -c \"string doesn't fit\"")?;
    ensure!(said.trim() != "0", "{said}");
    Ok(())
}

/// It runs with a probe at every place in the function that is accepted.
fn unlikely_part_runs(guest: &DaemonGuest, series: &str, covering: &[Covering]) -> Result<()> {
    let places = covering.iter().filter(|one| one.function == FUNCTION);
    let mut refused = 0;
    for Covering { place, .. } in places {
        let definition = format!("p:m/copy {place}");
        let check = guest.wait_for(guest.client.check_probe(&definition))??;
        if check.rule == RULE {
            let found = check.diagnostics.first().context("no diagnostic")?;
            ensure!(found.message.contains(&format!("`{FUNCTION}.cold` jumps to +")), "{found:?}");
            ensure!(found.hint.contains("work"), "{found:?}");
            ensure!(guest.refusal(&definition)?.reason == RULE, "{place}");
            refused += 1;
        } else if check.verdict() == Verdict::Accepted {
            guest.add(&definition)?;
        }
    }
    ensure!(refused > 0 || series != "6.1", "no place of {FUNCTION} was refused");
    write_too_much(guest)
}

/// The database and the kernel as an earlier daemon leaves them that did not have the rule.
fn what_an_earlier_daemon_accepted_is_held_back(fixture: &Fixture) -> Result<()> {
    const DATABASE: &str = "/var/lib/kprobed/kprobed.db";
    let mut guest = fixture.new_daemon(&config())?;
    let answer = guest.wait_for(guest.client.disassemble_function(FUNCTION, ProbeKind::Entry))??;
    let refused = answer.instructions.iter().find(|one| one.rule == RULE);
    let Some(refused) = refused.map(|one| format!("{FUNCTION}+{}", one.offset)) else {
        ensure!(fixture.series() != "6.1", "no place of {FUNCTION} was refused");
        return Ok(());
    };
    // As long as the other.
    let places = answer.instructions.iter().filter(|one| one.probeable);
    let mut places = places.map(|one| format!("{FUNCTION}+{}", one.offset));
    let taken = places.find(|place| place.len() == refused.len()).context("no place works")?;
    guest.add(&format!("p:kprobes/probed {taken}"))?;
    let events = guest.tracefs("kprobe_events")?;
    ensure!(events.contains(&taken), "{events}");
    guest.stop()?;
    let mut stored = guest.machine.get(DATABASE)?;
    while let Some(at) = stored.windows(taken.len()).position(|bytes| bytes == taken.as_bytes()) {
        let place = stored.get_mut(at..at + refused.len()).context("the place is cut off")?;
        place.copy_from_slice(refused.as_bytes());
    }
    guest.machine.put(DATABASE, 0o600, &stored)?;
    let left = events.replace(&taken, &refused);
    guest.shell(&format!("echo '{}' >> {TRACEFS}/kprobe_events", left.trim()))?;
    guest.restart(&config())?;
    let probe = guest.probe("probed")?;
    ensure!(probe.definition.contains(&refused), "{probe:?}");
    ensure!(probe.state() == ProbeState::HeldBack && probe.state_reason == RULE, "{probe:?}");
    let events = guest.tracefs("kprobe_events")?;
    ensure!(events.is_empty(), "it is in the kernel: {events}");
    let doctor = guest.ctl_says("doctor")?.all();
    ensure!(doctor.contains("kprobes/probed") && doctor.contains(&format!("{FUNCTION}.cold")), "{doctor}");
    let enabled = guest.wait_for(guest.client.set_enabled("probed", true))?;
    ensure!(enabled.is_err_and(|error| error.to_string().contains(".cold")), "it was enabled");
    write_too_much(&guest)
}

/// The module.
const MODULE: &str = "kpd_parts";

/// Its function, and the part of that, which the function jumps to before anything else.
const PARTED: &str = "parted";
const PART: &str = "parted.cold";

/// nop; mov eax, 0; nop; nop
const BODY: &[u8] = &[0x90, 0xb8, 0, 0, 0, 0, 0x90, 0x90];

/// Bytes of the jump to the part, before [`BODY`].
const TO_PART_BYTES: usize = 5;

/// The kernel itself arms a probe in a module while that is being loaded.
fn a_place_in_a_module_is_judged_when_that_is_loaded(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.new_daemon(&config())?;
    let build = Build::of(&guest)?;
    // The part leads behind the first byte of the body.
    let module = build.module(MODULE, 0x33, &Function::in_parts(PARTED, PART, BODY, 1))?;
    guest.machine.put("/tmp/parts.ko", 0o644, &module)?;
    let load = |guest: &DaemonGuest| guest.shell("insmod /tmp/parts.ko").map(drop);
    let unload = |guest: &DaemonGuest| guest.shell(&format!("rmmod {MODULE}")).map(drop);
    let call = |guest: &DaemonGuest| guest.shell(&format!("echo 1 > /sys/module/{MODULE}/parameters/call"));
    let body = build.body_at() + TO_PART_BYTES;
    let definition = format!("p:probed {MODULE}:{PARTED}+{body}");
    load(&guest)?;
    call(&guest)?;
    let check = guest.wait_for(guest.client.check_probe(&definition))??;
    ensure!(check.rule == RULE && check.diagnostics[0].message.contains(PART), "{check:?}");
    ensure!(
        check.diagnostics[0].hint.contains(&format!("+{}", body + 1)),
        "the landing itself works: {check:?}"
    );
    let start = guest.shell(&format!("grep ' {PARTED}\t' /proc/kallsyms | cut -d ' ' -f 1"))?;
    let place = Covering {
        function: PARTED.to_owned(),
        address: u64::from_str_radix(start.trim(), 16).context(start.clone())? + u64::try_from(body)?,
        place: format!("{MODULE}:{PARTED}+{body}"),
        from_another: true,
    };
    ensure!(optimised(&guest, &[&place])?.len() == 1, "the kernel makes no jump there");

    // Without the module, the place is not known, and the kernel itself would arm it while it loads the module.
    unload(&guest)?;
    let probe = guest.add(&definition)?;
    let armed = guest.shell("insmod /tmp/parts.ko && cat /sys/kernel/debug/kprobes/list")?;
    ensure!(!armed.contains(PARTED), "the kernel has armed what nothing proves: {armed}");
    ensure!(probe.state() == ProbeState::HeldBack && probe.state_reason == "MODULE_ABSENT", "{probe:?}");
    wait_for_note(&guest, "probed", RULE)?;
    let is_held = |guest: &DaemonGuest| -> Result<()> {
        let probe = guest.probe("probed")?;
        ensure!(probe.state() == ProbeState::HeldBack && probe.state_reason == RULE, "{probe:?}");
        let events = guest.tracefs("kprobe_events")?;
        ensure!(!events.contains("probed"), "it is in the kernel: {events}");
        let doctor = guest.ctl_says("doctor")?.all();
        ensure!(doctor.contains("probed") && doctor.contains(PART), "{doctor}");
        call(guest).map(drop)
    };
    is_held(&guest)?;
    let accepted = guest.ctl_says("update probed --accept")?;
    ensure!(accepted.code != 0 && accepted.all().contains(RULE), "{accepted:?}");

    // The module comes while no daemon runs.
    unload(&guest)?;
    guest.stop_and_restart()?;
    let waiting = guest.probe("probed")?;
    ensure!(
        waiting.state() == ProbeState::HeldBack && waiting.state_reason == "MODULE_ABSENT",
        "{waiting:?}"
    );
    guest.kill()?;
    load(&guest)?;
    let events = guest.tracefs("kprobe_events")?;
    ensure!(!events.contains("probed"), "it was left in the kernel: {events}");
    guest.restart(&config())?;
    is_held(&guest)?;
    guest.delete("probed")?;
    unload(&guest)
}
