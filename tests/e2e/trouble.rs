//! What happens to a process in the field beside being killed: its clock is set, clients leave in the middle of what they asked for,
//! and files are damaged that can be made anew.

use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Result, ensure};
use thalweg_tests::thalweg::set_wall_clock;
use thalweg_tests::{Process, eventually};

const DAY: i64 = 86_400;

/// Seconds from what it is: right, as somebody sets it, and as a machine without a battery boots.
const CLOCKS: [i64; 8] = [0, 0, 7, -7, 3_700, 8 * DAY, -8 * DAY, -1_795_000_000];

/// The wall clock of a process that is killed again and again.
#[derive(Default)]
pub struct WallClock {
    ahead: i64,
}

impl WallClock {
    /// Sets the clock of a running process. One that was set ahead is waited for until that is seen, which takes a second: nobody can
    /// tell it from time that has passed if the process is killed before.
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

    /// Of one that stands; a clock that is set ahead then is believed, so it is set back only.
    pub fn set_back(&mut self, folder: &Path, n: u64) {
        self.ahead = self.ahead.min(CLOCKS[n as usize % CLOCKS.len()]);
        set_wall_clock(folder, self.ahead).unwrap();
    }
}

/// A request of which so many bytes are sent, and whose answer nobody waits for.
pub fn leave(address: &str, request: &[u8], sent: usize) {
    let Ok(mut stream) = TcpStream::connect(address) else {
        return;
    };
    // Nobody looks whether the server took it.
    let _ = stream.write_all(&request[..sent.min(request.len())]);
}

/// A request as it goes over the wire.
pub fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let len = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len}\r\n\r\n{body}"
    )
    .into()
}

/// Damages something in the data folder of a process that stands, of which the log knows all that is needed.
pub fn damage(data: &Path, n: u64) {
    match n % 5 {
        // One slot of three.
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
