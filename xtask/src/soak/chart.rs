//! Draws a soak as SVG: memory above, probe durations below, over the same time axis.

use std::fmt::Write as _;

use super::memory::Sample;
use super::probes::{PATHS, Probe, TOOK_MAX};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
/// Distance between the two plots.
const GAP: f64 = 70.0;
const COLOURS: [&str; 3] = ["#2563eb", "#d97706", "#059669"];

/// One of the two plots.
struct Panel {
    top: f64,
    seconds: f64,
    most: f64,
}

impl Panel {
    fn x(&self, seconds: f64) -> f64 {
        LEFT + seconds / self.seconds * WIDTH
    }

    fn y(&self, value: f64) -> f64 {
        self.top + HEIGHT - value / self.most * HEIGHT
    }

    fn frame(&self, out: &mut String, title: &str, unit: &str) {
        let _ = writeln!(
            out,
            r##"<text x="{LEFT}" y="{:.0}" font-weight="bold">{title}</text>"##,
            self.top - 10.0
        );
        for step in 0..=4 {
            let value = self.most * f64::from(step) / 4.0;
            let y = self.y(value);
            let _ = writeln!(
                out,
                r##"<line x1="{LEFT}" x2="{:.0}" y1="{y:.1}" y2="{y:.1}" stroke="#ddd"/><text x="{:.0}" y="{:.1}" text-anchor="end">{value:.0} {unit}</text>"##,
                LEFT + WIDTH,
                LEFT - 6.0,
                y + 4.0
            );
        }
        for step in 0..=6 {
            let seconds = self.seconds * f64::from(step) / 6.0;
            let _ = writeln!(
                out,
                r##"<text x="{:.1}" y="{:.0}" text-anchor="middle">{:.1} min</text>"##,
                self.x(seconds),
                self.top + HEIGHT + 18.0,
                seconds / 60.0
            );
        }
    }

    fn curve(&self, out: &mut String, colour: &str, points: impl Iterator<Item = (f64, f64)>) {
        let points: Vec<String> = points
            .map(|(seconds, value)| format!("{:.1},{:.1}", self.x(seconds), self.y(value)))
            .collect();
        let _ = writeln!(
            out,
            r#"<polyline fill="none" stroke="{colour}" stroke-width="1.2" points="{}"/>"#,
            points.join(" ")
        );
    }

    fn name(&self, out: &mut String, number: usize, colour: &str, name: &str) {
        let _ = writeln!(
            out,
            r#"<text x="{:.0}" y="{:.0}" fill="{colour}">{name}</text>"#,
            LEFT + 200.0 + 90.0 * number as f64,
            self.top - 10.0
        );
    }
}

pub fn svg(samples: &[Sample], probes: &[Probe]) -> String {
    let ends = samples.iter().map(|sample| sample.seconds);
    let seconds = ends.chain(probes.iter().map(|probe| probe.seconds)).fold(1.0, f64::max);
    let mut out = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{:.0}" height="{:.0}" font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>"##,
        LEFT + WIDTH + 30.0,
        TOP + 2.0 * HEIGHT + GAP + 40.0
    );
    out.push('\n');
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let most = samples
        .iter()
        .map(|sample| megabytes(sample.resident))
        .fold(1.0, f64::max);
    let memory = Panel {
        top: TOP,
        seconds,
        most: most * 1.1,
    };
    memory.frame(&mut out, "Memory", "MB");
    let resident = samples
        .iter()
        .map(|sample| (sample.seconds, megabytes(sample.resident)));
    memory.curve(&mut out, COLOURS[0], resident);
    let heap = samples
        .iter()
        .filter_map(|sample| Some((sample.seconds, megabytes(sample.heap?))));
    memory.curve(&mut out, COLOURS[1], heap);
    memory.name(&mut out, 0, COLOURS[0], "RSS");
    memory.name(&mut out, 1, COLOURS[1], "heap");
    let millis = |probe: &Probe| probe.took.as_secs_f64() * 1e3;
    let limit = TOOK_MAX.as_secs_f64() * 1e3;
    let times = Panel {
        top: TOP + HEIGHT + GAP,
        seconds,
        most: probes.iter().map(millis).fold(limit, f64::max) * 1.1,
    };
    times.frame(&mut out, "Probes", "ms");
    times.curve(&mut out, "#dc2626", [(0.0, limit), (seconds, limit)].into_iter());
    for (number, (path, colour)) in PATHS.into_iter().zip(COLOURS).enumerate() {
        let own = probes.iter().filter(|probe| probe.path == path);
        times.curve(&mut out, colour, own.map(|probe| (probe.seconds, millis(probe))));
        times.name(&mut out, number, colour, path);
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_chart_has_a_curve_for_each_kind_within_its_frame() {
        let sample = |n: u32| Sample {
            seconds: f64::from(n) * 5.0,
            resident: 300_000_000 + u64::from(n),
            heap: Some(100_000_000),
        };
        let probe = |n: u32| Probe {
            seconds: f64::from(n),
            path: PATHS[n as usize % PATHS.len()],
            took: Duration::from_millis(u64::from(n)),
            delay: Duration::ZERO,
        };
        let samples: Vec<Sample> = (0..20).map(sample).collect();
        let probes: Vec<Probe> = (0..90).map(probe).collect();
        let text = svg(&samples, &probes);
        // RSS, heap, the limit, and each path.
        assert_eq!(text.matches("<polyline").count(), 3 + PATHS.len());
        assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        // Without data it is a valid chart, too.
        assert!(!svg(&[], &[]).contains("NaN"));
    }
}
