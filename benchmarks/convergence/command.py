"""Does it converge as well: ``python -m benchmarks convergence``.

Five questions on problems in float32, each of which may be asked alone by ``--only``;
the answers to the others stay as they are.
"""

import json
from collections.abc import Sequence

from tqdm import tqdm

from benchmarks.convergence import large_rates, stationary, tolerance, tuned, variants
from benchmarks.shared.results import (
    RESULTS,
    environment,
    make_parser,
    surroundings,
    write,
)

QUESTIONS = {
    "tuned": tuned,
    "stationary": stationary,
    "large-rates": large_rates,
    "tolerance": tolerance,
    "variants": variants,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask what is to be asked, and write the answers after each question."""
    parser = make_parser("convergence", __doc__, RESULTS / "convergence")
    add = parser.add_argument
    add("--only", nargs="*", choices=QUESTIONS, default=list(QUESTIONS))
    add("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "convergence.json"
    answers = json.loads(file.read_text("utf-8")) if file.exists() else {}
    for name in options.only:
        seeds = 1 if options.quick else options.seeds
        runs = QUESTIONS[name].runs(seeds, quick=options.quick)
        around = environment()
        records = list(tqdm(runs, desc=name, unit="record"))
        answers[name] = {**around, "records": records}
        file.write_text(json.dumps(answers) + "\n", "utf-8")
    parts = [
        f"## {question.TITLE}\n\n{question.report(answers[name]['records'])}\n\n"
        f"{surroundings(answers[name])}"
        for name, question in QUESTIONS.items()
        if name in answers
    ]
    write(options.out, "convergence", answers, "\n\n".join(parts))
