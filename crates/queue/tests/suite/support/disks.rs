//! Logs in memory whose files can be copied and changed, and settings of the generators.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_log::disk::{Disk, RamDisk};

const DISK_BYTES: u64 = 64 << 20;

/// The files of a log.
pub type Files = BTreeMap<String, Vec<u8>>;

/// A consistent copy. The log creates and renames spare files meanwhile; then it reads again.
pub fn files_of(disk: &dyn Disk) -> Files {
    loop {
        let names = disk.names().unwrap();
        let files: Option<Files> = names.into_iter().map(|name| read(disk, name)).collect();
        if let Some(files) = files {
            return files;
        }
    }
}

fn read(disk: &dyn Disk, name: String) -> Option<(String, Vec<u8>)> {
    let file = disk.open(&name).ok()?;
    let mut bytes = vec![0; file.len().ok()? as usize];
    file.read_at(&mut bytes, 0).ok()?;
    Some((name, bytes))
}

pub fn disk_of(files: &Files) -> Arc<RamDisk> {
    let disk = RamDisk::new(DISK_BYTES);
    for (name, bytes) in files {
        disk.create(name).unwrap().write_at(bytes, 0).unwrap();
    }
    Arc::new(disk)
}

/// A number from the environment, such as how many seeds to run.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}
