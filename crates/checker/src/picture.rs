//! Anomalies as pictures: operations on a circle, relations as arrows.

use std::f64::consts::TAU;
use std::fmt::Write as _;

use crate::verdict::Anomaly;

const SIZE: f64 = 480.0;
const RADIUS: f64 = 150.0;
const NODE: f64 = 30.0;

/// An SVG document. It has no script and needs nothing from elsewhere.
pub(crate) fn draw(anomaly: &Anomaly) -> String {
    let mut names: Vec<&str> = Vec::new();
    for step in &anomaly.steps {
        for name in [step.from.as_str(), step.to.as_str()] {
            if !name.is_empty() && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let place = |name: &str| {
        let index = names.iter().position(|known| *known == name).unwrap_or_default() as f64;
        let angle = TAU * index / names.len().max(1) as f64 - TAU / 4.0;
        (SIZE / 2.0 + RADIUS * angle.cos(), SIZE / 2.0 + RADIUS * angle.sin())
    };
    let height = SIZE + 24.0 * (anomaly.steps.len() as f64 + 1.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {SIZE} {height}\" font-family=\"sans-serif\" \
         font-size=\"14\">\n<title>{}</title>\n<defs><marker id=\"arrow\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" \
         markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\"><path d=\"M0 0 10 5 0 10z\" fill=\"#888\"/></marker></defs>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        escape(anomaly.name)
    );
    for step in anomaly.steps.iter().filter(|step| !step.to.is_empty()) {
        let ((x1, y1), (x2, y2)) = (place(&step.from), place(&step.to));
        let length = ((x2 - x1).powi(2) + (y2 - y1).powi(2)).sqrt().max(1.0);
        let (dx, dy) = ((x2 - x1) / length, (y2 - y1) / length);
        // Two transactions have arrows both ways: each bends to its own side.
        let (mx, my) = ((x1 + x2) / 2.0 - dy * 30.0, (y1 + y2) / 2.0 + dx * 30.0);
        let _ = writeln!(
            svg,
            "<path d=\"M{:.1} {:.1} Q{mx:.1} {my:.1} {:.1} {:.1}\" fill=\"none\" stroke=\"#888\" \
             marker-end=\"url(#arrow)\"/><text x=\"{mx:.1}\" y=\"{my:.1}\" text-anchor=\"middle\">{}</text>",
            x1 + dx * NODE,
            y1 + dy * NODE,
            x2 - dx * NODE,
            y2 - dy * NODE,
            escape(step.relation)
        );
    }
    for name in &names {
        let (x, y) = place(name);
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{NODE}\" fill=\"#eef\" stroke=\"#446\"/><text x=\"{x:.1}\" \
             y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            y + 5.0,
            escape(name)
        );
    }
    for (line, step) in anomaly.steps.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<text x=\"16\" y=\"{:.1}\">{}</text>",
            SIZE + 24.0 * line as f64,
            escape(&step.sentence)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
