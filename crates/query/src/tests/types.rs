//! Attribute columns of a declared type, in files and before.

use serde_json::json;
use thalweg_columns::attribute_types::AttributeType;
use thalweg_columns::tables::TableSpec;
use thalweg_lake::entry::{BoxFuture, EntryPosition};
use thalweg_lake::memtable_view::{MemtableReader, MemtableView, VisibilityWaitError};

use super::values::{column, json_rows};
use super::*;

/// Makes uncommitted rows visible.
struct Uncommitted(Arc<TableWriter>);

impl MemtableReader for Uncommitted {
    fn tables(&self) -> Vec<&'static TableSpec> {
        vec![self.0.spec()]
    }

    fn rows(&self, table: &str) -> Option<MemtableView> {
        (table == self.0.spec().name).then(|| self.0.live())
    }

    fn wait_for<'a>(
        &'a self,
        position: &'a EntryPosition,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), VisibilityWaitError>> {
        Box::pin(self.0.wait_for(position, within))
    }
}

fn promotion() -> AttributePromotion {
    let types = [("attr_n", "long"), ("attr_r", "double"), ("attr_up", "boolean")];
    let types = types.map(|(column, kind)| (column.to_owned(), AttributeType::declared(kind).unwrap()));
    AttributePromotion::default().with_types(types.into())
}

/// A sample at a second, with these attributes.
fn with(second: i64, attributes: &[(&str, &str)]) -> Message {
    let entries = [("umh_topic", "t")].into_iter().chain(attributes.iter().copied());
    let map = MetaMap::new(entries.map(|(k, v)| (Text::from(k), Text::from(v))), None);
    let at = Ticks((START + second) * 10_000_000);
    let stamps = ValueQuality {
        source_time: at,
        server_time: at,
        status: 0,
    };
    Message::new(
        Payload::Value(Value::I64(second)),
        Metadata::stamped(Arc::new(map), stamps),
    )
}

fn rows() -> Vec<Message> {
    vec![
        with(0, &[("n", "9"), ("r", "0.5"), ("up", "true"), ("s", "9")]),
        with(1, &[("n", "100"), ("r", "NaN"), ("up", "false"), ("s", "100")]),
        with(2, &[("n", "-1"), ("r", "1e3"), ("up", "yes"), ("s", "-1")]),
        with(3, &[("n", "9007199254740993"), ("r", "9007199254740993")]),
        with(4, &[("n", "many"), ("r", "-Infinity")]),
        with(5, &[("n", "2.50")]),
        with(6, &[]),
    ]
}

/// What queries give, wherever the rows are.
async fn check(engine: &Engine, when: &str) {
    let described = text(engine, "DESCRIBE tags").await;
    for expected in ["attr_n,Int64", "attr_r,Float64", "attr_up,Boolean", "attr_s,Utf8"] {
        assert!(described.contains(expected), "{when}: {described}");
    }
    for (select, expected) in [
        ("count(*)", json!(7)),
        ("count(attr_n)", json!(4)),
        ("sum(attr_n) FILTER (WHERE attr_n < 1000)", json!(108)),
        ("max(attr_n)", json!("9007199254740993")),
        ("min(attr_n)", json!(-1)),
        ("max(attr_r) FILTER (WHERE NOT isnan(attr_r))", json!(1000.0)),
        ("bool_or(attr_up)", json!(true)),
        ("count(*) FILTER (WHERE attr_n > 2)", json!(3)),
        ("count(*) FILTER (WHERE attr_n IN (9, 100))", json!(2)),
        ("count(*) FILTER (WHERE attr_n BETWEEN -5 AND 9)", json!(2)),
        ("count(*) FILTER (WHERE attr_n = '100')", json!(1)),
        ("count(*) FILTER (WHERE attr_n = 9007199254740993)", json!(1)),
        ("count(*) FILTER (WHERE attr_r = 0.5)", json!(1)),
        ("count(*) FILTER (WHERE attr_up)", json!(1)),
        ("count(*) FILTER (WHERE attr_n IS NULL)", json!(3)),
        // Texts, whether they fit or not.
        ("count(*) FILTER (WHERE attr('n') = '100')", json!(1)),
        ("count(*) FILTER (WHERE attr('n') = 'many')", json!(1)),
        ("count(*) FILTER (WHERE attr('n') > 2)", json!(4)),
        ("count(attr('n'))", json!(6)),
        ("count(attr('up'))", json!(3)),
        ("max(attr('s'))", json!("100")),
        // A column of texts beside one of numbers.
        ("count(*) FILTER (WHERE attr_n = attr_s)", json!(3)),
        ("count(*) FILTER (WHERE attr('n') = attr('s'))", json!(3)),
        ("sum(attr_n + attr_s)", json!(216.0)),
    ] {
        let found = column(engine, &format!("SELECT {select} FROM tags")).await;
        assert_eq!(found, [expected], "{when}: {select}");
    }
    let texts = "SELECT attr('n') AS n, attr('r') AS r, attr('up') AS up FROM tags ORDER BY time";
    assert_eq!(
        json_rows(engine, texts).await,
        json!([
            {"n": "9", "r": "0.5", "up": "true"},
            {"n": "100", "r": "NaN", "up": "false"},
            {"n": "-1", "r": "1000", "up": "yes"},
            {"n": "9007199254740993", "r": "9007199254740993", "up": null},
            {"n": "many", "r": "-Infinity", "up": null},
            {"n": "2.50", "r": null, "up": null},
            {"n": null, "r": null, "up": null},
        ]),
        "{when}"
    );
    let overflow = "SELECT overflow FROM tags WHERE overflow IS NOT NULL ORDER BY time";
    assert_eq!(
        column(engine, overflow).await,
        [
            json!({"attr.up": "yes"}),
            json!({"attr.r": "9007199254740993"}),
            json!({"attr.n": "many"}),
            json!({"attr.n": "2.50"}),
        ],
        "{when}"
    );
    let grouped = "SELECT attr_up AS up, count(*) AS c FROM tags GROUP BY attr_up ORDER BY c, up";
    assert_eq!(
        json_rows(engine, grouped).await,
        json!([{"up": false, "c": 1}, {"up": true, "c": 1}, {"up": null, "c": 5}]),
        "{when}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_of_a_type_are_read_alike_before_and_after_their_commit() {
    let folder = tempfile::tempdir().unwrap();
    let writer = writer_of(folder.path(), promotion(), Duration::from_secs(3600)).await;
    let engine = engine(folder.path(), QueryOptions::default());
    engine.set_live(Arc::new(Uncommitted(writer.table.clone())));
    // The columns are made by a first commit, with new names at once.
    let names = [("n", "0"), ("r", "0"), ("up", "true"), ("s", "0")];
    append(&writer, vec![with(-1, &names)]).await;
    append_alone(&writer, rows()).await;
    let of_rows = "SELECT count(*) FROM tags";
    while column(&engine, of_rows).await != [8] {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let committed = writer.taken.load(Ordering::SeqCst);
    let all = "SELECT attr_n, attr_r, attr_up, attr_s, overflow, attr('n') AS n FROM tags ORDER BY time";
    let before = json_rows(&engine, all).await;
    assert_eq!(
        writer.taken.load(Ordering::SeqCst),
        committed,
        "the rows are not committed yet"
    );
    writer.table.hurry();
    while writer.taken.load(Ordering::SeqCst) == committed {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(json_rows(&engine, all).await, before);
    assert_eq!(before[4]["overflow"], json!({"attr.r": "9007199254740993"}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_of_a_type_are_compared_as_numbers_and_read_by_name_as_texts() {
    let folder = tempfile::tempdir().unwrap();
    let writer = writer_of(folder.path(), promotion(), Duration::from_millis(5)).await;
    let engine = engine(folder.path(), QueryOptions::default());
    append(&writer, rows()).await;
    check(&engine, "in one file").await;
    // Files that cannot match are left out by the bounds of numbers.
    append(&writer, vec![with(7, &[("n", "5000"), ("r", "7")])]).await;
    let files = async |filter: &str| {
        let plan = plan(&engine, &format!("SELECT tag FROM tags WHERE {filter}")).await;
        plan.matches(".parquet").count()
    };
    for (filter, expected) in [
        ("attr_n BETWEEN 101 AND 4000", 1),
        ("attr_n = 5000", 2),
        ("attr_n < -5", 0),
        ("attr_n > 9007199254740993", 0),
        ("attr_n = 9007199254740993", 1),
        ("attr_r > 8.0", 1),
        ("attr_s = '9'", 1),
    ] {
        assert_eq!(files(filter).await, expected, "{filter}");
    }
}
