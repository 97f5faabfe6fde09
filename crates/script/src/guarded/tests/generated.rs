//! Every function that a script can reach, with absurd arguments: the call ends, and the engine is usable afterwards.
//!
//! `THALWEG_SCRIPT_CASES` sets how many calls are made (default 120); `THALWEG_SCRIPT_SEED` selects which.

#![allow(clippy::print_stdout)]

use super::*;

/// Finds every function below `globalThis`, including prototypes and accessors, and calls the one with the number in
/// the payload.
const CALL: &str = r"
    const found = [], seen = new Set([globalThis]), waiting = [globalThis];
    const visit = (value) => {
      if (value === null || (typeof value !== 'object' && typeof value !== 'function') || seen.has(value)) return;
      seen.add(value);
      waiting.push(value);
      if (typeof value === 'function') found.push(value);
    };
    for (const more of [function* () {}, async function () {}, async function* () {}, [].values(), new Map().keys(), ''.matchAll(/x/g)])
      visit(Object.getPrototypeOf(more));
    while (waiting.length) {
      const object = waiting.shift();
      visit(Object.getPrototypeOf(object));
      for (const key of Reflect.ownKeys(object)) {
        const member = Object.getOwnPropertyDescriptor(object, key);
        [member.value, member.get, member.set].forEach(visit);
      }
    }
    const {f, that, a, b, n, times} = msg.payload;
    const rope = () => { let t = 'ab'; for (let i = 0; i < n / 8000; i++) t = t + t; return t };
    const cyclic = [1]; cyclic.push(cyclic, {cyclic});
    const make = [
      () => 'a'.repeat(n), () => 'ab'.repeat(n / 4) + 'x', () => '\u{e9}\u{4e2d}'.repeat(n / 4), () => '\u0323\u0301'.repeat(n / 4), rope,
      () => new Array(n).fill('a'), () => new Array(4294967295), () => Object.assign([], {length: n * 40, 7: 1}), () => new Uint8Array(n * 8),
      () => new Float64Array(n).map((_, i) => (i * 7919) % n), () => 3n ** BigInt(n / 2), () => BigInt(n), () => /^(a+)+$/, () => /(a|ab)*?x/g,
      () => ({get length() { return 2 ** 53 - 1 }, get 0() { return 'a' }, toString: () => 'a'.repeat(n)}), () => cyclic,
      () => ({length: 2 ** 31, raw: {length: 2 ** 53 - 1}}), () => new Map([[n, n]]), () => new Set('a'.repeat(n)), () => n, () => -1, () => NaN,
      () => 2 ** 53, () => 1e308, () => null, () => undefined, () => (x) => x, () => function* () { for (;;) yield 1 }, () => (function* () { for (;;) yield 1 })(),
      () => new Date(NaN), () => Symbol.iterator, () => new Proxy([], {get: () => n}), () => '['.repeat(n / 8), () => [[[['a'.repeat(n)]]]],
      () => 'a'.repeat(n), () => new ArrayBuffer(n), () => new DataView(new ArrayBuffer(n)), () => Promise.resolve(1), () => console, () => Array.prototype,
    ];
    const value = (i) => make[i % make.length]();
    const target = found[f % found.length];
    msg.meta.name = target.name;
    for (let i = 0; i < times; i++) {
      try { const made = Reflect.apply(target, value(that), [value(a), value(b)]); if (i === 0) String(made) } catch {}
      try { Reflect.construct(target, [value(a), value(b)]) } catch {}
    }
    return msg;
";

/// A generator of numbers (xorshift), so that a case can be repeated.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[test]
fn whatever_is_called_with_whatever_ends_and_the_next_call_is_made() {
    let number = |name: &str, default: u64| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let (cases, seed) = (number("THALWEG_SCRIPT_CASES", 120), number("THALWEG_SCRIPT_SEED", 1));
    let timeout = Duration::from_millis(50);
    let guard = GuardOptions {
        // Lost threads may stay lost.
        lost_max: usize::MAX,
        ..GuardOptions::default()
    };
    let mut bench = Bench::new(
        &[(ScriptForm::Body, CALL), (ScriptForm::Body, "new Map(); return msg")],
        timeout,
        guard,
    );
    let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for case in 0..cases {
        let sizes = [8u64, 1000, 30_000, 200_000];
        let n = sizes[numbers.below(4) as usize];
        let times = [1u64, 1, 20, 100_000][numbers.below(4) as usize];
        let [f, that, a, b] = [4096, 4096, 4096, 4096].map(|n| numbers.below(n));
        let payload = format!("{{\"f\":{f},\"that\":{that},\"a\":{a},\"b\":{b},\"n\":{n},\"times\":{times}}}");
        let message = Message::raw(payload.clone().into_bytes());
        let what = format!("case {case} of seed {seed}: {payload}");
        let result = ends(&what, || bench.program.run(0, &message, &message.meta));
        if let Err(failure) = &result {
            let is_meant = matches!(
                failure.kind,
                FailureKind::Timeout | FailureKind::Limit | FailureKind::BadReturn
            );
            assert!(
                is_meant || failure.kind == FailureKind::Exception,
                "{what}: {failure:?}"
            );
        }
        let next = ends(&what, || bench.program.run(1, &message, &message.meta));
        assert!(next.is_ok(), "{what}: {next:?}");
    }
    let (stats, lost) = (bench.program.stats(), bench.lost.count());
    assert_eq!(stats.calls + stats.remembered, 2 * cases, "{stats:?}");
    println!(
        "{cases} cases of seed {seed}: {} timed out, {} of them given up, {lost} still run",
        stats.timeouts, stats.given_up
    );
}
