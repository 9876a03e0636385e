//! Colours, and the text attributes used on terminals without colours.

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

    /// The style of healthy values.
    pub(super) fn fine(self) -> Style {
        self.coloured(Color::Green, Modifier::empty())
    }

    /// What may be wrong.
    pub(super) fn warning(self) -> Style {
        self.coloured(Color::Yellow, Modifier::BOLD)
    }

    /// The style of problems.
    pub(super) fn problem(self) -> Style {
        self.coloured(Color::Red, Modifier::BOLD)
    }

    /// The style of notices.
    pub(super) fn note(self) -> Style {
        self.coloured(Color::Cyan, Modifier::empty())
    }

    /// The style of emphasized text.
    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// The style of dimmed text.
    pub(super) fn quiet(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// The style of the selected row.
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
