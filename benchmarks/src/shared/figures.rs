//! Figures of one contestant in several rounds, and how a table shows them.

/// One figure for each round.
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

    /// The lowest and the highest.
    pub fn range(&self) -> (f64, f64) {
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        (least, self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max))
    }
}

impl FromIterator<f64> for Figures {
    fn from_iter<T: IntoIterator<Item = f64>>(figures: T) -> Self {
        Self(figures.into_iter().collect())
    }
}

/// A figure with as many digits as mean something.
pub fn shown(figure: f64) -> String {
    match figure.abs() {
        size if size >= 100.0 => format!("{figure:.0}"),
        size if size >= 10.0 => format!("{figure:.1}"),
        size if size >= 1.0 => format!("{figure:.2}"),
        _ => format!("{figure:.3}"),
    }
}
