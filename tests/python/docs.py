"""Finds the code blocks of a Markdown page and what the page says about testing them.

A block is run as it stands, after the blocks above it on the same page. HTML comments right before it change that:

    <!-- test: append: --training.steps 2 -->   adds words to each command of the block that starts `build/flambeau`
    <!-- test: expect: loss -->                 its output must contain this
    <!-- test: skip: run by .ci/run -->         is not run; allowed only for what `make test` and `make train` are themselves, for
                                                benchmarks, and for plans of real models, whose compilations take minutes
"""

import dataclasses
import re

SHELL = {"sh", "bash", "shell", "console"}
PYTHON = {"python"}

FENCE = re.compile(r"^(?P<indent> {0,3})(?P<fence>`{3,}|~{3,})(?P<info>.*)$")
NOTE = re.compile(r"^\s*<!--\s*test:\s*(?P<kind>\w+):\s*(?P<text>.*?)\s*-->\s*$")
RUNS_FLAMBEAU = re.compile(r"\s*(\w+=\S+ )*build/flambeau\s")
KINDS = {"append", "expect", "skip"}

# Set-up itself: `.ci/run` runs it, and a test that ran it would run itself. Plans: test_plan.py compiles what can be waited for.
# Benchmarks: they need their peers and a quiet machine; `options` says what of a command can be checked all the same.
SKIPPABLE = [
    re.compile(r"git clone \S+( \S+)?"),
    re.compile(r"cd \S+"),
    re.compile(r"make( [A-Z_]+=(\"[^\"]*\"|\S+))* (setup|build|train|test|asan|tsan|bench|plan-all|clean)( [A-Z_]+=(\"[^\"]*\"|\S+))*"),
    re.compile(r"build/flambeau plan configs/(?!\w+/debug\.toml)\S+ .*"),
    re.compile(r"scripts/setup\.sh jax"),
    re.compile(r"\.venv/bin/python bench/\w+\.py(?! --quick)( .*)?"),
]


class DocError(Exception):
    """A page that cannot be tested; the message says where and why."""


@dataclasses.dataclass
class Block:
    line: int  # of the opening fence, from 1
    language: str
    text: str
    append: list[str] = dataclasses.field(default_factory=list)
    expect: list[str] = dataclasses.field(default_factory=list)
    skip: str | None = None

    def commands(self) -> list[str]:
        """The commands of a shell block, one a string, continuation lines joined; output and comments left out."""
        commands, open_command = [], None
        for line in self.text.splitlines():
            if open_command is None:
                if self.language == "console":
                    if not line.startswith("$ "):
                        continue
                    line = line[2:]
                if not line.strip() or line.lstrip().startswith("#"):
                    continue
                open_command = ""
            elif self.language == "console" and line.startswith("> "):
                line = line[2:]
            if line.endswith("\\"):
                open_command += line[:-1].rstrip() + " "
            else:
                commands.append(open_command + line.strip() if open_command else line.rstrip())
                open_command = None
        if open_command is not None:
            raise DocError(f"line {self.line}: the last command of the block ends with a backslash")
        return commands

    def script(self) -> str:
        """What bash or Python is given."""
        if self.language != "console" and not self.append:
            return self.text
        extra = "".join(" " + words for words in self.append)
        return "\n".join(c + extra if RUNS_FLAMBEAU.match(c) else c for c in self.commands())


def blocks(page: str) -> list[Block]:
    """Every block in a language that is run, in order. DocError for a block without a language, since a command could hide in
    it, and for a note that does not hold."""
    found, notes = [], []
    lines = page.splitlines()
    i = 0
    while i < len(lines):
        note, fence = NOTE.match(lines[i]), FENCE.match(lines[i])
        start = i + 1
        i += 1
        if note:
            notes.append((note["kind"], note["text"]))
            continue
        if not fence:
            if lines[start - 1].strip() and notes:
                raise DocError(f"line {start}: a test note stands right before a code block, and here is none")
            continue
        body = []
        while i < len(lines) and not re.match(rf"^ {{0,3}}{fence['fence'][0]}{{{len(fence['fence'])},}}\s*$", lines[i]):
            body.append(lines[i].removeprefix(fence["indent"]))
            i += 1
        if i == len(lines):
            raise DocError(f"line {start}: this code block is not closed")
        i += 1
        language = fence["info"].strip().split(" ")[0]
        if not language:
            raise DocError(f"line {start}: give this block a language: console or sh for commands, text for anything else")
        if language in SHELL | PYTHON:
            found.append(_noted(Block(start, language, "\n".join(body)), notes))
        elif notes:
            raise DocError(f"line {start}: a test note before a block of {language}, which is not run")
        notes = []
    if notes:
        raise DocError("the page ends with a test note and no block after it")
    return found


def _noted(block: Block, notes: list[tuple[str, str]]) -> Block:
    for kind, text in notes:
        if kind not in KINDS:
            raise DocError(f"line {block.line}: test notes are {', '.join(sorted(KINDS))}; this one is {kind}")
        if kind == "skip":
            block.skip = text
        else:
            getattr(block, kind).append(text)
    if block.skip is not None:
        if block.language in PYTHON:
            raise DocError(f"line {block.line}: Python is always run")
        for command in block.commands():
            for part in command.split(" && "):
                if not any(pattern.fullmatch(part.strip()) for pattern in SKIPPABLE):
                    raise DocError(f"line {block.line}: only set-up, benchmarks and plans of real models may be skipped, not `{part}`")
    if block.append and (block.language in PYTHON or not any(map(RUNS_FLAMBEAU.match, block.commands()))):
        raise DocError(f"line {block.line}: `append` changes nothing here")
    return block


def links(page: str) -> list[str]:
    """Targets of relative links and pictures outside code, without their anchors."""
    text = re.sub(r"^(`{3,}|~{3,}).*?^\1\s*$", "", page, flags=re.M | re.S)
    text = re.sub(r"`[^`\n]*`", "", text)
    targets = re.findall(r"\]\(<?([^)\s>]+)>?[^)]*\)", text) + re.findall(r"<img[^>]*\ssrc=\"([^\"]+)\"", text)
    return [t.partition("#")[0] for t in targets if not re.match(r"[a-z]+:|#", t)]


def options(command: str) -> tuple[str, set[str]] | None:
    """The script of bench/ or scripts/ that a command runs, and the options that it is given; None for other commands."""
    script = re.search(r"(?:^|\s)((?:bench|scripts)/\w+\.py)(.*)", command)
    return (script[1], set(re.findall(r"\s(--[\w-]+)", re.sub(r"#.*", "", script[2])))) if script else None
