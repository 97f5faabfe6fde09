//! Conversions between types and forms: numbers of a width, bytes, digests, tables in text.

use super::{check_constant, eval, mapping, outcome};
use thalweg_record::Message;

#[test]
fn numbers_of_a_width_are_exact_or_refused() {
    check_constant(&[
        ("12.0.int64()", "12"),
        ("\"12\".int64()", "12"),
        ("\"-0xff\".int64()", "-255"),
        ("\"0b101\".uint8()", "5"),
        ("\"0o17\".int16()", "15"),
        ("\"017\".int32()", "17"),
        ("\"9223372036854775807\".int64()", "9223372036854775807"),
        ("\"18446744073709551615\".uint64()", "18446744073709551615"),
        (
            "12.5.int64()",
            "error: 12.5 is no int64, because it has a fraction: use round(), floor() or ceil() first",
        ),
        ("300.int8()", "error: 300 is no int8, which goes from -128 to 127"),
        ("-1.uint16()", "error: -1 is no uint16, which goes from 0 to 65535"),
        ("1e300.int64().catch(\"none\")", "\"none\""),
        (
            "\"x\".int32()",
            "error: expected number value, got string from string literal (\"x\")",
        ),
        ("\"12.25\".float64()", "12.25"),
        ("3.float64()", "3"),
        ("3.float64() / 2", "1.5"),
        ("0.1.float32()", "0.1"),
        ("true.float64().catch(0)", "0"),
    ]);
}

/// `(value, its text)`: metadata that is the text of a number is one beside a number.
#[test]
fn metadata_is_a_number_where_the_other_side_is_one() {
    let with_meta = |source: &str| {
        let mut message = Message::raw(r#"{"limit":7}"#);
        message.meta.set("n", "8");
        message.meta.set("name", "pump");
        outcome(&mapping(&format!("root.r = {source}")), message)
    };
    for (source, expected) in [
        ("@n > this.limit", "true"),
        ("7.5 < @n", "true"),
        ("@n == 8", "true"),
        ("8.0 != @n", "false"),
        ("@n + 1", "9"),
        ("@n * 2 + @n", "24"),
        ("meta(\"n\") - 1", "7"),
        ("meta(\"\" + \"n\") % 3", "2"),
        ("(@none | 0) + 1", "1"),
        ("(@n | 0) + 1", "9"),
        ("@n.or(0) > 7", "true"),
        ("match @n { 8 => \"eight\", _ => \"other\" }", "\"eight\""),
        ("match @n { \"8\" => \"text\", _ => \"other\" }", "\"text\""),
        // Two texts stay texts, and what is no number is none.
        ("@n + @n", "\"88\""),
        ("@n == \"8\"", "true"),
        ("@name == 8", "false"),
        ("@n.type()", "\"string\""),
    ] {
        assert_eq!(with_meta(source), format!(r#"{{"r":{expected}}}"#), "{source}");
    }
    assert_eq!(
        with_meta("@name + 1"),
        "error: failed assignment (line 1): cannot add types string (from metadata `name`) and number (from number literal)"
    );
    assert_eq!(
        eval("this.n + 1", r#"{"n":"8"}"#),
        "error: cannot add types string (from field `this.n`) and number (from number literal)"
    );
}

#[test]
fn bytes_of_any_value() {
    check_constant(&[
        ("\"é\".bytes().type()", "\"bytes\""),
        ("\"é\".bytes().length()", "2"),
        ("{\"a\":1}.bytes().string()", "\"{\\\"a\\\":1}\""),
        ("5.bytes().string()", "\"5\""),
        ("\"a\".bytes().bytes().string()", "\"a\""),
    ]);
}

#[test]
fn hashes_have_their_published_values() {
    for (call, expected) in [
        ("\"md5\"", "5eb63bbbe01eeed093cb22bb8f5acdc3"),
        ("\"sha1\"", "2aae6c35c94fcfb415dbe95f408b9ce91ee846ed"),
        (
            "\"sha256\"",
            "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9",
        ),
        (
            "\"sha512\"",
            "309ecc489c12d6eb4cc40f50c902f2b4d0ed77ee511a7c7a9bcd3ca86d4cd86f\
             989dd35bc5ff499670da34255b45b0cfd830e81f605dcf7dc5542e93ae9cd76f",
        ),
        ("\"hmac_sha1\", \"key\"", "34dd234b92683593560528f6193ea68c8005f615"),
        (
            "algorithm: \"hmac_sha256\", key: \"key\"",
            "0ba06f1f9a6300461e43454535dc3c4223e47b1d357073d7536eae90ec095be1",
        ),
        (
            "\"hmac_sha512\", \"key\"",
            "ea0625a5ff1cd1653a327f8a4ae2f478fc51405c73ddac3a8a05a7a810310a6a\
             14d7c8b4d284013493a6016ecadc772cfd98ed6cbe745949c5e6119fafb63b54",
        ),
        ("\"crc32\"", "0d4a1185"),
        ("algorithm: \"crc32\", polynomial: \"Castagnoli\"", "c99465aa"),
    ] {
        let found = eval(&format!("\"hello world\".hash({call}).encode(\"hex\")"), "");
        assert_eq!(found, format!("\"{expected}\""), "{call}");
    }
    check_constant(&[
        ("\"hello world\".hash(\"xxhash64\").string()", "\"5020219685658847592\""),
        ("\"hello world\".hash(\"fnv32\").string()", "\"1418570095\""),
        (
            "\"123456789\".hash(algorithm: \"crc32\", polynomial: \"Koopman\").encode(\"hex\")",
            "\"2d3dd0ae\"",
        ),
        (
            "\"a\".hash(\"sha3\")",
            "error: unrecognized hash algorithm `sha3`; there are: crc32, fnv32, hmac_sha1, hmac_sha256, hmac_sha512, md5, \
             sha1, sha256, sha512, xxhash64",
        ),
        (
            "\"a\".hash(\"hmac_sha1\")",
            "error: hash algorithm `hmac_sha1` needs the argument `key`",
        ),
    ]);
}

#[test]
fn rows_of_a_table_in_text() {
    check_constant(&[
        (
            "\"foo,bar\\nfoo 1,\\\"bar, 1\\\"\\nfoo 2,\\n\".parse_csv()",
            "[{\"foo\":\"foo 1\",\"bar\":\"bar, 1\"},{\"foo\":\"foo 2\",\"bar\":\"\"}]",
        ),
        ("\"a,b\\n1,2\".parse_csv(false)", "[[\"a\",\"b\"],[\"1\",\"2\"]]"),
        (
            "\"a|b\\n1|2\".parse_csv(delimiter: \"|\")",
            "[{\"a\":\"1\",\"b\":\"2\"}]",
        ),
        ("\"a\\n\".parse_csv()", "[]"),
        ("\"a\\n\\\"x\\ny\\\"\".parse_csv()", "[{\"a\":\"x\\ny\"}]"),
        ("\"\".parse_csv()", "error: the CSV has no header row"),
        ("\"\".parse_csv(parse_header_row: false)", "[]"),
        (
            "\"a,b\\n1\".parse_csv()",
            "error: failed to parse value as CSV: CSV error: record 1 (line: 2, byte: 4): found record with 1 fields, but \
             the previous record has 2 fields",
        ),
        (
            "\"a\".parse_csv(delimiter: \";;\")",
            "error: the delimiter of CSV is one ASCII character other than a quote or a line end, not \";;\"",
        ),
    ]);
}
