//! Faults in the field other than kills: the clock is set, clients disconnect in the middle of requests, and rebuildable files
//! are damaged.

use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Result, ensure};
use thalweg_tests::thalweg::set_wall_clock;
use thalweg_tests::{Process, eventually};

const DAY: i64 = 86_400;

/// Offsets in seconds: correct, set by a user, and booted without a battery.
const CLOCKS: [i64; 8] = [0, 0, 7, -7, 3_700, 8 * DAY, -8 * DAY, -1_795_000_000];

/// The wall clock of a process that is killed repeatedly.
#[derive(Default)]
pub struct WallClock {
    ahead: i64,
}

impl WallClock {
    /// Sets the clock of a running process. After a forward step this waits until the process has detected it, which takes a
    /// second: if the process were killed before, the step would count as elapsed time.
    pub fn set(&mut self, folder: &Path, process: &Process, n: u64) {
        let ahead = CLOCKS[n as usize % CLOCKS.len()];
        let seen = || {
            let said = process.stdout() + &process.stderr();
            said.matches("the wall clock was set").count()
        };
        let (before, is_ahead) = (seen(), ahead > self.ahead);
        self.ahead = ahead;
        set_wall_clock(folder, ahead).unwrap();
        if is_ahead {
            let is_seen = || -> Result<()> {
                ensure!(seen() > before, "it was not seen that the clock was set to {ahead} s");
                Ok(())
            };
            eventually(is_seen).unwrap();
        }
    }

    /// Sets the clock of a stopped process, only backward, because a forward step would be trusted.
    pub fn set_back(&mut self, folder: &Path, n: u64) {
        self.ahead = self.ahead.min(CLOCKS[n as usize % CLOCKS.len()]);
        set_wall_clock(folder, self.ahead).unwrap();
    }
}

/// A request of which this many bytes are sent, and whose response is not awaited.
pub fn leave(address: &str, request: &[u8], sent: usize) {
    let Ok(mut stream) = TcpStream::connect(address) else {
        return;
    };
    // Nothing checks whether the server handled it.
    let _ = stream.write_all(&request[..sent.min(request.len())]);
}

/// A request in wire format.
pub fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let len = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len}\r\n\r\n{body}"
    )
    .into()
}

/// Damages a rebuildable file in the data folder of a stopped process.
pub fn damage(data: &Path, n: u64) {
    match n % 5 {
        // One of three slots.
        0 => flip(&data.join("log/superblock"), n / 5 % 3 * 4096 + n / 15 % 68),
        1 => {
            std::fs::write(data.join("log/new-superblock"), "begun").unwrap();
            std::fs::write(data.join("log/new-segment-0000000000009999"), "begun").unwrap();
        }
        2 => {
            let _ = std::fs::remove_dir_all(data.join("events"));
        }
        3 => each_file(&data.join("events"), &mut |file| flip(file, n)),
        _ => each_file(&data.join("lake"), &mut |file| {
            if file.ends_with("_last_checkpoint") {
                std::fs::write(file, "{\"version\":").unwrap();
            }
        }),
    }
}

fn flip(path: &Path, at: u64) {
    let Ok(file) = std::fs::OpenOptions::new().read(true).write(true).open(path) else {
        return;
    };
    let len = file.metadata().unwrap().len().max(1);
    let mut byte = [0];
    if file.read_exact_at(&mut byte, at % len).is_ok() {
        file.write_all_at(&[byte[0] ^ 0x10], at % len).unwrap();
    }
}

fn each_file(folder: &Path, act: &mut dyn FnMut(&Path)) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        match path.is_dir() {
            true => each_file(&path, act),
            false => act(&path),
        }
    }
}
