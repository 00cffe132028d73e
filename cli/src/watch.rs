//! `--watch`: a command is repeated, and its output replaces that of the run before.
//!
//! On a terminal each output begins at the upper left corner; a line is erased behind its end, and what is left of the former output below
//! the last line. An output that is longer than the terminal is cut, and its last line says so; a line is cut at the right border, because a second line of the terminal would
//! move what follows. Elsewhere the outputs follow each other, tables with
//! an empty line between them. A failure of the first run ends the command; a later one is shown instead of the output, and the runs go on.

use std::time::Duration;

use console::Term;

use crate::output::{self, Failure, Layout, Notes};

/// The longest time between two runs, in seconds.
const SECONDS_MAX: u64 = 86_400;

/// How often a command shows its output.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct WatchArguments {
    /// Show it again and again, every 2 seconds or every SECONDS, until Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2",
        value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    pub watch: Option<u64>,
}

impl WatchArguments {
    /// Whether the command is repeated.
    pub const fn is_repeated(self) -> bool {
        self.watch.is_some()
    }

    /// The time between two runs; `None`: there is one run.
    pub fn period(self) -> Option<Duration> {
        self.watch.map(Duration::from_secs)
    }
}

/// Where the outputs appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Screen {
    /// A terminal of this size.
    Terminal { lines: usize, columns: usize },
    /// A file, a pipe, or a dumb terminal.
    Stream,
}

impl Screen {
    fn of_stdout() -> Self {
        let terminal = Term::stdout();
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let shows_tables = matches!(output::layout(), Layout::Table | Layout::Wide);
        match terminal.size_checked() {
            Some((lines, columns)) if terminal.is_term() && !is_dumb && shows_tables => {
                Self::Terminal { lines: usize::from(lines), columns: usize::from(columns) }
            }
            _ => Self::Stream,
        }
    }

    const fn notes(self) -> Notes {
        match self {
            Self::Terminal { .. } => Notes::Inline,
            Self::Stream => Notes::Stderr,
        }
    }

    /// The bytes that show an output. `place`: whether it is the first one.
    fn show(self, text: &[u8], place: Place) -> Vec<u8> {
        match self {
            Self::Terminal { lines, columns } => redraw(text, (lines, columns), place),
            Self::Stream => {
                let separates = place == Place::Later && matches!(output::layout(), Layout::Table | Layout::Wide);
                if separates { [b"\n", text].concat() } else { text.to_vec() }
            }
        }
    }
}

/// Whether an output is the first one of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    First,
    Later,
}

/// The control sequences and the text that replace the former output of a terminal with this many lines and columns. The last line stays
/// empty: it is that of the cursor.
fn redraw(text: &[u8], (lines, columns): (usize, usize), place: Place) -> Vec<u8> {
    let all: Vec<&[u8]> = text.strip_suffix(b"\n").unwrap_or(text).split(|byte| *byte == b'\n').collect();
    let shown = lines.saturating_sub(1).max(1);
    let (kept, is_cut) = if all.len() > shown { (shown.saturating_sub(1), true) } else { (all.len(), false) };
    let mut out: Vec<u8> = Vec::new();
    if place == Place::First {
        out.extend_from_slice(b"\x1b[2J");
    }
    out.extend_from_slice(b"\x1b[H");
    for line in all.iter().take(kept) {
        out.extend_from_slice(cut(&String::from_utf8_lossy(line), columns).as_bytes());
        out.extend_from_slice(b"\x1b[K\r\n");
    }
    if is_cut {
        out.extend_from_slice(format!("… {} more lines\x1b[K\r\n", all.len() - kept).as_bytes());
    }
    out.extend_from_slice(b"\x1b[J");
    out
}

/// The line without what is beyond these columns. Styles take no column and are kept.
fn cut(line: &str, columns: usize) -> String {
    let (mut kept, mut used, mut in_style) = (String::new(), 0, false);
    for c in line.chars() {
        if in_style || c == '\x1b' {
            // A style is `ESC [`, numbers and semicolons, and a letter.
            in_style = !c.is_ascii_alphabetic();
            kept.push(c);
            continue;
        }
        used += width(c);
        if used <= columns {
            kept.push(c);
        }
    }
    kept
}

/// The columns of a character on a terminal: two for the scripts of East Asia and for pictures.
const fn width(c: char) -> usize {
    match c {
        '\u{1100}'..='\u{115f}'
        | '\u{2e80}'..='\u{a4cf}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe30}'..='\u{fe6f}'
        | '\u{ff00}'..='\u{ff60}'
        | '\u{ffe0}'..='\u{ffe6}'
        | '\u{1f300}'..='\u{1faff}'
        | '\u{20000}'..='\u{3fffd}' => 2,
        _ => 1,
    }
}

/// Runs a command once, or again and again with this time between two runs, until stdout is closed.
///
/// # Errors
/// Those of the only or the first run.
pub async fn repeat(period: Option<Duration>, run: impl AsyncFn() -> Result<(), Failure>) -> Result<(), Failure> {
    let Some(period) = period else { return run().await };
    let mut place = Place::First;
    while !output::is_closed() {
        let screen = Screen::of_stdout();
        output::begin_frame(screen.notes());
        let outcome = run().await;
        let mut text = output::end_frame();
        match outcome {
            Err(failure) if place == Place::First => return Err(failure),
            Err(failure) if !failure.message.is_empty() => match screen {
                Screen::Terminal { .. } => {
                    let message = output::printable_lines(&failure.message);
                    text.extend_from_slice(format!("ebla: {message}\n").as_bytes());
                }
                Screen::Stream => output::note(&format!("ebla: {}", failure.message)),
            },
            Err(_) | Ok(()) => {}
        }
        if !text.is_empty() {
            output::print_bytes(&screen.show(&text, place));
            output::flush();
        }
        place = Place::Later;
        tokio::time::sleep(period).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, lines: usize, place: Place) -> String {
        String::from_utf8(redraw(text.as_bytes(), (lines, 8), place))
            .unwrap()
            .replace('\x1b', "<")
            .replace("\r\n", "|\n")
    }

    #[test]
    fn an_output_replaces_the_former_one() {
        assert_eq!(shown("a\nb\n", 24, Place::First), "<[2J<[Ha<[K|\nb<[K|\n<[J");
        assert_eq!(shown("a\n", 24, Place::Later), "<[Ha<[K|\n<[J");
    }

    #[test]
    fn a_long_output_is_cut_to_the_terminal() {
        assert_eq!(shown("a\nb\nc\nd\n", 4, Place::Later), "<[Ha<[K|\nb<[K|\n… 2 more lines<[K|\n<[J");
        assert_eq!(shown("a\nb\nc\n", 4, Place::Later), "<[Ha<[K|\nb<[K|\nc<[K|\n<[J");
        assert_eq!(shown("a\nb\n", 0, Place::Later), "<[H… 2 more lines<[K|\n<[J");
    }

    #[test]
    fn a_line_is_cut_at_the_right_border() {
        assert_eq!(shown("12345678\n", 24, Place::Later), "<[H12345678<[K|\n<[J");
        assert_eq!(shown("123456789\nb\n", 24, Place::Later), "<[H12345678<[K|\nb<[K|\n<[J");
        let bold = shown("\x1b[1mHEADING OF A TABLE\x1b[0m\n", 24, Place::Later);
        assert_eq!(bold, "<[H<[1mHEADING <[0m<[K|\n<[J", "a style takes no columns");
        let wide = shown("日本日本日本\n", 24, Place::Later);
        assert_eq!(wide, "<[H日本日本<[K|\n<[J", "a wide character takes two columns");
    }

    #[test]
    fn outputs_on_a_stream_have_no_control_sequences() {
        assert_eq!(Screen::Stream.show(b"a\n", Place::First), b"a\n");
        assert_eq!(Screen::Stream.show(b"a\n", Place::Later), b"\na\n");
    }

    #[tokio::test]
    async fn the_failure_of_the_first_run_ends_the_command() {
        let fails = || async { Err(Failure::other("no")) };
        let failed = repeat(Some(Duration::from_secs(1)), fails).await.unwrap_err();
        assert_eq!(failed.message, "no");
        assert_eq!(repeat(None, fails).await.unwrap_err().message, "no");
    }
}
