//! The curves of a story as SVG.

use std::fmt::Write;
use std::time::Duration;

use crate::watcher::{Story, Told};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 240.0;
const MARGIN: f64 = 48.0;

/// Points of the curve of deployments that are known.
const POINTS: usize = 400;

pub(crate) fn draw(story: Story, told: &Told) -> String {
    let shown = told.messages.len().max(1) as f64;
    let most = told.most(&told.messages).max(told.most(&told.connects)).max(1) as f64;
    let x = |seconds: f64| MARGIN + seconds / shown * (WIDTH - 2.0 * MARGIN);
    let y = |share: f64| HEIGHT - MARGIN - share * (HEIGHT - 2.0 * MARGIN);
    let line = |values: Vec<(f64, f64)>| {
        values.into_iter().fold(String::new(), |mut line, (seconds, share)| {
            let _ = write!(line, "{:.1},{:.1} ", x(seconds), y(share));
            line
        })
    };
    let counts = |counts: &[u64]| {
        let points = counts.iter().enumerate();
        line(points.map(|(second, count)| (second as f64 + 0.5, *count as f64 / most)).collect())
    };
    let busy = told.busy.iter().enumerate();
    let busy = line(busy.map(|(second, busy)| (second as f64 + 0.5, busy.min(1.0))).collect());
    let knowing = (0..=POINTS).map(|point| {
        let seconds = point as f64 / POINTS as f64 * shown;
        (seconds, told.share_after(Duration::from_secs_f64(seconds)))
    });
    let knowing = line(knowing.collect());
    let mut svg = String::new();
    let _ = write!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">
<rect width="100%" height="100%" fill="#ffffff"/>
<text x="{MARGIN}" y="18" font-size="13">{story}</text>
<g fill="none" stroke-width="1.5">
<polyline stroke="#2f6fdb" points="{messages}"/>
<polyline stroke="#d9822b" points="{connects}"/>
<polyline stroke="#b03a3a" stroke-dasharray="2 2" points="{busy}"/>
<polyline stroke="#2a8f4f" stroke-dasharray="5 3" points="{knowing}"/>
</g>
<g fill="#333333">
<text x="{MARGIN}" y="36"><tspan fill="#2f6fdb">messages</tspan> and <tspan fill="#d9822b">new connections</tspan> a second (top: {most}); <tspan fill="#b03a3a">busy workers</tspan> and <tspan fill="#2a8f4f">known deployments</tspan> (top: all)</text>
<text x="{MARGIN}" y="{foot}">0 s</text>
<text x="{end}" y="{foot}" text-anchor="end">{shown} s</text>
</g>
<path d="M{MARGIN} {base} H{end}" stroke="#999999"/>
</svg>
"##,
        messages = counts(&told.messages),
        connects = counts(&told.connects),
        foot = HEIGHT - MARGIN + 16.0,
        base = HEIGHT - MARGIN,
        end = WIDTH - MARGIN,
    );
    svg
}
