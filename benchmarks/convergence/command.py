"""Does it converge as well: ``python -m benchmarks convergence``.

Four questions: steps to a gap beside those of the step before, one setting of Adam
against tuned rivals, every optimiser at rates a hundred times apart, and rates that are
far too large. Answers are written one by one, and ``--resume`` keeps those that were
found with the same step.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.convergence import large_rates, older_step, stationary, tuned
from benchmarks.shared.fingerprint import of_part
from benchmarks.shared.haste import make_haste
from benchmarks.shared.results import (
    RESULTS,
    environment,
    make_parser,
    surroundings,
    write,
)

QUESTIONS = {
    "older-step": older_step,
    "tuned": tuned,
    "stationary": stationary,
    "large-rates": large_rates,
}


def _found(file: Path) -> dict[str, Any]:
    """The answers in a file that are of this step."""
    content = json.loads(file.read_text("utf-8")) if file.exists() else {}
    answers = {name: content[name] for name in QUESTIONS if name in content}
    step = of_part("step")
    return {n: a for n, a in answers.items() if a.get("made", {}).get("step") == step}


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask what is to be asked, and write the answers after each question."""
    parser = make_parser("convergence", __doc__, RESULTS / "convergence")
    add = parser.add_argument
    add("--only", nargs="*", choices=QUESTIONS, default=list(QUESTIONS))
    add("--seeds", type=int, default=1, help="starts of the tuned rivals (1)")
    add("--resume", action="store_true", help="keep the answers that are of this step")
    options = parser.parse_args(arguments)
    # Nothing is timed, and much of the time is compilation.
    make_haste()
    answers = _found(options.out / "convergence.json") if options.resume else {}
    for name in options.only:
        if name in answers:
            continue
        seeds = 1 if options.quick else options.seeds
        runs = QUESTIONS[name].runs(seeds, quick=options.quick)
        around = environment()
        records = list(tqdm(runs, desc=name, unit="record"))
        answers[name] = {**around, "records": records}
        parts = [
            f"## {question.TITLE}\n\n{question.report(answers[name]['records'])}\n\n"
            f"{surroundings(answers[name])}"
            for name, question in QUESTIONS.items()
            if name in answers
        ]
        write(options.out, "convergence", answers, "\n\n".join(parts))
