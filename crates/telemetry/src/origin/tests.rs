use super::*;

const CHROME: (&str, &str) = ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) Chrome/140.0");
const CURL: (&str, &str) = ("user-agent", "curl/8.5.0");

fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a valid request")
}

fn origins() -> OriginPolicy {
    OriginPolicy {
        allowed: vec!["https://grafana.example".to_owned()],
        own_name: Some("plant.example".to_owned()),
        names: HostNames::Any,
        links: LinkablePaths::new(["/", "/ping", "/console/"]),
        acting: ActingPaths::new(["/takes/{queue}/events", "/sql", "/subscribe"].map(str::to_owned)),
        tokens_in_address: vec!["/subscribe".to_owned()],
        setting: "http.cors.allowed_origins".to_owned(),
    }
}

#[test]
fn a_refused_page_is_told_the_setting_that_this_listener_has() {
    let foreign = request(
        "GET",
        "/metrics",
        &[("host", "localhost"), ("origin", "https://evil.example")],
    );
    let refusal = |setting: &str| {
        let policy = OriginPolicy {
            setting: setting.to_owned(),
            ..origins()
        };
        policy.judge(&foreign, false).unwrap_err().to_string()
    };
    assert_eq!(
        refusal("ingest.otlp.http.cors.allowed_origins"),
        "a page of https://evil.example may not send this; add its origin to ingest.otlp.http.cors.allowed_origins, or \
         send a token (Authorization: Bearer …)"
    );
    assert_eq!(
        refusal(""),
        "a page of https://evil.example may not send this; send a token (Authorization: Bearer …)"
    );
}

fn is_answered(origins: &OriginPolicy, method: &str, path: &str, headers: &[(&str, &str)]) -> bool {
    origins.judge(&request(method, path, headers), false).is_ok()
}

#[test]
fn whoever_is_no_browser_is_answered() {
    for host in ["localhost:4195", "192.0.2.7:4195", "plant.example", "thalweg"] {
        for method in ["GET", "HEAD", "POST", "DELETE"] {
            assert!(
                is_answered(&origins(), method, "/acts", &[("host", host), CURL]),
                "{method} {host}"
            );
        }
    }
}

#[test]
fn a_page_of_another_origin_is_answered_on_no_method() {
    let here = ("host", "localhost:4195");
    for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"] {
        for origin in ["http://localhost:9999", "https://evil.example", "null", "nonsense"] {
            for path in ["/", "/ping", "/acts", "/subscribe"] {
                assert!(
                    !is_answered(&origins(), method, path, &[here, ("origin", origin)]),
                    "{method} {origin} {path}"
                );
            }
        }
        for origin in [
            "http://localhost:4195",
            "https://localhost:4195",
            "https://grafana.example",
        ] {
            assert!(
                is_answered(&origins(), method, "/acts", &[here, ("origin", origin)]),
                "{method} {origin}"
            );
        }
    }
    assert!(is_answered(
        &origins(),
        "GET",
        "/acts",
        &[("host", "localhost"), ("origin", "http://localhost:80")]
    ));
    assert!(is_answered(
        &origins(),
        "GET",
        "/acts",
        &[("host", "x.example:443"), ("origin", "https://x.example")]
    ));
    assert!(!is_answered(
        &origins(),
        "GET",
        "/acts",
        &[("host", "x.example:443"), ("origin", "http://x.example")]
    ));
}

#[test]
fn a_page_of_the_same_name_without_tls_is_another_one() {
    let judge = |is_encrypted: bool, headers: &[(&str, &str)]| {
        let named: Vec<_> = [("host", "plant.example")]
            .into_iter()
            .chain(headers.iter().copied())
            .collect();
        origins().judge(&request("POST", "/acts", &named), is_encrypted).is_ok()
    };
    let (clear, with_tls) = (("origin", "http://plant.example"), ("origin", "https://plant.example"));
    let site = |site: &'static str| ("sec-fetch-site", site);
    assert!(!judge(true, &[clear]) && !judge(true, &[clear, site("cross-site")]));
    assert!(judge(true, &[with_tls]) && judge(true, &[with_tls, site("same-origin")]));
    assert!(!judge(true, &[("referer", "http://plant.example/a"), CHROME]));
    // Behind a TLS proxy the scheme is unknown, and the browser's statement counts.
    assert!(!judge(false, &[clear, site("cross-site")]) && !judge(false, &[clear, site("same-site")]));
    assert!(judge(false, &[with_tls, site("same-origin")]) && judge(false, &[clear]));
}

#[test]
fn an_image_a_frame_a_form_and_a_prefetch_of_another_site_are_not_answered() {
    let here = ("host", "localhost:4195");
    for site in ["cross-site", "same-site", "new-kind"] {
        for (mode, dest) in [
            ("no-cors", "image"),
            ("navigate", "iframe"),
            ("no-cors", "script"),
            ("no-cors", "empty"),
        ] {
            let headers = [
                here,
                CHROME,
                ("sec-fetch-site", site),
                ("sec-fetch-mode", mode),
                ("sec-fetch-dest", dest),
            ];
            for path in ["/", "/ping", "/acts"] {
                assert!(
                    !is_answered(&origins(), "GET", path, &headers),
                    "{site} {mode} {dest} {path}"
                );
            }
        }
        let link = [
            here,
            CHROME,
            ("sec-fetch-site", site),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        assert!(is_answered(&origins(), "GET", "/", &link), "a link to the console");
        assert!(is_answered(&origins(), "GET", "/console/main.js", &link));
        assert!(!is_answered(&origins(), "POST", "/", &link), "a form");
        assert!(!is_answered(&origins(), "GET", "/acts", &link));
        assert!(!is_answered(&origins(), "GET", "/consoles", &link));
    }
    for site in ["same-origin", "none"] {
        assert!(is_answered(
            &origins(),
            "GET",
            "/acts",
            &[here, CHROME, ("sec-fetch-site", site)]
        ));
    }
}

#[test]
fn what_acts_when_it_is_read_is_opened_by_no_link_bookmark_or_address_bar() {
    let here = ("host", "localhost:4195");
    let acting = [
        "/takes/q/events",
        "/takes/a%2Fb/events?group=g",
        "/sql?q=select+1",
        "/subscribe?stream=s",
    ];
    let plain = [
        "/",
        "/ping",
        "/acts",
        "/takes/q",
        "/takes/q/events/",
        "/takes/q/r/events",
        "/takes//x",
        "/sqls",
    ];
    for site in ["none", "same-origin"] {
        for said in [
            &[("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")][..],
            &[("sec-fetch-mode", "navigate")],
            &[("sec-fetch-mode", "nested-navigate")],
            &[("sec-fetch-dest", "document")],
            &[("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")],
        ] {
            let opened: Vec<_> = [here, CHROME, ("sec-fetch-site", site)]
                .into_iter()
                .chain(said.iter().copied())
                .collect();
            for path in acting {
                for method in ["GET", "HEAD"] {
                    let judged = origins().judge(&request(method, path, &opened), false);
                    assert_eq!(judged, Err(OriginRefusal::Opened), "{method} {path} {site} {said:?}");
                }
                // A script of the own page, and a request with proof that no page caused it.
                let asked = [
                    here,
                    CHROME,
                    ("sec-fetch-site", "same-origin"),
                    ("sec-fetch-mode", "cors"),
                    ("sec-fetch-dest", "empty"),
                ];
                assert!(is_answered(&origins(), "GET", path, &asked), "{path}");
                let proven: Vec<_> = opened
                    .iter()
                    .copied()
                    .chain([("authorization", "Bearer abc")])
                    .collect();
                assert!(is_answered(&origins(), "GET", path, &proven), "{path}");
                assert!(is_answered(&origins(), "GET", path, &[here, CURL]), "{path}");
            }
            for path in plain {
                assert!(is_answered(&origins(), "GET", path, &opened), "{path} {said:?}");
            }
            assert!(is_answered(
                &origins(),
                "GET",
                "/subscribe?stream=s&token=ns_1",
                &opened
            ));
        }
    }
}

#[test]
fn a_browser_that_says_nothing_is_answered_only_with_what_no_page_can_add() {
    let silent = |host: &str, more: &[(&str, &str)]| {
        let headers: Vec<(&str, &str)> = [("host", host), CHROME]
            .into_iter()
            .chain(more.iter().copied())
            .collect();
        is_answered(&origins(), "GET", "/acts", &headers)
    };
    // A browser that is older than these headers sends nothing where a newer one would.
    assert!(!silent("localhost:4195", &[]) && !silent("127.0.0.1", &[]) && !silent("[::1]:4195", &[]));
    assert!(silent("localhost:4195", &[("x-requested-with", "console")]));
    assert!(!silent("192.0.2.7:4195", &[]) && !silent("thalweg:4195", &[]));
    assert!(silent("192.0.2.7:4195", &[("x-requested-with", "console")]));
    assert!(silent("192.0.2.7:4195", &[("referer", "http://192.0.2.7:4195/")]));
    assert!(!silent(
        "192.0.2.7:4195",
        &[("referer", "http://evil.example/a"), ("x-requested-with", "console")]
    ));
    assert!(!silent("localhost:4195", &[("referer", "http://localhost:9999/")]));
    let encrypted = request("GET", "/acts", &[("host", "192.0.2.7"), CHROME]);
    for is_encrypted in [false, true] {
        assert_eq!(origins().judge(&encrypted, is_encrypted), Err(OriginRefusal::Silent));
    }
    assert!(is_answered(
        &origins(),
        "GET",
        "/console/main.js",
        &[("host", "192.0.2.7"), CHROME]
    ));
}

#[test]
fn a_token_that_no_page_can_add_proves_that_none_did() {
    let foreign = [("host", "localhost"), ("origin", "https://evil.example")];
    let with = |more: (&'static str, &'static str)| [foreign[0], foreign[1], more];
    assert!(is_answered(
        &origins(),
        "POST",
        "/acts",
        &with(("authorization", "bearer abc"))
    ));
    assert!(!is_answered(
        &origins(),
        "POST",
        "/acts",
        &with(("authorization", "Basic abc"))
    ));
    assert!(!is_answered(
        &origins(),
        "POST",
        "/acts",
        &with(("authorization", "Bearer "))
    ));
    assert!(is_answered(
        &origins(),
        "GET",
        "/subscribe?stream=a&token=ns_1",
        &foreign
    ));
    assert!(!is_answered(&origins(), "GET", "/subscribe?token=&stream=a", &foreign));
    assert!(!is_answered(&origins(), "GET", "/acts?token=ns_1", &foreign));
}

#[test]
fn without_a_login_only_names_that_nobody_else_can_have_are_answered() {
    let own = OriginPolicy::of_own_machine("plant.example:4195");
    let cases = [
        ("localhost:4195", true),
        ("LOCALHOST", true),
        ("127.0.0.1:4195", true),
        ("[::1]:4195", true),
        ("[::1]", true),
        ("thalweg:4195", true),
        ("x.localhost", true),
        ("localhost.", true),
        ("host.docker.internal:4317", true),
        ("plant.example:80", true),
        ("evil.example:4195", false),
        ("evil.example", false),
        ("127.0.0.1.evil.example", false),
        ("localhost.evil.example:4195", false),
    ];
    for (host, expected) in cases {
        let named = [("host", host), ("authorization", "Bearer guessed")];
        assert_eq!(is_answered(&own, "GET", "/ping", &named), expected, "{host}");
        assert!(is_answered(&origins(), "GET", "/ping", &named), "{host} with a login");
    }
}

#[test]
fn a_request_names_one_host() {
    let judge = |headers: &[(&str, &str)]| origins().judge(&request("GET", "/ping", headers), false);
    let is_wrong = |headers: &[(&str, &str)]| matches!(judge(headers), Err(OriginRefusal::Host(_)));
    assert!(is_wrong(&[]));
    assert!(is_wrong(&[("host", "localhost"), ("host", "localhost")]));
    assert!(is_wrong(&[("host", "localhost"), ("host", "evil.example")]));
    assert!(is_wrong(&[("host", "a@localhost")]) && is_wrong(&[("host", "a b")]) && is_wrong(&[("host", "a/b")]));
    assert_eq!(judge(&[("host", "")]), Ok(()), "a client that knows no name");
    let absolute = |host: &str| origins().judge(&request("GET", "http://localhost:1/ping", &[("host", host)]), false);
    assert_eq!(absolute("LOCALHOST:1"), Ok(()));
    assert!(matches!(absolute("evil.example"), Err(OriginRefusal::Host(_))));
    let old = |hosts: &[(&str, &str)]| {
        let mut old = request("GET", "/ping", hosts);
        *old.version_mut() = Version::HTTP_10;
        origins().judge(&old, false)
    };
    assert_eq!(old(&[]), Ok(()));
    assert!(old(&[("host", "a"), ("host", "b")]).is_err());
}

/// How a page makes a browser send something.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Image,
    Frame,
    Link,
    FormByGet,
    FormByPost,
    FetchCors,
    FetchNoCors,
    PostNoCors,
    EventSource,
    Beacon,
}

const KINDS: [Kind; 10] = [
    Kind::Image,
    Kind::Frame,
    Kind::Link,
    Kind::FormByGet,
    Kind::FormByPost,
    Kind::FetchCors,
    Kind::FetchNoCors,
    Kind::PostNoCors,
    Kind::EventSource,
    Kind::Beacon,
];

/// A request as current browsers send it, according to the Fetch and Fetch Metadata standards.
fn of_browser(page: &str, scheme: &str, host: &str, path: &str, kind: Kind, referrer: &str) -> Request<()> {
    let (mode, dest, method) = match kind {
        Kind::Image => ("no-cors", "image", "GET"),
        Kind::Frame => ("navigate", "iframe", "GET"),
        Kind::Link | Kind::FormByGet => ("navigate", "document", "GET"),
        Kind::FormByPost => ("navigate", "document", "POST"),
        Kind::FetchCors => ("cors", "empty", "GET"),
        Kind::FetchNoCors => ("no-cors", "empty", "GET"),
        Kind::PostNoCors | Kind::Beacon => ("no-cors", "empty", "POST"),
        Kind::EventSource => ("cors", "empty", "GET"),
    };
    let own = format!("{scheme}://{host}");
    let name = |origin: &str| {
        let host = origin.split_once("://").map_or("", |(_, host)| host).to_owned();
        host.rsplit_once(':').map_or(host.clone(), |(name, _)| name.to_owned())
    };
    let site = match page {
        _ if page == own => "same-origin",
        // The scheme is part of the site.
        _ if name(page) == name(&own) && page.starts_with(&format!("{scheme}://")) => "same-site",
        _ => "cross-site",
    };
    let mut headers = vec![("host", host.to_owned()), (CHROME.0, CHROME.1.to_owned())];
    let is_foreign = page != own;
    if mode == "cors" && is_foreign {
        headers.push(("origin", page.to_owned()));
    } else if method == "POST" {
        let is_told = referrer != "no-referrer" || !is_foreign;
        headers.push(("origin", if is_told { page.to_owned() } else { "null".to_owned() }));
    }
    if scheme == "https" || ["localhost:4195", "127.0.0.1:4195", "[::1]:4195"].contains(&host) {
        headers.push(("sec-fetch-site", site.to_owned()));
        headers.push(("sec-fetch-mode", mode.to_owned()));
        headers.push(("sec-fetch-dest", dest.to_owned()));
    }
    match referrer {
        "origin" => headers.push(("referer", format!("{page}/"))),
        "unsafe-url" => headers.push(("referer", format!("{page}/a/page?q=1"))),
        _ => {}
    }
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    request(method, path, &headers)
}

#[test]
fn whatever_a_page_of_another_site_makes_a_browser_send_it_gets_no_further_than_a_link() {
    let mut refused = 0;
    for page in [
        "http://localhost:9999",
        "http://evil.example",
        "https://evil.example",
        "http://192.0.2.7:80",
        "http://plant.example",
        "http://plant.example:4195",
    ] {
        for (scheme, host) in [
            ("http", "localhost:4195"),
            ("http", "127.0.0.1:4195"),
            ("http", "[::1]:4195"),
            ("http", "192.0.2.7:4195"),
            ("http", "thalweg:4195"),
            ("https", "plant.example"),
            ("https", "192.0.2.7:4195"),
        ] {
            for kind in KINDS {
                for referrer in ["no-referrer", "origin", "unsafe-url"] {
                    for path in ["/acts", "/acts?token=x", "/ping", "/console/main.js"] {
                        let sent = of_browser(page, scheme, host, path, kind, referrer);
                        let judged = origins().judge(&sent, scheme == "https");
                        // Only the person who opens a link can read its response.
                        let is_reading = sent.method() == Method::GET && !path.starts_with("/acts");
                        assert!(
                            judged.is_err() || is_reading,
                            "{page} -> {scheme}://{host}{path} by {kind:?}, {referrer}"
                        );
                        refused += usize::from(judged.is_err());
                    }
                }
            }
        }
    }
    assert!(refused > 2_000, "{refused}");
}

#[test]
fn what_the_own_page_sends_is_answered() {
    for (scheme, host) in [
        ("http", "localhost:4195"),
        ("http", "[::1]:4195"),
        ("https", "plant.example"),
    ] {
        for kind in KINDS {
            for referrer in ["no-referrer", "origin", "unsafe-url"] {
                let own = format!("{scheme}://{host}");
                let sent = of_browser(&own, scheme, host, "/acts", kind, referrer);
                assert_eq!(
                    origins().judge(&sent, scheme == "https"),
                    Ok(()),
                    "{own} by {kind:?}, {referrer}"
                );
            }
        }
    }
}
