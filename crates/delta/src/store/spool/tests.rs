use object_store::memory::InMemory;
use tempfile::TempDir;

use super::*;

const MIB: u64 = 1 << 20;

struct World {
    folder: TempDir,
    store: InMemory,
    spool: Arc<Spool>,
}

impl World {
    fn new(limit: u64) -> World {
        let folder = tempfile::tempdir().unwrap();
        World {
            spool: Arc::new(Spool::new(&folder.path().join("spool"), limit, 0)),
            store: InMemory::new(),
            folder,
        }
    }

    async fn put(&self, name: &str, bytes: u64) {
        let content = vec![name.len() as u8; bytes as usize];
        self.store.put(&StorePath::from(name), content.into()).await.unwrap();
    }

    async fn fetch(&self, name: &str, bytes: u64) -> object_store::Result<LocalFile> {
        let pace = RateLimiter::new(0);
        self.spool
            .fetch(&self.store, &StorePath::from(name), name, bytes, &pace)
            .await
    }

    fn there(&self) -> Vec<String> {
        let found = std::fs::read_dir(self.spool.folder());
        let names = found.into_iter().flatten().flatten();
        let mut names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

#[tokio::test]
async fn a_file_is_copied_once_in_pieces_and_as_it_is() {
    let world = World::new(64 * MIB);
    let bytes = PART_BYTES as u64 * 2 + 7;
    world.put("a", bytes).await;
    let first = world.fetch("a", bytes).await.unwrap();
    assert_eq!(std::fs::read(first.path()).unwrap(), vec![1; bytes as usize]);
    world.store.delete(&StorePath::from("a")).await.unwrap();
    let second = world.fetch("a", bytes).await.unwrap();
    assert_eq!(second.path(), first.path(), "the store is not asked again");
}

#[tokio::test]
async fn copies_that_nobody_reads_make_room_those_first_that_were_not_read_for_long() {
    let world = World::new(3 * MIB);
    for name in ["a", "b", "c", "d"] {
        world.put(name, MIB).await;
    }
    let read = world.fetch("a", MIB).await.unwrap();
    drop(world.fetch("b", MIB).await.unwrap());
    drop(world.fetch("c", MIB).await.unwrap());
    drop(world.fetch("b", MIB).await.unwrap());
    drop(world.fetch("d", MIB).await.unwrap());
    assert_eq!(world.there(), ["a", "b", "d"]);
    drop(read);
}

#[tokio::test]
async fn what_does_not_fit_is_one_sentence_that_names_the_setting() {
    let world = World::new(2 * MIB);
    world.put("a", MIB).await;
    world.put("b", 2 * MIB).await;
    let _read = world.fetch("a", MIB).await.unwrap();
    let error = world.fetch("b", 2 * MIB).await.unwrap_err();
    let text = crate::store::fault_text(&error);
    assert!(
        text.starts_with("lake.spool: 2097152 bytes do not fit") && text.contains("raise lake.spool"),
        "{text}"
    );
    assert_eq!(world.there(), ["a"]);
}

#[tokio::test]
async fn a_copy_that_fails_leaves_nothing_and_its_room_is_free_again() {
    let world = World::new(MIB);
    for _ in 0..3 {
        // It is shorter than its table states.
        world.put("a", MIB / 2).await;
        world.fetch("a", MIB).await.unwrap_err();
        assert_eq!(world.there(), Vec::<String>::new());
    }
    world.put("b", MIB).await;
    drop(world.fetch("b", MIB).await.unwrap());
    assert_eq!(world.there(), ["b"]);
}

#[tokio::test]
async fn what_an_earlier_process_left_is_removed() {
    let world = World::new(MIB);
    let left = world.folder.path().join("spool/logs");
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(left.join("old"), "x").unwrap();
    world.put("a", 1).await;
    let _read = world.fetch("a", 1).await.unwrap();
    assert_eq!(world.there(), ["a"]);
    assert!(!left.exists());
}

/// As `thalweg lake ingest` beside the process that merges.
#[tokio::test]
async fn somebody_else_with_the_same_spool_takes_no_copy_away() {
    let world = World::new(MIB);
    world.put("a", 5).await;
    let read = world.fetch("a", 5).await.unwrap();
    let beside = Arc::new(Spool::new(&world.folder.path().join("spool"), MIB, 0));
    let pace = RateLimiter::new(0);
    let own = beside
        .fetch(&world.store, &StorePath::from("a"), "a", 5, &pace)
        .await
        .unwrap();
    assert_ne!(own.path(), read.path());
    assert_eq!(std::fs::read(read.path()).unwrap(), [1; 5]);
    drop((own, beside));
    assert_eq!(std::fs::read(read.path()).unwrap(), [1; 5], "nor when it ends");
}

#[tokio::test]
async fn what_is_made_here_stays_as_a_copy_once_the_store_has_it() {
    let world = World::new(4 * MIB);
    let mut writer = world.spool.begin("made").unwrap();
    writer.write(b"whole").unwrap();
    writer.keep();
    drop(writer);
    let known = world.fetch("made", 5).await.unwrap();
    assert_eq!(std::fs::read(known.path()).unwrap(), b"whole");
    let mut given_up = world.spool.begin("given up").unwrap();
    given_up.write(b"half").unwrap();
    drop(given_up);
    assert_eq!(world.there(), ["made"]);
    assert_eq!(world.spool.state.lock().used, 5);
}
