//! The table that the run prints, in the form that `docs/benchmarks.md` keeps.

pub use crate::figures::Figures;
use crate::figures::shown;

pub fn head() {
    println!("| measure | contestant | median | lowest – highest | ours is |");
    println!("|---|---|---|---|---|");
}

/// One line. The last column compares ours with the contestant of this line, as a ratio.
pub fn line(measure: &str, contestant: &str, figures: &Figures, ours: Option<&Figures>) {
    let (least, most) = figures.range();
    let ratio =
        ours.map_or_else(String::new, |ours| format!("{:.2} ×", ours.median() / figures.median()));
    println!(
        "| {measure} | {contestant} | {} | {} – {} | {ratio} |",
        shown(figures.median()),
        shown(least),
        shown(most)
    );
}
