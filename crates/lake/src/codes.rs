//! The codes that begin texts about the tables that the log feeds, and about files that are imported. Every such text
//! takes its code from here or from crate `delta`, so the page of error codes has it.

thalweg_kit::meaning_table! {
    /// The codes of tables and their writers.
    pub enum LakeCode {
        ColumnType = "lake.column_type",
            "A column has another type than `lake.<table>.types` declares; remove it there, or set another `lake.url`.";
        CompactionMismatch = "lake.compaction_mismatch",
            "A merge would have changed rows, so the files stay as they are; report it with the message.";
        EncodeFailed = "lake.encode_failed",
            "Rows cannot be written as Parquet and stay in the log until a restart tries again; report it.";
        Gap = "lake.gap",
            "The log lacks entries that a table needs; restore its files, or start once with `log: {recover: skip}`.";
        Lost = "lake.lost",
            "The log ends before what a table has; restore its files, or start once with `log: {recover: skip}`.";
        MessageTooLong = "message_too_long",
            "A message with its metadata is larger than an entry of the log may be; send smaller ones.";
        Poison = "lake.poison",
            "An entry of the log cannot be decoded, and its rows are missing; report it with the quarantined file.";
        SchemaConflict = "lake.schema_conflict",
            "A table of another kind has the name; move it away, or set another `data_dir`.";
    }
}

thalweg_kit::meaning_table! {
    /// The codes of files that cannot be imported. Those of OTLP are the same for requests, so crate `otlp` has them
    /// from here.
    pub enum ImportCode {
        Changed = "ingest.changed",
            "The file changed while it was read; import it again when it is complete.";
        KindUnknown = "ingest.kind_unknown",
            "The format of the file is unclear or does not fit its name; rename the file, or set `--kind`.";
        Malformed = "ingest.malformed",
            "A row or a value of the file is too long, maybe because a quote is not closed; correct the named line.";
        MissingFields = "ingest.missing_fields",
            "Most rows of the file have no time or no body, because these have other names; add `--map`, or `--accept-missing`.";
        NoHeader = "ingest.no_header",
            "The first line of a CSV file does not have the names of its columns, separated by commas; add them.";
        Parquet = "ingest.parquet",
            "The Parquet file is damaged, or the type of a column cannot be read; write the file again.";
        SignalUnknown = "ingest.signal_unknown",
            "The records of the file may be of several signals, or of none; set `--signal`.";
        TooManyBad = "ingest.too_many_bad",
            "More lines of the file are bad than `--max-bad` allows; correct them, or allow more.";
        DecodedTooLarge = "otlp.decoded_too_large",
            "The file grows too much in decompression; if that is right, import it decompressed.";
        OtlpMalformed = "otlp.malformed",
            "The file is not the OTLP or the compression that it seems to be, or is cut off; write it again.";
        ZstdWindow = "otlp.zstd_window",
            "The window of the zstd data is too large; compress the file again with a smaller one, as `zstd -19` does.";
    }
}
