//! The curves of a story as SVG.

use std::fmt::Write;
use std::time::Duration;

use crate::crowd::Told;
use crate::story::Story;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 240.0;
const MARGIN: f64 = 48.0;

/// Seconds of the story that are shown.
const SECONDS: usize = 45;

/// Points of the curve of clients that know the new primary.
const POINTS: usize = 450;

pub(crate) fn draw(story: Story, told: &Told) -> String {
    let (led, _) = story.last_primary();
    let most = told.hellos.iter().chain(&told.connects).copied().max().unwrap_or(1).max(1) as f64;
    let x = |seconds: f64| MARGIN + seconds / SECONDS as f64 * (WIDTH - 2.0 * MARGIN);
    let y = |share: f64| HEIGHT - MARGIN - share * (HEIGHT - 2.0 * MARGIN);
    let counts = |counts: &[u64]| -> String {
        let points = counts.iter().take(SECONDS).enumerate();
        points.fold(String::new(), |mut line, (second, count)| {
            let _ = write!(line, "{:.1},{:.1} ", x(second as f64 + 0.5), y(*count as f64 / most));
            line
        })
    };
    let knowing = (0..=POINTS).fold(String::new(), |mut line, point| {
        let seconds = point as f64 / POINTS as f64 * SECONDS as f64;
        let after = Duration::from_secs_f64(seconds).saturating_sub(led);
        let share = if seconds < led.as_secs_f64() { 0.0 } else { told.share_after(after) };
        let _ = write!(line, "{:.1},{:.1} ", x(seconds), y(share));
        line
    });
    let mut svg = String::new();
    let _ = write!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">
<rect width="100%" height="100%" fill="#ffffff"/>
<text x="{MARGIN}" y="18" font-size="13">{story}</text>
<g fill="none" stroke-width="1.5">
<polyline stroke="#2f6fdb" points="{hellos}"/>
<polyline stroke="#d9822b" points="{connects}"/>
<polyline stroke="#2a8f4f" stroke-dasharray="5 3" points="{knowing}"/>
</g>
<g fill="#333333">
<text x="{MARGIN}" y="36"><tspan fill="#2f6fdb">hellos</tspan> and <tspan fill="#d9822b">new connections</tspan> a second, all members (top: {most}); <tspan fill="#2a8f4f">clients that know the new primary</tspan> (top: all)</text>
<text x="{MARGIN}" y="{foot}">0 s</text>
<text x="{end}" y="{foot}" text-anchor="end">{SECONDS} s</text>
</g>
<path d="M{MARGIN} {base} H{end}" stroke="#999999"/>
</svg>
"##,
        hellos = counts(&told.hellos),
        connects = counts(&told.connects),
        foot = HEIGHT - MARGIN + 16.0,
        base = HEIGHT - MARGIN,
        end = WIDTH - MARGIN,
    );
    svg
}
