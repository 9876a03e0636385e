//! Compiles a pattern into instructions for the backtracking engine.

use fancy_regex::{Assertion, Expr, LookAround};
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, HirKind};

/// The most instructions of one pattern. Counted repetitions are written out.
const MAX_INSTRUCTIONS: usize = 100_000;

/// The most characters that a look-behind may look back.
const MAX_LOOK_BEHIND: usize = 255;

/// One instruction. Places are indexes of instructions.
#[derive(Debug, Clone)]
pub(super) enum Instruction {
    Char(char),
    /// Ordered, disjoint ranges.
    Class(Vec<(char, char)>),
    Any {
        newline: bool,
    },
    Assert(Assertion),
    /// The first place is tried first.
    Split(usize, usize),
    Jump(usize),
    /// Stores the position in a slot.
    Save(usize),
    /// Goes on unless the position is the one in the slot: an iteration must move on.
    Moved(usize),
    /// The text of a group again.
    Again {
        group: usize,
        folded: bool,
    },
    /// Goes to the place if the group has not matched.
    UnlessGroup(usize, usize),
    /// Runs the instructions that follow up to a [`Done`](Self::Done) on their own.
    Look {
        behind: Option<(usize, usize)>,
        negative: bool,
        after: usize,
    },
    /// Runs the instructions that follow up to a [`Done`](Self::Done), and keeps their first way.
    Atomic {
        after: usize,
    },
    /// The position is where the search began.
    AtSearchStart,
    /// The end of the pattern or of a part that runs on its own.
    Done,
}

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) instructions: Vec<Instruction>,
    pub(super) groups: usize,
    pub(super) slots: usize,
}

impl Program {
    pub(super) fn compile(expression: &Expr) -> Result<Self, String> {
        let mut groups = 1;
        count_groups(expression, &mut groups);
        let mut compiler = Compiler { instructions: Vec::new(), next_group: 1, slots: groups * 2 };
        compiler.push(Instruction::Save(0))?;
        compiler.compile(expression)?;
        compiler.push(Instruction::Save(1))?;
        compiler.push(Instruction::Done)?;
        Ok(Self { instructions: compiler.instructions, groups, slots: compiler.slots })
    }
}

fn count_groups(expression: &Expr, groups: &mut usize) {
    if matches!(expression, Expr::Group(_)) {
        *groups += 1;
    }
    children(expression).into_iter().for_each(|child| count_groups(child, groups));
}

fn children(expression: &Expr) -> Vec<&Expr> {
    match expression {
        Expr::Concat(children) | Expr::Alt(children) => children.iter().collect(),
        Expr::Group(child)
        | Expr::LookAround(child, _)
        | Expr::AtomicGroup(child)
        | Expr::Repeat { child, .. } => vec![child],
        Expr::Conditional { condition, true_branch, false_branch } => {
            vec![condition, true_branch, false_branch]
        }
        _ => Vec::new(),
    }
}

struct Compiler {
    instructions: Vec<Instruction>,
    next_group: usize,
    slots: usize,
}

impl Compiler {
    fn push(&mut self, instruction: Instruction) -> Result<usize, String> {
        if self.instructions.len() >= MAX_INSTRUCTIONS {
            return Err("regular expression is too large".to_owned());
        }
        self.instructions.push(instruction);
        Ok(self.instructions.len() - 1)
    }

    fn here(&self) -> usize {
        self.instructions.len()
    }

    fn compile(&mut self, expression: &Expr) -> Result<(), String> {
        match expression {
            Expr::Empty => {}
            Expr::Any { newline } => {
                self.push(Instruction::Any { newline: *newline })?;
            }
            Expr::Assertion(assertion) => {
                self.push(Instruction::Assert(*assertion))?;
            }
            Expr::Literal { val, casei } => {
                for character in val.chars() {
                    self.push(literal(character, *casei))?;
                }
            }
            Expr::Delegate { inner, casei, .. } => {
                let class = class(inner, *casei)?;
                self.push(class)?;
            }
            Expr::Concat(children) => {
                children.iter().try_for_each(|child| self.compile(child))?;
            }
            Expr::Alt(children) => self.alternatives(children)?,
            Expr::Group(child) => {
                let group = self.next_group;
                self.next_group += 1;
                self.push(Instruction::Save(group * 2))?;
                self.compile(child)?;
                self.push(Instruction::Save(group * 2 + 1))?;
            }
            Expr::Repeat { child, lo, hi, greedy } => self.repeat(child, *lo, *hi, *greedy)?,
            Expr::LookAround(child, look) => self.look(child, *look)?,
            Expr::AtomicGroup(child) => {
                let start = self.push(Instruction::Atomic { after: 0 })?;
                self.compile(child)?;
                self.push(Instruction::Done)?;
                self.instructions[start] = Instruction::Atomic { after: self.here() };
            }
            Expr::Backref { group, casei } => {
                self.push(Instruction::Again { group: *group, folded: *casei })?;
            }
            Expr::KeepOut => {
                self.push(Instruction::Save(0))?;
            }
            Expr::ContinueFromPreviousMatchEnd => {
                self.push(Instruction::AtSearchStart)?;
            }
            Expr::Conditional { condition, true_branch, false_branch } => {
                self.conditional(condition, true_branch, false_branch)?;
            }
            _ => return Err("subroutine calls and recursion are not offered".to_owned()),
        }
        Ok(())
    }

    fn alternatives(&mut self, children: &[Expr]) -> Result<(), String> {
        let mut ends = Vec::new();
        for (place, child) in children.iter().enumerate() {
            if place + 1 == children.len() {
                self.compile(child)?;
                break;
            }
            let split = self.push(Instruction::Split(0, 0))?;
            self.compile(child)?;
            ends.push(self.push(Instruction::Jump(0))?);
            self.instructions[split] = Instruction::Split(split + 1, self.here());
        }
        for end in ends {
            self.instructions[end] = Instruction::Jump(self.here());
        }
        Ok(())
    }

    /// Compiles a child once more: its groups keep their numbers.
    fn again(&mut self, child: &Expr, group: usize) -> Result<(), String> {
        self.next_group = group;
        self.compile(child)
    }

    fn repeat(&mut self, child: &Expr, lo: usize, hi: usize, greedy: bool) -> Result<(), String> {
        let group = self.next_group;
        for _ in 0..lo {
            self.again(child, group)?;
        }
        let split = |on: usize, out: usize| match greedy {
            true => Instruction::Split(on, out),
            false => Instruction::Split(out, on),
        };
        if hi == usize::MAX {
            let slot = self.slots;
            self.slots += 1;
            let start = self.push(Instruction::Split(0, 0))?;
            self.push(Instruction::Save(slot))?;
            self.again(child, group)?;
            self.push(Instruction::Moved(slot))?;
            self.push(Instruction::Jump(start))?;
            self.instructions[start] = split(start + 1, self.here());
        } else {
            let mut splits = Vec::new();
            for _ in lo..hi {
                splits.push(self.push(Instruction::Split(0, 0))?);
                self.again(child, group)?;
            }
            for place in splits {
                self.instructions[place] = split(place + 1, self.here());
            }
        }
        // A repetition of zero times still counts the groups inside it.
        let mut inside = 0;
        count_groups(child, &mut inside);
        self.next_group = group + inside;
        Ok(())
    }

    fn look(&mut self, child: &Expr, look: LookAround) -> Result<(), String> {
        let behind = match look {
            LookAround::LookAhead | LookAround::LookAheadNeg => None,
            LookAround::LookBehind | LookAround::LookBehindNeg => match lengths(child) {
                Some((least, most)) if most <= MAX_LOOK_BEHIND => Some((least, most)),
                _ => return Err("lookbehind assertion is not of a bounded length".to_owned()),
            },
        };
        let negative = matches!(look, LookAround::LookAheadNeg | LookAround::LookBehindNeg);
        let start = self.push(Instruction::Look { behind, negative, after: 0 })?;
        self.compile(child)?;
        self.push(Instruction::Done)?;
        self.instructions[start] = Instruction::Look { behind, negative, after: self.here() };
        Ok(())
    }

    fn conditional(&mut self, condition: &Expr, then: &Expr, or: &Expr) -> Result<(), String> {
        let Expr::BackrefExistsCondition(group) = condition else {
            return Err("conditions other than on a group are not offered".to_owned());
        };
        let test = self.push(Instruction::UnlessGroup(*group, 0))?;
        self.compile(then)?;
        let end = self.push(Instruction::Jump(0))?;
        self.instructions[test] = Instruction::UnlessGroup(*group, self.here());
        self.compile(or)?;
        self.instructions[end] = Instruction::Jump(self.here());
        Ok(())
    }
}

fn literal(character: char, folded: bool) -> Instruction {
    if !folded {
        return Instruction::Char(character);
    }
    let mut class = ClassUnicode::new([ClassUnicodeRange::new(character, character)]);
    match class.try_case_fold_simple() {
        Ok(()) => ranges(&class),
        Err(_) => Instruction::Char(character),
    }
}

fn ranges(class: &ClassUnicode) -> Instruction {
    Instruction::Class(class.iter().map(|range| (range.start(), range.end())).collect())
}

/// A class of characters as the parser left it.
fn class(source: &str, folded: bool) -> Result<Instruction, String> {
    let parsed = regex_syntax::ParserBuilder::new().case_insensitive(folded).build().parse(source);
    let parsed = parsed.map_err(|error| error.to_string())?;
    match parsed.kind() {
        HirKind::Class(Class::Unicode(class)) => Ok(ranges(class)),
        HirKind::Class(Class::Bytes(bytes)) => match bytes.to_unicode_class() {
            Some(class) => Ok(ranges(&class)),
            None => Err(format!("{source} is no class of characters")),
        },
        HirKind::Literal(text) => match std::str::from_utf8(&text.0).ok().map(str::chars) {
            Some(mut characters) => match (characters.next(), characters.next()) {
                (Some(single), None) => Ok(Instruction::Char(single)),
                _ => Err(format!("{source} is no single character")),
            },
            None => Err(format!("{source} is not UTF-8")),
        },
        _ => Err(format!("{source} is not offered beside look-around and back references")),
    }
}

/// The least and the most characters that an expression matches, if there is a most.
fn lengths(expression: &Expr) -> Option<(usize, usize)> {
    Some(match expression {
        Expr::Literal { val, .. } => (val.chars().count(), val.chars().count()),
        Expr::Any { .. } | Expr::Delegate { .. } => (1, 1),
        Expr::Empty | Expr::Assertion(_) | Expr::LookAround(..) | Expr::KeepOut => (0, 0),
        Expr::Group(child) | Expr::AtomicGroup(child) => lengths(child)?,
        Expr::Concat(children) => {
            children.iter().try_fold((0_usize, 0_usize), |total, child| {
                let (least, most) = lengths(child)?;
                Some((total.0.checked_add(least)?, total.1.checked_add(most)?))
            })?
        }
        Expr::Alt(children) => {
            let all: Option<Vec<_>> = children.iter().map(lengths).collect();
            let all = all?;
            (all.iter().map(|each| each.0).min()?, all.iter().map(|each| each.1).max()?)
        }
        Expr::Repeat { child, lo, hi, .. } if *hi != usize::MAX => {
            let (least, most) = lengths(child)?;
            (least.checked_mul(*lo)?, most.checked_mul(*hi)?)
        }
        _ => return None,
    })
}
