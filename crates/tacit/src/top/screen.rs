//! Writes the styled lines of `tacit top` to the terminal.
//!
//! Only changed lines are written. When a [`Screen`] is dropped, it restores the terminal. This
//! module also restores the terminal before the message of a panic is printed.

use std::io::{self, Stdout, Write};
use std::panic;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::{ContentStyle, PrintStyledContent, StyledContent, Stylize};
use crossterm::terminal::{
    self, BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen,
};
use crossterm::{execute, queue};
use tacit_core::printable::printable;

use crate::control::render::column;

/// The size of a terminal in columns and lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) lines: usize,
}

/// The meaning of a piece of text, which determines its style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextStyle {
    Plain,
    Title,
    Heading,
    Selected,
    Hint,
    Alarm,
    General,
    Engine,
    Eligible,
}

impl TextStyle {
    fn style(self) -> ContentStyle {
        let plain = ContentStyle::new();
        match self {
            Self::Plain => plain,
            Self::Title => plain.bold(),
            Self::Heading => plain.reverse(),
            Self::Selected => plain.bold().on_dark_blue(),
            Self::Hint => plain.dim(),
            Self::Alarm => plain.dark_red(),
            Self::General => plain.dark_green(),
            Self::Engine => plain.dark_cyan(),
            Self::Eligible => plain.dark_yellow(),
        }
    }
}

/// A piece of text with one style.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    text: String,
    style: TextStyle,
}

/// A line of styled text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pieces: Vec<Piece>,
}

impl Line {
    pub(super) fn of(style: TextStyle, text: impl Into<String>) -> Self {
        Self::default().and(style, text)
    }

    /// Appends a piece of text. Control characters are removed.
    pub(super) fn and(mut self, style: TextStyle, text: impl Into<String>) -> Self {
        let text = text.into();
        self.pieces.push(Piece { text: printable(&text).into_owned(), style });
        self
    }

    /// The line, cut to a number of columns.
    pub(super) fn cut(&self, columns: usize) -> Self {
        let mut cut = Self::default();
        let mut left = columns;
        for piece in &self.pieces {
            let text = column::cut(&piece.text, left);
            let is_whole = text.len() == piece.text.len();
            left -= column::width(&text);
            cut.pieces.push(Piece { text, style: piece.style });
            if !is_whole {
                break;
            }
        }
        cut
    }

    pub(super) fn text(&self) -> String {
        self.pieces.iter().map(|piece| piece.text.as_str()).collect()
    }
}

/// The terminal while the program draws on it.
pub(super) struct Screen {
    out: Stdout,
    size: Size,
    shown: Vec<Line>,
}

impl Screen {
    /// Switches the terminal to the alternate screen.
    pub(super) fn open() -> io::Result<Self> {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            restore();
            report(panic);
        }));
        let mut screen =
            Self { out: io::stdout(), size: Size { columns: 0, lines: 0 }, shown: Vec::new() };
        terminal::enable_raw_mode()?;
        execute!(screen.out, EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// Draws the lines that `frame` returns for the current size of the terminal.
    pub(super) fn draw(&mut self, frame: impl FnOnce(Size) -> Vec<Line>) -> io::Result<()> {
        let (columns, lines) = terminal::size()?;
        let size = Size { columns: columns.into(), lines: lines.into() };
        queue!(self.out, BeginSynchronizedUpdate)?;
        if size != self.size {
            queue!(self.out, Clear(ClearType::All))?;
            self.shown.clear();
            self.size = size;
        }
        let frame = frame(size);
        for (row, line) in (0..lines).zip(&frame) {
            if self.shown.get(usize::from(row)) == Some(line) {
                continue;
            }
            queue!(self.out, MoveTo(0, row), Clear(ClearType::UntilNewLine))?;
            for piece in &line.pieces {
                let styled = StyledContent::new(piece.style.style(), &piece.text);
                queue!(self.out, PrintStyledContent(styled))?;
            }
        }
        queue!(self.out, EndSynchronizedUpdate)?;
        self.shown = frame;
        self.out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal. Errors are ignored: the terminal may be closed.
fn restore() {
    let _ = terminal::disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_at_the_width_of_the_screen() {
        let line = Line::of(TextStyle::Plain, "abc")
            .and(TextStyle::Heading, "数据")
            .and(TextStyle::Hint, "x");
        assert_eq!(line.cut(9).text(), "abc数据x");
        assert_eq!(line.cut(6).text(), "abc数");
        assert_eq!(line.cut(2).text(), "ab");
        assert_eq!(line.cut(0).text(), "");
    }
}
