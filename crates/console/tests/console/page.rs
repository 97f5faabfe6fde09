use crate::support::{fetch, options, send, start_with};

#[tokio::test]
async fn the_page_and_its_parts_come_with_a_strict_policy_and_nothing_from_elsewhere() {
    let running = start_with(options()).await;
    let page = fetch(&running, "/").await;
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(
        policy.contains("default-src 'none'") && !policy.contains("unsafe"),
        "{policy}"
    );
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    let text = page.text();
    assert!(!text.contains("http://") && !text.contains("https://"), "{text}");
    let parts: Vec<&str> = text.split('"').filter(|part| part.starts_with("console/")).collect();
    assert!(parts.len() >= 3, "{parts:?}");
    for part in parts {
        let answer = fetch(&running, &format!("/{part}")).await;
        assert_eq!(answer.status, 200, "{part}");
        assert!(!answer.body.is_empty(), "{part}");
    }
    let script = fetch(&running, "/console/main.js").await;
    assert_eq!(script.header("content-type"), Some("text/javascript; charset=utf-8"));
}

#[tokio::test]
async fn every_module_that_a_module_needs_is_served() {
    let running = start_with(options()).await;
    let mut wanted = vec!["main.js".to_owned()];
    let mut seen = Vec::new();
    while let Some(name) = wanted.pop() {
        if seen.contains(&name) {
            continue;
        }
        let answer = fetch(&running, &format!("/console/{name}")).await;
        assert_eq!(answer.status, 200, "{name}");
        let imports = answer
            .text()
            .lines()
            .filter_map(|line| line.split_once("from './")?.1.split('\'').next());
        wanted.extend(imports.map(str::to_owned));
        seen.push(name);
    }
    assert!(seen.len() > 8, "{seen:?}");
}

#[tokio::test]
async fn a_browser_asks_again_and_gets_nothing_new() {
    let running = start_with(options()).await;
    let first = fetch(&running, "/console/style.css").await;
    // Header values come back in lower case, and the tag is `W/"…"`.
    let etag = format!("W{}", &first.header("etag").unwrap()[1..]);
    let again = send(
        &running,
        "GET",
        "/console/style.css",
        &[&format!("if-none-match: {etag}")],
        "",
    )
    .await;
    assert_eq!((again.status, again.body.len()), (304, 0));
}

#[tokio::test]
async fn large_answers_are_compressed_when_the_client_can_read_that() {
    let running = start_with(options()).await;
    let plain = fetch(&running, "/console/style.css").await;
    assert_eq!(plain.header("content-encoding"), None);
    let small = send(&running, "GET", "/console/style.css", &["accept-encoding: gzip"], "").await;
    assert_eq!(small.header("content-encoding"), Some("gzip"));
    assert!(small.body.len() < plain.body.len() / 2);
}
