//! The table that the run prints, in the form that `docs/benchmarks.md` keeps.

/// Figures of one contestant in several rounds.
#[derive(Clone, Debug, Default)]
pub struct Figures(Vec<f64>);

impl Figures {
    pub fn push(&mut self, figure: f64) {
        self.0.push(figure);
    }

    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn range(&self) -> (f64, f64) {
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        (least, self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max))
    }
}

impl FromIterator<f64> for Figures {
    fn from_iter<T: IntoIterator<Item = f64>>(figures: T) -> Self {
        Self(figures.into_iter().collect())
    }
}

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

fn shown(figure: f64) -> String {
    match figure.abs() {
        size if size >= 100.0 => format!("{figure:.0}"),
        size if size >= 10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}
