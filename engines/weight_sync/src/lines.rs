//! What processes tell each other beside their weights: words in lines, on the pipes of the one that has started the others.

use std::io::{BufRead, Write};

use crate::Result;

/// What begins a line of ours: libraries print to the same pipes.
const MARK: &str = "@ ";

/// Says `words`, in this order.
pub(crate) fn say(to: &mut impl Write, words: &[&str]) -> Result<()> {
    let line: Vec<String> = words.iter().map(|word| word.replace(['\n', '\t'], " ")).collect();
    // In one piece: who hears it is woken once.
    to.write_all(format!("{MARK}{}\n", line.join("\t")).as_bytes())?;
    Ok(to.flush()?)
}

/// The words of the next line of ours. Others are passed on. `None` at the end.
pub(crate) fn hear(from: &mut impl BufRead) -> Result<Option<Vec<String>>> {
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match line.trim_end_matches('\n').strip_prefix(MARK) {
            Some(words) => return Ok(Some(words.split('\t').map(str::to_owned).collect())),
            None => eprint!("{line}"),
        }
    }
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn from_hex(digits: &str) -> Result<Vec<u8>> {
    let pairs = (0..digits.len()).step_by(2).map(|at| digits.get(at..at + 2).ok_or("half a byte"));
    pairs.map(|pair| Ok(u8::from_str_radix(pair?, 16)?)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;

    #[test]
    fn words_come_as_they_were_said() {
        let mut pipe = b"UCX says something\n".to_vec();
        say(&mut pipe, &["failed", "1", "two\nlines", ""]).unwrap();
        let mut from = &pipe[..];
        assert_eq!(hear(&mut from).unwrap().unwrap(), ["failed", "1", "two lines", ""]);
        assert_eq!(hear(&mut from).unwrap(), None);
        assert_eq!(from_hex(&to_hex(&[0, 255, 18])).unwrap(), [0, 255, 18]);
        assert!(from_hex("abc").is_err());
    }
}
