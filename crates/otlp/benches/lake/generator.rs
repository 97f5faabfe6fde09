//! Generates requests that resemble real traffic, reproducibly for a seed.
//!
//! Logs have 13 attributes of their resource, which about 5 records share, 10 attributes of their own, and a body with
//! 330 bytes on average. Values that vary from record to record (ids, addresses, durations) are new in each; the others
//! come from lists. The benchmarks of this crate and the load generator for the whole binary include this file, so it
//! depends only on the standard library.

/// The content of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Logs,
    /// Forty attributes and a short body.
    WideLogs,
    Metrics,
    Traces,
}

/// 2031-05-06T07:08:09Z.
pub const BEGIN_NANOS: u64 = 1_935_990_489_000_000_000;
const RECORDS_PER_GROUP: u64 = 5;
const SERVICES: [&str; 12] = [
    "checkout",
    "cart",
    "frontend",
    "payment",
    "shipping",
    "currency",
    "recommendation",
    "ad",
    "email",
    "quote",
    "inventory",
    "gateway",
];
const ROUTES: [&str; 8] = [
    "/api/cart",
    "/api/cart/{id}",
    "/api/checkout",
    "/api/products",
    "/api/products/{id}",
    "/api/quote",
    "/health",
    "/api/ship",
];
const WORDS: [&str; 24] = [
    "request",
    "for",
    "order",
    "finished",
    "with",
    "cache",
    "miss",
    "while",
    "reading",
    "from",
    "the",
    "primary",
    "replica",
    "retrying",
    "after",
    "connection",
    "reset",
    "by",
    "peer",
    "upstream",
    "answered",
    "within",
    "budget",
    "again",
];
const SEVERITIES: [(u64, &str); 8] = [
    (9, "INFO"),
    (9, "INFO"),
    (9, "INFO"),
    (9, "INFO"),
    (5, "DEBUG"),
    (5, "DEBUG"),
    (13, "WARN"),
    (17, "ERROR"),
];

pub struct Generator {
    shape: Shape,
    state: u64,
    record: u64,
    begin_nanos: u64,
    step_nanos: u64,
}

impl Generator {
    pub fn new(shape: Shape, seed: u64) -> Generator {
        Generator {
            shape,
            state: seed,
            record: 0,
            begin_nanos: BEGIN_NANOS,
            step_nanos: 1_000_000,
        }
    }

    /// Its records begin now and keep up with the clock if `records_per_second` records are sent.
    #[allow(dead_code, reason = "the benchmarks compare runs, and so know no clock")]
    pub fn live(shape: Shape, seed: u64, records_per_second: u64) -> Generator {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Generator {
            begin_nanos: now.map_or(BEGIN_NANOS, |now| now.as_nanos() as u64),
            step_nanos: 1_000_000_000 / records_per_second.max(1),
            ..Generator::new(shape, seed)
        }
    }

    /// A request with this many records, later than all records before.
    pub fn request(&mut self, records: u64) -> Vec<u8> {
        let mut request = Message::default();
        let mut left = records;
        while left > 0 {
            let count = (1 + self.below(2 * RECORDS_PER_GROUP - 1)).min(left);
            left -= count;
            request.message(1, |group| {
                group.message(1, |resource| self.resource(resource));
                group.message(2, |scope_group| {
                    scope_group.message(1, |scope| {
                        scope.text(1, "io.example.instrumentation");
                        scope.text(2, "2.14.0");
                    });
                    for _ in 0..count {
                        scope_group.message(2, |record| self.record(record));
                    }
                });
            });
        }
        request.bytes
    }

    fn resource(&mut self, out: &mut Message) {
        let service = SERVICES[self.pick(SERVICES.len())];
        let (pod, node) = (self.below(40), self.below(16));
        let texts = [
            ("service.name", service.to_owned()),
            ("service.namespace", "shop".to_owned()),
            ("service.version", format!("1.{}.{}", pod % 3, pod % 7)),
            ("service.instance.id", uuid(pod * 7919 + node, pod)),
            ("deployment.environment.name", "production".to_owned()),
            ("k8s.cluster.name", "eu-central".to_owned()),
            ("k8s.namespace.name", "shop".to_owned()),
            ("k8s.pod.name", format!("{service}-{:x}-{pod}", pod * 7919)),
            ("k8s.node.name", format!("node-{node}")),
            ("k8s.container.name", service.to_owned()),
            ("host.arch", "amd64".to_owned()),
            ("telemetry.sdk.language", "java".to_owned()),
        ];
        for (name, text) in texts {
            attribute(out, 1, name, |value| value.text(1, &text));
        }
        attribute(out, 1, "process.pid", |value| value.number(3, 100 + pod));
    }

    fn record(&mut self, out: &mut Message) {
        self.record += 1;
        match self.shape {
            Shape::Logs => self.log(out),
            Shape::WideLogs => self.wide_log(out),
            Shape::Metrics => self.metric(out),
            Shape::Traces => self.span(out),
        }
    }

    fn time(&mut self) -> u64 {
        // Neighbouring records are out of order.
        self.begin_nanos + self.record * self.step_nanos + self.below(5 * self.step_nanos)
    }

    fn log(&mut self, out: &mut Message) {
        let time = self.time();
        let (number, severity) = SEVERITIES[self.pick(SEVERITIES.len())];
        out.fixed64(1, time);
        out.number(2, number);
        out.text(3, severity);
        let body = self.body();
        out.message(5, |value| value.text(1, &body));
        let (method, route) = (
            ["GET", "GET", "POST", "PUT"][self.pick(4)],
            ROUTES[self.pick(ROUTES.len())],
        );
        let status = [200, 200, 200, 201, 204, 302, 404, 500][self.pick(8)];
        let (user, thread, line) = (self.below(20_000), self.below(32), self.below(900));
        let (micros, request) = (self.below(2_000_000), (self.next(), self.next()));
        attribute(out, 6, "http.request.method", |value| value.text(1, method));
        attribute(out, 6, "http.route", |value| value.text(1, route));
        attribute(out, 6, "http.response.status_code", |value| value.number(3, status));
        attribute(out, 6, "client.address", |value| value.text(1, &address(user)));
        attribute(out, 6, "user.id", |value| value.text(1, &format!("u-{user}")));
        attribute(out, 6, "thread.name", |value| {
            value.text(1, &format!("http-nio-8080-exec-{thread}"))
        });
        attribute(out, 6, "code.namespace", |value| {
            value.text(1, "io.example.shop.web.RequestLog")
        });
        attribute(out, 6, "code.lineno", |value| value.number(3, line));
        attribute(out, 6, "duration_ms", |value| value.double(4, micros as f64 / 1e3));
        attribute(out, 6, "request.id", |value| value.text(1, &uuid(request.0, request.1)));
        out.bytes(9, &[request.0.to_be_bytes(), request.1.to_be_bytes()].concat());
        out.bytes(10, &request.1.to_be_bytes());
        out.fixed64(11, time + 1_000_000);
    }

    /// One of 64 messages; its variable parts are new.
    fn body(&mut self) -> String {
        let message = self.below(64);
        let mut words = message.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut body = String::with_capacity(400);
        let len = 230 + (words >> 58) as usize * 3;
        while body.len() < len {
            words = words
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let word = WORDS[(words >> 33) as usize % WORDS.len()];
            body.push_str(word);
            body.push(' ');
            let varies = match words >> 60 {
                0 => format!("id={} ", self.below(1_000_000)),
                1 => format!("{}ms ", self.below(3_000)),
                2 => format!("{} ", address(self.below(65_000))),
                3 => format!("trace {:016x}, ", self.next()),
                4 => format!("/var/lib/shop/{}/{:06}.dat ", word, self.below(100_000)),
                _ => continue,
            };
            body.push_str(&varies);
        }
        body
    }

    fn wide_log(&mut self, out: &mut Message) {
        let time = self.time();
        out.fixed64(1, time);
        out.number(2, 9);
        let body = format!("row {}", self.record);
        out.message(5, |value| value.text(1, &body));
        for column in 0..10_u64 {
            let (few, some, number) = (self.below(8), self.below(5_000), self.next());
            attribute(out, 6, &format!("few_{column}"), |value| {
                value.text(1, &format!("kind-{few}"))
            });
            attribute(out, 6, &format!("some_{column}"), |value| {
                value.text(1, &format!("value-{some}-{column}"))
            });
            attribute(out, 6, &format!("whole_{column}"), |value| {
                value.number(3, number >> 44)
            });
            attribute(out, 6, &format!("float_{column}"), |value| {
                value.double(4, (number >> 40) as f64 / 64.0)
            });
        }
    }

    /// A metric with one point. Of ten metrics, four are gauges, five sums, and one a histogram.
    fn metric(&mut self, out: &mut Message) {
        let (kind, start, time) = (self.below(10), self.begin_nanos, self.time());
        let metric = self.below(6);
        let (route, status, worker) = (
            ROUTES[self.pick(ROUTES.len())],
            [200, 404, 500][self.pick(3)],
            self.below(16),
        );
        let value = self.below(1_000_000);
        let point_attributes = |point: &mut Message, number: u32| {
            attribute(point, number, "http.route", |value| value.text(1, route));
            attribute(point, number, "http.response.status_code", |value| {
                value.number(3, status)
            });
            attribute(point, number, "worker", |value| {
                value.text(1, &format!("worker-{worker}"))
            });
        };
        let number_point = |point: &mut Message| {
            point_attributes(point, 7);
            point.fixed64(2, start);
            point.fixed64(3, time);
            match kind < 4 {
                true => point.double(4, value as f64 / 7.0),
                false => point.fixed64(6, value),
            }
        };
        match kind {
            0..4 => {
                out.text(1, &format!("process.gauge.{metric}"));
                out.text(3, "By");
                out.message(5, |gauge| gauge.message(1, number_point));
            }
            4..9 => {
                out.text(1, &format!("http.server.requests.{metric}"));
                out.text(3, "{request}");
                out.message(7, |sum| {
                    sum.message(1, number_point);
                    sum.number(2, 2);
                    sum.number(3, 1);
                });
            }
            _ => {
                out.text(1, "http.server.request.duration");
                out.text(3, "s");
                out.message(9, |histogram| {
                    histogram.message(1, |point| {
                        point.fixed64(2, start);
                        point.fixed64(3, time);
                        point.fixed64(4, 10);
                        point.double(5, value as f64 / 1e4);
                        point.bytes(6, &[0, 1, 2, 4, 2, 1].map(|n: u64| n.to_le_bytes()).concat());
                        point.bytes(7, &[0.01, 0.1, 0.5, 1.0, 5.0].map(|n: f64| n.to_le_bytes()).concat());
                        point_attributes(point, 9);
                    });
                    histogram.number(2, 2);
                });
            }
        }
    }

    fn span(&mut self, out: &mut Message) {
        let (time, trace, span) = (self.time(), (self.next(), self.next()), self.next());
        let (method, route) = (["GET", "POST"][self.pick(2)], ROUTES[self.pick(ROUTES.len())]);
        let (micros, user, status) = (
            self.below(900_000),
            self.below(20_000),
            [200, 200, 404, 500][self.pick(4)],
        );
        out.bytes(1, &[trace.0.to_be_bytes(), trace.1.to_be_bytes()].concat());
        out.bytes(2, &span.to_be_bytes());
        out.bytes(4, &(span ^ trace.0).to_be_bytes());
        out.text(5, &format!("{method} {route}"));
        out.number(6, 2 + span % 2);
        out.fixed64(7, time);
        out.fixed64(8, time + micros * 1000);
        attribute(out, 9, "http.request.method", |value| value.text(1, method));
        attribute(out, 9, "http.route", |value| value.text(1, route));
        attribute(out, 9, "http.response.status_code", |value| value.number(3, status));
        attribute(out, 9, "client.address", |value| value.text(1, &address(user)));
        attribute(out, 9, "user.id", |value| value.text(1, &format!("u-{user}")));
        attribute(out, 9, "url.scheme", |value| value.text(1, "https"));
        attribute(out, 9, "server.address", |value| value.text(1, "shop.example.org"));
        attribute(out, 9, "network.protocol.version", |value| value.text(1, "1.1"));
        if span.is_multiple_of(4) {
            out.message(11, |event| {
                event.fixed64(1, time + micros * 500);
                event.text(2, "cache.miss");
                attribute(event, 3, "cache.key", |value| value.text(1, &format!("cart-{user}")));
            });
        }
        if status == 500 {
            out.message(15, |code| code.number(3, 2));
        }
    }

    /// The next random number (splitmix64).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn pick(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }
}

fn address(number: u64) -> String {
    format!("10.{}.{}.{}", number >> 16 & 0xff, number >> 8 & 0xff, number & 0xff)
}

fn uuid(high: u64, low: u64) -> String {
    let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xffff);
    format!(
        "{a:08x}-{b:04x}-{c:04x}-{:04x}-{:012x}",
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

fn attribute(out: &mut Message, number: u32, name: &str, write: impl FnOnce(&mut Message)) {
    out.message(number, |pair| {
        pair.text(1, name);
        pair.message(2, write);
    });
}

/// A Protocol Buffers message under construction.
#[derive(Default)]
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    fn key(&mut self, number: u32, wire_type: u32) {
        self.varint(u64::from(number << 3 | wire_type));
    }

    fn number(&mut self, number: u32, value: u64) {
        self.key(number, 0);
        self.varint(value);
    }

    fn fixed64(&mut self, number: u32, value: u64) {
        self.key(number, 1);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn double(&mut self, number: u32, value: f64) {
        self.fixed64(number, value.to_bits());
    }

    fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.key(number, 2);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    fn text(&mut self, number: u32, text: &str) {
        self.bytes(number, text.as_bytes());
    }

    fn message(&mut self, number: u32, write: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        write(&mut inner);
        self.bytes(number, &inner.bytes);
    }
}
