//! Runs a compiled pattern by trying one way after the other.
//!
//! Look-around and back references need this, and it can take time exponential in the text: every
//! step is counted, against the operation's meter and against [`MAX_STEPS`] for one search. The ways
//! still to be tried are kept on a stack that is charged to the operation.

use fancy_regex::Assertion;

use super::Failure;
use super::program::{Instruction, Program};
use crate::meter::{Charge, Meter, push};

/// The most steps of one search, as many as PCRE's default match limit.
pub(super) const MAX_STEPS: u64 = 10_000_000;

/// The most entries of the stack of ways to be tried.
const MAX_STACK: usize = 1_000_000;

/// How many entries the stack grows by before they are charged.
const STACK_GRANULE: usize = 4096;

/// Something to go back to.
enum Entry {
    /// Go on at this place and position.
    Way { place: usize, position: usize },
    /// Put back what a slot held.
    Slot { slot: usize, old: Option<usize> },
}

pub(super) struct Search<'a> {
    program: &'a Program,
    text: &'a str,
    start: usize,
    slots: Vec<Option<usize>>,
    stack: Vec<Entry>,
    charged: usize,
    charge: Charge,
    steps: u64,
    meter: &'a Meter,
}

impl<'a> Search<'a> {
    /// Where the groups of the first match from a place on are.
    pub(super) fn find(
        program: &'a Program,
        text: &'a str,
        from: usize,
        meter: &'a Meter,
    ) -> Result<Option<super::Groups>, Failure> {
        let mut search = Self {
            program,
            text,
            start: from,
            slots: vec![None; program.slots],
            stack: Vec::new(),
            charged: 0,
            charge: meter.charge(),
            steps: 0,
            meter,
        };
        let mut position = from;
        loop {
            if search.run(0, position)?.is_some() {
                let slots = &search.slots;
                let groups = (0..program.groups)
                    .map(|group| Some((slots[group * 2]?, slots[group * 2 + 1]?)))
                    .collect();
                return Ok(Some(groups));
            }
            search.slots.fill(None);
            search.stack.clear();
            match text[position..].chars().next() {
                Some(character) => position += character.len_utf8(),
                None => return Ok(None),
            }
        }
    }

    fn step(&mut self) -> Result<(), Failure> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(Failure::TooComplex);
        }
        Ok(self.meter.step()?)
    }

    fn push(&mut self, entry: Entry) -> Result<(), Failure> {
        if self.stack.len() >= MAX_STACK {
            return Err(Failure::TooComplex);
        }
        if self.stack.len() >= self.charged {
            self.charge.grow("a regular expression", STACK_GRANULE * size_of::<Entry>())?;
            self.charged += STACK_GRANULE;
        }
        push(&mut self.stack, entry);
        Ok(())
    }

    fn save(&mut self, slot: usize, position: Option<usize>) -> Result<(), Failure> {
        let old = self.slots[slot];
        self.push(Entry::Slot { slot, old })?;
        self.slots[slot] = position;
        Ok(())
    }

    /// Goes back to the last way that was not tried, not below a height of the stack.
    fn back(&mut self, floor: usize) -> Option<(usize, usize)> {
        while self.stack.len() > floor {
            match self.stack.pop()? {
                Entry::Way { place, position } => return Some((place, position)),
                Entry::Slot { slot, old } => self.slots[slot] = old,
            }
        }
        None
    }

    /// Forgets the ways above a height, and keeps what is needed to put slots back.
    fn commit(&mut self, floor: usize) {
        let mut kept = floor;
        for place in floor..self.stack.len() {
            if matches!(self.stack[place], Entry::Slot { .. }) {
                self.stack.swap(kept, place);
                kept += 1;
            }
        }
        self.stack.truncate(kept);
    }

    /// Runs from a place to the end of its part; the position there, if there is a way. The nesting
    /// of calls is that of look-around in the pattern, which the parser bounds.
    fn run(&mut self, place: usize, position: usize) -> Result<Option<usize>, Failure> {
        self.run_above(self.stack.len(), place, position)
    }

    /// The same, going back as far as a height of the stack.
    fn run_above(
        &mut self,
        floor: usize,
        mut place: usize,
        mut position: usize,
    ) -> Result<Option<usize>, Failure> {
        loop {
            self.step()?;
            let next = match self.instruct(place, position)? {
                Next::Done => return Ok(Some(position)),
                Next::At(place, position) => Some((place, position)),
                Next::Failed => self.back(floor),
            };
            match next {
                Some(next) => (place, position) = next,
                None => return Ok(None),
            }
        }
    }

    fn instruct(&mut self, place: usize, position: usize) -> Result<Next, Failure> {
        let program = self.program;
        let character = || self.text[position..].chars().next();
        let matched = |found: Option<char>| match found {
            Some(character) => Next::At(place + 1, position + character.len_utf8()),
            None => Next::Failed,
        };
        let goes_on =
            |holds: bool| if holds { Next::At(place + 1, position) } else { Next::Failed };
        Ok(match &program.instructions[place] {
            Instruction::Char(wanted) => matched(character().filter(|found| found == wanted)),
            Instruction::Class(ranges) => {
                matched(character().filter(|found| contains(ranges, *found)))
            }
            Instruction::Any { newline } => {
                matched(character().filter(|found| *newline || *found != '\n'))
            }
            Instruction::Assert(assertion) => goes_on(holds(*assertion, self.text, position)),
            Instruction::Split(first, second) => {
                self.push(Entry::Way { place: *second, position })?;
                Next::At(*first, position)
            }
            Instruction::Jump(place) => Next::At(*place, position),
            Instruction::Save(slot) => {
                self.save(*slot, Some(position))?;
                Next::At(place + 1, position)
            }
            // An iteration over nothing ends the repetition: on past the jump back.
            Instruction::Moved(slot) if self.slots[*slot] == Some(position) => {
                Next::At(place + 2, position)
            }
            Instruction::Moved(_) => Next::At(place + 1, position),
            Instruction::Again { group, folded } => self.again(*group, *folded, place, position)?,
            Instruction::UnlessGroup(group, or) => {
                let is_set = self.slots.get(group * 2 + 1).copied().flatten().is_some();
                Next::At(if is_set { place + 1 } else { *or }, position)
            }
            Instruction::Look { behind, negative, after } => {
                let found = self.look(place + 1, position, *behind, *negative)?;
                if found != *negative { Next::At(*after, position) } else { Next::Failed }
            }
            Instruction::Atomic { after } => {
                let floor = self.stack.len();
                match self.run(place + 1, position)? {
                    Some(end) => {
                        self.commit(floor);
                        Next::At(*after, end)
                    }
                    None => Next::Failed,
                }
            }
            Instruction::AtSearchStart => goes_on(position == self.start),
            Instruction::Done => Next::Done,
        })
    }

    /// Whether the instructions from a place on match here, or end here. What a negative look finds
    /// sets no group.
    fn look(
        &mut self,
        place: usize,
        position: usize,
        behind: Option<(usize, usize)>,
        negative: bool,
    ) -> Result<bool, Failure> {
        let floor = self.stack.len();
        let found = match behind {
            None => self.run(place, position)?.is_some(),
            Some((least, most)) => self.look_back(place, position, least, most)?,
        };
        if found && !negative {
            self.commit(floor);
        } else {
            while self.back(floor).is_some() {}
        }
        Ok(found)
    }

    fn look_back(
        &mut self,
        place: usize,
        position: usize,
        least: usize,
        most: usize,
    ) -> Result<bool, Failure> {
        for length in least..=most {
            let mut before = self.text[..position].char_indices().rev();
            let start = match length {
                0 => position,
                length => match before.nth(length - 1) {
                    Some((start, _)) => start,
                    None => return Ok(false),
                },
            };
            let floor = self.stack.len();
            let mut end = self.run(place, start)?;
            // Another way may end where this one does not.
            while end.is_some_and(|end| end != position) {
                end = match self.back(floor) {
                    Some((place, position)) => self.run_above(floor, place, position)?,
                    None => None,
                };
            }
            if end.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn again(
        &mut self,
        group: usize,
        folded: bool,
        place: usize,
        position: usize,
    ) -> Result<Next, Failure> {
        let slot = |slot: usize| self.slots.get(slot).copied().flatten();
        let (Some(start), Some(end)) = (slot(group * 2), slot(group * 2 + 1)) else {
            return Ok(Next::Failed);
        };
        let Some(wanted) = self.text.get(start..end) else { return Ok(Next::Failed) };
        self.steps += wanted.len() as u64;
        self.meter.steps(wanted.len() as u64)?;
        let rest = &self.text[position..];
        if !folded {
            return Ok(match rest.starts_with(wanted) {
                true => Next::At(place + 1, position + wanted.len()),
                false => Next::Failed,
            });
        }
        let mut characters = rest.chars();
        let equal = wanted.chars().all(|wanted| {
            let found = characters.next();
            found.is_some_and(|found| found.to_lowercase().eq(wanted.to_lowercase()))
        });
        let end = self.text.len() - characters.as_str().len();
        Ok(if equal { Next::At(place + 1, end) } else { Next::Failed })
    }
}

/// What comes after an instruction.
enum Next {
    At(usize, usize),
    Failed,
    Done,
}

fn contains(ranges: &[(char, char)], character: char) -> bool {
    let place = ranges.partition_point(|(_, end)| *end < character);
    ranges.get(place).is_some_and(|(start, _)| *start <= character)
}

fn holds(assertion: Assertion, text: &str, position: usize) -> bool {
    let (before, after) = text.split_at(position);
    let word = |character: Option<char>| {
        character.is_some_and(|found| found.is_ascii_alphanumeric() || found == '_')
    };
    let (left, right) = (word(before.chars().next_back()), word(after.chars().next()));
    match assertion {
        Assertion::StartText => before.is_empty(),
        Assertion::EndText => after.is_empty(),
        Assertion::StartLine { .. } => before.is_empty() || before.ends_with('\n'),
        Assertion::EndLine { .. } => after.is_empty() || after.starts_with('\n'),
        Assertion::LeftWordBoundary => !left && right,
        Assertion::RightWordBoundary => left && !right,
        Assertion::WordBoundary => left != right,
        Assertion::NotWordBoundary => left == right,
    }
}
