//! What the disk itself allows, measured by a plain program without queues or log: the baseline of the durable rows, in
//! the same run on the same file system. The file is written first, like the log's files, so that no sync has to
//! allocate.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::harness::{Measured, OnDisk, Session, long_row, measure, percentiles};
use crate::histogram::Histogram;

pub const NAMES: [&str; 3] = ["disk_fdatasync", "disk_fdatasync_by_thread", "disk_write"];

const FILE_BYTES: usize = 256 << 20;
const SMALL: usize = 4 << 10;
const LARGE: usize = 1 << 20;

pub fn run(session: &Session) {
    let [alone, by_thread, large] = NAMES;
    long_row(session, alone, || write_and_sync(session, SMALL));
    long_row(session, by_thread, || by_another_thread(session));
    long_row(session, large, || write_and_sync(session, LARGE));
}

/// One block after the other, around and around in one file.
struct Blocks {
    path: PathBuf,
    file: File,
    block: Vec<u8>,
    bytes: usize,
    written: usize,
}

impl Blocks {
    fn new(session: &Session, bytes: usize) -> Blocks {
        let path = session.folder.join(format!("disk-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        let block: Vec<u8> = (0..LARGE)
            .map(|n| ((n as u32).wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for at in (0..FILE_BYTES).step_by(block.len()) {
            file.write_all_at(&block, at as u64).unwrap();
        }
        file.sync_all().unwrap();
        Blocks {
            path,
            file,
            block,
            bytes,
            written: 0,
        }
    }

    fn write_and_sync(&mut self) {
        let at = self.written * self.bytes % FILE_BYTES;
        self.file.write_all_at(&self.block[..self.bytes], at as u64).unwrap();
        self.file.sync_data().unwrap();
        self.written += 1;
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Each block is synced before the next is written. An op is a block.
fn write_and_sync(session: &Session, bytes: usize) -> Measured {
    let mut blocks = Blocks::new(session, bytes);
    let mut times = Histogram::default();
    let until = Instant::now() + Duration::from_secs_f64(session.seconds());
    let measured = measure(|| {
        while Instant::now() < until {
            let start = Instant::now();
            blocks.write_and_sync();
            times.record(start.elapsed());
        }
        (blocks.written as u64, blocks.written as u64)
    });
    on_disk(measured, &times, bytes)
}

/// Like `write_and_sync` for small blocks, by a separate thread that a task wakes and that wakes the task. This is what
/// remains for one publisher if a single writer does all commits and syncs block no task.
fn by_another_thread(session: &Session) -> Measured {
    let mut blocks = Blocks::new(session, SMALL);
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    let (requests, asked) = mpsc::channel::<oneshot::Sender<()>>();
    let writer = std::thread::spawn(move || {
        while let Ok(answer) = asked.recv() {
            blocks.write_and_sync();
            let _ = answer.send(());
        }
    });
    let until = Instant::now() + Duration::from_secs_f64(session.seconds());
    let mut times = Histogram::default();
    let measured = measure(|| {
        let task = runtime.spawn(async move {
            let (mut times, mut count) = (Histogram::default(), 0);
            while Instant::now() < until {
                let (answer, answered) = oneshot::channel();
                let start = Instant::now();
                requests.send(answer).unwrap();
                answered.await.unwrap();
                times.record(start.elapsed());
                count += 1;
            }
            (times, count)
        });
        let count;
        (times, count) = runtime.block_on(task).unwrap();
        (count, count)
    });
    writer.join().unwrap();
    on_disk(measured, &times, SMALL)
}

fn on_disk(mut measured: Measured, times: &Histogram, bytes: usize) -> Measured {
    let written = measured.ops * bytes as u64;
    measured.percentiles = Some(percentiles(times));
    measured.on_disk = Some(OnDisk {
        durability: "fsync",
        syncs: measured.ops,
        written,
        payload: written,
    });
    measured
}
