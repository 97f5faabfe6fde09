//! The view of an orchestrator and a metrics collector: `/ping`, `/ready` and `/metrics` every second, each over a separate
//! connection. A thread that only sleeps measures how late the machine wakes threads, so that a stall of the machine is not
//! blamed on Thalweg. If Thalweg itself used the processors meanwhile, the stall is its own.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;
use std::thread::Scope;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Soak, lock};

pub const PATHS: [&str; 3] = ["/ping", "/ready", "/metrics"];
const EVERY: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum duration of a probe, plus the machine's delay meanwhile.
pub const TOOK_MAX: Duration = Duration::from_millis(100);
const SLEEP: Duration = Duration::from_millis(10);
/// Shorter delays are due to the timer.
const DELAY_KEPT: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug)]
pub struct Probe {
    pub seconds: f64,
    pub path: &'static str,
    pub took: Duration,
    /// The largest delay of the machine in waking a thread meanwhile.
    pub delay: Duration,
}

pub struct Probes {
    process: u32,
    done: Mutex<Vec<(Instant, Probe)>>,
    /// Planned and actual wake-up time of the sleeper.
    delays: Mutex<Vec<(Instant, Instant)>>,
}

impl Probes {
    pub fn of(process: u32) -> Probes {
        Probes {
            process,
            done: Mutex::default(),
            delays: Mutex::default(),
        }
    }

    pub fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, soak: &'scope Soak) {
        for path in PATHS {
            scope.spawn(move || self.probe(soak, path));
        }
        scope.spawn(move || self.sleep(soak));
    }

    /// In the order of their ends, each with the machine's delay.
    pub fn all(&self) -> Vec<Probe> {
        let delays = lock(&self.delays).clone();
        let done = lock(&self.done).clone();
        let with_delay = |(begun, probe): (Instant, Probe)| {
            let ended = begun + probe.took;
            // Both lists are ordered: wake-ups before the start of the probe are skipped.
            let from = delays.partition_point(|(_, woke)| *woke < begun);
            let meanwhile = delays.iter().skip(from).take_while(|(due, _)| *due <= ended);
            let delay = meanwhile.map(|(due, woke)| woke.duration_since(*due)).max();
            Probe {
                delay: delay.unwrap_or_default(),
                ..probe
            }
        };
        done.into_iter().map(with_delay).collect()
    }

    /// The largest delay of the machine overall.
    pub fn longest_delay(&self) -> Duration {
        let delays = lock(&self.delays);
        let late = delays.iter().map(|(due, woke)| woke.duration_since(*due));
        late.max().unwrap_or_default()
    }

    fn probe(&self, soak: &Soak, path: &'static str) {
        let mut due = Instant::now();
        while soak.goes_on() {
            let begun = Instant::now();
            let answered = get(&soak.address, path);
            let took = begun.elapsed();
            if let Err(error) = answered {
                soak.fault("probe", format!("{path} after {} ms: {error:#}", took.as_millis()));
            }
            let probe = Probe {
                seconds: begun.duration_since(soak.begun).as_secs_f64(),
                path,
                took,
                delay: Duration::ZERO,
            };
            lock(&self.done).push((begun, probe));
            due = (due + EVERY).max(Instant::now());
            soak.pause(due.saturating_duration_since(Instant::now()));
        }
    }

    fn sleep(&self, soak: &Soak) {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let mut worked = self.worked();
        while soak.goes_on() {
            let begun = Instant::now();
            std::thread::sleep(SLEEP);
            let (due, woke) = (begun + SLEEP, Instant::now());
            let before = std::mem::replace(&mut worked, self.worked());
            let of_thalweg = worked.saturating_sub(before);
            let is_late = woke.saturating_duration_since(due) >= DELAY_KEPT;
            if is_late && !is_own(of_thalweg, woke.duration_since(begun), cores) {
                lock(&self.delays).push((due, woke));
            }
        }
    }

    /// CPU time of the process, in steps of a hundredth of a second.
    fn worked(&self) -> Duration {
        const TICK: Duration = Duration::from_millis(10);
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process)).unwrap_or_default();
        // After the name, which may contain spaces, user and system time are fields 12 and 13.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks: u32 = fields
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<u32>().ok())
            .sum();
        TICK * ticks
    }
}

/// Whether the process caused a delay itself: it used half of the available CPU time meanwhile.
fn is_own(worked: Duration, length: Duration, cores: u32) -> bool {
    worked * 2 > length * cores
}

impl Probe {
    /// Whether it exceeded the limit after subtracting the machine's delay.
    pub fn is_late(&self) -> bool {
        self.took.saturating_sub(self.delay) > TOOK_MAX
    }

    /// Whether it was slow together with the machine.
    pub fn is_excused(&self) -> bool {
        self.took > TOOK_MAX && !self.is_late()
    }
}

fn get(address: &str, path: &str) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let head = answer.get(..80.min(answer.len())).unwrap_or_default();
    ensure!(
        answer.starts_with(b"HTTP/1.1 200 "),
        "{}",
        String::from_utf8_lossy(head)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_of_the_machine_is_told_from_one_of_the_process() {
        let (begin, millis) = (Instant::now(), Duration::from_millis);
        let probes = Probes::of(std::process::id());
        assert!(is_own(millis(150), millis(110), 2) && !is_own(millis(100), millis(110), 2));
        let probe = |at: u64, took: u64| {
            let probe = Probe {
                seconds: 0.0,
                path: "/ping",
                took: millis(took),
                delay: Duration::ZERO,
            };
            lock(&probes.done).push((begin + millis(at), probe));
        };
        probe(0, 5);
        probe(1000, 180);
        probe(2000, 180);
        // The machine stalled around the second probe, and before the third.
        for (due, woke) in [(990, 1100), (1150, 1170), (1900, 1990)] {
            lock(&probes.delays).push((begin + millis(due), begin + millis(woke)));
        }
        let all = probes.all();
        let told: Vec<(bool, bool)> = all.iter().map(|probe| (probe.is_late(), probe.is_excused())).collect();
        assert_eq!(told, [(false, false), (false, true), (true, false)], "{all:?}");
        assert_eq!(probes.longest_delay(), millis(110));
    }
}
