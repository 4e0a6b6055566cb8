"""Deliberate bugs: what a file of tests/mutants says, where in the tree it belongs, and the tree with all of them in it."""

import argparse
import re
import shlex
from bisect import bisect_left
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path("tests/mutants")
NAMES = ("test", "on", "seed", "form", "in", "find", "with")
STAND_IN = "driver-sim"
MODEL = "shuttle"
ENVIRONMENT = "TRANSSHIP_MUTANT"
# The part of `find` that is replaced, where that is not all of it.
BEGIN, END = "«", "»"
SPACE = re.compile(r"\s+|//[^\n]*")

# Each crate with mutants has it; it is asked in their places.
SWITCH = f"""
pub(crate) mod mutant {{
    use std::sync::OnceLock;
    pub(crate) fn is_on(name: &str) -> bool {{
        static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
        CHOSEN.get_or_init(|| std::env::var("{ENVIRONMENT}").ok()).as_deref() == Some(name)
    }}
}}
"""


class Wrong(Exception):
    """What is wrong with a mutant."""


class Test(NamedTuple):
    """A program of `cargo test`, what it is given, and on which stand-in or by which model it runs, if by one."""

    package: str
    features: tuple
    target: tuple
    arguments: tuple
    on: str
    seed: str
    line: str

    def __str__(self):
        places = [f" on {self.on}" if self.on else "", f" with seed {self.seed}" if self.seed else ""]
        return f"cargo test {self.line}{''.join(places)}"


class Edit(NamedTuple):
    path: Path
    start: int
    end: int
    replacement: str


class Mutant(NamedTuple):
    name: str
    test: Test
    # Built by itself, for what cannot be switched when the program runs.
    is_apart: bool
    edits: list

    @property
    def number(self):
        return int(self.name.split("-")[0])


def read_all():
    """All mutants, by number, and what is wrong with those that are not among them."""
    mutants, wrong = [], []
    for path in sorted(FOLDER.iterdir()):
        try:
            mutants.append(read(path))
        except Wrong as reason:
            wrong.append(f"{path}: {reason}")
    mutants.sort(key=lambda mutant: mutant.number)
    for one, other in zip(mutants, mutants[1:]):
        if one.number == other.number:
            wrong.append(f"{FOLDER}: two have the number of {one.name}")
    if not mutants and not wrong:
        wrong.append(f"{FOLDER}: no mutants")
    return mutants, wrong + overlaps(mutants)


def read(path):
    if not re.fullmatch(r"\d+-.+\.txt", path.name):
        raise Wrong("its name must begin with a number and end with `.txt`")
    fields = fields_of(path.read_text())
    values = {name: [value for key, value in fields if key == name] for name in NAMES}
    is_once = len(values["test"]) == len(values["in"]) == 1 and all(len(values[name]) <= 1 for name in ("on", "seed", "form"))
    pairs = [key for key, _ in fields if key in ("find", "with")]
    in_turn = pairs and pairs == ["find", "with"] * len(values["find"])
    if not is_once or not in_turn or values["form"] not in ([], ["apart"]):
        raise Wrong("it must have one `test:`, one `in:`, `find:` and `with:` in turn; at most one `on:`, `seed:`, `form: apart`")
    test = named_test(values["test"][0], "".join(values["on"]), "".join(values["seed"]))
    require_names(test)
    edits = [located(Path(values["in"][0]), *pair) for pair in zip(values["find"], values["with"])]
    return Mutant(path.stem, test, bool(values["form"]), edits)


def fields_of(text):
    """`name: value`, where lines that begin with space belong to the one before. What comes first describes the mutant."""
    fields = []
    for number, line in enumerate(text.splitlines(), 1):
        name, colon, value = line.partition(":")
        if fields and (line[:1].isspace() or not line):
            fields[-1][1].append(line)
        elif colon and name in NAMES:
            fields.append((name, [value]))
        elif fields:
            raise Wrong(f"line {number} begins with none of {', '.join(f'`{name}:`' for name in NAMES)}")
    return [(name, "\n".join(lines).strip()) for name, lines in fields]


def named_test(line, on, seed):
    if on not in ("", STAND_IN, MODEL) or (seed and on != STAND_IN):
        raise Wrong(f"`on:` is `{STAND_IN}`, and with that there may be a `seed:`, or `{MODEL}`")
    cargo, _, arguments = line.partition(" -- ")
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False, allow_abbrev=False)
    parser.add_argument("-p", dest="package", default="transship")
    parser.add_argument("--features", default="")
    parser.add_argument("--test")
    parser.add_argument("--lib", action="store_true")
    try:
        named, unknown = parser.parse_known_args(shlex.split(cargo))
    except argparse.ArgumentError as error:
        raise Wrong(f"`test:` {error}") from error
    if unknown or named.lib == bool(named.test):
        raise Wrong("`test:` takes `-p`, `--features`, `--lib` or `--test NAME`, and behind ` -- ` what the test is given")
    target = ("--lib",) if named.lib else ("--test", named.test)
    features = tuple(f"{named.package}/{feature}" for feature in named.features.split(",") if feature)
    return Test(named.package, features, target, tuple(shlex.split(arguments)), on, seed, line)


def require_names(test):
    """Fails unless something in the code has the names that choose the tests: none runs where a name has changed."""
    chosen = [argument for argument in test.arguments if not argument.startswith("-")]
    if test.target == ("--lib",):
        names, parts = unit_tests(folder_of(test.package) / "src"), chosen
    else:
        names, parts = names_in_files(), [part for argument in chosen for part in argument.split("::")]
    for part in parts:
        if not any(part in name for name in names):
            raise Wrong(f"`test:` has `{part}`, which is in the name of no test, file or backend")


@cache
def folder_of(package):
    manifests = [path for path in Path().glob("**/Cargo.toml") if "target" not in path.parts]
    return next(path.parent for path in manifests if f'name = "{package}"' in path.read_text().splitlines())


@cache
def unit_tests(folder):
    """The tests beside the code, as `cargo test` calls them."""
    modules = {path: "::".join(path.relative_to(folder).with_suffix("").parts) for path in folder.rglob("*.rs")}
    named = r"#\[test\](?:\s*#.*)*\s+fn (\w+)"
    return {f"{module}::tests::{name}" for path, module in modules.items() for name in re.findall(named, path.read_text())}


@cache
def names_in_files():
    """What functions, types, backends, files and folders are called."""
    files = [path for path in Path().rglob("*.rs") if "target" not in path.parts]
    names = r'\bfn (\w+)|"([\w-]+)"|\b([A-Z]\w+)'
    found = {name for path in files for groups in re.findall(names, path.read_text()) for name in groups if name}
    return found | {part for path in files for part in (path.stem, path.parent.name)}


def located(folder, find, replacement):
    before, begin, rest = find.partition(BEGIN)
    marked, end, after = rest.partition(END) if begin else (find, END, "")
    before = before if begin else ""
    if not end or not code(marked)[0]:
        raise Wrong(f"`find:` is empty, or has {BEGIN} and no {END} behind it")
    text = code(before)[0] + code(marked)[0] + code(after)[0]
    places = [(source, start) for source in sources(folder) for start in occurrences(source.code, text)]
    if len(places) != 1:
        found = "".join(f"\n    {source.line(start)}" for source, start in places)
        raise Wrong(f"found {len(places)} times below {folder}, and not once: {find}{found or nearest(folder, text)}")
    source, start = places[0]
    start += len(code(before)[0])
    end = start + len(code(marked)[0]) - 1
    return Edit(source.path, source.positions[start], source.positions[end] + 1, replacement)


class Source(NamedTuple):
    path: Path
    text: str
    # Without white space and comments, and where in the text each character is.
    code: str
    positions: list

    def line(self, start):
        return f"{self.path}:{self.text.count(chr(10), 0, self.positions[start]) + 1}"


@cache
def sources(folder):
    return [Source(path, text, *code(text)) for path in sorted(folder.rglob("*.rs")) for text in [path.read_text()]]


def code(text):
    kept, positions, start = [], [], 0
    for space in [*SPACE.finditer(text), None]:
        end = space.start() if space else len(text)
        kept.append(text[start:end])
        positions.extend(range(start, end))
        start = space.end() if space else end
    return "".join(kept), positions


def occurrences(text, wanted):
    start = text.find(wanted)
    while start >= 0:
        yield start
        start = text.find(wanted, start + 1)


def nearest(folder, wanted):
    """Where most of what was looked for begins: for who has changed the code."""
    is_missing = lambda length: not any(wanted[:length] in source.code for source in sources(folder))
    length = bisect_left(range(1, len(wanted)), True, key=is_missing)
    for source in sources(folder) if length > 5 else ():
        start = source.code.find(wanted[:length])
        if start >= 0:
            ahead = source.code[start + length : start + length + 40]
            return f"\n    {source.line(start)} has `{wanted[:length]}`, and then `{ahead}`"
    return ""


def overlaps(mutants):
    """Mutants one in another can be switched, those that share a part of their places cannot."""
    edits = [(edit, mutant.name) for mutant in mutants if not mutant.is_apart for edit in mutant.edits]
    return [
        f"{FOLDER}: {one_name} and {other_name} overlap in {one.path}: let one have `form: apart`"
        for one, one_name in edits
        for other, other_name in edits
        if one.path == other.path and one.start < other.start < one.end < other.end
    ]


def tree_with(mutants):
    """The files that change, with all mutants in them that can be switched."""
    edits = [(edit, mutant.name) for mutant in mutants if not mutant.is_apart for edit in mutant.edits]
    paths = {edit.path for edit, _ in edits}
    files = {path: switched(path.read_text(), [edit for edit in edits if edit[0].path == path]) for path in paths}
    for root in {root_of(path) for path in files}:
        files[root] = files.get(root, root.read_text()) + SWITCH
    return files


def switched(text, edits):
    """With `if`s in the places of the edits, which are asked by name."""
    inserts = []
    for order, (edit, name) in enumerate(edits):
        is_statement = text[: edit.end].endswith((";", "}"))
        begin, end = ("", "\n}") if is_statement else ("(", "\n})")
        begin = f'{begin}if crate::mutant::is_on("{name}") {{\n{edit.replacement}\n}} else {{\n'
        # Whatever ends somewhere ends in front of what begins there; the larger begins first, and ends last.
        inserts += [(edit.start, 1, -edit.end, order, begin), (edit.end, 0, -edit.start, -order, end)]
    return spliced(text, [(place, place, inserted) for place, *_, inserted in sorted(inserts)])


def root_of(path):
    """The file that the crate begins with."""
    folder = next(folder for folder in path.parents if (folder / "Cargo.toml").is_file())
    return next(root for root in (folder / "src/lib.rs", folder / "src/main.rs") if root.is_file())


def files_of(mutant):
    """The files that change, with this mutant alone."""
    by_path = {}
    for edit in sorted(mutant.edits):
        by_path.setdefault(edit.path, []).append((edit.start, edit.end, edit.replacement))
    return {path: spliced(path.read_text(), edits) for path, edits in by_path.items()}


def spliced(text, edits):
    """With other text from each start to each end; they are in order."""
    parts, last = [], 0
    for start, end, replacement in edits:
        parts += [text[last:start], replacement]
        last = end
    return "".join(parts) + text[last:]


def check_the_check():
    """A check that cannot fail is none."""
    assert code("a // b\n  .c()") == ("a.c()", [0, 9, 10, 11, 12])
    assert list(occurrences("abab", "ab")) == [0, 2]
    assert spliced("abc", [(1, 2, "x"), (2, 2, "y")]) == "axyc"
    nested = [(Edit(Path(), 0, 5, "x"), "1"), (Edit(Path(), 0, 1, "y"), "2")]
    on = 'if crate::mutant::is_on("%s") {'
    lines = ["(" + on % 1, "x", "} else {", "(" + on % 2, "y", "} else {", "a", "}) + b", "})"]
    assert switched("a + b", nested).split("\n") == lines
    assert fields_of("About.\nfind: a\n      b\nwith:\n") == [("find", "a\n      b"), ("with", "")]
