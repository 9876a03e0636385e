//! Colours, and what stands in for them where there are none.

use ratatui::style::{Color, Modifier, Style};

use crate::view::log::Kind;

/// How things look. Everything can be read without colour: marks and words say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Palette {
    colours: bool,
}

impl Palette {
    /// Colours, or only bold, dim and reversed.
    pub(crate) const fn new(colours: bool) -> Self {
        Self { colours }
    }

    /// What the environment asks for: `NO_COLOR`, set to anything, means none.
    pub(crate) fn of_environment() -> Self {
        Self::new(std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()))
    }

    fn coloured(self, colour: Color, without: Modifier) -> Style {
        match self.colours {
            true => Style::new().fg(colour).add_modifier(without),
            false => Style::new().add_modifier(without),
        }
    }

    /// What is well.
    pub(super) fn fine(self) -> Style {
        self.coloured(Color::Green, Modifier::empty())
    }

    /// What may be wrong.
    pub(super) fn warning(self) -> Style {
        self.coloured(Color::Yellow, Modifier::BOLD)
    }

    /// What is wrong.
    pub(super) fn problem(self) -> Style {
        self.coloured(Color::Red, Modifier::BOLD)
    }

    /// What is worth knowing.
    pub(super) fn note(self) -> Style {
        self.coloured(Color::Cyan, Modifier::empty())
    }

    /// What stands out.
    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// What stands back.
    pub(super) fn quiet(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// What is chosen.
    pub(super) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// An entry of the log.
    pub(super) fn entry(self, kind: Kind) -> Style {
        match kind {
            Kind::Lost | Kind::NoPrimary => self.problem(),
            Kind::Dropped | Kind::WriteGap | Kind::Differs | Kind::Warning => self.warning(),
            Kind::Elected => self.fine().add_modifier(Modifier::BOLD),
            Kind::Action | Kind::Syncing => self.note(),
            Kind::Found | Kind::Changed | Kind::PoolCleared => Style::new(),
        }
    }
}
