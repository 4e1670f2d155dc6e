//! Configuring, starting and stopping kprobed in a guest.
//!
//! Speaks no gRPC: the daemon is ready once it sends its HTTP/2 settings.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::machine::{Command, Machine, MachineError, PATIENCE, Signal, tail};
use crate::protocol::Status;

/// TCP port of the daemon in the guest.
pub const PORT: u16 = 7000;
/// Name of its background process, and of its log.
pub const NAME: &str = "kprobed";
/// Where its configuration is.
pub const CONFIG_PATH: &str = "/etc/kprobed/kprobed.toml";
/// Where its log is.
pub const LOG_PATH: &str = "/run/log/kprobed.log";

/// Who may call the daemon of a guest, and where.
macro_rules! reachable {
    () => {
        r#"# A guest is its owner's alone.
[[role]]
name = "everybody"
principals = ["uid:0", "group:kprobed", "loopback"]

[[role.allow]]
methods = ["all"]
reads = ["all"]

[listen]
unix = "/run/kprobed/kprobed.sock"
tcp = "127.0.0.1:7000"
"#
    };
}

/// Configuration for people: all else is the product's own, with repair, budgets and calibration.
pub const PRODUCT_CONFIG: &str = reachable!();

/// Configuration for tests.
pub const DEFAULT_CONFIG: &str = concat!(
    reachable!(),
    r#"
# Tests look at what others have done before it is repaired.
[reconcile]
interval_ms = 0

# Tests hit probes as often as an emulated guest can.
[budget]
probe_ns_per_s = 0
host_ns_per_s = 0
calibrate = false

[state]
directory = "/var/lib/kprobed"
"#
);

/// Background process that carries connections from [`OUTSIDE`] to [`INSIDE`].
const RELAY: &str = "relay";
/// Where QEMU's forward arrives in the guest.
const OUTSIDE: &str = "10.0.2.15:7000";
/// Where the daemon listens.
const INSIDE: &str = "127.0.0.1:7000";
const PROGRAM: &str = "/usr/bin/kprobed";
/// How long it may take to stop: the kernel alone takes half a minute for a thousand probes, on an emulated CPU.
const STOP: Duration = Duration::from_mins(2);

/// Writes `config` into the guest, starts the daemon and waits until it answers; gives back where.
/// The machine forwards [`PORT`].
pub fn start(machine: &Machine, config: &str) -> Result<SocketAddr> {
    machine.put(CONFIG_PATH, 0o644, config.as_bytes())?;
    // It may run since an earlier start: one is enough, and the name is taken.
    match machine.spawn(RELAY, &Command::new("/init").arg("relay").arg(OUTSIDE).arg(INSIDE)) {
        Ok(()) | Err(MachineError::Refused { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    machine.spawn(NAME, &Command::new(PROGRAM).arg("--config").arg(CONFIG_PATH))?;
    ready(machine)
}

/// Waits until the daemon answers that was started in this machine, or in the one that it was
/// restored from; gives back where.
pub fn ready(machine: &Machine) -> Result<SocketAddr> {
    let address = machine.address(PORT).context("the machine forwards no port to the daemon's")?;
    let start = Instant::now();
    loop {
        if answers(address, Duration::from_millis(500)).is_ok() {
            return Ok(address);
        }
        if let Some(ended) = ended(machine, Duration::from_millis(100))? {
            bail!(ended);
        }
        if start.elapsed() > PATIENCE {
            bail!(
                "kprobed did not answer within {PATIENCE:.0?}; the end of its log:\n{}\nwhat its threads do:\n{}\n\
                 the end of the console:\n{}",
                log_tail(machine),
                threads(machine),
                machine.console_tail(20)
            );
        }
    }
}

/// How the daemon has ended, if it does within this time, and the end of its log.
pub fn ended(machine: &Machine, within: Duration) -> Result<Option<String>> {
    Ok(match machine.wait(NAME, within)? {
        Status::TimedOut => None,
        status => Some(format!("kprobed ended ({status:?}); the end of its log:\n{}", log_tail(machine))),
    })
}

/// Asks the daemon to stop (SIGTERM) and waits until it has.
///
/// # Errors
/// When it has not within two minutes.
pub fn stop(machine: &Machine) -> Result<Status> {
    machine.signal(NAME, Signal::SIGTERM)?;
    let status = machine.wait(NAME, STOP)?;
    ensure!(status != Status::TimedOut, "the daemon does not stop\n{}", log_tail(machine));
    Ok(status)
}

/// The last lines of the daemon's log; what went wrong with reading it otherwise.
pub fn log_tail(machine: &Machine) -> String {
    match machine.get(LOG_PATH) {
        Ok(bytes) => tail(&String::from_utf8_lossy(&bytes), 40),
        Err(error) => format!("(cannot be read: {error})"),
    }
}

/// The name of each thread of the daemon, its state and CPU times, and where in the kernel it is.
pub fn threads(machine: &Machine) -> String {
    let script = r"cat /proc/loadavg
        for thread in /proc/$(pidof kprobed)/task/*; do cat $thread/stat $thread/stack; done";
    match machine.exec(&Command::shell(script).limit(Duration::from_secs(10))) {
        Ok(output) => output.stdout_text(),
        Err(error) => format!("(not known: {error})"),
    }
}

/// Greets an HTTP/2 server, and is greeted. A connection alone proves nothing: QEMU accepts it in
/// any case.
fn answers(address: SocketAddr, timeout: Duration) -> io::Result<()> {
    const SETTINGS: u8 = 4;
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    let mut greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // An empty SETTINGS frame: length 0, no flags, stream 0.
    greeting.extend([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]);
    stream.write_all(&greeting)?;
    let mut header = [0; 9];
    if let Err(error) = stream.read_exact(&mut header) {
        // Refused at once: not to be asked again at once.
        thread::sleep(Duration::from_millis(50));
        return Err(error);
    }
    if header[3] == SETTINGS { Ok(()) } else { Err(io::Error::other("this is not HTTP/2")) }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn people_get_the_product() {
        let headings = |config: &'static str| config.lines().filter(|line| line.starts_with('['));
        assert_eq!(headings(PRODUCT_CONFIG).collect::<Vec<_>>(), ["[[role]]", "[[role.allow]]", "[listen]"]);
        assert!(headings(DEFAULT_CONFIG).any(|heading| heading == "[budget]"));
    }

    /// A server that reads a greeting and answers with these bytes.
    fn server(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut greeting = [0; 33];
            stream.read_exact(&mut greeting).unwrap();
            assert!(greeting.starts_with(b"PRI * HTTP/2.0"));
            stream.write_all(answer).unwrap();
            thread::sleep(Duration::from_millis(500));
        });
        address
    }

    #[test]
    fn only_settings_prove_that_it_answers() {
        let short = Duration::from_millis(300);
        assert!(answers(server(&[0, 0, 0, 4, 0, 0, 0, 0, 0]), short).is_ok());
        assert!(answers(server(b"HTTP/1.1 400 Bad Request"), short).is_err());
        assert!(answers(server(b""), short).is_err());
    }
}
