//! Lines of a file to import: any bytes as JSON and as CSV.
#![no_main]

use thalweg_otlp::OtlpBulkRequests;

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_lake::bulk::fuzz_lines(data, &mut OtlpBulkRequests::default()));
