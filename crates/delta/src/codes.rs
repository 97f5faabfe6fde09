//! The codes that begin texts about tables and the place that they lie in. Every such text takes its code from here, so
//! the page of error codes has it.

thalweg_kit::meaning_table! {
    /// The codes of a lake's storage.
    pub enum DeltaCode {
        CorruptLog = "lake.corrupt_log",
            "A commit of a table is missing or incomplete; restore it from a copy, or move the named files away.";
        Held = "lake.held",
            "Another process writes the lake; stop it, wait until its lease ends, or set another `lake.url`.";
        NoConditionalPut = "lake.no_conditional_put",
            "The object store does not prevent two writers; use one that has conditional put, or turn it on there.";
        NoVersion = "lake.no_version",
            "The table has no version of that number or time; ask for one that it has.";
        Spool = "lake.spool",
            "Copies of files do not fit into the spool; free some space on its disk, or raise `lake.spool`.";
        SyncFailed = "lake.sync_failed",
            "A file could not be synced, and the lake takes no more data; check the disk, and restart the process.";
        UnsupportedTable = "lake.unsupported_table",
            "The table uses something of Delta that this program lacks; rewrite it without, or begin a new one.";
    }
}
