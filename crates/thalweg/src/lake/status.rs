//! `thalweg lake status`: shows the state of tables and their holder. The process that holds the folder answers;
//! without one, the files provide what they can.

use anyhow::Result;
use thalweg_assemble::DataDir;
use thalweg_lake::inspect::Lake;
use thalweg_lake_api::{HolderStatus, LakeStatus, PartitionState, STATUS_PATH, TableState, tables_on_disk};
use tokio::runtime::Runtime;

use super::args::StatusOptions;
use super::process::{HolderProcess, holder};
use crate::lake_location::LakeLocation;
use crate::{out, text_table};

pub fn run(options: &StatusOptions) -> Result<()> {
    let status = match holder(&options.place, &options.who) {
        Some(HolderProcess::Answers(http)) => {
            let text = http.get(STATUS_PATH)?;
            let mut status: LakeStatus = serde_json::from_str(&text)?;
            if let Some(holder) = &mut status.holder {
                holder.http = Some(http.base().to_owned());
            }
            status
        }
        _ => status_alone(&crate::runtime()?, &options.place.open()?)?,
    };
    if options.json {
        out::line(serde_json::to_string_pretty(&status)?)?;
        return Ok(());
    }
    out::text_as_is(text(&status))?;
    Ok(())
}

/// The state of tables without the process that writes them.
fn status_alone(runtime: &Runtime, place: &LakeLocation) -> Result<LakeStatus> {
    let tables = runtime.block_on(async { tables_on_disk(&Lake::open(place.site()).await?).await })?;
    let holder = place.data_dir().and_then(DataDir::holder);
    let mut holder = holder.map(|holder| HolderStatus {
        process: holder.process,
        http: holder.http.map(|(address, _)| address),
        host: None,
    });
    if holder.is_none() {
        let held = runtime.block_on(place.site().holder())?;
        holder = held.map(|(held, _)| HolderStatus {
            process: held.process.into(),
            http: None,
            host: Some(held.host),
        });
    }
    Ok(LakeStatus { holder, tables })
}

fn text(status: &LakeStatus) -> String {
    let mut text = match &status.holder {
        Some(HolderStatus {
            process,
            host: Some(host),
            ..
        }) => {
            format!("held by process {process} on {host}, which was not asked: entries in its log are not counted\n\n")
        }
        Some(holder) => match &holder.http {
            Some(http) => format!("held by process {} ({http})\n\n", holder.process),
            None => format!(
                "held by process {}, which cannot be asked: entries in its log are not counted\n\n",
                holder.process
            ),
        },
        None => "held by nobody: entries in the log are not counted; the next start takes them\n\n".to_owned(),
    };
    if status.tables.is_empty() {
        text.push_str("there are no tables yet\n");
        return text;
    }
    let titles = [
        "table",
        "version",
        "rows",
        "files",
        "size",
        "buffered",
        "lag",
        "last commit",
    ];
    let rows: Vec<Vec<String>> = status.tables.iter().map(table).collect();
    text.push_str(&text_table::table(&titles, &rows));
    text.push('\n');
    let rows: Vec<Vec<String>> = status.tables.iter().flat_map(partitions).collect();
    if !rows.is_empty() {
        let titles = ["table", "queue", "partition", "position", "end", "backlog", "bytes"];
        text.push('\n');
        text.push_str(&text_table::table(&titles, &rows));
        text.push('\n');
    }
    for table in &status.tables {
        if let Some(trouble) = &table.trouble {
            text.push_str(&format!("\n{}: {trouble}\n", table.table));
        }
    }
    text
}

fn table(table: &TableState) -> Vec<String> {
    vec![
        table.table.clone(),
        text_table::or_dash(table.version),
        table.rows.to_string(),
        table.files.to_string(),
        text_table::bytes(table.bytes),
        text_table::or_dash(table.buffered_rows),
        text_table::or_dash(table.commit_lag_seconds.map(|lag| format!("{lag:.1} s"))),
        text_table::or_dash(table.last_commit.as_deref()),
    ]
}

fn partitions(table: &TableState) -> Vec<Vec<String>> {
    let of = |state: &PartitionState| {
        vec![
            table.table.clone(),
            state.queue.clone(),
            state.partition.to_string(),
            state.position.to_string(),
            text_table::or_dash(state.end),
            text_table::or_dash(state.backlog),
            text_table::or_dash(state.backlog_bytes.map(text_table::bytes)),
        ]
    };
    table.partitions.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(backlog: Option<i64>) -> TableState {
        TableState {
            table: "logs".to_owned(),
            version: Some(7),
            rows: 1200,
            files: 3,
            bytes: 1 << 21,
            last_commit: Some("2031-05-06T07:08:09Z".to_owned()),
            buffered_rows: backlog.map(|_| 4),
            commit_lag_seconds: backlog.map(|_| 0.25),
            trouble: None,
            partitions: vec![PartitionState {
                queue: "lake.logs".to_owned(),
                partition: 1,
                position: 40,
                end: backlog.map(|backlog| 40 + backlog),
                backlog,
                backlog_bytes: backlog.map(|_| 900),
            }],
        }
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        let holder = HolderStatus {
            process: 12,
            http: Some("http://127.0.0.1:1".to_owned()),
            host: None,
        };
        let known = text(&LakeStatus {
            holder: Some(holder),
            tables: vec![state(Some(2))],
        });
        let expected = "\
held by process 12 (http://127.0.0.1:1)

table  version  rows  files  size     buffered  lag    last commit
logs         7  1200      3  2.0 MiB         4  0.2 s  2031-05-06T07:08:09Z

table  queue      partition  position  end  backlog  bytes
logs   lake.logs          1        40   42        2  900 B
";
        assert_eq!(known, expected);
        let alone = text(&LakeStatus {
            holder: None,
            tables: vec![state(None)],
        });
        assert!(alone.starts_with("held by nobody"), "{alone}");
        assert!(alone.contains("40  -    -        -"), "{alone}");
    }
}
