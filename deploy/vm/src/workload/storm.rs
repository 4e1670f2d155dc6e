//! Storms: one cheap system call as often as possible, or at a steady rate, with the speed that it
//! comes to.
//!
//! Measures its own speed in slices of time, so that the moment shows at which a probe on the call
//! comes or goes. Never sleeps: a rate is kept by looking at the clock. Never makes up for calls that it
//! could not make in time: that would be a burst above the rate.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use nix::unistd::getppid;

/// How long a slice is.
const SLICE: Duration = Duration::from_millis(2);

/// Calls between two looks at the clock.
const BURST: u64 = 32;

/// The longest pause whose calls are made up for.
const MADE_UP: Duration = Duration::from_millis(100);

/// Calls getppid(2) for that time; prints for each slice the calls a second, and those a second of
/// this task's own processor time, in which nothing else runs. `per_second` limits the calls; 0 does
/// not.
pub(crate) fn run(millis: u64, per_second: u64, output: &mut impl Write) -> io::Result<()> {
    let (begun, time) = (Instant::now(), Duration::from_millis(millis));
    let mut slices = Vec::new();
    let (mut slice_begun, mut cpu_begun, mut in_slice) = (begun, own_time()?, 0_u64);
    // Calls that the rate allows at that moment.
    let (mut due, mut due_at) = (0.0_f64, begun);
    loop {
        let now = Instant::now();
        let in_slice_for = now.duration_since(slice_begun);
        if in_slice_for >= SLICE {
            let cpu = own_time()?;
            let of_cpu = cpu.saturating_sub(cpu_begun).as_secs_f64().max(1e-9);
            slices.push((in_slice as f64 / in_slice_for.as_secs_f64(), in_slice as f64 / of_cpu));
            (slice_begun, cpu_begun, in_slice) = (now, cpu, 0);
        }
        let elapsed = now.duration_since(begun);
        if elapsed >= time {
            break;
        }
        if per_second > 0 {
            due += per_second as f64 * now.duration_since(due_at).min(MADE_UP).as_secs_f64();
            due_at = now;
            if due < BURST as f64 {
                continue;
            }
            due = (due - BURST as f64).min(per_second as f64 * MADE_UP.as_secs_f64());
        }
        for _ in 0..BURST {
            getppid();
        }
        in_slice += BURST;
    }
    for (per_s, per_cpu_s) in slices {
        writeln!(output, "{per_s:.0} {per_cpu_s:.0}")?;
    }
    Ok(())
}

/// Processor time of this process.
fn own_time() -> io::Result<Duration> {
    Ok(Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?))
}
