//! The program, by memory that processes share.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::process::Command;

/// Whether it has succeeded, and what it has printed.
fn run(options: &str) -> (bool, String) {
    let done =
        Command::new(env!("CARGO_BIN_EXE_weight_sync")).args(options.split_whitespace()).output().unwrap();
    let text = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8(text).unwrap())
}

/// The lines of rounds, as words.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|words| words.first().is_some_and(|word| word.parse::<u16>().is_ok())).collect()
}

#[test]
fn two_processes_get_each_version_in_turn() {
    for options in ["", "--in-place", "--by window", "--by window --in-place"] {
        let (is_well, text) = run(&format!("--rounds 4 {options}"));
        assert!(is_well, "{text}");
        assert_eq!(rows(&text).iter().map(|row| row[0]).collect::<Vec<_>>(), ["1", "2", "3", "4"], "{text}");
        assert!(rows(&text).iter().all(|row| row.ends_with(&["0", "|", "0"])), "{text}");
        assert!(text.ends_with("every byte of the last version is right\n"), "{text}");
    }
}

#[test]
fn one_copy_of_as_many_bytes_is_timed_behind_each_round() {
    let (is_well, text) = run("--by window --one-copy --bytes 4MB --rounds 4");
    assert!(is_well && rows(&text).len() == 4, "{text}");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("one copy of as many bytes to one process: "))
        .unwrap();
    let numbers: Vec<f64> = line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    let [seconds, rate, _share] = numbers[..] else { unreachable!("{line}") };
    // What is printed is rounded, and layers have no more bytes than were asked for.
    assert!((rate * seconds - 0.004).abs() <= 0.0002 + 0.00006 * rate, "{line}");
}

/// Fails if requests do not look at all parameters. The same came of a request that locks once for each parameter, tried by hand.
#[test]
fn one_parameter_of_another_version_fails_the_program() {
    let (is_well, text) = run("--mix");
    assert!(!is_well, "{text}");
    assert!(text.contains("have seen weights of several versions"), "{text}");
    assert_eq!(rows(&text).len(), 3, "only the last version is mixed: {text}");
}

/// Fails if the trainer waits for the process that was killed, or if its end is taken for a good one.
#[test]
fn the_trainer_goes_on_when_a_process_is_killed() {
    ["ipc", "window"].into_iter().for_each(goes_on_when_a_process_is_killed);
}

fn goes_on_when_a_process_is_killed(by: &str) {
    let (is_well, text) = run(&format!("--by {by} --kill --rounds 5 --bytes 4MB"));
    assert!(is_well, "{text}");
    assert!(text.contains("inference process 1 has ended: signal: 9 (SIGKILL)"), "{text}");
    assert!(text.contains("the trainer goes on with inference process 0"), "{text}");
    let counts: Vec<usize> =
        rows(&text).iter().map(|row| row.iter().filter(|word| **word == "|").count()).collect();
    assert_eq!(counts.len(), 5, "{text}");
    assert!(
        counts[..2].iter().all(|count| *count > 0) && counts[2..].iter().all(|count| *count == 0),
        "{text}"
    );
}

#[test]
fn a_way_that_is_not_there_is_an_error_of_all() {
    let (is_well, text) = run("--by nccl");
    assert!(!is_well && text.contains("NCCL does not work between host"), "{text}");
}
