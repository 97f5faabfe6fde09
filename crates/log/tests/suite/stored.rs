//! Every later version reads the first version of the superblock and relies on it: a log without its newest file is not
//! taken for one that ended earlier.
//!
//! The fixture is a log that [`write`] created, with files stripped of trailing zeros and named with their sizes. A
//! superblock of another version gets its own fixture; this one is never rewritten.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::{append, options, values};
use thalweg_log::disk::FolderDisk;
use thalweg_log::{Durability, EmbeddedLog, LogError, PartitionId, check};

const FILE: u64 = 64 << 10;
/// The file that its superblock names; those after it are spare files.
const NEWEST: &str = "commit-0000000000000007.log";
const ID: PartitionId = PartitionId::new(3, 0);

fn fixture() -> PathBuf {
    // Cargo names the package folder at run time; the one from compile time may be of another clone.
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    own.join("tests/fixtures/superblock-1")
}

fn open(folder: &Path) -> Result<EmbeddedLog, LogError> {
    EmbeddedLog::open(Arc::new(FolderDisk::open(folder).unwrap()), 7, &options(FILE))
}

fn stored() -> Vec<Vec<u8>> {
    (0..100u8).map(|n| vec![n; 1000]).collect()
}

async fn write(folder: &Path) {
    let log = open(folder).unwrap();
    log.create(ID, Durability::Fsync).await.unwrap();
    for value in stored() {
        append(&log, ID, &value).await;
    }
    log.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes a fixture, once for each version of the superblock"]
async fn the_fixture_of_this_superblock_is_written() {
    assert!(!fixture().exists(), "a fixture is never written again");
    let folder = tempfile::tempdir().unwrap();
    write(folder.path()).await;
    std::fs::create_dir_all(fixture()).unwrap();
    for entry in std::fs::read_dir(folder.path()).unwrap().flatten() {
        let bytes = std::fs::read(entry.path()).unwrap();
        // An unused spare file is empty.
        let Some(last) = bytes.iter().rposition(|byte| *byte != 0) else {
            continue;
        };
        let name = format!("{}.{}", entry.file_name().to_str().unwrap(), bytes.len());
        std::fs::write(fixture().join(name), &bytes[..=last]).unwrap();
    }
}

fn unpacked() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture()).unwrap().flatten() {
        let packed = entry.file_name().into_string().unwrap();
        let (name, size) = packed.rsplit_once('.').unwrap();
        let mut bytes = std::fs::read(entry.path()).unwrap();
        bytes.resize(size.parse().unwrap(), 0);
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_superblock_is_read_and_goes_on() {
    let folder = unpacked();
    let report = check(&FolderDisk::open(folder.path()).unwrap(), &mut |_, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let log = open(folder.path()).unwrap();
    assert!(log.report().was_closed);
    assert_eq!(values(&log, ID), stored());
    assert_eq!(append(&log, ID, b"more").await, 100);
    drop(log);
    assert_eq!(values(&open(folder.path()).unwrap(), ID).len(), 101);
}

#[test]
fn the_first_superblock_tells_that_the_newest_file_is_missing() {
    let folder = unpacked();
    std::fs::remove_file(folder.path().join(NEWEST)).unwrap();
    let refused = open(folder.path()).err().unwrap();
    assert!(
        matches!(&refused, LogError::Corrupt { file, .. } if file == NEWEST),
        "{refused}"
    );
}
