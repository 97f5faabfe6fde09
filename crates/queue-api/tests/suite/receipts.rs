//! Old receipts after the queue or group was deleted and created again, or the process was killed right after the
//! delivery: they are `gone`, whatever has the name now.

use std::sync::Arc;

use serde_json::{Value, json};
use thalweg_log::disk::sim::SimDisk;

use crate::support::Server;

/// The code of each action on a receipt; null if it is accepted.
fn codes(server: &Server, receipt: &Value) -> [Value; 4] {
    let verdicts = [
        json!({"ack": [receipt]}),
        json!({"nack": [{"r": receipt, "delay": "0s"}]}),
        json!({"reject": [{"r": receipt, "reason": "bad"}]}),
        json!({"extend": [{"r": receipt, "visibility": "60s"}]}),
    ];
    verdicts.map(|verdict| code(server, &verdict))
}

fn code(server: &Server, verdict: &Value) -> Value {
    let settled = server.post("/queues/q/groups/g/settle", verdict);
    assert_eq!(settled.status, 200, "{settled:?}");
    settled.json["failed"][0]["code"].clone()
}

/// An old receipt is rejected, and an attempt to use it does not affect the current lease.
fn only_the_new_one_counts(server: &Server, old: &Value, new: &Value) {
    assert_ne!(old, new);
    assert_eq!(codes(server, old), ["gone"; 4], "{old}");
    assert_eq!(code(server, &json!({"ack": [new]})), Value::Null, "{new}");
}

#[test]
fn a_receipt_of_a_queue_that_was_deleted_and_made_again_is_gone() {
    let server = Server::start();
    server.create_of("q", &["old"]);
    let old = server.claim_receipts("q", "g").remove(0);
    assert_eq!(server.send("DELETE", "/queues/q?force=true", &[], "").status, 204);
    server.create_of("q", &["new"]);
    let new = server.claim_receipts("q", "g").remove(0);
    only_the_new_one_counts(&server, &old, &new);
    assert_eq!(server.get("/queues/q").json["depth"], 0);
}

#[test]
fn a_receipt_of_a_group_that_was_deleted_and_made_again_is_gone() {
    let server = Server::start();
    server.create_of("q", &["a"]);
    // Retains what the other group settles.
    server.claim_receipts("q", "keeps");
    let old = server.claim_receipts("q", "g").remove(0);
    assert_eq!(server.send("DELETE", "/queues/q/groups/g", &[], "").status, 204);
    server
        .post("/queues/q/groups/g/settle", &json!({"ack": [old]}))
        .is_problem(404, "group_not_found", &[]);
    let new = server.claim_receipts("q", "g").remove(0);
    only_the_new_one_counts(&server, &old, &new);
}

#[test]
fn a_receipt_of_a_lease_that_was_lost_with_the_process_is_gone() {
    let mut lost = 0;
    for seed in 0..10 {
        let disk = SimDisk::new(seed, 64 << 20);
        let server = Server::on(Arc::new(disk.clone()), false);
        server.create_of("q", &["a"]);
        let old = server.claim_receipts("q", "g").remove(0);
        disk.kill();
        drop(server);
        let server = Server::on(Arc::new(disk.clone()), false);
        let new = server.claim_receipts("q", "g");
        match new.first() {
            Some(new) => {
                lost += 1;
                only_the_new_one_counts(&server, &old, new);
            }
            // The lease was stored in time, and runs on.
            None => assert_eq!(code(&server, &json!({"ack": [old]})), Value::Null),
        }
        assert_eq!(server.get("/queues/q").json["depth"], 0);
    }
    assert!(lost > 0, "every lease was stored before the process was killed");
}
